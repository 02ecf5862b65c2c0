/*
 * Synchronizes lanes while a part of a run is executed. An action of a copy lane starts after all compute actions
 * before it in the list; other waits are those of the plan.
 *
 *     events of a run: i = the plan's i-th copy action has ended; n_aside + i = compute has reached it
 */
#ifndef RW_RUN_COPY_LANE_SYNC_H
#define RW_RUN_COPY_LANE_SYNC_H

#include "run/run_state.h"

struct rw_lanes {
    const struct rw_run *run;
    size_t wait, aside; /* of the plan's, the next ones */
    size_t next;        /* the next action that waits, is waited for or is on another lane; SIZE_MAX: none */
};

/* Call at the first action of a part. A plan with one lane then costs one comparison per action. */
struct rw_lanes rw_lanes_at(const struct rw_run *r, size_t from);

/* Call before and after queuing action l->next. If a wait fails, *ret_on is the action that was waited for. */
rw_status rw_lanes_before(struct rw_lanes *l, size_t *ret_on);
rw_status rw_lanes_after(struct rw_lanes *l);

#endif
