/*
 * Advice for ckpt_explain(): what the memory at the peak of a plan consists of, and which policies would need less:
 * hand-written ones and a few budgets. Budgets with offload are included if there is a store outside of device memory,
 * or if its rates were given.
 */
#ifndef RW_PLAN_ADVICE_H
#define RW_PLAN_ADVICE_H

#include "plan/build.h"

#define RW_ADVICE_POLICY 64
#define RW_ADVICE_MAX 48
#define RW_HOLDINGS_MAX 6

/* With more nodes a frontier takes a second, and so do two dozen plans. */
#define RW_ADVICE_NODES 20000

/* A policy that was tried on the problem. */
struct rw_advice_row {
    char policy[RW_ADVICE_POLICY];
    uint64_t bytes; /* its arena */
    uint64_t moved; /* offloaded bytes */
    double seconds;
    size_t order; /* its index in the order of trials */
};

/* Arena bytes at the peak of all calls of one op at one call site. */
struct rw_holding_line {
    uint32_t value; /* the first of the values; RW_NONE_ID for a workspace */
    uint8_t kind;   /* enum rw_live_kind */
    uint32_t count;
    uint64_t bytes;
};

enum rw_advice_store {
    RW_STORE_IS_WEIGHED,
    RW_STORE_IS_NONE, /* host memory of a CPU: the store grows as the arena shrinks */
    RW_STORE_IS_BROKEN /* it cannot be measured */
};

struct rw_advice {
    struct rw_advice_row row[RW_ADVICE_MAX]; /* smaller than the plan, none dominated; the fastest first */
    size_t n_rows;
    struct rw_holding_line held[RW_HOLDINGS_MAX]; /* the largest first */
    size_t n_held;
    uint8_t store; /* enum rw_advice_store */
    bool is_long;  /* more nodes than RW_ADVICE_NODES: neither names of regions nor budgets were tried */
};

/* arena: the plan's bytes. RW_ERR_MEMORY, which is not recorded. */
rw_status rw_advise(const struct rw_planning *g, uint64_t arena, struct rw_advice *ret);

#endif
