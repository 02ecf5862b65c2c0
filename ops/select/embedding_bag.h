/* Shared by the definitions and kernels of embedding_bag_offsets and embedding_bag_argmax. C11 and C++17. */
#ifndef RW_OPS_EMBEDDING_BAG_H
#define RW_OPS_EMBEDDING_BAG_H

#include "base/host_device.h"

#include <stdbool.h>
#include <stdint.h>

struct rw_bags_attrs {
    int64_t places; /* of the index */
    int64_t ends;   /* 1: the last offset is only the end of the last bag; else 0 */
};

/* Is offset i of n valid? The first is 0, they never decrease, none exceeds the number of places, and a final end
   offset equals it. */
RW_HOST_DEVICE bool rw_bags_offset_fits(const struct rw_bags_attrs *a, const int32_t *offset, int64_t i, int64_t n)
{
    if (i ? offset[i] < offset[i - 1] : offset[i] != 0) return false;
    return a->ends && i == n - 1 ? offset[i] == a->places : offset[i] <= a->places;
}

#endif
