/*
 * What a monitor is told of 8-bit codes: which row belongs to which operand of which weight, and where it was recorded.
 * Each quantize of a watched operand counts on the way (own_ops.h, enum rw_codes_number); a commit behind backward
 * notes what was counted (autodiff/amaxes.h); io/monitor_sites.c reads it.
 */
#ifndef RW_RECORD_COUNTS_H
#define RW_RECORD_COUNTS_H

#include "record/own_ops.h"
#include "record/param.h"
#include "record/tape.h"

struct rw_counts {
    const void *watcher;     /* NULL: nobody watches, and nothing is counted */
    struct rw_param *noted;  /* a state of the context, which stays until that ends: a graph may write it */
    uint64_t *weights;       /* serials, which rise: of RW_DELAYED_OPERANDS rows each */
    size_t n_weights;
    rw_site *at;             /* by row: where it was recorded last; file NULL: it was not yet */
    size_t n;                /* rows: RW_DELAYED_OPERANDS of each parameter or buffer that may be a weight */
};

/* Of each parameter and buffer that there is. RW_ERR_ARGUMENT where somebody else watches, RW_ERR_MEMORY; recorded. */
rw_status rw_counts_make(struct rw_counts **ret, rw_context *ctx, const void *watcher);

/* Made, and not to be used. NULL-safe. */
void rw_counts_drop(rw_context *ctx, struct rw_counts *c);

/* From now on what is recorded counts so; the context owns it. */
void rw_counts_set(rw_context *ctx, struct rw_counts *c);

/* Where this is who watches, nothing is counted from now on. */
void rw_counts_close(rw_context *ctx, const void *watcher);

/* When the context ends. */
void rw_counts_free(rw_context *ctx);

#endif
