/* swiglu: silu(gate) * up in one pass, and both gradients in one pass. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"

rw_status rw_swiglu_want(rw_op_call *call, int n)
{
    RW_CHECK(rw_want_float(call, 0));
    for (int i = 1; i < n; i++) {
        RW_CHECK(rw_want_same_dtype(call, 0, i));
        RW_CHECK(rw_expect_shape_of(call, i, NULL, 0, NULL));
    }
    return RW_OK;
}

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_swiglu_want(call, call->n_inputs));
    for (int i = 0; i < call->n_outputs; i++) RW_CHECK(rw_op_output_like(call, i, 0));
    return RW_OK;
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 10);
}

RW_INTERNAL_OP(swiglu_backward, "gate up dy")
RW_DECLARE_KERNELS(rw_swiglu_backward)
static const rw_op_def rw_op_swiglu_backward = { .name = "swiglu_backward",
                                                 .n_inputs = 3,
                                                 .n_outputs = 2,
                                                 .strided = RW_OP_ALL_INPUTS,
                                                 .inplace = RW_INPLACE({ 0, 0 }, { 0, 2 }),
                                                 .check = check,
                                                 .kernel = RW_KERNELS(rw_swiglu_backward),
                                                 .cost = cost };

/* The slopes of silu(gate) * up, composed of ops that can be differentiated again. */
static void recompute_slopes(rw_grad_call *g, rw_tensor *gate, rw_tensor *up, rw_tensor *dy, rw_tensor *ret[2])
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_dtype dtype = rw_tensor_dtype(gate);
    gate = rw_grad_widened(g, gate), up = rw_grad_widened(g, up), dy = rw_grad_widened(g, dy);
    rw_tensor *const s = rw_sigmoid(t, gate);
    rw_tensor *const slope = rw_mul(t, s, rw_add_scalar(t, rw_mul(t, gate, rw_add_scalar(t, rw_neg(t, s), 1)), 1));
    ret[0] = rw_cast(t, rw_mul(t, rw_mul(t, dy, up), slope), dtype);
    ret[1] = rw_cast(t, rw_mul(t, dy, rw_mul(t, gate, s)), dtype);
}

void rw_swiglu_slopes(rw_grad_call *g, rw_tensor *gate, rw_tensor *up, rw_tensor *dy, rw_tensor *ret[2])
{
    rw_tensor *const in[] = { gate, up, dy };
    ret[0] = ret[1] = NULL;
    if (rw_grad_is_differentiable(g)) recompute_slopes(g, gate, up, dy, ret);
    else rw_apply(rw_grad_tape(g), &rw_op_swiglu_backward, in, 3, NULL, 0, ret);
}

static rw_status grad(rw_grad_call *g)
{
    rw_tensor *dx[2];
    rw_swiglu_slopes(g, rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_upstream(g, 0), dx);
    RW_CHECK(rw_grad_set(g, 0, dx[0]));
    return rw_grad_set(g, 1, dx[1]);
}

RW_BUILTIN_OP(swiglu, "gate up", "F.silu, torch.mul")
RW_DECLARE_KERNELS(rw_swiglu)
static const rw_op_def rw_op_swiglu = { .name = "swiglu", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                        .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), .check = check,
                                        .kernel = RW_KERNELS(rw_swiglu), .grad = grad, .cost = cost,
                                        .cast_widest = RW_OP_ALL_INPUTS };

rw_tensor *rw_swiglu_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up)
{
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { gate, up };
    return rw_apply_at(at, t, &rw_op_swiglu, in, 2, NULL, 0, NULL);
}
