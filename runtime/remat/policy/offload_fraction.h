/*
 * Choices that offload a fraction of what is kept, which a planner compares with keeping and replaying it. Backward
 * reads last what forward computes first, so that is offloaded first: its copies have the most time.
 */
#ifndef RW_REMAT_POLICY_OFFLOAD_FRACTION_H
#define RW_REMAT_POLICY_OFFLOAD_FRACTION_H

#include "remat/policy/choice.h"

/*
 * Offloads the first `part` of `parts` equal parts of the bytes that the choice keeps for backward. Results and values
 * that the caller saves stay. RW_ERR_MEMORY.
 */
rw_status rw_move_first(const struct rw_problem *p, struct rw_choice *c, unsigned part, unsigned parts);

/* Does the choice offload anything? */
bool rw_choice_moves(const struct rw_problem *p, const struct rw_choice *c);

#endif
