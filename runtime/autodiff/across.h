/*
 * Which inputs of a call threads read that others wrote.
 *
 * Threads share a tensor by its rows, along the axis whose steps in memory are the longest, one part behind the other.
 * Where an output has as many rows along the same axis, a thread makes its rows of those of the input, which it wrote
 * itself: of gelu, of a norm, of x in x w^T. Otherwise it reads what others wrote, too: both sides of a weight's
 * gradient, a sum over rows. Of an output of one element each thread adds up its own.
 */
#ifndef RW_AUTODIFF_ACROSS_H
#define RW_AUTODIFF_ACROSS_H

#include <rewind/op.h>

#include <stdint.h>

/* A bit for each input, of the first 64. */
uint64_t rw_call_across(const rw_op_call *call);

static inline bool rw_is_across(uint64_t across, uint32_t input)
{
    return input < 64 && across >> input & 1;
}

#endif
