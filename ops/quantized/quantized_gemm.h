/* The product with a weight in codes on the CPU: one whose second factor is decoded, panel by panel. C11. */
#ifndef RW_OPS_QUANTIZED_GEMM_H
#define RW_OPS_QUANTIZED_GEMM_H

#include "ops/matmul/gemm.h"
#include "ops/quantized/quantized.h"

/* Without data. */
static inline struct gemm quantized_gemm_of(const struct rw_linear_quantized_attrs *a, const rw_layout *x, bool bias,
                                            rw_dtype dtype)
{
    struct gemm g;
    int64_t rows = 1;
    for (int i = 0; i + 1 < x->rank; i++) rows *= x->dim[i];
    rw_gemm_of_panels(&g, rows, a->turned ? a->in : a->out, a->turned ? a->out : a->in, dtype);
    g.a_lies = true;
    g.a.row = g.k;
    g.a.col = 1;
    g.from_b.turned = !a->turned;
    g.has_bias = bias;
    return g;
}

#endif
