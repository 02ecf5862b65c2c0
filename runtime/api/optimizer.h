/* An optimizer as a recorder, and what the host does around each of its updates. Its kinds: optimizer_kinds.c. */
#ifndef RW_API_OPTIMIZER_H
#define RW_API_OPTIMIZER_H

#include "autodiff/targets.h"
#include "record/context.h"
#include "record/own_ops.h"
#include "record/param.h"

#include <rewind/optimizers.h>

/* The numbers that an optimizer was made with; what a kind has no use for is zero. */
struct rw_optimizer_numbers {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
    bool nesterov, decay_all, stochastic_rounding;
};

struct rw_optimizer_kind {
    const char *name;   /* in files */
    const char *create; /* the call that makes it */
    const rw_op_def *op;
    struct rw_update_attrs attrs;
    const char *state[RW_UPDATE_STATES]; /* as PyTorch calls them */
    /* Fills in all but f and fresh, of a parameter's update number `step`. lr and weight_decay are the parameter's. */
    void (*row)(struct rw_update_row *row, const struct rw_optimizer_numbers *numbers, uint64_t step);
};

/* What the functions that make the kinds end with; numbers have been checked. */
rw_status rw_optimizer_make(rw_optimizer **ret, rw_context *ctx, const struct rw_optimizer_kind *kind,
                            const struct rw_optimizer_numbers *numbers);

/* A graph that steps with an optimizer holds it; released, it goes with the last who has it. */
void rw_optimizer_share(rw_optimizer *opt);
void rw_optimizer_release(rw_optimizer *opt);

rw_context *rw_optimizer_context(const rw_optimizer *opt);

/* Records the update of all its parameters. found: where the value is, when the plan is made, by which the update is
   left out (rw_op_update_rows), NULL for none; with one rw_optimizer_follow() was called before. */
struct rw_recorder *rw_optimizer_recorder(rw_optimizer *opt, rw_tensor *const *found);

/* Records an update of each parameter by itself: of those that the step has a gradient of. For a request with used_up,
   in which it marks, by id, whose these are. */
struct rw_recorder *rw_optimizer_recorder_inside(rw_optimizer *opt, bool *used_up);

/* From now on the optimizer counts on the device which updates were left out. RW_ERR_MEMORY, recorded, has changed
   nothing. */
rw_status rw_optimizer_follow(rw_optimizer *opt);
bool rw_optimizer_follows(const rw_optimizer *opt);

/* What was counted there becomes part of what rw_optimizer_kept() says, and begins anew. Waits for the device. */
rw_status rw_optimizer_settle(rw_optimizer *opt);

/*
 * Somebody watches: what is recorded from now on sums up what its updates meet (enum rw_update_sum), of all parameters
 * together or, inside backward, of each by itself. RW_ERR_MEMORY, recorded, has changed nothing. As many calls of
 * rw_optimizer_unwatch() end it.
 */
enum rw_optimizer_sums { RW_NO_SUMS, RW_SUMS_TOGETHER, RW_SUMS_APART };
rw_status rw_optimizer_watch(rw_optimizer *opt);
void rw_optimizer_unwatch(rw_optimizer *opt);
bool rw_optimizer_is_watched(const rw_optimizer *opt);

/* The sums of the last update, of all members, in their order; *ret_known is false, and nothing is written, where it
   made none, or is number *seen, which becomes its number. Waits for the device. */
rw_status rw_optimizer_read_sums(rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS], uint64_t *seen, bool *ret_known);

/* Puts the numbers of the next update, which makes these sums, where it finds them: of every parameter whose gradient
   is not clear. An error, recorded, has changed nothing. */
rw_status rw_optimizer_prepare(rw_optimizer *opt, enum rw_optimizer_sums sums);

/* What it has to keep over a restart, of one parameter: its states, by the names that files have for them. */
#define RW_KEPT_MOST (RW_UPDATE_STATES + 1)

struct rw_kept {
    struct rw_param *param;
    const char *name[RW_KEPT_MOST];
    struct rw_param *state[RW_KEPT_MOST];
    int n;
    uint64_t step; /* updates made */
    bool current;  /* the master is a copy of the parameter as it is */
};

const char *rw_optimizer_kind_name(const rw_optimizer *opt);
double rw_optimizer_lr(const rw_optimizer *opt);
size_t rw_optimizer_members(const rw_optimizer *opt);
struct rw_kept rw_optimizer_kept(const rw_optimizer *opt, size_t i);
/* The parameter and its states were written: so many updates led there. */
void rw_optimizer_resume(rw_optimizer *opt, size_t i, uint64_t step, bool current);

/* That update was queued: it counts, and the parameters have changed. */
void rw_optimizer_count(rw_optimizer *opt);

#endif
