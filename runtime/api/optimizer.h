/* An optimizer as a recorder, and what the host does around each of its updates. Its kinds: optimizer_kinds.c. */
#ifndef RW_API_OPTIMIZER_H
#define RW_API_OPTIMIZER_H

#include "api/optimizer_kept.h"
#include "api/update.h"
#include "autodiff/targets.h"
#include "base/dependent.h"
#include "record/context.h"
#include "record/own_ops.h"
#include "record/param.h"

#include <rewind/optimizers.h>

struct rw_optimizer_kind; /* optimizer_members.h */
struct rw_optimizer_numbers;

/* What the functions that make the kinds end with; numbers have been checked. */
rw_status rw_optimizer_make(rw_optimizer **ret, rw_context *ctx, const struct rw_optimizer_kind *kind,
                            const struct rw_optimizer_numbers *numbers, const rw_states *where);

/* A graph that steps with an optimizer holds it; released, it goes with the last who has it. */
void rw_optimizer_share(rw_optimizer *opt);
void rw_optimizer_release(rw_optimizer *opt);

/* A cache that names the optimizer is told when its last user frees it, while its states are still there. It does not
   keep the optimizer alive. */
void rw_optimizer_depend(rw_optimizer *opt, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));

rw_context *rw_optimizer_context(const rw_optimizer *opt);
bool rw_optimizer_holds(const rw_optimizer *opt, const struct rw_param *param);

/* Records the update of all its parameters. found: where the value is, when the plan is made, by which the update is
   left out (rw_op_update_rows), NULL for none; with one rw_optimizer_follow() was called before. */
struct rw_recorder *rw_optimizer_recorder(rw_optimizer *opt, rw_tensor *const *found);

/* Records an update of each parameter by itself: of those that the step has a gradient of. For a request with used_up,
   in which it marks, by id, whose these are. found as above. */
struct rw_recorder *rw_optimizer_recorder_inside(rw_optimizer *opt, bool *used_up, rw_tensor *const *found);

/* Behind the planning of what the first of the two has recorded: states that wait elsewhere come and go with it. Those
   of a file cannot in the run of a graph, and none can inside backward. */
void rw_optimizer_attend(rw_optimizer *opt, struct rw_run *run);
bool rw_optimizer_is_away(const rw_optimizer *opt); /* it has such states */
bool rw_optimizer_is_in_file(const rw_optimizer *opt);

/* Around the launches of a graph: before each, and what a capture of it depends on. An error is recorded. */
rw_status rw_optimizer_before_launch(rw_optimizer *opt);
void rw_optimizer_launched(rw_optimizer *opt, bool ran); /* it was queued; false: it was captured alone */
const void *rw_optimizer_store(const rw_optimizer *opt);

/* From now on the optimizer counts on the device which updates were left out. RW_ERR_MEMORY, recorded, has changed
   nothing. */
rw_status rw_optimizer_follow(rw_optimizer *opt);
bool rw_optimizer_follows(const rw_optimizer *opt);

/*
 * Somebody watches: what is recorded from now on sums up what its updates meet (enum rw_update_sum), of all parameters
 * together or, inside backward, of each by itself. RW_ERR_MEMORY, recorded, has changed nothing. As many calls of
 * rw_optimizer_unwatch() end it.
 */
rw_status rw_optimizer_watch(rw_optimizer *opt);
void rw_optimizer_unwatch(rw_optimizer *opt);
bool rw_optimizer_is_watched(const rw_optimizer *opt);

/* Puts the numbers of the next update, which makes these sums, where it finds them: of every parameter whose gradient
   is not clear. An error, recorded, has changed nothing. */
rw_status rw_optimizer_prepare(rw_optimizer *opt, enum rw_optimizer_sums sums);

/* The update that was prepared could not be queued: what it may have written counts as written. */
void rw_optimizer_failed(rw_optimizer *opt);

/* That update was queued: it counts, and the parameters have changed. */
void rw_optimizer_count(rw_optimizer *opt);

#endif
