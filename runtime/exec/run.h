/* Pass 5: walks a plan on the context's device. */
#ifndef RW_EXEC_RUN_H
#define RW_EXEC_RUN_H

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

/*
 * Runs steps [from, to). The arena and the tape's block of results are made large enough first.
 * On a failure the error is recorded; results of the plan are then not held.
 */
rw_status rw_plan_run(rw_tape *t, rw_plan *plan, size_t from, size_t to, struct rw_observer *observer);

/* Notes which results the tape now holds, which effects have happened and which gradients are written. */
rw_status rw_plan_settle(rw_tape *t, const rw_plan *plan, size_t from, size_t to);

/* The memory of a result after the run. */
void *rw_plan_result(const rw_tape *t, const rw_plan *plan, const struct rw_result *result);

#endif
