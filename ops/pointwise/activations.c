/*
 * elu, celu, leaky_relu, relu6, hardswish. Their backward ops select a branch by x (relu6 by y). Gradients of gradients
 * use the same ops: a branch is linear in the upstream gradient, and if its slope depends on x, a rule adds that term.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"

#include <rewind/compare.h>

#include <math.h>

static rw_tensor *apply(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, int n, double constant)
{
    const struct rw_pointwise_attrs attrs = { constant };
    return rw_apply_at(at, t, op, in, n, &attrs, sizeof attrs, NULL);
}

static double constant_of(const rw_grad_call *g)
{
    return ((const struct rw_pointwise_attrs *)rw_grad_attrs(g))->constant;
}

/* The gradient of dy: the op itself, applied to the upstream gradient. */
static rw_status pass_on(rw_grad_call *g, const rw_op_def *op)
{
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_upstream(g, 0) };
    if (!rw_grad_wanted(g, 1)) return RW_OK;
    return rw_grad_set(g, 1, apply(RW_HERE, rw_grad_tape(g), op, in, 2, constant_of(g)));
}

#define BACKWARD(NAME, GRAD)                                                                                           \
    RW_DECLARE_KERNELS(rw_##NAME##_backward)                                                                           \
    static rw_status GRAD(rw_grad_call *g);                                                                            \
    static const rw_op_def rw_op_##NAME##_backward = {                                                                 \
        .name = #NAME "_backward", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,                         \
        .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), .check = rw_pointwise_check_backward,                               \
        .kernel = RW_KERNELS(rw_##NAME##_backward), .grad = GRAD, .cost = rw_pointwise_cost                            \
    };

/* KEPT: the value by which the backward op selects. */
#define ACTIVATION(NAME, KEPT, CHECK)                                                                                  \
    static rw_status grad_##NAME(rw_grad_call *g)                                                                      \
    {                                                                                                                  \
        rw_tensor *const in[] = { KEPT, rw_grad_upstream(g, 0) };                                                      \
        return rw_grad_set(g, 0, apply(RW_HERE, rw_grad_tape(g), &rw_op_##NAME##_backward, in, 2, constant_of(g)));    \
    }                                                                                                                  \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                      \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 1, .n_outputs = 1,                              \
                                            .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 0 }),              \
                                            .check = CHECK, .kernel = RW_KERNELS(rw_##NAME),                           \
                                            .grad = grad_##NAME, .cost = rw_pointwise_cost };

BACKWARD(elu, grad_elu_backward)
BACKWARD(celu, grad_celu_backward)
BACKWARD(leaky_relu, grad_leaky_relu_backward)
BACKWARD(relu6, grad_relu6_backward)
BACKWARD(hardswish, grad_hardswish_backward)

/* celu divides by alpha in the type in which it computes. */
static rw_status check_celu(rw_op_call *call)
{
    const double given = ((const struct rw_pointwise_attrs *)call->attrs)->constant;
    const double alpha = call->in[0].dtype == RW_F64 ? given : (double)(float)given;
    RW_CHECK(rw_pointwise_check(call));
    if (isfinite(alpha) && alpha != 0) return RW_OK;
    return rw_op_error(call, RW_ERR_ARGUMENT, "alpha: expected a finite number other than 0 in x's type, got %g",
                       given);
}

RW_BUILTIN_OP(elu, "x", "F.elu")
RW_BUILTIN_OP(celu, "x", "F.celu")
RW_BUILTIN_OP(leaky_relu, "x", "F.leaky_relu")
RW_BUILTIN_OP(relu6, "x", "F.relu6")
RW_BUILTIN_OP(hardswish, "x", "F.hardswish")
ACTIVATION(elu, rw_grad_input(g, 0), rw_pointwise_check)
ACTIVATION(celu, rw_grad_input(g, 0), check_celu)
ACTIVATION(leaky_relu, rw_grad_input(g, 0), rw_pointwise_check)
ACTIVATION(relu6, rw_grad_output(g, 0), rw_pointwise_check)
ACTIVATION(hardswish, rw_grad_input(g, 0), rw_pointwise_check)

/* The second derivative: alpha exp(x) up to 0, and 0 above. */
static rw_status grad_elu_backward(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    RW_CHECK(pass_on(g, &rw_op_elu_backward));
    if (!rw_grad_wanted(g, 0)) return RW_OK;
    rw_tensor *const x = rw_grad_input(g, 0), *const both = rw_mul(t, rw_grad_upstream(g, 0), rw_grad_input(g, 1));
    rw_tensor *const in[] = { x, both };
    rw_tensor *const steep = apply(RW_HERE, t, &rw_op_elu_backward, in, 2, constant_of(g));
    return rw_grad_set(g, 0, rw_leave_at(RW_HERE, t, steep, rw_relu(t, x)));
}

/* The second derivative: exp(x / alpha) / alpha up to 0, and 0 above. */
static rw_status grad_celu_backward(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    RW_CHECK(pass_on(g, &rw_op_celu_backward));
    if (!rw_grad_wanted(g, 0)) return RW_OK;
    rw_tensor *const x = rw_grad_input(g, 0), *const both = rw_mul(t, rw_grad_upstream(g, 0), rw_grad_input(g, 1));
    rw_tensor *const in[] = { x, both };
    rw_tensor *const slope = apply(RW_HERE, t, &rw_op_celu_backward, in, 2, constant_of(g));
    return rw_grad_set(g, 0, rw_leave_at(RW_HERE, t, rw_scale(t, slope, 1 / constant_of(g)), rw_relu(t, x)));
}

/* The selecting operand has no gradient: zeros, if no other gradient is wanted. */
static rw_status choose_only(rw_grad_call *g, const rw_op_def *op)
{
    rw_tensor *const x = rw_grad_input(g, 0);
    if (rw_grad_wanted(g, 1)) return pass_on(g, op);
    return rw_grad_set(g, 0, rw_full_at(RW_HERE, rw_grad_tape(g), rw_tensor_dtype(x), rw_tensor_shape(x), 0));
}

static rw_status grad_leaky_relu_backward(rw_grad_call *g)
{
    return choose_only(g, &rw_op_leaky_relu_backward);
}

static rw_status grad_relu6_backward(rw_grad_call *g)
{
    return choose_only(g, &rw_op_relu6_backward);
}

/* Between -3 and 3 the slope grows by a third of x. (x + 3 would round to 6 just below 3.) */
static rw_status grad_hardswish_backward(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    RW_CHECK(pass_on(g, &rw_op_hardswish_backward));
    if (!rw_grad_wanted(g, 0)) return RW_OK;
    rw_tensor *const both = rw_mul(t, rw_grad_upstream(g, 0), rw_grad_input(g, 1));
    rw_tensor *const outside = rw_ge_scalar(t, rw_abs(t, rw_grad_input(g, 0)), 3);
    return rw_grad_set(g, 0, rw_masked_fill(t, rw_scale(t, both, 1.0 / 3), outside, 0));
}

rw_tensor *rw_elu_at(rw_site at, rw_tape *t, rw_tensor *x, double alpha)
{
    RW_ENTER_OP(t);
    return apply(at, t, &rw_op_elu, &x, 1, alpha);
}

rw_tensor *rw_celu_at(rw_site at, rw_tape *t, rw_tensor *x, double alpha)
{
    RW_ENTER_OP(t);
    return apply(at, t, &rw_op_celu, &x, 1, alpha);
}

rw_tensor *rw_leaky_relu_at(rw_site at, rw_tape *t, rw_tensor *x, double slope)
{
    RW_ENTER_OP(t);
    return apply(at, t, &rw_op_leaky_relu, &x, 1, slope);
}

rw_tensor *rw_relu6_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return apply(at, t, &rw_op_relu6, &x, 1, 0);
}

rw_tensor *rw_hardswish_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    RW_ENTER_OP(t);
    return apply(at, t, &rw_op_hardswish, &x, 1, 0);
}
