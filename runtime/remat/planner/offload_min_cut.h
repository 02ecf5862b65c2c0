/*
 * Candidates that keep, replay or offload each value, by one minimum cut for two prices of a byte: l where it is kept,
 * and u, not more than l, where it is offloaded. A value that may be offloaded costs the lower of the two, so it is one
 * cut as in min_cut.h, with a price for each value:
 *
 *     forward   |---------- first part -----------|---------- rest ----------|
 *     a byte costs         u: replayed or offloaded       l: replayed or kept
 *
 * Backward reads last what forward computes first, so copies of the first part have the most time. A lane that is busy
 * during all of forward has the price u. Prefixes of candidates without offload (offload_frontier.c) drop values at
 * price l; here they are replayed only where that is cheaper than a copy.
 *
 * All pairs of a few prices of the tape and all lengths of the first part are tried: nothing depends on a budget.
 */
#ifndef RW_REMAT_PLANNER_OFFLOAD_MIN_CUT_H
#define RW_REMAT_PLANNER_OFFLOAD_MIN_CUT_H

#include "remat/planner/candidates.h"

/* Adds at most about `most` candidates, with their costs. RW_ERR_MEMORY. */
rw_status rw_propose_moved_cuts(struct rw_candidates *c, size_t most);

/* May a planner offload the value? It need not be read by backward itself, because a replay may read it. */
bool rw_value_may_move(const struct rw_replayable *g, uint32_t v);

#endif
