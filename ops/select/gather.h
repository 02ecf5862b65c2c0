/*
 * Elements by index. Element e of index, at (e0, e1, ...), refers to the element of x at the same coordinates, with the
 * index in place of the coordinate along the axis. Shared by the definitions and the kernels. C11 and C++17.
 */
#ifndef RW_OPS_GATHER_H
#define RW_OPS_GATHER_H

#include <rewind/op.h>

struct rw_gather_attrs {
    int64_t axis, rank;
    int64_t dim[RW_MAX_RANK]; /* shape of x, for the gradient */
};

/* Parts of the workspace of sums by index on CUDA: the flat index, then the workspace of an embedding's gradient. */
static inline size_t rw_gather_flat_bytes(int64_t n)
{
    return ((size_t)n * sizeof(int32_t) + 255) / 256 * 256;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Records zeros of shape x, plus dy summed to the elements that gather read, along an axis from 0 on. */
rw_tensor *rw_gather_back(rw_tape *t, rw_tensor *dy, rw_tensor *index, rw_shape x, int axis);

/* Zeros of shape x [n, c], with each row of src [m, c] added to the row that index [m] names, in order. */
rw_tensor *rw_rows_added_at(rw_site at, rw_tape *t, rw_tensor *src, rw_tensor *index, rw_shape x);

#ifdef __cplusplus
}
#endif

#endif
