/* Attributes of prefix sums, and the extents around their axis. */
#ifndef RW_OPS_REDUCE_CUMSUM_H
#define RW_OPS_REDUCE_CUMSUM_H

#include <rewind/op.h>

extern const rw_op_def rw_op_cumsum;

struct rw_cumsum_attrs {
    int64_t axis, backwards; /* backwards: sums of suffixes */
};

/* A dense tensor as outer x n x inner around the axis of the sums. */
struct rw_cumsum_cut {
    int64_t outer, n, inner;
};

static inline struct rw_cumsum_cut rw_cumsum_cut(const rw_layout *l, int64_t axis)
{
    struct rw_cumsum_cut c = { 1, l->dim[axis], 1 };
    for (int i = 0; i < axis; i++) c.outer *= l->dim[i];
    for (int i = (int)axis + 1; i < l->rank; i++) c.inner *= l->dim[i];
    return c;
}

#endif
