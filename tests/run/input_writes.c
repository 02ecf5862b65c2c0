/*
 * rw_input_write() after something was computed. A step computes values that the program has not requested yet: those
 * that the last step of the same structure read, those of other losses, the rest of a step that rw_item() begins, and
 * with REWIND_EAGER=1 all of them. An input that is written belongs to the elements that a requested value has read, or
 * to the new ones if no requested value depends on it, whatever was computed ahead. random_writes.c tests the same rule
 * with random programs.
 */
#include "run/recording_ops.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

enum { SHORT = 4, LONG = RECORDING_ELEMENTS };

static const float ones[SHORT] = { 1, 2, 3, 4 }, tens[SHORT] = { 10, 20, 30, 40 };

static rw_tensor *total(rw_tape *t, rw_tensor *x)
{
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static rw_tensor *input(rw_tape *t)
{
    return rw_input(t, RW_F32, RW_SHAPE(SHORT), ones, sizeof ones);
}

static rw_tensor *param(rw_context *ctx, const char *name)
{
    rw_tensor *const p = rw_param(ctx, name, RW_F32, RW_SHAPE(SHORT));
    OK(ctx, rw_write(p, ones, sizeof ones));
    return p;
}

static void expect_gradient(rw_context *ctx, rw_tensor *p, float a, float b, float c, float d, const char *when)
{
    float got[SHORT];
    const float expected[SHORT] = { a, b, c, d };
    OK(ctx, rw_read(NULL, rw_gradient(p), got, sizeof got));
    cr_expect(!memcmp(got, expected, sizeof got), "%s: %g %g %g %g for %g %g %g %g", when, (double)got[0],
              (double)got[1], (double)got[2], (double)got[3], (double)a, (double)b, (double)c, (double)d);
}

static struct fixture open_in(bool eager)
{
    if (eager) setenv("REWIND_EAGER", "1", 1);
    const struct fixture b = fixture_open(7, 1);
    unsetenv("REWIND_EAGER");
    return b;
}

/* ---- single cases ---- */

/* A validation loss is read after backward, which has computed it with the loss since the second step. */
Test(input_writes, between_backward_and_a_read_that_is_expected)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 4; step++) {
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const loss = total(b.t, rw_mul(b.t, x, p)), *const validation = total(b.t, rw_mul(b.t, v, p));
        OK(b.ctx, rw_backward(b.t, loss));
        if (step % 2) OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        cr_expect_eq(rw_item(b.t, validation), step % 2 ? 300 : 30, "step %d", step);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(input_writes, between_two_backwards)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const q = param(b.ctx, "q");
    for (int step = 0; step < 3; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const v = input(b.t), *const y = rw_add(b.t, v, q);
        rw_tensor *const one = total(b.t, rw_mul(b.t, x, p)), *const two = total(b.t, rw_mul(b.t, y, y));
        OK(b.ctx, rw_backward(b.t, one));
        OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        OK(b.ctx, rw_backward(b.t, two));
        expect_gradient(b.ctx, q, 22, 44, 66, 88, "the second loss");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The first read evaluates both values since the second step. */
Test(input_writes, between_two_reads_of_an_evaluation)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 3; step++) {
        OK(b.ctx, rw_no_grad_begin(b.t));
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const one = total(b.t, rw_mul(b.t, x, p)), *const two = total(b.t, rw_mul(b.t, v, p));
        cr_expect_eq(rw_item(b.t, one), 30);
        if (step) OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        cr_expect_eq(rw_item(b.t, two), step ? 300 : 30, "step %d", step);
        OK(b.ctx, rw_no_grad_end(b.t));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The program has read a large value that depends on the input, so backward may not read other elements. */
Test(input_writes, after_a_large_value_was_read)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(LONG));
    OK(b.ctx, rw_init_constant(w, 1));
    for (int step = 0; step < 3; step++) {
        float large[LONG];
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const one = total(b.t, rw_mul(b.t, x, p)), *const two = total(b.t, rw_mul(b.t, v, p));
        rw_tensor *const z = rw_mul(b.t, rw_broadcast_to(b.t, two, RW_SHAPE(LONG)), w);
        rw_tensor *const loss = rw_add(b.t, rw_add(b.t, one, total(b.t, rw_mul(b.t, z, z))), two);
        rw_item(b.t, one);
        if (step < 2) {
            rw_item(b.t, two);
            OK(b.ctx, rw_backward(b.t, loss));
        } else {
            OK(b.ctx, rw_read(b.t, z, large, sizeof large));
            OK(b.ctx, rw_input_write(v, tens, sizeof tens));
            cr_expect_eq(rw_backward(b.t, loss), RW_ERR_MODIFIED);
            rw_error_clear(b.ctx);
            expect_gradient(b.ctx, p, 0, 0, 0, 0, "a refused backward");
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A backward has used a scalar that a begun step computed in passing: the scalar stays what it was. */
Test(input_writes, after_a_backward_from_what_was_computed_ahead)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const q = param(b.ctx, "q"), *const r = param(b.ctx, "r");
    for (int step = 0; step < 2; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const one = total(b.t, rw_mul(b.t, x, p)), *const two = total(b.t, rw_mul(b.t, v, v));
        rw_tensor *const by_q = total(b.t, rw_mul(b.t, rw_broadcast_to(b.t, two, RW_SHAPE(SHORT)), q));
        rw_tensor *const by_r = total(b.t, rw_mul(b.t, rw_broadcast_to(b.t, two, RW_SHAPE(SHORT)), r));
        rw_item(b.t, one);
        if (step) {
            OK(b.ctx, rw_backward(b.t, by_q));
            OK(b.ctx, rw_input_write(v, tens, sizeof tens));
            const rw_status status = rw_backward(b.t, by_r);
            cr_expect(!status || status == RW_ERR_MODIFIED);
            rw_error_clear(b.ctx);
            expect_gradient(b.ctx, q, 30, 30, 30, 30, "before the write");
            if (!status) expect_gradient(b.ctx, r, 30, 30, 30, 30, "after the write");
        } else {
            rw_item(b.t, two);
            OK(b.ctx, rw_backward(b.t, rw_add(b.t, one, two)));
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A backward that is refused has requested nothing: what it would have read is still unbound. */
Test(input_writes, after_a_refused_backward)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 3; step++) {
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const loss = total(b.t, rw_mul(b.t, x, p)), *const other = total(b.t, rw_mul(b.t, v, p));
        cr_expect_eq(rw_item(b.t, loss), 30);
        if (step < 2) {
            cr_expect_eq(rw_item(b.t, other), 30);
            OK(b.ctx, rw_backward(b.t, loss));
        } else {
            OK(b.ctx, rw_input_write(x, tens, sizeof tens));
            cr_expect_eq(rw_backward(b.t, loss), RW_ERR_MODIFIED);
            rw_error_clear(b.ctx);
            OK(b.ctx, rw_input_write(v, tens, sizeof tens));
            cr_expect_eq(rw_item(b.t, other), 300);
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The loss does not need the op, so rw_item() does not execute it: it may run only once, with the elements of
   rw_backward(). */
Test(input_writes, before_an_effect_that_the_loss_does_not_need)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 3; step++) {
        rw_zero_grad(b.ctx);
        memset(recording_runs, 0, sizeof recording_runs);
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const told_v = recording_apply(b.t, &recording_once, v, 0);
        rw_tensor *const loss = total(b.t, rw_mul(b.t, x, p));
        rw_tensor *const other = total(b.t, rw_mul(b.t, told_v, rw_mul(b.t, v, p)));
        cr_expect_eq(rw_item(b.t, loss), 30);
        cr_expect_eq(recording_runs[0], 0);
        OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        OK(b.ctx, rw_backward(b.t, loss));
        cr_expect_eq(recording_runs[0], 1, "step %d: %d times", step, recording_runs[0]);
        cr_expect_eq(recording_read[0][0], 10, "step %d: %g", step, (double)recording_read[0][0]);
        OK(b.ctx, rw_backward(b.t, other));
        expect_gradient(b.ctx, p, 101, 402, 903, 1604, "both losses");
        cr_expect_eq(recording_runs[0], 1);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* An effect that the loss needs happens with it, and later ones with backward. */
Test(input_writes, between_effects)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 3; step++) {
        memset(recording_runs, 0, sizeof recording_runs);
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const loss = total(b.t, recording_apply(b.t, &recording_once, rw_mul(b.t, x, p), 0));
        recording_apply(b.t, &recording_once, rw_mul(b.t, v, p), 1);
        cr_expect_eq(rw_item(b.t, loss), 30);
        cr_expect(recording_runs[0] == 1 && recording_runs[1] == 0);
        OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        OK(b.ctx, rw_backward(b.t, loss));
        cr_expect(recording_runs[0] == 1 && recording_runs[1] == 1 && recording_read[1][0] == 10);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A begun step has stopped before an effect; a value that the last step read, and this one does not need, would be
   computed after it from an input that has changed. */
Test(input_writes, before_a_value_of_the_last_step_that_is_refused)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 4; step++) {
        float got;
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const y = input(b.t);
        rw_tensor *const one = total(b.t, rw_mul(b.t, x, p)), *const squares = total(b.t, rw_mul(b.t, y, y));
        recording_apply(b.t, &recording_once, x, 0);
        rw_tensor *const two = total(b.t, rw_mul(b.t, y, p));
        cr_expect_eq(rw_item(b.t, one), 30);
        if (step < 3) {
            cr_expect_eq(rw_item(b.t, two), 30);
        } else {
            OK(b.ctx, rw_read(b.t, squares, &got, sizeof got));
            OK(b.ctx, rw_input_write(y, tens, sizeof tens));
        }
        OK(b.ctx, rw_backward(b.t, one));
        expect_gradient(b.ctx, p, 1, 2, 3, 4, "the loss");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

static int failures;

static rw_status fail_cpu(const rw_kernel *k)
{
    if (failures-- > 0) return RW_ERR_DEVICE;
    memcpy(k->out[0].data, k->in[0].data, sizeof ones);
    return RW_OK;
}

static rw_status like_input(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status pass_gradient(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def fails = { .name = "fails", .n_inputs = 1, .n_outputs = 1, .check = like_input,
                                 .grad = pass_gradient, .kernel = { [RW_DEVICE_CPU] = fail_cpu } };

/* The effect has happened, so the next attempt may not compute the rest from other elements. */
Test(input_writes, after_a_failure_that_follows_an_effect)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const x = input(b.t), *const y = rw_mul(b.t, x, p);
    rw_tensor *const loss = total(b.t, recording_apply(b.t, &fails, recording_apply(b.t, &recording_once, y, 0), 0));
    failures = 1;
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_DEVICE);
    rw_error_clear(b.ctx);
    OK(b.ctx, rw_input_write(x, tens, sizeof tens));
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_MODIFIED);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* rw_forward() requests the forward part, which has computed what an assignment writes when the step ends. */
Test(input_writes, between_the_halves_of_a_step)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const copy = rw_buffer(b.ctx, "copy", RW_F32, RW_SHAPE(SHORT));
    rw_tensor *const x = input(b.t), *const v = input(b.t), *const y = rw_scale(b.t, v, 2);
    rw_tensor *loss = total(b.t, rw_mul(b.t, x, p));
    float got[SHORT];
    OK(b.ctx, rw_assign(b.t, copy, y));
    OK(b.ctx, rw_forward(b.t, &loss, 1));
    OK(b.ctx, rw_input_write(v, tens, sizeof tens));
    OK(b.ctx, rw_backward_from(b.t, &loss, NULL, 1));
    OK(b.ctx, rw_read(NULL, copy, got, sizeof got));
    cr_expect_eq(got[3], 8);
    cr_expect_eq(rw_read(b.t, y, got, sizeof got), RW_ERR_MODIFIED);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/*
 * A value of the gradient that the last step read after backward. The read of another scalar begins the step, which
 * computes the value's other factor ahead, and rw_forward() claims it. v: a buffer in place of that factor, or NULL.
 */
static double read_gradient_of_claimed_step(struct fixture *b, rw_scaler *s, rw_tensor *p, rw_tensor *v, bool writes)
{
    rw_zero_grad(b->ctx);
    rw_tensor *const x = input(b->t), *const y = v ? v : input(b->t);
    rw_tensor *loss = total(b->t, rw_mul(b->t, rw_mul(b->t, p, p), x));
    rw_tensor *const first = total(b->t, rw_scale(b->t, x, 3));
    rw_tensor *const ahead = rw_mul(b->t, rw_mul(b->t, y, y), p);
    rw_tensor *g;
    OK(b->ctx, rw_grad(b->t, loss, &p, 1, &g));
    rw_tensor *const last = total(b->t, rw_mul(b->t, v ? y : ahead, g));
    cr_expect_eq(rw_item(b->t, first), 30);
    OK(b->ctx, rw_forward(b->t, &loss, 1));
    if (writes && v) OK(b->ctx, rw_write(v, tens, sizeof tens));
    else if (writes) OK(b->ctx, rw_input_write(y, tens, sizeof tens));
    OK(b->ctx, rw_scaler_backward(s, b->t, loss));
    expect_gradient(b->ctx, p, 2, 8, 18, 32, "the loss");
    return writes && v ? 0 : rw_item(b->t, last);
}

Test(input_writes, between_a_claimed_forward_part_and_a_value_that_is_expected)
{
    for (int steps = 1; steps < 4; steps++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = param(b.ctx, "p");
        rw_scaler *s = NULL;
        OK(b.ctx, rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 1 }));
        for (int step = 0; step <= steps; step++) {
            cr_expect_eq(read_gradient_of_claimed_step(&b, s, p, NULL, step == steps), step == steps ? 260000 : 2600,
                         "step %d", step);
            rw_tape_reset(b.t);
        }
        rw_scaler_destroy(&s);
        fixture_close(&b);
    }
}

/* The step has read x for the program, and v only for the expected value: the next batch may replace both. */
Test(input_writes, of_all_inputs_of_a_claimed_step)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *p = param(b.ctx, "p"), *g;
    rw_scaler *s = NULL;
    OK(b.ctx, rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 1 }));
    for (int step = 0; step < 4; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const v = input(b.t), *const y = rw_add(b.t, p, x);
        rw_tensor *loss = total(b.t, rw_mul(b.t, y, y)), *const ahead = rw_mul(b.t, rw_mul(b.t, v, v), p);
        rw_tensor *const first = total(b.t, rw_scale(b.t, x, 3));
        OK(b.ctx, rw_grad(b.t, loss, &p, 1, &g));
        rw_tensor *const last = total(b.t, rw_mul(b.t, ahead, g));
        cr_expect_eq(rw_item(b.t, first), 30);
        OK(b.ctx, rw_forward(b.t, &loss, 1));
        if (step == 3) OK(b.ctx, rw_input_write(x, tens, sizeof tens));
        if (step == 3) OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        OK(b.ctx, rw_scaler_backward(s, b.t, loss));
        expect_gradient(b.ctx, p, 4, 8, 12, 16, "the loss");
        if (step < 3) cr_expect_eq(rw_item(b.t, last), 4 * (1 + 16 + 81 + 256));
        rw_tape_reset(b.t);
    }
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

/* An effect that reads a gradient happens with backward, though the step has computed its other operand before. */
Test(input_writes, before_an_effect_that_a_claimed_step_has_not_reached)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *p = param(b.ctx, "p"), *g;
    rw_scaler *s = NULL;
    OK(b.ctx, rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 1 }));
    for (int step = 0; step < 4; step++) {
        memset(recording_runs, 0, sizeof recording_runs);
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const v = input(b.t), *const ahead = rw_mul(b.t, rw_mul(b.t, v, v), p);
        rw_tensor *loss = total(b.t, rw_mul(b.t, p, x)), *const first = total(b.t, rw_scale(b.t, x, 3));
        OK(b.ctx, rw_grad(b.t, loss, &p, 1, &g));
        recording_apply(b.t, &recording_once, rw_mul(b.t, ahead, g), 0);
        cr_expect_eq(rw_item(b.t, first), 30);
        OK(b.ctx, rw_forward(b.t, &loss, 1));
        cr_expect_eq(recording_runs[0], 0);
        if (step % 2) OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        OK(b.ctx, rw_scaler_backward(s, b.t, loss));
        cr_expect_eq(recording_runs[0], 1);
        cr_expect_eq(recording_read[0][1], step % 2 ? 1600 : 16, "step %d: %g", step, (double)recording_read[0][1]);
        rw_tape_reset(b.t);
    }
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

/* Only the expected value reads the buffer, in the part of the step that is left: then the step runs without it. */
Test(input_writes, of_a_buffer_that_only_an_expected_value_of_a_claimed_step_reads)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const v = rw_buffer(b.ctx, "v", RW_F32, RW_SHAPE(SHORT));
    rw_scaler *s = NULL;
    OK(b.ctx, rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 1 }));
    OK(b.ctx, rw_write(v, ones, sizeof ones));
    for (int step = 0; step < 4; step++) {
        read_gradient_of_claimed_step(&b, s, p, v, step == 3);
        rw_tape_reset(b.t);
    }
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

/* How a program of read_through_an_edge() runs. */
enum { HALVES = 1, RECOMPUTED = 2, BY_GROUPS = 4, EAGERLY = 8, WAYS = 16 };

/*
 * The norm reads the parts of a concatenation in place of it. Backward differentiates the whole, and in it a view whose
 * rule sends the gradient to z, which forward does not read: so only backward reads h, which depends on the input.
 */
static rw_status read_through_an_edge(int way, bool writes, float *gradient)
{
    enum { ROWS = 4 };
    static const float elements[ROWS * 6] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 1, 4, 1, 5, 9 };
    struct fixture b = open_in(way & EAGERLY);
    rw_tensor *part[3], *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(ROWS, 4));
    OK(b.ctx, rw_write(w, elements, ROWS * 4 * sizeof(float)));
    for (int i = 0; i < 3; i++) {
        rw_tensor *const p = rw_param(b.ctx, (const char *[]){ "a", "b", "c" }[i], RW_F32, RW_SHAPE(ROWS, 2));
        OK(b.ctx, rw_write(p, elements + 5 * i, ROWS * 2 * sizeof(float)));
        part[i] = rw_scale(b.t, p, 2);
    }
    rw_tensor *const v = rw_input(b.t, RW_F32, RW_SHAPE(ROWS, 4), elements + 8, ROWS * 4 * sizeof(float));
    rw_tensor *const h = rw_scale(b.t, v, 3);
    if (way & RECOMPUTED) ckpt_recompute(b.t, h);
    rw_tensor *const through = rw_straight_through(b.t, rw_concat(b.t, part, 2, 1), rw_mul(b.t, w, h));
    rw_tensor *const both = rw_concat(b.t, ((rw_tensor *[]){ through, part[2] }), 2, 1);
    rw_tensor *const y = way & BY_GROUPS ? rw_group_norm(b.t, both, 2, RW_NONE, RW_NONE, 1e-5)
                                         : rw_batchnorm(b.t, both, RW_NONE, RW_NONE, RW_NONE, RW_NONE, NULL);
    rw_tensor *loss = total(b.t, rw_mul(b.t, y, rw_input(b.t, RW_F32, RW_SHAPE(ROWS, 6), elements, sizeof elements)));
    if (way & HALVES) OK(b.ctx, rw_forward(b.t, &loss, 1));
    else OK(b.ctx, rw_backward(b.t, loss));
    rw_zero_grad(b.ctx);
    if (writes) OK(b.ctx, rw_input_write(v, elements, ROWS * 4 * sizeof(float)));
    const rw_status status = way & HALVES ? rw_backward_from(b.t, &loss, NULL, 1) : rw_backward(b.t, loss);
    rw_error_clear(b.ctx);
    if (!status) OK(b.ctx, rw_read(NULL, rw_gradient(w), gradient, ROWS * 4 * sizeof(float)));
    fixture_close(&b);
    return status;
}

Test(input_writes, of_an_input_that_is_read_through_an_edge)
{
    for (int way = 0; way < WAYS; way++) {
        float old[16], got[16];
        OK(NULL, read_through_an_edge(way, false, old));
        const rw_status status = read_through_an_edge(way, true, got);
        cr_expect(status == RW_ERR_MODIFIED || (!status && !memcmp(old, got, sizeof old)), "way %d: %s, %g, before %g",
                  way, rw_status_name(status), (double)got[0], (double)old[0]);
    }
}

/* The read begins the step before it is recorded. Nodes that are recorded later depend on what it has computed. */
Test(input_writes, of_a_step_that_is_not_recorded_yet)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 6; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const x = input(b.t), *const v = input(b.t), *const ahead = rw_mul(b.t, rw_mul(b.t, v, v), p);
        cr_expect_eq(rw_item(b.t, total(b.t, rw_mul(b.t, rw_scale(b.t, x, 3), p))), 90);
        if (step % 2) OK(b.ctx, rw_input_write(v, tens, sizeof tens));
        rw_tensor *const last = total(b.t, rw_scale(b.t, ahead, 2)), *const loss = total(b.t, rw_mul(b.t, p, x));
        cr_expect_eq(rw_item(b.t, last), step % 2 ? 20000 : 200, "step %d", step);
        OK(b.ctx, rw_backward(b.t, loss));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A backward that would add to unscaled gradients is refused, whichever run it has: the suspended one is not lost. */
Test(input_writes, after_a_refusal_that_has_nothing_to_do_with_it)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const x = input(b.t), *const y = rw_add(b.t, p, x);
    rw_tensor *loss = total(b.t, rw_mul(b.t, y, y));
    rw_tape *other = NULL;
    rw_scaler *s = NULL;
    OK(b.ctx, rw_scaler_create(&s, b.ctx, NULL));
    OK(b.ctx, rw_tape_create(&other, b.ctx));
    OK(b.ctx, rw_forward(b.t, &loss, 1));
    OK(b.ctx, rw_input_write(x, tens, sizeof tens));
    OK(b.ctx, rw_scaler_backward(s, other, total(other, rw_mul(other, p, p))));
    OK(b.ctx, rw_scaler_unscale(s));
    cr_expect_eq(rw_backward_from(b.t, &loss, NULL, 1), RW_ERR_MODIFIED);
    rw_error_clear(b.ctx);
    rw_zero_grad(b.ctx);
    OK(b.ctx, rw_backward_from(b.t, &loss, NULL, 1));
    expect_gradient(b.ctx, p, 4, 8, 12, 16, "the loss");
    rw_scaler_destroy(&s);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* The forward part is requested also if memory has discarded what it computed. */
Test(input_writes, after_a_suspended_step_was_discarded)
{
    enum { OTHERS = 40 }; /* more than a context keeps suspended */
    struct fixture b = fixture_open(1, 1);
    rw_tape *other[OTHERS];
    rw_tensor *const p = param(b.ctx, "p"), *const copy = rw_buffer(b.ctx, "copy", RW_F32, RW_SHAPE(SHORT));
    rw_tensor *const x = input(b.t), *const v = input(b.t);
    rw_tensor *loss = total(b.t, rw_mul(b.t, x, p));
    OK(b.ctx, rw_assign(b.t, copy, rw_scale(b.t, v, 2)));
    OK(b.ctx, rw_forward(b.t, &loss, 1));
    for (int i = 0; i < OTHERS; i++) {
        OK(b.ctx, rw_tape_create(&other[i], b.ctx));
        rw_tensor *y = total(other[i], rw_mul(other[i], input(other[i]), p));
        OK(b.ctx, rw_forward(other[i], &y, 1));
    }
    OK(b.ctx, rw_input_write(v, tens, sizeof tens));
    cr_expect_eq(rw_backward_from(b.t, &loss, NULL, 1), RW_ERR_MODIFIED);
    rw_error_clear(b.ctx);
    for (int i = 0; i < OTHERS; i++) rw_tape_destroy(&other[i]);
    fixture_close(&b);
}

/* Another call has executed the effect that a begun step had stopped before. */
Test(input_writes, after_an_effect_that_a_begun_step_had_not_reached)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p");
    for (int step = 0; step < 4; step++) {
        memset(recording_runs, 0, sizeof recording_runs);
        rw_tensor *const x = input(b.t), *const v = input(b.t);
        rw_tensor *const first = total(b.t, rw_mul(b.t, x, p));
        rw_tensor *const told = recording_apply(b.t, &recording_once, total(b.t, v), 0);
        rw_tensor *const last = rw_add(b.t, told, told);
        cr_expect_eq(rw_item(b.t, first), 30);
        if (step == 3) OK(b.ctx, rw_eval_effects(b.t));
        cr_expect_eq(rw_item(b.t, last), 20);
        cr_expect_eq(recording_runs[0], 1, "step %d: %d times", step, recording_runs[0]);
        OK(b.ctx, rw_backward(b.t, first));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* Nothing was requested, so eager mode computes what depends on the input again. */
Test(input_writes, after_eager_mode_has_computed_everything)
{
    for (int eager = 0; eager < 2; eager++) {
        struct fixture b = open_in(eager);
        rw_tensor *const p = param(b.ctx, "p"), *const x = rw_input(b.t, RW_F32, RW_SHAPE(SHORT), NULL, 0);
        rw_tensor *const y = rw_add(b.t, x, p), *const loss = total(b.t, rw_mul(b.t, y, y));
        OK(b.ctx, rw_input_write(x, tens, sizeof tens));
        OK(b.ctx, rw_backward(b.t, loss));
        expect_gradient(b.ctx, p, 22, 44, 66, 88, eager ? "eager" : "plain");
        fixture_close(&b);
    }
}

/* Eager mode has executed an op with an effect, which cannot happen again with other elements. */
Test(input_writes, after_an_effect_in_eager_mode)
{
    struct fixture b = open_in(true);
    rw_tensor *const p = param(b.ctx, "p"), *const x = input(b.t);
    rw_tensor *const loss = total(b.t, recording_apply(b.t, &recording_once, rw_add(b.t, x, p), 0));
    cr_expect_eq(rw_input_write(x, tens, sizeof tens), RW_ERR_MODIFIED);
    cr_expect(strstr(rw_error_message(b.ctx), "REWIND_EAGER=1"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    float got[SHORT];
    OK(b.ctx, rw_read(b.t, x, got, sizeof got));
    cr_expect_eq(got[0], 1);
    cr_expect_eq(rw_item(b.t, loss), 20); /* requested: from now on the write is as in the other modes */
    OK(b.ctx, rw_input_write(x, tens, sizeof tens));
    cr_expect_eq(rw_item(b.t, loss), 20);
    fixture_close(&b);
}

/* On a tape without gradients a read requests the effects, too. */
Test(input_writes, after_a_read_that_requests_the_effects)
{
    for (int eager = 0; eager < 2; eager++) {
        struct fixture b = open_in(eager);
        OK(b.ctx, rw_no_grad_begin(b.t));
        rw_tensor *const p = param(b.ctx, "p"), *const x = input(b.t);
        recording_apply(b.t, &recording_once, x, 0);
        cr_expect_eq(rw_item(b.t, total(b.t, rw_mul(b.t, p, p))), 30);
        OK(b.ctx, rw_input_write(x, tens, sizeof tens));
        cr_expect_eq(recording_read[0][0], 1);
        fixture_close(&b);
    }
}

/* A launch begins a step: what was requested before it binds nothing. */
Test(input_writes, after_a_launch_in_eager_mode)
{
    struct fixture b = open_in(true);
    rw_tensor *const p = param(b.ctx, "p"), *const x = input(b.t), *const v = input(b.t);
    rw_graph *g = NULL;
    OK(b.ctx, rw_graph_create(&g, b.t, total(b.t, rw_mul(b.t, x, p)), NULL));
    OK(b.ctx, rw_graph_launch(g));
    rw_tensor *const squares = total(b.t, rw_mul(b.t, v, v));
    cr_expect_eq(rw_item(b.t, squares), 30);
    OK(b.ctx, rw_input_write(v, ones, sizeof ones));
    cr_expect_eq(rw_item(b.t, squares), 30);
    rw_zero_grad(b.ctx);
    OK(b.ctx, rw_graph_launch(g));
    rw_tensor *const sum = total(b.t, rw_add(b.t, v, v));
    OK(b.ctx, rw_input_write(v, tens, sizeof tens));
    cr_expect_eq(rw_item(b.t, sum), 200);
    cr_expect_eq(rw_item(b.t, squares), 3000);
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* Results of a launch were requested: the next batch may be written before the loss is read. */
Test(input_writes, after_a_launch)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(b.ctx, "p"), *const x = input(b.t);
    rw_tensor *const loss = total(b.t, rw_mul(b.t, x, p));
    rw_graph *g = NULL;
    OK(b.ctx, rw_graph_create(&g, b.t, loss, NULL));
    for (int launch = 0; launch < 3; launch++) {
        OK(b.ctx, rw_input_write(x, launch % 2 ? tens : ones, sizeof ones));
        OK(b.ctx, rw_graph_launch(g));
        OK(b.ctx, rw_input_write(x, launch % 2 ? ones : tens, sizeof ones));
        cr_expect_eq(rw_item(b.t, loss), launch % 2 ? 300 : 30);
        rw_zero_grad(b.ctx);
    }
    rw_graph_destroy(&g);
    fixture_close(&b);
}
