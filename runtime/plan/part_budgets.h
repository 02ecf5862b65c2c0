/*
 * Budgets of parts: the fastest choice in which each part takes at most its own bytes, and everything else follows the
 * policies.
 *
 * The values of each part are dropped in one fixed order (remat/planner/parts_with_budgets.h). Prefixes of the order
 * are tried in increasing length, by simulating the step with all other parts kept. The fastest with which the part
 * fits is dropped: without a price of memory the first, because longer ones replay more. The tried prefixes do not
 * depend on the budget, so a larger one is never slower, and a smaller one never takes more. Without a price of memory
 * a larger budget drops a subset of what a smaller one drops, so this holds whatever other parts do.
 */
#ifndef RW_PLAN_PART_BUDGETS_H
#define RW_PLAN_PART_BUDGETS_H

#include "remat/planner/parts_with_budgets.h"
#include "remat/schedule/simulate.h"

/* A part with a budget. */
struct rw_part_use {
    uint32_t part;
    uint64_t budget; /* in bytes, also of a percentage */
    uint64_t all;    /* bytes with everything kept */
    uint64_t bytes;  /* maximum bytes */
    uint64_t least;  /* of a part that does not fit: its minimum budget */
};

struct rw_part_uses {
    struct rw_part_use *use; /* in the order of the tape */
    size_t n;
    uint32_t refused; /* the part that does not fit, RW_NONE_ID for none */
};

/*
 * Budgets of parts are refused together with a budget of the tape: RW_ERR_UNSUPPORTED, recorded. More bytes for the
 * part would leave less for the rest.
 */
rw_status rw_part_budgets_check(const rw_tape *t, const struct rw_policy *policy);

/*
 * Changes *c, the choice of the policies with everything in those parts kept, so that it meets their budgets.
 * RW_ERR_BUDGET, with ret->refused; RW_ERR_MEMORY. Neither is recorded. The caller finishes *ret in any case.
 */
rw_status rw_part_budgets_decide(const struct rw_problem *p, struct rw_choice *c, struct rw_part_uses *ret);
void rw_part_uses_finish(struct rw_part_uses *uses);

/* Records that a part does not fit, with its minimum budget. */
void rw_part_budgets_refuse(const rw_tape *t, const struct rw_part_uses *uses, uint64_t *ret_least);

#endif
