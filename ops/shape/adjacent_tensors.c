/*
 * Recognizes tensors that are adjacent in one buffer and fill it: concatenating them needs no copy. Backward encounters
 * these if a rule writes several gradients as one, as attention's does with those of q, k and v.
 */
#include "ops/shape/shape.h"

#include <rewind/ops.h>

/* The axes from the largest to the smallest stride. */
static void order_axes(const rw_layout *l, int *axes)
{
    for (int i = 0; i < l->rank; i++) {
        int k = i;
        for (; k > 0 && l->stride[axes[k - 1]] < l->stride[i]; k--) axes[k] = axes[k - 1];
        axes[k] = i;
    }
}

/* Is it the layout of a dense tensor, except for the order of its axes? */
static bool is_without_gaps(const rw_layout *l)
{
    int axes[RW_MAX_RANK];
    int64_t step = 1;
    order_axes(l, axes);
    for (int i = l->rank - 1; i >= 0; i--) {
        if (l->dim[axes[i]] != 1 && l->stride[axes[i]] != step) return false;
        step *= l->dim[axes[i]];
    }
    return true;
}

/* Does a tensor have the whole's strides, and its extents except along the axis? Axes of one element have no stride. */
static bool has_strides_of(const rw_layout *l, const rw_layout *whole, int axis)
{
    for (int k = 0; k < l->rank; k++) {
        if (k != axis && l->dim[k] != whole->dim[k]) return false;
        if (l->dim[k] != 1 && l->stride[k] != whole->stride[k]) return false;
    }
    return true;
}

/* See shape.h for the contract. */
bool rw_pieces_of_one(rw_tensor *const *piece, int n, int axis, rw_layout *ret)
{
    const rw_layout *const buffer = rw_tensor_layout(rw_tensor_base(piece[0]));
    rw_layout whole = *rw_tensor_layout(piece[0]);
    if (axis < 0) axis += whole.rank;
    if (whole.offset || !whole.numel) return false;
    if (n > 1) whole.stride[axis] = rw_tensor_layout(piece[1])->offset / whole.dim[axis];
    whole.numel = whole.dim[axis] = 0;
    for (int i = 0; i < n; i++) {
        const rw_layout *const l = rw_tensor_layout(piece[i]);
        if (rw_tensor_base(piece[i]) != rw_tensor_base(piece[0]) || l->rank != whole.rank) return false;
        if (l->offset != whole.dim[axis] * whole.stride[axis] || !has_strides_of(l, &whole, axis)) return false;
        whole.dim[axis] += l->dim[axis];
        whole.numel += l->numel;
    }
    if (whole.numel != buffer->numel || !is_without_gaps(&whole)) return false;
    *ret = whole;
    return true;
}

/* See shape.h for the contract. */
rw_tensor *rw_whole_of_pieces(rw_tape *t, rw_tensor *const *piece, int n, int axis)
{
    rw_layout whole;
    int axes[RW_MAX_RANK], back[RW_MAX_RANK];
    bool same_order = true;
    if (!rw_pieces_of_one(piece, n, axis, &whole)) return NULL;
    order_axes(&whole, axes);
    rw_shape shape = { .rank = whole.rank };
    for (int i = 0; i < whole.rank; i++) {
        shape.dim[i] = whole.dim[axes[i]];
        back[axes[i]] = i;
        same_order &= axes[i] == i;
    }
    rw_tensor *x = rw_tensor_base(piece[0]);
    if (!rw_shape_equal(rw_tensor_shape(x), shape)) x = rw_reshape(t, x, shape);
    return same_order ? x : rw_permute(t, x, back);
}
