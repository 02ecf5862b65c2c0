/*
 * Codes of 8 bits of weights that are kept from one micro-batch to the next (rw_recipe.keep_weights): two states of the
 * context, the codes and their scales, for each weight and each way to scale it. Who records a weight's codes records
 * commits behind them that write these; who comes later, and finds the weight and what its scales come from as they
 * were, reads them. The bytes are those that it would have made itself. What is found is decided by versions alone, so
 * nothing has to be told when a weight is written. A run that reads them checks the weight's version as well
 * (run/sources.c). They are listed in the weight, and freed with it.
 */
#ifndef RW_RECORD_KEPT_CODES_H
#define RW_RECORD_KEPT_CODES_H

#include "record/context.h"
#include "record/param.h"

struct rw_kept_codes {
    struct rw_kept_codes *next; /* of the same weight, scaled in another way */
    uint64_t origin;            /* what the scales come from: see recipe.c */
    struct rw_param *codes, *scale;
    /* When what makes them was recorded: versions of the weight and of the scale that was given, 0 without one; those
       of the states, which the commits make one more; and by whom, in which step. */
    uint32_t weight_version, given_version, codes_version, scale_version;
    const rw_tape *by;
    uint64_t step;
};

/* What codes are of: a weight, and the version of the scale that was given. */
struct rw_kept_key {
    struct rw_param *weight;
    uint64_t origin;
    uint32_t given_version;
};

/* Values of the tape. False where there are none that are as they would be made now. Records no error. weight: its leaf
   on the tape. */
bool rw_kept_codes_find(rw_site at, rw_tape *t, const struct rw_kept_key *key, uint32_t weight, rw_tensor **ret_codes,
                        rw_tensor **ret_scale);

/*
 * Codes that were just recorded are kept when backward has run, unless another tape that is under way does the same:
 * what it writes would change what this one reads. Errors are recorded.
 */
rw_status rw_kept_codes_store(rw_site at, rw_tape *t, const struct rw_kept_key *key, rw_tensor *codes,
                              rw_tensor *scale);

/* The weight whose codes the tape reads or writes, in text; NULL where there is none. */
const char *rw_kept_codes_named(const rw_tape *t);

/* When the weight goes, or the context: its entries, with their states. No tape that names one may run. */
void rw_kept_codes_drop(rw_context *ctx, struct rw_param *weight);

#endif
