/*
 * The order of the largest elements of a row, with their places. It is total and the same in every kernel: by value
 * from the largest on, NaN before everything, equal values by place. C11 and C++17.
 */
#ifndef RW_OPS_TOP_H
#define RW_OPS_TOP_H

#include "base/host_device.h"

#include <rewind/op.h>

struct rw_place_attrs {
    int64_t axis, keep;
};

struct rw_topk_attrs {
    int64_t k;
};

/* Does value v at place i precede value w at place j? The values of one row, each exact in a double. */
RW_HOST_DEVICE bool rw_comes_before(double v, int64_t i, double w, int64_t j)
{
    const bool nan_v = v != v, nan_w = w != w;
    if (nan_v != nan_w) return nan_v;
    if (nan_v || v == w) return i < j;
    return v > w;
}

#endif
