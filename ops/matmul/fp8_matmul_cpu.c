/*
 * Products of 8-bit quantized operands on the CPU: panels of both factors are decoded to bfloat16 when the product
 * reaches them.
 */
#include "device/cpu/isa.h"
#include "ops/float8/decode.h"
#include "ops/matmul/fp8_matmul.h"
#include "ops/matmul/gemm_descriptor.h"

static void make(const void *of, int64_t row, int64_t col, int64_t n, void *to)
{
    f8_matrix_row(of, row, col, n, to);
}

/* Sets up a product whose operands are decoded panel by panel, and runs it. */
static rw_status run(const rw_kernel *k, bool adds)
{
    const struct rw_codes_product_attrs *const p = k->attrs;
    const rw_view *const in = k->in;
    const struct rw_codes_extents e = rw_codes_extents_of(p, in[RW_CODES_A].layout, in[RW_CODES_B].layout);
    const struct f8_matrix a = f8_matrix_of(&in[RW_CODES_A], &in[RW_CODES_A_SCALE], p->a_scaling);
    const struct f8_matrix b = f8_matrix_of(&in[RW_CODES_B], &in[RW_CODES_B_SCALE], p->b_scaling);
    const void *const more = rw_kernel_has(k, RW_CODES_MORE) ? in[RW_CODES_MORE].data : NULL;
    struct gemm g;
    rw_gemm_of_panels(&g, e.m, e.n, e.k, RW_BF16);
    g.from_a = (struct gemm_source){ p->a_transposed != 0, make, &a };
    g.from_b = (struct gemm_source){ p->b_transposed != 0, make, &b };
    g.to = k->out[0].dtype;
    g.adds = adds && more;
    g.sum = g.adds ? more : NULL;
    g.has_bias = !adds && more;
    g.bias = g.has_bias ? more : NULL;
    g.c = k->out[0].data;
    return rw_gemm_run(k, &g, &RW_ISA_NAME(rw_gemm_loops));
}

rw_status RW_ISA_NAME(rw_linear_of_codes_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_of_codes_cpu)(const rw_kernel *k)
{
    return run(k, false);
}

rw_status RW_ISA_NAME(rw_matmul_of_codes_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_matmul_of_codes_cpu)(const rw_kernel *k)
{
    return run(k, true);
}
