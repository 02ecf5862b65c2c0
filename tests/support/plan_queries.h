/* The plan of a step, and the ops that its backward executes. For suites that use the library's internals. */
#ifndef RW_TESTS_PLAN_QUERIES_H
#define RW_TESTS_PLAN_QUERIES_H

#include "support/support.h"

#include "plan/plan.h"

/* The cached plan of rw_backward(b->t, loss) under the tape's policy. The cache owns it. */
const rw_plan *step_plan(struct fixture *b, rw_tensor *loss);

/* The node of an action, if it belongs to backward and has this op; else NULL. */
const struct rw_node *backward_node(struct fixture *b, const rw_plan *plan, size_t step, const char *op);

/* Number of backward actions with that op. */
int steps_of(struct fixture *b, const rw_plan *plan, const char *op);

#endif
