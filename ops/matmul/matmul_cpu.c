/* CPU kernels of matrix products: the plain loops of this instruction set, and the entry points to oneDNN
   (gemm_descriptor.c). */
#include "device/cpu/isa.h"
#include "ops/matmul/gemm_descriptor.h"
#include "ops/pointwise/pointwise.h"
#include "ops/common/vec_native.h"

#define OWN_LOOPS "ops/matmul/gemm_plain_loops_tmpl.h"
#include "ops/matmul/instantiate_float_double_tmpl.h"

void RW_ISA_NAME(rw_gemm_skinny_tile)(const struct gemm *g, int64_t col, int64_t cols);
void RW_ISA_NAME(rw_gemm_shallow_tile)(const struct gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols);

void RW_ISA_NAME(rw_gemm_own_tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols);
/* Computes a tile of c with the plain loops, or as a skinny or shallow product. */
void RW_ISA_NAME(rw_gemm_own_tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols)
{
    if (rw_gemm_is_skinny(g)) {
        RW_ISA_NAME(rw_gemm_skinny_tile)(g, col, cols);
        return;
    }
    if (rw_gemm_is_shallow(g)) {
        RW_ISA_NAME(rw_gemm_shallow_tile)(g, row, rows, col, cols);
        return;
    }
    switch (g->dtype) {
    case RW_F32: vf_tile(g, RW_F32, item, row, rows, col, cols); return;
    case RW_BF16: vf_tile(g, RW_BF16, item, row, rows, col, cols); return;
    case RW_F16: vf_tile(g, RW_F16, item, row, rows, col, cols); return;
    default: vd_tile(g, RW_F64, item, row, rows, col, cols); return;
    }
}
rw_status RW_ISA_NAME(rw_matmul_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_matmul_cpu)(const rw_kernel *k)
{
    struct gemm g;
    rw_gemm_of_matmul(&g, k->in[0].layout, k->in[1].layout, k->out[0].dtype);
    g.a.data = k->in[0].data;
    g.b.data = k->in[1].data;
    g.c = k->out[0].data;
    return rw_gemm_run(k, &g, &RW_ISA_NAME(rw_gemm_loops));
}

rw_status RW_ISA_NAME(rw_matmul_add_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_matmul_add_cpu)(const rw_kernel *k)
{
    struct gemm g;
    rw_gemm_of_matmul(&g, k->in[1].layout, k->in[2].layout, k->in[1].dtype);
    g.to = k->out[0].dtype;
    g.a.data = k->in[1].data;
    g.b.data = k->in[2].data;
    g.adds = rw_kernel_has(k, 0); /* without the addend it is rw_matmul */
    g.sum = k->in[0].data;
    g.c = k->out[0].data;
    return rw_gemm_run(k, &g, &RW_ISA_NAME(rw_gemm_loops));
}

/* Computes the linear layer of x, weight and an optional bias, inputs from `x` on, into output `to`. */
static rw_status linear_to(const rw_kernel *k, int x, int to)
{
    const rw_view *const in = k->in + x;
    const bool bias = k->n_inputs > x + 2;
    struct gemm g;
    rw_gemm_of_linear(&g, in[0].layout, in[1].layout, bias, k->out[to].dtype);
    g.a.data = in[0].data;
    g.b.data = in[1].data;
    g.bias = bias ? in[2].data : NULL;
    g.adds = x > 0;
    g.sum = g.adds ? k->in[0].data : NULL;
    g.c = k->out[to].data;
    return rw_gemm_run(k, &g, &RW_ISA_NAME(rw_gemm_loops));
}

rw_status RW_ISA_NAME(rw_linear_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_cpu)(const rw_kernel *k)
{
    return linear_to(k, 0, 0);
}

rw_status RW_ISA_NAME(rw_linear_add_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_add_cpu)(const rw_kernel *k)
{
    return linear_to(k, 1, 0);
}

/* Uses the kernel of gelu_tanh, so the bytes equal those of the two separate ops. */
rw_status RW_ISA_NAME(rw_gelu_tanh_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_gelu_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_gelu_cpu)(const rw_kernel *k)
{
    static const struct rw_pointwise_attrs none;
    rw_kernel gelu = *k;
    gelu.attrs = &none;
    gelu.in = &k->out[1];
    gelu.n_inputs = gelu.n_outputs = 1;
    const rw_status status = linear_to(k, 0, 1);
    return status ? status : RW_ISA_NAME(rw_gelu_tanh_cpu)(&gelu);
}
