/*
 * The free gaps of an address range: a treap by address in which each node knows the largest gap below it. Finding the
 * lowest or highest gap that fits, and freeing, take log n. Priorities come from a fixed sequence, so the shape of the
 * tree, and with it the time, is the same in every run; results do not depend on it.
 */
#ifndef RW_PLACE_GAPS_H
#define RW_PLACE_GAPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rw_gap {
    uint64_t from, to;
    uint64_t largest; /* in the subtree */
    uint32_t child[2], parent, rank;
};

/* All zero is an empty set. gap[0] means "none". Adjacent gaps are always merged. */
struct rw_gaps {
    struct rw_gap *gap;
    size_t n, cap;
    uint32_t root, unused, last_rank;
};

void rw_gaps_finish(struct rw_gaps *g);

/* Empties the set, with one gap from 0 to `to`. False without memory, as below. */
bool rw_gaps_reset(struct rw_gaps *g, uint64_t to);

/* Adds a range that was not free. */
bool rw_gaps_give(struct rw_gaps *g, uint64_t from, uint64_t to);

/* Takes from the bottom of the lowest or the top of the highest gap that fits; UINT64_MAX if none does. bytes > 0. */
uint64_t rw_gaps_take(struct rw_gaps *g, uint64_t bytes, bool low);

/* Takes exactly this range. *ret_free: whether all of it was free; if not, nothing has changed. */
bool rw_gaps_take_at(struct rw_gaps *g, uint64_t from, uint64_t to, bool *ret_free);

#endif
