/* The verifier and the memory of the arena: an op that reads a buffer after its last use is named, and the measured
   peak is the bytes that were written. */
#include "support/support.h"

#include <rewind/ops.h>

#include <criterion/criterion.h>
#include <string.h>

/* y = x, which records the address of x; then y = x + the current first element at that address. */
static const float *remembered;

static rw_status grab_kernel(const rw_kernel *k)
{
    remembered = k->in[0].data;
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

static rw_status peek_kernel(const rw_kernel *k)
{
    for (int64_t i = 0; i < k->out[0].layout->numel; i++)
        ((float *)k->out[0].data)[i] = ((const float *)k->in[0].data)[i] + *remembered;
    return RW_OK;
}

static rw_status pass_on(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def grab_op = { .name = "grab", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                   .kernel = { [RW_DEVICE_CPU] = grab_kernel }, .grad = pass_on };
static const rw_op_def peek_op = { .name = "peek", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                   .kernel = { [RW_DEVICE_CPU] = peek_kernel }, .grad = pass_on };

static rw_tensor *peeking_loss(const struct fixture *b)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(200)), *x;
    rw_init_constant(p, 0.5);
    ckpt_begin(b->t, "r");
    x = rw_apply(b->t, &grab_op, (rw_tensor *[]){ rw_scale(b->t, p, 2) }, 1, NULL, 0, NULL);
    x = rw_tanh(b->t, rw_apply(b->t, &peek_op, &x, 1, NULL, 0, NULL));
    ckpt_end(b->t);
    return rw_sum(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
}

/* Both executions would read the same there, if the dead memory were not overwritten with another pattern. */
Test(arena_memory, an_op_that_reads_a_dead_buffer_is_named)
{
    NEEDS_HOST_MEMORY();
#ifdef __SANITIZE_ADDRESS__
    cr_skip_test("what AddressSanitizer stops by itself");
#endif
    for (int by_call = 0; by_call < 2; by_call++) {
        if (!by_call) setenv("REWIND_VERIFY", "1", 1);
        struct fixture b = fixture_open(5, 1);
        unsetenv("REWIND_VERIFY");
        ckpt_report r = { 0 };
        rw_tensor *const loss = peeking_loss(&b);
        const rw_status status = by_call ? ckpt_verify(b.t, loss, &r) : rw_backward(b.t, loss);
        cr_assert_eq(status, RW_ERR_MISMATCH, "%d: %s", by_call, rw_error_message(b.ctx));
        cr_assert(by_call ? !strcmp(r.op, "peek") : strstr(rw_error_message(b.ctx), "peek") != NULL, "%s%s", r.op,
                  rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* The plan states a wrong arena size: the bytes actually written show the right one. */
Test(arena_memory, the_measured_peak_is_what_was_written_to)
{
    setenv("REWIND_VERIFY", "1", 1);
    struct fixture b = fixture_open(5, 1);
    unsetenv("REWIND_VERIFY");
    rw_memory m;
    ckpt_set_policy(b.t, "full");
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(100, 70));
    rw_init_normal(p, 0, 1);
    for (int step = 0; step < 2; step++) {
        rw_tensor *x = p;
        for (int l = 0; l < 3; l++) {
            ckpt_begin(b.t, "r");
            x = rw_tanh(b.t, rw_mul(b.t, rw_gelu(b.t, x), p));
            ckpt_end(b.t);
        }
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false)), RW_OK, "%s",
                     rw_error_message(b.ctx));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_assert_eq(m.measured_peak, m.predicted_peak);
        cr_assert_gt(m.measured_peak, 100 * 70 * 4);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}
