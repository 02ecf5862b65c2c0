/*
 * From a policy to a choice.
 *
 * A policy turns regions into segments (one rule per policy). A value is then at home in the innermost segment that
 * holds its producer and every node that may read it again: nodes of segments, which are replayed, and adjoint nodes.
 * So a value that leaves a region and is needed there is at home outside and is kept, or replayed with the region
 * around, like any input of a region. What is at home in the step is kept; what is at home in a segment is made again
 * in its visits, unless the caller or the policy keeps it.
 *
 * What is kept may be moved instead, out of the device's memory: a value that the caller or the policy names, and of
 * regions that the policy names what the policy itself keeps. Adjoint values and results stay.
 *
 * A nested segment whose dropped values take no more bytes than its inputs is dissolved into the one around: replaying
 * it on its own would cost time and save nothing.
 */
#ifndef RW_REMAT_CHOOSE_H
#define RW_REMAT_CHOOSE_H

#include "record/policy.h"
#include "remat/choice.h"

/* RW_ERR_MEMORY leaves *ret_choice empty. */
rw_status rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy, struct rw_choice *ret_choice);

/* Does the policy, or that of the value's part, move it where it keeps it: by its tag, or by a region around it? */
bool rw_policy_may_move(const struct rw_problem *p, const struct rw_policy *whole, uint32_t v);

#endif
