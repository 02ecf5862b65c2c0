/* State of an optimizer between updates: sums for observers, and what is kept over a restart. */
#ifndef RW_API_OPTIMIZER_KEPT_H
#define RW_API_OPTIMIZER_KEPT_H

#include "ops/optim/update_ops.h"
#include "record/param.h"

#include <rewind/optimizers.h>

enum rw_optimizer_sums { RW_NO_SUMS, RW_SUMS_TOGETHER, RW_SUMS_APART };

/* The number of updates that it has counted. */
uint64_t rw_optimizer_updates(const rw_optimizer *opt);

/*
 * Reads the sums of the last update, of all members in their order. *ret_known is false, and nothing is written, if it
 * has none, or if its number is *seen, which becomes its number. Waits for the device.
 */
rw_status rw_optimizer_read_sums(rw_optimizer *opt, double (*ret)[RW_UPDATE_SUMS], uint64_t *seen, bool *ret_known);

/* Adds what was counted on the device (rw_optimizer_follow()) to rw_optimizer_kept(), and starts the counts again.
   Waits for the device. */
rw_status rw_optimizer_settle(rw_optimizer *opt);

/* What is kept of one parameter over a restart: its states, by their names in files. They have its shape. */
#define RW_KEPT_MAX (RW_UPDATE_STATES + 1)

struct rw_kept {
    struct rw_param *param;
    const char *name[RW_KEPT_MAX];
    rw_dtype dtype[RW_KEPT_MAX]; /* of the states */
    size_t bytes[RW_KEPT_MAX];
    int n;
    uint64_t step; /* number of updates */
    bool current;  /* the master copy equals the parameter */
    double lr_factor, weight_decay; /* rw_optimizer_set(); a decay below 0: the optimizer's, by the parameter's rank */
};

const char *rw_optimizer_kind_name(const rw_optimizer *opt);
double rw_optimizer_lr(const rw_optimizer *opt);
size_t rw_optimizer_members(const rw_optimizer *opt);
struct rw_kept rw_optimizer_kept(const rw_optimizer *opt, size_t i);

/* RW_ERR_MODIFIED, recorded as an error of `call`, if an update has failed halfway and left inconsistent states, which
   must be written again. */
rw_status rw_optimizer_check(const rw_optimizer *opt, const char *call);

/*
 * States, for code that saves and restores them, while nothing is queued. Read copies bytes of state j of parameter i,
 * from `at` on, to host memory: at least one and at most `most`; *ret_n is their number. Write takes a whole state.
 * Between begin and end all states of all parameters must be written, and resumed. Only begin records its errors.
 */
rw_status rw_optimizer_read(rw_optimizer *opt, size_t i, int j, size_t at, void *to, size_t most, size_t *ret_n);
rw_status rw_optimizer_rewrite_begin(rw_optimizer *opt);
rw_status rw_optimizer_write(rw_optimizer *opt, size_t i, int j, const void *from);
void rw_optimizer_rewrite_end(rw_optimizer *opt);
/* The parameter and its states were written: they are the result of that many updates. */
void rw_optimizer_resume(rw_optimizer *opt, size_t i, uint64_t step, bool current);
/* Whether all numbers of updates of parameter i are finite in its type: with this rate, and these settings of it. */
bool rw_optimizer_rate_fits(const rw_optimizer *opt, size_t i, double lr, double lr_factor, double weight_decay);

/* Sets the settings of rw_optimizer_kept(), which are finite, with an lr_factor of 0 or more. */
void rw_optimizer_resume_settings(rw_optimizer *opt, size_t i, double lr_factor, double weight_decay);

#endif
