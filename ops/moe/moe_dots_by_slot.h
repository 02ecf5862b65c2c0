/* Dot products of rows on the CPU: computed by row, stored by slot. */
#ifndef RW_OPS_MOE_DOTS_BY_SLOT_H
#define RW_OPS_MOE_DOTS_BY_SLOT_H

#include "base/thread_team.h"
#include "ops/common/util.h"
#include "ops/moe/moe.h"

/* Element i of a row's dot product is added to chain i mod 16; the chains are added in order. */
#define MOE_CHAINS 16

struct moe_dots {
    const rw_view *y;
    const int32_t *row; /* of each slot */
    const void *dots;   /* by row */
    int64_t rows;
};

static inline void rw_moe_dots_of(void *of, int64_t first, int64_t end)
{
    const struct moe_dots *const d = of;
    for (int64_t i = first; i < end; i++) {
        const int64_t at = rw_moe_within(d->row[i], d->rows);
        if (d->y->dtype == RW_F64) ((double *)d->y->data)[i] = ((const double *)d->dots)[at];
        else ((float *)d->y->data)[i] = ((const float *)d->dots)[at];
    }
}

/* Copies the workspace, by row, to output `out`, by slot: input `inverse` has the row of each slot. */
static inline void rw_moe_dots_by_slot(const rw_kernel *k, int out, int inverse, int64_t rows)
{
    const struct moe_dots d = { &k->out[out], k->in[inverse].data, k->workspace, rows };
    const int64_t slots = k->out[out].layout->numel;
    rw_team_for(rw_threads_for(k, slots), slots, rw_moe_dots_of, &d);
}

#endif
