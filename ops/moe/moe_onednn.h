/*
 * Products by expert on the CPU by oneDNN: what the kernels share with the checks.
 *
 * How many rows an expert has is known when it runs, and a primitive's extents when a plan is made. So there are
 * primitives of some numbers of rows, and an expert's rows are cut into these, the last cut filled up. Each
 * element of a row's result is one sum over the depth, in whatever cut the row lies: its bits do not depend on its
 * company, which tests/ops/moe.c holds for every number of rows. A sum of outer products is one of the sums of its
 * cuts, which follow from the number of rows alone.
 */
#ifndef RW_OPS_MOE_ONEDNN_H
#define RW_OPS_MOE_ONEDNN_H

#include "ops/moe/moe.h"

/* Operands as they lie in memory. */
struct moe_product {
    const void *x, *dy, *weight, *sum; /* sum: of an outer product, or NULL */
    void *y;
    const int32_t *offsets, *order;
    int64_t rows, tokens; /* of x, when it is gathered */
    int64_t k, in, out, depth, width, experts;
    rw_dtype to; /* of an outer product and its sum */
    bool gathers, turned;
};

/* The row of x that belongs to row r. */
static inline int64_t rw_moe_source(const struct moe_product *m, int64_t r)
{
    return m->gathers ? rw_moe_within(m->order[r] / m->k, m->tokens) : r;
}

/* For planning: bytes of workspace; 0 where the own loops take it; SIZE_MAX when the library can't be asked. */
size_t rw_moe_library_workspace(const rw_op_call *call, const struct moe_product *m, bool outer);

/* Runs it where the workspace is for it: *ret_ran is false where the own loops have to. Rows of no expert are left. */
rw_status rw_moe_library_linear(const rw_kernel *k, const struct moe_product *m, bool *ret_ran);

/* What becomes of a tile of a sum, c's rows c_row apart, and of what is added: elements from `at` on of m->y. */
typedef void (*rw_moe_put_fn)(const struct moe_product *m, const float *c, int64_t c_row, int64_t at, int64_t rows,
                              int64_t cols);
rw_status rw_moe_library_outer(const rw_kernel *k, const struct moe_product *m, rw_moe_put_fn put, bool *ret_ran);

#endif
