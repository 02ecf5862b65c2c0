/*
 * The store of a run: host memory where values wait outside the device's. It belongs to its run, like its arena. A copy
 * has ended when the call returns, so that whoever waits for it need not wait; and what a plan's waits promise holds.
 */
#ifndef RW_RUN_STORE_H
#define RW_RUN_STORE_H

#include "plan/plan.h"

struct rw_store {
    void *data;
    uint64_t bytes;
};

/* Room for what the plan moves out; what was in it is lost. RW_ERR_MEMORY leaves an empty store. */
rw_status rw_store_reserve(struct rw_store *store, uint64_t bytes);
void rw_store_finish(struct rw_store *store);

/* The memory of a slot of the plan. */
void *rw_store_slot(const struct rw_store *store, const struct rw_plan_slot *slot);

#endif
