/*
 * Delayed FP8 scaling during recording: which row of the histories belongs to which operand of which weight, and which
 * amaxes a tape computes. A scale is an operand, an amax a result. autodiff/fp8_amax.h records the commits that store
 * amaxes; api/delayed_scaling.c updates the histories.
 */
#ifndef RW_RECORD_DELAYED_SCALES_H
#define RW_RECORD_DELAYED_SCALES_H

#include "record/tape.h"

/* The first members of struct rw_delayed_scaling. */
struct rw_delayed_rows {
    rw_context *ctx;
    struct rw_param *scale, *history, *amax; /* buffers of the context */
    rw_dtype gradient_dtype;
    uint64_t *weights; /* by row: the serial of the parameter or buffer; they rise */
    size_t n;
};

/* What the current step of a tape notes, in the order of recording. */
struct rw_amaxes {
    struct rw_tape_amax *list;
    size_t n, cap;
};

/* NULL: no step of the tape has noted anything. */
struct rw_amaxes *rw_amaxes_of(const rw_tape *t);

/* Records the value when backward ends, if a loss or gradient depends on its node or FP8 data. RW_ERR_MEMORY,
   recorded. */
rw_status rw_amaxes_note(rw_tape *t, struct rw_tape_amax what);

static inline const struct rw_delayed_rows *rw_delayed_rows(const rw_delayed_scaling *d)
{
    return (const struct rw_delayed_rows *)(const void *)d;
}

/* The same as rw_delayed_note() for a weight whose FP8 data and amax are leaves (fp8_weight_cache.h). The weight has
   rows. */
rw_status rw_delayed_note_kept(rw_tape *t, const struct rw_delayed_rows *d, const rw_tensor *weight,
                               const rw_tensor *codes, const rw_tensor *amax);

/* RW_NONE_ID if it has none. */
static inline uint32_t rw_delayed_row_of(const struct rw_delayed_rows *d, uint64_t serial)
{
    return rw_serial_find(d->weights, d->n, serial);
}

#endif
