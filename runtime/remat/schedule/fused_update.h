/*
 * Fused updates: an update that consumes a gradient inside the step (rw_request.used_up) runs as early as possible.
 * This is after the node that completes the gradient, and after everything that reads what the update writes, including
 * replays. So a parameter's gradient is live from its first contribution to its update, and updates compute the same as
 * at the end of the step. Late updates (rw_recorder.late) stay at the end.
 */
#ifndef RW_REMAT_SCHEDULE_FUSED_UPDATE_H
#define RW_REMAT_SCHEDULE_FUSED_UPDATE_H

#include "remat/schedule/schedule.h"

/* Is the action such an update? */
static inline bool rw_action_is_fused_update(const struct rw_problem *p, const struct rw_action *a)
{
    return a->kind == RW_ACTION_COMMIT && a->node >= p->targets.first_update && a->node < p->targets.end_update;
}

/* Moves the updates of a schedule that has its commits at the end and no copies yet. RW_ERR_MEMORY. */
rw_status rw_fused_updates(const struct rw_problem *p, struct rw_schedule *s);

/*
 * The maximum bytes of gradients that are live at one time, from their first contribution to their update.
 * RW_ERR_MEMORY.
 */
rw_status rw_updates_gradients(const struct rw_problem *p, const struct rw_schedule *s, uint64_t *ret_bytes);

#endif
