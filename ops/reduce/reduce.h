/* Reductions: attributes shared by checks and kernels. */
#ifndef RW_OPS_REDUCE_H
#define RW_OPS_REDUCE_H

#include <rewind/op.h>

enum rw_reduce_kind { RW_REDUCE_SUM, RW_REDUCE_MEAN, RW_REDUCE_MAX };

struct rw_reduce_attrs {
    uint32_t axes; /* a set made by RW_AXES(), checked */
    int32_t keep, kind, unused;
};

/* Elements whose sum is one partial result of a long reduction. */
#define RW_REDUCE_BLOCK 16384

uint32_t rw_reduce_mask(uint32_t axes, int rank);

#endif
