/* Rows' dot products on the CPU, which are found by row and belong to slots. */
#ifndef RW_OPS_MOE_DOTS_H
#define RW_OPS_MOE_DOTS_H

#include "ops/common/util.h"
#include "ops/moe/moe.h"

/* Element i of a row's dot product is added up in chain i mod 16; chains are added up in order. */
#define MOE_CHAINS 16

/* The workspace, by row, to output `out` by slot: input `inverse` says where a slot's row is. */
static inline void rw_moe_dots_by_slot(const rw_kernel *k, int out, int inverse, int64_t rows)
{
    const int32_t *const row = k->in[inverse].data;
    const int64_t slots = k->out[out].layout->numel;
    const bool wide = k->out[out].dtype == RW_F64;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (slots >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < slots; i++) {
        const int64_t at = rw_moe_within(row[i], rows);
        if (wide) ((double *)k->out[out].data)[i] = ((const double *)k->workspace)[at];
        else ((float *)k->out[out].data)[i] = ((const float *)k->workspace)[at];
    }
}

#endif
