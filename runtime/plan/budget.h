/*
 * The fastest step within a number of bytes.
 *
 * The points of the frontier (remat/frontier.h) are placed, the fastest first, until one fits: so the bound is of the
 * arena itself, placement's losses included, and more bytes never mean a slower step nor fewer bytes a larger arena.
 */
#ifndef RW_PLAN_BUDGET_H
#define RW_PLAN_BUDGET_H

#include "record/policy.h"
#include "remat/simulate.h"

#include <rewind/plan.h>

struct rw_decision {
    struct rw_choice choice;
    struct rw_schedule schedule; /* of the choice, buffers merged */
    struct rw_cost_of_schedule cost;
    uint64_t *offset; /* where its buffers lie: rw_place_schedule() */
    uint64_t arena;
    uint64_t least; /* with RW_ERR_BUDGET: the least budget that would do */
};

/*
 * What the problem's step is to do under a budget; the caller owns what *ret holds. RW_ERR_BUDGET, with the least
 * budget that would do, when nothing fits; RW_ERR_MEMORY. Errors are recorded in the context, *ret holds nothing then.
 */
rw_status rw_budget_decide(const struct rw_problem *p, const struct rw_policy *policy, struct rw_decision *ret);

/* Bytes of gradients that the problem's step writes and that have no memory yet: the first run makes it. */
uint64_t rw_gradients_to_come(const struct rw_problem *p);

/*
 * All that budgets can give, the least memory first: where that one's values may move, all that such ones can give.
 * *ret_points for rw_free(). RW_ERR_MEMORY is not recorded.
 */
rw_status rw_budget_points(const struct rw_problem *p, const struct rw_policy *policy, rw_point **ret_points,
                           size_t *ret_n);

/* A budget that could be asked for, and what it gives: as if it were the policy. */
struct rw_budget_offer {
    char policy[40];
    uint64_t bytes; /* its arena */
    struct rw_cost_of_schedule cost;
};

#define RW_OFFERS_MOST 8

/*
 * A few budgets from a quarter less than `none` down to the least there is, and where moves are asked for, the same
 * with values that wait outside. The problem's request has a budget as its policy. RW_ERR_MEMORY is not recorded.
 */
rw_status rw_budget_offers(const struct rw_problem *p, bool moves, struct rw_budget_offer ret[RW_OFFERS_MOST],
                           size_t *ret_n);

/* The least arena that a budget can ask for, whatever the policy's own is. RW_ERR_MEMORY is not recorded. */
rw_status rw_budget_least(const struct rw_problem *p, const struct rw_policy *policy, uint64_t *ret_bytes);

/*
 * The least arena that a budget can ask for; the seconds that no choice within so many bytes can be below: where values
 * may move, what runs without any replay. RW_ERR_MEMORY is not recorded.
 */
rw_status rw_budget_limits(const struct rw_problem *p, const struct rw_policy *policy, uint64_t bytes,
                           uint64_t *ret_least, double *ret_bound);

#endif
