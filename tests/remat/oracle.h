/*
 * What a plan costs, read off its words alone: which units of the arena are written, read and written again. Knows no
 * buffers and no schedule; the tape must still have the plan's tail on it.
 */
#ifndef RW_TESTS_ORACLE_H
#define RW_TESTS_ORACLE_H

#include "plan/plan.h"

struct oracle {
    const char *fault; /* what the plan does that no plan may, NULL when it is sound */
    uint32_t action;   /* where */
    uint64_t peak, kept;
    size_t n_replays;
};

struct oracle oracle_of(const rw_tape *t, const rw_plan *plan);

#endif
