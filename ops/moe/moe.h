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

/* The result of a scatter has so many columns. */
struct rw_moe_scatter_attrs {
    int64_t experts;
};

/* k: slots of a token. gathers: x has a row for each token. turned: x's rows times weight [E, out, in], not its
   transpose. */
struct rw_moe_linear_attrs {
    int64_t k, gathers, turned;
};

/* gathers: x, gathers_dy: dy has a row for each token. */
struct rw_moe_outer_attrs {
    int64_t k, gathers, gathers_dy, experts;
};

struct rw_moe_gather_attrs {
    int64_t k;
};

extern const rw_op_def rw_op_moe_gather, rw_op_moe_combine;

/* Of ops on rows that are weighed: inputs `at` to at + 2 are their weights, order and inverse. */
rw_status rw_moe_want_weights(rw_op_call *call, int at);

/* Bytes of the rows' dot products, by row. */
size_t rw_moe_dots_workspace(const rw_op_call *call);

/* For rules: the dot products of rows of a and b, by slot [T, k]; it can be differentiated. */
rw_tensor *rw_moe_dot(rw_tape *t, rw_tensor *a, rw_tensor *b, const rw_moe_routes *routes);

/* Is there what an argument of `name` points at? Else it is refused, before anything is recorded. */
static inline bool rw_moe_is_there(rw_site at, rw_tape *t, const char *name, const char *argument, const void *pointer)
{
    if (!pointer) rw_refuse_at(at, t, RW_ERR_ARGUMENT, "%s: %s is NULL", name, argument);
    return pointer != NULL;
}

/* Routes come from the caller: one that did not come from rw_moe_route() may lead nowhere, but not out of memory. */
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

/* Of the CPU's products: columns and rows that are summed at once; outer sums are taken in chunks of rows. */
#define MOE_COLS 64
#define MOE_STRIP 6
#define MOE_OUTER_ROWS 256
#define MOE_OUTER_STRIPS 16
/* Workspace per thread, in the type of sums. */
#define MOE_OUTER_ELEMENTS \
    ((int64_t)(MOE_OUTER_ROWS * MOE_COLS + (MOE_OUTER_ROWS + MOE_COLS) * MOE_STRIP * MOE_OUTER_STRIPS))

static inline int64_t rw_moe_linear_elements(int64_t depth)
{
    return (depth + 1) * (MOE_COLS + 16) + MOE_STRIP * MOE_COLS; /* 16: a strip, with room to stay on whole lines */
}

/* Slots that one thread block counts and places on CUDA; [chunk][expert] counts are the workspace. */
#define MOE_CHUNK 256

/* What is dropped is counted and placed like the rows of one more expert. */
RW_HOST_DEVICE int64_t rw_moe_key(int32_t index, int64_t experts)
{
    return index == RW_MOE_DROPPED ? experts : rw_moe_within(index, experts);
}

#endif
