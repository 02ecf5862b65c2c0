/*
 * Sums by index, computed by the gradient kernels of an embedding: tokens are the rows that are added, each with the
 * row of a table that it is added to. These kernels add the tokens of a row in order on every device; this file
 * converts the operands of other ops to their form. C11 and C++17.
 */
#ifndef RW_OPS_INDEX_ADD_VIA_EMBEDDING_GRAD_H
#define RW_OPS_INDEX_ADD_VIA_EMBEDDING_GRAD_H

#include "ops/select/gather.h"

struct rw_row_sums {
    int64_t outer, extent, width, listed; /* of the result as [outer, extent, width]; elements of the index */
    rw_layout tokens, table;
    rw_view in[3], out[1];
    rw_kernel k;
};

/* The extents, for an op whose attributes are rw_gather_attrs with an axis from 0 on. */
static inline void rw_row_sums_of(const rw_kernel *k, struct rw_row_sums *r)
{
    const struct rw_gather_attrs *const a = (const struct rw_gather_attrs *)k->attrs;
    r->outer = r->width = 1;
    for (int i = 0; i < a->axis; i++) r->outer *= a->dim[i];
    for (int i = (int)a->axis + 1; i < a->rank; i++) r->width *= a->dim[i];
    r->extent = a->dim[a->axis];
    r->listed = k->in[1].layout->numel;
}

/* Fills r->k: the embedding's kernel for n tokens of a width, whose rows are at `flat`. r must not be moved
   afterwards. */
static inline void rw_row_sums_kernel(const rw_kernel *k, struct rw_row_sums *r, int64_t n, int64_t rows, int64_t width,
                               void *flat, void *workspace)
{
    r->tokens = *k->in[1].layout;
    r->tokens.numel = n;
    r->table = *k->out[0].layout;
    r->table.rank = 2;
    r->table.dim[0] = rows;
    r->table.dim[1] = width;
    for (int i = 0; i < k->n_inputs; i++) r->in[i] = k->in[i];
    r->in[1].data = flat;
    r->in[1].layout = &r->tokens;
    r->out[0] = k->out[0];
    r->out[0].layout = &r->table;
    r->k = *k;
    r->k.in = r->in;
    r->k.out = r->out;
    r->k.workspace = workspace;
    r->k.workspace_bytes = k->workspace_bytes - (size_t)((char *)workspace - (char *)k->workspace);
}

#endif
