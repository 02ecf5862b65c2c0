/* Advances runs: executes actions up to a point, waits for the device, and commits what the run has computed to the
   tape and the context (rw_run_settle()). lifecycle.h creates and destroys runs. */
#ifndef RW_RUN_RUN_ADVANCE_H
#define RW_RUN_RUN_ADVANCE_H

#include "run/lifecycle.h"

/* Bytes that suspended runs hold, in device memory and in offload stores. */
size_t rw_runs_waiting(const rw_context *ctx);

/*
 * Queues the actions up to `to` without waiting. If a failure is detected before the first one is queued, the run is
 * unchanged; after any other failure all queued work has run and the run has failed.
 */
rw_status rw_run_advance(struct rw_run *r, size_t to);

/* rw_run_advance() in three parts, for a launch that is captured: resolve addresses and memory; execute the actions;
   record that they are queued. */
rw_status rw_run_prepare(struct rw_run *r, size_t to);
rw_status rw_run_execute(struct rw_run *r, size_t to);
void rw_run_is_queued(struct rw_run *r, size_t to);
/* After a failure of one of the three: waits for queued work and marks the run as failed. Returns status. */
rw_status rw_run_fail(struct rw_run *r, rw_status status);

/* Commits results of the run to the tape: values held for reading, effects that have happened, gradients that are
   written. Before or after the wait. */
rw_status rw_run_settle(struct rw_run *r);

/* Waits for all queued work of the context. Returns the first failure among runs that nothing has waited for yet. */
rw_status rw_runs_wait(rw_context *ctx);

/* Advances, waits and commits; destroys the run unless it is suspended. */
rw_status rw_run_through(struct rw_run *r, size_t to);

/* Destroys the suspended runs of the tape. */
void rw_runs_end(rw_tape *t);

/* Call when a context is created: the pool, and the end of runs with each reset of a tape and with the context.
   RW_ERR_MEMORY, not recorded. */
rw_status rw_runs_init(rw_context *ctx, size_t waiting_most);

#endif
