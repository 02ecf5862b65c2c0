/*
 * Memory of results, the values that a run holds for reading: losses, requested values, gradients of tape values. A
 * block is reference-counted: by the pool of its tape, by the run that fills it, by each value held in it, and by each
 * gradient handle. A block that only the pool references is free for the next run; no other block is overwritten.
 */
#ifndef RW_RUN_RESULT_MEMORY_H
#define RW_RUN_RESULT_MEMORY_H

#include "plan/plan.h"
#include "record/tape.h"

#define RW_RESULTS_IDLE_STEPS 4

struct rw_results {
    struct rw_results *next; /* in the tape's pool */
    void *data;
    size_t bytes;
    uint64_t step; /* the tape's step at its last use by a run */
    uint64_t plan; /* serial of the plan that filled it last, which reuses it at the same address */
    int references;
};

/* A block for the plan's results, referenced for the caller; NULL without memory. */
struct rw_results *rw_results_take(rw_tape *t, const rw_plan *plan);
void rw_results_release(rw_context *ctx, struct rw_results *results); /* NULL-safe */

/* Frees blocks that no run of the tape's last RW_RESULTS_IDLE_STEPS steps has used. */
void rw_results_trim(rw_tape *t);

/* Frees blocks that only their pools reference, of all tapes of the context. False if they have no memory. */
bool rw_results_free_unused(rw_context *ctx);

/* Reserves memory for everything that a run of the plan publishes, so that no computed value is lost for lack of
   memory. */
bool rw_results_reserve(rw_tape *t, const rw_plan *plan);

static inline struct rw_held rw_held_in(struct rw_results *results, const struct rw_result *r)
{
    char *const data = results->data;
    return (struct rw_held){ .value = r->value, .data = data ? data + r->offset : NULL, .in = results };
}

/* Publishes a base value, or the gradient of a value, at that offset of a block. RW_ERR_MEMORY. Most values come in
   order and have reserved memory. */
rw_status rw_results_hold_between(rw_tape *t, struct rw_results *results, const struct rw_result *r);
static inline rw_status rw_results_hold(rw_tape *t, struct rw_results *results, const struct rw_result *r)
{
    const bool is_next = t->n_held < t->cap_held && (!t->n_held || t->held[t->n_held - 1].value < r->value);
    if (!is_next) return rw_results_hold_between(t, results, r);
    t->held[t->n_held++] = rw_held_in(results, r);
    results->references++;
    return RW_OK;
}
rw_status rw_results_hand_out(rw_tape *t, struct rw_results *results, const struct rw_result *r);

/* Drops all held values of the tape; its gradient handles stay. */
void rw_results_let_go(rw_tape *t);
/* The handles go too. */
void rw_results_forget(rw_tape *t);

#endif
