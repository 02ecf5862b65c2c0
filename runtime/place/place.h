/*
 * Pass 4: one offset for each buffer of a step, so that no two that live at the same time overlap. The arena's size is
 * the peak: known before anything runs.
 *
 * The arena has two ends. What lives long (kept activations) is stacked from the bottom while forward runs, and
 * backward takes it down from its top; what dies soon lies at the other end and never splits the stack:
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
 *     two lives that share an action have disjoint [offset, offset + bytes);  offset is a multiple of the alignment
 *     largest sum of live bytes <= size, and nearly equal
 */
#ifndef RW_PLACE_PLACE_H
#define RW_PLACE_PLACE_H

#include "remat/lives.h"

/*
 * Places n buffers at multiples of alignment. Deterministic. *ret_size is the arena's size.
 * Several cheap heuristics are tried until one needs no more than the largest sum of live bytes; the best is kept.
 * RW_ERR_MEMORY leaves the offsets undefined.
 */
rw_status rw_place(struct rw_life *life, size_t n, uint64_t alignment, uint64_t *ret_size);

/* The largest sum of live bytes at any step, each buffer rounded up: no placement can be smaller. 0 without memory. */
uint64_t rw_largest_live(const struct rw_life *life, size_t n, uint64_t alignment);

/* True when no two buffers that live at the same time overlap and all lie below size. */
bool rw_place_is_valid(const struct rw_life *life, size_t n, uint64_t alignment, uint64_t size);

#endif
