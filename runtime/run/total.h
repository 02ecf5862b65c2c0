/*
 * A policy `total:SIZE` when its step runs: no more than SIZE is then held on the device, arenas as they are.
 *
 * Planning has counted what cannot go (plan/budget.c). The rest gives way when the step runs, and only where there is
 * no room: free arenas, which an earlier step may have left larger than this one needs; free blocks of results, of all
 * tapes; then steps that wait for their backward (advance.c), the one that stopped first before the others. They are
 * computed again, to the same bytes. Memory that a run of the verifier asks for is bounded by nobody.
 */
#ifndef RW_RUN_TOTAL_H
#define RW_RUN_TOTAL_H

#include "run/run.h"

/*
 * Before the run borrows an arena of so many bytes, or with 0 before it goes on with the one it has: is there room,
 * once what is free has gone as far as it must? Where not, steps that wait are the caller's to end.
 */
bool rw_total_fits(const struct rw_run *r, size_t bytes);

/* While it runs: is there room for so many bytes more, beside its arena? */
bool rw_total_fits_beside(const struct rw_run *r, size_t bytes);

/* Records RW_ERR_BUDGET and what the plan would fit into. */
rw_status rw_total_refuse(const struct rw_run *r);

#endif
