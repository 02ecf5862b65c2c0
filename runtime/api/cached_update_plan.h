/* An update of parameters or gradients between two steps: a plan of what recorders record, which runs repeatedly. */
#ifndef RW_API_CACHED_UPDATE_PLAN_H
#define RW_API_CACHED_UPDATE_PLAN_H

#include "run/run_advance.h"

struct rw_update {
    rw_tape *t; /* its own, and empty: everything is in the plan's tail */
    struct rw_run *run;
};

/* Makes the plan of a list. skip: rw_recording.skip, a state, or NULL. RW_ERR_MEMORY, recorded; then nothing is
   allocated and *u is unchanged. */
rw_status rw_update_open(struct rw_update *u, rw_context *ctx, struct rw_step_recorder *const *recorders, size_t n,
                         rw_tensor *skip);
void rw_update_close(struct rw_update *u);

/* Was it planned for another number of threads? Then it must be opened again. */
bool rw_update_is_stale(const struct rw_update *u);

/* Queues it; waits if an observer needs every launch. Errors are recorded. */
rw_status rw_update_run(struct rw_update *u);

/* For recorders: records a node of the whole step under the name of a call. */
rw_status rw_update_record(rw_tape *t, const char *call, const rw_op_def *op, rw_tensor *const *in, int n,
                           const void *attrs, size_t attrs_size, rw_tensor **ret_outs);

#endif
