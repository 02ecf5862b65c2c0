/*
 * rw_graph with rw_record_update_inside(): each parameter is updated as soon as its gradient is complete. The bytes are
 * those of updates after backward, in the memory of one or two gradients; later readers of a parameter see its old
 * value.
 */
#include "run/step_graph_fixture.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <string.h>

static size_t largest_gradient(enum model_kind kind, rw_dtype dtype)
{
    const struct model_config c = graph_config(kind, dtype);
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

/* The same losses and parameters under every policy; gradients take the memory of one or two of them. With a norm
   backward is executed twice. */
static void updates_inside(enum model_kind kind, rw_dtype dtype, double max_norm)
{
    static const char *const policies[] = { "full", "none", "uniform:2", "ops:linear", "block:1", "budget:95%" };
    const struct model_config c = graph_config(kind, dtype);
    const size_t most = largest_gradient(kind, dtype), n = sizeof policies / sizeof *policies;
    const rw_graph_params clipped = { { recorded_clip(max_norm) } };
    struct graph_outcome recorded = graph_record(&c, "none", max_norm);
    for (size_t i = 0; i < (test_device() == RW_DEVICE_CPU ? n : 1); i++) { /* the simulated device is slow */
        struct graph_outcome after = graph_launch(&c, policies[i], &clipped, false, true);
        struct graph_outcome o = graph_launch(&c, policies[i], &clipped, true, true);
        cr_assert_eq(after.memory.consumed, 0);
        cr_assert_eq(o.memory.gradients, 0, "%s: %zu bytes", policies[i], o.memory.gradients);
        cr_assert(o.memory.consumed >= most && 2 * o.memory.consumed < after.memory.gradients,
                  "%s: %zu of %zu bytes, the largest one has %zu", policies[i], o.memory.consumed,
                  after.memory.gradients, most);
        size_t left = 0;
        for (size_t k = 0; k < o.bytes; k++) left += o.gradients[k] != 0;
        cr_assert_eq(left, 0, "they are clear");
        memcpy(o.gradients, recorded.gradients, o.bytes);
        graph_same(&recorded, &o, policies[i]);
        graph_release(&after);
        graph_release(&o);
    }
    graph_release(&recorded);
}

Test(step_graph_fused_updates, updates_inside_of_gpt) { updates_inside(MODEL_GPT, RW_F32, 0); }
Test(step_graph_fused_updates, updates_inside_of_llama_bfloat16) { updates_inside(MODEL_LLAMA, RW_BF16, 0); }
Test(step_graph_fused_updates, updates_inside_of_gpt_clipped) { updates_inside(MODEL_GPT, RW_F64, 0.05); }
Test(step_graph_fused_updates, updates_inside_of_llama_bfloat16_clipped)
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

/* Assignments of the program read parameters as they were when the step began. */
Test(step_graph_fused_updates, a_fused_update_follows_all_reads_of_the_parameter)
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
    const rw_graph_params params = { { rw_record_update_inside(opt) } };
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

/* Gradients are allocated again when they are requested; a tensor that is no parameter of the optimizer keeps its
   own. */
Test(step_graph_fused_updates, gradients_return_after_a_fused_update)
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
    cr_assert_eq(rw_optimizer_exclude(late, true), RW_OK);
    const rw_graph_params params = { { rw_record_update_inside(opt) } };
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

/* The n-th allocation fails, for every n: parameters that were not updated are unchanged. */
static void updates_inside_without_memory(double max_norm, float after)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    rw_init_constant(w, 2);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    const rw_graph_params params = { { recorded_clip(max_norm), rw_record_update_inside(opt) } };
    rw_status status = RW_ERR_MEMORY;
    for (uint64_t n = 1; status; n++) {
        rw_graph *g = NULL;
        rw_tape_reset(b.t);
        rw_tensor *const loss = square(b.t, w);
        rw_alloc_fail_from(n);
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
Test(step_graph_fused_updates, updates_inside_without_memory_change_nothing)
{
    updates_inside_without_memory(0, 1.5f);
}

Test(step_graph_fused_updates, clipped_updates_inside_without_memory_change_nothing)
{
    updates_inside_without_memory(1, 1.875f);
}

Test(step_graph_fused_updates, updates_inside_that_cannot_be_are_refused)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    rw_tensor *const loss = square(b.t, w);
    cr_assert_eq(rw_graph_create(&g, b.t, loss,
                                 &(rw_graph_params){ { rw_record_update_inside(NULL) } }), RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(b.ctx), "rw_graph_create(recorders[0]): rw_record_update_inside(opt): "
                     "expected an optimizer, got NULL"),
            "%s", rw_error_message(b.ctx));
    cr_assert_null(g);
    fixture_close(&b);
}

/* A gradient whose address the caller has counts as written in every step. Inside backward only parameters that the
   step reaches are updated, so one that it does not reach is refused; a launch stores zeros in the others. */
Test(step_graph_fused_updates, a_gradient_whose_address_is_known_has_to_be_reached)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *inside = NULL, *after = NULL;
    rw_optimizer *opt = NULL;
    rw_tape *t = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1)), *const v = rw_param(b.ctx, "v", RW_F32,
                                                                                       RW_SHAPE(1));
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_tape_create(&t, b.ctx), RW_OK);
    cr_assert_eq(rw_graph_create(&inside, b.t, square(b.t, w),
                                 &(rw_graph_params){ { rw_record_update_inside(opt) } }), RW_OK);
    cr_assert_eq(rw_graph_create(&after, t, square(t, w), &(rw_graph_params){ { rw_record_update(opt) } }), RW_OK);
    const float seven = 7;
    float there = 1;
    cr_assert_not_null(rw_tensor_data(rw_gradient(w)));
    cr_assert_eq(rw_write(rw_gradient(w), &seven, sizeof seven), RW_OK);
    cr_expect_eq(rw_graph_launch(inside), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(NULL, rw_gradient(w), &there, sizeof there), RW_OK);
    cr_expect_eq(there, 0);
    cr_assert_not_null(rw_tensor_data(rw_gradient(v)));
    cr_expect_eq(rw_graph_launch(inside), RW_ERR_UNSUPPORTED);
    cr_expect(strstr(rw_error_message(b.ctx), "the gradient of \"v\", which the step does not reach"), "%s",
              rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_graph_launch(after), RW_OK, "%s", rw_error_message(b.ctx));
    rw_graph_destroy(&inside);
    rw_graph_destroy(&after);
    rw_tape_destroy(&t);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* An op whose gradient is computed by one that is executed once, or whose bytes differ. */
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

Test(step_graph_fused_updates, a_backward_that_cannot_run_twice_is_not_clipped_inside)
{
    for (which_once = 0; which_once < 2; which_once++) {
        struct fixture b = fixture_open(1, 1);
        rw_graph *g = NULL;
        rw_optimizer *opt = NULL;
        rw_tensor *w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, NULL), RW_OK);
        rw_tensor *const loss = square(b.t, rw_apply(b.t, &passes_on, &w, 1, NULL, 0, NULL));
        const rw_graph_params params = { { rw_record_clip(1), rw_record_update_inside(opt) } };
        cr_assert_eq(rw_graph_create(&g, b.t, loss, &params), RW_ERR_UNSUPPORTED, "%s", rw_error_message(b.ctx));
        cr_assert(strstr(rw_error_message(b.ctx), once[which_once].name), "%s", rw_error_message(b.ctx));
        cr_assert(strstr(rw_error_message(b.ctx), "tests/run/step_graph_fused_updates.c"), "%s",
                  rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_null(g);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}
