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
    uint64_t *weights; /* by row: the serial of the parameter or buffer; they rise */
    size_t n;
};

static inline const struct rw_delayed_rows *rw_delayed_rows(const rw_delayed *d)
{
    return (const struct rw_delayed_rows *)(const void *)d;
}

/* RW_NONE_ID where it has none. */
static inline uint32_t rw_delayed_row_of(const struct rw_delayed_rows *d, uint64_t serial)
{
    return rw_serial_find(d->weights, d->n, serial);
}

#endif
