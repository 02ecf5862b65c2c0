/*
 * Lanes under way: what keeps them in order while a part of a run is walked. An action beside the compute lane begins
 * after all compute actions before it in the list; it waits, and is waited for, where the plan says.
 *
 *     events of a run: i of the plan's actions beside compute has ended; n_aside + i: compute has come to it
 */
#ifndef RW_RUN_LANES_H
#define RW_RUN_LANES_H

#include "run/run.h"

struct rw_lanes {
    const struct rw_run *run;
    size_t wait, aside; /* of the plan's, the next ones */
    size_t next;        /* action that has to do with them; SIZE_MAX: none any more */
};

/* At the first action of a part. A plan of one lane costs one compare an action from here on. */
struct rw_lanes rw_lanes_at(const struct rw_run *r, size_t from);

/* Around action l->next. In between its copy is queued, or what it is. Where a wait fails, *ret_on is the action that
   was waited for. */
rw_status rw_lanes_before(struct rw_lanes *l, size_t *ret_on);
rw_status rw_lanes_after(struct rw_lanes *l);

#endif
