/* Checks and helpers that ops share: broadcasting, axes, wide gradient sums, costs. */
#include "ops/common/util.h"

#include "base/public_entry.h"

#include <rewind/composite.h>

#include <stdarg.h>

void *rw_scratch_at(rw_site at, rw_tape *t, const char *name, size_t n, size_t size)
{
    void *const room = rw_calloc(n, size);
    if (!room) rw_refuse_at(at, t, RW_ERR_MEMORY, "%s: out of memory", name);
    return room;
}

/* NumPy broadcasting of two shapes; see util.h. */
rw_status rw_broadcast(rw_op_call *call, rw_shape a, rw_shape b, rw_shape *ret)
{
    RW_CHECK(rw_op_check_shape(call, a));
    RW_CHECK(rw_op_check_shape(call, b));
    rw_shape out = { .rank = a.rank > b.rank ? a.rank : b.rank };
    for (int i = 0; i < out.rank; i++) {
        const int ia = a.rank - 1 - i, ib = b.rank - 1 - i;
        const int64_t da = ia < 0 ? 1 : a.dim[ia], db = ib < 0 ? 1 : b.dim[ib];
        if (da != db && da != 1 && db != 1) {
            char ta[RW_SHAPE_TEXT], tb[RW_SHAPE_TEXT];
            rw_shape_text(ta, sizeof ta, a);
            rw_shape_text(tb, sizeof tb, b);
            return rw_op_error(call, RW_ERR_SHAPE, "shapes %s and %s do not broadcast: expected equal extents or 1 at "
                               "axis %d, got %lld and %lld", ta, tb, -1 - i, (long long)da, (long long)db);
        }
        out.dim[out.rank - 1 - i] = da == 1 ? db : da;
    }
    *ret = out;
    return RW_OK;
}

rw_status rw_axis(rw_op_call *call, int axis, int rank, int *ret)
{
    const int a = axis < 0 && axis >= -rank ? axis + rank : axis;
    if (rank == 0) return rw_op_error(call, RW_ERR_SHAPE, "axis: expected a tensor of rank 1 or more, got a scalar");
    if (a < 0 || a >= rank)
        return rw_unexpected_int(call, RW_ERR_SHAPE, "axis", axis, "%d to %d, for rank %d", -rank, rank - 1, rank);
    *ret = a;
    return RW_OK;
}

uint32_t rw_axes_(int n, ...)
{
    RW_LOOKS_ONLY;
    uint32_t set = 0;
    va_list args;
    va_start(args, n);
    for (int i = 0; i < n; i++) {
        const int axis = va_arg(args, int);
        if (axis >= 0 && axis < RW_MAX_RANK) set |= 1u << axis;
        else if (axis < 0 && axis >= -RW_MAX_RANK) set |= 1u << (7 - axis);
        else set |= 1u << 16; /* beyond any rank: reported when it is used */
    }
    va_end(args);
    return set;
}

/* Converts a set of axes, possibly negative ones, to a bit mask; see util.h. */
rw_status rw_axes_mask(rw_op_call *call, uint32_t axes, int rank, uint32_t *ret_mask)
{
    uint32_t mask = 0;
    if (axes == RW_ALL_AXES) {
        *ret_mask = (1u << rank) - 1;
        return RW_OK;
    }
    if (axes >> 16)
        return rw_op_error(call, RW_ERR_SHAPE, "axes: expected -8 to 7, got one outside; RW_AXES() takes no others");
    for (int i = 0; i < 16; i++) {
        if (!(axes >> i & 1)) continue;
        int axis = 0;
        RW_CHECK(rw_axis(call, i < 8 ? i : 7 - i, rank, &axis));
        if (mask >> axis & 1)
            return rw_op_error(call, RW_ERR_SHAPE, "axes: expected each axis at most once, got axis %d twice", axis);
        mask |= 1u << axis;
    }
    *ret_mask = mask;
    return RW_OK;
}

rw_status rw_want_sum_of(rw_op_call *call, int sum, int term)
{
    const rw_dtype of_sum = call->in[sum].dtype, of_term = call->in[term].dtype;
    if (of_sum == RW_F32 && rw_dtype_is_float(of_term) && rw_dtype_size(of_term) == 2) return RW_OK;
    return rw_expect_dtype_of(call, sum, "sum", term, NULL);
}

rw_tensor *rw_grad_narrowed(rw_grad_call *g, int i, rw_tensor *x)
{
    return x ? rw_cast(rw_grad_tape(g), x, rw_tensor_dtype(rw_grad_input(g, i))) : NULL;
}

rw_tensor *rw_grad_widened(rw_grad_call *g, rw_tensor *x)
{
    return x && rw_dtype_size(rw_tensor_dtype(x)) == 2 ? rw_cast(rw_grad_tape(g), x, RW_F32) : x;
}

rw_status rw_grad_set_narrowed(rw_grad_call *g, int i, rw_tensor *dx)
{
    return rw_grad_set(g, i, rw_grad_narrowed(g, i, dx));
}

rw_tensor *rw_centred_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes)
{
    for (int pass = 0; pass < 2 && x; pass++) {
        rw_tensor *const mean = rw_mean_at(at, t, x, axes, true);
        x = mean ? rw_sub_at(at, t, x, mean) : NULL;
    }
    return x;
}

double rw_constant(const rw_tensor *x, double value)
{
    if (rw_tensor_dtype(x) == RW_F64) return value;
    const volatile float narrow = (float)value; /* volatile: GCC 12 drops the rounding in vectorized pairs */
    return (double)narrow;
}

rw_op_cost rw_cost_product(const rw_op_call *call, double flops)
{
    return (rw_op_cost){ .flops = flops, .bytes = rw_op_operand_bytes(call), .model_flops = flops };
}

rw_op_cost rw_cost_pointwise(const rw_op_call *call, double flops_per_element)
{
    const double elements = (double)call->out[0].layout->numel;
    return (rw_op_cost){ .flops = flops_per_element * elements, .bytes = rw_op_operand_bytes(call) };
}
