/*
 * pow of two tensors that broadcast. Each gradient is one op, which recomputes the power in the type of the arithmetic.
 */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/reduce.h"

#include <rewind/compare.h>

#include <float.h>

static rw_status check_pow(rw_op_call *call)
{
    rw_shape shape;
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    RW_CHECK(rw_broadcast(call, rw_in_shape(call, 0), rw_in_shape(call, 1), &shape));
    return rw_op_output(call, 0, call->in[0].dtype, shape);
}

/* (a, b, dy): dy has the shape to which the two broadcast. */
static rw_status check_backward(rw_op_call *call)
{
    RW_CHECK(rw_want_same_dtype(call, 0, 2));
    return rw_op_output_like(call, 0, 2);
}

static rw_op_cost cost_pow(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 16);
}

#define BACKWARD(NAME)                                                                                                 \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                      \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 3, .n_outputs = 1,                              \
                                            .strided = RW_OP_ALL_INPUTS,                                               \
                                            .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }, { 0, 2 }),                       \
                                            .check = check_backward, .kernel = RW_KERNELS(rw_##NAME),                  \
                                            .cost = cost_pow };

BACKWARD(pow_base_backward)
BACKWARD(pow_exponent_backward)

/*
 * a, but 1 where b is 0 and 1 / a is not finite in the type, or where b is 0 and a is NaN: the slope is 0 there, not 0
 * times infinity. Selected, because adding anything would change a -0 that must be kept.
 */
static rw_tensor *base_of_slope(rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    const double least = rw_tensor_dtype(a) == RW_F64 ? DBL_MIN : (double)FLT_MIN;
    rw_tensor *const one = rw_full_at(RW_HERE, t, rw_tensor_dtype(a), RW_SCALAR, 1);
    rw_tensor *const none = rw_logical_not(t, rw_ge_scalar(t, rw_abs(t, a), least));
    return rw_where(t, rw_logical_and(t, rw_eq_scalar(t, b, 0), none), one, a);
}

/* a, but 1 where a is 0 and b is not negative, so that its logarithm is finite. */
static rw_tensor *base_of_logarithm(rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    rw_tensor *const zero = rw_full_at(RW_HERE, t, rw_tensor_dtype(b), RW_SCALAR, 0);
    return rw_add(t, a, rw_leave_at(RW_HERE, t, rw_at_least_at(RW_HERE, t, b, zero), a));
}

/* dy, but 0 where the slope is 0 and dy is NaN or infinite. A finite dy stays: it has second gradients there. */
static rw_tensor *upstream_of(rw_tape *t, rw_tensor *dy, rw_tensor *has_no_slope)
{
    rw_tensor *const zero = rw_full_at(RW_HERE, t, rw_tensor_dtype(dy), RW_SCALAR, 0);
    return rw_where(t, rw_logical_and(t, has_no_slope, rw_logical_not(t, rw_isfinite(t, dy))), zero, dy);
}

/* dy b a^(b - 1), and dy a^b log(a); 0 where a and b are 0, and where a is 0 and b is not negative. */
static rw_status set_composed(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const a = rw_grad_widened(g, rw_grad_input(g, 0)), *const b = rw_grad_widened(g, rw_grad_input(g, 1));
    rw_tensor *const dy = rw_grad_widened(g, rw_grad_upstream(g, 0));
    if (rw_grad_wanted(g, 0)) {
        rw_tensor *const slope = rw_mul(t, b, rw_pow(t, base_of_slope(t, a, b), rw_add_scalar(t, b, -1)));
        rw_tensor *const up = upstream_of(t, dy, rw_eq_scalar(t, b, 0));
        RW_CHECK(rw_grad_set_broadcast(g, 0, rw_grad_narrowed(g, 0, rw_mul(t, up, slope))));
    }
    if (!rw_grad_wanted(g, 1)) return RW_OK;
    /* stored in 16 bits, the power may be infinite where dy times it is not */
    rw_tensor *const power = a == rw_grad_input(g, 0) ? rw_grad_output(g, 0) : rw_pow(t, a, b);
    rw_tensor *const up = upstream_of(t, dy, rw_logical_and(t, rw_eq_scalar(t, a, 0), rw_ge_scalar(t, b, 0)));
    rw_tensor *const db = rw_mul(t, up, rw_mul(t, power, rw_log(t, base_of_logarithm(t, a, b))));
    return rw_grad_set_broadcast(g, 1, rw_grad_narrowed(g, 1, db));
}

static rw_status grad_pow(rw_grad_call *g)
{
    static const rw_op_def *const backward[] = { &rw_op_pow_base_backward, &rw_op_pow_exponent_backward };
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_upstream(g, 0) };
    if (rw_grad_is_differentiable(g)) return set_composed(g);
    for (int i = 0; i < 2; i++)
        if (rw_grad_wanted(g, i))
            RW_CHECK(rw_grad_set_broadcast(g, i, rw_apply(rw_grad_tape(g), backward[i], in, 3, NULL, 0, NULL)));
    return RW_OK;
}

RW_BUILTIN_OP(pow, "a b", "torch.pow")
RW_DECLARE_KERNELS(rw_pow)
static const rw_op_def rw_op_pow = { .name = "pow", .n_inputs = 2, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                     .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), .check = check_pow,
                                     .kernel = RW_KERNELS(rw_pow), .grad = grad_pow, .cost = cost_pow,
                                     .cast_f32 = RW_OP_ALL_INPUTS };

rw_tensor *rw_pow_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    RW_ENTER_OP(t);
    return rw_pointwise_at(at, t, &rw_op_pow, a, b);
}
