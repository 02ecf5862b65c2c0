/*
 * cross_entropy and mse_loss. Cross-entropy keeps two numbers per row in addition to the logits. Its backward writes
 * the gradient over the logits, so there is never a second copy of them; if backward follows forward immediately, both
 * are one kernel. mse_loss keeps only its inputs.
 */
#include "base/public_entry.h"
#include "ops/loss/loss.h"

#include "ops/common/declare_kernels.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/shape.h"
#include "ops/common/util.h"

#include <rewind/compare.h>
#include <rewind/composite.h>
#include <rewind/precision.h>

#include <math.h>

static rw_dtype loss_dtype(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

rw_shape rw_loss_kept_shape(rw_shape target)
{
    target.dim[target.rank++] = RW_KEPT_OF_A_ROW;
    return target;
}

rw_status rw_loss_check_targets(rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout, *const y = call->in[1].layout;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_dtype(call, 1, RW_I32));
    if (x->rank < 1 || y->rank != x->rank - 1 || x->dim[x->rank - 1] < 1)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[..., classes] with 1 class or more for target of rank %d",
                             y->rank);
    rw_shape rows = rw_layout_shape(x);
    rows.rank--;
    return rw_expect_shape(call, 1, NULL, rows);
}

static rw_status check_forward(rw_op_call *call)
{
    RW_CHECK(rw_loss_check_targets(call));
    RW_CHECK(rw_op_output(call, 0, loss_dtype(call->in[0].dtype), RW_SCALAR));
    return rw_op_output(call, 1, loss_dtype(call->in[0].dtype), rw_loss_kept_shape(rw_in_shape(call, 1)));
}

static rw_status check_backward(rw_op_call *call)
{
    RW_CHECK(rw_loss_check_targets(call));
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 12 * (double)call->in[0].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

RW_INTERNAL_OP(cross_entropy_backward, "logits target kept dy")
/* logits, target, values kept per row, gradient of the loss -> gradient of the logits */
RW_DECLARE_KERNELS(rw_cross_entropy_backward)
RW_DECLARE_CUDA_WORKSPACE(rw_cross_entropy_workspace_cuda)
RW_DECLARE_CUDA_WORKSPACE(rw_cross_entropy_factor_workspace_cuda)
RW_DECLARE_CUDA_WORKSPACE(rw_cross_entropy_backward_workspace_cuda)
static const rw_op_def rw_op_cross_entropy_backward = { .name = "cross_entropy_backward",
                                                        .n_inputs = 4,
                                                        .n_outputs = 1,
                                                        .inplace = RW_INPLACE({ 0, 0 }),
                                                        .check = check_backward,
                                                        .kernel = RW_KERNELS(rw_cross_entropy_backward),
                                                        .cost = cost,
                                                        .workspace = RW_WORKSPACES(
                                                            NULL, rw_cross_entropy_backward_workspace_cuda) };

rw_tensor *rw_loss_factors(rw_tape *t, rw_tensor *x, rw_tensor *factor, rw_tensor *counts)
{
    rw_tensor *const empty = rw_eq_scalar(t, rw_max(t, x, RW_AXES(-1), true), -INFINITY);
    return rw_masked_fill(t, factor, rw_logical_and(t, empty, rw_ne_scalar(t, counts, 0)), NAN);
}

/* The fused backward cannot be differentiated; this composition of (softmax - onehot) * dy / n can. It is in the loss's
   type: dy may be a loss scale, and 1 / n may underflow in 16 bits. Logits and dy are selected for the rows that count:
   elsewhere they may be NaN or infinite, and 0 times that would be NaN. */
static rw_tensor *double_backward(rw_grad_call *g, const struct rw_cross_entropy_attrs *a)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const logits = rw_grad_widened(g, rw_grad_input(g, 0));
    rw_tensor *const weights = rw_cross_entropy_weights_at(RW_HERE, t, rw_grad_input(g, 1), rw_tensor_shape(logits),
                                                           rw_tensor_dtype(logits), a);
    rw_tensor *const counts = rw_neg(t, rw_sum(t, weights, RW_AXES(-1), true)); /* 1 / n, or 0 for an ignored row */
    rw_tensor *const x = rw_take_at(RW_HERE, t, logits, counts);
    rw_tensor *const dy = rw_take_at(RW_HERE, t, rw_grad_upstream(g, 0), counts);
    rw_tensor *const rows = rw_loss_factors(t, x, counts, counts);
    return rw_mul(t, rw_add(t, rw_mul(t, rw_softmax(t, x, -1), rows), weights), dy);
}

static rw_status grad(rw_grad_call *g)
{
    const struct rw_cross_entropy_attrs a = *(const struct rw_cross_entropy_attrs *)rw_grad_attrs(g);
    if (rw_grad_is_differentiable(g)) return rw_grad_set_narrowed(g, 0, double_backward(g, &a));
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_output(g, 1), rw_grad_upstream(g, 0) };
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_cross_entropy_backward, in, 4, &a, sizeof a, NULL));
}

/* Both read logits and targets; backward reads the statistics of forward (output 1) and writes over the logits. */
RW_DECLARE_KERNELS(rw_cross_entropy_joint)
static const struct rw_fused_pair with_backward = {
    .second = &rw_op_cross_entropy_backward,
    .kernel = RW_KERNELS(rw_cross_entropy_joint),
    .n_same = 4, .same = { { 0, 0 }, { 1, 1 }, { 2, 3 }, { 4, 0 } },
    .filled = 3,
    .n_in = 3, .in = { { false, 0 }, { false, 1 }, { true, 3 } },
    .n_out = 3, .out = { { false, 2 }, { false, 3 }, { true, 4 } },
};

RW_BUILTIN_OP(cross_entropy, "logits target", "F.cross_entropy")
RW_DECLARE_KERNELS(rw_cross_entropy)
static const rw_op_def rw_op_cross_entropy = { .name = "cross_entropy",
                                               .n_inputs = 2,
                                               .n_outputs = 2,
                                               .check = check_forward,
                                               .kernel = RW_KERNELS(rw_cross_entropy),
                                               .grad = grad,
                                               .cost = cost,
                                               .workspace = RW_WORKSPACES(NULL, rw_cross_entropy_workspace_cuda),
                                               .fused = &with_backward };

rw_tensor *rw_cross_entropy_mean_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target, int64_t ignore)
{
    const struct rw_cross_entropy_attrs a = { .ignore = ignore };
    rw_tensor *const in[] = { logits, target };
    return rw_apply_at(at, t, &rw_op_cross_entropy, in, 2, &a, sizeof a, NULL);
}

rw_tensor *rw_cross_entropy_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target)
{
    RW_ENTER_OP(t);
    return rw_cross_entropy_mean_at(at, t, logits, target, -100);
}

/* -1/n at the target of each counted row, else 0 */

static rw_status check_weights(rw_op_call *call)
{
    const struct rw_cross_entropy_attrs *const a = call->attrs;
    rw_shape shape = rw_in_shape(call, 0);
    shape.dim[shape.rank++] = a->classes;
    return rw_op_output(call, 0, (rw_dtype)a->dtype, shape);
}

RW_DECLARE_KERNELS(rw_cross_entropy_weights)
static const rw_op_def rw_op_cross_entropy_weights = { .name = "cross_entropy_weights",
                                                       .n_inputs = 1,
                                                       .n_outputs = 1,
                                                       .flags = RW_OP_NO_GRADIENT,
                                                       .check = check_weights,
                                                       .kernel = RW_KERNELS(rw_cross_entropy_weights),
                                                       .workspace = RW_WORKSPACES(
                                                           NULL, rw_cross_entropy_factor_workspace_cuda) };

rw_tensor *rw_cross_entropy_weights_at(rw_site at, rw_tape *t, rw_tensor *target, rw_shape logits, rw_dtype dtype,
                                       const struct rw_cross_entropy_attrs *attrs)
{
    struct rw_cross_entropy_attrs a = *attrs;
    a.classes = logits.dim[logits.rank - 1];
    a.dtype = dtype;
    return rw_apply_at(at, t, &rw_op_cross_entropy_weights, &target, 1, &a, sizeof a, NULL);
}

/* mse_loss */

static rw_status check_mse(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    return rw_op_output(call, 0, loss_dtype(call->in[0].dtype), RW_SCALAR);
}

static rw_status check_mse_backward(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost_mse(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = 3 * (double)call->in[0].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

/* One double per block. */
static size_t workspace_mse(const rw_op_call *call)
{
    return (size_t)rw_mse_blocks(call->in[0].layout->numel) * sizeof(double);
}

RW_INTERNAL_OP(mse_loss_backward, "x y dy")
/* x, y, gradient of the loss -> 2 (x - y) dy / n */
RW_DECLARE_KERNELS(rw_mse_loss_backward)
static const rw_op_def rw_op_mse_loss_backward = { .name = "mse_loss_backward",
                                                   .n_inputs = 3,
                                                   .n_outputs = 1,
                                                   .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }),
                                                   .check = check_mse_backward,
                                                   .kernel = RW_KERNELS(rw_mse_loss_backward),
                                                   .cost = cost_mse };

/* The gradient of mse_loss, fused or composed of ops. */
static rw_status grad_mse(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 0), *const y = rw_grad_input(g, 1), *const dy = rw_grad_upstream(g, 0);
    rw_tensor *dx;
    if (rw_grad_is_differentiable(g)) {
        const int64_t n = rw_shape_numel(rw_tensor_shape(x));
        rw_tensor *const d = rw_sub(t, rw_grad_widened(g, x), rw_grad_widened(g, y)); /* in the loss's type */
        dx = rw_grad_narrowed(g, 0, rw_mul(t, rw_scale(t, d, n ? 2 / (double)n : 0), dy));
    } else {
        rw_tensor *const in[] = { x, y, dy };
        dx = rw_apply(rw_grad_tape(g), &rw_op_mse_loss_backward, in, 3, NULL, 0, NULL);
    }
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, dx));
    return rw_grad_wanted(g, 1) ? rw_grad_set(g, 1, rw_neg(t, dx)) : RW_OK;
}

RW_BUILTIN_OP(mse_loss, "x y", "F.mse_loss")
RW_DECLARE_KERNELS(rw_mse_loss)
static const rw_op_def rw_op_mse_loss = { .name = "mse_loss", .n_inputs = 2, .n_outputs = 1, .check = check_mse,
                                          .kernel = RW_KERNELS(rw_mse_loss), .grad = grad_mse, .cost = cost_mse,
                                          .workspace = RW_WORKSPACES(workspace_mse, workspace_mse),
                                          .cast_widest = RW_OP_ALL_INPUTS };

/* Operands of different shapes, which broadcast, are rare: composed of ops. */
rw_tensor *rw_mse_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "mse_loss", "x") || !rw_operand_check(at, t, y, "mse_loss", "y")) return NULL;
    if (!rw_shape_equal(rw_tensor_shape(x), rw_tensor_shape(y))) {
        const rw_composite c = rw_composite_begin(t, "mse_loss");
        x = rw_recipe_cast_f32_at(at, t, x);
        rw_tensor *d = x ? rw_sub_at(at, t, x, y) : NULL;
        if (d && rw_dtype_size(rw_tensor_dtype(d)) == 2) d = rw_cast_at(at, t, d, RW_F32);
        if (d) d = rw_mul_at(at, t, d, d);
        return rw_composite_end(&c, d ? rw_mean_at(at, t, d, RW_ALL_AXES, false) : NULL);
    }
    rw_tensor *const in[] = { x, y };
    return rw_apply_at(at, t, &rw_op_mse_loss, in, 2, NULL, 0, NULL);
}
