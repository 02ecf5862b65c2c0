/*
 * Conformance: failures, effects, changes during the step, misuse, and the cost of a region. The list is in
 * conformance_common.h.
 */
#include "whole/conformance_common.h"

#include "base/alloc.h"
#include "record/context.h"

#include <math.h>
#include <time.h>

/* 8. A caller's op that fails at its n-th execution from now: in forward, in a replay, or (its twin) in backward. */
static int fails_in;
static rw_status fails_with = RW_ERR_DEVICE;

static rw_status brittle_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status brittle_kernel(const rw_kernel *k)
{
    if (fails_in && --fails_in == 0) return fails_with;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) {
        const float x = ((const float *)k->in[0].data)[i];
        ((float *)k->out[0].data)[i] = x * x;
    }
    return RW_OK;
}

static rw_status brittle_grad(rw_grad_call *g);

HOST_KERNEL_OF(brittle_kernel)
static const rw_op_def brittle = { .name = "brittle", .n_inputs = 1, .n_outputs = 1, .check = brittle_check,
                                   .kernel = HOST_KERNEL(brittle_kernel), .grad = brittle_grad };

/* 2 x dy, computed with the op itself, so that it is executed in backward, too: (x + dy/2)^2 - x^2 - (dy/2)^2 = x
   dy. */
static rw_status brittle_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 0), *const half = rw_scale(t, rw_grad_upstream(g, 0), 0.5);
    rw_tensor *const sum = rw_add(t, x, half);
    rw_tensor *const square = rw_apply(rw_grad_tape(g), &brittle, &sum, 1, NULL, 0, NULL);
    rw_tensor *const product = rw_sub(t, rw_sub(t, square, rw_mul(t, x, x)), rw_mul(t, half, half));
    return rw_grad_set(g, 0, rw_scale(t, product, 2));
}

static rw_tensor *with_brittle(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(16, 16), 0.3), *const v = normal(b, "v", RW_F32,
                                                                                          RW_SHAPE(16, 16), 0.3);
    rw_tensor *x = rw_tanh(b->t, rw_linear(b->t, rw_randn(b->t, RW_F32, RW_SHAPE(5, 16)), w, RW_NONE));
    for (int l = 0; l < 3; l++) {
        ckpt_begin(b->t, "r");
        x = rw_dropout(b->t, rw_tanh(b->t, rw_linear(b->t, x, l % 2 ? v : w, RW_NONE)), 0.1f);
        if (l == 1) x = rw_apply(b->t, &brittle, &x, 1, NULL, 0, NULL);
        if (l == 1) x = rw_tanh(b->t, rw_mul(b->t, x, x)); /* the product's gradient reads the failing op's result */
        ckpt_end(b->t);
    }
    x = rw_mul(b->t, x, normal(b, "last", RW_F32, RW_SHAPE(16), 1)); /* its gradient is completed first */
    return rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

/* The step fails at the n-th execution of the op; then the context continues as if it had not. */
static void fail_at_run(int n, rw_status with, const struct answer *expected)
{
    const rw_generator_state start = { 21, 50000 };
    struct fixture b = fixture_open(21, 2);
    size_t bytes;
    ckpt_set_policy(b.t, "full");
    with_brittle(&b); /* creates the parameters */
    rw_tape_reset(b.t);
    unsigned char *const before = all_gradients(b.ctx, &bytes);
    fails_in = n;
    fails_with = with;
    cr_assert_eq(rw_backward(b.t, with_brittle(&b)), with, "run %d", n);
    cr_assert_eq(fails_in, 0, "run %d never came", n);
    const char *const m = rw_error_message(b.ctx);
    cr_assert(strstr(m, "brittle") && strstr(m, "conformance_failures_and_effects.c:"), "%s", m);
    rw_error_clear(b.ctx);
    unsigned char *const after = all_gradients(b.ctx, &bytes);
    cr_assert_eq(first_difference(before, after, bytes), -1, "run %d: a failed backward has changed a gradient", n);
    free(before);
    free(after);
    rw_tape_reset(b.t);
    rw_generator_set(b.ctx, start);
    struct answer next = step_of(&b, with_brittle);
    expect_same(expected, &next, "the step after the failed one");
    answer_free(&next);
    fixture_close(&b);
}

static struct answer undisturbed(void)
{
    struct fixture b = fixture_open(21, 2);
    ckpt_set_policy(b.t, "full");
    with_brittle(&b);
    rw_tape_reset(b.t);
    rw_generator_set(b.ctx, (rw_generator_state){ 21, 50000 });
    const struct answer a = step_of(&b, with_brittle);
    fixture_close(&b);
    return a;
}

Test(conformance_failures_and_effects, a_failing_op_in_forward_replay_or_backward_leaves_tape_and_context_usable)
{
    struct answer expected = undisturbed();
    for (int run = 1; run <= 3; run++) { /* forward, replay, adjoint */
        fail_at_run(run, RW_ERR_DEVICE, &expected);
        fail_at_run(run, RW_ERR_MEMORY, &expected);
    }
    answer_free(&expected);
}

/*
 * Gradients of an earlier backward to which a failed one was to add: each is unchanged, or marked as lost. None has a
 * part of the sum while it appears to be complete.
 */
static int lost_or_unchanged(struct fixture *b, unsigned char *const *before)
{
    int lost = 0;
    for (size_t i = 0; rw_param_get(b->ctx, i); i++) {
        rw_tensor *const p = rw_param_get(b->ctx, i);
        const size_t bytes = rw_tensor_bytes(rw_gradient(p));
        unsigned char *const now = malloc(bytes);
        const rw_status status = rw_read(NULL, rw_gradient(p), now, bytes);
        if (status) {
            lost++;
            cr_assert_eq(status, RW_ERR_MODIFIED);
            cr_assert(strstr(rw_error_message(b->ctx), rw_tensor_name(p)), "%s", rw_error_message(b->ctx));
            rw_error_clear(b->ctx);
        } else {
            cr_assert_eq(first_difference(before[i], now, bytes), -1, "\"%s\" has changed", rw_tensor_name(p));
        }
        free(now);
    }
    return lost;
}

/* Fails at execution `run` while gradients exist; returns the number of lost ones. */
static int fail_while_adding(int run)
{
    struct fixture b = fixture_open(21, 2);
    unsigned char *before[8];
    ckpt_set_policy(b.t, "full");
    cr_assert_eq(rw_backward(b.t, with_brittle(&b)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_reset(b.t);
    size_t n = 0;
    for (; rw_param_get(b.ctx, n); n++) {
        rw_tensor *const g = rw_gradient(rw_param_get(b.ctx, n));
        before[n] = malloc(rw_tensor_bytes(g));
        rw_read(NULL, g, before[n], rw_tensor_bytes(g));
    }
    fails_in = run;
    cr_assert_eq(rw_backward(b.t, with_brittle(&b)), fails_with);
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    const int lost = lost_or_unchanged(&b, before);
    if (lost) {
        rw_optimizer *opt = NULL;
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_ERR_MODIFIED);
        rw_error_clear(b.ctx);
        cr_assert_eq(rw_clip_grad_norm(b.ctx, 1, NULL), RW_ERR_MODIFIED);
        rw_error_clear(b.ctx);
        cr_assert_eq(rw_backward(b.t, with_brittle(&b)), RW_ERR_MODIFIED, "to add to it would pass for a sum");
        rw_error_clear(b.ctx);
        rw_optimizer_destroy(&opt);
    }
    rw_tape_reset(b.t);
    rw_generator_set(b.ctx, (rw_generator_state){ 21, 50000 });
    struct answer expected = undisturbed(), next = step_of(&b, with_brittle); /* starts with rw_zero_grad() */
    expect_same(&expected, &next, "the step after");
    answer_free(&expected);
    answer_free(&next);
    while (n--) free(before[n]);
    fixture_close(&b);
    return lost;
}

Test(conformance_failures_and_effects, a_failed_backward_never_leaves_a_part_of_a_sum_as_a_gradient)
{
    cr_assert_eq(fail_while_adding(1), 0, "in forward nothing has been added");
    cr_assert_eq(fail_while_adding(2), 2, "before the replay \"last\" is complete, and \"w\" has its first part");
    cr_assert_eq(fail_while_adding(3), 2);
}

/* 8. An allocation of backward fails, each one in turn. */
Test(conformance_failures_and_effects, a_failing_allocation_in_backward_leaves_tape_and_context_usable)
{
    struct answer expected = undisturbed();
    int failures = 0;
    for (uint64_t i = 1;; i++) {
        struct fixture b = fixture_open(21, 2);
        ckpt_set_policy(b.t, "full");
        rw_tensor *const loss = with_brittle(&b);
        rw_alloc_fail_from(i);
        const rw_status status = rw_backward(b.t, loss);
        rw_alloc_fail_at(0);
        if (status) {
            failures++;
            cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(b.ctx));
            rw_error_clear(b.ctx);
            rw_tape_reset(b.t);
            rw_generator_set(b.ctx, (rw_generator_state){ 21, 50000 });
            struct answer next = step_of(&b, with_brittle);
            expect_same(&expected, &next, "the step after the failed one");
            answer_free(&next);
        }
        fixture_close(&b);
        if (!status) break;
    }
    cr_assert_gt(failures, 50);
    answer_free(&expected);
}

/* 18 */
static const char *const policies[] = { "none", "full", "uniform:2", "block:1", "selective:r", "ops:tanh" };
#define POLICIES (sizeof policies / sizeof *policies)

Test(conformance_failures_and_effects, running_statistics_change_exactly_once_per_step_under_every_policy)
{
    for (size_t i = 0; i < POLICIES; i++) {
        struct fixture b = fixture_open(4, 1);
        ckpt_set_policy(b.t, policies[i]);
        rw_tensor *const p = ramp(&b, "p", 8, 1);
        rw_tensor *const mean = rw_buffer(b.ctx, "mean", RW_F32, RW_SHAPE(8));
        for (int step = 0; step < 3; step++) {
            ckpt_begin(b.t, "r");
            rw_tensor *const h = rw_tanh(b.t, rw_add(b.t, p, mean));
            rw_assign(b.t, mean, rw_add_scalar(b.t, mean, 1));
            rw_tensor *const y = rw_mul(b.t, h, h);
            ckpt_end(b.t);
            rw_tensor *const loss = total(&b, y);
            const double read = rw_item(b.t, loss); /* continues the step: not a second update */
            cr_assert(isfinite(read));
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tape_reset(b.t);
        }
        float state[8];
        rw_read(NULL, mean, state, sizeof state);
        for (int j = 0; j < 8; j++) cr_assert_eq(state[j], 3, "%s: %g", policies[i], (double)state[j]);
        fixture_close(&b);
    }
}

/* 18. An auxiliary loss that is reported, a history of maxima: state that an op keeps outside of its outputs. */
static int reports;
static float history[8];

static rw_status report_kernel(const rw_kernel *k)
{
    float most = 0;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) most = fmaxf(most, fabsf(((const float *)k->in[0].data)[i]));
    if (reports < 8) history[reports] = most;
    reports++;
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

static rw_status report_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

HOST_KERNEL_OF(report_kernel)
static const rw_op_def report = { .name = "report", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_STATEFUL,
                                  .check = brittle_check, .kernel = HOST_KERNEL(report_kernel),
                                  .grad = report_grad };

static rw_tensor *reporting(struct fixture *b)
{
    rw_tensor *const w = normal(b, "w", RW_F32, RW_SHAPE(8, 8), 0.4);
    rw_tensor *x = rw_randn(b->t, RW_F32, RW_SHAPE(4, 8));
    for (int l = 0; l < 2; l++) {
        ckpt_begin(b->t, "r");
        rw_tensor *h = rw_tanh(b->t, rw_linear(b->t, x, w, RW_NONE));
        h = rw_apply(b->t, &report, &h, 1, NULL, 0, NULL);
        x = rw_mul(b->t, rw_tanh(b->t, h), h);
        ckpt_end(b->t);
    }
    return total(b, x);
}

Test(conformance_failures_and_effects, side_outputs_are_reported_once_per_step_under_every_policy)
{
    struct answer none = answer_of(reporting, "none", 1);
    float expected[8];
    memcpy(expected, history, sizeof expected);
    for (size_t i = 0; i < POLICIES; i++) {
        reports = 0;
        memset(history, 0, sizeof history);
        struct answer a = answer_of(reporting, policies[i], 1);
        cr_assert_eq(reports, 2, "%s: %d reports", policies[i], reports);
        cr_assert_eq(memcmp(history, expected, sizeof history), 0, "%s", policies[i]);
        expect_same(&none, &a, policies[i]);
        answer_free(&a);
    }
    answer_free(&none);
}

/* 19. A value that the replay would read has changed after forward. */
static rw_tensor *record_and_run(struct fixture *b, rw_tensor *x)
{
    rw_tensor *const p = ramp(b, "p", 8, 1);
    ckpt_begin(b->t, "r");
    rw_tensor *const y = rw_mul(b->t, rw_tanh(b->t, rw_mul(b->t, p, x)), x);
    ckpt_end(b->t);
    rw_tensor *const loss = total(b, rw_mul(b->t, y, y));
    rw_item(b->t, loss);
    return loss;
}

static void expect_changed(struct fixture *b, rw_tensor *loss, const char *name)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_ERR_MODIFIED);
    cr_assert(strstr(rw_error_message(b->ctx), name), "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    rw_tape_reset(b->t);
    rw_tensor *const p = ramp(b, "p", 8, 1);
    cr_assert_eq(rw_backward(b->t, total(b, rw_mul(b->t, p, p))), RW_OK, "%s", rw_error_message(b->ctx));
}

static const float zeros[8];

Test(conformance_failures_and_effects, a_parameter_changed_between_record_and_replay_is_an_error_that_names_it)
{
    struct fixture b = fixture_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const w = ramp(&b, "the_weight", 8, 1);
    rw_tensor *const loss = record_and_run(&b, w);
    rw_write(w, zeros, sizeof zeros);
    expect_changed(&b, loss, "the_weight");
    fixture_close(&b);
}

Test(conformance_failures_and_effects, an_input_changed_between_forward_and_replay_is_an_error_that_names_it)
{
    struct fixture b = fixture_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const x = ckpt_name(b.t, rw_input(b.t, RW_F32, RW_SHAPE(8), zeros, sizeof zeros), "the_input");
    rw_tensor *const loss = record_and_run(&b, x);
    cr_assert_eq(rw_input_write(x, zeros, sizeof zeros), RW_OK);
    expect_changed(&b, loss, "the_input");
    fixture_close(&b);
}

Test(conformance_failures_and_effects, a_captured_buffer_changed_between_forward_and_replay_is_an_error_that_names_it)
{
    struct fixture b = fixture_open(4, 1);
    ckpt_set_policy(b.t, "full");
    rw_tensor *const mask = rw_buffer(b.ctx, "the_mask", RW_F32, RW_SHAPE(8));
    rw_tensor *const loss = record_and_run(&b, mask);
    rw_write(mask, zeros, sizeof zeros);
    expect_changed(&b, loss, "the_mask");
    fixture_close(&b);
}

/* 27 */
static double seconds(void)
{
    struct timespec now; /* CPU time of this thread, so that other processes do not matter */
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Reasons not to compare times: code that is instrumented, emulated or not optimized. */
static const char *not_timed(void)
{
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return "instrumented by a sanitizer";
#elif !defined __OPTIMIZE__
    return "built without optimization";
#endif
    const char *const preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "vgpreload") ? "under Valgrind" : NULL;
}

Test(conformance_failures_and_effects, a_region_costs_at_most_one_microsecond)
{
    enum { BATCHES = 51, REGIONS = 1000 };
    struct fixture b = fixture_open(4, 1);
    double cost[BATCHES];
    for (int batch = 0; batch < BATCHES; batch++) {
        const double from = seconds();
        for (int i = 0; i < REGIONS; i++) {
            ckpt_begin(b.t, "r");
            ckpt_end(b.t);
        }
        cost[batch] = (seconds() - from) / REGIONS;
        cr_assert_eq(rw_error_status(b.ctx), RW_OK);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
    qsort(cost, BATCHES, sizeof *cost, by_value);
    if (not_timed()) cr_skip_test("%s: the time says nothing", not_timed());
    cr_assert_leq(cost[BATCHES / 2], 1e-6, "%g us, the median of %d batches", cost[BATCHES / 2] * 1e6, BATCHES);
}

/* 28. After the error is cleared the tape is usable: the recorded nodes still exist, and give the same bytes. */
static int misuse;

/* Makes the invalid call number `misuse`, and checks its error. */
static void misuse_regions(struct fixture *b)
{
    rw_tape *other = NULL;
    rw_tensor *const p = ramp(b, "p", 8, 1);
    rw_status expected = RW_ERR_REGION, status = RW_OK;
    const char *part = "";
    cr_assert_eq(rw_tape_create(&other, b->ctx), RW_OK);
    switch (misuse) {
    case 1: /* in no region of its own: two ends for one begin, as overlapping regions would have */
        ckpt_begin(b->t, "mine");
        ckpt_end(b->t);
        status = ckpt_end(b->t);
        part = "ckpt_end";
        break;
    case 2:
        ckpt_begin(b->t, "left_open");
        status = rw_backward(b->t, total(b, rw_mul(b->t, p, p)));
        part = "left_open";
        break;
    case 3:
        cr_assert_null(rw_add(b->t, p, rw_input(other, RW_F32, RW_SHAPE(8), zeros, sizeof zeros)));
        status = rw_error_status(b->ctx);
        expected = RW_ERR_ARGUMENT;
        part = "another tape";
        break;
    case 4:
        status = rw_backward(b->t, total(&(struct fixture){ b->ctx, other }, rw_mul(other, p, p)));
        expected = RW_ERR_ARGUMENT;
        part = "this tape";
        break;
    default: break;
    }
    if (misuse) {
        cr_assert_eq(status, expected, "misuse %d: %s", misuse, rw_error_message(b->ctx));
        cr_assert(strstr(rw_error_message(b->ctx), part), "%s", rw_error_message(b->ctx));
        rw_error_clear(b->ctx);
        if (misuse == 2) cr_assert_eq(ckpt_end(b->t), RW_OK);
    }
    rw_tape_destroy(&other);
}

static rw_tensor *misused(struct fixture *b)
{
    rw_tensor *const p = ramp(b, "p", 8, 1);
    ckpt_begin(b->t, "first");
    rw_tensor *const x = rw_mul(b->t, rw_tanh(b->t, rw_mul(b->t, p, p)), p);
    ckpt_end(b->t);
    misuse_regions(b);
    ckpt_begin(b->t, "second");
    rw_tensor *const y = rw_mul(b->t, rw_tanh(b->t, rw_mul(b->t, x, x)), p);
    ckpt_end(b->t);
    return total(b, y);
}

Test(conformance_failures_and_effects, misuse_of_regions_and_tapes_is_a_clear_error_and_loses_nothing)
{
    misuse = 0;
    struct answer clean = answer_of(misused, "full", 1);
    for (misuse = 1; misuse <= 4; misuse++) {
        struct answer a = answer_of(misused, "full", 1);
        char what[32];
        snprintf(what, sizeof what, "after misuse %d", misuse);
        expect_same(&clean, &a, what);
        answer_free(&a);
    }
    answer_free(&clean);
}
