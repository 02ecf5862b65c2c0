/*
 * Products of tiles that fit in the cache, for one type of arithmetic T. A kernel template includes it once per type: V
 * is the fixed vector of LANES (vec.h), N the native one (vec_native.h), and F and G build the names of their
 * functions. G(all) and G(mul_add) must exist. The terms of an element are added in order of depth, for any tile sizes.
 */
#ifndef PRODUCT_ROWS
/* Registers of c in the inner loop: rows by vectors. */
#if defined(RW_ISA_IS_V4)
#define PRODUCT_ROWS 8
#define PRODUCT_VECS 2
#elif defined(RW_ISA_IS_V3)
#define PRODUCT_ROWS 6
#define PRODUCT_VECS 1
#else
#define PRODUCT_ROWS 2
#define PRODUCT_VECS 1
#endif
#endif

#define N_LANES (int)(NATIVE_BYTES / sizeof(T))
#define N_MAX (PRODUCT_VECS * LANES / N_LANES)

/* c [ROWS, VECS] (+)= a b. Element (r, p) of a is at r * a_row + p * a_col, and row p of b at p * b_row. Lanes are
   independent, so the sums can use native vectors of any width and stay in registers on every machine. */
VEC_INLINE void F(inner)(int rows, int vecs, T *c, int64_t c_row, const T *a, int64_t a_row, int64_t a_col, const T *b,
                         int64_t b_row, int64_t depth, bool add)
{
    const int n = vecs * LANES / N_LANES;
    N sum[PRODUCT_ROWS][N_MAX];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < n; v++) sum[r][v] = add ? *(const N *)(c + r * c_row + v * N_LANES) : G(all)(0);
    for (int64_t p = 0; p < depth; p++) {
        N y[N_MAX];
        for (int v = 0; v < n; v++) y[v] = *(const N *)(b + p * b_row + v * N_LANES);
        for (int r = 0; r < rows; r++) {
            const N x = G(all)(a[r * a_row + p * a_col]);
            for (int v = 0; v < n; v++) sum[r][v] = G(mul_add)(x, y[v], sum[r][v]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < n; v++) *(N *)(c + r * c_row + v * N_LANES) = sum[r][v];
}

VEC_INLINE void F(strip)(int vecs, T *c, int64_t c_row, const T *a, int64_t a_row, int64_t a_col, const T *b,
                         int64_t b_row, int64_t rows, int64_t depth, bool add)
{
    int64_t r = 0;
    for (; r + PRODUCT_ROWS <= rows; r += PRODUCT_ROWS)
        F(inner)(PRODUCT_ROWS, vecs, c + r * c_row, c_row, a + r * a_row, a_row, a_col, b, b_row, depth, add);
    if (PRODUCT_ROWS > 4 && rows - r >= 4) {
        F(inner)(4, vecs, c + r * c_row, c_row, a + r * a_row, a_row, a_col, b, b_row, depth, add);
        r += 4;
    }
    if (PRODUCT_ROWS > 2 && rows - r >= 2) {
        F(inner)(2, vecs, c + r * c_row, c_row, a + r * a_row, a_row, a_col, b, b_row, depth, add);
        r += 2;
    }
    for (; r < rows; r++) F(inner)(1, vecs, c + r * c_row, c_row, a + r * a_row, a_row, a_col, b, b_row, depth, add);
}

/* c (+)= a b for any number of rows. width: columns of c and b, a multiple of the vector's lanes. */
static void F(multiply)(T *c, int64_t c_row, const T *a, int64_t a_row, int64_t a_col, const T *b, int64_t b_row,
                        int64_t rows, int64_t width, int64_t depth, bool add)
{
    int64_t j = 0;
    for (; j + PRODUCT_VECS * LANES <= width; j += PRODUCT_VECS * LANES)
        F(strip)(PRODUCT_VECS, c + j, c_row, a, a_row, a_col, b + j, b_row, rows, depth, add);
    for (; j < width; j += LANES) F(strip)(1, c + j, c_row, a, a_row, a_col, b + j, b_row, rows, depth, add);
}
