/* Conversion of images between [n, c, h, w] and the channels-last layout in which most ops on images compute. */
#include "ops/common/channels_last.h"

#include <rewind/composite.h>

bool rw_is_channels_last(const rw_tensor *x)
{
    const rw_layout *const l = rw_tensor_layout(x);
    if (!l || l->rank < 4 || l->dense || l->stride[1] != 1) return false;
    if (l->stride[l->rank - 1] < l->dim[1] || l->stride[0] < l->stride[2]) return false;
    for (int i = 2; i < l->rank - 1; i++)
        if (l->stride[i] < l->stride[i + 1]) return false;
    return true;
}

int rw_axis_inside(int axis, int rank)
{
    return axis == 0 ? 0 : axis == 1 ? rank - 1 : axis - 1;
}

rw_tensor *rw_channels_inside_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    const int rank = rw_tensor_shape(x).rank;
    int from[RW_MAX_RANK] = { 0 };
    for (int i = 0; i < rank; i++) from[rw_axis_inside(i, rank)] = i;
    return rw_permute_at(at, t, x, from);
}

rw_tensor *rw_channels_outside_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    const int rank = rw_tensor_shape(x).rank;
    int from[RW_MAX_RANK] = { 0 };
    for (int i = 0; i < rank; i++) from[i] = rw_axis_inside(i, rank);
    return rw_permute_at(at, t, x, from);
}

bool rw_any_is_channels_last(rw_tensor *const *in, size_t n)
{
    bool some = false;
    if (!in || n > RW_OP_MAX_OPERANDS) return false; /* the caller or rw_apply() reports the error */
    for (size_t i = 0; i < n; i++) {
        const rw_layout *const l = rw_tensor_layout(in[i]);
        if (!l || l->rank < 4 || l->rank != rw_tensor_layout(in[0])->rank) return false;
        some |= rw_is_channels_last(in[i]);
    }
    return some;
}

rw_tensor *rw_apply_in_order_at(rw_site at, rw_tape *t, const rw_op_def *op, rw_tensor *const *in, size_t n,
                                const void *attrs, size_t attrs_size)
{
    if (!t || !rw_any_is_channels_last(in, n)) return rw_apply_at(at, t, op, in, n, attrs, attrs_size, NULL);
    rw_tensor **const inside = rw_scratch_at(at, t, op->name, n, sizeof *inside);
    if (!inside) return NULL;
    const rw_composite c = rw_composite_begin(t, op->name);
    for (size_t i = 0; i < n; i++) inside[i] = rw_channels_inside_at(at, t, in[i]);
    rw_tensor *const y = rw_apply_at(at, t, op, inside, n, attrs, attrs_size, NULL);
    rw_free(inside);
    return rw_composite_end(&c, y ? rw_channels_outside_at(at, t, y) : NULL);
}
