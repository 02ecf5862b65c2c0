/*
 * Leaves: the values of a tape for a parameter, its gradient or an input, with several tapes and plans in one context.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct fixture b;

static void open_fixture(void)
{
    b = fixture_open(1, 1);
}

static void close_fixture(void)
{
    fixture_close(&b);
}

TestSuite(leaves, .init = open_fixture, .fini = close_fixture);

static rw_tensor *param(const char *name, float scale)
{
    rw_tensor *const p = rw_param(b.ctx, name, RW_F32, RW_SHAPE(4));
    const float v[4] = { scale, 2 * scale, 3 * scale, -scale };
    cr_assert_eq(rw_write(p, v, sizeof v), RW_OK);
    return p;
}

static rw_tensor *total(rw_tape *t, rw_tensor *x)
{
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static void expect_gradient(rw_tensor *p, const float *expected, const char *what)
{
    float g[4];
    cr_assert_eq(rw_read(NULL, rw_gradient(p), g, sizeof g), RW_OK);
    cr_assert_eq(memcmp(g, expected, sizeof g), 0, "%s: %g %g %g %g", what, (double)g[0], (double)g[1], (double)g[2],
                 (double)g[3]);
}

/* As in a sum over processes: read, summed elsewhere, written back. */
Test(leaves, a_gradient_that_is_written_is_the_gradient)
{
    rw_tensor *const p = param("p", 1);
    const float own[4] = { 5, 6, 7, 8 }, sum[4] = { 6, 7, 8, 9 }, zeros[4] = { 0 };
    cr_assert_eq(rw_write(rw_gradient(p), own, sizeof own), RW_OK);
    expect_gradient(p, own, "written");
    cr_assert_eq(rw_backward(b.t, total(b.t, p)), RW_OK);
    expect_gradient(p, sum, "a backward adds to it");
    cr_assert_eq(rw_write(rw_gradient(p), own, 3 * sizeof *own), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    expect_gradient(p, sum, "a write that was refused");
    rw_zero_grad(b.ctx);
    cr_assert_not_null(rw_tensor_data(rw_gradient(p)));
    expect_gradient(p, zeros, "its address was read");
}

/* Without bytes no memory is needed. */
Test(leaves, nothing_can_be_written_to_what_is_empty)
{
    rw_tensor *const p = rw_param(b.ctx, "empty", RW_F32, RW_SHAPE(0, 3)), *const one = param("one", 1);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 0), NULL, 0);
    cr_assert(p && x, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_write(p, NULL, 0), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_input_write(x, NULL, 0), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_write(one, NULL, rw_tensor_bytes(one)), RW_ERR_ARGUMENT);
    cr_expect_str_eq(rw_error_message(b.ctx), "rw_write: data is NULL; expected the memory to read or write");
    rw_error_clear(b.ctx);
}

static void expect_no_input(rw_shape shape, const float *data, size_t bytes, const char *says)
{
    char text[128];
    snprintf(text, sizeof text, "%s%zu", says, bytes);
    cr_expect_null(rw_input(b.t, RW_F32, shape, data, bytes), "%zu bytes", bytes);
    cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT, "%zu bytes", bytes);
    cr_expect_not_null(strstr(rw_error_message(b.ctx), text), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
}

/* Data of another size than the shape's are not read. */
Test(leaves, an_input_of_a_wrong_size_is_refused)
{
    static const size_t wrong[] = { 0, 4, 23, 25, 48, SIZE_MAX };
    const float x[6] = { 1, 2, 3, 4, 5, 6 };
    float got[6];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_no_input(RW_SHAPE(2, 3), x, wrong[i], ": expected 24 bytes for f32[2, 3], got ");
    expect_no_input(RW_SCALAR, x, sizeof x, ": expected 4 bytes for f32[], got ");
    expect_no_input(RW_SHAPE(0, 3), x, sizeof x, ": expected 0 bytes for f32[0, 3], got ");
    expect_no_input(RW_SHAPE(2, 3), NULL, sizeof x, "or NULL and 0 bytes for zeros, got NULL and ");
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(2, 3), x, sizeof x);
    cr_assert_eq(rw_read(b.t, in, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(memcmp(got, x, sizeof x), 0);
    cr_expect_not_null(rw_input(b.t, RW_F32, RW_SHAPE(0, 3), x, 0), "%s", rw_error_message(b.ctx));
}

Test(leaves, addresses)
{
    rw_tensor *const p = param("p", 1), *const x = rw_add(b.t, p, p);
    float v[4];
    void *const data = rw_tensor_data(p), *const grad = rw_tensor_data(rw_gradient(p));
    cr_assert(data && grad && data != grad);
    cr_assert_eq(rw_backward(b.t, total(b.t, x)), RW_OK);
    cr_assert_eq(rw_tensor_data(rw_gradient(p)), grad);
    if (test_device() == RW_DEVICE_CPU) {
        const float twos[4] = { 2, 2, 2, 2 };
        cr_assert_eq(memcmp(grad, twos, sizeof twos), 0);
        ((float *)grad)[1] = 9;
        cr_assert_eq(rw_read(NULL, rw_gradient(p), v, sizeof v), RW_OK);
        cr_assert_eq(v[1], 9);
    }
    cr_assert_null(rw_tensor_data(x));
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_assert_null(rw_tensor_data(NULL));
}

/* One after the other, then alternating op by op: each use of a parameter must count, whichever tape recorded in
   between. */
Test(leaves, two_tapes_recorded_in_turns_give_what_each_gives_alone)
{
    rw_tape *other = NULL;
    float alone[2][4];
    rw_tensor *const p = param("p", 0.5f);
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tape *const tape[2] = { b.t, other };
    for (int turns = 0; turns < 2; turns++) {
        rw_tensor *x[2] = { p, p };
        for (int i = 0; i < 2; i++) {
            for (int k = 0; k < 4 && !turns; k++) x[i] = rw_mul(tape[i], i ? rw_tanh(tape[i], x[i]) : x[i], p);
            for (int k = 0; k < 4 && turns && !i; k++)
                for (int j = 0; j < 2; j++) x[j] = rw_mul(tape[j], j ? rw_tanh(tape[j], x[j]) : x[j], p);
        }
        for (int i = 0; i < 2; i++) {
            rw_zero_grad(b.ctx);
            cr_assert_eq(rw_backward(tape[i], total(tape[i], x[i])), RW_OK, "%s", rw_error_message(b.ctx));
            if (turns) expect_gradient(p, alone[i], "in turns");
            else rw_read(NULL, rw_gradient(p), alone[i], sizeof alone[i]);
        }
        for (int i = 0; i < 2; i++) rw_tape_reset(tape[i]);
    }
    rw_tape_destroy(&other);
}

/* A rule may read a parameter that its op does not: y = x, dx = dy * captured. */
static rw_tensor *captured;

static rw_status captures_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status captures_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

static rw_status captures_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_mul(rw_grad_tape(g), rw_grad_upstream(g, 0), captured));
}

HOST_KERNEL_OF(captures_kernel)
static const rw_op_def captures = { .name = "captures", .n_inputs = 1, .n_outputs = 1, .check = captures_check,
                                    .kernel = HOST_KERNEL(captures_kernel), .grad = captures_grad };

Test(leaves, a_parameter_that_only_a_gradient_rule_reads_can_be_used_afterwards)
{
    if (test_device() != RW_DEVICE_CPU) cr_skip_test("the test's own op runs in host memory");
    rw_tensor *p = param("p", 0.5f);
    captured = param("captured", 3);
    const float scale[4] = { 3, 6, 9, -3 }, twice[4] = { 6, 12, 18, -6 };
    for (int step = 0; step < 3; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const y = rw_apply(b.t, &captures, &p, 1, NULL, 0, NULL);
        cr_assert_eq(rw_backward(b.t, total(b.t, y)), RW_OK, "%s", rw_error_message(b.ctx));
        expect_gradient(p, scale, "by the rule");
        /* On the same tape, after the adjoint nodes were removed: the ids of their values belong to others now. */
        rw_zero_grad(b.ctx);
        rw_tensor *const z = rw_add(b.t, rw_scale(b.t, p, 1), rw_mul(b.t, captured, captured));
        cr_assert_eq(rw_backward(b.t, total(b.t, z)), RW_OK, "%s", rw_error_message(b.ctx));
        expect_gradient(captured, twice, "by the tape");
        rw_tape_reset(b.t);
        rw_write(captured, scale, sizeof scale); /* a change between steps is not a change within one */
    }
}

/*
 * Adding to gradients reads them: a leaf of the plan only, whose id on the tape belongs to another structure's leaf.
 */
Test(leaves, a_plan_that_adds_to_gradients_does_not_mistake_another_structures_leaves_for_its_own)
{
    rw_tensor *const p = param("p", 0.5f), *const q = param("q", 0.25f);
    float x[4] = { 1, 2, 3, 4 };
    for (int step = 0; step < 6; step++) {
        rw_tensor *loss = total(b.t, rw_mul(b.t, p, p));
        if (step % 2) {
            rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(4), x, sizeof x);
            loss = total(
                b.t, rw_mul(b.t, rw_mul(b.t, p, in), rw_mul(b.t, q, rw_input(b.t, RW_F32, RW_SHAPE(4), x, sizeof x))));
            rw_item(b.t, loss);
            rw_input_write(in, x, sizeof x);
            cr_assert_eq(rw_backward(b.t, loss), RW_ERR_MODIFIED);
            rw_error_clear(b.ctx);
        } else {
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "step %d: %s", step, rw_error_message(b.ctx));
        }
        rw_tape_reset(b.t);
        rw_init_constant(q, step);
    }
    const float thrice[4] = { 3, 6, 9, -3 };
    expect_gradient(p, thrice, "three steps of 2 p");
}
