/*
 * Selects the fastest step within a number of bytes.
 *
 * The points of the frontier (remat/planner/frontier.h) are placed, the fastest first, until one fits. So the budget
 * limits the arena itself, fragmentation included, and answers are monotone: more bytes never give a slower step, fewer
 * bytes never a larger arena.
 */
#ifndef RW_PLAN_FASTEST_IN_BUDGET_H
#define RW_PLAN_FASTEST_IN_BUDGET_H

#include "record/policy.h"
#include "remat/schedule/simulate.h"

#include <rewind/plan.h>

struct rw_decision {
    struct rw_choice choice;
    struct rw_schedule schedule; /* of the choice, buffers merged */
    struct rw_cost_of_schedule cost;
    uint64_t *offset; /* offsets of its buffers: rw_place_schedule() */
    uint64_t arena;
    uint64_t budget; /* that it had to fit into */
    uint64_t least; /* with RW_ERR_BUDGET: the minimum budget */
};

/* The minimum arena of any budget, and the lower bound of seconds for the budget's bytes. */
struct rw_limits {
    uint64_t least;
    double bound;
};

/*
 * Decides about the problem's step under a budget; the caller owns what *ret holds. RW_ERR_BUDGET, with the minimum
 * budget, if nothing fits; RW_ERR_MEMORY, also if a plan cannot address the minimum. Errors are recorded in the
 * context, and *ret then holds nothing. limits: filled in from the same frontier if a plan was found; NULL skips this
 * work.
 */
rw_status rw_budget_decide(const struct rw_problem *p, const struct rw_policy *policy, struct rw_limits *limits,
                           struct rw_decision *ret);

/* Bytes of gradients that the step writes and that are not allocated yet; the first run allocates them. */
uint64_t rw_gradients_to_come(const struct rw_problem *p);

/*
 * All points that budgets can select, minimum memory first; with offload if the policy allows it. Free *ret_points with
 * rw_free(). RW_ERR_MEMORY is recorded only if a plan cannot address the minimum.
 */
rw_status rw_budget_points(const struct rw_problem *p, const struct rw_policy *policy, rw_frontier_point **ret_points,
                           size_t *ret_n);

/* A possible budget, and the result of using it as the policy. */
struct rw_budget_offer {
    char policy[40];
    uint64_t bytes; /* its arena */
    struct rw_cost_of_schedule cost;
};

#define RW_OFFERS_MAX 8

/*
 * A few budgets from 3/4 of `none` down to the minimum, and if `moves`, the same with offload. The problem's request
 * has a budget as its policy. RW_ERR_MEMORY is not recorded.
 */
rw_status rw_budget_offers(const struct rw_problem *p, bool moves, struct rw_budget_offer ret[RW_OFFERS_MAX],
                           size_t *ret_n);

/* The minimum arena of any budget, whatever the policy's own budget is. RW_ERR_MEMORY is not recorded. */
rw_status rw_budget_least(const struct rw_problem *p, const struct rw_policy *policy, uint64_t *ret_bytes);

#endif
