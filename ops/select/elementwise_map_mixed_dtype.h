/*
 * The loop of element-wise kernels whose operands have different types: the blocks of elementwise_map.h, with a
 * function for a row of a block. Outputs are dense; inputs have any strides.
 */
#ifndef RW_OPS_SELECT_ELEMENTWISE_MAP_MIXED_DTYPE_H
#define RW_OPS_SELECT_ELEMENTWISE_MAP_MIXED_DTYPE_H

#include "ops/common/elementwise_map.h"

/* n elements: input j begins at element at[j] with stride[j], the output begins at `to`. */
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

struct select_blocks {
    struct map_job job;
    int n_in;
    select_row row;
};

static void select_run_blocks(void *of, int64_t first, int64_t end)
{
    const struct select_blocks *const b = of;
    for (int64_t i = first; i < end; i++) select_block(&b->job, i, b->n_in, b->row);
}

/* The body of such a kernel. */
static inline rw_status select_rows(const rw_kernel *k, int n_in, select_row row)
{
    const int64_t numel = k->out[0].layout->numel;
    if (!row) return RW_ERR_UNSUPPORTED;
    if (!numel) return RW_OK;
    struct select_blocks b = { .n_in = n_in, .row = row };
    const int64_t n = map_cut(k, n_in, &b.job);
    rw_team_for(rw_threads_for(k, numel), n, select_run_blocks, &b);
    return RW_OK;
}

#endif
