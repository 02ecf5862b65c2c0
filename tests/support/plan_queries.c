/* Reads the plan of a step and the ops of its backward. */
#include "support/plan_queries.h"

#include "plan/cache.h"
#include "run/run_state.h"
#include "record/context.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <string.h>

const rw_plan *step_plan(struct fixture *b, rw_tensor *loss)
{
    const struct rw_request request = {
        .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1, .policy = &b->t->policy
    };
    rw_plan *plan = NULL;
    cr_assert_eq(rw_plan_get(b->t, &request, &plan), RW_OK, "%s", rw_error_message(b->ctx));
    return plan;
}

const struct rw_node *backward_node(struct fixture *b, const rw_plan *plan, size_t step, const char *op)
{
    const struct rw_node *const node = rw_plan_node(b->t, plan, plan->actions[step].node);
    const bool is = plan->actions[step].kind == RW_ACTION_BACKWARD && !strcmp(b->ctx->ops[node->op]->name, op);
    return is ? node : NULL;
}

int steps_of(struct fixture *b, const rw_plan *plan, const char *op)
{
    int n = 0;
    for (size_t i = 0; i < plan->n_actions; i++) n += backward_node(b, plan, i, op) != NULL;
    return n;
}
