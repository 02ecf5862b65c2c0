/*
 * Element-wise functions of one tensor. A rule keeps the output if the derivative follows from it (exp, tanh, sigmoid,
 * sqrt, relu), else the input. The fused backward ops are first-order; gradients of gradients are composed of ops.
 */
#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"
#include "ops/shape/shape.h"

#include <math.h>

rw_status rw_pointwise_check(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    return rw_op_output_like(call, 0, 0);
}

rw_status rw_pointwise_check_backward(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_expect_dtype_of(call, 1, "dy", 0, NULL));
    RW_CHECK(rw_expect_shape_of(call, 1, "dy", 0, NULL));
    return rw_op_output_like(call, 0, 1);
}

rw_op_cost rw_pointwise_cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 8);
}

static rw_tensor *apply(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *x, double value)
{
    const struct rw_pointwise_attrs attrs = { value };
    return rw_apply_in_order_at(at, t, op, &x, 1, &attrs, sizeof attrs);
}

rw_tensor *rw_pointwise_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *a, rw_tensor *b)
{
    rw_tensor *const in[] = { a, b };
    return rw_apply_at(at, t, op, in, 2, NULL, 0, NULL);
}

/* Backward ops: f(kept, dy) */
#define BACKWARD(NAME)                                                                         \
    RW_DECLARE_KERNELS(rw_##NAME##_backward)                                                   \
    static const rw_op_def rw_op_##NAME##_backward = {                                         \
        .name = #NAME "_backward", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS, \
        .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), .check = rw_pointwise_check_backward,       \
        .kernel = RW_KERNELS(rw_##NAME##_backward), .cost = rw_pointwise_cost                  \
    };

BACKWARD(tanh)
BACKWARD(sigmoid)
BACKWARD(relu)
BACKWARD(sqrt)
BACKWARD(pow_scalar)
BACKWARD(silu)
BACKWARD(gelu)
BACKWARD(gelu_tanh)

/* dy times an expression in x (the input), y (the output) and t (the tape). */
#define RULE(NAME, EXPR)                                                                                               \
    static rw_status grad_##NAME(rw_grad_call *g)                                                                      \
    {                                                                                                                  \
        rw_tape *const t = rw_grad_tape(g);                                                                            \
        rw_tensor *const dy = rw_grad_upstream(g, 0), *const x = rw_grad_input(g, 0), *const y = rw_grad_output(g, 0); \
        (void)t, (void)x, (void)y;                                                                                     \
        return rw_grad_set(g, 0, EXPR);                                                                                \
    }

/* A backward op, with the constant of its op. */
static rw_tensor *fused(rw_grad_call *g, const rw_op_def *op, rw_tensor *k, rw_tensor *dy)
{
    rw_tensor *const in[] = { k, dy };
    return rw_apply(rw_grad_tape(g), op, in, 2, rw_grad_attrs(g), sizeof(struct rw_pointwise_attrs), NULL);
}

/* The fused op; or dy times an expression in k, the kept value, in the type in which the fused op computes. */
#define FUSED_RULE(NAME, KEPT, EXPR)                                                                                   \
    static rw_status grad_##NAME(rw_grad_call *g)                                                                      \
    {                                                                                                                  \
        rw_tape *const t = rw_grad_tape(g);                                                                            \
        rw_tensor *dy = rw_grad_upstream(g, 0), *k = KEPT;                                                             \
        if (!rw_grad_is_differentiable(g)) return rw_grad_set(g, 0, fused(g, &rw_op_##NAME##_backward, k, dy));        \
        dy = rw_grad_widened(g, dy), k = rw_grad_widened(g, k);                                                        \
        return rw_grad_set_narrowed(g, 0, EXPR);                                                                       \
    }

/* Without a fused op: dy times an expression in x, whose powers are not rounded to 16 bits before they are used. */
#define WIDE_RULE(NAME, EXPR)                                                                                          \
    static rw_status grad_##NAME(rw_grad_call *g)                                                                      \
    {                                                                                                                  \
        rw_tape *const t = rw_grad_tape(g);                                                                            \
        rw_tensor *const dy = rw_grad_widened(g, rw_grad_upstream(g, 0));                                              \
        rw_tensor *const x = rw_grad_widened(g, rw_grad_input(g, 0));                                                  \
        return rw_grad_set_narrowed(g, 0, EXPR);                                                                       \
    }

static rw_tensor *one_minus(rw_tape *t, rw_tensor *x)
{
    return rw_add_scalar(t, rw_neg(t, x), 1);
}

static rw_tensor *silu_slope(rw_tape *t, rw_tensor *x)
{
    rw_tensor *const s = rw_sigmoid(t, x);
    return rw_mul(t, s, rw_add_scalar(t, rw_mul(t, x, one_minus(t, s)), 1));
}

static rw_tensor *gelu_slope(rw_tape *t, rw_tensor *x)
{
    rw_tensor *const cdf = rw_scale(t, rw_add_scalar(t, rw_erf(t, rw_scale(t, x, sqrt(0.5))), 1), 0.5);
    rw_tensor *const pdf = rw_scale(t, rw_exp(t, rw_scale(t, rw_mul(t, x, x), -0.5)),
                                    1 / sqrt(2 * 3.14159265358979323846));
    return rw_add(t, cdf, rw_mul(t, x, pdf));
}

static rw_tensor *gelu_tanh_slope(rw_tape *t, rw_tensor *x)
{
    const double c = sqrt(2 / 3.14159265358979323846);
    rw_tensor *const xx = rw_mul(t, x, x);
    rw_tensor *const inner = rw_mul(t, x, rw_add_scalar(t, rw_scale(t, xx, 0.044715 * c), c));
    rw_tensor *const th = rw_tanh(t, inner);
    rw_tensor *const slope = rw_mul(t, one_minus(t, rw_mul(t, th, th)),
                                    rw_add_scalar(t, rw_scale(t, xx, 0.134145 * c), c));
    return rw_scale(t, rw_add(t, rw_add_scalar(t, th, 1), rw_mul(t, x, slope)), 0.5);
}

/* A constant (exponent 0) has slope 0 at 0, too, where 0 times a negative power would be NaN. */
static rw_tensor *pow_slope(rw_tape *t, rw_tensor *x, double exponent)
{
    if (exponent == 0) return rw_full_at(RW_HERE, t, rw_tensor_dtype(x), rw_tensor_shape(x), 0);
    return rw_scale(t, rw_pow_scalar(t, x, exponent - 1), exponent);
}

static double constant_of(const rw_grad_call *g)
{
    return ((const struct rw_pointwise_attrs *)rw_grad_attrs(g))->constant;
}

RULE(scale, rw_scale(t, dy, constant_of(g)))
RULE(add_scalar, dy)
RULE(neg, rw_neg(t, dy))
FUSED_RULE(pow_scalar, rw_grad_input(g, 0), rw_mul(t, dy, pow_slope(t, k, constant_of(g))))
RULE(abs, rw_mul(t, dy, rw_sign_at(RW_HERE, t, x)))
RULE(exp, rw_mul(t, dy, y))
RULE(log, rw_div(t, dy, x))
RULE(log1p, rw_div(t, dy, rw_add_scalar(t, x, 1)))
FUSED_RULE(sqrt, rw_grad_output(g, 0), rw_div(t, rw_scale(t, dy, 0.5), k))
FUSED_RULE(tanh, rw_grad_output(g, 0), rw_mul(t, dy, one_minus(t, rw_mul(t, k, k))))
WIDE_RULE(erf, rw_mul(t, dy, rw_scale(t, rw_exp(t, rw_neg(t, rw_mul(t, x, x))), 2 / sqrt(3.14159265358979323846))))
RULE(sin, rw_mul(t, dy, rw_cos(t, x)))
RULE(cos, rw_neg(t, rw_mul(t, dy, rw_sin(t, x))))
RULE(softplus, rw_mul(t, dy, rw_sigmoid(t, x)))
FUSED_RULE(sigmoid, rw_grad_output(g, 0), rw_mul(t, dy, rw_mul(t, k, one_minus(t, k))))
RULE(relu, rw_relu_slope(g, y, dy))
RULE(silu, rw_silu_slope(g, x, dy))
FUSED_RULE(gelu, rw_grad_input(g, 0), rw_mul(t, dy, gelu_slope(t, k)))

rw_tensor *rw_relu_slope(rw_grad_call *g, rw_tensor *y, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    if (!rw_grad_is_differentiable(g)) return rw_pointwise_at(RW_HERE, t, &rw_op_relu_backward, y, dy);
    return rw_take_at(RW_HERE, t, dy, y);
}

/* The fused op; or dy times the result of slope(), in the type in which the fused op computes. */
static rw_tensor *times_slope(rw_grad_call *g, const rw_op_def *fused, rw_tensor *(*slope)(rw_tape *t, rw_tensor *x),
                              rw_tensor *x, rw_tensor *dy)
{
    rw_tape *const t = rw_grad_tape(g);
    if (!rw_grad_is_differentiable(g)) return rw_pointwise_at(RW_HERE, t, fused, x, dy);
    rw_tensor *const times = slope(t, rw_grad_widened(g, x)), *const dx = rw_mul(t, rw_grad_widened(g, dy), times);
    return dx ? rw_cast(t, dx, rw_tensor_dtype(x)) : NULL;
}

rw_tensor *rw_silu_slope(rw_grad_call *g, rw_tensor *x, rw_tensor *dy)
{
    return times_slope(g, &rw_op_silu_backward, silu_slope, x, dy);
}

rw_tensor *rw_gelu_tanh_slope(rw_grad_call *g, rw_tensor *x, rw_tensor *dy)
{
    return times_slope(g, &rw_op_gelu_tanh_backward, gelu_tanh_slope, x, dy);
}

RULE(gelu_tanh, rw_gelu_tanh_slope(g, x, dy))

#define UNARY_OP(NAME, GRAD, FLAGS, RAISED)                                                             \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                       \
    static const rw_op_def rw_op_##NAME = {                                                             \
        .name = #NAME, .n_inputs = 1, .n_outputs = 1, .flags = FLAGS, .strided = RW_OP_ALL_INPUTS,      \
        .inplace = RW_INPLACE({ 0, 0 }), .check = rw_pointwise_check, .kernel = RW_KERNELS(rw_##NAME),  \
        .grad = GRAD, .cost = rw_pointwise_cost, .cast_f32 = RAISED                                       \
    };

#define UNARY(NAME, RAISED)                                         \
    UNARY_OP(NAME, grad_##NAME, 0, RAISED)                          \
    rw_tensor *rw_##NAME##_at(rw_site at, rw_tape *t, rw_tensor *x) \
    {                                                               \
        RW_ENTER_OP(t);                                             \
        return apply(at, t, &rw_op_##NAME, x, 0);                   \
    }

#define UNARY_CONSTANT(NAME, RAISED)                                              \
    UNARY_OP(NAME, grad_##NAME, 0, RAISED)                                        \
    rw_tensor *rw_##NAME##_at(rw_site at, rw_tape *t, rw_tensor *x, double value) \
    {                                                                             \
        RW_ENTER_OP(t);                                                           \
        return apply(at, t, &rw_op_##NAME, x, value);                             \
    }

RW_BUILTIN_OP(abs, "x", "torch.abs")
RW_BUILTIN_OP(add_scalar, "x", "torch.add")
RW_BUILTIN_OP(cos, "x", "torch.cos")
RW_BUILTIN_OP(erf, "x", "torch.erf")
RW_BUILTIN_OP(exp, "x", "torch.exp")
RW_BUILTIN_OP(gelu, "x", "F.gelu")
RW_BUILTIN_OP(gelu_tanh, "x", "F.gelu(approximate='tanh')")
RW_BUILTIN_OP(log, "x", "torch.log")
RW_BUILTIN_OP(log1p, "x", "torch.log1p")
RW_BUILTIN_OP(neg, "x", "torch.neg")
RW_BUILTIN_OP(pow_scalar, "x", "torch.pow")
RW_BUILTIN_OP(relu, "x", "F.relu")
RW_BUILTIN_OP(scale, "x", "torch.mul")
RW_BUILTIN_OP(sigmoid, "x", "torch.sigmoid")
RW_BUILTIN_OP(silu, "x", "F.silu")
RW_BUILTIN_OP(sin, "x", "torch.sin")
RW_BUILTIN_OP(softplus, "x", "F.softplus")
RW_BUILTIN_OP(sqrt, "x", "torch.sqrt")
RW_BUILTIN_OP(tanh, "x", "torch.tanh")
UNARY_CONSTANT(scale, 0)
UNARY_CONSTANT(add_scalar, 0)
UNARY_CONSTANT(pow_scalar, RW_OP_INPUT(0))
UNARY(neg, 0)
UNARY(abs, 0)
UNARY(exp, RW_OP_INPUT(0))
UNARY(log, RW_OP_INPUT(0))
UNARY(log1p, RW_OP_INPUT(0))
UNARY(sqrt, 0)
UNARY(tanh, 0)
UNARY(erf, 0)
UNARY(sin, 0)
UNARY(cos, 0)
UNARY(softplus, RW_OP_INPUT(0))
UNARY(sigmoid, 0)
UNARY(relu, 0)
UNARY(silu, 0)
UNARY(gelu, 0)
UNARY(gelu_tanh, 0)

RW_BUILTIN_OP(sign, "x", "torch.sign")
UNARY_OP(sign, NULL, RW_OP_NO_GRADIENT, 0)

rw_tensor *rw_sign_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return apply(at, t, &rw_op_sign, x, 0);
}
