/*
 * Values that a caller holds while more is recorded and requested: returned gradients and values stay unchanged, late
 * marks and assignments count, and changes during a step are reported (law 8). After memory is exhausted for good, the
 * context stays usable.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { N = 300 };

static rw_tensor *ramp(struct fixture *b, double scale)
{
    float x[N];
    for (int i = 0; i < N; i++) x[i] = (float)(scale * (i % 31 - 15) / 16);
    return rw_input(b->t, RW_F32, RW_SHAPE(N), x, sizeof x);
}

static rw_tensor *total(struct fixture *b, rw_tensor *x)
{
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static void expect_read(struct fixture *b, rw_tensor *x, const float *want, const char *when)
{
    float got[N];
    cr_assert_eq(rw_read(b->t, x, got, sizeof got), RW_OK, "%s: %s", when, rw_error_message(b->ctx));
    for (int i = 0; i < N; i++) cr_assert_eq(got[i], want[i], "%s: element %d is %g, not %g", when, i, got[i], want[i]);
}

/* ---- returned values ---- */

/* Several plans, each with its own block of results. */
static void ask_for_more(struct fixture *b, rw_tensor *x)
{
    rw_tensor *y = x;
    for (int i = 0; i < 4; i++) {
        y = rw_tanh(b->t, rw_add_scalar(b->t, y, 0.25 * i));
        cr_assert_eq(rw_eval(b->t, &y, 1), RW_OK, "%s", rw_error_message(b->ctx));
    }
}

Test(returned_values_stay_valid, a_gradient_that_was_returned_stays)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, ramp(&b, 1)), *const u = rw_require_grad(b.t, ramp(&b, 2));
    float twice[N], four[N];
    cr_assert_eq(rw_backward(b.t, total(&b, rw_mul(b.t, x, x))), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const g = rw_gradient(x);
    cr_assert_eq(rw_read(b.t, g, twice, sizeof twice), RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(twice[i], (float)(2. * (i % 31 - 15) / 16));
    ask_for_more(&b, x);
    expect_read(&b, g, twice, "after evaluating");
    cr_assert_eq(rw_backward(b.t, total(&b, rw_mul(b.t, u, u))), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_gradient(x), g, "that loss does not depend on x");
    expect_read(&b, g, twice, "after the backward of another loss");
    for (int i = 0; i < N; i++) four[i] = 2 * twice[i];
    expect_read(&b, rw_gradient(u), four, "the other loss's own");
    ask_for_more(&b, u);
    cr_assert_eq(rw_backward(b.t, rw_scale(b.t, total(&b, rw_mul(b.t, x, x)), 2)), RW_OK);
    expect_read(&b, rw_gradient(x), four, "of the last backward");
    ask_for_more(&b, x);
    expect_read(&b, rw_gradient(x), four, "of the last backward, later");
    fixture_close(&b);
}

/* The second plan computes no loss: its block of results has only the gradient. */
Test(returned_values_stay_valid, a_gradient_of_the_second_backward_stays)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, ramp(&b, 1)), *const loss = total(&b, rw_mul(b.t, x, x));
    float twice[N];
    for (int i = 0; i < N; i++) twice[i] = (float)(2. * (i % 31 - 15) / 16);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        expect_read(&b, rw_gradient(x), twice, "at once");
        ask_for_more(&b, x);
        expect_read(&b, rw_gradient(x), twice, "after evaluating");
    }
    fixture_close(&b);
}

Test(returned_values_stay_valid, a_value_that_was_read_stays)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, ramp(&b, 1)), *const y = rw_mul(b.t, x, x);
    float square[N];
    cr_assert_eq(rw_eval(b.t, (rw_tensor *[]){ y }, 1), RW_OK);
    for (int i = 0; i < N; i++) square[i] = (float)(i % 31 - 15) / 16 * ((float)(i % 31 - 15) / 16);
    ask_for_more(&b, x);
    expect_read(&b, y, square, "after evaluating");
    cr_assert_eq(rw_backward(b.t, total(&b, rw_exp(b.t, rw_mul(b.t, x, y)))), RW_OK);
    expect_read(&b, y, square, "after a backward");
    ask_for_more(&b, y);
    expect_read(&b, y, square, "at the end");
    fixture_close(&b);
}

/* ---- late marks and assignments ---- */

/* Recorded after the loss has been read: forward has run, and a plan of the whole step is half executed. */
Test(returned_values_stay_valid, an_assignment_after_the_loss_was_read_happens)
{
    for (int policy = 0; policy < 2; policy++) {
        struct fixture b = fixture_open(1, 1);
        float assigned[N];
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(N));
        rw_tensor *const state = rw_buffer(b.ctx, "state", RW_F32, RW_SHAPE(N));
        cr_assert_eq(rw_init_constant(p, 1.5), RW_OK);
        cr_assert_eq(ckpt_set_policy(b.t, policy ? "full" : "none"), RW_OK);
        ckpt_begin(b.t, "r");
        rw_tensor *const y = rw_mul(b.t, p, ramp(&b, 1));
        ckpt_end(b.t);
        rw_tensor *const loss = total(&b, rw_mul(b.t, y, y));
        cr_assert(isfinite(rw_item(b.t, loss)));
        cr_assert_eq(rw_assign(b.t, state, y), RW_OK);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < N; i++) assigned[i] = 1.5f * ((float)(i % 31 - 15) / 16);
        expect_read(&b, state, assigned, policy ? "full" : "none");
        fixture_close(&b);
    }
}

Test(returned_values_stay_valid, a_gradient_requested_after_its_use_exists)
{
    struct fixture b = fixture_open(1, 1);
    float want[N];
    rw_tensor *const x = ramp(&b, 1), *const y = rw_scale(b.t, x, 3), *const z = rw_mul(b.t, y, y);
    rw_tensor *const loss = total(&b, z);
    cr_assert_not(rw_tensor_requires_grad(loss));
    rw_require_grad(b.t, y);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < N; i++) want[i] = (float)(6. * (i % 31 - 15) / 16);
    expect_read(&b, rw_gradient(y), want, "of a result");
    cr_assert_null(rw_gradient(x));
    rw_require_grad(b.t, x);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < N; i++) want[i] *= 3;
    expect_read(&b, rw_gradient(x), want, "of an input");
    fixture_close(&b);
}

/* The loss has a gradient already; the values between it and the mark have none yet. */
Test(returned_values_stay_valid, a_late_mark_reaches_through_what_needed_no_gradient)
{
    struct fixture b = fixture_open(1, 1);
    float want[N];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(N));
    cr_assert_eq(rw_init_constant(p, 2), RW_OK);
    rw_tensor *const x = ramp(&b, 1), *const loss = total(&b, rw_mul(b.t, rw_scale(b.t, x, 3), p));
    rw_require_grad(b.t, x);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < N; i++) want[i] = 6;
    expect_read(&b, rw_gradient(x), want, "of an input");
    fixture_close(&b);
}

/* ---- changes during the step ---- */

/* Read by a region that will be replayed. */
static rw_tensor *half_done(struct fixture *b, rw_tensor *state)
{
    cr_assert_eq(ckpt_set_policy(b->t, "full"), RW_OK);
    rw_tensor *const x = rw_require_grad(b->t, ramp(b, 1));
    ckpt_begin(b->t, "r");
    rw_tensor *const y = rw_mul(b->t, rw_tanh(b->t, rw_mul(b->t, state, x)), x);
    ckpt_end(b->t);
    rw_tensor *const loss = total(b, rw_mul(b->t, y, y));
    cr_assert(isfinite(rw_item(b->t, loss)));
    return loss;
}

static void expect_changed(struct fixture *b, rw_tensor *loss, const char *name)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_ERR_MODIFIED, "%s", rw_error_message(b->ctx));
    cr_assert(strstr(rw_error_message(b->ctx), name), "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

Test(returned_values_stay_valid, an_assignment_by_another_tape_is_told)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *other = NULL;
    rw_tensor *const state = rw_buffer(b.ctx, "running_mean", RW_F32, RW_SHAPE(N));
    cr_assert_eq(rw_init_constant(state, 1), RW_OK);
    rw_tensor *const loss = half_done(&b, state);
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *y = rw_add_scalar(other, state, 1);
    cr_assert_eq(rw_assign(other, state, y), RW_OK);
    cr_assert_eq(rw_eval(other, &y, 1), RW_OK, "%s", rw_error_message(b.ctx));
    expect_changed(&b, loss, "running_mean");
    rw_tape_destroy(&other);
    fixture_close(&b);
}

Test(returned_values_stay_valid, loading_weights_is_told)
{
    struct fixture b = fixture_open(1, 1);
    char path[] = "/tmp/rewind-results-XXXXXX";
    close(mkstemp(path));
    rw_tensor *const w = rw_param(b.ctx, "the_weight", RW_F32, RW_SHAPE(N));
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    cr_assert_eq(rw_save(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = half_done(&b, w);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    expect_changed(&b, loss, "the_weight");
    remove(path);
    fixture_close(&b);
}

/* ---- memory exhausted for good ---- */

/* Values of 144 GiB, more than a GPU has, in a process limited to 32 GiB: no attempt succeeds. */
static rw_status ask_for_too_much(struct fixture *b)
{
    enum { SIDE = 3 << 16 };
    rw_tensor *const x = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(SIDE, 1), NULL, 0));
    rw_tensor *const wide = rw_tanh(b->t, rw_broadcast_to(b->t, x, RW_SHAPE(SIDE, SIDE)));
    const rw_status status = rw_backward(b->t, total(b, rw_mul(b->t, wide, wide)));
    rw_error_clear(b->ctx);
    rw_tape_reset(b->t);
    return status;
}

static void small_step(struct fixture *b, float *ret_gradient)
{
    rw_tensor *const x = rw_require_grad(b->t, ramp(b, 1));
    cr_assert_eq(rw_backward(b->t, total(b, rw_mul(b->t, rw_tanh(b->t, x), x))), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, rw_gradient(x), ret_gradient, N * sizeof *ret_gradient), RW_OK);
    rw_tape_reset(b->t);
}

/* A result is not part of the arena: the message says what it is, and how large. */
Test(returned_values_stay_valid, what_is_to_be_read_and_can_never_fit_is_named)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("a sanitizer needs all the addresses there are");
#endif
    enum { SIDE = 3 << 16 };
    const struct rlimit most = { (rlim_t)32 << 30, (rlim_t)32 << 30 };
    if (test_device() == RW_DEVICE_CPU) cr_assert_eq(setrlimit(RLIMIT_AS, &most), 0);
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(SIDE, 1), NULL, 0);
    rw_tensor *const wide = rw_tanh(b.t, rw_broadcast_to(b.t, x, RW_SHAPE(SIDE, SIDE)));
    cr_assert_eq(rw_eval(b.t, &wide, 1), RW_ERR_MEMORY);
    cr_assert(strstr(rw_error_message(b.ctx), "kept for reading take 154618822656 bytes"), "%s",
              rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(returned_values_stay_valid, a_context_outlives_what_can_never_fit)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    cr_skip_test("a sanitizer needs all the addresses there are");
#endif
    const struct rlimit most = { (rlim_t)32 << 30, (rlim_t)32 << 30 };
    if (test_device() == RW_DEVICE_CPU) cr_assert_eq(setrlimit(RLIMIT_AS, &most), 0);
    struct fixture b = fixture_open(1, 1);
    float before[N], after[N];
    cr_assert_eq(ask_for_too_much(&b), RW_ERR_MEMORY, "with nothing there yet");
    small_step(&b, before);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(ask_for_too_much(&b), RW_ERR_MEMORY);
        cr_assert_eq(ask_for_too_much(&b), RW_ERR_MEMORY, "once more");
        small_step(&b, after);
        cr_assert_eq(memcmp(before, after, sizeof before), 0);
    }
    fixture_close(&b);
}
