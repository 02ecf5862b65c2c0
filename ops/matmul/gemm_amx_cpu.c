/*
 * Packing and multiplying for the AMX matrix unit (gemm_amx.h). Compiled for processors that have it, and chosen at run
 * time.
 */
#include "ops/matmul/gemm_amx.h"

#include <string.h>

#ifdef RW_HAVE_AMX

#include <immintrin.h>

/* Number of steps of a pair of blocks before the next pair. Those of one operand then fit the L1 cache, and sums seldom
   leave the unit. */
#define STEPS 16
#define BLOCK_OF_STEP (AMX_BLOCK * AMX_BLOCK)
#define HALF_OF_STEP (BLOCK_OF_STEP / 2)
#define SUMS (AMX_BLOCK * AMX_BLOCK)

/* ---- packing ---- */

/* Transposes 16 x 16 pairs. */
static inline void transpose(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++)
        for (int half = 0; half < 16; half += 8) {
            t[half + i] = _mm512_shuffle_i32x4(r[half + i], r[half + i + 4], 0x88);
            t[half + i + 4] = _mm512_shuffle_i32x4(r[half + i], r[half + i + 4], 0xdd);
        }
    for (int i = 0; i < 8; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    }
}

static inline __mmask32 first_of(int64_t n)
{
    return n <= 0 ? 0 : n >= 32 ? (__mmask32)-1 : ((__mmask32)1 << n) - 1;
}

/* A source matrix with a row stride of `row` elements, whose rows may be selected by picks. Elements outside of [rows,
   cols] are zero. */
struct lying {
    const uint16_t *data;
    int64_t row, rows, cols;
    const int32_t *picks;
};

static inline const uint16_t *number_at(const struct lying *x, int64_t row, int64_t col)
{
    return x->data + (x->picks ? x->picks[row] : row) * x->row + col;
}

/* Loads from a row within the matrix. */
static inline __m512i load_row(const struct lying *x, int64_t row, int64_t col, __mmask32 mask)
{
    return row < x->rows ? _mm512_maskz_loadu_epi16(mask, number_at(x, row, col)) : _mm512_setzero_si512();
}

/* Prefetches rows that are packed later. */
static inline void fetch_rows(const struct lying *x, int64_t row, int64_t col)
{
    const int64_t end = row + AMX_BLOCK < x->rows ? row + AMX_BLOCK : x->rows;
    for (int64_t i = row; i < end; i++) __builtin_prefetch(number_at(x, i, col));
}

/* Loads 16 rows, 16 pairs of adjacent elements from each. */
static inline void load_along(const struct lying *x, int64_t row, int64_t col, __m512i r[16])
{
    const __mmask32 mask = first_of(x->cols - col);
    for (int i = 0; i < 16; i++)
        r[i] = row + i < x->rows ? _mm512_maskz_loadu_epi16(mask, x->data + (row + i) * x->row + col)
                                 : _mm512_setzero_si512();
}

/* Loads 16 pairs of rows, 16 columns and the next 16 from each: a pair is two elements of one column. */
static inline void load_across(const struct lying *x, int64_t row, int64_t col, __m512i near[16], __m512i far[16])
{
    const __mmask32 mask = first_of(x->cols - col);
    const __m512i even = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                          37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(16));
    for (int i = 0; i < 16; i++) {
        const __m512i low = load_row(x, row + 2 * i, col, mask), high = load_row(x, row + 2 * i + 1, col, mask);
        near[i] = _mm512_permutex2var_epi16(low, even, high);
        far[i] = _mm512_permutex2var_epi16(low, odd, high);
    }
}

/* Packs half of one step of a block. along: elements along the depth are adjacent in memory. A half of a has 16 rows; a
   half of b has 16 pairs in sequence. */
static inline void put_half(__m512i r[16], bool transposed, uint16_t *to)
{
    if (transposed) transpose(r);
    for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, r[i]);
}

static inline void pack_step(const struct lying *x, bool along, bool is_a, int64_t at, int64_t d, uint16_t *to)
{
    __m512i r[16], far[16];
    if (along) {
        for (int64_t half = 0; half < AMX_BLOCK; half += 16, to += HALF_OF_STEP) {
            load_along(x, at + half, d, r);
            put_half(r, !is_a, to);
        }
        return;
    }
    fetch_rows(x, d + AMX_BLOCK, at);
    load_across(x, d, at, r, far);
    put_half(r, is_a, to);
    put_half(far, is_a, to + HALF_OF_STEP);
}

/* Packs a block of a whose rows are contiguous along the depth: row by row, in memory order. */
static inline void copy_block(const struct lying *x, int64_t at, int64_t depth, uint16_t *to)
{
    for (int64_t i = 0; i < AMX_BLOCK; i++)
        for (int64_t d = 0; d < depth; d += AMX_BLOCK)
            _mm512_store_si512(to + d * AMX_BLOCK + i * AMX_BLOCK, load_row(x, at + i, d, first_of(x->cols - d)));
}

/* Packs the blocks of n rows or columns, which are `apart` elements apart, in the order of the source memory. If the
   source is contiguous across the depth, one step of all blocks is packed before the next one, so that rows are read in
   runs as long as possible. */
static inline void pack_blocks(const struct lying *x, bool along, bool is_a, int64_t n, int64_t depth, int64_t apart,
                               uint16_t *to)
{
    const int64_t at_once = along ? AMX_BLOCK : n;
    if (along && is_a) {
        for (int64_t at = 0; at < n; at += AMX_BLOCK) copy_block(x, at, depth, to + at / AMX_BLOCK * apart);
        return;
    }
    for (int64_t first = 0; first < n; first += at_once)
        for (int64_t d = 0; d < depth; d += AMX_BLOCK)
            for (int64_t at = first; at < first + at_once && at < n; at += AMX_BLOCK)
                pack_step(x, along, is_a, at, d, to + at / AMX_BLOCK * apart + d * AMX_BLOCK);
}

static void pack_lying(const struct lying *x, bool along, bool is_a, int64_t n, int64_t depth, int64_t apart,
                       uint16_t *to)
{
    if (along && is_a) pack_blocks(x, true, true, n, depth, apart, to);
    else if (along) pack_blocks(x, true, false, n, depth, apart, to);
    else if (is_a) pack_blocks(x, false, true, n, depth, apart, to);
    else pack_blocks(x, false, false, n, depth, apart, to);
}

/* Generated operands are generated in parts that stay in the L1 cache until they are packed. */
#define PART_DEPTH 256 /* along */
#define PART_WIDE 128  /* across */
#define PART_NUMBERS (AMX_BLOCK * PART_DEPTH)

static void pack_generated_along(const struct gemm *g, const struct gemm_source *from, bool is_a, int64_t first,
                                 int64_t n,                                  uint16_t *to)
{
    uint16_t part[PART_NUMBERS];
    const int64_t depth = rw_gemm_amx_depth(g);
    for (int64_t at = 0; at < n; at += AMX_BLOCK)
        for (int64_t d = 0; d < g->k; d += PART_DEPTH) {
            const int64_t rows = n - at < AMX_BLOCK ? n - at : AMX_BLOCK;
            const int64_t cols = g->k - d < PART_DEPTH ? g->k - d : PART_DEPTH;
            const struct lying x = { part, PART_DEPTH, rows, cols, NULL };
            for (int64_t r = 0; r < rows; r++) from->make(from->of, first + at + r, d, cols, part + r * PART_DEPTH);
            pack_lying(&x, true, is_a, rows, gemm_align(cols, AMX_BLOCK), 0, to + at * depth + d * AMX_BLOCK);
        }
}

static void pack_generated_across(const struct gemm *g, const struct gemm_source *from, bool is_a, int64_t first,
                                  int64_t n,                                   uint16_t *to)
{
    uint16_t part[PART_NUMBERS];
    const int64_t depth = rw_gemm_amx_depth(g), most = PART_NUMBERS / PART_WIDE;
    for (int64_t at = 0; at < n; at += PART_WIDE)
        for (int64_t d = 0; d < g->k; d += most) {
            const int64_t cols = n - at < PART_WIDE ? n - at : PART_WIDE, rows = g->k - d < most ? g->k - d : most;
            const struct lying x = { part, PART_WIDE, rows, cols, NULL };
            for (int64_t r = 0; r < rows; r++) from->make(from->of, d + r, first + at, cols, part + r * PART_WIDE);
            pack_lying(&x, false, is_a, cols, gemm_align(rows, AMX_BLOCK), AMX_BLOCK * depth,
                       to + at * depth + d * AMX_BLOCK);
        }
}

void rw_gemm_amx_pack(const struct gemm *g, bool is_a, int64_t first, int64_t n, uint16_t *to)
{
    const struct gemm_source *const from = is_a ? &g->from_a : &g->from_b;
    const struct gemm_operand *const o = is_a ? &g->a : &g->b;
    const int64_t depth = rw_gemm_amx_depth(g), wide = is_a ? o->row : o->col, deep = is_a ? o->col : o->row;
    if (from->make) {
        if (is_a != from->transposed) pack_generated_along(g, from, is_a, first, n, to);
        else pack_generated_across(g, from, is_a, first, n, to);
        return;
    }
    const uint16_t *const data = (const uint16_t *)o->data + first * wide;
    const struct lying x = deep == 1 ? (struct lying){ data, wide, n, g->k, o->picks }
                                     : (struct lying){ data, deep, g->k, n, o->picks };
    pack_lying(&x, deep == 1, is_a, n, depth, AMX_BLOCK * depth, to);
}

/* ---- multiplying ---- */

/* Configures the unit's eight tile registers: 16 rows of 64 bytes each. */
static void configure(void)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = { .palette = 1, .bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };
    __asm__ volatile("ldtilecfg %0" : : "m"(tiles)); /* the intrinsic declares only the first bytes as read */
}

static inline __m512 of_bf16(const void *p, int64_t i, __mmask16 mask)
{
    const __m256i x = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* Stores 16 elements of c. Non-temporal stores are used only for whole cache lines. */
static inline void put_wide(const struct gemm *g, int64_t at, __mmask16 mask, __m512 y)
{
    float *const to = (float *)g->c + at;
    if (g->streams && mask == (__mmask16)-1 && (uintptr_t)to % 64 == 0) _mm512_stream_ps(to, y);
    else _mm512_mask_storeu_ps(to, mask, y);
}

/* The part of c that a block writes: from element `at` on, columns of the tile from col on. */
struct place {
    int64_t at, col, rows, cols;
};

/* Converts the sums of both halves of a row to elements of c. The kinds of operands are constants after inlining. */
static inline void finish_row(const struct gemm *g, bool wide, bool bias, bool adds, const struct place *p, int64_t i,
                              const float *sums, const __m512 from_bias[2], __mmask32 mask)
{
    const int64_t at = p->at + i * g->c_row;
    const __mmask16 masks[2] = { (__mmask16)mask, (__mmask16)(mask >> 16) };
    __m512 y[2];
    for (int half = 0; half < 2; half++) {
        y[half] = _mm512_load_ps(sums + (i / 16 * 2 + half) * 256 + i % 16 * 16);
        if (bias) y[half] = _mm512_add_ps(y[half], from_bias[half]);
        if (adds && wide)
            y[half] = _mm512_add_ps(y[half],
                                    _mm512_maskz_loadu_ps(masks[half], (const float *)g->sum + at + 16 * half));
        if (adds && !wide) y[half] = _mm512_add_ps(y[half], of_bf16(g->sum, at + 16 * half, masks[half]));
        if (wide) put_wide(g, at + 16 * half, masks[half], y[half]);
    }
    if (!wide) _mm512_mask_storeu_epi16((uint16_t *)g->c + at, mask, (__m512i)_mm512_cvtne2ps_pbh(y[1], y[0]));
}

/* A block whose sums are complete and not yet converted to elements of c. */
struct unfinished {
    const struct gemm *g;
    struct place at;
    const float *sums; /* NULL: none */
};

static inline void finish_rows(const struct unfinished *u, bool wide, bool bias, bool adds, int64_t from, int64_t to)
{
    const __mmask32 mask = first_of(u->at.cols);
    __m512 from_bias[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (int half = 0; bias && half < 2; half++)
        from_bias[half] = of_bf16(u->g->bias, u->at.col + 16 * half, (__mmask16)(mask >> (16 * half)));
    for (int64_t i = from; i < to; i++) finish_row(u->g, wide, bias, adds, &u->at, i, u->sums, from_bias, mask);
}

/* How sums are converted, selected once per tile. */
enum end { END_BF16, END_BF16_MORE, END_F32, END_F32_MORE };

static enum end end_of(const struct gemm *g)
{
    const bool more = g->has_bias || g->adds;
    return g->to == RW_F32 ? more ? END_F32_MORE : END_F32 : more ? END_BF16_MORE : END_BF16;
}

static inline void finish(const struct unfinished *u, enum end end, int64_t from, int64_t to)
{
    if (end == END_BF16) finish_rows(u, false, false, false, from, to);
    else if (end == END_F32) finish_rows(u, true, false, false, from, to);
    else if (end == END_BF16_MORE) finish_rows(u, false, u->g->has_bias, u->g->adds, from, to);
    else finish_rows(u, true, u->g->has_bias, u->g->adds, from, to);
}

/* Rows of c and of the addend to prefetch into the L2 cache before the next block is converted. */
struct ahead {
    const char *c, *sum;     /* sum: NULL if there is no addend, or if it is c */
    int64_t row, last, rows; /* bytes between rows, and of the last row */
};

/* Prefetches a few lines per step: with as many misses as the L1 cache can track, the unit's loads would stall. */
static inline void fetch(const struct ahead *x, int64_t from, int64_t to)
{
    for (int64_t i = from; i < to; i++) {
        __builtin_prefetch(x->c + i * x->row, 1, 2);
        __builtin_prefetch(x->c + i * x->row + x->last, 1, 2);
        if (!x->sum) continue;
        __builtin_prefetch(x->sum + i * x->row, 0, 2);
        __builtin_prefetch(x->sum + i * x->row + x->last, 0, 2);
    }
}

/* Multiplies a block of a by a block of b; tile registers 0 to 3 hold the sums of both halves of each. In between,
   it converts some rows of the previous block per step: otherwise the unit and the vector code would wait for each
   other. */
static inline void multiply(const uint16_t *a, const uint16_t *b, int64_t steps, float *sums, bool goes_on,
                            const struct unfinished *u, enum end end, const struct ahead *x)
{
    const int64_t share = gemm_ceil_div(x->rows, steps);
    const int64_t rows = u->sums ? u->at.rows : 0, each = gemm_ceil_div(rows, steps);
    if (goes_on) {
        _tile_loadd(0, sums, 64);
        _tile_loadd(1, sums + 256, 64);
        _tile_loadd(2, sums + 512, 64);
        _tile_loadd(3, sums + 768, 64);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t i = 0, row = 0; i < steps; i++, a += BLOCK_OF_STEP, b += BLOCK_OF_STEP, row += each) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + HALF_OF_STEP, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + HALF_OF_STEP, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        fetch(x, i * share, (i + 1) * share < x->rows ? (i + 1) * share : x->rows);
        finish(u, end, row, row + each < rows ? row + each : rows);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
}

size_t rw_gemm_amx_scratch(const struct gemm *g, int64_t tile_m, int64_t tile_n)
{
    const int64_t most = tile_m > tile_n ? tile_m : tile_n;
    const int64_t blocks = rw_gemm_amx_depth(g) > STEPS * AMX_BLOCK ? gemm_ceil_div(most, AMX_BLOCK) : 1;
    return (size_t)blocks * SUMS * sizeof(float);
}

/* A tile of c, and how it is computed. */
struct tile {
    const struct gemm *g;
    const uint16_t *a, *b;
    int64_t rows, cols, depth;
    bool outer_a;
};

/* The block of c at the intersection of two blocks of the operands; empty beyond the last ones. */
static inline struct place place_at(const struct tile *t, int64_t outer, int64_t inner)
{
    const int64_t row = t->outer_a ? outer : inner, col = t->outer_a ? inner : outer;
    return (struct place){ row * t->g->c_row + col, col, t->rows - row < AMX_BLOCK ? t->rows - row : AMX_BLOCK,
                           t->cols - col < AMX_BLOCK ? t->cols - col : AMX_BLOCK };
}

static inline struct ahead ahead_at(const struct tile *t, int64_t outer, int64_t inner)
{
    const struct place p = place_at(t, outer, inner);
    const int64_t size = (int64_t)rw_dtype_size(t->g->to);
    struct ahead x = { .row = t->g->c_row * size, .last = p.cols * size - 1, .rows = p.rows };
    if (p.rows <= 0 || p.cols <= 0) return (struct ahead){ .rows = 0 };
    x.c = (const char *)t->g->c + p.at * size;
    if (t->g->adds && t->g->sum != t->g->c) x.sum = (const char *)t->g->sum + p.at * size;
    return x;
}

/* Multiplies steps [first, first + steps) of two blocks. After the last step the sums become *u, and the next block of
   c is prefetched. */
static inline void meet(const struct tile *t, int64_t outer, int64_t inner, int64_t first, int64_t steps, float *sums,
                        struct unfinished *u, enum end end)
{
    const int64_t row = t->outer_a ? outer : inner, col = t->outer_a ? inner : outer;
    const bool last = (first + steps) * AMX_BLOCK == t->depth;
    const bool on = inner + AMX_BLOCK < (t->outer_a ? t->cols : t->rows);
    const struct ahead x = !last || t->g->streams ? (struct ahead){ .rows = 0 }
                           : on                   ? ahead_at(t, outer, inner + AMX_BLOCK)
                                                  : ahead_at(t, outer + AMX_BLOCK, 0);
    multiply(t->a + row * t->depth + first * BLOCK_OF_STEP, t->b + col * t->depth + first * BLOCK_OF_STEP, steps, sums,
             first > 0, u, end, &x);
    *u = (struct unfinished){ t->g, place_at(t, outer, inner), last ? sums : NULL };
}

static inline void meet_all(const struct tile *t, float *scratch, enum end end)
{
    const int64_t all = t->depth / AMX_BLOCK, parts = gemm_ceil_div(all, STEPS), part = gemm_ceil_div(all, parts);
    const int64_t outer = t->outer_a ? t->rows : t->cols, inner = t->outer_a ? t->cols : t->rows;
    struct unfinished u = { .g = t->g };
    for (int64_t o = 0; o < outer; o += AMX_BLOCK)
        for (int64_t first = 0; first < all; first += part)
            for (int64_t i = 0; i < inner; i += AMX_BLOCK)
                meet(t, o, i, first, all - first < part ? all - first : part,
                     scratch + (parts > 1 ? i / AMX_BLOCK * SUMS : 0), &u, end);
    if (u.sums) finish(&u, end, 0, u.at.rows);
}

void rw_gemm_amx_tile(const struct gemm *g, const uint16_t *a, const uint16_t *b, int64_t rows, int64_t cols,
                      bool outer_a, float *scratch)
{
    const struct tile t = { g, a, b, rows, cols, rw_gemm_amx_depth(g), outer_a };
    const enum end end = end_of(g);
    configure();
    if (end == END_BF16) meet_all(&t, scratch, END_BF16);
    else if (end == END_BF16_MORE) meet_all(&t, scratch, END_BF16_MORE);
    else if (end == END_F32) meet_all(&t, scratch, END_F32);
    else meet_all(&t, scratch, END_F32_MORE);
    if (g->streams) _mm_sfence(); /* before another thread reads it */
    _tile_release();
}

#else

/* Never called: rw_cpu_has_amx() is false in such a build. */
void rw_gemm_amx_pack(const struct gemm *g, bool is_a, int64_t first, int64_t n, uint16_t *to)
{
}

size_t rw_gemm_amx_scratch(const struct gemm *g, int64_t tile_m, int64_t tile_n)
{
    return 0;
}

void rw_gemm_amx_tile(const struct gemm *g, const uint16_t *a, const uint16_t *b, int64_t rows, int64_t cols,
                      bool outer_a, float *scratch)
{
}

#endif
