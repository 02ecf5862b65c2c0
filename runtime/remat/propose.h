/* What the planner tries, in this order and never by the budget. See frontier.h for the whole of it. */
#ifndef RW_REMAT_PROPOSE_H
#define RW_REMAT_PROPOSE_H

#include "remat/candidates.h"

/* `none` is candidate 0; the other policies that people write by hand, where there are regions. */
rw_status rw_propose_none(struct rw_candidates *c);
rw_status rw_propose_named(struct rw_candidates *c);

/*
 * Cuts, nests, and both filled (closure.h, nest.h, fill.h): n_try candidates at most, and n_more that are filled in
 * another order. The caller's room holds the
 * schedule of `none`. RW_ERR_MEMORY.
 */
rw_status rw_propose_recipes(struct rw_candidates *c, size_t n_try, size_t n_more);

#endif
