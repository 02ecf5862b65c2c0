/* eq, ne, lt, le, gt, ge, isfinite and logical ops: element-wise, with results of truth values. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"

#include <rewind/compare.h>
#include <rewind/composite.h>

static rw_op_cost cost(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

static rw_status check_pair(rw_op_call *call)
{
    rw_shape shape;
    RW_CHECK(rw_want_same_dtype(call, 0, 1));
    RW_CHECK(rw_broadcast(call, rw_in_shape(call, 0), rw_in_shape(call, 1), &shape));
    return rw_op_output(call, 0, RW_BOOL, shape);
}

static rw_status check_logic(rw_op_call *call)
{
    for (int i = 0; i < call->n_inputs; i++) RW_CHECK(rw_want_dtype(call, i, RW_BOOL));
    return call->n_inputs == 1 ? rw_op_output_like(call, 0, 0) : check_pair(call);
}

static rw_status check_isfinite(rw_op_call *call)
{
    RW_CHECK(rw_want_float(call, 0));
    return rw_op_output(call, 0, RW_BOOL, rw_in_shape(call, 0));
}

#define DEFINE(NAME, INPUTS, CHECK)                                                                                  \
    RW_DECLARE_KERNELS(rw_##NAME)                                                                                    \
    static const rw_op_def rw_op_##NAME = { .name = #NAME, .n_inputs = INPUTS, .n_outputs = 1,                       \
                                            .flags = RW_OP_NO_GRADIENT, .strided = RW_OP_ALL_INPUTS,                 \
                                            .inplace = RW_INPLACE({ 0, 0 }, { 0, INPUTS - 1 }), .check = CHECK,      \
                                            .kernel = RW_KERNELS(rw_##NAME), .cost = cost,                           \
                                            .cast_widest = RW_OP_ALL_INPUTS };

#define PAIR(NAME, CHECK)                                                                                            \
    DEFINE(NAME, 2, CHECK)                                                                                           \
    rw_tensor *rw_##NAME##_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b)                                    \
    {                                                                                                                \
        RW_ENTER_OP(t);                                                                                              \
        rw_tensor *const in[] = { a, b };                                                                            \
        return rw_apply_at(at, t, &rw_op_##NAME, in, 2, NULL, 0, NULL);                                              \
    }

#define SINGLE(NAME, CHECK)                                                                                          \
    DEFINE(NAME, 1, CHECK)                                                                                           \
    rw_tensor *rw_##NAME##_at(rw_site at, rw_tape *t, rw_tensor *x)                                                  \
    {                                                                                                                \
        RW_ENTER_OP(t);                                                                                              \
        return rw_apply_at(at, t, &rw_op_##NAME, &x, 1, NULL, 0, NULL);                                              \
    }

/* With a number: as a tensor of one element, which is recomputed when it is needed. */
#define COMPARISON(NAME)                                                                                             \
    PAIR(NAME, check_pair)                                                                                           \
    rw_tensor *rw_##NAME##_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value)                             \
    {                                                                                                                \
        RW_ENTER_OP(t);                                                                                              \
        if (!rw_operand_check(at, t, x, #NAME "_scalar", "x")) return NULL;                                          \
        const rw_composite c = rw_composite_begin(t, #NAME "_scalar");                                        \
        rw_tensor *const number = rw_full_at(at, t, rw_tensor_dtype(x), RW_SCALAR, value);                           \
        return rw_composite_end(&c, number ? rw_##NAME##_at(at, t, x, number) : NULL);                               \
    }

RW_BUILTIN_OP(eq, "a b", "torch.eq")
RW_BUILTIN_OP(ge, "a b", "torch.ge")
RW_BUILTIN_OP(gt, "a b", "torch.gt")
RW_BUILTIN_OP(isfinite, "x", "torch.isfinite")
RW_BUILTIN_OP(le, "a b", "torch.le")
RW_BUILTIN_OP(logical_and, "a b", "torch.logical_and")
RW_BUILTIN_OP(logical_not, "x", "torch.logical_not")
RW_BUILTIN_OP(logical_or, "a b", "torch.logical_or")
RW_BUILTIN_OP(lt, "a b", "torch.lt")
RW_BUILTIN_OP(ne, "a b", "torch.ne")
COMPARISON(eq)
COMPARISON(ne)
COMPARISON(lt)
COMPARISON(le)
COMPARISON(gt)
COMPARISON(ge)
SINGLE(isfinite, check_isfinite)
SINGLE(logical_not, check_logic)
PAIR(logical_and, check_logic)
PAIR(logical_or, check_logic)
