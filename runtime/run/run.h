/* Pass 5: walks a plan on the context's device. */
#ifndef RW_RUN_RUN_H
#define RW_RUN_RUN_H

#include "plan/plan.h"
#include "record/tape.h"

/*
 * Watches a run. Called after each step with its kernel arguments; a status other than RW_OK ends the run with it.
 * ticket may be changed before the step runs (planted faults).
 */
struct rw_observer {
    rw_status (*before)(struct rw_observer *o, const rw_plan *plan, size_t step, rw_kernel *k);
    rw_status (*after)(struct rw_observer *o, const rw_plan *plan, size_t step, const rw_kernel *k);
};

/* Node and value of a plan: the tape's below the mark, the plan's own behind. */
static inline const struct rw_node *rw_plan_node(const rw_tape *t, const rw_plan *p, uint32_t n)
{
    return n < p->mark_nodes ? &t->nodes[n] : &p->nodes[n - p->mark_nodes];
}

static inline uint32_t rw_plan_operand(const rw_tape *t, const rw_plan *p, uint32_t i)
{
    return i < p->mark_operands ? t->operands[i] : p->operands[i - p->mark_operands];
}

/* The ticket of a random node as its kernel sees it. */
static inline rw_ticket rw_plan_ticket(const rw_tape *t, const struct rw_node *node)
{
    rw_ticket ticket = t->tickets[node->ticket];
    if (!t->ctx->device->set_ticket_base) ticket.offset += t->ticket_base;
    return ticket;
}

/*
 * Runs steps [from, to). The arena and the tape's block of results are made large enough first.
 * On a failure the error is recorded; results of the plan are then not held.
 */
rw_status rw_plan_run(rw_tape *t, rw_plan *plan, size_t from, size_t to, struct rw_observer *observer);

/* The same in two: where everything lies, and all steps queued without waiting for them. */
struct rw_plan_memory {
    void *arena;
    void **sources; /* of the plan's n_sources, owned by the caller */
};
rw_status rw_plan_prepare(rw_tape *t, const rw_plan *plan, struct rw_plan_memory *memory);
rw_status rw_plan_queue(rw_tape *t, rw_plan *plan, const struct rw_plan_memory *memory, size_t from, size_t to,
                        struct rw_observer *observer);

/* Steps [from, to) of a plan may have run, and the whole has failed: gradients that they added to are no sums. */
void rw_plan_spoil(rw_tape *t, const rw_plan *plan, size_t from, size_t to);

/* Waits for a queued plan and reports what failed in it. */
rw_status rw_plan_wait(rw_tape *t, const rw_plan *plan);

/* Waits for the graph that was launched last, if nobody has. */
rw_status rw_launched_wait(rw_context *ctx);

/* Notes which results the tape now holds, which effects have happened and which gradients are written. */
rw_status rw_plan_settle(rw_tape *t, const rw_plan *plan, size_t from, size_t to);

#endif
