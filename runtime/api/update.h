/* An update of parameters or gradients between two steps: a plan of what recorders record, run again and again. */
#ifndef RW_API_UPDATE_H
#define RW_API_UPDATE_H

#include "run/advance.h"

struct rw_update {
    rw_tape *t; /* of its own, and empty: all is in the plan's tail */
    struct rw_run *run;
};

/* Plans. RW_ERR_MEMORY, recorded, leaves nothing behind and *u as it was. */
rw_status rw_update_open(struct rw_update *u, rw_context *ctx, struct rw_recorder *recorders);
void rw_update_close(struct rw_update *u);

/* Was it planned for another number of threads? Then it is to be opened anew. */
bool rw_update_is_stale(const struct rw_update *u);

/* Queues it; waits when somebody watches every launch. Errors are recorded. */
rw_status rw_update_run(struct rw_update *u);

/* For recorders: a node of the whole step, which stands for a call of that name. */
rw_status rw_update_record(rw_tape *t, const char *call, const rw_op_def *op, rw_tensor *const *in, int n,
                           const void *attrs, size_t attrs_size, rw_tensor **ret_outs);

#endif
