/*
 * The axes of an element-wise kernel: the shape of the outputs, with adjacent axes joined where the strides of all
 * inputs allow it. Used by the CPU loop (elementwise_map.h) and the CUDA kernel (elementwise_map.cuh). C11 and C++17.
 */
#ifndef RW_OPS_COMMON_COALESCED_AXES_H
#define RW_OPS_COMMON_COALESCED_AXES_H

#include <rewind/op.h>

#define RW_AXES_INPUTS 3

struct rw_axes {
    int rank; /* 1 or more */
    int64_t dim[RW_MAX_RANK];
    int64_t stride[RW_AXES_INPUTS][RW_MAX_RANK]; /* 0 along a broadcast axis */
};

static inline int64_t rw_axes_stride(const rw_layout *in, const rw_layout *out, int axis)
{
    const int i = axis - (out->rank - in->rank);
    return i < 0 || in->dim[i] == 1 ? 0 : in->stride[i];
}

static inline void rw_axes_flat(const rw_kernel *k, int n_in, struct rw_axes *m)
{
    m->rank = 1;
    m->dim[0] = k->out[0].layout->numel;
    for (int i = 0; i < n_in; i++) m->stride[i][0] = 1;
}

/* Drops axes of extent 1, and joins adjacent axes where the strides of all inputs allow it. */
static inline void rw_axes_join(const rw_kernel *k, int n_in, struct rw_axes *m)
{
    const rw_layout *const out = k->out[0].layout;
    bool flat = true;
    for (int i = 0; i < n_in; i++) flat &= k->in[i].layout == out;
    if (flat) {
        rw_axes_flat(k, n_in, m);
        return;
    }
    m->rank = 0;
    for (int axis = 0; axis < out->rank; axis++) {
        if (out->dim[axis] == 1) continue;
        bool joins = m->rank > 0;
        for (int i = 0; i < n_in && joins; i++)
            joins = m->stride[i][m->rank - 1] == rw_axes_stride(k->in[i].layout, out, axis) * out->dim[axis];
        if (!joins) m->dim[m->rank++] = 1;
        m->dim[m->rank - 1] *= out->dim[axis];
        for (int i = 0; i < n_in; i++) m->stride[i][m->rank - 1] = rw_axes_stride(k->in[i].layout, out, axis);
    }
    if (!m->rank) rw_axes_flat(k, n_in, m);
}

#endif
