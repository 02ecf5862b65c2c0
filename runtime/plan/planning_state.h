/* A step that is being planned: what passes 2 to 4 have found so far. */
#ifndef RW_PLAN_PLANNING_STATE_H
#define RW_PLAN_PLANNING_STATE_H

#include "plan/part_budgets.h"
#include "plan/plan.h"
#include "remat/schedule/simulate.h"

/*
 * Planning in progress: the problem, the choice of the policy, its schedule and its cost. It has what ckpt_explain()
 * needs and a plan does not keep.
 *
 *     open    differentiates and decides (passes 2 and 3). While it is open the adjoint nodes are on the tape.
 *     place   assembles the plan (pass 4); the caller gets one reference.
 *     close   restores the tape.
 *
 * Errors are recorded in the context; after a failed open there is nothing to close.
 */
struct rw_planning {
    const struct rw_policy *policy; /* the request's */
    struct rw_problem problem;
    struct rw_choice choice;
    struct rw_schedule schedule;
    struct rw_cost_of_schedule cost;
    uint64_t *offset; /* of the schedule's buffers in the arena, NULL until they are placed */
    uint64_t arena;   /* its size */
    struct rw_part_uses parts; /* parts with a budget of their own */
    uint64_t total_bytes, budget; /* the plan's */
    uint64_t least; /* if opening failed with RW_ERR_BUDGET: the minimum budget */
};

#endif
