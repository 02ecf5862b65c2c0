/*
 * REWIND_VERIFY=1 with calls that a program makes between forward and backward: it detects the mistakes of ops, and
 * refuses no program that runs without it.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

static const float ramp[4] = { 1, 2, 3, 4 };

static struct fixture open_under(const char *verify)
{
    if (verify) setenv("REWIND_VERIFY", verify, 1);
    const struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_VERIFY");
    return b;
}

static rw_tensor *total(rw_tape *t, rw_tensor *x)
{
    return rw_sum(t, x, RW_ALL_AXES, false);
}

/* A step whose rw_assign() reads a parameter's gradient publishes the gradient that it computed. */
Test(calls_before_backward, a_gradient_that_is_assigned)
{
    static const char *const modes[] = { NULL, "1", "digest" };
    for (int i = 0; i < 3; i++) {
        struct fixture b = open_under(modes[i]);
        float got[4];
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_assign(b.t, q, rw_gradient(p)));
        OK(b.ctx, rw_backward(b.t, total(b.t, rw_scale(b.t, p, 3))));
        OK(b.ctx, rw_read(NULL, rw_gradient(p), got, sizeof got));
        cr_expect(got[0] == 3 && got[3] == 3, "mode %d: %g", i, (double)got[0]);
        OK(b.ctx, rw_read(NULL, q, got, sizeof got));
        cr_expect_eq(got[0], 0, "what the gradient was before the step");
        fixture_close(&b);
    }
}

/* A leaf that the tape first uses after the loss was read: the plan of the begun step has one gradient less. */
Test(calls_before_backward, a_leaf_that_is_recorded_after_the_loss_was_read)
{
    for (int which = 0; which < 4; which++) {
        struct fixture b = open_under("1");
        float got[4];
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const r = rw_param(b.ctx, "r", RW_F32, RW_SHAPE(4)),
                         *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_write(p, ramp, sizeof ramp));
        rw_tensor *const loss = total(b.t, rw_mul(b.t, rw_exp(b.t, p), p));
        rw_item(b.t, loss);
        if (which == 0) rw_scale(b.t, r, 2);
        if (which == 1) rw_scale(b.t, q, 2);
        if (which == 2) rw_scale(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp), 2);
        if (which == 3) rw_mul(b.t, rw_mul(b.t, r, r), p);
        OK(b.ctx, rw_backward(b.t, loss));
        OK(b.ctx, rw_read(NULL, rw_gradient(p), got, sizeof got));
        cr_expect_float_eq(got[0], 2 * 2.71828183f, 1e-4);
        fixture_close(&b);
    }
}

/* A verified step that is refused leaves nothing that a later read would use as a value, and adds no gradient. */
Test(calls_before_backward, a_refused_step_and_then_its_loss)
{
    for (int scaled = 0; scaled < 2; scaled++) {
        struct fixture b = open_under("1");
        float x = 0;
        rw_tensor *const s = rw_param(b.ctx, "s", RW_F32, RW_SCALAR),
                         *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4)),
                         *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_init_constant(s, 1));
        rw_tensor *loss = NULL;
        for (int step = 0; step < 2; step++) {
            OK(b.ctx, rw_assign(b.t, q, scaled ? rw_scale(b.t, p, 2) : p));
            loss = rw_add(b.t, s, s);
            rw_backward(b.t, loss);
            rw_error_clear(b.ctx);
        }
        OK(b.ctx, rw_read(b.t, loss, &x, sizeof x));
        cr_expect_eq(x, 2);
        OK(b.ctx, rw_read(NULL, rw_gradient(s), &x, sizeof x));
        cr_expect_eq(x, 2, "of the first step alone: %g", (double)x);
        fixture_close(&b);
    }
}

static int runs;

static rw_status same_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status tally_kernel(const rw_kernel *k)
{
    runs++;
    memcpy(k->out[0].data, k->in[0].data, 4 * sizeof(float));
    return RW_OK;
}

static rw_status pass_gradient(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def tally = { .name = "tally", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_STATEFUL,
                                 .check = same_check, .grad = pass_gradient,
                                 .kernel = { [RW_DEVICE_CPU] = tally_kernel } };

/* The rehearsal of a graph's first launch would execute it twice: refused, before anything is executed. */
Test(calls_before_backward, a_graph_with_an_op_that_has_an_effect)
{
    NEEDS_HOST_MEMORY();
    static const char *const modes[] = { NULL, "1", "digest" };
    for (int i = 0; i < 3; i++) {
        struct fixture b = open_under(modes[i]);
        rw_graph *g = NULL;
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)), *const in[] = { p };
        rw_tensor *const loss = total(b.t, rw_apply(b.t, &tally, in, 1, NULL, 0, NULL));
        runs = 0;
        OK(b.ctx, rw_graph_create(&g, b.t, loss, NULL));
        const rw_status status = rw_graph_launch(g);
        cr_expect_eq(status, i == 1 ? RW_ERR_UNSUPPORTED : RW_OK, "%s", rw_error_message(b.ctx));
        if (i == 1) cr_expect(strstr(rw_error_message(b.ctx), "tally"), "%s", rw_error_message(b.ctx));
        cr_expect_eq(runs, i == 1 ? 0 : 1);
        rw_graph_destroy(&g);
        fixture_close(&b);
    }
}
