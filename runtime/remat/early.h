/*
 * Updates that use up a gradient inside the step (rw_request.used_up) run as soon as they can: behind the node that
 * completes the gradient and behind everything that reads what they write, replays among it. So a parameter's gradient
 * lives from its first contribution to its update, and what the updates compute is what they compute at the end. Late
 * ones (rw_recorder.late) stay at the end.
 */
#ifndef RW_REMAT_EARLY_H
#define RW_REMAT_EARLY_H

#include "remat/schedule.h"

/* Is the action such an update? */
static inline bool rw_action_is_early(const struct rw_problem *p, const struct rw_action *a)
{
    return a->kind == RW_ACTION_COMMIT && a->node >= p->targets.first_update && a->node < p->targets.end_update;
}

/* Moves them, of a schedule whose commits stand at its end, without moves. RW_ERR_MEMORY. */
rw_status rw_updates_early(const struct rw_problem *p, struct rw_schedule *s);

/* Most bytes of gradients that are alive at one time, from their first contribution to their update. RW_ERR_MEMORY. */
rw_status rw_updates_gradients(const struct rw_problem *p, const struct rw_schedule *s, uint64_t *ret_bytes);

#endif
