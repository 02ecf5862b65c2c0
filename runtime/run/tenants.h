/*
 * Who lies in the arena of a plan, and when: worked out from the words of its actions alone, and so without what
 * placement knew. For those who watch a run and tell memory that is in use from memory that is not.
 */
#ifndef RW_RUN_TENANTS_H
#define RW_RUN_TENANTS_H

#include "run/run.h"

/* A buffer of values that were written over each other, or a workspace. */
struct rw_tenant {
    uint64_t offset, bytes;
    uint32_t first;
    uint32_t last; /* the action behind which nobody reads it; of what another lane reads: that waits for it */
};

struct rw_tenants {
    struct rw_tenant *tenant; /* in the order of their first actions */
    size_t n;
    uint32_t *leaving; /* in the order of their last ones: those of action i are [leaves[i], leaves[i + 1]) */
    uint32_t *leaves;
};

/* False without memory. All zero is what can be freed. */
bool rw_tenants_make(struct rw_tenants *ret, const rw_tape *t, const rw_plan *plan);
void rw_tenants_free(struct rw_tenants *tenants);

#endif
