/* Passes 2 to 4 for one tape: from what the caller asked for to a plan. */
#ifndef RW_PLAN_BUILD_H
#define RW_PLAN_BUILD_H

#include "plan/part_budgets.h"
#include "plan/plan.h"
#include "remat/simulate.h"

/*
 * A plan in the making: the problem, what the policy chose, in which order that runs, and what it costs. What a plan
 * forgets and ckpt_explain() wants to know is here.
 *
 *     open    differentiates and decides (passes 2 and 3). While it is open the adjoint nodes lie on the tape.
 *     place   makes the plan (pass 4); the caller gets one reference.
 *     close   the tape is as before.
 *
 * Errors are recorded in the context; after a failed open there is nothing to close.
 */
struct rw_planning {
    struct rw_problem problem;
    struct rw_choice choice;
    struct rw_schedule schedule;
    struct rw_cost_of_schedule cost;
    uint64_t *offset; /* of the schedule's buffers in the arena, NULL until they are placed */
    uint64_t arena;   /* what they take */
    struct rw_part_uses parts; /* those with a budget of their own */
    uint64_t total_bytes; /* the plan's */
    uint64_t least; /* when opening failed with RW_ERR_BUDGET: the least budget that would do */
};

rw_status rw_planning_open(struct rw_planning *planning, rw_tape *t, const struct rw_request *request);
rw_status rw_planning_place(struct rw_planning *planning, rw_plan **ret_plan);
void rw_planning_close(struct rw_planning *planning);

/*
 * How fast the context's store is, measured unless that is known: before the first schedule in which values move.
 * rw_measure_store_for_budgets() does so where they may under that budget, and records errors.
 */
rw_status rw_try_to_measure_store(rw_context *ctx);

/* Is there a store that does not take its memory from where the arena lies? Rates that were given count for any. */
static inline bool rw_store_is_of_use(const rw_context *ctx)
{
    const struct rw_store_place *const store = &ctx->store;
    return (store->rate.out > 0 && store->rate.in > 0) || ctx->kind != RW_DEVICE_CPU || store->path;
}

rw_status rw_measure_store_for_budgets(const struct rw_problem *p, const struct rw_policy *policy);

/* The three in one. */
rw_status rw_plan_build(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);

#endif
