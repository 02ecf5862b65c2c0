/*
 * Results: the memory of what a run holds for reading - losses, values that were asked for, gradients of tape values.
 * A block is counted: by the pool of its tape, by the run that fills it, by each value held in it, by each gradient
 * handle. One that only the pool counts is free for the next run; no other is written again.
 */
#ifndef RW_RUN_RESULTS_H
#define RW_RUN_RESULTS_H

#include "plan/plan.h"
#include "record/tape.h"

struct rw_results {
    struct rw_results *next; /* in the tape's pool */
    void *data;
    size_t bytes;
    uint64_t plan; /* serial of the plan that filled it last: the same plan takes it again, at the same address */
    int references;
};

/* A block for the plan's results, counted for the caller; NULL without memory. */
struct rw_results *rw_results_take(rw_tape *t, const rw_plan *plan);
void rw_results_release(rw_context *ctx, struct rw_results *results); /* NULL-safe */

/* Blocks that only their pools count, of all tapes of the context, go. */
void rw_results_free_unused(rw_context *ctx);

/* Room for what a run of the plan will leave behind: nothing that has been computed is lost for want of it. */
bool rw_results_reserve(rw_tape *t, const rw_plan *plan);

/* The tape holds a base value, or a gradient of one of its values, at that offset. RW_ERR_MEMORY. */
rw_status rw_results_hold(rw_tape *t, struct rw_results *results, const struct rw_result *r);
rw_status rw_results_hand_out(rw_tape *t, struct rw_results *results, const struct rw_result *r);

/* The tape holds no value any more; its gradient handles stay. */
void rw_results_let_go(rw_tape *t);
/* Nor one from the tape's n_values on: what was recorded last was undone. */
void rw_results_undone(rw_tape *t);
/* The handles go too. */
void rw_results_forget(rw_tape *t);
/* The pool itself goes. */
void rw_results_finish(rw_tape *t);

#endif
