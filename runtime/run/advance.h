/* Runs are found or made (life.h), advanced to an action, waited for, settled. */
#ifndef RW_RUN_ADVANCE_H
#define RW_RUN_ADVANCE_H

#include "run/life.h"

/* Bytes that stopped runs hold, in the device's memory and outside. */
size_t rw_runs_waiting(const rw_context *ctx);

/*
 * Queues the actions up to `to`, and waits for none of them. A failure that was found before the first one was queued
 * leaves the run as it was; after any other, all that was queued has run and the run has failed.
 */
rw_status rw_run_advance(struct rw_run *r, size_t to);

/* The same in three, for a launch that is captured: where everything lies; the walk; what follows it. */
rw_status rw_run_prepare(struct rw_run *r, size_t to);
rw_status rw_run_walk(struct rw_run *r, size_t to);
void rw_run_is_queued(struct rw_run *r, size_t to);
/* One of the three failed: waits for what was queued, and gives the run up. Returns status. */
rw_status rw_run_fail(struct rw_run *r, rw_status status);

/* What the tape now holds, which effects have happened, which gradients are written. Before or after the wait. */
rw_status rw_run_settle(struct rw_run *r);

/* Waits for all that the context has queued. The first failure among the runs of which nobody has heard yet. */
rw_status rw_runs_wait(rw_context *ctx);

/* Advances, waits, settles; ends the run unless it has stopped. */
rw_status rw_run_through(struct rw_run *r, size_t to);

/* The tape's own runs end: those that have stopped. */
void rw_runs_end(rw_tape *t);
/* The tape is reset: they end, others are waited for, what the tape holds goes. */
void rw_runs_reset(rw_tape *t);
rw_status rw_runs_init(rw_context *ctx, size_t waiting_most); /* of the pool */
void rw_runs_finish(rw_context *ctx);

#endif
