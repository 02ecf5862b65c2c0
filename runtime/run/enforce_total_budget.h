/*
 * Enforces a policy `total:SIZE` when its step runs: the context then holds at most SIZE bytes on the device.
 *
 * Planning has counted everything that must stay (plan/fastest_in_budget.c). If there is not enough memory at run time,
 * the rest is released in this order: free arenas, which an earlier step may have left larger than needed; free blocks
 * of results, of all tapes; then suspended steps (run_advance.c), the oldest first, which are recomputed later to the
 * same bytes. Memory of the verifier is not limited.
 */
#ifndef RW_RUN_ENFORCE_TOTAL_BUDGET_H
#define RW_RUN_ENFORCE_TOTAL_BUDGET_H

#include "run/run_state.h"

/*
 * Call before the run borrows an arena of so many bytes, or with 0 before it continues with its own: releases free
 * memory as needed. False if the step does not fit; then the caller discards suspended steps.
 */
bool rw_total_fits(const struct rw_run *r, size_t bytes);

/* During the run: do so many bytes fit in addition to its arena? */
bool rw_total_fits_beside(const struct rw_run *r, size_t bytes);

/* Records RW_ERR_BUDGET and the limit that the plan would need. */
rw_status rw_total_refuse(const struct rw_run *r);

#endif
