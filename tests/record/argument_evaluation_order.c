/* REWIND_DEBUG=order: a call with two arguments that record random ops is refused, because C does not define their
   order; calls with a defined order are not. */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct fixture open_with(const char *debug)
{
    setenv("REWIND_DEBUG", debug, 1);
    struct fixture b = fixture_open(3, 1);
    unsetenv("REWIND_DEBUG");
    return b;
}

static rw_tensor *input(const struct fixture *b)
{
    return rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(4, 4), NULL, 0));
}

/* The call was refused for its order, and left only its arguments on the tape. */
static void expect_refused(const struct fixture *b, const rw_tensor *y, size_t nodes, const char *what)
{
    cr_expect_null(y, "%s", what);
    cr_expect_eq(rw_error_status(b->ctx), RW_ERR_ARGUMENT, "%s", what);
    const char *const m = rw_error_message(b->ctx);
    cr_expect(strstr(m, "argument_evaluation_order.c:") && strstr(m, "dropout"), "%s: %s", what, m);
    cr_expect_eq(rw_tape_nodes(b->t), nodes, "%s", what);
    rw_error_clear(b->ctx);
    rw_tape_reset(b->t);
}

Test(argument_evaluation_order, of_two_random_arguments_is_refused)
{
    struct fixture b = open_with("other,order");
    rw_tape *const t = b.t;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 4));
    rw_tensor *x = input(&b);
    expect_refused(&b, rw_sub(t, rw_dropout(t, x, 0.5), rw_dropout(t, x, 0.5)), 2, "two masks");
    x = input(&b);
    expect_refused(&b, rw_add(t, rw_dropout(t, x, 0.5), rw_randn(t, RW_F32, RW_SHAPE(4, 4))), 2, "a mask and noise");
    x = input(&b);
    expect_refused(&b,
                   rw_mul(t, rw_relu(t, rw_linear(t, rw_dropout(t, x, 0.5), w, RW_NONE)),
                          rw_tanh(t, rw_dropout(t, x, 0.5))),
                   5, "after other ops, over several lines");
    x = input(&b);
    expect_refused(&b, rw_dropout_add(t, rw_dropout(t, x, 0.5), rw_dropout(t, x, 0.5), 0.5), 2, "a random op of them");
    fixture_close(&b);
}

static rw_tensor *residual(rw_tape *t, rw_tensor *x, rw_tensor *w)
{
    for (int l = 0; l < 3; l++) x = rw_add(t, x, rw_dropout(t, rw_linear(t, x, w, RW_NONE), 0.5));
    return x;
}

Test(argument_evaluation_order, of_statements_is_theirs)
{
    struct fixture b = open_with("order");
    rw_tape *const t = b.t;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 4)), *const x = input(&b);
    rw_tensor *const first = rw_dropout(t, x, 0.5);
    rw_tensor *const second = rw_dropout(t, x, 0.5);
    cr_assert_not_null(rw_sub(t, first, second), "%s", rw_error_message(b.ctx));
    rw_tensor *const one = rw_dropout(t, rw_dropout(t, x, 0.5), 0.5);
    cr_assert_not_null(rw_mul(t, one, one), "one after the other");
    rw_tensor *const y = residual(t, x, w);
    cr_assert_not_null(y, "a loop over one line: %s", rw_error_message(b.ctx));
    const rw_tensor *const again = rw_mul(t, rw_dropout(t, y, 0.5), x);
    cr_assert_not_null(again, "one of two");
    rw_tensor *dx = NULL;
    cr_assert_eq(rw_grad(t, rw_sum(t, y, RW_ALL_AXES, false), (rw_tensor *[]){ x }, 1, &dx), RW_OK, "%s",
                 rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(t, rw_sum(t, rw_mul(t, dx, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    fixture_close(&b);
}

/* Values of the last step with the same ids do not count. */
Test(argument_evaluation_order, is_forgotten_with_its_step)
{
    struct fixture b = open_with("order");
    rw_tape *const t = b.t;
    for (int step = 0; step < 3; step++) {
        rw_tensor *const x = step == 1 ? input(&b) : rw_randn(t, RW_F32, RW_SHAPE(4, 4));
        rw_tensor *const z = step == 1 ? input(&b) : rw_randn(t, RW_F32, RW_SHAPE(4, 4));
        cr_assert_not_null(rw_add(t, x, z), "%s", rw_error_message(b.ctx));
        rw_tape_reset(t);
    }
    fixture_close(&b);
}

Test(argument_evaluation_order, is_not_looked_at_otherwise)
{
    static const char *const values[] = { "", "0", "orders", "reorder" };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct fixture b = open_with(values[i]);
        rw_tensor *const x = input(&b);
        cr_assert_not_null(rw_sub(b.t, rw_dropout(b.t, x, 0.5), rw_dropout(b.t, x, 0.5)), "\"%s\"", values[i]);
        fixture_close(&b);
    }
}
