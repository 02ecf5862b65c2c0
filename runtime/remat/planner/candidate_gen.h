/* The sequence of candidates that the planner tries. It never depends on the budget. frontier.h describes the whole. */
#ifndef RW_REMAT_PLANNER_CANDIDATE_GEN_H
#define RW_REMAT_PLANNER_CANDIDATE_GEN_H

#include "remat/planner/candidates.h"

/* Adds `none`, which is candidate 0; and the other policies that users write by hand, if there are regions. */
rw_status rw_propose_none(struct rw_candidates *c);
rw_status rw_propose_named(struct rw_candidates *c);

/*
 * Adds minimum cuts and nested checkpointing, and fills both (min_cut.h, rotor.h, greedy_fill.h): at most n_try
 * candidates, and n_more that are filled in another order. Before the call, the caller's scratch must hold the schedule
 * of `none`. RW_ERR_MEMORY.
 */
rw_status rw_propose_compact_choices(struct rw_candidates *c, size_t n_try, size_t n_more);

#endif
