/* A product by expert on the CPU: its operands, as the kernels and what they are planned by share them. */
#ifndef RW_OPS_MOE_PRODUCT_H
#define RW_OPS_MOE_PRODUCT_H

#include "ops/moe/moe.h"

/* Operands as they lie in memory. */
struct moe_product {
    const void *x, *dy, *weight, *sum; /* sum: of an outer product, or NULL */
    void *y;
    const int32_t *offsets, *order;
    int64_t rows, tokens; /* tokens: rows of what is gathered */
    int64_t k, in, out, depth, width, experts;
    rw_dtype to; /* of an outer product and its sum */
    bool gathers, gathers_dy, turned; /* x, and dy */
    bool streams; /* an outer product goes past the caches, as it leaves them before anybody reads it */
};

/* The row of an operand that belongs to row r. */
static inline int64_t rw_moe_source(const struct moe_product *m, bool gathers, int64_t r)
{
    return gathers ? rw_moe_within(m->order[r] / m->k, m->tokens) : r;
}

/* What becomes of a tile of a sum, c's rows c_row apart, and of what is added: elements from `at` on of m->y. */
typedef void (*rw_moe_put_fn)(const struct moe_product *m, const float *c, int64_t c_row, int64_t at, int64_t rows,
                              int64_t cols);

#endif
