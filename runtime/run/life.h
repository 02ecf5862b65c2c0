/* Runs are found or made, begin anew, end, and give back what they hold. Who moves one on is advance.h. */
#ifndef RW_RUN_LIFE_H
#define RW_RUN_LIFE_H

#include "run/run.h"

/* The run that stopped in a plan of that request and can go on to its end, or a new one. Errors are recorded. */
rw_status rw_run_find(rw_tape *t, const struct rw_request *request, struct rw_run **ret_run);

/* The one that stopped in a plan of that request, whether it can go on or not; NULL when there is none. */
struct rw_run *rw_run_stopped(const rw_tape *t, const struct rw_request *request);

/* Of all that have stopped the one that did so first, but for `but`; NULL when there is none. */
struct rw_run *rw_runs_stopped_first(const rw_context *ctx, const struct rw_run *but);

/* A new run of a plan. The context's observers are attached. */
rw_status rw_run_make(rw_tape *t, rw_plan *plan, unsigned flags, struct rw_run **ret_run);
void rw_run_watch(struct rw_run *r, struct rw_observer *o);

/* An owned run begins again, under the draws of its tape, at the addresses it had if they are free. */
void rw_run_restart(struct rw_run *r);

/* Gives back what it has. NULL-safe. */
void rw_run_end(struct rw_run *r);

void rw_run_set_state(struct rw_run *r, enum rw_run_state state);
void rw_run_give_arena_back(struct rw_run *r);
void rw_run_leave_queue(struct rw_run *r); /* if it is in it */

/* Under `total:` steps that wait give their memory, too, where all that is free is not enough. False: nor is that. */
bool rw_run_make_room(struct rw_run *r, size_t bytes);

bool rw_run_is_valid(const struct rw_run *r);

#endif
