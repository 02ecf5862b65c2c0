/* Element-wise ops. The internal ones (selections, backward ops) are for gradient rules. C11 and C++17. */
#ifndef RW_OPS_POINTWISE_H
#define RW_OPS_POINTWISE_H

#include <rewind/op.h>
#include <rewind/pointwise.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Attributes of every op on one input, and of the backward op of one that has a constant; 0 if it needs none. */
struct rw_pointwise_attrs {
    double constant;
};

/* 1 where a >= b, else 0; has no gradient. */
rw_tensor *rw_at_least_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);

/* x where choice is not 0, else 0; and the opposite. choice gets no gradient. */
rw_tensor *rw_take_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *choice);
rw_tensor *rw_leave_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *choice);

/* For rules: dy where relu's result y is above 0. One op, or several that can be differentiated again. The functions
   below choose in the same way. */
rw_tensor *rw_relu_slope(rw_grad_call *g, rw_tensor *y, rw_tensor *dy);

/* dy times the slope of silu at x, or of gelu's tanh form. */
rw_tensor *rw_silu_slope(rw_grad_call *g, rw_tensor *x, rw_tensor *dy);
rw_tensor *rw_gelu_tanh_slope(rw_grad_call *g, rw_tensor *x, rw_tensor *dy);

/*
 * The same, and the sums of its columns, over all axes but the last, added to rw_grad_wide_addend(g, bias), for
 * rw_grad_set_sum(g, bias, *ret_sum). *ret_sum is NULL if the sums were not computed.
 */
rw_tensor *rw_gelu_tanh_slope_sum(rw_grad_call *g, int bias, rw_tensor *z, rw_tensor *dy, rw_tensor **ret_sum);

/* Checks that inputs 0 to n - 1, gate, up and others of their shape, are floating-point tensors of one type and
   shape. */
rw_status rw_swiglu_want(rw_op_call *call, int n);

/* dy times the slopes of silu(gate) * up by gate and by up. */
void rw_swiglu_slopes(rw_grad_call *g, rw_tensor *gate, rw_tensor *up, rw_tensor *dy, rw_tensor *ret[2]);

/* Shared by the definitions of ops on one tensor, and of their backward ops f(kept, dy). */
rw_status rw_pointwise_check(rw_op_call *call);
rw_status rw_pointwise_check_backward(rw_op_call *call);
rw_op_cost rw_pointwise_cost(const rw_op_call *call);

/* y = op(x) without attributes, for rules of other families as well. */
rw_tensor *rw_pointwise_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *a, rw_tensor *b);

#ifdef __cplusplus
}
#endif

#endif
