/*
 * What fills memory at the peak of a plan, and which policies would take less: those that people write by hand, and a
 * few budgets. Those that move values are among them where it is known what moving takes: there is a store outside the
 * device's memory, or its rates were given.
 */
#ifndef RW_PLAN_ADVICE_H
#define RW_PLAN_ADVICE_H

#include "plan/build.h"

#define RW_ADVICE_POLICY 64
#define RW_ADVICE_MOST 48
#define RW_HOLDINGS_MOST 6

/* Of a tape this long a frontier takes a second, and so do two dozen plans. */
#define RW_ADVICE_NODES 20000

/* A policy that was tried on the problem. */
struct rw_advice_row {
    char policy[RW_ADVICE_POLICY];
    uint64_t bytes; /* its arena */
    uint64_t moved; /* what waits outside the device's memory */
    double seconds;
    size_t turn; /* the how many-th that was noted */
};

/* What the calls of one op at one place have in the arena at the peak. */
struct rw_holding_line {
    uint32_t value; /* of the first of them; RW_NONE_ID for a workspace */
    uint8_t kind;   /* enum rw_live_kind */
    uint32_t count;
    uint64_t bytes;
};

enum rw_advice_store {
    RW_STORE_IS_WEIGHED,
    RW_STORE_IS_NONE, /* host memory of a CPU: what it takes is taken from the arena */
    RW_STORE_IS_BROKEN /* it cannot be measured */
};

struct rw_advice {
    struct rw_advice_row row[RW_ADVICE_MOST]; /* smaller than the plan, none beaten in both; the fastest first */
    size_t n_rows;
    struct rw_holding_line held[RW_HOLDINGS_MOST]; /* the largest first */
    size_t n_held;
    uint8_t store; /* enum rw_advice_store */
    bool is_long;  /* RW_ADVICE_NODES are less: neither names of regions nor budgets were tried */
};

/* arena: the plan's bytes. RW_ERR_MEMORY, which is not recorded. */
rw_status rw_advise(const struct rw_planning *g, uint64_t arena, struct rw_advice *ret);

#endif
