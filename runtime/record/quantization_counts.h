/*
 * Counts of quantization for a monitor: which row belongs to which operand of which weight, and its call site. Each
 * quantize op of a watched operand counts (fp8_scaling_ops.h, enum rw_codes_number); a commit at the end of backward
 * records the counts (autodiff/fp8_amax.h); io/monitor_fp8_stats.c reads them.
 */
#ifndef RW_RECORD_QUANTIZATION_COUNTS_H
#define RW_RECORD_QUANTIZATION_COUNTS_H

#include "record/param.h"
#include "record/tape.h"

struct rw_counts {
    const void *watcher;     /* the monitor that reads; NULL: nothing is counted */
    struct rw_param *noted;  /* a state of the context, kept until the context ends, because a graph may write it */
    uint64_t *weights;       /* serials of weights, ascending, with RW_DELAYED_OPERANDS rows each */
    size_t n_weights;
    rw_site *at;             /* by row: latest call site; file NULL: not recorded yet */
    size_t n;                /* rows: RW_DELAYED_OPERANDS of each parameter or buffer that may be a weight */
};

/* What later recording counts into; NULL: nothing. */
struct rw_counts *rw_counts_of(const rw_context *ctx);

/* Creates counts for each parameter and buffer that exists. RW_ERR_ARGUMENT if another monitor counts,
   RW_ERR_MEMORY; recorded. */
rw_status rw_counts_make(struct rw_counts **ret, rw_context *ctx, const void *watcher);

/* Frees counts that will not be used. NULL-safe. */
void rw_counts_drop(rw_context *ctx, struct rw_counts *c);

/* Later recording counts into these; the context owns them. */
void rw_counts_set(const rw_context *ctx, struct rw_counts *c);

/* Ends counting, if this monitor is the one that reads. */
void rw_counts_close(const rw_context *ctx, const void *watcher);

#endif
