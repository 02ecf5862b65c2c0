/* The plan of a step, and which ops backward runs in it. For suites that see the library's inside. */
#ifndef RW_TESTS_STEPS_H
#define RW_TESTS_STEPS_H

#include "support/support.h"

#include "plan/plan.h"

/* Of rw_backward(b->t, loss) under the tape's policy; the cache's own. */
const rw_plan *step_plan(struct fixture *b, rw_tensor *loss);

/* The node of a step, if that is one of backward with this op; else NULL. */
const struct rw_node *backward_node(struct fixture *b, const rw_plan *plan, size_t step, const char *op);

/* Steps of backward with that op. */
int steps_of(struct fixture *b, const rw_plan *plan, const char *op);

#endif
