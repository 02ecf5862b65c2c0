/*
 * Budgets of parts: the fastest choice in which each part takes at most its own, all else as the policies say.
 *
 * For each part what it may drop has one order (remat/parts.h). Of that order so many first places are dropped as are
 * needed until the part fits, found out by simulating the step with all other parts kept. A part with more bytes drops
 * a part of what it drops with less: so more is never slower, whatever the others do, and less never takes more.
 */
#ifndef RW_PLAN_PART_BUDGETS_H
#define RW_PLAN_PART_BUDGETS_H

#include "remat/parts.h"
#include "remat/simulate.h"

/* A part with a budget. */
struct rw_part_use {
    uint32_t part;
    uint64_t budget; /* in bytes, also of one that is a share */
    uint64_t all;    /* what it takes where everything is kept */
    uint64_t bytes;  /* what it takes at most */
    uint64_t least;  /* of a part that doesn't fit: the least budget that would do */
};

struct rw_part_uses {
    struct rw_part_use *use; /* in the order of the tape */
    size_t n;
    uint32_t refused; /* the part that doesn't fit, RW_NONE_ID */
};

/*
 * Part budgets and a budget of the tape are refused together: RW_ERR_UNSUPPORTED, which is recorded. More for the part
 * would leave less for the rest.
 */
rw_status rw_part_budgets_check(const rw_tape *t, const struct rw_policy *policy);

/*
 * Makes *c, what the policies say with all kept in those parts, hold their budgets. RW_ERR_BUDGET, with ret->refused;
 * RW_ERR_MEMORY. Neither is recorded. *ret is the caller's to finish in any case.
 */
rw_status rw_part_budgets_decide(const struct rw_problem *p, struct rw_choice *c, struct rw_part_uses *ret);
void rw_part_uses_finish(struct rw_part_uses *uses);

/* Records that a part doesn't fit, with the least budget that would do. */
void rw_part_budgets_refuse(const rw_tape *t, const struct rw_part_uses *uses, uint64_t *ret_least);

#endif
