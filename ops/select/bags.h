/* What the definitions and the kernels of embedding_bag_offsets and embedding_bag_argmax share. C11 and C++17. */
#ifndef RW_OPS_BAGS_H
#define RW_OPS_BAGS_H

#include "base/host_device.h"

#include <stdbool.h>
#include <stdint.h>

struct rw_bags_attrs {
    int64_t places; /* of the index */
    int64_t ends;   /* 1: the last offset begins no bag, it is where the one before ends; else 0 */
};

/* Is offset i of n what it has to be? The first is 0, none falls, none is behind the places, and an end is theirs. */
RW_HOST_DEVICE bool rw_bags_offset_fits(const struct rw_bags_attrs *a, const int32_t *offset, int64_t i, int64_t n)
{
    if (i ? offset[i] < offset[i - 1] : offset[i] != 0) return false;
    return a->ends && i == n - 1 ? offset[i] == a->places : offset[i] <= a->places;
}

#endif
