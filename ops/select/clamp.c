/* clamp: limits x to two bounds, which are tensors of one element. The gradient passes where x was between them. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/pointwise/pointwise.h"

#include <rewind/compare.h>
#include <rewind/composite.h>

#include <math.h>

static rw_status check(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    return rw_op_output_like(call, 0, 0);
}

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 2);
}

RW_INTERNAL_OP(within, "x low high")
/* 1 where low < x < high, with infinite bounds being none, else 0 */
RW_DECLARE_KERNELS(rw_within)
static const rw_op_def rw_op_within = { .name = "within", .n_inputs = 3, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                                        .strided = RW_OP_ALL_INPUTS, .inplace = RW_INPLACE({ 0, 0 }), .check = check,
                                        .kernel = RW_KERNELS(rw_within), .cost = cost };

/* Selects instead of multiplying: where there is no gradient, an infinite dy gives 0, not NaN. */
static rw_status grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const in[] = { rw_grad_input(g, 0), rw_grad_input(g, 1), rw_grad_input(g, 2) };
    rw_tensor *const within = rw_apply(t, &rw_op_within, in, 3, NULL, 0, NULL);
    return rw_grad_set(g, 0, rw_take_at(RW_HERE, t, rw_grad_upstream(g, 0), within));
}

RW_BUILTIN_OP(clamp, "x low high", "torch.clamp")
RW_DECLARE_KERNELS(rw_clamp)
static const rw_op_def rw_op_clamp = { .name = "clamp", .n_inputs = 3, .n_outputs = 1, .strided = RW_OP_ALL_INPUTS,
                                       .inplace = RW_INPLACE({ 0, 0 }), .check = check,
                                       .kernel = RW_KERNELS(rw_clamp), .grad = grad, .cost = cost };

rw_tensor *rw_clamp_at(rw_site at, rw_tape *t, rw_tensor *x, double low, double high)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "clamp", "x")) return NULL;
    if (isnan(low) || isnan(high)) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "clamp(low, high): expected numbers, got %g and %g", low, high);
        return NULL;
    }
    const rw_dtype dtype = rw_tensor_dtype(x);
    const rw_composite c = rw_composite_begin(t, "clamp");
    rw_tensor *const in[] = { x, rw_full_at(at, t, dtype, RW_SCALAR, low), rw_full_at(at, t, dtype, RW_SCALAR, high) };
    return rw_composite_end(&c, in[1] && in[2] ? rw_apply_at(at, t, &rw_op_clamp, in, 3, NULL, 0, NULL) : NULL);
}

/* With bounds that are tensors: the larger of x and low, then the smaller of that and high. */
rw_tensor *rw_clamp_tensor_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *low, rw_tensor *high)
{
    RW_ENTER_OP(t);
    static const char what[] = "clamp_tensor";
    if (!rw_operand_check(at, t, x, what, "x") || (low != rw_none() && !rw_operand_check(at, t, low, what, "low")) ||
        (high != rw_none() && !rw_operand_check(at, t, high, what, "high")))
        return NULL;
    if (low == rw_none() && high == rw_none()) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s(low, high): expected one tensor at least, got RW_NONE for both", what);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, what);
    rw_tensor *y = low == rw_none() ? x : rw_maximum_at(at, t, x, low);
    if (y && high != rw_none()) y = rw_minimum_at(at, t, y, high);
    return rw_composite_end(&c, y);
}
