/*
 * The products of a linear layer on 8-bit quantized operands: what the checks and kernels share. C11 and C++17.
 *
 *     (a, scales of a, b, scales of b [, bias or sum]) -> a b^T, a b or a^T b of the decoded operands
 *
 * The operands are matrices of quantized rows; leading axes count as rows. Each is decoded to bfloat16 and multiplied
 * as in rw_linear() and rw_matmul().
 */
#ifndef RW_OPS_MATMUL_FP8_MATMUL_H
#define RW_OPS_MATMUL_FP8_MATMUL_H

#include <rewind/float8.h>
#include <rewind/op.h>

#include <string.h>

extern const rw_op_def rw_op_linear_of_codes; /* a b^T (+ bias), [..., n] in bfloat16 */
extern const rw_op_def rw_op_matmul_of_codes; /* a b (+ sum), a matrix in bfloat16, or in the sum's type */

enum { RW_CODES_A, RW_CODES_A_SCALE, RW_CODES_B, RW_CODES_B_SCALE, RW_CODES_MORE };

struct rw_codes_product_attrs {
    int64_t a_scaling, b_scaling;
    int64_t a_transposed, b_transposed; /* whether the factor is the transpose of the stored matrix */
};

/* The [rows, cols] layout of one operand: as stored when quantized, dense when decoded to bfloat16. */
static inline rw_layout rw_codes_rows(const rw_layout *codes)
{
    rw_layout l;
    memset(&l, 0, sizeof l);
    l.rank = 2;
    l.dim[1] = codes->rank ? codes->dim[codes->rank - 1] : 1;
    l.dim[0] = 1;
    for (int i = 0; i < codes->rank - 1; i++) l.dim[0] *= codes->dim[i];
    l.stride[0] = l.dim[1];
    l.stride[1] = 1;
    l.numel = l.span = codes->numel;
    l.dense = true;
    return l;
}

static inline rw_layout rw_codes_factor(const rw_layout *codes, bool transposed)
{
    rw_layout l = rw_codes_rows(codes);
    if (!transposed) return l;
    const int64_t rows = l.dim[0];
    l.dim[0] = l.dim[1];
    l.dim[1] = rows;
    l.stride[1] = l.stride[0];
    l.stride[0] = 1;
    l.dense = false;
    return l;
}

/* The extents of a product of an [m, k] and a [k, n] matrix. */
struct rw_codes_extents {
    int64_t m, n, k;
};

static inline struct rw_codes_extents rw_codes_extents_of(const struct rw_codes_product_attrs *a, const rw_layout *x,
                                                          const rw_layout *y)
{
    const rw_layout fx = rw_codes_factor(x, a->a_transposed != 0), fy = rw_codes_factor(y, a->b_transposed != 0);
    struct rw_codes_extents e;
    e.m = fx.dim[0];
    e.k = fx.dim[1];
    e.n = fy.dim[1];
    return e;
}

#endif
