/* Packing and multiplying for the matrix unit. Compiled for processors that have it, chosen at run time. See
   gemm_amx.h. */
#include "ops/matmul/gemm_amx.h"

#include <string.h>

#ifdef RW_HAVE_AMX

#include <immintrin.h>

/* Steps whose blocks are met before the next ones come: those of one operand then fit the nearest cache. */
#define STEPS 8
#define BLOCK_OF_STEP (AMX_BLOCK * AMX_BLOCK)
#define HALF_OF_STEP (BLOCK_OF_STEP / 2)
#define SUMS (AMX_BLOCK * AMX_BLOCK)

/* ---- packing ---- */

/* The transpose of 16 x 16 pairs. */
static inline void turn(__m512i r[16])
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

/* Where a matrix lies whose rows follow `row` numbers behind one another, what is outside of [rows, cols] is zero. */
struct lying {
    const uint16_t *data;
    int64_t row, rows, cols;
};

/* 16 rows, of each 16 pairs of numbers that lie side by side. */
static inline void load_along(const struct lying *x, int64_t row, int64_t col, __m512i r[16])
{
    const __mmask32 mask = first_of(x->cols - col);
    for (int i = 0; i < 16; i++)
        r[i] = row + i < x->rows ? _mm512_maskz_loadu_epi16(mask, x->data + (row + i) * x->row + col)
                                 : _mm512_setzero_si512();
}

static inline __m512i load_half(const struct lying *x, int64_t row, int64_t col, __mmask16 mask)
{
    if (row >= x->rows) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x->data + row * x->row + col));
}

/* 16 pairs of rows, of each 16 columns: a pair is what lies one below the other. */
static inline void load_across(const struct lying *x, int64_t row, int64_t col, __m512i r[16])
{
    const __mmask16 mask = (__mmask16)first_of(x->cols - col < 16 ? x->cols - col : 16);
    for (int i = 0; i < 16; i++) {
        const __m512i low = load_half(x, row + 2 * i, col, mask), high = load_half(x, row + 2 * i + 1, col, mask);
        r[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
}

/* A step of a block, half by half. along: numbers along the depth lie side by side. A half of a has its 16 rows, one of
   b its 16 pairs one after the other. */
static inline void pack_step(const struct lying *x, bool along, bool is_a, int64_t at, int64_t d, uint16_t *to)
{
    for (int64_t half = 0; half < AMX_BLOCK; half += 16, to += HALF_OF_STEP) {
        __m512i r[16];
        if (along) load_along(x, at + half, d, r);
        else load_across(x, d, at + half, r);
        if (along != is_a) turn(r);
        for (int i = 0; i < 16; i++) _mm512_store_si512(to + 32 * i, r[i]);
    }
}

/* The blocks of n rows or columns, `apart` numbers one behind the other, in the order in which they lie: across, one
   step of all of them after the other, so that rows are read in parts as long as can be. */
static inline void pack_blocks(const struct lying *x, bool along, bool is_a, int64_t n, int64_t depth, int64_t apart,
                               uint16_t *to)
{
    const int64_t at_once = along ? AMX_BLOCK : n;
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

/* What is made is made in parts that stay in the nearest cache until they are packed. */
#define PART_DEPTH 256 /* along */
#define PART_WIDE 128  /* across */
#define PART_NUMBERS (AMX_BLOCK * PART_DEPTH)

static void pack_made_along(const struct gemm *g, const struct gemm_source *from, bool is_a, int64_t first, int64_t n,
                            uint16_t *to)
{
    uint16_t part[PART_NUMBERS];
    const int64_t depth = rw_gemm_amx_depth(g);
    for (int64_t at = 0; at < n; at += AMX_BLOCK)
        for (int64_t d = 0; d < g->k; d += PART_DEPTH) {
            const int64_t rows = n - at < AMX_BLOCK ? n - at : AMX_BLOCK;
            const int64_t cols = g->k - d < PART_DEPTH ? g->k - d : PART_DEPTH;
            const struct lying x = { part, PART_DEPTH, rows, cols };
            for (int64_t r = 0; r < rows; r++) from->make(from->of, first + at + r, d, cols, part + r * PART_DEPTH);
            pack_lying(&x, true, is_a, rows, gemm_align(cols, AMX_BLOCK), 0, to + at * depth + d * AMX_BLOCK);
        }
}

static void pack_made_across(const struct gemm *g, const struct gemm_source *from, bool is_a, int64_t first, int64_t n,
                             uint16_t *to)
{
    uint16_t part[PART_NUMBERS];
    const int64_t depth = rw_gemm_amx_depth(g), most = PART_NUMBERS / PART_WIDE;
    for (int64_t at = 0; at < n; at += PART_WIDE)
        for (int64_t d = 0; d < g->k; d += most) {
            const int64_t cols = n - at < PART_WIDE ? n - at : PART_WIDE, rows = g->k - d < most ? g->k - d : most;
            const struct lying x = { part, PART_WIDE, rows, cols };
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
        if (is_a != from->turned) pack_made_along(g, from, is_a, first, n, to);
        else pack_made_across(g, from, is_a, first, n, to);
        return;
    }
    const uint16_t *const data = (const uint16_t *)o->data + first * wide;
    const struct lying x = deep == 1 ? (struct lying){ data, wide, n, g->k } : (struct lying){ data, deep, g->k, n };
    pack_lying(&x, deep == 1, is_a, n, depth, AMX_BLOCK * depth, to);
}

/* ---- multiplying ---- */

/* What the unit's eight registers hold: 16 rows of 64 bytes each. */
static void configure(void)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } tiles = { .palette = 1, .bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } };
    __asm__ volatile("ldtilecfg %0" : : "m"(tiles)); /* the intrinsic tells the compiler of its first bytes alone */
}

/* Registers 0 to 3: the sums of both halves of a block of a with both of b. */
static inline void multiply(const uint16_t *a, const uint16_t *b, int64_t steps, float *sums, bool goes_on)
{
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
    for (int64_t i = 0; i < steps; i++, a += BLOCK_OF_STEP, b += BLOCK_OF_STEP) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + HALF_OF_STEP, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + HALF_OF_STEP, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
}

static inline __m512 of_bf16(const void *p, int64_t i, __mmask16 mask)
{
    const __m256i x = _mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

/* A part of c that a block writes: from `at` on, columns of the tile from col on. */
struct place {
    int64_t at, col, rows, cols;
};

/* Both halves of a row's sums become numbers of c. What they take is a constant after inlining. */
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
        if (wide) _mm512_mask_storeu_ps((float *)g->c + at + 16 * half, masks[half], y[half]);
    }
    if (!wide) _mm512_mask_storeu_epi16((uint16_t *)g->c + at, mask, (__m512i)_mm512_cvtne2ps_pbh(y[1], y[0]));
}

static inline void finish_rows(const struct gemm *g, bool wide, bool bias, bool adds, const struct place *p,
                               const float *sums)
{
    const __mmask32 mask = first_of(p->cols);
    __m512 from_bias[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (int half = 0; bias && half < 2; half++)
        from_bias[half] = of_bf16(g->bias, p->col + 16 * half, (__mmask16)(mask >> (16 * half)));
    for (int64_t i = 0; i < p->rows; i++) finish_row(g, wide, bias, adds, p, i, sums, from_bias, mask);
}

static void finish(const struct gemm *g, const struct place *p, const float *sums)
{
    const bool wide = g->to == RW_F32;
    if (!wide && !g->has_bias && !g->adds) finish_rows(g, false, false, false, p, sums);
    else if (!wide && !g->adds) finish_rows(g, false, true, false, p, sums);
    else if (!wide) finish_rows(g, false, g->has_bias, true, p, sums);
    else finish_rows(g, true, g->has_bias, g->adds, p, sums);
}

size_t rw_gemm_amx_scratch(const struct gemm *g, int64_t tile_m, int64_t tile_n)
{
    const int64_t most = tile_m > tile_n ? tile_m : tile_n;
    const int64_t blocks = rw_gemm_amx_depth(g) > STEPS * AMX_BLOCK ? gemm_ceil_div(most, AMX_BLOCK) : 1;
    return (size_t)blocks * SUMS * sizeof(float);
}

/* What a block is written to, and added to, comes from memory while its last sums are made. */
static inline void fetch(const struct gemm *g, const struct place *p)
{
    const int64_t size = (int64_t)rw_dtype_size(g->to);
    for (int64_t i = 0, at = p->at * size; i < p->rows; i++, at += g->c_row * size) {
        __builtin_prefetch((char *)g->c + at, 1);
        __builtin_prefetch((char *)g->c + at + p->cols * size - 1, 1);
        if (g->adds && g->sum != g->c) {
            __builtin_prefetch((const char *)g->sum + at);
            __builtin_prefetch((const char *)g->sum + at + p->cols * size - 1);
        }
    }
}

/* Steps [first, first + steps) of the block of a at row and that of b at col. */
static inline void meet(const struct gemm *g, const uint16_t *a, const uint16_t *b, int64_t row, int64_t rows,
                        int64_t col, int64_t cols, int64_t first, int64_t steps, float *sums)
{
    const int64_t depth = rw_gemm_amx_depth(g), own_rows = rows - row < AMX_BLOCK ? rows - row : AMX_BLOCK;
    const bool last = (first + steps) * AMX_BLOCK == depth;
    const struct place p = { row * g->c_row + col, col, own_rows, cols - col < AMX_BLOCK ? cols - col : AMX_BLOCK };
    if (last) fetch(g, &p);
    multiply(a + row * depth + first * BLOCK_OF_STEP, b + col * depth + first * BLOCK_OF_STEP, steps, sums, first > 0);
    if (last) finish(g, &p, sums);
}

void rw_gemm_amx_tile(const struct gemm *g, const uint16_t *a, const uint16_t *b, int64_t rows, int64_t cols,
                      bool outer_a, float *scratch)
{
    const int64_t all = rw_gemm_amx_depth(g) / AMX_BLOCK, parts = gemm_ceil_div(all, STEPS);
    const int64_t outer = outer_a ? rows : cols, inner = outer_a ? cols : rows, part = gemm_ceil_div(all, parts);
    configure();
    for (int64_t o = 0; o < outer; o += AMX_BLOCK)
        for (int64_t first = 0; first < all; first += part)
            for (int64_t i = 0; i < inner; i += AMX_BLOCK)
                meet(g, a, b, outer_a ? o : i, rows, outer_a ? i : o, cols, first,
                     all - first < part ? all - first : part, scratch + (parts > 1 ? i / AMX_BLOCK * SUMS : 0));
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
