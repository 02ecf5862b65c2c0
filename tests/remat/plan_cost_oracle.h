/*
 * Computes the cost of a plan from its words alone: which units of the arena are written, read and overwritten. Uses
 * neither buffers nor the schedule; the tape must still have the plan's tail.
 */
#ifndef RW_TESTS_PLAN_COST_ORACLE_H
#define RW_TESTS_PLAN_COST_ORACLE_H

#include "plan/plan.h"

struct oracle {
    const char *fault; /* the rule that the plan violates, NULL if it is sound */
    uint32_t action;   /* where */
    uint64_t peak, kept;
    size_t n_replays;
};

struct oracle oracle_of(const rw_tape *t, const rw_plan *plan);

#endif
