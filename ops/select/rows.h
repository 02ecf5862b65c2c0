/*
 * The loop of element-wise kernels whose operands are of several types: map.h's blocks, a function for a row of a
 * block. Outputs are dense; inputs have any strides.
 */
#ifndef RW_OPS_SELECT_ROWS_H
#define RW_OPS_SELECT_ROWS_H

#include "ops/common/map.h"

/* n elements: input j begins at element at[j] and goes on by stride[j], the output begins at `to`. */
typedef void (*select_row)(const rw_kernel *k, const int64_t *at, const int64_t *stride, int64_t to, int64_t n);

static inline void select_block(const struct map_job *job, int64_t block, int n_in, select_row row_of)
{
    struct map_place p;
    map_find(&p, job, block, n_in);
    for (; p.row < p.last; p.row++) {
        row_of(job->k, p.at, p.stride, p.row * job->inner + p.begin, p.n);
        map_next(&job->m, n_in, p.at, p.index);
    }
}

/* The kernel body. */
static inline rw_status select_rows(const rw_kernel *k, int n_in, select_row row)
{
    const int64_t numel = k->out[0].layout->numel;
    if (!row) return RW_ERR_UNSUPPORTED;
    if (!numel) return RW_OK;
    struct map_job job = { .a = 0 };
    const int64_t n = map_cut(k, n_in, &job);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM && k->threads > 1)
    for (int64_t i = 0; i < n; i++) select_block(&job, i, n_in, row);
    return RW_OK;
}

#endif
