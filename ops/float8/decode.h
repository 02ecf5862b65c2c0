/*
 * Decodes FP8 data (E4M3, E5M2) in CPU kernels of one instruction set: elements with one scale; and, to bfloat16, a
 * part of a row of a quantized matrix, with any layout of its scales.
 */
#ifndef RW_OPS_FLOAT8_DECODE_H
#define RW_OPS_FLOAT8_DECODE_H

#include "ops/common/vec_native.h"
#include "ops/float8/quantize.h"

typedef uint8_t nb __attribute__((vector_size(NF_LANES), aligned(1), may_alias));

/* rw_f8_decode() of one vector of FP8 elements. */
VEC_INLINE nf nf_of_f8(nb codes, bool e5m2)
{
    const nu c = __builtin_convertvector(codes, nu), sign = (c & 0x80u) << 24, a = c & 0x7fu;
    const unsigned drop = e5m2 ? 21 : 20, bias = e5m2 ? 15 : 7, infinite = e5m2 ? 0x7c : 0x7f;
    const nf small = __builtin_convertvector((ni)a, nf) * (e5m2 ? 0x1p-16f : 0x1p-9f);
    nu bits = (a << drop) + ((127 - bias) << 23);
    bits = (nu)nf_select((ni)(a < 1u << (23 - drop)), small, (nf)bits);
    if (e5m2) bits = (nu)nf_select((ni)(a == infinite), nf_all(rw_f8_float(RW_F8_INFINITY)), (nf)bits);
    const ni nan = (ni)(e5m2 ? a > infinite : a == infinite);
    return (nf)((nu)nf_select(nan, nf_all(rw_f8_float(0x7fc00000u)), (nf)bits) | sign);
}

/* Decodes elements with one scale, by arithmetic. A product of two NaNs may return either of them; if the scale is NaN
   there is only one result. */
VEC_INLINE void f8_decode(const uint8_t *x, bool e5m2, void *y, rw_dtype dtype, int64_t n, float scale)
{
    int64_t i = 0;
    for (; scale != scale && i < n; i++) f_put(y, dtype, i, rw_f8_float(0x7fc00000u));
    for (; i + NF_LANES <= n; i += NF_LANES) nf_put(y, dtype, i, nf_of_f8(*(const nb *)(x + i), e5m2) * scale);
    for (; i < n; i++) f_put(y, dtype, i, rw_f8_decode(x[i], e5m2) * scale);
}

/* ---- by a table: with one scale there are 128 results of 16 bits, and their signs ---- */

/* Can a table be used? Not if the scale is negative or NaN, because then the sign of a result is not that of its
   code. */
static inline bool f8_has_table(float scale)
{
#if defined(RW_ISA_IS_V4)
    return rw_f8_bits(scale) <= RW_F8_INFINITY;
#else
    return false;
#endif
}

static inline void f8_table(bool e5m2, rw_dtype dtype, float scale, uint16_t *table)
{
    for (int i = 0; i < 128; i++) f_put(table, dtype, i, rw_f8_decode((uint8_t)i, e5m2) * scale);
}

/* Decodes to a 16-bit type: looks up the magnitude and copies the sign. */
static inline void f8_decode_by_table(const uint8_t *x, uint16_t *y, int64_t n, const uint16_t *table)
{
#if defined(RW_ISA_IS_V4)
    const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 32);
    const __m512i c = _mm512_loadu_si512(table + 64), d = _mm512_loadu_si512(table + 96);
    const __m512i high = _mm512_set1_epi16(0x40), minus = _mm512_set1_epi16(0x80);
    for (int64_t i = 0; i < n; i += 32) {
        const __mmask32 mask = n - i < 32 ? (__mmask32)((1u << (n - i)) - 1) : (__mmask32)-1;
        const __m512i code = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, x + i));
        const __m512i below = _mm512_permutex2var_epi16(a, code, b), above = _mm512_permutex2var_epi16(c, code, d);
        const __m512i size = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(code, high), below, above);
        const __m512i sign = _mm512_slli_epi16(_mm512_and_si512(code, minus), 8);
        _mm512_mask_storeu_epi16(y + i, mask, _mm512_or_si512(size, sign));
    }
#endif
}

/* ---- by shifts: bfloat16 with a scale that is a power of two ---- */

/* Results that shifts do not produce, by the lower five bits of the element: those below the smallest normal number,
   infinities and NaNs. */
static inline void f8_ends(bool e5m2, uint16_t *table)
{
    for (int i = 0; i < 32; i++)
        table[i] = f32_to_bf16(rw_f8_decode((uint8_t)(i < 16 ? i : 0x60 + i), e5m2));
}

#if defined(RW_ISA_IS_V4)
/* exponent: added to the exponent of results that have one, to apply the scale. */
VEC_INLINE void f8_decode_by_shifts(const uint8_t *x, uint16_t *y, int64_t n, bool e5m2, __m512i ends, int exponent)
{
    const __m512i more = _mm512_set1_epi16((short)(exponent * 128)), field = _mm512_set1_epi16(e5m2 ? 0xfe0 : 0x7f0);
    const __m512i bias = _mm512_add_epi16(more, _mm512_set1_epi16((e5m2 ? 112 : 120) << 7));
    const __m512i beyond = _mm512_set1_epi16(e5m2 ? 4 : 1), size = _mm512_set1_epi16(0x7f);
    const __m512i of_ends = _mm512_set1_epi16(e5m2 ? 8 : 9), sign = _mm512_set1_epi16((short)0x8000);
    const __m512i table = _mm512_mask_add_epi16(ends, e5m2 ? 0x0e : 0xfe, ends, more);
    for (int64_t i = 0; i < n; i += 32) {
        const __mmask32 mask = n - i < 32 ? (__mmask32)((1u << (n - i)) - 1) : (__mmask32)-1;
        const __m512i code = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, x + i));
        const __m512i shifted = _mm512_and_si512(_mm512_slli_epi16(code, e5m2 ? 5 : 4), field);
        const __m512i from_end = _mm512_and_si512(_mm512_add_epi16(code, beyond), size);
        const __m512i to = _mm512_mask_permutexvar_epi16(_mm512_add_epi16(shifted, bias),
                                                         _mm512_cmplt_epu16_mask(from_end, of_ends), code, table);
        _mm512_mask_storeu_epi16(y + i, mask, /* to | (code << 8 & sign) */
                                 _mm512_ternarylogic_epi32(to, _mm512_slli_epi16(code, 8), sign, 0xf8));
    }
}
#endif

/* ---- a quantized matrix, to bfloat16 ---- */

struct f8_matrix {
    const uint8_t *codes;
    const void *scales;
    bool e5m2;
    int64_t scaling;
    struct rw_scales s;
    bool by_table;       /* for one scale per tensor */
    uint16_t table[128]; /* for one scale per tensor; with block scales the results of f8_ends() */
};

static inline struct f8_matrix f8_matrix_of(const rw_view *codes, const rw_view *scales, int64_t scaling)
{
    struct f8_matrix m = { codes->data, scales->data, codes->dtype == RW_F8_E5M2, scaling,
                           rw_scales_of(codes->layout, scaling), false, { 0 } };
    const float scale = scaling == RW_SCALING_TENSOR ? *(const float *)scales->data : 1;
    m.by_table = scaling == RW_SCALING_TENSOR && f8_has_table(scale);
    if (m.by_table) f8_table(m.e5m2, RW_BF16, scale, m.table);
    if (scaling != RW_SCALING_TENSOR) f8_ends(m.e5m2, m.table);
    return m;
}

VEC_INLINE float f8_scale_at(const struct f8_matrix *m, int64_t scaling, int64_t row, int64_t col)
{
    const int64_t block = row / m->s.high * m->s.across + col / (scaling == RW_SCALING_MX ? 32 : 128);
    if (scaling == RW_SCALING_TENSOR) return *(const float *)m->scales;
    if (scaling == RW_SCALING_MX) return rw_e8m0_decode(((const uint8_t *)m->scales)[block]);
    return ((const float *)m->scales)[block];
}

/* A power of two for which all results are normal only changes their exponents, and rounds nothing. */
VEC_INLINE bool f8_scale_is_exponent(bool e5m2, float scale)
{
    const uint32_t bits = rw_f8_bits(scale), exponent = bits >> 23;
    const uint32_t least = e5m2 ? 17 : 10, most = e5m2 ? 239 : 246;
    return (bits & 0x807fffffu) == 0 && exponent >= least && exponent <= most;
}

/* Elements [col, col + n) of a row, block by block. e5m2 and scaling are constants after inlining. */
VEC_INLINE void f8_blocks(const struct f8_matrix *m, bool e5m2, int64_t scaling, int64_t row, int64_t col, int64_t n,
                          uint16_t *y)
{
    const uint8_t *const x = m->codes + row * m->s.columns + col;
    const int64_t wide = scaling == RW_SCALING_TENSOR ? n : scaling == RW_SCALING_MX ? 32 : 128;
#if defined(RW_ISA_IS_V4)
    const __m512i ends = _mm512_loadu_si512(m->table);
#endif
    for (int64_t i = 0; i < n;) {
        const int64_t left = scaling == RW_SCALING_TENSOR ? n : wide - (col + i) % wide;
        const int64_t own = left < n - i ? left : n - i;
        const float scale = f8_scale_at(m, scaling, row, col + i);
#if defined(RW_ISA_IS_V4)
        if (scaling != RW_SCALING_TENSOR && f8_scale_is_exponent(e5m2, scale))
            f8_decode_by_shifts(x + i, y + i, own, e5m2, ends, (int)(rw_f8_bits(scale) >> 23) - 127);
        else
#endif
            f8_decode(x + i, e5m2, y + i, RW_BF16, own, scale);
        i += own;
    }
}

static inline void f8_matrix_row(const struct f8_matrix *m, int64_t row, int64_t col, int64_t n, uint16_t *y)
{
    if (m->by_table) {
        f8_decode_by_table(m->codes + row * m->s.columns + col, y, n, m->table);
        return;
    }
    if (m->scaling == RW_SCALING_MX) {
        if (m->e5m2) f8_blocks(m, true, RW_SCALING_MX, row, col, n, y);
        else f8_blocks(m, false, RW_SCALING_MX, row, col, n, y);
    } else if (m->scaling == RW_SCALING_TENSOR) {
        if (m->e5m2) f8_blocks(m, true, RW_SCALING_TENSOR, row, col, n, y);
        else f8_blocks(m, false, RW_SCALING_TENSOR, row, col, n, y);
    } else if (m->e5m2) f8_blocks(m, true, RW_SCALING_1X128, row, col, n, y);
    else f8_blocks(m, false, RW_SCALING_1X128, row, col, n, y);
}

#endif
