/* CPU kernels of matmul and linear: the own loops of this instruction set, and the way to oneDNN (gemm.c). */
#include "device/cpu/isa.h"
#include "ops/matmul/gemm.h"
#include "ops/vec.h"

/* Rows of c held in registers; divides GEMM_OWN_M. */
#if defined(RW_ISA_IS_V4)
#define OWN_ROWS 16
#elif defined(RW_ISA_IS_V3)
#define OWN_ROWS 6
#else
#define OWN_ROWS 3
#endif

VEC_INLINE vf vf_own_fma(vf a, vf b, vf c)
{
    return vf_fma(a, b, c);
}

VEC_INLINE vd vd_own_fma(vd a, vd b, vd c)
{
#if defined(RW_ISA_IS_V4)
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(RW_ISA_IS_V3)
    union { vd v; __m256d h[2]; } x = { a }, y = { b }, z = { c };
    z.h[0] = _mm256_fmadd_pd(x.h[0], y.h[0], z.h[0]);
    z.h[1] = _mm256_fmadd_pd(x.h[1], y.h[1], z.h[1]);
    return z.v;
#else
    return a * b + c;
#endif
}

#define T float
#define V vf
#define LANES VF_LANES
#define F(name) vf_##name
#include "ops/matmul/gemm_own.h"
#undef T
#undef V
#undef LANES
#undef F
#define T double
#define V vd
#define LANES VD_LANES
#define F(name) vd_##name
#include "ops/matmul/gemm_own.h"

static void tile(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    switch (g->dtype) {
    case RW_F32: vf_tile(g, RW_F32, item, row, rows, col, cols); return;
    case RW_BF16: vf_tile(g, RW_BF16, item, row, rows, col, cols); return;
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
    return rw_gemm_run(k, &g, tile);
}

rw_status RW_ISA_NAME(rw_linear_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_linear_cpu)(const rw_kernel *k)
{
    struct gemm g;
    rw_gemm_of_linear(&g, k->in[0].layout, k->in[1].layout, k->n_inputs > 2, k->out[0].dtype);
    g.a.data = k->in[0].data;
    g.b.data = k->in[1].data;
    g.bias = k->n_inputs > 2 ? k->in[2].data : NULL;
    g.c = k->out[0].data;
    return rw_gemm_run(k, &g, tile);
}
