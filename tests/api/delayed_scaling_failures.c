/*
 * Failures of delayed scaling. Bugs known from other libraries are planted: a replay that reads the next scale, a
 * history that advances twice. Also covered are mistakes of the caller, and exhausted memory.
 */
#include "api/delayed_scaling_fixture.h"

#include "base/alloc.h"
#include "verify/faults.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- planted bugs ---- */

/* The scale has changed between forward and backward. */
Test(delayed_scaling_failures, an_update_between_forward_and_backward_is_named)
{
    struct delayed_world x = delayed_world_open("full", 1, false);
    rw_tensor *const loss = delayed_loss(&x, 1, 1);
    rw_item(x.b.t, loss);
    cr_assert_eq(rw_delayed_scaling_update(x.d, NULL), RW_OK);
    cr_assert_eq(rw_backward(x.b.t, loss), RW_ERR_MODIFIED);
    cr_assert(strstr(rw_error_message(x.b.ctx), "\"fp8.scale\" changed"), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    delayed_world_close(&x);
}

Test(delayed_scaling_failures, a_replay_that_reads_the_next_scale_is_named)
{
    struct delayed_world x = delayed_world_open("full", 1, false);
    ckpt_report r = { 0 };
    rw_tensor *const loss = delayed_loss(&x, 1, 1);
    cr_assert_eq(ckpt_verify(x.b.t, loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_fault = (struct rw_fault){ .kind = RW_FAULT_SCALE, .op = "quantize" };
    const rw_status status = ckpt_verify(x.b.t, loss, &r);
    const int struck = rw_fault.struck;
    rw_fault = (struct rw_fault){ 0 };
    cr_assert_eq(struck, 1);
    cr_assert_eq(status, RW_ERR_MISMATCH);
    cr_expect_str_eq(r.op, "quantize");
    cr_expect_eq(r.cause, CKPT_CAUSE_INPUT_CHANGED, "%s", ckpt_cause_name(r.cause));
    cr_expect(r.replay);
    delayed_world_close(&x);
}

/* Without a verifier, the step's bytes differ. */
Test(delayed_scaling_failures, a_replay_that_reads_the_next_scale_makes_another_step)
{
    struct delayed_outcome none = delayed_train("none", 1, 2, -1);
    rw_fault = (struct rw_fault){ .kind = RW_FAULT_SCALE, .op = "quantize", .skip = 1 };
    struct delayed_outcome full = delayed_train("full", 1, 2, -1);
    cr_expect_eq(rw_fault.struck, 1);
    rw_fault = (struct rw_fault){ 0 };
    cr_expect_eq(delayed_differ(&none, &full), 0);
    delayed_finish(&none), delayed_finish(&full);
}

/* An amax is the maximum over a step, and a history advances only if there is one: committing twice has the effect of
   once. */
Test(delayed_scaling_failures, a_commit_that_runs_twice_changes_nothing)
{
    static const char *const commits[] = { "note_amax", "delayed_update" };
    struct delayed_outcome none = delayed_train("none", 1, 2, -1);
    for (int i = 0; i < 2; i++) {
        rw_fault = (struct rw_fault){ .kind = RW_FAULT_COMMIT, .op = commits[i], .skip = i };
        struct delayed_outcome other = delayed_train("full", 1, 2, -1);
        cr_expect_eq(rw_fault.struck, 1, "%s", commits[i]);
        rw_fault = (struct rw_fault){ 0 };
        cr_expect_eq(delayed_differ(&none, &other), -1, "%s", commits[i]);
        delayed_finish(&other);
    }
    delayed_finish(&none);
}

/* As a module that keeps its history outside of the tape: each re-execution advances it once more. */
static rw_status rolling_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status rolling_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data, *const history = k->in[1].data;
    float amax = 0, m = 0;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) amax = fmaxf(amax, fabsf(x[i]));
    for (int64_t i = k->in[1].layout->numel - 1; i > 0; i--) m = fmaxf(m, history[i] = history[i - 1]);
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) y[i] = x[i] / (m > 0 ? m : 1);
    history[0] = amax;
    return RW_OK;
}

static rw_status rolling_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

HOST_KERNEL_OF(rolling_kernel)
static const rw_op_def rolling = { .name = "rolling", .n_inputs = 2, .n_outputs = 1, .check = rolling_check,
                                   .kernel = HOST_KERNEL(rolling_kernel), .grad = rolling_grad };

Test(delayed_scaling_failures, a_history_that_an_op_rolls_whenever_it_runs_is_named)
{
    NEEDS_HOST_MEMORY(); /* on another device the test's kernels work on copies of their inputs */
    struct delayed_world x = delayed_world_open("full", 1, false);
    ckpt_report r = { 0 };
    rw_tensor *const history = rw_buffer(x.b.ctx, "history", RW_F32, RW_SHAPE(4));
    ckpt_begin(x.b.t, "region");
    rw_tensor *const y = rw_apply(x.b.t, &rolling, (rw_tensor *[]){ x.other, history }, 2, NULL, 0, NULL);
    rw_tensor *const z = rw_mul(x.b.t, y, y);
    ckpt_end(x.b.t);
    rw_tensor *const loss = rw_sum(x.b.t, z, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(x.b.t, loss, &r), RW_ERR_MISMATCH, "%s", rw_error_message(x.b.ctx));
    cr_expect_str_eq(r.op, "rolling");
    cr_expect_eq(r.cause, CKPT_CAUSE_INPUT_WRITTEN, "%s", ckpt_cause_name(r.cause));
    delayed_world_close(&x);
}

/* ---- what is refused ---- */

static void expect_failure(rw_context *ctx, rw_status got, rw_status is, const char *text)
{
    cr_expect_eq(got, is, "%s: %s", rw_status_name(got), rw_error_message(ctx));
    cr_expect(strstr(rw_error_message(ctx), text), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
}

Test(delayed_scaling_failures, refuses_what_makes_no_sense)
{
    static const struct {
        rw_delayed_scaling_params p;
        rw_status status;
        const char *text;
    } bad[] = { { { .history = -1 }, RW_ERR_ARGUMENT, "history" },
                { { .history = 1025 }, RW_ERR_ARGUMENT, "history" },
                { { .rule = (rw_delayed_scaling_rule)2 }, RW_ERR_ARGUMENT, "rule" },
                { { .margin = 7 }, RW_ERR_ARGUMENT, "margin" },
                { { .name = "" }, RW_ERR_ARGUMENT, "name" },
                { { .gradient_dtype = RW_F8_E8M0 }, RW_ERR_DTYPE, "f8_e8m0" },
                { { .history = 5 }, RW_ERR_ARGUMENT, "buffer of the same shape" } };
    struct delayed_world x = delayed_world_open("none", 1, false), y = delayed_world_open("none", 1, true);
    rw_context *const ctx = x.b.ctx;
    rw_delayed_scaling *d = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_failure(ctx, rw_delayed_scaling_create(&d, ctx, &bad[i].p), bad[i].status, bad[i].text);
    cr_expect_null(d);
    expect_failure(ctx, rw_delayed_scaling_create(NULL, ctx, NULL), RW_ERR_ARGUMENT, "ret_delayed");
    expect_failure(ctx, rw_delayed_scaling_update(x.d, y.s), RW_ERR_ARGUMENT, "another context");
    cr_expect_eq(rw_delayed_scaling_update(NULL, NULL), RW_ERR_ARGUMENT);
    const rw_recipe recipes[] = { { .kind = RW_RECIPE_BF16, .delayed = x.d },
                                  { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_MX, .delayed = x.d },
                                  { .kind = RW_RECIPE_F8, .delayed = y.d },
                                  { .kind = RW_RECIPE_F8, .delayed = x.d, .gradient_dtype = RW_F8_E4M3 } };
    for (int i = 0; i < 4; i++)
        expect_failure(ctx, rw_recipe_begin(x.b.t, &recipes[i]), i < 3 ? RW_ERR_ARGUMENT : RW_ERR_DTYPE,
                       i < 3 ? "delayed scaling" : "f8_e5m2");
    cr_assert_eq(rw_recipe_begin(x.b.t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x.d }), RW_OK);
    rw_tensor *const late = rw_param(ctx, "late", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    rw_tensor *const h = rw_input(x.b.t, RW_F32, RW_SHAPE(TOKENS, WIDTH), NULL, 0);
    cr_expect_null(rw_linear(x.b.t, h, late, RW_NONE));
    expect_failure(ctx, rw_error_status(ctx), RW_ERR_ARGUMENT, "from before rw_delayed_scaling_create()");
    cr_expect_null(rw_linear(x.b.t, h, rw_transpose(x.b.t, x.other, 0, 1), RW_NONE));
    rw_error_clear(ctx);
    rw_tensor *const loss = rw_sum(x.b.t, rw_linear(x.b.t, h, x.other, RW_NONE), RW_ALL_AXES, false);
    cr_assert_eq(rw_recipe_end(x.b.t), RW_OK);
    rw_graph *g = NULL;
    expect_failure(ctx, rw_graph_create(&g, x.b.t, loss,
                                        &(rw_graph_params){ { rw_record_delayed_scaling(y.d) } }), RW_ERR_ARGUMENT,
                   "another context");
    rw_delayed_scaling_destroy(NULL);
    delayed_world_close(&x), delayed_world_close(&y);
}

static rw_status try_step(struct delayed_world *x)
{
    rw_tape *const t = x->b.t;
    rw_tensor *const h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), NULL, 0);
    rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x->d });
    rw_tensor *const y = rw_linear(t, rw_add_scalar(t, h, 1), x->other, RW_NONE);
    rw_recipe_end(t);
    if (rw_error_status(x->b.ctx)) return rw_error_status(x->b.ctx);
    return rw_backward(t, rw_sum(t, y, RW_ALL_AXES, false));
}

/* The n-th allocation fails, for every n: histories are created completely or not at all, and a step either records
   amaxes and advances or does not. */
Test(delayed_scaling_failures, out_of_memory_changes_nothing)
{
    struct delayed_world x = delayed_world_open("full", 1, false);
    rw_context *const ctx = x.b.ctx;
    const rw_delayed_scaling_params own = { .name = "own" };
    rw_delayed_scaling *d = NULL;
    int failures = 0;
    for (int call = 0; call < 3; call++)
        for (uint64_t n = 1;; n++) {
            size_t bytes[2];
            unsigned char *const was = all_parameters(ctx, &bytes[0]);
            rw_tape_reset(x.b.t);
            if (call == 1) rw_zero_grad(ctx);
            rw_alloc_fail_from(n);
            const rw_status status = call == 0   ? rw_delayed_scaling_create(&d, ctx, &own)
                                     : call == 1 ? try_step(&x)
                                                 : rw_delayed_scaling_update(x.d, NULL);
            rw_alloc_fail_at(0);
            rw_error_clear(ctx);
            unsigned char *const is = all_parameters(ctx, &bytes[1]);
            if (status) cr_assert_eq(bytes[0], bytes[1], "call %d, allocation %d", call, (int)n);
            if (status) cr_assert_eq(first_difference(was, is, bytes[0]), -1, "call %d, allocation %d", call, (int)n);
            free(was), free(is);
            if (!status) break;
            failures++;
            cr_assert_eq(status, RW_ERR_MEMORY, "call %d, allocation %d", call, (int)n);
        }
    cr_assert_gt(failures, 20);
    cr_assert_not_null(rw_param_find(ctx, "own.amax"));
    rw_delayed_scaling_destroy(&d);
    delayed_world_close(&x);
}

Test(delayed_scaling_failures, wants_weights)
{
    struct fixture b = fixture_open(1, 1);
    rw_delayed_scaling *d = NULL;
    rw_param(b.ctx, "v", RW_F32, RW_SHAPE(3));
    expect_failure(b.ctx, rw_delayed_scaling_create(&d, b.ctx, NULL), RW_ERR_ARGUMENT, "expected a weight of rank 2");
    cr_expect_null(rw_param_find(b.ctx, "fp8.scale"));
    fixture_close(&b);
}

/* An object that an open recipe refers to is destroyed: the error is reported where it is needed, and an enclosing
   recipe stays in effect. */
Test(delayed_scaling_failures, what_went_is_not_used_by_a_recipe_that_is_open)
{
    struct fixture b = fixture_open(3, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 8)), *const x = rw_zeros(b.t, RW_F32, RW_SHAPE(2, 8));
    rw_delayed_scaling *d = NULL;
    cr_assert_eq(rw_delayed_scaling_create(&d, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_BF16 }), RW_OK);
    cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = d }), RW_OK);
    rw_delayed_scaling_destroy(&d);
    cr_expect_null(rw_linear(b.t, x, w, RW_NONE));
    cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "delayed scaling, got one that was destroyed"),
            "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_recipe_end(b.t), RW_OK);
    cr_expect_not_null(rw_linear(b.t, x, w, RW_NONE), "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_recipe_end(b.t), RW_OK);
    fixture_close(&b);
}
