/* where and masked_fill: selects one of two elements by a truth value. */
#include "base/public_entry.h"
#include "ops/common/declare_kernels.h"
#include "ops/common/util.h"
#include "ops/reduce/reduce.h"

#include <rewind/compare.h>
#include <rewind/composite.h>

static rw_status check_where(rw_op_call *call)
{
    rw_shape pair, shape;
    RW_CHECK(rw_want_dtype(call, 0, RW_BOOL));
    RW_CHECK(rw_want_same_dtype(call, 1, 2));
    RW_CHECK(rw_broadcast(call, rw_in_shape(call, 1), rw_in_shape(call, 2), &pair));
    RW_CHECK(rw_broadcast(call, rw_in_shape(call, 0), pair, &shape));
    return rw_op_output(call, 0, call->in[1].dtype, shape);
}

static rw_op_cost cost_where(const rw_op_call *call)
{
    return rw_cost_pointwise(call, 1);
}

/* dy where the element was selected, else 0; reduced to the shape of the operand. */
static rw_status set_taken(rw_grad_call *g, int i, rw_tensor *zero)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    rw_tensor *const dx = rw_where(t, rw_grad_input(g, 0), i == 1 ? dy : zero, i == 1 ? zero : dy);
    if (!dx) return rw_grad_set(g, i, NULL);
    if (rw_shape_equal(rw_tensor_shape(rw_grad_input(g, i)), rw_tensor_shape(dx))) return rw_grad_set(g, i, dx);
    return rw_grad_set_sum_to(g, i, dx);
}

static rw_status grad_where(rw_grad_call *g)
{
    const rw_dtype dtype = rw_tensor_dtype(rw_grad_output(g, 0));
    rw_tensor *const zero = rw_full_at(RW_HERE, rw_grad_tape(g), dtype, RW_SCALAR, 0);
    for (int i = 1; i < 3; i++)
        if (rw_grad_wanted(g, i)) RW_CHECK(set_taken(g, i, zero));
    return RW_OK;
}

RW_BUILTIN_OP(where, "condition a b", "torch.where")
RW_DECLARE_KERNELS(rw_where)
static const rw_op_def rw_op_where = { .name = "where",
                                       .n_inputs = 3,
                                       .n_outputs = 1,
                                       .strided = RW_OP_ALL_INPUTS,
                                       .inplace = RW_INPLACE({ 0, 0 }, { 0, 1 }, { 0, 2 }),
                                       .check = check_where,
                                       .kernel = RW_KERNELS(rw_where),
                                       .grad = grad_where,
                                       .cost = cost_where,
                                       .cast_widest = RW_OP_INPUT(1) | RW_OP_INPUT(2) };

rw_tensor *rw_where_at(rw_site at, rw_tape *t, rw_tensor *condition, rw_tensor *a, rw_tensor *b)
{
    RW_ENTER_OP(t);
    rw_tensor *const in[] = { condition, a, b };
    return rw_apply_at(at, t, &rw_op_where, in, 3, NULL, 0, NULL);
}

/* The mask does not change the shape of x: it has at most its axes, each with x's extent or 1. */
static bool mask_fits(rw_shape x, rw_shape mask)
{
    if (mask.rank > x.rank) return false;
    for (int i = 0; i < mask.rank; i++)
        if (mask.dim[i] != 1 && mask.dim[i] != x.dim[x.rank - mask.rank + i]) return false;
    return true;
}

/* Records where() with a number; see the public header for the contract. */
rw_tensor *rw_masked_fill_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *mask, double value)
{
    RW_ENTER_OP(t);
    if (!rw_operand_check(at, t, x, "masked_fill", "x") || !rw_operand_check(at, t, mask, "masked_fill", "mask"))
        return NULL;
    if (!mask_fits(rw_tensor_shape(x), rw_tensor_shape(mask))) {
        char text[RW_SHAPE_TEXT];
        rw_shape_text(text, sizeof text, rw_tensor_shape(x));
        rw_refuse_operand_at(at, t, RW_ERR_SHAPE, "masked_fill", "mask", mask,
                             "a shape that broadcasts to x's %s", text);
        return NULL;
    }
    const rw_composite c = rw_composite_begin(t, "masked_fill");
    rw_tensor *const number = rw_full_at(at, t, rw_tensor_dtype(x), RW_SCALAR, value);
    return rw_composite_end(&c, number ? rw_where_at(at, t, mask, number, x) : NULL);
}
