/*
 * Elements by index. Element e of index, at (e0, e1, ...), stands for the place of x that has the index instead of e's
 * coordinate along the axis. What the definitions and the kernels share. C11 and C++17.
 */
#ifndef RW_OPS_GATHER_H
#define RW_OPS_GATHER_H

#include <rewind/op.h>

struct rw_gather_attrs {
    int64_t axis, rank;
    int64_t dim[RW_MAX_RANK]; /* of x; for the way back */
};

/* Places in the workspace of sums by index on CUDA: the index flat, then what the gradient of an embedding needs. */
static inline size_t rw_gather_flat_bytes(int64_t n)
{
    return ((size_t)n * sizeof(int32_t) + 255) / 256 * 256;
}

#ifdef __cplusplus
extern "C" {
#endif

/* Records zeros of shape x, with dy added where gather along an axis, from 0 on, took each element from. */
rw_tensor *rw_gather_back(rw_tape *t, rw_tensor *dy, rw_tensor *index, rw_shape x, int axis);

/* Zeros of shape x [n, c], with each row of src [m, c] added to the one that index [m] names, in order. */
rw_tensor *rw_rows_added_at(rw_site at, rw_tape *t, rw_tensor *src, rw_tensor *index, rw_shape x);

#ifdef __cplusplus
}
#endif

#endif
