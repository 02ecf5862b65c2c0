/*
 * Pass 4: static placement. Each buffer of a step gets one offset, such that no two buffers that are live at the same
 * time overlap. The size of the arena is the peak, known before the step runs.
 *
 * The arena has two ends. Buffers with long lifetimes (kept activations) are stacked from the bottom while forward
 * runs, and backward pops them from the top of the stack. Buffers with short lifetimes are at the other end, where they
 * cannot split the stack:
 *
 *     offset
 *     size |--[t1][t2]--[t3]-----|-----[d3]--[d2]----[d1]--|   transients, from the top down
 *          |           .         |   .                     |
 *          |       free.         |   . free                |
 *          |    +------+---------+---+                     |
 *          |    | k3             |   |                     |
 *          |  +-+----------------+---+-----+               |   kept activations, from the bottom up
 *          |  | k2               |         |               |
 *        0 |--+------------------+---------+---------------|-> action
 *                   forward      |     backward
 *
 * Equations, which rw_place_is_valid() checks:
 *     two lifetimes that share an action have disjoint [offset, offset + bytes);  offset is a multiple of the alignment
 *     largest sum of live bytes <= size, and nearly equal
 */
#ifndef RW_PLACE_PLACE_H
#define RW_PLACE_PLACE_H

#include "remat/schedule/lifetimes.h"

/*
 * Places n buffers at multiples of alignment. Deterministic. *ret_size is the arena's size.
 * Several cheap heuristics are tried until one needs no more than the largest sum of live bytes; the best is kept.
 * RW_ERR_MEMORY leaves the offsets undefined.
 */
rw_status rw_place(struct rw_lifetime *life, size_t n, uint64_t alignment, uint64_t *ret_size);

/* The largest sum of live bytes at any step, each buffer rounded up: no placement can be smaller. 0 without memory. */
uint64_t rw_largest_live(const struct rw_lifetime *life, size_t n, uint64_t alignment);

/* True if no two buffers that are live at the same time overlap, and all end below size. */
bool rw_place_is_valid(const struct rw_lifetime *life, size_t n, uint64_t alignment, uint64_t size);

#endif
