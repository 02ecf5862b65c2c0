/* softmax, log_softmax and softmax with a causal mask. Their gradients need only the output. */
#include "ops/reduce/softmax.h"

#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <math.h>

static rw_status check_softmax(rw_op_call *call)
{
    const struct rw_softmax_attrs *const a = call->attrs;
    int axis;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_axis(call, (int)a->axis, call->in[0].layout->rank, &axis));
    if (!isfinite(a->scale)) return rw_unexpected_real(call, "scale", a->scale, "a finite number");
    if (a->causal && call->in[0].layout->rank < 2)
        return rw_unexpected(call, RW_ERR_SHAPE, 0, NULL, "[..., rows, columns]");
    return rw_op_output_like(call, 0, 0);
}

static rw_status check_backward(rw_op_call *call)
{
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 12);
}

#define BACKWARD(NAME)                                                                                        \
    RW_DECLARE_KERNELS(rw_##NAME##_backward)                                                                  \
    static const rw_op_def rw_op_##NAME##_backward = {                                                        \
        .name = #NAME "_backward", .n_inputs = 2, .n_outputs = 1, .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), \
        .check = check_backward, .kernel = RW_KERNELS(rw_##NAME##_backward), .cost = cost                     \
    };

BACKWARD(softmax)
BACKWARD(log_softmax)

static uint32_t axis_set(const struct rw_softmax_attrs *a)
{
    return a->axis < 0 ? 1u << (7 - a->axis) : 1u << a->axis;
}

/* dx = scale * y * (dy - sum(y * dy)); masked scores have y = 0. */
static rw_status grad_softmax(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_softmax_attrs a = *(const struct rw_softmax_attrs *)rw_grad_attrs(g);
    rw_tensor *y = rw_grad_output(g, 0), *dy = rw_grad_upstream(g, 0);
    if (!rw_grad_is_differentiable(g)) {
        rw_tensor *const in[] = { y, dy };
        return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_softmax_backward, in, 2, &a, sizeof a, NULL));
    }
    y = rw_grad_widened(g, y), dy = rw_grad_widened(g, dy);
    rw_tensor *const dot = rw_sum(t, rw_mul(t, y, dy), axis_set(&a), true);
    rw_tensor *const dx = rw_mul(t, y, rw_sub(t, dy, dot));
    return rw_grad_set_narrowed(g, 0, a.scale == 1 ? dx : rw_scale(t, dx, a.scale));
}

/* dx = dy - exp(y) * sum(dy) */
static rw_status grad_log_softmax(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    const struct rw_softmax_attrs a = *(const struct rw_softmax_attrs *)rw_grad_attrs(g);
    rw_tensor *y = rw_grad_output(g, 0), *dy = rw_grad_upstream(g, 0);
    if (!rw_grad_is_differentiable(g)) {
        rw_tensor *const in[] = { y, dy };
        return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &rw_op_log_softmax_backward, in, 2, &a, sizeof a, NULL));
    }
    y = rw_grad_widened(g, y), dy = rw_grad_widened(g, dy);
    return rw_grad_set_narrowed(g, 0, rw_sub(t, dy, rw_mul(t, rw_exp(t, y), rw_sum(t, dy, axis_set(&a), true))));
}

#define SOFTMAX(NAME, KERNEL, GRAD)                                                                                    \
    static const rw_op_def rw_op_##NAME = { .name = #NAME,                                                             \
                                            .n_inputs = 1,                                                             \
                                            .n_outputs = 1,                                                            \
                                            .inplace = RW_INPLACE({ 0, 0 }),                                           \
                                            .check = check_softmax,                                                    \
                                            .kernel = RW_KERNELS(KERNEL),                                              \
                                            .grad = GRAD,                                                              \
                                            .cost = cost,                                                              \
                                            .cast_f32 = RW_OP_INPUT(0) };

RW_BUILTIN_OP(causal_softmax, "scores", "masked_fill, F.softmax")
RW_BUILTIN_OP(log_softmax, "x", "F.log_softmax")
RW_BUILTIN_OP(softmax, "x", "F.softmax")
RW_DECLARE_KERNELS(rw_softmax)
RW_DECLARE_KERNELS(rw_log_softmax)
SOFTMAX(softmax, rw_softmax, grad_softmax)
SOFTMAX(causal_softmax, rw_softmax, grad_softmax)
SOFTMAX(log_softmax, rw_log_softmax, grad_log_softmax)

rw_tensor *rw_softmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis)
{
    RW_ENTER_OP(t);
    const struct rw_softmax_attrs a = { .axis = axis, .scale = 1 };
    return rw_apply_at(at, t, &rw_op_softmax, &x, 1, &a, sizeof a, NULL);
}

rw_tensor *rw_causal_softmax_at(rw_site at, rw_tape *t, rw_tensor *scores, double scale)
{
    RW_ENTER_OP(t);
    const struct rw_softmax_attrs a = { .axis = -1, .scale = rw_constant(scores, scale), .causal = 1 };
    return rw_apply_at(at, t, &rw_op_causal_softmax, &scores, 1, &a, sizeof a, NULL);
}

rw_tensor *rw_log_softmax_at(rw_site at, rw_tape *t, rw_tensor *x, int axis)
{
    RW_ENTER_OP(t);
    const struct rw_softmax_attrs a = { .axis = axis, .scale = 1 };
    return rw_apply_at(at, t, &rw_op_log_softmax, &x, 1, &a, sizeof a, NULL);
}
