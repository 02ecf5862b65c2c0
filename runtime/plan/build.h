/* Passes 2 to 4 for one tape: from a request to a plan. */
#ifndef RW_PLAN_BUILD_H
#define RW_PLAN_BUILD_H

#include "plan/planning_state.h"

/*
 * Checks what every plan of the tape requires, whatever decides about it: destroyed averages, names in policies,
 * budgets of parts beside one of the tape. Then opens the problem. Errors are recorded.
 */
rw_status rw_planning_open_problem(struct rw_problem *ret, rw_tape *t, const struct rw_request *request);
rw_status rw_planning_open(struct rw_planning *planning, rw_tape *t, const struct rw_request *request);
/* If limits is not NULL and the policy is a budget, also its limits (plan/fastest_in_budget.h). */
struct rw_limits;
rw_status rw_planning_open_with_limits(struct rw_planning *planning, rw_tape *t, const struct rw_request *request,
                                       struct rw_limits *limits);
rw_status rw_planning_place(struct rw_planning *planning, rw_plan **ret_plan);
void rw_planning_close(struct rw_planning *planning);

/*
 * Measures the rates of the context's store, unless they are known. Call before the first schedule with offload.
 * rw_measure_store_for_budgets() does so if the budget allows offload, and records errors.
 */
rw_status rw_try_to_measure_store(rw_context *ctx);

/* Is there a store that does not use the memory of the arena? Given rates make any store count. */
static inline bool rw_store_is_of_use(const rw_context *ctx)
{
    const struct rw_store_place *const store = &ctx->store;
    return (store->rate.out > 0 && store->rate.in > 0) || ctx->kind != RW_DEVICE_CPU || store->path;
}

rw_status rw_measure_store_for_budgets(const struct rw_problem *p, const struct rw_policy *policy);

/* The three in one. */
rw_status rw_plan_build(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);

#endif
