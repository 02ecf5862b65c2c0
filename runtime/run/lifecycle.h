/* Finds, creates, restarts and destroys runs, and returns what they hold. run_advance.h executes them. */
#ifndef RW_RUN_LIFECYCLE_H
#define RW_RUN_LIFECYCLE_H

#include "run/run_state.h"

/* The suspended run of a plan of that request if it can complete it, or a new one. Errors are recorded. */
rw_status rw_run_find(rw_tape *t, const struct rw_request *request, struct rw_run **ret_run);

/* The suspended run of that request, whether it can continue or not; NULL if there is none. */
struct rw_run *rw_run_stopped(const rw_tape *t, const struct rw_request *request);

/* The run that a read of this tape has started and no backward has continued yet; NULL if there is none. */
struct rw_run *rw_run_assumed(const rw_tape *t);
/* The tape's step differs from the expected one: destroys that run. */
void rw_runs_end_assumed(const rw_tape *t);

/* Is the tape recorded up to the end of the run's plan? If so, a run ahead becomes an ordinary one. */
bool rw_run_is_reached(struct rw_run *r);

/* The oldest suspended run of the context other than `but`; NULL if there is none. */
struct rw_run *rw_runs_stopped_first(const rw_context *ctx, const struct rw_run *but);

/* Has another run executed an effect that this suspended run would still execute? Then it must not continue. */
bool rw_run_is_overtaken(const struct rw_run *r);

/* Creates a run of a plan and attaches the context's observers. */
rw_status rw_run_make(rw_tape *t, rw_plan *plan, unsigned flags, struct rw_run **ret_run);
/* RW_ERR_MEMORY, which is recorded: the observer is detached again. */
rw_status rw_run_watch(struct rw_run *r, struct rw_observer *o);

/* Restarts an owned run, with the current draws of its tape, at its earlier addresses if they are free. */
void rw_run_restart(struct rw_run *r);

/* Destroys the run and returns what it holds. NULL-safe. */
void rw_run_end(struct rw_run *r);

void rw_run_set_state(struct rw_run *r, enum rw_run_state state);
void rw_run_give_arena_back(struct rw_run *r);

/* Does nothing if it is not queued. Returns the run that was queued after it, NULL if none was. */
struct rw_run *rw_run_leave_queue(struct rw_run *r);

/* Under `total:`, frees memory until so many bytes fit: free arenas and results first, then suspended steps. False
   if they still do not fit. */
bool rw_run_make_room(struct rw_run *r, size_t bytes);

/*
 * An allocation has failed: frees free arenas, else free blocks of results, else the oldest suspended step, which is
 * recomputed later. False if nothing is left, or inside of a callback, whose caller may use any of them.
 */
bool rw_runs_release(rw_context *ctx);

bool rw_run_is_valid(const struct rw_run *r);

#endif
