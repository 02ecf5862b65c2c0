/*
 * Quantized weights that are kept from one micro-batch to the next (rw_recipe.keep_weights). For each weight and each
 * way to scale it there are two states of the context, FP8 data and scales, and with delayed scaling a third, the amax.
 * Recording the quantization of a weight also records commits that write these states. Later recording reads them
 * instead, if the weight and the source of its scales are unchanged; the bytes are those that it would compute itself.
 * Only versions decide this, so writing a weight needs no notification. A run that reads them also checks the weight's
 * version (run/source_addresses.c). They are listed in the weight, and freed with it.
 */
#ifndef RW_RECORD_FP8_WEIGHT_CACHE_H
#define RW_RECORD_FP8_WEIGHT_CACHE_H

#include "record/context.h"
#include "record/param.h"

enum rw_kept_state { RW_KEPT_CODES, RW_KEPT_SCALE, RW_KEPT_AMAX, RW_KEPT_STATES };

struct rw_kept_codes {
    struct rw_kept_codes *next; /* next entry of the same weight, scaled in another way */
    uint64_t origin;            /* source of the scales: see precision_recipe.c */
    struct rw_param *state[RW_KEPT_STATES]; /* the amax is NULL without delayed scaling */
    /* At the time of recording: versions of the weight and of the given scale, 0 without one; versions of the
       states, which the commits increase by one; and the tape and its step. */
    uint32_t weight_version, given_version, version[RW_KEPT_STATES];
    const rw_tape *by;
    uint64_t step;
};

/* A weight, and the version of the given scale. */
struct rw_kept_key {
    struct rw_param *weight;
    uint64_t origin;
    uint32_t given_version;
};

/* Values of a tape: FP8 data, scales, amax. */
struct rw_kept_values {
    rw_tensor *value[RW_KEPT_STATES];
};

/*
 * Returns values of the tape, NULL for an error, which is recorded. False if there are none with the bytes that
 * quantization would give now. The amax is NULL without delayed scaling, and if the step has read it before: it is
 * recorded once. weight: its leaf on the tape.
 */
bool rw_kept_codes_find(rw_site at, rw_tape *t, const struct rw_kept_key *key, uint32_t weight,
                        struct rw_kept_values *ret);

/*
 * Keeps FP8 data that was just recorded, when backward has run, unless another active tape does the same: its write
 * would change what this tape reads. Errors are recorded.
 */
rw_status rw_kept_codes_store(rw_site at, rw_tape *t, const struct rw_kept_key *key,
                              const struct rw_kept_values *values);

/* Name of the weight whose FP8 data the tape reads or writes; NULL if there is none. */
const char *rw_kept_codes_named(const rw_tape *t);

/* Frees the entries of a weight with their states, when the weight or the context is destroyed. No tape that uses
   one may run. */
void rw_kept_codes_drop(rw_context *ctx, struct rw_param *weight);

#endif
