/* An optimizer, and the host's work around each of its updates. optimizer_kinds.c has the kinds, optimizer_recorder.c
   the recorders of lists. */
#ifndef RW_API_OPTIMIZER_H
#define RW_API_OPTIMIZER_H

#include "api/optimizer_kept.h"
#include "api/cached_update_plan.h"
#include "autodiff/requested_outputs.h"
#include "base/weak_refs.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/optimizers.h>

struct rw_optimizer_kind; /* optimizer_struct.h */
struct rw_optimizer_numbers;

/* Called at the end of the functions that create the kinds; numbers are already checked. */
rw_status rw_optimizer_make(rw_optimizer **ret, rw_context *ctx, const struct rw_optimizer_kind *kind,
                            const struct rw_optimizer_numbers *numbers, const rw_state_offload *where);

/* A graph that steps with an optimizer holds it. The last user frees it. */
void rw_optimizer_share(rw_optimizer *opt);
void rw_optimizer_release(rw_optimizer *opt);

/* A cache that refers to the optimizer is notified when its last user frees it, while its states still exist. This does
   not keep the optimizer alive. */
void rw_optimizer_depend(rw_optimizer *opt, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));

rw_context *rw_optimizer_context(const rw_optimizer *opt);
bool rw_optimizer_holds(const rw_optimizer *opt, const struct rw_param *param);

/* The recorder of rw_optimizer_step() and of rw_scaler_step(), after backward. With a value by which the update is
   skipped (rw_op_update_rows), call rw_optimizer_follow() first. */
struct rw_step_recorder *rw_optimizer_recorder(rw_optimizer *opt);

/* Call it after planning what that has recorded: offloaded states are then copied in and out by the run. RW_ERR_MEMORY,
   which is recorded, has changed nothing. */
rw_status rw_optimizer_attend(rw_optimizer *opt, struct rw_run *run);

/* The store of offloaded states, on which a capture of an update depends. */
const void *rw_optimizer_store(const rw_optimizer *opt);

/* From now on the optimizer counts skipped updates on the device. RW_ERR_MEMORY, recorded, has changed nothing. The
   caller that made it follow may take that back before the first such update, when no plan has its counts any more. */
rw_status rw_optimizer_follow(rw_optimizer *opt, const char *call);
void rw_optimizer_unfollow(rw_optimizer *opt);
bool rw_optimizer_follows(const rw_optimizer *opt);

/*
 * An observer starts: plans that are recorded from now on sum up what their updates read (enum rw_update_sum), for all
 * parameters together or, inside backward, for each separately. RW_ERR_MEMORY, recorded, has changed nothing. It ends
 * after as many calls of rw_optimizer_unwatch().
 */
rw_status rw_optimizer_watch(rw_optimizer *opt);
void rw_optimizer_unwatch(rw_optimizer *opt);
bool rw_optimizer_is_watched(const rw_optimizer *opt);

/* Uploads the numbers of the next update, which computes these sums, for every parameter whose gradient is not clear.
   An error, recorded, has changed nothing. */
rw_status rw_optimizer_prepare(rw_optimizer *opt, enum rw_optimizer_sums sums);

/* The prepared update could not be queued: everything that it may have written counts as written. False: nothing. */
bool rw_optimizer_failed(rw_optimizer *opt);

/* That update was queued: it is counted, and the parameters have changed. */
void rw_optimizer_count(rw_optimizer *opt);

#endif
