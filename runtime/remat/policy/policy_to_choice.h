/*
 * From a policy to a choice.
 *
 * A policy turns regions into segments, by one rule per policy. The home of a value is the innermost segment that
 * contains its producer and every node that may read it again: nodes of segments, which are replayed, and adjoint
 * nodes. So a value that leaves a region and is needed outside of it has its home outside. It is kept, or recomputed
 * with the region around, like any input of a region. A value whose home is the step is kept. A value whose home is a
 * segment is recomputed in its visits, unless the caller or the policy keeps it.
 *
 * A kept value may be offloaded instead: one that the caller or the policy names, and in regions that the policy names
 * every value that the policy itself keeps. Adjoint values and results stay.
 *
 * A nested segment whose dropped values take no more bytes than its inputs is merged into the segment around: a replay
 * of its own would cost time and save nothing.
 */
#ifndef RW_REMAT_POLICY_POLICY_TO_CHOICE_H
#define RW_REMAT_POLICY_POLICY_TO_CHOICE_H

#include "record/policy.h"
#include "remat/policy/choice.h"

/* Makes the choice of a policy. RW_ERR_MEMORY leaves *ret_choice empty. */
rw_status rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy, struct rw_choice *ret_choice);

/*
 * Does the policy, or that of the value's part, offload the value if it keeps it: by its tag, or by a region around it?
 */
bool rw_policy_may_move(const struct rw_problem *p, const struct rw_policy *whole, uint32_t v);

/* Is the node in a part of the tape that keeps everything? */
bool rw_part_keeps(const struct rw_problem *p, const struct rw_node *node);

/*
 * Must a budget not offload the value? It is small, its caller saves it or has it replayed, or its part of the tape
 * keeps everything and does not offload it by name.
 */
bool rw_value_stays(const struct rw_problem *p, uint32_t base);

/* Minimum bytes of an offloaded value, one unit of files and pages. */
#define RW_OFFLOADED_MIN 4096

#endif
