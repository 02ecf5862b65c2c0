/*
 * rw_graph: launching a step again is bit-identical to recording it again. Compared are losses of every launch,
 * gradients, parameters and the generator, for every policy and type; invalid uses are refused.
 */
#include "run/step_graph_fixture.h"
#include "run/run_state.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void these_policies(enum model_kind kind, rw_dtype dtype, const char *const *policies, int n)
{
    const struct model_config c = graph_config(kind, dtype);
    struct graph_outcome recorded = graph_record(&c, "none", 0);
    for (int i = 0; i < n; i++) {
        struct graph_outcome o = graph_launch(&c, policies[i], &(rw_graph_params){ 0 }, false, true);
        graph_same(&recorded, &o, policies[i]);
        graph_release(&o);
    }
    cr_assert_neq(recorded.loss[0], recorded.loss[1]);
    graph_release(&recorded);
}

static void every_policy(enum model_kind kind, rw_dtype dtype)
{
    static const char *const policies[] = {
        "none", "full", "uniform:2", "selective:core_attn", "ops:linear", "block:1"
    };
    these_policies(kind, dtype, policies, sizeof policies / sizeof *policies);
}

/* Each step's tokens go to other experts. The load of each is counted once per launch, and compared with the
   parameters. */
static void experts(rw_dtype dtype)
{
    static const char *const policies[] = { "none", "full", "megatron:moe", "megatron:moe_act,mla_up_proj,layernorm" };
    these_policies(MODEL_DEEPSEEK, dtype, policies, sizeof policies / sizeof *policies);
}

Test(step_graph_launch, gpt_float32) { every_policy(MODEL_GPT, RW_F32); }
Test(step_graph_launch, gpt_bfloat16) { every_policy(MODEL_GPT, RW_BF16); }
Test(step_graph_launch, gpt_float64) { every_policy(MODEL_GPT, RW_F64); }
Test(step_graph_launch, llama_float32) { every_policy(MODEL_LLAMA, RW_F32); }
Test(step_graph_launch, experts_float32) { experts(RW_F32); }
Test(step_graph_launch, experts_bfloat16) { experts(RW_BF16); }

/* A budget's plan is captured like any other plan, including offloaded values. The model is wide enough for values that
   may be offloaded. */
static void every_budget(rw_dtype dtype)
{
    static const char *const budgets[] = { "budget:95%", "budget:85%", "budget:95%+offload", "budget:80%+offload" };
    struct model_config c = graph_config(MODEL_GPT, dtype);
    c.width = 64;
    struct graph_outcome recorded = graph_record(&c, "none", 0);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct graph_outcome o = graph_launch(&c, budgets[i], &(rw_graph_params){ 0 }, false, true);
        graph_same(&recorded, &o, budgets[i]);
        cr_expect_lt(o.memory.measured_peak, recorded.memory.measured_peak, "%s", budgets[i]);
        cr_expect_eq(o.memory.host > 0, strstr(budgets[i], "+offload") != NULL, "%s: %zu", budgets[i], o.memory.host);
        graph_release(&o);
    }
    graph_release(&recorded);
}

Test(step_graph_launch, budgets_float32) { every_budget(RW_F32); }
Test(step_graph_launch, budgets_bfloat16) { every_budget(RW_BF16); }
Test(step_graph_launch, budgets_float16) { every_budget(RW_F16); }

Test(step_graph_launch, clipping_is_part_of_the_step)
{
    const struct model_config c = graph_config(MODEL_GPT, RW_F32);
    struct graph_outcome recorded = graph_record(&c, "full", 0.05);
    struct graph_outcome launched = graph_launch(&c, "full",
                                                 &(rw_graph_params){ { rw_record_clip(0.05) } }, false, true);
    graph_same(&recorded, &launched, "clipped");
    graph_release(&recorded);
    graph_release(&launched);
}

/* No call waits between the launches: the next one must not overwrite what the last one still reads. */
Test(step_graph_launch, launches_without_reading)
{
    const struct model_config c = graph_config(MODEL_GPT, RW_F32);
    struct graph_outcome recorded = graph_record(&c, "full", 0);
    struct graph_outcome launched = graph_launch(&c, "full", &(rw_graph_params){ 0 }, false, false);
    for (int s = 0; s < GRAPH_STEPS - 1; s++) recorded.loss[s] = 0;
    graph_same(&recorded, &launched, "not read");
    graph_release(&recorded);
    graph_release(&launched);
}

/* dropout(1, ..., 1): the sum is the number of elements that the mask kept. */
Test(step_graph_launch, each_launch_draws_a_fresh_mask)
{
    enum { N = 4096, LAUNCHES = 4 };
    struct fixture b = fixture_open(9, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_init_constant(w, 1);
    ckpt_set_policy(b.t, "full");
    ckpt_begin(b.t, "r");
    rw_tensor *h = rw_mul(b.t, w, rw_dropout(b.t, w, 0.5f));
    h = rw_mul(b.t, h, h);
    ckpt_end(b.t);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, h, h), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    static float gradient[LAUNCHES][N];
    for (int i = 0; i < LAUNCHES; i++) {
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(NULL, rw_gradient(w), gradient[i], sizeof gradient[i]), RW_OK);
        /* the gradient is 0 where forward dropped: a replay with another mask would give 0 times some value */
        for (int j = 0; j < i; j++)
            cr_assert_neq(memcmp(gradient[i], gradient[j], sizeof gradient[i]), 0, "launches %d, %d", i, j);
    }
    const rw_generator_state end = rw_generator_get(b.ctx);
    cr_assert_eq(end.offset, (uint64_t)LAUNCHES * N / 4);
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* Dropout of a half: of elements, or of attention's weights, whose kernels receive the seed's keys differently. */
static rw_tensor *dropped(rw_tape *t, rw_tensor *w, bool attention)
{
    if (!attention) return rw_dropout(t, w, 0.5f);
    rw_tensor *const x = rw_cast(t, rw_reshape(t, w, RW_SHAPE(1, 1, 4, 64)), RW_BF16);
    rw_tensor *const y = rw_attention(t, x, x, x, &(rw_attention_params){ .dropout = 0.5f });
    return rw_reshape(t, rw_cast(t, y, RW_F32), RW_SHAPE(256));
}

/* Steps with dropout, some of them with another seed: by a graph, or each recorded anew. */
static void draw_under_seeds(bool graph, bool attention, float *ret, int launches)
{
    enum { N = 256 };
    struct fixture b = fixture_open(9, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    if (attention) rw_init_normal(w, 0, 1);
    else rw_init_constant(w, 1);
    for (int i = 0; i < launches; i++) {
        if (i == launches / 2) rw_generator_set(b.ctx, (rw_generator_state){ .seed = 77, .offset = 5 });
        rw_tensor *loss = NULL;
        if (!graph || !i) {
            rw_tape_reset(b.t);
            loss = rw_sum(b.t, dropped(b.t, w, attention), RW_AXES(0), false);
        }
        if (graph && !i) cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        rw_zero_grad(b.ctx);
        cr_assert_eq(graph ? audited_launch(g, b.t) : rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(NULL, rw_gradient(w), ret + i * N, N * sizeof *ret), RW_OK);
    }
    if (g) rw_graph_destroy(&g);
    fixture_close(&b);
}

/* A captured launch holds its kernels' arguments, including the seed, which loading a checkpoint changes. */
static void follow_to_another_seed(bool attention)
{
    enum { LAUNCHES = 6 };
    static float launched[LAUNCHES * 256], recorded[LAUNCHES * 256];
    draw_under_seeds(true, attention, launched, LAUNCHES);
    draw_under_seeds(false, attention, recorded, LAUNCHES);
    for (int i = 0; i < LAUNCHES; i++) {
        cr_assert(!memcmp(launched + i * 256, recorded + i * 256, 256 * sizeof *launched), "launch %d", i);
        for (int j = 0; j < i; j++)
            cr_assert(memcmp(launched + i * 256, launched + j * 256, 256 * sizeof *launched), "launches %d, %d", i, j);
    }
}

Test(step_graph_launch, follows_the_generator_to_another_seed) { follow_to_another_seed(false); }
Test(step_graph_launch, follows_the_generator_in_attention) { follow_to_another_seed(true); }

/* A larger plan moves the arena: the graph must not run at the old address. */
Test(step_graph_launch, survives_a_larger_plan_in_between)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tape *other = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64)), *const v = rw_buffer(b.ctx, "v", RW_F32,
                                                                                          RW_SHAPE(65536));
    rw_init_normal(w, 0, 1);
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *const loss = rw_sum(b.t, rw_tanh(b.t, rw_exp(b.t, w)), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK);
    double value[4];
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
        value[i] = rw_item(b.t, loss);
        if (i != 1) continue;
        cr_assert_eq(rw_item(other, rw_sum(other, rw_exp(other, rw_mul(other, v, v)), RW_AXES(0), false)), 65536);
    }
    for (int i = 1; i < 4; i++) cr_assert_eq(memcmp(&value[0], &value[i], sizeof value[0]), 0);
    rw_graph_destroy(&g);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

Test(step_graph_launch, effects_happen_at_every_launch)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    float count = 0;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1)), *const n = rw_buffer(b.ctx, "n", RW_F32,
                                                                                         RW_SHAPE(1));
    rw_init_constant(w, 2);
    rw_assign(b.t, n, rw_add_scalar(b.t, n, 1));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, n), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_item(b.t, loss), 4); /* reads the buffer as it was before the third launch */
    cr_assert_eq(rw_read(NULL, n, &count, sizeof count), RW_OK);
    cr_assert_eq(count, 3);
    rw_graph_destroy(&g);
    fixture_close(&b);
}

Test(step_graph_launch, refuses_what_it_cannot_repeat)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8));
    rw_tensor *loss = rw_sum(b.t, rw_dropout(b.t, w, 0.5f), RW_AXES(0), false);

    cr_assert_eq(rw_graph_create(&g, b.t, NULL, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &(rw_graph_params){ { rw_record_clip(-1) } }), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    rw_item(b.t, loss);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_ERR_ARGUMENT, "a value was computed");
    cr_assert(strstr(rw_error_message(b.ctx), "computed already"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);

    rw_tape_reset(b.t);
    loss = rw_sum(b.t, rw_dropout(b.t, w, 0.5f), RW_AXES(0), false);
    rw_generator_set(b.ctx, (rw_generator_state){ .seed = 77 });
    loss = rw_add(b.t, loss, rw_sum(b.t, rw_dropout(b.t, w, 0.5f), RW_AXES(0), false));
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_ERR_ARGUMENT, "two seeds");
    rw_error_clear(b.ctx);
    cr_assert_null(g);

    rw_tape_reset(b.t);
    loss = rw_sum(b.t, rw_mul(b.t, w, w), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK);
    cr_assert_eq(audited_launch(g, b.t), RW_OK);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_graph_launch(g), RW_ERR_MODIFIED);
    rw_error_clear(b.ctx);
    rw_graph_destroy(&g);
    rw_graph_destroy(&g);
    cr_assert_eq(rw_graph_launch(NULL), RW_ERR_ARGUMENT);
    fixture_close(&b);
}

/* Parameters that the caller writes between launches are read, as they would be on a new tape. */
Test(step_graph_launch, reads_parameters_as_they_are)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, w), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK);
    for (int i = 1; i < 4; i++) {
        const float values[3] = { (float)i, 0, 0 };
        cr_assert_eq(rw_write(w, values, sizeof values), RW_OK);
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_item(b.t, loss), i * i);
    }
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* Workspace in bytes per thread, and as many threads as the bytes suffice for. */
static size_t per_thread(const rw_op_call *call)
{
    return 64 * (size_t)call->threads;
}

static rw_status check_like(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static bool fails;

static rw_status threaded(const rw_kernel *k)
{
    if (fails) return RW_ERR_DEVICE;
    memset(k->out[0].data, 0, (size_t)k->out[0].layout->numel * rw_dtype_size(k->out[0].dtype));
    return k->workspace_bytes == 64 * (size_t)k->threads ? RW_OK : RW_ERR_DEVICE;
}

static rw_status threaded_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def threaded_op = { .name = "threaded", .n_inputs = 1, .n_outputs = 1, .check = check_like,
                                       .kernel = { [RW_DEVICE_CPU] = threaded }, .grad = threaded_grad,
                                       .workspace = { [RW_DEVICE_CPU] = per_thread } };

/* ---- gradients that a launch would drop ---- */

/* A graph of the sum of p, whose gradient is 1, and a recorded step with two parameters on another tape. */
struct dropping {
    struct fixture b;
    rw_tape *other;
    rw_tensor *p, *q;
    rw_graph *g;
};

static struct dropping dropping_open(void)
{
    struct dropping w = { .b = fixture_open(1, 1) };
    cr_assert_eq(rw_tape_create(&w.other, w.b.ctx), RW_OK);
    w.p = rw_param(w.b.ctx, "p", RW_F32, RW_SHAPE(2));
    w.q = rw_param(w.b.ctx, "q", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_graph_create(&w.g, w.b.t, rw_sum(w.b.t, w.p, RW_ALL_AXES, false), NULL), RW_OK);
    return w;
}

static void dropping_close(struct dropping *w)
{
    rw_graph_destroy(&w->g);
    rw_tape_destroy(&w->other);
    fixture_close(&w->b);
}

static void adds(const struct dropping *w, rw_tensor *x)
{
    cr_assert_eq(rw_backward(w->other, rw_sum(w->other, rw_scale(w->other, x, 5), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(w->b.ctx));
    rw_tape_reset(w->other);
}

static float gradient_of(rw_tensor *x)
{
    float all[2];
    cr_assert_eq(rw_read(NULL, rw_gradient(x), all, sizeof all), RW_OK);
    return all[0];
}

static void launches(const struct dropping *w)
{
    cr_assert_eq(rw_graph_launch(w->g), RW_OK, "%s", rw_error_message(w->b.ctx));
    cr_assert_eq(gradient_of(w->p), 1);
    cr_assert_eq(gradient_of(w->q), 0);
}

/* The message names the parameter, and the gradients are unchanged. */
static void is_refused(const struct dropping *w, const char *name, float p, float q)
{
    char text[64];
    snprintf(text, sizeof text, "got a gradient of \"%s\"", name);
    cr_assert_eq(rw_graph_launch(w->g), RW_ERR_ARGUMENT);
    cr_assert_not_null(strstr(rw_error_message(w->b.ctx), text), "%s", rw_error_message(w->b.ctx));
    cr_assert_not_null(strstr(rw_error_message(w->b.ctx), "rw_zero_grad()"));
    rw_error_clear(w->b.ctx);
    cr_assert_eq(gradient_of(w->p), p);
    cr_assert_eq(gradient_of(w->q), q);
}

Test(step_graph_launch, refuses_to_drop_what_backward_added)
{
    struct dropping w = dropping_open();
    adds(&w, w.q);
    is_refused(&w, "q", 0, 5);
    adds(&w, w.p);
    is_refused(&w, "p", 5, 5);
    rw_zero_grad(w.b.ctx);
    launches(&w);
    launches(&w); /* overwriting its own gradients is not a loss */
    adds(&w, w.p);
    is_refused(&w, "p", 6, 0);
    rw_zero_grad(w.b.ctx);
    launches(&w);
    dropping_close(&w);
}

/* Half of a pipeline's step counts like a whole one. */
Test(step_graph_launch, refuses_to_drop_what_a_half_added)
{
    struct dropping w = dropping_open();
    rw_tensor *y = rw_scale(w.other, w.q, 3);
    cr_assert_eq(rw_forward(w.other, &y, 1), RW_OK);
    launches(&w); /* nothing was added yet */
    cr_assert_eq(rw_backward_from(w.other, &y, NULL, 1), RW_OK, "%s", rw_error_message(w.b.ctx));
    is_refused(&w, "q", 1, 3);
    dropping_close(&w);
}

/* Gradients that the caller writes, for example an all-reduce of a launch's gradients, and those that an update has
   consumed. */
Test(step_graph_launch, drops_gradients_that_are_no_loss)
{
    struct dropping w = dropping_open();
    rw_optimizer *opt = NULL;
    const float sum[2] = { 7, 7 };
    cr_assert_eq(rw_sgd_create(&opt, w.b.ctx, &(rw_sgd_params){ .lr = 1 }), RW_OK, "%s", rw_error_message(w.b.ctx));
    for (int i = 0; i < 3; i++) {
        launches(&w);
        cr_assert_eq(rw_write(rw_gradient(w.p), sum, sizeof sum), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    rw_zero_grad(w.b.ctx);
    adds(&w, w.q);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    launches(&w);
    cr_assert_eq(rw_clip_grad_norm(w.b.ctx, 0.5, NULL), RW_OK);
    cr_assert_eq(rw_graph_launch(w.g), RW_OK);
    rw_optimizer_destroy(&opt);
    dropping_close(&w);
}

/* A backward that failed has added nothing usable. */
Test(step_graph_launch, drops_what_failed)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the op is the CPU's");
    struct dropping w = dropping_open();
    rw_tensor *x = w.q;
    x = rw_apply(w.other, &threaded_op, &x, 1, NULL, 0, NULL);
    fails = true;
    cr_assert_eq(rw_backward(w.other, rw_sum(w.other, x, RW_ALL_AXES, false)), RW_ERR_DEVICE);
    fails = false;
    rw_error_clear(w.b.ctx);
    rw_tape_reset(w.other);
    launches(&w);
    dropping_close(&w);
}

/* A launch that fails clears gradients: those of the runs queued after it are lost, and no others. An update queued
   after the launch before has completed, and a step has reused its memory. */
Test(step_graph_launch, a_failed_launch_leaves_a_suspended_step)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the op is the CPU's");
    struct dropping w = dropping_open();
    rw_optimizer *opt = NULL, *ended = NULL;
    rw_tape *t = NULL;
    rw_graph *g = NULL;
    float q[2];
    cr_assert_eq(rw_sgd_create(&opt, w.b.ctx, &(rw_sgd_params){ .lr = 1 }), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_tape_create(&t, w.b.ctx), RW_OK);
    rw_tensor *const loss = rw_sum(t, rw_apply(t, &threaded_op, &w.p, 1, NULL, 0, NULL), RW_ALL_AXES, false);
    cr_assert_eq(rw_graph_create(&g, t, loss, NULL), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_sgd_create(&ended, w.b.ctx, &(rw_sgd_params){ .lr = 1e-3 }), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_optimizer_step(ended), RW_OK);
    rw_item(t, loss);
    rw_optimizer_destroy(&ended);
    rw_init_constant(w.q, 1);
    rw_tensor *const y = rw_sum(w.other, rw_scale(w.other, w.q, 5), RW_ALL_AXES, false);
    cr_assert_eq(rw_item(w.other, y), 10);
    fails = true;
    cr_assert_eq(rw_graph_launch(g), RW_ERR_DEVICE);
    fails = false;
    rw_error_clear(w.b.ctx);
    for (const struct rw_run *r = rw_runs_of(w.other)->first; r; r = r->next) cr_expect_not(r->flags & RW_RUN_LOST);
    cr_assert_eq(rw_backward(w.other, y), RW_OK, "%s", rw_error_message(w.b.ctx));
    is_refused(&w, "q", 0, 5); /* the step's gradients count as added */
    cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(w.b.ctx));
    cr_assert_eq(rw_read(NULL, w.q, q, sizeof q), RW_OK);
    cr_assert(q[0] == -4 && q[1] == -4, "%g, %g", (double)q[0], (double)q[1]);
    rw_graph_destroy(&g);
    rw_tape_destroy(&t);
    rw_optimizer_destroy(&opt);
    dropping_close(&w);
}

/* REWIND_EAGER=1 has computed all values before the graph is created: it computes them again, as on a new tape. */
Test(step_graph_launch, starts_over_after_eager_recording)
{
    const struct model_config c = graph_config(MODEL_GPT, RW_F32);
    struct graph_outcome recorded = graph_record(&c, "full", 0);
    setenv("REWIND_EAGER", "1", 1);
    struct graph_outcome launched = graph_launch(&c, "full", &(rw_graph_params){ 0 }, false, true);
    unsetenv("REWIND_EAGER");
    graph_same(&recorded, &launched, "eager");
    graph_release(&recorded);
    graph_release(&launched);
}

/* A plan made for a number of threads runs with that number: a graph, and a backward that continues a step. */
Test(step_graph_launch, keeps_the_threads_it_was_created_for)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("threads are the CPU's");
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tape *other = NULL;
    rw_tensor *w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8));
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *const loss = rw_sum(b.t, rw_apply(b.t, &threaded_op, &w, 1, NULL, 0, NULL), RW_AXES(0), false);
    rw_tensor *const second = rw_sum(other, rw_apply(other, &threaded_op, &w, 1, NULL, 0, NULL), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    rw_item(other, second);
    for (int threads = 7; threads > 0; threads -= 3) {
        cr_assert_eq(rw_context_set_threads(b.ctx, threads), RW_OK);
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
        rw_item(b.t, loss);
        cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    }
    cr_assert_eq(rw_backward(other, second), RW_OK, "%s", rw_error_message(b.ctx));
    rw_graph_destroy(&g);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* A launch without a wait, together with a backward of another tape that was suspended before it. */
Test(step_graph_launch, is_in_flight_beside_other_tapes)
{
    enum { N = 256, LAUNCHES = 3 };
    double loss[2][LAUNCHES], other_loss[2];
    float gradient[2][2][N];
    for (int mixed = 0; mixed < 2; mixed++) {
        struct fixture b = fixture_open(3, 1);
        rw_graph *g = NULL;
        rw_tape *other = NULL;
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N)),
                        *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(N));
        rw_init_normal(w, 0, 1);
        rw_init_normal(v, 0, 1);
        cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
        ckpt_set_policy(other, "full");
        ckpt_begin(other, "r");
        rw_tensor *const h = rw_exp(other, rw_tanh(other, rw_mul(other, v, v)));
        ckpt_end(other);
        rw_tensor *const y = rw_sum(other, h, RW_AXES(0), false);
        rw_tensor *const x = rw_sum(b.t, rw_dropout(b.t, rw_tanh(b.t, rw_mul(b.t, w, w)), 0.5f), RW_AXES(0), false);
        cr_assert_eq(rw_graph_create(&g, b.t, x, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        if (mixed) other_loss[1] = rw_item(other, y); /* is suspended, and keeps its arena */
        for (int i = 0; i < LAUNCHES; i++) {
            cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
            if (!mixed) loss[0][i] = rw_item(b.t, x);
        }
        cr_assert_eq(rw_backward(other, y), RW_OK, "%s", rw_error_message(b.ctx));
        if (!mixed) other_loss[0] = rw_item(other, y);
        else loss[1][LAUNCHES - 1] = rw_item(b.t, x);
        cr_assert_eq(rw_read(NULL, rw_gradient(w), gradient[mixed][0], sizeof gradient[0][0]), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_gradient(v), gradient[mixed][1], sizeof gradient[0][0]), RW_OK);
        rw_graph_destroy(&g);
        rw_tape_destroy(&other);
        fixture_close(&b);
    }
    cr_assert_eq(memcmp(gradient[0], gradient[1], sizeof gradient[0]), 0);
    cr_assert_eq(memcmp(&loss[0][LAUNCHES - 1], &loss[1][LAUNCHES - 1], sizeof(double)), 0);
    cr_assert_eq(memcmp(&other_loss[0], &other_loss[1], sizeof(double)), 0);
}
