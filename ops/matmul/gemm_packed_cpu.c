/*
 * The packed loops: products in float32 where oneDNN has no code for AVX-512 or is not in the build, and of 16-bit
 * types on such machines. A tile of c is computed from packed parts of the operands, which are widened as they are
 * packed.
 *
 *                      b, DEPTH x cols, in strips of LANES columns
 *                      |--|--|--|--|
 *     a, ROWS x DEPTH  |  |  |  |  |
 *     in strips of     '--'--'--'--'
 *     STRIP rows
 *     ------           ....######....   STRIP x LANES of c stay in registers while the strips are read
 *     ------           ..............
 *
 * A strip of b stays in the L1 cache while all rows of a part of a are multiplied by it, and that part of a stays in
 * the L2 cache. Every element of c is one chain of sums over k, independently of the rows and columns next to it.
 * Source of the loops: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34 (2008).
 */
#include "device/cpu/isa.h"
#include "ops/common/vec_native.h"
#include "ops/matmul/gemm_descriptor.h"

#include <string.h>

#define STRIP GEMM_PACKED_STRIP
#define LANES GEMM_PACKED_LANES
#define VECTORS (LANES / NF_LANES)

/* ---- packing: strips of a are [k][STRIP], of b [k][LANES], with zeros after the last row or column ---- */

VEC_INLINE void pack_numbers(const void *from, rw_dtype dtype, int64_t at, int64_t along, int64_t across, int64_t n,
                             int64_t wide, int64_t depth, float *to)
{
    for (int64_t p = 0; p < depth; p++, at += along)
        for (int64_t i = 0; i < wide; i++) *to++ = i < n ? f_get(from, dtype, at + i * across) : 0;
}

#if defined(RW_ISA_IS_V3)
#define SIDE 8

/* Transposes eight vectors as a matrix. */
VEC_INLINE void transpose(__m256 r[SIDE])
{
    __m256 x[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        x[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        x[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4) {
        r[i] = _mm256_shuffle_ps(x[i], x[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(x[i], x[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(x[i + 1], x[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(x[i + 1], x[i + 3], 0xee);
    }
    for (int i = 0; i < SIDE / 2; i++) {
        x[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
    }
    memcpy(r, x, sizeof x);
}

/* Packs up to eight lines along the depth, eight elements of each at a time. What is written after a line's end is
   overwritten by the next line. */
VEC_INLINE int64_t pack_lines(const void *from, rw_dtype dtype, int64_t at, int64_t across, int n, int64_t wide,
                              int64_t depth, float *to)
{
    int64_t p = 0;
    for (; p + SIDE <= depth; p += SIDE) {
        __m256 r[SIDE];
        for (int i = 0; i < SIDE; i++)
            r[i] = i < n ? (__m256)nf_get(from, dtype, at + i * across + p) : _mm256_setzero_ps();
        transpose(r);
        for (int i = 0; i < SIDE; i++) *(nf *)(to + (p + i) * wide) = (nf)r[i];
    }
    return p;
}

/* Packs n lines of a strip that is `wide`; whole: n equals wide. */
VEC_INLINE void pack_strip(const void *from, rw_dtype dtype, int64_t at, int64_t along, int64_t across, int64_t n,
                           int64_t wide, int64_t depth, float *to)
{
    int64_t p = 0;
    if (along == 1 && n == wide) {
        const int some = wide < SIDE ? (int)wide : SIDE;
        p = pack_lines(from, dtype, at, across, some, wide, depth, to);
        if (wide > SIDE) pack_lines(from, dtype, at + SIDE * across, across, SIDE, wide, depth, to + SIDE);
    }
    pack_numbers(from, dtype, at + p * along, along, across, n, wide, depth - p, to + p * wide);
}
#else
VEC_INLINE void pack_strip(const void *from, rw_dtype dtype, int64_t at, int64_t along, int64_t across, int64_t n,
                           int64_t wide, int64_t depth, float *to)
{
    pack_numbers(from, dtype, at, along, across, n, wide, depth, to);
}
#endif

/* Packs strips of rows or columns that are contiguous in memory. After the last one, the rest of a vector must be
   readable. A vector may write beyond a line of its strip, where the next lines overwrite it, and not beyond the strip,
   whose successor has been packed up to this line. */
VEC_INLINE void pack_dense(const void *from, rw_dtype dtype, int64_t at, int64_t along, int64_t strips, int64_t wide,
                           int64_t depth, float *to)
{
    for (int64_t p = 0; p < depth; p++, at += along)
        for (int64_t s = 0; s < strips; s++)
            for (int64_t i = 0; i < wide; i += NF_LANES) {
                const nf x = nf_get(from, dtype, at + s * wide + i);
                float *const here = to + (s * depth + p) * wide + i;
                if ((depth - p) * wide - i >= NF_LANES) *(nf *)here = x; /* ends in the strip */
                else memcpy(here, &x, (size_t)(wide - i) * sizeof *to);
            }
}

/* Packs rows that are contiguous in memory: all strips take their elements of one line before the next line. Lines of a
   large matrix map to few sets of a cache, and would be evicted before the next strip reads them. Returns the number of
   rows packed. */
VEC_INLINE int64_t pack_side_by_side(const struct gemm *g, rw_dtype dtype, int64_t at, int64_t rows, int64_t depth,
                                     float *to)
{
    const int64_t strips = rows < NF_LANES ? 0 : (rows - NF_LANES) / STRIP;
    pack_dense(g->a.data, dtype, at, g->a.col, strips, STRIP, depth, to);
    return strips * STRIP;
}

VEC_INLINE void pack_a(const struct gemm *g, rw_dtype dtype, int64_t at, int64_t rows, int64_t depth, float *to)
{
    const struct gemm_operand *const a = &g->a;
    int64_t i = a->row == 1 ? pack_side_by_side(g, dtype, at, rows, depth, to) : 0;
    for (to += i * depth; i < rows; i += STRIP, to += STRIP * depth) {
        const int64_t first = at + i * a->row, n = rows - i;
        if (n >= STRIP) pack_strip(a->data, dtype, first, a->col, a->row, STRIP, STRIP, depth, to);
        else pack_strip(a->data, dtype, first, a->col, a->row, n, STRIP, depth, to);
    }
}

VEC_INLINE void pack_b(const struct gemm *g, rw_dtype dtype, int64_t at, int64_t cols, int64_t depth, float *to)
{
    const struct gemm_operand *const b = &g->b;
    for (int64_t j = 0; j < cols; j += LANES, to += LANES * depth) {
        const int64_t first = at + j * b->col, n = cols - j;
        if (n < LANES) pack_strip(b->data, dtype, first, b->row, b->col, n, LANES, depth, to);
        else if (b->col == 1) pack_dense(b->data, dtype, first, b->row, 1, LANES, depth, to);
        else pack_strip(b->data, dtype, first, b->row, b->col, LANES, LANES, depth, to);
    }
}

/* ---- sums ---- */

/* The conversion of sums to c after the last part of the depth: adds bias and addend, if any. */
struct ending {
    float *c;
    int64_t across;
    const float *bias, *addend; /* NULL: none */
};

static struct ending ending_at(const struct ending *e, int64_t row, int64_t col)
{
    const int64_t at = row * e->across + col;
    return (struct ending){ e->c + at, e->across, e->bias ? e->bias + col : NULL, e->addend ? e->addend + at : NULL };
}

VEC_INLINE void end_row(const struct ending *e, int64_t row, nf sum[VECTORS])
{
    for (int v = 0; v < VECTORS; v++) {
        if (e->bias) sum[v] += *(const nf *)(e->bias + v * NF_LANES);
        if (e->addend) sum[v] += *(const nf *)(e->addend + row * e->across + v * NF_LANES);
        *(nf *)(e->c + row * e->across + v * NF_LANES) = sum[v];
    }
}

/* Computes STRIP x LANES sums, whose rows are `across` apart. Adds to the stored sums, except for the first part of the
   depth. Stores them back, except for the last part, which converts them. */
VEC_INLINE void add_block(const float *a, const float *b, int64_t depth, bool first, float *c, int64_t across,
                          const struct ending *last)
{
    nf sum[STRIP][VECTORS];
    for (int r = 0; r < STRIP; r++)
        for (int v = 0; v < VECTORS; v++) sum[r][v] = first ? nf_all(0) : *(const nf *)(c + r * across + v * NF_LANES);
    for (int64_t p = 0; p < depth; p++, a += STRIP, b += LANES) {
        nf y[VECTORS];
        for (int v = 0; v < VECTORS; v++) y[v] = *(const nf *)(b + v * NF_LANES);
        for (int r = 0; r < STRIP; r++) {
            const nf x = nf_all(a[r]);
            for (int v = 0; v < VECTORS; v++) sum[r][v] = nf_fma(x, y[v], sum[r][v]);
        }
    }
    for (int r = 0; r < STRIP; r++) {
        if (last) end_row(last, r, sum[r]);
        else
            for (int v = 0; v < VECTORS; v++) *(nf *)(c + r * across + v * NF_LANES) = sum[r][v];
    }
}

/* The same with fewer rows or columns of c. */
static void add_edge(const float *a, const float *b, int64_t depth, bool first, float *c, int64_t across, int64_t rows,
                     int64_t cols, const struct ending *last)
{
    float all[STRIP * LANES] = { 0 };
    for (int64_t r = 0; !first && r < rows; r++) memcpy(all + r * LANES, c + r * across, (size_t)cols * sizeof *c);
    add_block(a, b, depth, false, all, LANES, NULL);
    for (int64_t r = 0; r < rows; r++) {
        float *const to = last ? last->c + r * last->across : c + r * across;
        for (int64_t j = 0; j < cols; j++) {
            float y = all[r * LANES + j];
            if (last && last->bias) y += last->bias[j];
            if (last && last->addend) y += last->addend[r * last->across + j];
            to[j] = y;
        }
    }
}

/* Prefetches a block while the previous one is computed. */
VEC_INLINE void fetch(const float *c, int64_t across)
{
    for (int r = 0; r < STRIP; r++) __builtin_prefetch(c + r * across, 1);
}

/* last: NULL if more parts of the depth follow. */
static void add_part(const float *a, const float *b, int64_t depth, bool first, float *c, int64_t across, int64_t rows,
                     int64_t cols, const struct ending *last)
{
    for (int64_t j = 0; j < cols; j += LANES)
        for (int64_t i = 0; i < rows; i += STRIP) {
            const float *const x = a + i * depth, *const y = b + j * depth;
            float *const to = c + i * across + j;
            const struct ending end = last ? ending_at(last, i, j) : (struct ending){ 0 };
            if (rows - i >= 2 * STRIP) fetch(to + STRIP * across, across);
            if (end.addend && rows - i >= 2 * STRIP) fetch(end.addend + STRIP * end.across, end.across);
            if (rows - i < STRIP || cols - j < LANES) {
                const int64_t some = rows - i < STRIP ? rows - i : STRIP;
                add_edge(x, y, depth, first, to, across, some, cols - j < LANES ? cols - j : LANES, last ? &end : NULL);
            } else if (last && first) add_block(x, y, depth, true, to, across, &end);
            else if (last) add_block(x, y, depth, false, to, across, &end);
            else if (first) add_block(x, y, depth, true, to, across, NULL);
            else add_block(x, y, depth, false, to, across, NULL);
        }
}

/* Tests for infinity and NaN, with four independent sums of x * 0, each 0 or NaN. */
static bool are_finite(const float *x, int64_t n)
{
    nf sum[4] = { nf_all(0), nf_all(0), nf_all(0), nf_all(0) };
    float all = 0;
    int64_t i = 0;
    for (; i + 4 * NF_LANES <= n; i += 4 * NF_LANES)
        for (int v = 0; v < 4; v++) sum[v] = nf_fma(*(const nf *)(x + i + v * NF_LANES), nf_all(0), sum[v]);
    for (; i < n; i++) all += x[i] * 0;
    sum[0] += sum[1] + sum[2] + sum[3];
    for (int l = 0; l < NF_LANES; l++) all += sum[0][l];
    return all == 0;
}

/* Start of the operands and of the sums; col: the first column. c: the float32 result that the sums become. */
struct place {
    int64_t a, b, col;
    float *sums;
    int64_t across;
    struct ending end;
};

static struct ending ending_of(const struct gemm *g, int64_t at, int64_t col)
{
    if (g->dtype != RW_F32) return (struct ending){ 0 };
    return (struct ending){ (float *)g->c + at, g->c_row, g->has_bias ? (const float *)g->bias + col : NULL,
                            g->adds ? (const float *)g->sum + at : NULL };
}

/* Multiplies up to ROWS rows of a, from a position along the depth on, by packed columns. An infinity or NaN in a times
   a padding 0 of b would give NaN. In that case only columns with padding in the same places are processed together,
   and `clear` removes the elements. */
VEC_INLINE void add_rows(const struct gemm *g, rw_dtype dtype, const struct place *at, int64_t from, int64_t depth,
                         int64_t rows, int64_t cols, float *a, const float *b)
{
    const bool ends = at->end.c && from + depth == g->k;
    for (int64_t j = 0, some; j < cols; j += some) {
        const struct ending end = ending_at(&at->end, 0, j);
        pack_a(g, dtype, at->a + from * g->a.col, rows, depth, a);
        some = cols - j;
        if (g->from_b.clear && !are_finite(a, gemm_align(rows, STRIP) * depth)) {
            const int64_t n_same = g->from_b.clear(g->from_b.of, from, depth, at->col + j, rows, a);
            if (n_same < some) some = n_same;
        }
        add_part(a, b + j * depth, depth, !from, at->sums + j, at->across, rows, some, ends ? &end : NULL);
    }
}

VEC_INLINE void pack_columns(const struct gemm *g, rw_dtype dtype, const struct place *at, int64_t from, int64_t depth,
                             int64_t cols, float *to)
{
    if (g->from_b.strips) g->from_b.strips(g->from_b.of, from, depth, at->col, cols, to);
    else pack_b(g, dtype, at->b + from * g->b.row, cols, depth, to);
}

VEC_INLINE void add_up(const struct gemm *g, rw_dtype dtype, const struct place *at, int64_t rows, int64_t cols,
                       float *room)
{
    float *const a = room, *const b = room + rw_gemm_packed_a(g, rows);
    for (int64_t p = 0; p < g->k; p += GEMM_PACKED_DEPTH) {
        const int64_t depth = g->k - p < GEMM_PACKED_DEPTH ? g->k - p : GEMM_PACKED_DEPTH;
        pack_columns(g, dtype, at, p, depth, cols, b);
        for (int64_t i = 0; i < rows; i += GEMM_PACKED_ROWS) {
            struct place some = *at;
            some.a += i * g->a.row;
            some.sums += i * at->across;
            some.end = ending_at(&at->end, i, 0);
            add_rows(g, dtype, &some, p, depth, rows - i < GEMM_PACKED_ROWS ? rows - i : GEMM_PACKED_ROWS, cols, a, b);
        }
    }
}

/* ---- parts of b that threads share ---- */

void RW_ISA_NAME(rw_gemm_pack_part)(const struct gemm *g, int64_t item, int64_t from, int64_t col, int64_t cols,
                                    float *to);
void RW_ISA_NAME(rw_gemm_pack_part)(const struct gemm *g, int64_t item, int64_t from, int64_t col, int64_t cols,
                                    float *to)
{
    const int64_t depth = rw_gemm_shared_part(g, from);
    const struct place at = { .b = rw_gemm_start(g, &g->b, item) + col * g->b.col, .col = col };
    pack_columns(g, RW_F32, &at, from, depth, cols, to);
}

void RW_ISA_NAME(rw_gemm_multiply_part)(const struct gemm *g, int64_t item, int64_t from, int64_t row, int64_t rows,
                                        int64_t col, int64_t cols, const float *b, float *sums, int64_t across,
                                        float *room);
void RW_ISA_NAME(rw_gemm_multiply_part)(const struct gemm *g, int64_t item, int64_t from, int64_t row, int64_t rows,
                                        int64_t col, int64_t cols, const float *b, float *sums, int64_t across,
                                        float *room)
{
    const int64_t depth = rw_gemm_shared_part(g, from);
    const struct place at = { .a = rw_gemm_start(g, &g->a, item) + row * g->a.row,
                              .col = col,
                              .sums = sums,
                              .across = across,
                              .end = ending_of(g, (item * g->m + row) * g->c_row + col, col) };
    add_rows(g, RW_F32, &at, from, depth, rows, cols, room, b);
}

/* ---- a tile ---- */

/* Computes one tile of c, part by part along the depth. */
void RW_ISA_NAME(rw_gemm_packed_tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col,
                                      int64_t cols, float *room);
void RW_ISA_NAME(rw_gemm_packed_tile)(const struct gemm *g, int64_t item, int64_t row, int64_t rows, int64_t col,
                                      int64_t cols, float *room)
{
    const int64_t c = (item * g->m + row) * g->c_row + col;
    const bool sums = rw_gemm_packs_sums(g);
    float *const own = room + rw_gemm_packed_a(g, rows) + rw_gemm_packed_b(g, cols);
    const struct place at = { .a = rw_gemm_start(g, &g->a, item) + row * g->a.row,
                              .b = rw_gemm_start(g, &g->b, item) + col * g->b.col,
                              .col = col,
                              .sums = sums ? own : (float *)g->c + c,
                              .across = sums ? cols : g->c_row,
                              .end = ending_of(g, c, col) };
    switch (g->dtype) {
    case RW_F32: add_up(g, RW_F32, &at, rows, cols, room); break;
    case RW_BF16: add_up(g, RW_BF16, &at, rows, cols, room); break;
    default: add_up(g, RW_F16, &at, rows, cols, room); break;
    }
    if (!at.end.c) RW_ISA_NAME(rw_gemm_loops).round(g, own, cols, c, rows, col, cols);
}
