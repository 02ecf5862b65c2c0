/*
 * rw_graph: launching a step again is recording it again, byte for byte. Losses of every launch, gradients, parameters
 * and the generator, for every policy and type; and what a graph refuses.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "models/model.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
enum { STEPS = 3 }; /* the first launch, the second, and one that comes behind a launch of a graph that has run */
#else
enum { STEPS = 6 };
#endif
enum { BATCH = 2, SEQ = 13 };

struct outcome {
    double loss[STEPS];
    unsigned char *gradients, *parameters;
    size_t bytes, parameter_bytes; /* bytes: of the gradients; a buffer has none */
    rw_memory memory; /* behind the last launch */
    rw_generator_state generator;
};

static void release(struct outcome *o)
{
    free(o->gradients);
    free(o->parameters);
}

static void same(const struct outcome *a, const struct outcome *b, const char *what)
{
    cr_assert_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s: losses", what);
    cr_assert_eq(a->bytes, b->bytes);
    cr_assert_eq(first_difference(a->gradients, b->gradients, a->bytes), -1, "%s: gradients", what);
    cr_assert_eq(a->parameter_bytes, b->parameter_bytes);
    cr_assert_eq(first_difference(a->parameters, b->parameters, a->parameter_bytes), -1, "%s: parameters", what);
    cr_assert_eq(a->generator.seed, b->generator.seed, "%s: generator", what);
    cr_assert_eq(a->generator.offset, b->generator.offset, "%s: generator", what);
}

static void fill(int32_t *tokens, int32_t *targets, int vocab, int step)
{
    for (int i = 0; i < BATCH * SEQ; i++) tokens[i] = (i * 7 + step * 3) % vocab, targets[i] = (i * 5 + step) % vocab;
}

static void finish(struct fixture *b, rw_adamw **opt, struct outcome *o)
{
    o->gradients = all_gradients(b->ctx, &o->bytes);
    o->parameters = all_parameters(b->ctx, &o->parameter_bytes);
    o->generator = rw_generator_get(b->ctx);
    rw_adamw_destroy(opt);
    fixture_close(b);
}

static struct fixture begin(const struct model_config *c, const char *policy, struct model *m, rw_adamw **opt)
{
    struct fixture b = fixture_open(5, 2);
    cr_assert_eq(model_create(m, b.ctx, c), RW_OK, "%s", rw_error_message(b.ctx));
    const rw_offload fast = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 }; /* budgets move what they can */
    cr_assert_eq(rw_context_set_offload(b.ctx, &fast), RW_OK);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_adamw_create(opt, b.ctx, &(rw_adamw_params){ .lr = 1e-2 }), RW_OK);
    return b;
}

static struct outcome record_every_step(const struct model_config *c, const char *policy, double max_norm)
{
    struct model m;
    rw_adamw *opt = NULL;
    struct outcome o = { 0 };
    struct fixture b = begin(c, policy, &m, &opt);
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    size_t plans = 0;
    for (int s = 0; s < STEPS; s++) {
        fill(tokens, targets, c->vocab, s);
        rw_adamw_set_lr(opt, 1e-2 / (s + 1));
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = model_loss(&m, b.t, BATCH, SEQ, tokens, targets);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        o.loss[s] = rw_item(b.t, loss);
        rw_memory_stats(b.ctx, &o.memory);
        if (s == 1) plans = o.memory.plans; /* the optimizer's too */
        if (s > 1) cr_expect_eq(o.memory.plans, plans, "%s: planned anew for other tokens", policy);
        if (max_norm > 0) cr_assert_eq(rw_clip_grad_norm(b.ctx, max_norm, NULL), RW_OK);
        cr_assert_eq(rw_adamw_step(opt), RW_OK);
        rw_tape_reset(b.t);
    }
    finish(&b, &opt, &o);
    return o;
}

static struct outcome launch_every_step(const struct model_config *c, const char *policy, const rw_graph_params *how,
                                        bool read_losses)
{
    struct model m;
    rw_adamw *opt = NULL;
    rw_graph *g = NULL;
    struct outcome o = { 0 };
    struct fixture b = begin(c, policy, &m, &opt);
    int32_t tokens[BATCH * SEQ], targets[BATCH * SEQ];
    fill(tokens, targets, c->vocab, 0);
    rw_tensor *const x = rw_input(b.t, RW_I32, RW_SHAPE(BATCH, SEQ), tokens);
    rw_tensor *const y = rw_input(b.t, RW_I32, RW_SHAPE(BATCH, SEQ), targets);
    rw_tensor *const loss = model_loss_of(&m, b.t, x, y);
    rw_graph_params params = *how;
    params.optimizer = opt;
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &params), RW_OK, "%s", rw_error_message(b.ctx));
    for (int s = 0; s < STEPS; s++) {
        fill(tokens, targets, c->vocab, s);
        cr_assert_eq(rw_input_write(x, tokens, sizeof tokens), RW_OK);
        cr_assert_eq(rw_input_write(y, targets, sizeof targets), RW_OK);
        rw_adamw_set_lr(opt, 1e-2 / (s + 1));
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        if (read_losses || s == STEPS - 1) o.loss[s] = rw_item(b.t, loss);
        rw_memory_stats(b.ctx, &o.memory);
        cr_assert_eq(o.memory.predicted_peak, o.memory.measured_peak);
    }
    rw_graph_destroy(&g);
    finish(&b, &opt, &o);
    return o;
}

static struct model_config config(enum model_kind kind, rw_dtype dtype)
{
    return (struct model_config){ .kind = kind,
                                  .layers = 2,
                                  .width = 16,
                                  .heads = 4,
                                  .kv_heads = kind == MODEL_GPT ? 4 : 2,
                                  .vocab = 61,
                                  .max_seq = SEQ,
                                  .dropout = 0.1f,
                                  .dtype = dtype };
}

static void these_policies(enum model_kind kind, rw_dtype dtype, const char *const *policies, int n)
{
    const struct model_config c = config(kind, dtype);
    struct outcome recorded = record_every_step(&c, "none", 0);
    for (int i = 0; i < n; i++) {
        struct outcome o = launch_every_step(&c, policies[i], &(rw_graph_params){ 0 }, true);
        same(&recorded, &o, policies[i]);
        release(&o);
    }
    cr_assert_neq(recorded.loss[0], recorded.loss[1]);
    release(&recorded);
}

static void every_policy(enum model_kind kind, rw_dtype dtype)
{
    static const char *const policies[] = {
        "none", "full", "uniform:2", "selective:core_attn", "ops:linear", "block:1"
    };
    these_policies(kind, dtype, policies, sizeof policies / sizeof *policies);
}

/* Each step's tokens go to other experts. How many went to each is counted once a launch, and compared with the
   parameters. */
static void experts(rw_dtype dtype)
{
    static const char *const policies[] = { "none", "full", "megatron:moe", "megatron:moe_act,mla_up_proj,layernorm" };
    these_policies(MODEL_DEEPSEEK, dtype, policies, sizeof policies / sizeof *policies);
}

Test(graph, gpt_float32) { every_policy(MODEL_GPT, RW_F32); }
Test(graph, gpt_bfloat16) { every_policy(MODEL_GPT, RW_BF16); }
Test(graph, gpt_float64) { every_policy(MODEL_GPT, RW_F64); }
Test(graph, llama_float32) { every_policy(MODEL_LLAMA, RW_F32); }
Test(graph, experts_float32) { experts(RW_F32); }
Test(graph, experts_bfloat16) { experts(RW_BF16); }

/* What the planner chose is captured like any other plan, moves with it. Wide enough for values that may move. */
static void every_budget(rw_dtype dtype)
{
    static const char *const budgets[] = { "budget:95%", "budget:85%", "budget:95%+offload", "budget:80%+offload" };
    struct model_config c = config(MODEL_GPT, dtype);
    c.width = 64;
    struct outcome recorded = record_every_step(&c, "none", 0);
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        struct outcome o = launch_every_step(&c, budgets[i], &(rw_graph_params){ 0 }, true);
        same(&recorded, &o, budgets[i]);
        cr_expect_lt(o.memory.measured_peak, recorded.memory.measured_peak, "%s", budgets[i]);
        cr_expect_eq(o.memory.host > 0, strstr(budgets[i], "+offload") != NULL, "%s: %zu", budgets[i], o.memory.host);
        release(&o);
    }
    release(&recorded);
}

Test(graph, budgets_float32) { every_budget(RW_F32); }
Test(graph, budgets_bfloat16) { every_budget(RW_BF16); }
Test(graph, budgets_float16) { every_budget(RW_F16); }

Test(graph, clipping_is_part_of_the_step)
{
    const struct model_config c = config(MODEL_GPT, RW_F32);
    struct outcome recorded = record_every_step(&c, "full", 0.05);
    struct outcome launched = launch_every_step(&c, "full", &(rw_graph_params){ .max_norm = 0.05 }, true);
    same(&recorded, &launched, "clipped");
    release(&recorded);
    release(&launched);
}

/* ---- updates inside backward ---- */

static size_t largest_gradient(enum model_kind kind, rw_dtype dtype)
{
    const struct model_config c = config(kind, dtype);
    struct model m;
    struct fixture b = fixture_open(5, 2);
    size_t most = 0;
    cr_assert_eq(model_create(&m, b.ctx, &c), RW_OK);
    for (size_t i = 0; rw_param_get(b.ctx, i); i++) {
        const rw_tensor *const g = rw_gradient(rw_param_get(b.ctx, i));
        if (g && rw_tensor_bytes(g) > most) most = rw_tensor_bytes(g);
    }
    fixture_close(&b);
    return most;
}

/* The same losses and parameters under every policy; gradients take what one or two of them take. With a norm backward
   runs twice. */
static void updates_inside(enum model_kind kind, rw_dtype dtype, double max_norm)
{
    static const char *const policies[] = { "full", "none", "uniform:2", "ops:linear", "block:1", "budget:95%" };
    const struct model_config c = config(kind, dtype);
    const size_t most = largest_gradient(kind, dtype), n = sizeof policies / sizeof *policies;
    const rw_graph_params clipped = { .max_norm = max_norm }, inside = { .update_inside = true, .max_norm = max_norm };
    struct outcome recorded = record_every_step(&c, "none", max_norm);
    for (size_t i = 0; i < (test_device() == RW_DEVICE_CPU ? n : 1); i++) { /* the simulated device takes its time */
        struct outcome behind = launch_every_step(&c, policies[i], &clipped, true);
        struct outcome o = launch_every_step(&c, policies[i], &inside, true);
        cr_assert_eq(behind.memory.used_up, 0);
        cr_assert_eq(o.memory.gradients, 0, "%s: %zu bytes", policies[i], o.memory.gradients);
        cr_assert(o.memory.used_up >= most && 2 * o.memory.used_up < behind.memory.gradients,
                  "%s: %zu of %zu bytes, the largest one has %zu", policies[i], o.memory.used_up,
                  behind.memory.gradients, most);
        size_t left = 0;
        for (size_t k = 0; k < o.bytes; k++) left += o.gradients[k] != 0;
        cr_assert_eq(left, 0, "they are clear");
        memcpy(o.gradients, recorded.gradients, o.bytes);
        same(&recorded, &o, policies[i]);
        release(&behind);
        release(&o);
    }
    release(&recorded);
}

Test(graph, updates_inside_of_gpt) { updates_inside(MODEL_GPT, RW_F32, 0); }
Test(graph, updates_inside_of_llama_bfloat16) { updates_inside(MODEL_LLAMA, RW_BF16, 0); }
Test(graph, updates_inside_of_gpt_clipped) { updates_inside(MODEL_GPT, RW_F64, 0.05); }
Test(graph, updates_inside_of_llama_bfloat16_clipped)
{
    if (test_device() == RW_DEVICE_CPU) updates_inside(MODEL_LLAMA, RW_BF16, 0.05);
}

/* w = 2, and loss = w^2: an update by SGD at a rate of 1/8 subtracts w/4. */
static rw_tensor *square(rw_tape *t, rw_tensor *w)
{
    return rw_sum(t, rw_mul(t, w, w), RW_AXES(0), false);
}

static float value_of(rw_tensor *x)
{
    float value = 0;
    cr_assert_eq(rw_read(NULL, x, &value, sizeof value), RW_OK);
    return value;
}

/* What the program itself assigns is made of parameters as they were when the step began. */
Test(graph, an_update_inside_waits_for_who_reads_the_parameter)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(1));
    rw_tensor *const before = rw_buffer(b.ctx, "before", RW_F32, RW_SHAPE(1));
    rw_init_constant(w, 2);
    rw_init_constant(v, 2);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    rw_assign(b.t, before, w);
    rw_tensor *const loss = square(b.t, w);
    const rw_graph_params params = { .optimizer = opt, .update_inside = true };
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &params), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_item(b.t, loss), 2.25);
    cr_assert_eq(value_of(before), 1.5);
    cr_assert_eq(value_of(w), 1.125);
    cr_assert_eq(value_of(v), 2, "it is in no loss");
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* Gradients have memory again when somebody asks for them; what is no parameter of the optimizer keeps its own. */
Test(graph, gradients_come_back_behind_an_update_inside)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_optimizer *opt = NULL;
    rw_memory m;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    rw_init_constant(w, 2);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    rw_tensor *const late = rw_param(b.ctx, "late", RW_F32, RW_SHAPE(1));
    rw_init_constant(late, 3);
    const rw_graph_params params = { .optimizer = opt, .update_inside = true };
    cr_assert_eq(rw_graph_create(&g, b.t, rw_add(b.t, square(b.t, w), square(b.t, late)), &params), RW_OK);
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &m);
    cr_assert_eq(m.gradients, sizeof(float));
    cr_assert_eq(value_of(rw_gradient(late)), 6);
    cr_assert_eq(value_of(rw_gradient(w)), 0);
    rw_graph_destroy(&g);
    for (int i = 0; i < 2; i++) {
        rw_tape_reset(b.t);
        cr_assert_eq(rw_backward(b.t, square(b.t, w)), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(value_of(rw_gradient(w)), (float)(i + 1) * 2 * 1.125f);
    }
    rw_memory_stats(b.ctx, &m);
    cr_assert_eq(m.gradients, 2 * sizeof(float));
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* The n-th allocation fails, for every n: what was not updated is as it was. */
static void updates_inside_without_memory(double max_norm, float after)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    rw_init_constant(w, 2);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    const rw_graph_params params = { .optimizer = opt, .update_inside = true, .max_norm = max_norm };
    rw_status status = RW_ERR_MEMORY;
    for (uint64_t n = 1; status; n++) {
        rw_graph *g = NULL;
        rw_tape_reset(b.t);
        rw_tensor *const loss = square(b.t, w);
        rw_alloc_fail_at(n);
        status = rw_graph_create(&g, b.t, loss, &params);
        if (!status) status = rw_graph_launch(g);
        rw_alloc_fail_at(0);
        rw_graph_destroy(&g);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_eq(value_of(w), 2);
    }
    cr_assert_eq(value_of(w), after);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* The gradient is 4; clipped, 1. */
Test(graph, updates_inside_without_memory_change_nothing) { updates_inside_without_memory(0, 1.5f); }
Test(graph, clipped_updates_inside_without_memory_change_nothing) { updates_inside_without_memory(1, 1.875f); }

Test(graph, updates_inside_that_cannot_be_are_refused)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    rw_tensor *const loss = square(b.t, w);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &(rw_graph_params){ .update_inside = true }), RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(b.ctx), "no optimizer"), "%s", rw_error_message(b.ctx));
    cr_assert_null(g);
    fixture_close(&b);
}

/* An op whose gradient is made by one that runs once, or whose bytes differ. */
static rw_status as_input(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status copies(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->out[0].layout->numel * sizeof(float));
    return RW_OK;
}

#define ONCE(text, with) { .name = text, .n_inputs = 1, .n_outputs = 1, .flags = (with) | RW_OP_NO_GRADIENT, \
                           .check = as_input, .kernel = { [RW_DEVICE_CPU] = copies, [RW_DEVICE_CUDA] = copies } }
static const rw_op_def once[] = { ONCE("noisy", RW_OP_NONDETERMINISTIC), ONCE("counting", RW_OP_STATEFUL) };
static int which_once;

static rw_status grad_by_once(rw_grad_call *g)
{
    rw_tensor *up = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &once[which_once], &up, 1, NULL, 0, NULL));
}

static const rw_op_def passes_on = { .name = "passes_on", .n_inputs = 1, .n_outputs = 1, .check = as_input,
                                     .kernel = { [RW_DEVICE_CPU] = copies, [RW_DEVICE_CUDA] = copies },
                                     .grad = grad_by_once };

Test(graph, a_backward_that_cannot_run_twice_is_not_clipped_inside)
{
    for (which_once = 0; which_once < 2; which_once++) {
        struct fixture b = fixture_open(1, 1);
        rw_graph *g = NULL;
        rw_optimizer *opt = NULL;
        rw_tensor *w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, NULL), RW_OK);
        rw_tensor *const loss = square(b.t, rw_apply(b.t, &passes_on, &w, 1, NULL, 0, NULL));
        const rw_graph_params params = { .optimizer = opt, .update_inside = true, .max_norm = 1 };
        cr_assert_eq(rw_graph_create(&g, b.t, loss, &params), RW_ERR_UNSUPPORTED, "%s", rw_error_message(b.ctx));
        cr_assert(strstr(rw_error_message(b.ctx), once[which_once].name), "%s", rw_error_message(b.ctx));
        cr_assert(strstr(rw_error_message(b.ctx), "tests/run/graph.c"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_null(g);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* Nothing waits between the launches: the next one must not overwrite what the last one still reads. */
Test(graph, launches_without_reading)
{
    const struct model_config c = config(MODEL_GPT, RW_F32);
    struct outcome recorded = record_every_step(&c, "full", 0);
    struct outcome launched = launch_every_step(&c, "full", &(rw_graph_params){ 0 }, false);
    for (int s = 0; s < STEPS - 1; s++) recorded.loss[s] = 0;
    same(&recorded, &launched, "not read");
    release(&recorded);
    release(&launched);
}

/* dropout(1, ..., 1): the sum says how many elements the mask kept. */
Test(graph, each_launch_draws_a_fresh_mask)
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
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(NULL, rw_gradient(w), gradient[i], sizeof gradient[i]), RW_OK);
        /* the gradient is 0 where forward dropped: a replay that drew another mask would give 0 x something else */
        for (int j = 0; j < i; j++)
            cr_assert_neq(memcmp(gradient[i], gradient[j], sizeof gradient[i]), 0, "launches %d, %d", i, j);
    }
    const rw_generator_state end = rw_generator_get(b.ctx);
    cr_assert_eq(end.offset, (uint64_t)LAUNCHES * N / 4);
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* What drops half: elements, or weights of attention, whose kernels get the seed's keys in another way. */
static rw_tensor *dropped(rw_tape *t, rw_tensor *w, bool attention)
{
    if (!attention) return rw_dropout(t, w, 0.5f);
    rw_tensor *const x = rw_cast(t, rw_reshape(t, w, RW_SHAPE(1, 1, 4, 64)), RW_BF16);
    rw_tensor *const y = rw_attention(t, x, x, x, &(rw_attention_params){ .dropout = 0.5f });
    return rw_reshape(t, rw_cast(t, y, RW_F32), RW_SHAPE(256));
}

/* Steps of dropout, some of them under another seed: by a graph, or each recorded anew. */
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
        cr_assert_eq(graph ? rw_graph_launch(g) : rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(NULL, rw_gradient(w), ret + i * N, N * sizeof *ret), RW_OK);
    }
    if (g) rw_graph_destroy(&g);
    fixture_close(&b);
}

/* A captured launch holds whatever its kernels were given: also the seed, which a loaded checkpoint changes. */
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

Test(graph, follows_the_generator_to_another_seed) { follow_to_another_seed(false); }
Test(graph, follows_the_generator_in_attention) { follow_to_another_seed(true); }

/* A larger plan moves the arena: the graph must not run at the old address. */
Test(graph, survives_a_larger_plan_in_between)
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
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        value[i] = rw_item(b.t, loss);
        if (i != 1) continue;
        cr_assert_eq(rw_item(other, rw_sum(other, rw_exp(other, rw_mul(other, v, v)), RW_AXES(0), false)), 65536);
    }
    for (int i = 1; i < 4; i++) cr_assert_eq(memcmp(&value[0], &value[i], sizeof value[0]), 0);
    rw_graph_destroy(&g);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

Test(graph, effects_happen_at_every_launch)
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
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_item(b.t, loss), 4); /* reads the buffer as it was before the third launch */
    cr_assert_eq(rw_read(NULL, n, &count, sizeof count), RW_OK);
    cr_assert_eq(count, 3);
    rw_graph_destroy(&g);
    fixture_close(&b);
}

Test(graph, refuses_what_it_cannot_repeat)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(8));
    rw_tensor *loss = rw_sum(b.t, rw_dropout(b.t, w, 0.5f), RW_AXES(0), false);

    cr_assert_eq(rw_graph_create(&g, b.t, NULL, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &(rw_graph_params){ .max_norm = -1 }), RW_ERR_ARGUMENT);
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
    cr_assert_eq(rw_graph_launch(g), RW_OK);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_graph_launch(g), RW_ERR_CHANGED);
    rw_error_clear(b.ctx);
    rw_graph_destroy(&g);
    rw_graph_destroy(&g);
    cr_assert_eq(rw_graph_launch(NULL), RW_ERR_ARGUMENT);
    fixture_close(&b);
}

/* Parameters written by the caller between launches count, as they would on a new tape. */
Test(graph, reads_parameters_as_they_are)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, w), RW_AXES(0), false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK);
    for (int i = 1; i < 4; i++) {
        const float values[3] = { (float)i, 0, 0 };
        cr_assert_eq(rw_write(w, values, sizeof values), RW_OK);
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_item(b.t, loss), i * i);
    }
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* REWIND_EAGER=1 has computed all values before the graph is made: it computes them again, as on a new tape. */
Test(graph, begins_anew_after_eager_recording)
{
    const struct model_config c = config(MODEL_GPT, RW_F32);
    struct outcome recorded = record_every_step(&c, "full", 0);
    setenv("REWIND_EAGER", "1", 1);
    struct outcome launched = launch_every_step(&c, "full", &(rw_graph_params){ 0 }, true);
    unsetenv("REWIND_EAGER");
    same(&recorded, &launched, "eager");
    release(&recorded);
    release(&launched);
}

/* Some bytes of workspace for each thread, and as many threads as there are bytes for. */
static size_t per_thread(const rw_op_call *call)
{
    return 64 * (size_t)call->threads;
}

static rw_status check_like(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status threaded(const rw_kernel *k)
{
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

/* What was planned for a number of threads runs with that number: a graph, and a backward that goes on. */
Test(graph, keeps_the_threads_it_was_made_for)
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
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        rw_item(b.t, loss);
        cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    }
    cr_assert_eq(rw_backward(other, second), RW_OK, "%s", rw_error_message(b.ctx));
    rw_graph_destroy(&g);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* A launch that nobody has waited for, a backward of another tape that stopped before it, and both in the end. */
Test(graph, is_in_flight_beside_other_tapes)
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
        if (mixed) other_loss[1] = rw_item(other, y); /* stops, and keeps its arena */
        for (int i = 0; i < LAUNCHES; i++) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
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
