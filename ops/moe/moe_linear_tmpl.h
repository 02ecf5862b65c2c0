/*
 * Products by expert for one type of arithmetic. Included by moe_linear_cpu.c with T = float, N = nf and again with T =
 * double, N = nd; F builds the names of these functions, G those of N. Every element is one chain of fused
 * multiply-adds over the depth, in order, so a row's result does not depend on its position or on other rows.
 */
#define N_LANES (int)(NATIVE_BYTES / sizeof(T))
#define N_VECS (MOE_COLS / N_LANES)

VEC_INLINE T F(element)(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? (T)((const double *)p)[i] : (T)f_get(p, dtype, i);
}

VEC_INLINE void F(put)(void *p, rw_dtype dtype, int64_t i, T x)
{
    if (dtype == RW_F64) ((double *)p)[i] = (double)x;
    else f_put(p, dtype, i, (float)x);
}

/* Converts n contiguous elements of a row to T. */
VEC_INLINE void F(widen)(T *to, const void *p, rw_dtype dtype, int64_t at, int64_t n)
{
    int64_t i = 0;
    if (is_half(dtype))
        for (; i + VF_LANES <= n; i += VF_LANES)
            vf_store((float *)(void *)to + i, vf_load_half((const uint16_t *)p + at + i, dtype));
    for (; i < n; i++) to[i] = F(element)(p, dtype, at + i);
}

/* c [STRIP][COLS] (+)= a b, `vecs` vectors of columns. Element (r, p) of a is at r * a_row + p * a_col, row p of b at p
   * COLS. */
VEC_INLINE void F(inner)(int vecs, T *c, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t depth, bool add)
{
    N sum[MOE_STRIP][MOE_VECS];
    for (int r = 0; r < MOE_STRIP; r++)
        for (int v = 0; v < vecs; v++) sum[r][v] = add ? *(const N *)(c + r * MOE_COLS + v * N_LANES) : G(all)(0);
    for (int64_t p = 0; p < depth; p++) {
        N y[MOE_VECS];
        for (int v = 0; v < vecs; v++) y[v] = *(const N *)(b + p * MOE_COLS + v * N_LANES);
        for (int r = 0; r < MOE_STRIP; r++) {
            const N x = G(all)(a[r * a_row + p * a_col]);
            for (int v = 0; v < vecs; v++) sum[r][v] = G(fma)(x, y[v], sum[r][v]);
        }
    }
    for (int r = 0; r < MOE_STRIP; r++)
        for (int v = 0; v < vecs; v++) *(N *)(c + r * MOE_COLS + v * N_LANES) = sum[r][v];
}

static void F(multiply)(T *c, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t depth, bool add)
{
    for (int v = 0; v < N_VECS; v += MOE_VECS)
        F(inner)(MOE_VECS, c + v * N_LANES, a, a_row, a_col, b + v * N_LANES, depth, add);
}

/* Packs the expert's matrix as b [depth][COLS], columns from `col` on; zeros after the last one. */
VEC_INLINE void F(pack)(T *to, const struct moe_product *m, rw_dtype dtype, int64_t expert, int64_t col, int64_t cols)
{
    const int64_t w = expert * m->out * m->in;
    if (m->transposed) { /* row p of the matrix */
        for (int64_t p = 0; p < m->depth; p++) {
            F(widen)(to + p * MOE_COLS, m->weight, dtype, w + p * m->in + col, cols);
            for (int64_t j = cols; j < MOE_COLS; j++) to[p * MOE_COLS + j] = 0;
        }
        return;
    }
    for (int64_t p = 0; p < m->depth; p += 16) { /* in blocks, so that source and destination stay in the cache */
        const int64_t end = p + 16 < m->depth ? p + 16 : m->depth;
        for (int64_t j = 0; j < MOE_COLS; j++)
            for (int64_t i = p; i < end; i++)
                to[i * MOE_COLS + j] = j < cols ? F(element)(m->weight, dtype, w + (col + j) * m->in + i) : 0;
    }
}

/* Columns [col, col + cols) of all rows of one expert. */
VEC_INLINE void F(linear)(const struct moe_product *m, rw_dtype dtype, T *room, int64_t expert, int64_t col)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    const int64_t cols = m->width - col < MOE_COLS ? m->width - col : MOE_COLS;
    T *const b = room, *const a = b + m->depth * MOE_COLS, *const c = a + (m->depth + 1) * 16;
    if (rows.from == rows.to) return;
    F(pack)(b, m, dtype, expert, col, cols);
    for (int64_t row = rows.from; row < rows.to; row += MOE_STRIP) {
        const int64_t n = rows.to - row < MOE_STRIP ? rows.to - row : MOE_STRIP;
        for (int64_t r = 0; r < n; r++)
            F(widen)(a + r * m->depth, m->x, dtype, rw_moe_source(m, m->gathers, row + r) * m->depth, m->depth);
        memset(a + n * m->depth, 0, (size_t)((MOE_STRIP - n) * m->depth) * sizeof *a);
        F(multiply)(c, a, m->depth, 1, b, m->depth, false);
        for (int64_t r = 0; r < n; r++)
            for (int64_t j = 0; j < cols; j++)
                F(put)(m->y, dtype, (row + r) * m->width + col + j, c[r * MOE_COLS + j]);
    }
}

/* Rows [first, ...) and columns [col, ...) of one expert's sum of outer products, over its rows in order. */
VEC_INLINE void F(outer)(const struct moe_product *m, rw_dtype dtype, T *room, int64_t expert, int64_t first,
                         int64_t col)
{
    const struct moe_range rows = rw_moe_rows_of(m->offsets, expert, m->rows);
    const int64_t most = MOE_STRIP * MOE_OUTER_STRIPS, outs = m->out - first < most ? m->out - first : most;
    const int64_t cols = m->in - col < MOE_COLS ? m->in - col : MOE_COLS, w = expert * m->out * m->in;
    T *const b = room, *const a = b + MOE_OUTER_ROWS * MOE_COLS, *const c = a + MOE_OUTER_ROWS * most;
    memset(c, 0, (size_t)(most * MOE_COLS) * sizeof *c);
    for (int64_t from = rows.from; from < rows.to; from += MOE_OUTER_ROWS) {
        const int64_t n = rows.to - from < MOE_OUTER_ROWS ? rows.to - from : MOE_OUTER_ROWS;
        for (int64_t r = 0; r < n; r++) {
            F(widen)(b + r * MOE_COLS, m->x, dtype, rw_moe_source(m, m->gathers, from + r) * m->in + col, cols);
            for (int64_t j = cols; j < MOE_COLS; j++) b[r * MOE_COLS + j] = 0;
            F(widen)(a + r * most, m->dy, dtype, rw_moe_source(m, m->gathers_dy, from + r) * m->out + first, outs);
            for (int64_t i = outs; i < most; i++) a[r * most + i] = 0;
        }
        for (int64_t i = 0; i < outs; i += MOE_STRIP) F(multiply)(c + i * MOE_COLS, a + i, 1, most, b, n, true);
    }
    for (int64_t i = 0; i < outs; i++)
        for (int64_t j = 0; j < cols; j++) {
            const int64_t at = w + (first + i) * m->in + col + j;
            const T sum = m->sum ? F(element)(m->sum, m->to, at) : 0;
            F(put)(m->y, m->to, at, m->sum ? sum + c[i * MOE_COLS + j] : c[i * MOE_COLS + j]);
        }
}

#undef N_LANES
#undef N_VECS
