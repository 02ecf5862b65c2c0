/*
 * Delayed scaling as recording sees it: which row of the histories belongs to which operand of which weight, and which
 * amaxes a tape has made. A scale is an operand, an amax a result; what takes the amaxes is recorded behind backward
 * (autodiff/amaxes.h), what moves the histories on is api/delayed.c's.
 */
#ifndef RW_RECORD_DELAYED_H
#define RW_RECORD_DELAYED_H

#include "record/own_ops.h"
#include "record/tape.h"

/* What struct rw_delayed begins with. */
struct rw_delayed_rows {
    rw_context *ctx;
    struct rw_param *scale, *history, *amax; /* buffers of the context */
    rw_dtype gradient_dtype;
    uint32_t *row_of; /* by a parameter's id, RW_NONE_ID for none; ids from n_ids on are of later ones */
    size_t n_ids;
};

static inline const struct rw_delayed_rows *rw_delayed_rows(const rw_delayed *d)
{
    return (const struct rw_delayed_rows *)(const void *)d;
}

static inline uint32_t rw_delayed_row_of(const struct rw_delayed_rows *d, uint32_t param)
{
    return param < d->n_ids ? d->row_of[param] : RW_NONE_ID;
}

#endif
