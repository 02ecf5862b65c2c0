/* A product by expert on the CPU: its operands, shared by the kernels and their planning. */
#ifndef RW_OPS_MOE_LINEAR_OPERANDS_H
#define RW_OPS_MOE_LINEAR_OPERANDS_H

#include "ops/moe/moe.h"

/* Operands as stored in memory. */
struct moe_product {
    const void *x, *dy, *weight, *sum; /* sum: addend of an outer product, or NULL */
    void *y;
    const int32_t *offsets, *order;
    int64_t rows, tokens; /* tokens: rows of a gathered operand */
    int64_t k, in, out, depth, width, experts;
    rw_dtype to; /* of an outer product and its addend */
    bool gathers, gathers_dy, transposed; /* for x, and for dy */
    bool streams; /* an outer product is written past the caches: it would be evicted before it is read */
};

/* The row of an operand that belongs to row r. */
static inline int64_t rw_moe_source(const struct moe_product *m, bool gathers, int64_t r)
{
    return gathers ? rw_moe_within(m->order[r] / m->k, m->tokens) : r;
}

/* Stores a tile of sums, with c's rows c_row apart, plus the addend, if any: elements from `at` on of m->y. */
typedef void (*rw_moe_put_fn)(const struct moe_product *m, const float *c, int64_t c_row, int64_t at, int64_t rows,
                              int64_t cols);

#endif
