/* What an optimizer's updates have left: sums of what they met, and what is kept over a restart. */
#ifndef RW_API_OPTIMIZER_KEPT_H
#define RW_API_OPTIMIZER_KEPT_H

#include "record/own_ops.h"
#include "record/param.h"

#include <rewind/optimizers.h>

enum rw_optimizer_sums { RW_NO_SUMS, RW_SUMS_TOGETHER, RW_SUMS_APART };

/* The sums of the last update, of all members, in their order; *ret_known is false, and nothing is written, where it
   made none, or is number *seen, which becomes its number. Waits for the device. */
/* Updates that it has counted. */
uint64_t rw_optimizer_updates(const rw_optimizer *opt);

rw_status rw_optimizer_read_sums(rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS], uint64_t *seen, bool *ret_known);

/* What was counted on the device (rw_optimizer_follow()) becomes part of what rw_optimizer_kept() says, and begins
   anew. Waits for the device. */
rw_status rw_optimizer_settle(rw_optimizer *opt);

/* What it has to keep over a restart, of one parameter: its states, by the names that files have for them. They have
   its shape. */
#define RW_KEPT_MOST (RW_UPDATE_STATES + 1)

struct rw_kept {
    struct rw_param *param;
    const char *name[RW_KEPT_MOST];
    rw_dtype dtype[RW_KEPT_MOST]; /* of the states */
    size_t bytes[RW_KEPT_MOST];
    int n;
    uint64_t step; /* updates made */
    bool current;  /* the master is a copy of the parameter as it is */
    double lr_factor, weight_decay; /* rw_optimizer_set(); a decay below 0: the optimizer's, by the parameter's rank */
};

const char *rw_optimizer_kind_name(const rw_optimizer *opt);
double rw_optimizer_lr(const rw_optimizer *opt);
size_t rw_optimizer_members(const rw_optimizer *opt);
struct rw_kept rw_optimizer_kept(const rw_optimizer *opt, size_t i);

/* RW_ERR_CHANGED, recorded as an error of `call`, where an update has failed on its way and left states that do not
   belong together: they are to be written. */
rw_status rw_optimizer_check(const rw_optimizer *opt, const char *call);

/*
 * States, for who saves and restores them, while nothing is queued. Read copies bytes of state j of parameter i from
 * `at` on to the host's memory: at least one, at most `most`, *ret_n of them. Write takes all of it; between begin and
 * end all states of all parameters are written, and resumed. Of these begin alone records its errors.
 */
rw_status rw_optimizer_read(rw_optimizer *opt, size_t i, int j, size_t at, void *to, size_t most, size_t *ret_n);
rw_status rw_optimizer_rewrite_begin(rw_optimizer *opt);
rw_status rw_optimizer_write(rw_optimizer *opt, size_t i, int j, const void *from);
void rw_optimizer_rewrite_end(rw_optimizer *opt);
/* The parameter and its states were written: so many updates led there. */
void rw_optimizer_resume(rw_optimizer *opt, size_t i, uint64_t step, bool current);
/* The settings of rw_optimizer_kept(), which are finite, with an lr_factor of 0 or more. */
void rw_optimizer_resume_settings(rw_optimizer *opt, size_t i, double lr_factor, double weight_decay);

#endif
