/* Products of 16-bit types in float32 (gemm_widen_to_f32.c): the vector code that widens parts of operands and rounds
   sums. */
#include "device/cpu/isa.h"
#include "ops/common/vec_native.h"
#include "ops/matmul/gemm_descriptor.h"

/* ---- widening ---- */

/* Front to back: the source may be the second half of the destination. */
VEC_INLINE void widen_dense(rw_dtype dtype, const void *from, int64_t n, float *to)
{
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) nf_put(to, RW_F32, i, nf_get(from, dtype, i));
    for (; i < n; i++) to[i] = f_get(from, dtype, i);
}

VEC_INLINE void widen_type(rw_dtype dtype, const void *from, int64_t step, int64_t n, float *to)
{
    if (step == 1) widen_dense(dtype, from, n, to);
    else
        for (int64_t i = 0; i < n; i++) to[i] = f_get(from, dtype, i * step);
}

static void widen(rw_dtype dtype, const void *from, int64_t step, int64_t n, float *to)
{
    if (dtype == RW_F16) widen_type(RW_F16, from, step, n, to);
    else widen_type(RW_BF16, from, step, n, to);
}

/* ---- rounding ---- */

VEC_INLINE void round_row(const struct gemm *g, rw_dtype dtype, rw_dtype to, const float *sums, int64_t at, int64_t col,
                          int64_t cols)
{
    int64_t j = 0;
    for (; j + NF_LANES <= cols; j += NF_LANES) {
        nf y = nf_get(sums, RW_F32, j);
        if (g->has_bias) y += nf_get(g->bias, dtype, col + j);
        if (g->adds) y += nf_get(g->sum, to, at + j);
        nf_put(g->c, to, at + j, y);
    }
    for (; j < cols; j++) {
        float y = sums[j] + (g->has_bias ? f_get(g->bias, dtype, col + j) : 0);
        if (g->adds) y += f_get(g->sum, to, at + j);
        f_put(g->c, to, at + j, y);
    }
}

VEC_INLINE void round_rows(const struct gemm *g, rw_dtype dtype, rw_dtype to, const float *sums, int64_t across,
                           int64_t at, int64_t rows, int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++) round_row(g, dtype, to, sums + i * across, at + i * g->c_row, col, cols);
}

static void round_tile(const struct gemm *g, const float *sums, int64_t across, int64_t at, int64_t rows, int64_t col,
                       int64_t cols)
{
    const bool wide = g->to == RW_F32;
    if (g->dtype == RW_F32) round_rows(g, RW_F32, RW_F32, sums, across, at, rows, col, cols);
    else if (g->dtype == RW_F16 && wide) round_rows(g, RW_F16, RW_F32, sums, across, at, rows, col, cols);
    else if (g->dtype == RW_F16) round_rows(g, RW_F16, RW_F16, sums, across, at, rows, col, cols);
    else if (wide) round_rows(g, RW_BF16, RW_F32, sums, across, at, rows, col, cols);
    else round_rows(g, RW_BF16, RW_BF16, sums, across, at, rows, col, cols);
}

void RW_ISA_NAME(rw_gemm_own_tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols);

void RW_ISA_NAME(rw_gemm_packed_tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col,
                                      int64_t cols, float *room);

void RW_ISA_NAME(rw_gemm_pack_part)(const struct gemm *g, int64_t item, int64_t from, int64_t col, int64_t cols,
                                    float *to);

void RW_ISA_NAME(rw_gemm_multiply_part)(const struct gemm *g, int64_t item, int64_t from, int64_t row, int64_t rows,
                                        int64_t col, int64_t cols, const float *b, float *sums, int64_t across,
                                        float *room);

const struct gemm_loops RW_ISA_NAME(rw_gemm_loops) = { .tile = RW_ISA_NAME(rw_gemm_own_tile),
                                                       .packed = RW_ISA_NAME(rw_gemm_packed_tile),
                                                       .pack = RW_ISA_NAME(rw_gemm_pack_part),
                                                       .multiply = RW_ISA_NAME(rw_gemm_multiply_part),
                                                       .widen = widen,
                                                       .round = round_tile };
