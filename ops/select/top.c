/* argmax, argmin, topk: places of the largest elements. The gradient of topk's values goes back to their places. */
#include "base/public_entry.h"
#include "ops/select/top.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/select/gather.h"

#include <rewind/composite.h>
#include <rewind/gather.h>

static rw_op_cost cost(const rw_op_call *call)
{
    return (rw_op_cost){ .flops = (double)call->in[0].layout->numel, .bytes = rw_op_operand_bytes(call) };
}

/* argmax, argmin */

/* Checks x and the axis, and describes the places. */
static rw_status check_place(rw_op_call *call)
{
    const struct rw_place_attrs *const a = call->attrs;
    rw_shape s = rw_in_shape(call, 0);
    int axis;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_axis(call, (int)a->axis, s.rank, &axis));
    if (s.dim[axis] < 1 || s.dim[axis] > INT32_MAX)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "1 to 2^31 - 1 elements along axis %d", axis);
    if (a->keep) {
        s.dim[axis] = 1;
    } else {
        for (int i = axis; i < s.rank - 1; i++) s.dim[i] = s.dim[i + 1];
        s.rank--;
    }
    return rw_op_output(call, 0, RW_I32, s);
}

#define PLACE(NAME)                                                                                                  \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                    \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 1, .n_outputs = 1,                            \
                                            .flags = RW_OP_NO_GRADIENT, .check = check_place,                        \
                                            .kernel = RW_KERNELS(rw_##NAME), .cost = cost };                         \
    rw_tensor *rw_##NAME##_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, bool keep)                             \
    {                                                                                                                \
        RW_ENTER_OP(t);                                                                                              \
        const struct rw_place_attrs a = { axis, keep };                                                              \
        return rw_apply_at(at, t, &rw_op_##NAME, &x, 1, &a, sizeof a, NULL);                                         \
    }

RW_BUILTIN_OP(argmax, "x", "torch.argmax")
RW_BUILTIN_OP(argmin, "x", "torch.argmin")
PLACE(argmax)
PLACE(argmin)

/* topk, along the last axis */

static rw_status check_topk(rw_op_call *call)
{
    const struct rw_topk_attrs *const a = call->attrs;
    rw_shape s = rw_in_shape(call, 0);
    int axis;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_axis(call, -1, s.rank, &axis));
    if (s.dim[axis] > INT32_MAX)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "at most 2^31 - 1 elements along the last axis");
    if (a->k < 0 || a->k > s.dim[axis])
        return rw_unexpected_int(call, RW_ERR_SHAPE, "k", a->k, "0 to %lld, x's last extent", (long long)s.dim[axis]);
    s.dim[axis] = a->k;
    RW_CHECK(rw_op_output(call, 0, call->in[0].dtype, s));
    return rw_op_output(call, 1, RW_I32, s);
}

static rw_status grad_topk(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const x = rw_grad_input(g, 0);
    if (!dy) return RW_OK;
    return rw_grad_set(g, 0, rw_gather_back(rw_grad_tape(g), dy, rw_grad_output(g, 1), rw_tensor_shape(x),
                                            rw_tensor_shape(x).rank - 1));
}

RW_BUILTIN_OP(topk, "x", "torch.topk")
RW_DECLARE_KERNELS(rw_topk)
static const rw_op_def rw_op_topk = { .name = "topk", .n_inputs = 1, .n_outputs = 2, .check = check_topk,
                                      .kernel = RW_KERNELS(rw_topk), .grad = grad_topk, .cost = cost };

/* Records topk along any axis; see the public header for the contract. */
rw_status rw_topk_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t k, int axis, rw_tensor **ret_values,
                     rw_tensor **ret_indexes)
{
    RW_ENTER_RECORDING(t, RW_ERR_ARGUMENT);
    const struct rw_topk_attrs a = { k };
    rw_tensor *out[2] = { NULL, NULL };
    if (ret_values) *ret_values = NULL;
    if (ret_indexes) *ret_indexes = NULL;
    if (!rw_operand_check(at, t, x, "topk", "x")) return t ? rw_error_status(rw_tape_context(t)) : RW_ERR_ARGUMENT;
    if (!ret_values || !ret_indexes)
        return rw_refuse_at(at, t, RW_ERR_ARGUMENT, "topk: %s is NULL; expected where the result is stored",
                            ret_values ? "ret_indexes" : "ret_values");
    const int rank = rw_tensor_shape(x).rank;
    const bool last = axis == -1 || axis == rank - 1 || !rank;
    const rw_composite c = rw_composite_begin(t, "topk");
    rw_tensor *const rows = last ? x : rw_transpose_at(at, t, x, axis, -1);
    if (rows && rw_apply_at(at, t, &rw_op_topk, &rows, 1, &a, sizeof a, out))
        for (int i = 0; i < 2 && !last && out[0]; i++) {
            out[i] = rw_transpose_at(at, t, out[i], axis, -1);
            if (!out[i]) out[0] = NULL;
        }
    if (!rw_composite_end(&c, out[0])) return rw_error_status(rw_tape_context(t));
    *ret_values = out[0];
    *ret_indexes = out[1];
    return RW_OK;
}
