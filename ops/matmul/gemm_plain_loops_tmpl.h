/*
 * The plain loops of a matrix product, for one type of arithmetic. Included by matmul_cpu.c with T = float, N = nf and
 * again with T = double, N = nd, the native vectors. F builds the names of these functions, G those of N.
 *
 * For a tile of c, a block of a and a panel of b are copied into the order in which the inner loop reads them, with
 * zeros at the edges. The inner loop keeps OWN_ROWS x LANES of c in registers. Every element is one chain of sums over
 * k.
 */
#define N_LANES (int)(NATIVE_BYTES / sizeof(T))

struct F(blocks) {
    T a[GEMM_OWN_M * OWN_DEPTH];
    T b[OWN_DEPTH * GEMM_OWN_N];
    T c[GEMM_OWN_M * GEMM_OWN_N];
};

VEC_INLINE T F(element)(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? (T)((const double *)p)[i] : (T)f_get(p, dtype, i);
}

/* Packs a as [strip][k][OWN_ROWS]. */
VEC_INLINE void F(pack_a)(T *to, const struct gemm *g, rw_dtype dtype, int64_t at, int64_t rows, int64_t depth)
{
    for (int64_t strip = 0; strip < rows; strip += OWN_ROWS)
        for (int64_t p = 0; p < depth; p++)
            for (int64_t r = 0; r < OWN_ROWS; r++)
                *to++ = strip + r < rows ? F(element)(g->a.data, dtype, at + (strip + r) * g->a.row + p * g->a.col) : 0;
}

/* Packs b as [strip][k][LANES]. */
VEC_INLINE void F(pack_b)(T *to, const struct gemm *g, rw_dtype dtype, int64_t at, int64_t cols, int64_t depth)
{
    for (int64_t strip = 0; strip < cols; strip += LANES)
        for (int64_t p = 0; p < depth; p++)
            for (int64_t l = 0; l < LANES; l++)
                *to++ = strip + l < cols ? F(element)(g->b.data, dtype, at + p * g->b.row + (strip + l) * g->b.col) : 0;
}

/* Lanes are independent, so the sums can use native vectors of any width and stay in registers on every machine. */
VEC_INLINE void F(inner)(T *c, const T *a, const T *b, int64_t depth)
{
    N sum[OWN_ROWS][LANES / N_LANES];
    for (int r = 0; r < OWN_ROWS; r++)
        for (int v = 0; v < LANES / N_LANES; v++) sum[r][v] = *(const N *)(c + r * GEMM_OWN_N + v * N_LANES);
    for (int64_t p = 0; p < depth; p++) {
        N y[LANES / N_LANES];
        for (int v = 0; v < LANES / N_LANES; v++) y[v] = *(const N *)(b + p * LANES + v * N_LANES);
        for (int r = 0; r < OWN_ROWS; r++) {
            const N x = G(all)(a[p * OWN_ROWS + r]);
            for (int v = 0; v < LANES / N_LANES; v++) sum[r][v] = G(fma)(x, y[v], sum[r][v]);
        }
    }
    for (int r = 0; r < OWN_ROWS; r++)
        for (int v = 0; v < LANES / N_LANES; v++) *(N *)(c + r * GEMM_OWN_N + v * N_LANES) = sum[r][v];
}

static void F(blocks_multiply)(struct F(blocks) *x, int64_t rows, int64_t cols, int64_t depth)
{
    for (int64_t j = 0; j < cols; j += LANES)
        for (int64_t i = 0; i < rows; i += OWN_ROWS)
            F(inner)(x->c + i * GEMM_OWN_N + j, x->a + i * depth, x->b + j * depth, depth);
}

VEC_INLINE void F(write)(const struct gemm *g, rw_dtype dtype, rw_dtype to, const T *c, int64_t at, int64_t rows,
                         int64_t col, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            T y = c[i * GEMM_OWN_N + j] + (g->has_bias ? F(element)(g->bias, dtype, col + j) : 0);
            if (g->adds) y += F(element)(g->sum, to, at + i * g->c_row + j);
            if (to == RW_F64) ((double *)g->c)[at + i * g->c_row + j] = (double)y;
            else f_put(g->c, to, at + i * g->c_row + j, (float)y);
        }
}

/* Computes one tile of c, block by block along the depth. */
VEC_INLINE void F(tile)(const struct gemm *g, rw_dtype dtype, int64_t item, int64_t row, int64_t rows, int64_t col,
                        int64_t cols)
{
    struct F(blocks) x;
    const int64_t a = rw_gemm_start(g, &g->a, item) + row * g->a.row,
                  b = rw_gemm_start(g, &g->b, item) + col * g->b.col;
    for (int64_t i = 0; i < rows + OWN_ROWS - 1 && i < GEMM_OWN_M; i++)
        memset(x.c + i * GEMM_OWN_N, 0, GEMM_OWN_N * sizeof *x.c);
    for (int64_t p = 0; p < g->k; p += OWN_DEPTH) {
        const int64_t depth = g->k - p < OWN_DEPTH ? g->k - p : OWN_DEPTH;
        F(pack_a)(x.a, g, dtype, a + p * g->a.col, rows, depth);
        F(pack_b)(x.b, g, dtype, b + p * g->b.row, cols, depth);
        F(blocks_multiply)(&x, rows, cols, depth);
    }
    const int64_t at = (item * g->m + row) * g->c_row + col;
    if (g->to == dtype) F(write)(g, dtype, dtype, x.c, at, rows, col, cols);
    else F(write)(g, dtype, RW_F32, x.c, at, rows, col, cols);
}

#undef N_LANES
