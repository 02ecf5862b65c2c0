/*
 * Finds the inputs of a call that one thread reads after another has written them, which costs a transfer between
 * caches.
 *
 * Threads divide a tensor by rows, along the axis with the largest stride, one contiguous part each. If an output has
 * as many rows along the same axis, a thread computes its rows from the rows of the input that it wrote itself: gelu, a
 * norm, x in x w^T. Otherwise it also reads rows that other threads wrote: both operands of a weight gradient, a sum
 * over rows. For an output of one element, each thread sums its own rows.
 */
#ifndef RW_AUTODIFF_CACHE_COHERENCE_TRAFFIC_H
#define RW_AUTODIFF_CACHE_COHERENCE_TRAFFIC_H

#include <rewind/op.h>

#include <stdint.h>

/* A bit per input, for the first 64. */
uint64_t rw_cache_transfers(const rw_op_call *call);

static inline bool rw_is_cache_transfer(uint64_t across, uint32_t input)
{
    return input < 64 && across >> input & 1;
}

#endif
