/* add, sub, mul, div, maximum, minimum, accumulate: ops on two operands that broadcast, with their rules. */
#include "base/public_entry.h"
#include "ops/common/channels_last.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/reduce.h"

static rw_status check_binary(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    if (call->in[0].layout == call->in[1].layout) return rw_op_output_like(call, 0, 0);
    rw_shape shape;
    RW_CHECK(rw_broadcast(call, rw_in_shape(call, 0), rw_in_shape(call, 1), &shape));
    return rw_op_output(call, 0, call->in[0].dtype, shape);
}

static rw_op_cost cost_binary(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

/* Sets g reduced to the shape of input i: the transpose of broadcasting. */
static rw_status set(rw_grad_call *g, int i, rw_tensor *dx)
{
    if (!dx) return rw_grad_set(g, i, NULL);
    const rw_shape shape = rw_tensor_shape(rw_grad_input(g, i));
    return rw_shape_equal(shape, rw_tensor_shape(dx)) ? rw_grad_set(g, i, dx) : rw_grad_set_sum_to(g, i, dx);
}

static rw_status grad_add(rw_grad_call *g)
{
    for (int i = 0; i < 2; i++)
        if (rw_grad_wanted(g, i)) RW_CHECK(set(g, i, rw_grad_upstream(g, 0)));
    return RW_OK;
}

static rw_status grad_sub(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(set(g, 0, dy));
    if (rw_grad_wanted(g, 1)) RW_CHECK(set(g, 1, rw_neg(t, dy)));
    return RW_OK;
}

static rw_status grad_mul(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    for (int i = 0; i < 2; i++)
        if (rw_grad_wanted(g, i)) RW_CHECK(set(g, i, rw_mul(t, dy, rw_grad_input(g, 1 - i))));
    return RW_OK;
}

/* -dy a / b^2, with dy as the last factor: dy / b may be infinite where the product is finite. So may a / b^2 in 16
   bits. */
static rw_tensor *gradient_of_divisor(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const a = rw_grad_widened(g, rw_grad_input(g, 0)), *const b = rw_grad_widened(g, rw_grad_input(g, 1));
    rw_tensor *const dy = rw_grad_widened(g, rw_grad_upstream(g, 0));
    return rw_grad_narrowed(g, 1, rw_neg(t, rw_mul(t, dy, rw_div(t, rw_div(t, a, b), b))));
}

static rw_status grad_div(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(set(g, 0, rw_div(rw_grad_tape(g), dy, rw_grad_input(g, 1))));
    if (rw_grad_wanted(g, 1)) RW_CHECK(set(g, 1, gradient_of_divisor(g)));
    return RW_OK;
}

/* Selects instead of multiplying: where there is no gradient, an infinite dy gives 0, not NaN. */
static rw_status set_chosen(rw_grad_call *g, rw_tensor *first)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(set(g, 0, rw_take_at(RW_HERE, t, dy, first)));
    if (rw_grad_wanted(g, 1)) RW_CHECK(set(g, 1, rw_leave_at(RW_HERE, t, dy, first)));
    return RW_OK;
}

static rw_status grad_maximum(rw_grad_call *g)
{
    return set_chosen(g, rw_at_least_at(RW_HERE, rw_grad_tape(g), rw_grad_input(g, 0), rw_grad_input(g, 1)));
}

/* As for maximum(-a, -b). */
static rw_status grad_minimum(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const a = rw_neg(t, rw_grad_input(g, 0)), *const b = rw_neg(t, rw_grad_input(g, 1));
    return set_chosen(g, rw_at_least_at(RW_HERE, t, a, b));
}

/* Linear in the first operand; the second only selects. */
static rw_status grad_take(rw_grad_call *g)
{
    return set(g, 0, rw_take_at(RW_HERE, rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_input(g, 1)));
}

static rw_status grad_leave(rw_grad_call *g)
{
    return set(g, 0, rw_leave_at(RW_HERE, rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_input(g, 1)));
}

RW_INTERNAL_OP(accumulate, "sum term")
RW_DECLARE_KERNELS(rw_accumulate)
static const rw_op_def rw_op_accumulate = { .name = "accumulate", .n_inputs = 2, .n_outputs = 1,
                                            .flags = RW_OP_OWN_ADDS,
                                            .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }),
                                            .optional = RW_OP_INPUT(0), .check = check_binary,
                                            .kernel = RW_KERNELS(rw_accumulate), .grad = grad_add,
                                            .cost = cost_binary };

/* A float32 sum and a 16-bit term. */
static rw_status check_accumulate_wide(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 1));
    RW_CHECK(rw_want_sum_of(call, 0, 1));
    RW_CHECK(rw_expect_shape_of(call, 0, NULL, 1, NULL));
    return rw_op_output_like(call, 0, 0);
}

static rw_status grad_accumulate_wide(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) RW_CHECK(rw_grad_set(g, 0, dy));
    return rw_grad_wanted(g, 1) ? rw_grad_set(g, 1, rw_grad_narrowed(g, 1, dy)) : RW_OK;
}

RW_INTERNAL_OP(accumulate_wide, "sum term")
RW_DECLARE_KERNELS(rw_accumulate_wide)
static const rw_op_def rw_op_accumulate_wide = { .name = "accumulate_wide", .n_inputs = 2, .n_outputs = 1,
                                                 .flags = RW_OP_OWN_ADDS,
                                                 .inplace = RW_INPLACE({ 0, 0 }), .optional = RW_OP_INPUT(0),
                                                 .check = check_accumulate_wide,
                                                 .kernel = RW_KERNELS(rw_accumulate_wide),
                                                 .grad = grad_accumulate_wide, .cost = cost_binary };

rw_tensor *rw_accumulate_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *term)
{
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { sum, term };
    if (sum && term && rw_tensor_dtype(sum) != rw_tensor_dtype(term))
        return rw_apply_at(at, t, &rw_op_accumulate_wide, in, 2, NULL, 0, NULL);
    return rw_apply_in_order_at(at, t, &rw_op_accumulate, in, 2, NULL, 0);
}

#define BINARY(NAME, GRAD, FLAGS, WIDEST)                                                                            \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                    \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = 2, .n_outputs = 1, .flags = FLAGS,            \
                                            .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }), \
                                            .check = check_binary, .kernel = RW_KERNELS(rw_##NAME),                  \
                                            .grad = GRAD, .cost = cost_binary, .cast_widest = WIDEST };                \
    rw_tensor *rw_##NAME##_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b)                                    \
    {                                                                                                                \
        RW_ENTER_OP(t);                                                                                              \
        rw_tensor *const in[] = { a, b };                                                                            \
        return rw_apply_in_order_at(at, t, &rw_op_##NAME, in, 2, NULL, 0);                                           \
    }

RW_BUILTIN_OP(add, "a b", "torch.add")
RW_BUILTIN_OP(div, "a b", "torch.div")
RW_BUILTIN_OP(leave, "x choice", "torch.where")
RW_BUILTIN_OP(maximum, "a b", "torch.maximum, but that the first of equals takes the gradient")
RW_BUILTIN_OP(minimum, "a b", "torch.minimum, but that the first of equals takes the gradient")
RW_BUILTIN_OP(mul, "a b", "torch.mul")
RW_BUILTIN_OP(sub, "a b", "torch.sub")
RW_BUILTIN_OP(take, "x choice", "torch.where")
BINARY(add, grad_add, 0, RW_OP_ALL_INPUTS)
BINARY(sub, grad_sub, 0, RW_OP_ALL_INPUTS)
BINARY(mul, grad_mul, 0, RW_OP_ALL_INPUTS)
BINARY(div, grad_div, 0, RW_OP_ALL_INPUTS)
BINARY(maximum, grad_maximum, 0, RW_OP_ALL_INPUTS)
BINARY(minimum, grad_minimum, 0, RW_OP_ALL_INPUTS)
BINARY(take, grad_take, 0, 0)
BINARY(leave, grad_leave, 0, 0)
BINARY(at_least, NULL, RW_OP_NO_GRADIENT, 0)
