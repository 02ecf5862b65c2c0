/* A list of recorders in use: checked, opened, and walked by graphs and by backward. autodiff/recorder.h has the
   functions of one recorder, in the order in which they are called. */
#ifndef RW_API_RECORDER_LIST_H
#define RW_API_RECORDER_LIST_H

#include "autodiff/requested_outputs.h"

struct rw_recorders {
    struct rw_step_recorder *entry[RW_RECORDERS_MAX];
    size_t n;
};

/* Checks a caller's list of RW_RECORDERS_MAX entries; those of zeros are left out. An error is recorded, and has
   changed nothing. is_graph: the plan will be that of a graph's step. */
rw_status rw_recorders_check(const rw_recorder *list, const char *call, const rw_tape *t, const rw_tensor *loss,
                             bool is_graph);

/* For check functions: records an error that names the place. argument: that of the function which made the entry. */
rw_status rw_recorder_refuse(const struct rw_recorder_check *at, rw_status status, const char *argument,
                             const char *fmt, ...) RW_PRINTF(4, 5);

/* Opens a checked list. After an error, which is recorded, nothing is open. */
rw_status rw_recorders_open(struct rw_recorders *r, const rw_recorder *list, const char *call, rw_context *ctx,
                            bool is_graph);
void rw_recorders_close(struct rw_recorders *r, bool never_ran);

/* The address of the number with which backward begins; NULL: 1. */
const void *rw_recorders_seed(const struct rw_recorders *r);

/* Do updates run inside backward? Marks the parameters, by ID, whose gradients they consume. */
bool rw_recorders_consume(const struct rw_recorders *r, bool *used_up);

/* The run of the plan was made. */
rw_status rw_recorders_attend(const struct rw_recorders *r, struct rw_run *run);

/* Each time that the run executes, in this order. */
rw_status rw_recorders_check_launch(const struct rw_recorders *r, const struct rw_run *run, const char *call);
rw_status rw_recorders_before(const struct rw_recorders *r);
rw_status rw_recorders_prepare(const struct rw_recorders *r);
void rw_recorders_failed(const struct rw_recorders *r);
void rw_recorders_launched(const struct rw_recorders *r);

/* A captured run has an address that is no longer that of a recorder; it was captured. */
bool rw_recorders_have_moved(const struct rw_recorders *r);
void rw_recorders_captured(const struct rw_recorders *r, bool is_valid);

#endif
