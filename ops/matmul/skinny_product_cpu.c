/*
 * Memory-bound products on the CPU: few rows, or small depth. Each element is one chain of sums over k.
 *
 * Few rows and a large row-major matrix: its rows are read in long runs, and each is added to the sums of a tile's
 * columns, which stay in the L1 cache. oneDNN would walk down such a matrix in narrow tiles and wait for memory at each
 * row.
 *
 * Small depth, as in a weight's gradient from a small batch, and a large c: c is written with non-temporal stores.
 * Normal stores would first fetch the lines that are overwritten.
 */
#include "device/cpu/isa.h"
#include "ops/common/vec_native.h"
#include "ops/matmul/gemm_descriptor.h"

#include <string.h>

#define AT_ONCE 4 /* rows of b that are added while the sums are in registers */

/* ---- few rows ---- */

struct sums {
    float of[GEMM_SKINNY_ROWS][GEMM_SKINNY_COLS];
};

/* Adds the contribution of rows [p, p + depth) of b to n <= NF_LANES columns from col on; b begins at `at`. */
VEC_INLINE void meet(struct sums *s, const struct gemm *g, rw_dtype dtype, const float x[][GEMM_SKINNY_ROWS], int depth,
                     int64_t at, int64_t col, int64_t n)
{
    nf y[AT_ONCE];
    for (int i = 0; i < depth; i++)
        y[i] = n == NF_LANES ? nf_get(g->b.data, dtype, at + i * g->b.row + col)
                             : nf_get_some(g->b.data, dtype, at + i * g->b.row + col, n);
    for (int64_t r = 0; r < g->m; r++) {
        nf sum = *(const nf *)&s->of[r][col];
        for (int i = 0; i < depth; i++) sum = nf_fma(nf_all(x[i][r]), y[i], sum);
        *(nf *)&s->of[r][col] = sum;
    }
}

VEC_INLINE void meet_rows(struct sums *s, const struct gemm *g, rw_dtype dtype, int64_t p, int depth, int64_t first,
                          int64_t cols)
{
    float x[AT_ONCE][GEMM_SKINNY_ROWS] = { { 0 } };
    const int64_t at = p * g->b.row + first, whole = cols / NF_LANES * NF_LANES;
    for (int i = 0; i < depth; i++)
        for (int64_t r = 0; r < g->m; r++) x[i][r] = f_get(g->a.data, dtype, r * g->a.row + (p + i) * g->a.col);
    for (int64_t col = 0; col < whole; col += NF_LANES) meet(s, g, dtype, x, depth, at, col, NF_LANES);
    if (whole < cols) meet(s, g, dtype, x, depth, at, whole, cols - whole);
}

VEC_INLINE void write(const struct sums *s, const struct gemm *g, rw_dtype dtype, rw_dtype to, int64_t first,
                      int64_t cols)
{
    for (int64_t r = 0; r < g->m; r++)
        for (int64_t j = 0; j < cols; j++) {
            const int64_t at = r * g->c_row + first + j;
            float y = s->of[r][j] + (g->has_bias ? f_get(g->bias, dtype, first + j) : 0);
            if (g->adds) y += f_get(g->sum, to, at);
            f_put(g->c, to, at, y);
        }
}

VEC_INLINE void skinny_tile(const struct gemm *g, rw_dtype dtype, int64_t first, int64_t cols)
{
    struct sums s;
    int64_t p = 0;
    for (int64_t r = 0; r < g->m; r++) memset(s.of[r], 0, sizeof s.of[r]);
    for (; p + AT_ONCE <= g->k; p += AT_ONCE) meet_rows(&s, g, dtype, p, AT_ONCE, first, cols);
    for (; p < g->k; p++) meet_rows(&s, g, dtype, p, 1, first, cols);
    if (g->to == dtype) write(&s, g, dtype, dtype, first, cols);
    else write(&s, g, dtype, RW_F32, first, cols);
}

/* ---- small depth ---- */

struct rows_of_b {
    float of[GEMM_SKINNY_DEPTH][GEMM_SKINNY_COLS];
};

/* Converts n <= NF_LANES sums to elements of c, from `at` on. */
VEC_INLINE void finish(const struct gemm *g, rw_dtype dtype, rw_dtype to, nf sum, int64_t at, int64_t col, int64_t n)
{
    const bool whole = n == NF_LANES;
    if (g->has_bias) sum += whole ? nf_get(g->bias, dtype, col) : nf_get_some(g->bias, dtype, col, n);
    if (g->adds) sum += whole ? nf_get(g->sum, to, at) : nf_get_some(g->sum, to, at, n);
    if (!whole) nf_put_some(g->c, to, at, n, sum);
    else if (to == RW_F32 && !g->adds && nf_is_aligned(g->c, RW_F32, at)) nf_stream(g->c, RW_F32, at, sum);
    else nf_put(g->c, to, at, sum);
}

/* Computes columns [first, first + cols) of a row of c, from rows of b that are already converted. */
VEC_INLINE void shallow_row(const struct rows_of_b *y, const struct gemm *g, rw_dtype dtype, rw_dtype to, int64_t row,
                            int64_t first, int64_t cols)
{
    const int64_t at = row * g->c_row + first;
    float x[GEMM_SKINNY_DEPTH];
    for (int64_t p = 0; p < g->k; p++) x[p] = f_get(g->a.data, dtype, row * g->a.row + p * g->a.col);
    for (int64_t col = 0; col < cols; col += NF_LANES) {
        nf sum = nf_all(0);
        for (int64_t p = 0; p < g->k; p++) sum = nf_fma(nf_all(x[p]), *(const nf *)&y->of[p][col], sum);
        if (col + NF_LANES <= cols) finish(g, dtype, to, sum, at + col, first + col, NF_LANES);
        else finish(g, dtype, to, sum, at + col, first + col, cols - col);
    }
}

VEC_INLINE void shallow_tile(const struct gemm *g, rw_dtype dtype, rw_dtype to, int64_t row, int64_t rows,
                             int64_t first, int64_t cols)
{
    struct rows_of_b y;
    memset(&y, 0, sizeof y);
    for (int64_t p = 0; p < g->k; p++)
        for (int64_t j = 0; j < cols; j++) y.of[p][j] = f_get(g->b.data, dtype, p * g->b.row + (first + j) * g->b.col);
    for (int64_t i = 0; i < rows; i++) shallow_row(&y, g, dtype, to, row + i, first, cols);
    nf_fence();
}

void RW_ISA_NAME(rw_gemm_shallow_tile)(const struct gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols);
void RW_ISA_NAME(rw_gemm_shallow_tile)(const struct gemm *g, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const bool wide = g->to == RW_F32;
    if (g->dtype == RW_F32) shallow_tile(g, RW_F32, RW_F32, row, rows, col, cols);
    else if (g->dtype == RW_BF16 && wide) shallow_tile(g, RW_BF16, RW_F32, row, rows, col, cols);
    else if (g->dtype == RW_BF16) shallow_tile(g, RW_BF16, RW_BF16, row, rows, col, cols);
    else if (wide) shallow_tile(g, RW_F16, RW_F32, row, rows, col, cols);
    else shallow_tile(g, RW_F16, RW_F16, row, rows, col, cols);
}

void RW_ISA_NAME(rw_gemm_skinny_tile)(const struct gemm *g, int64_t col, int64_t cols);
void RW_ISA_NAME(rw_gemm_skinny_tile)(const struct gemm *g, int64_t col, int64_t cols)
{
    if (g->dtype == RW_F16) skinny_tile(g, RW_F16, col, cols);
    else if (g->dtype == RW_BF16) skinny_tile(g, RW_BF16, col, cols);
    else skinny_tile(g, RW_F32, col, cols);
}
