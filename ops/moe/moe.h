/* Mixture of experts: attributes, and what the ops share with their kernels. C11 and C++17. */
#ifndef RW_OPS_MOE_H
#define RW_OPS_MOE_H

#include "base/host_device.h"

#include <rewind/moe.h>
#include <rewind/op.h>

struct rw_moe_topk_attrs {
    int64_t k, groups, best_groups, group_sum;
};

struct rw_moe_route_attrs {
    int64_t experts;
};

struct rw_moe_drop_attrs {
    int64_t capacity;
};

/* The number of columns of a scatter's result. */
struct rw_moe_scatter_attrs {
    int64_t experts;
};

/* k: slots of a token. gathers: x has one row per token. `transposed`: the rows of x times weight [E, out, in] itself,
   not times its transpose. */
struct rw_moe_linear_attrs {
    int64_t k, gathers, transposed;
};

/* gathers: x has one row per token; gathers_dy: dy does. */
struct rw_moe_outer_attrs {
    int64_t k, gathers, gathers_dy, experts;
};

struct rw_moe_gather_attrs {
    int64_t k;
};

extern const rw_op_def rw_op_moe_gather, rw_op_moe_combine;

/* For ops on weighted rows: checks inputs `at` to at + 2, the weights, order and inverse. */
rw_status rw_moe_want_weights(rw_op_call *call, int at);

/* Bytes of the rows' dot products, by row. */
size_t rw_moe_dots_workspace(const rw_op_call *call);

/* For rules: the dot products of rows of a and b, by slot [T, k]; differentiable. */
rw_tensor *rw_moe_dot(rw_tape *t, rw_tensor *a, rw_tensor *b, const rw_moe_routes *routes);

/* Is the pointer of this argument not NULL? If it is NULL, an error is reported before anything is recorded. */
bool rw_moe_is_there(rw_site at, rw_tape *t, const char *name, const char *argument, const void *pointer);

/* Clamps an index to [0, n). Routes come from the caller: those that rw_moe_route() did not compute may be wrong, but
   must not lead outside of memory. */
RW_HOST_DEVICE int64_t rw_moe_within(int64_t i, int64_t n)
{
    return i < 0 ? 0 : i >= n ? n - 1 : i;
}

/* The rows [from, to) of an expert. */
struct moe_range {
    int64_t from, to;
};

RW_HOST_DEVICE struct moe_range rw_moe_rows_of(const int32_t *offsets, int64_t expert, int64_t rows)
{
    struct moe_range r;
    r.from = offsets[expert] < 0 ? 0 : offsets[expert] > rows ? rows : offsets[expert];
    r.to = offsets[expert + 1] < r.from ? r.from : offsets[expert + 1] > rows ? rows : offsets[expert + 1];
    return r;
}

/* Tile sizes of the CPU's products: columns and rows that are summed at once. Sums of outer products are computed in
   chunks of rows. */
#define MOE_COLS 64
#define MOE_STRIP 6
#define MOE_OUTER_ROWS 256
#define MOE_OUTER_STRIPS 16
/* Workspace per thread, in elements of the type of sums. */
#define MOE_OUTER_ELEMENTS \
    ((int64_t)(MOE_OUTER_ROWS * MOE_COLS + (MOE_OUTER_ROWS + MOE_COLS) * MOE_STRIP * MOE_OUTER_STRIPS))

static inline int64_t rw_moe_linear_elements(int64_t depth)
{
    return (depth + 1) * (MOE_COLS + 16) + MOE_STRIP * MOE_COLS; /* 16: a strip, with padding to whole cache lines */
}

/* Slots that one thread block counts and places on CUDA; the workspace holds the [chunk][expert] counts. */
#define MOE_CHUNK 256

/* The expert of a slot; dropped slots are counted and placed as if they were those of one more expert. */
RW_HOST_DEVICE int64_t rw_moe_key(int32_t index, int64_t experts)
{
    return index == RW_MOE_DROPPED ? experts : rw_moe_within(index, experts);
}

#endif
