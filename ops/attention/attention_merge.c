/*
 * attention_merge: the attention over two sets of keys, from the attention over each set and their log-sum-exps.
 * Backward recomputes the weights; only the operands are kept.
 */
#include "base/public_entry.h"
#include "ops/attention/attention.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"

#include <rewind/attention.h>

/* Inputs a, b, a_lse, b_lse; in backward also dy and the gradient of the log-sum-exp. */
static rw_status check_operands(rw_op_call *call)
{
    const rw_shape s = rw_in_shape(call, 0);
    rw_shape rows = s;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    for (int i = 2; i < 4; i++) RW_CHECK(rw_want_dtype(call, i, rw_att_sum_type(call->in[0].dtype)));
    if (s.rank < 1) return rw_unexpected(call, RW_ERR_SHAPE, 0, "a", "[..., d]");
    RW_CHECK(rw_expect_shape_of(call, 1, "b", 0, "a"));
    rows.rank--;
    for (int i = 2; i < 4; i++) RW_CHECK(rw_expect_shape(call, i, i == 2 ? "a_lse" : "b_lse", rows));
    return RW_OK;
}

static rw_status check(rw_op_call *call)
{
    RW_CHECK(check_operands(call));
    RW_CHECK(rw_op_output_like(call, 0, 0));
    return rw_op_output_like(call, 1, 2);
}

static rw_status check_backward(rw_op_call *call)
{
    RW_CHECK(check_operands(call));
    for (int i = 0; i < 4; i++) RW_CHECK(rw_op_output_like(call, i, i));
    return RW_OK;
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 4);
}

RW_INTERNAL_OP(attention_merge_backward, "a b a_lse b_lse dy dlse")
RW_DECLARE_KERNELS(rw_attention_merge_backward)
static const rw_op_def rw_op_attention_merge_backward = { .name = "attention_merge_backward",
                                                          .n_inputs = RW_OP_VARIADIC, .n_outputs = 4,
                                                          .strided = RW_OP_ALL_INPUTS, .check = check_backward,
                                                          .kernel = RW_KERNELS(rw_attention_merge_backward),
                                                          .cost = cost };

/* ---- gradients composed of ops that can be differentiated again ---- */

/* exp(lse of one set - merged lse), as a column; 0 for rows that see no key in either set. */
static rw_tensor *weight(rw_grad_call *g, int input)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const lse = rw_grad_output(g, 1);
    rw_shape column = rw_tensor_shape(lse);
    rw_tensor *const low = rw_full_at(RW_HERE, t, rw_tensor_dtype(lse), column, ATT_LOWEST);
    rw_tensor *const w = rw_exp(t, rw_sub(t, rw_grad_input(g, input), rw_maximum(t, lse, low)));
    column.dim[column.rank++] = 1;
    return rw_reshape(t, w, column);
}

/* Composes the gradients of all four inputs from ops. */
static rw_status grad_again(rw_grad_call *g, rw_tensor *dy, rw_tensor *dlse)
{
    rw_tape *const t = rw_grad_tape(g);
    const rw_dtype dtype = rw_tensor_dtype(rw_grad_input(g, 0)), wide = rw_att_sum_type(dtype);
    const rw_shape rows = rw_tensor_shape(rw_grad_input(g, 2));
    rw_tensor *const up = rw_cast(t, dy, wide);
    rw_tensor *const w[] = { weight(g, 2), weight(g, 3) };
    rw_tensor *dot[2];
    for (int i = 0; i < 2; i++) {
        rw_tensor *const x = rw_take_at(RW_HERE, t, rw_cast(t, rw_grad_input(g, i), wide), w[i]); /* as the kernels */
        dot[i] = rw_sum(t, rw_mul(t, up, x), RW_AXES(-1), true);
    }
    for (int i = 0; i < 2; i++) {
        if (rw_grad_wanted(g, i)) RW_CHECK(rw_grad_set(g, i, rw_cast(t, rw_mul(t, up, w[i]), dtype)));
        if (!rw_grad_wanted(g, 2 + i)) continue;
        rw_tensor *flow = rw_reshape(t, rw_mul(t, w[1 - i], rw_sub(t, dot[i], dot[1 - i])), rows);
        if (dlse) flow = rw_add(t, flow, dlse);
        RW_CHECK(rw_grad_set(g, 2 + i, rw_mul(t, rw_reshape(t, w[i], rows), flow)));
    }
    return RW_OK;
}

static rw_status grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const a = rw_grad_input(g, 0), *const dlse = rw_grad_upstream(g, 1);
    rw_tensor *in[6], *out[4] = { NULL, NULL, NULL, NULL }, *dy = rw_grad_upstream(g, 0);
    if (!dy) dy = rw_full_at(RW_HERE, t, rw_tensor_dtype(a), rw_tensor_shape(a), 0);
    if (rw_grad_is_differentiable(g)) return grad_again(g, dy, dlse);
    for (int i = 0; i < 4; i++) in[i] = rw_grad_input(g, i);
    in[4] = dy;
    in[5] = dlse;
    rw_apply(t, &rw_op_attention_merge_backward, in, dlse ? 6 : 5, NULL, 0, out);
    for (int i = 0; i < 4; i++)
        if (rw_grad_wanted(g, i)) RW_CHECK(rw_grad_set(g, i, out[i]));
    return RW_OK;
}

RW_BUILTIN_OP(attention_merge, "a b a_lse b_lse", "-")
RW_DECLARE_KERNELS(rw_attention_merge)
static const rw_op_def rw_op_attention_merge = { .name = "attention_merge", .n_inputs = 4, .n_outputs = 2,
                                                 .strided = RW_OP_ALL_INPUTS, .check = check,
                                                 .kernel = RW_KERNELS(rw_attention_merge), .grad = grad,
                                                 .cost = cost };

rw_tensor *rw_attention_merge_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *a_lse, rw_tensor *b,
                                 rw_tensor *b_lse, rw_tensor **ret_lse)
{
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { a, b, a_lse, b_lse };
    rw_tensor *out[2] = { NULL, NULL };
    rw_tensor *const y = rw_apply_at(at, t, &rw_op_attention_merge, in, 4, NULL, 0, out);
    if (ret_lse) *ret_lse = y ? out[1] : NULL;
    return y;
}
