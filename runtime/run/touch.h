/* Which action of a plan is the first to use which memory of the arena: there it may have to come from far away. */
#ifndef RW_RUN_TOUCH_H
#define RW_RUN_TOUCH_H

#include "plan/plan.h"
#include "record/tape.h"

/* All zero is empty; used again by the next plan. */
struct rw_touches {
    uint64_t *bytes; /* by action; in whole pages, so a neighbour's few bytes may count to one of them */
    uint64_t sum;    /* of all actions */
    size_t cap;
    bool *seen; /* pages */
    size_t cap_seen;
    rw_desc *desc; /* of one call */
    size_t cap_desc;
};

rw_status rw_touches_count(struct rw_touches *x, const rw_tape *t, const rw_plan *plan);
void rw_touches_finish(struct rw_touches *x);

#endif
