/*
 * The verifier with a caller's own ops: rules that record different nodes each time, ops with two outputs, ops that
 * depend on threads or write to their inputs, and one that fails while it is verified.
 */
#include "support/support.h"

#include "remat/policy/policy_to_choice.h"
#include "verify/faults.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const float numbers[4] = { 1, 2, 3, 4 };

static rw_tensor *input(struct fixture *b)
{
    return rw_input(b->t, RW_F32, RW_SHAPE(4), numbers, sizeof numbers);
}

static rw_tensor *sum(struct fixture *b, rw_tensor *y)
{
    return rw_sum(b->t, y, RW_ALL_AXES, false);
}

static struct fixture open_with(const char *name, const char *value)
{
    setenv(name, value, 1);
    const struct fixture b = fixture_open(1, 1);
    unsetenv(name);
    return b;
}

static int calls;
static bool other_op;

/* Another op, or the same one with other operands, every second time. */
static rw_status fickle(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const x = rw_grad_input(g, 0);
    const bool odd = calls++ % 2;
    if (other_op) return rw_grad_set(g, 0, odd ? rw_exp(t, dy) : rw_neg(t, dy));
    return rw_grad_set(g, 0, odd ? rw_sub(t, dy, x) : rw_sub(t, x, dy));
}

static const rw_op_def fickle_op = { .name = "fickle", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                     .kernel = { [RW_DEVICE_CPU] = identity_kernel }, .grad = fickle };

Test(verify_custom_ops, a_rule_that_records_something_else_the_second_time)
{
    NEEDS_HOST_MEMORY();
    for (int i = 0; i < 2; i++) {
        struct fixture b = fixture_open(1, 1);
        ckpt_report r;
        other_op = i;
        ckpt_set_policy(b.t, "full");
        ckpt_begin(b.t, "a");
        rw_tensor *const x = rw_require_grad(b.t, input(&b));
        rw_tensor *const z = rw_exp(b.t, rw_apply(b.t, &fickle_op, &x, 1, NULL, 0, NULL));
        ckpt_end(b.t);
        cr_assert_eq(ckpt_verify(b.t, sum(&b, z), &r), RW_ERR_MISMATCH, "%s", rw_error_message(b.ctx));
        cr_assert(r.cause == CKPT_CAUSE_RULE && !strcmp(r.op, "fickle"), "%s: %s", r.op, ckpt_cause_name(r.cause));
        rw_error_clear(b.ctx);
        fixture_close(&b);
    }
}

static rw_status two_check(rw_op_call *call)
{
    rw_op_output_like(call, 0, 0);
    return rw_op_output_like(call, 1, 0);
}

/* The first output is the first input, the second one their sum. */
static rw_status two_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data, *const w = k->in[1].data;
    for (int i = 0; i < 4; i++) ((float *)k->out[0].data)[i] = x[i], ((float *)k->out[1].data)[i] = x[i] + w[i];
    return RW_OK;
}

static rw_status two_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 1, rw_grad_upstream(g, 1));
}

static const rw_op_def two = { .name = "two", .n_inputs = 2, .n_outputs = 2, .check = two_check,
                               .kernel = { [RW_DEVICE_CPU] = two_kernel }, .grad = two_grad };

/* A parameter changes before a replay: only the second output shows it. */
Test(verify_custom_ops, a_second_output_is_compared)
{
    NEEDS_HOST_MEMORY();
    rw_fault = (struct rw_fault){ .kind = RW_FAULT_PARAMETER, .op = "two" };
    struct fixture b = fixture_open(1, 1);
    ckpt_report r;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *out[2];
    rw_init_constant(w, 3);
    ckpt_set_policy(b.t, "full");
    ckpt_begin(b.t, "a");
    rw_tensor *const in[] = { rw_scale(b.t, input(&b), 0.01), w }; /* small: the last bit of w stays in the sum */
    cr_assert_not_null(rw_apply(b.t, &two, in, 2, NULL, 0, out));
    rw_tensor *const y = rw_mul(b.t, out[0], out[1]);
    ckpt_end(b.t);
    cr_assert_eq(ckpt_verify(b.t, sum(&b, y), &r), RW_ERR_MISMATCH, "%s", rw_error_message(b.ctx));
    cr_assert(!strcmp(r.op, "two") && r.cause == CKPT_CAUSE_INPUT_CHANGED, "%s: %s", r.op, ckpt_cause_name(r.cause));
    rw_fault = (struct rw_fault){ 0 };
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* The same for REWIND_VERIFY=digest. */
Test(verify_custom_ops, a_second_output_is_digested)
{
    NEEDS_HOST_MEMORY();
    rw_fault = (struct rw_fault){ .kind = RW_FAULT_PARAMETER, .op = "two" };
    struct fixture b = open_with("REWIND_VERIFY", "digest");
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *out[2];
    rw_init_constant(w, 3);
    ckpt_set_policy(b.t, "full");
    ckpt_begin(b.t, "a");
    rw_tensor *const in[] = { rw_scale(b.t, input(&b), 0.01), w };
    cr_assert_not_null(rw_apply(b.t, &two, in, 2, NULL, 0, out));
    rw_tensor *const y = rw_mul(b.t, out[0], out[1]);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, sum(&b, y)), RW_ERR_MISMATCH, "%s", rw_error_message(b.ctx));
    cr_assert(strstr(rw_error_message(b.ctx), "two"), "%s", rw_error_message(b.ctx));
    rw_fault = (struct rw_fault){ 0 };
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* A recompute for one output also computes the other one, which is not kept. */
Test(verify_custom_ops, a_second_output_of_a_replayed_op_is_not_kept)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_problem problem;
    struct rw_choice choice;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *out[2];
    rw_tensor *const in[] = { input(&b), w };
    cr_assert_not_null(rw_apply(b.t, &two, in, 2, NULL, 0, out));
    ckpt_recompute(b.t, out[0]);
    const uint32_t loss = sum(&b, rw_mul(b.t, out[0], out[1]))->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &b.t->policy };
    cr_assert_eq(rw_problem_open(&problem, b.t, &request), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_policy_choose(&problem, &b.t->policy, &choice), RW_OK);
    cr_assert_eq(choice.fate[out[0]->id].what, RW_REPLAY);
    cr_assert_eq(choice.fate[out[1]->id].what, RW_REPLAY);
    rw_choice_finish(&choice);
    rw_problem_close(&problem);
    fixture_close(&b);
}

static rw_status count_threads(const rw_kernel *k)
{
    for (int i = 0; i < 4; i++) ((float *)k->out[0].data)[i] = (float)k->threads;
    return RW_OK;
}

static rw_status no_slope(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def counts_threads = { .name = "counts_threads", .n_inputs = 1, .n_outputs = 1,
                                          .check = identity_check, .kernel = { [RW_DEVICE_CPU] = count_threads },
                                          .grad = no_slope };

/* With one thread as well. */
Test(verify_custom_ops, an_op_that_depends_on_threads_is_seen)
{
    NEEDS_HOST_MEMORY();
    for (int threads = 1; threads < 4; threads += 2) {
        struct fixture b = fixture_open(1, threads);
        ckpt_report r;
        rw_tensor *const x = rw_require_grad(b.t, input(&b));
        rw_tensor *const y = rw_apply(b.t, &counts_threads, &x, 1, NULL, 0, NULL);
        cr_assert_eq(ckpt_verify(b.t, sum(&b, y), &r), RW_ERR_MISMATCH, "%d threads", threads);
        cr_assert(!strcmp(r.op, "counts_threads"), "%s", r.op);
        rw_error_clear(b.ctx);
        fixture_close(&b);
    }
}

static int calls_of_spoiler, spoiled_element;

/* Writes to its input in its first execution only, which is the one that is tested. */
static rw_status spoil_once(const rw_kernel *k)
{
    const rw_status status = identity_kernel(k);
    if (!calls_of_spoiler++) ((float *)k->in[0].data)[spoiled_element] = 77;
    return status;
}

static const rw_op_def spoils = { .name = "spoils", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                  .kernel = { [RW_DEVICE_CPU] = spoil_once }, .grad = no_slope };

Test(verify_custom_ops, an_op_that_writes_where_it_reads_is_seen)
{
    NEEDS_HOST_MEMORY();
    for (int after = 0; after < 2; after++) {
        struct fixture b = fixture_open(1, 1);
        ckpt_report r;
        calls_of_spoiler = 0, spoiled_element = after ? 4 : 2;
        rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const y = rw_apply(b.t, &spoils, &x, 1, NULL, 0, NULL);
        cr_assert_eq(ckpt_verify(b.t, sum(&b, y), &r), RW_ERR_MISMATCH);
        cr_assert_eq(r.cause, after ? CKPT_CAUSE_OUTSIDE : CKPT_CAUSE_INPUT_WRITTEN, "%s", ckpt_cause_name(r.cause));
        rw_error_clear(b.ctx);
        fixture_close(&b);
    }
}

/* The mistake of kernels from programs that clear their buffers. */
static rw_status add_twice(const rw_kernel *k)
{
    for (int i = 0; i < 4; i++) ((float *)k->out[0].data)[i] += 2 * ((const float *)k->in[0].data)[i];
    return RW_OK;
}

static const rw_op_def adds_twice = { .name = "adds_twice", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                      .kernel = { [RW_DEVICE_CPU] = add_twice }, .grad = no_slope };

Test(verify_custom_ops, a_kernel_that_adds_to_its_output_is_named)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    ckpt_report r;
    rw_tensor *const x = rw_require_grad(b.t, input(&b));
    rw_tensor *const loss = sum(&b, rw_apply(b.t, &adds_twice, &x, 1, NULL, 0, NULL));
    cr_assert_eq(ckpt_verify(b.t, loss, &r), RW_ERR_MISMATCH);
    cr_assert_eq(r.cause, CKPT_CAUSE_UNDEFINED_READ, "%s", ckpt_cause_name(r.cause));
    cr_assert(!strcmp(r.op, "adds_twice") && strstr(r.site, "verify_custom_ops.c:"), "%s %s", r.op, r.site);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_ERR_MISMATCH);
    const char *const said = rw_error_message(b.ctx);
    cr_assert(strstr(said, "adds_twice") && strstr(said, "verify_custom_ops.c:"), "%s", said);
    cr_assert(strstr(said, "outputs are undefined before the kernel runs; this kernel reads or adds to them"), "%s",
              said);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

static int countdown;

static rw_status fail_once(const rw_kernel *k)
{
    if (--countdown == 0) return RW_ERR_ARGUMENT;
    return identity_kernel(k);
}

static const rw_op_def fails_once = { .name = "fails_once", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                      .kernel = { [RW_DEVICE_CPU] = fail_once } };

static rw_status fails_in_backward(rw_grad_call *g)
{
    rw_tensor *dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &fails_once, &dy, 1, NULL, 0, NULL));
}

static const rw_op_def late_failure = { .name = "late_failure", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                        .kernel = { [RW_DEVICE_CPU] = identity_kernel }, .grad = fails_in_backward };

/* Whichever of its executions by the verifier fails, including the one that counts: gradients are unchanged. */
Test(verify_custom_ops, a_verified_step_that_fails_late_spoils_nothing)
{
    NEEDS_HOST_MEMORY();
    for (int at = 1, failed = 1; failed; at++) {
        struct fixture b = open_with("REWIND_VERIFY", "1");
        float got[4];
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
        rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
        cr_assert_eq(rw_write(rw_gradient(v), numbers, sizeof numbers), RW_OK);
        rw_tensor *const first = rw_apply(b.t, &late_failure, &w, 1, NULL, 0, NULL);
        rw_tensor *const loss = sum(&b, rw_add(b.t, first, rw_mul(b.t, v, input(&b))));
        countdown = at;
        failed = rw_backward(b.t, loss) != RW_OK;
        rw_error_clear(b.ctx);
        cr_assert_eq(rw_read(b.t, rw_gradient(v), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 4; i++)
            cr_assert_eq(got[i], (failed ? 1 : 2) * numbers[i], "failure %d, element %d: %g", at, i, (double)got[i]);
        cr_assert_lt(at, 50);
        fixture_close(&b);
    }
}
