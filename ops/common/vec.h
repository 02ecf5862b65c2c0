/*
 * One vector type of fixed width for every instruction set: 64 bytes, which are 16 float lanes or 8 double lanes. GCC
 * lowers it to one AVX-512, two AVX2, or four SSE or NEON registers. The number of lanes is fixed, so a sum over lanes
 * has the same order on every machine.
 *
 * On x86-64 and AArch64 vector functions are SLEEF's (https://sleef.org), within 1 ulp, except exp and erf of float
 * (vec_native.h). Elsewhere they are SLEEF's scalar functions.
 */
#ifndef RW_OPS_COMMON_VEC_H
#define RW_OPS_COMMON_VEC_H

#include <rewind/op.h>

#include <math.h>
#include <sleef.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* The vectors of 16 bytes that every processor of the architecture has. */
#if defined(__x86_64__)
typedef __m128 vec_ps16;
typedef __m128d vec_pd16;
#define VEC_HAS_16
#elif defined(__aarch64__)
typedef float32x4_t vec_ps16;
typedef float64x2_t vec_pd16;
#define VEC_HAS_16
#endif

#define VF_LANES 16
#define VD_LANES 8

typedef float vf __attribute__((vector_size(64), aligned(4), may_alias));
typedef double vd __attribute__((vector_size(64), aligned(8), may_alias));
typedef int32_t vi __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t vu __attribute__((vector_size(64), aligned(4), may_alias));
typedef int64_t vl __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint16_t vh __attribute__((vector_size(32), aligned(2), may_alias));

#define VEC_INLINE static inline __attribute__((always_inline, unused))

VEC_INLINE vf vf_all(float x)
{
    return (vf){ x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x };
}

VEC_INLINE vd vd_all(double x)
{
    return (vd){ x, x, x, x, x, x, x, x };
}

/* bfloat16: the upper half of a float, rounded to nearest even. NaN stays NaN. */
VEC_INLINE float bf16_to_f32(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

VEC_INLINE uint16_t f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (f != f) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* binary16, rounded to nearest even. NaN stays NaN. x86-64 without F16C would call the compiler's library, which sets
   the underflow flag of the x87 status word. There the conversion uses integer arithmetic, with the same results. */
#if defined(__F16C__) || !defined(__x86_64__)
VEC_INLINE float f16_to_f32(uint16_t h)
{
    _Float16 x;
    memcpy(&x, &h, sizeof x);
    return (float)x;
}

VEC_INLINE uint16_t f32_to_f16(float f)
{
    const _Float16 x = (_Float16)f;
    uint16_t h;
    memcpy(&h, &x, sizeof h);
    return h;
}
#else
/* Converts binary16 to float32 with integer arithmetic. */
VEC_INLINE float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    uint32_t bits;
    float f;
    if (rest < 0x400) { /* a multiple of 2^-24 */
        f = (float)(int32_t)rest * 0x1p-24f;
        memcpy(&bits, &f, sizeof bits);
    } else if (rest < 0x7c00) {
        bits = (rest << 13) + ((127 - 15) << 23);
    } else {
        bits = rest << 13 | 0x7f800000 | (rest > 0x7c00 ? 0x400000 : 0);
    }
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

VEC_INLINE uint16_t f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint32_t sign = bits >> 16 & 0x8000, x = bits & 0x7fffffff;
    if (x > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (x >> 13 & 0x3ff));
    if (x >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 is closer to 2^16 */
    if (x <= 0x33000000) return (uint16_t)sign;            /* 2^-25 is half of the smallest subnormal */
    if (x < 0x38800000) {                                  /* subnormal: multiples of 2^-24 */
        const uint32_t digits = (x & 0x7fffff) | 0x800000, shift = 126 - (x >> 23), half = 1u << (shift - 1);
        return (uint16_t)(sign | (digits + half - 1 + (digits >> shift & 1)) >> shift);
    }
    return (uint16_t)(sign | (x - ((127 - 15) << 23) + 0xfff + (x >> 13 & 1)) >> 13);
}
#endif

/* The 16-bit types, which are computed in float32. dtype is a constant after inlining, here and below. */
VEC_INLINE bool is_half(rw_dtype dtype)
{
    return dtype == RW_BF16 || dtype == RW_F16;
}

VEC_INLINE float half_to_f32(uint16_t h, rw_dtype dtype)
{
    return dtype == RW_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

VEC_INLINE uint16_t f32_to_half(float f, rw_dtype dtype)
{
    return dtype == RW_F16 ? f32_to_f16(f) : f32_to_bf16(f);
}

/* Bytes per element of a type that is computed in float32. */
VEC_INLINE size_t float_size(rw_dtype dtype)
{
    return is_half(dtype) ? 2 : 4;
}

VEC_INLINE vf vf_load(const float *p)
{
    return *(const vf *)p;
}

VEC_INLINE void vf_store(float *p, vf x)
{
    *(vf *)p = x;
}

VEC_INLINE vd vd_load(const double *p)
{
    return *(const vd *)p;
}

VEC_INLINE void vd_store(double *p, vd x)
{
    *(vd *)p = x;
}

/* __builtin_convertvector between 16 and 32 bits compiles to two to four instructions; these compile to one. */
VEC_INLINE vu vu_of_halves(vh h)
{
#if defined(RW_ISA_IS_V4)
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#else
    return __builtin_convertvector(h, vu);
#endif
}

VEC_INLINE vh vu_to_halves(vu x)
{
#if defined(RW_ISA_IS_V4)
    return (vh)_mm512_cvtepi32_epi16((__m512i)x);
#else
    return __builtin_convertvector(x, vh);
#endif
}

VEC_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return (vf)(vu_of_halves(*(const vh *)p) << 16);
}

/* GCC compares vectors that are wider than the machine's element by element. So the comparisons below are done on parts
   of native width. */
#if defined(RW_ISA_IS_V3)
typedef uint32_t vec_u8 __attribute__((vector_size(32)));

/* Rounds to nearest even; NaN stays NaN. */
VEC_INLINE __m128i vec_to_bf16(__m256 x)
{
    const vec_u8 bits = (vec_u8)x, nan = (vec_u8)_mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    const vec_u8 rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const __m256i half = (__m256i)((rounded & ~nan) | ((bits >> 16 | 0x40u) & nan));
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(half, half), 0x08));
}

VEC_INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    union { vf v; __m256 h[2]; } u = { x };
    _mm_storeu_si128((__m128i *)p, vec_to_bf16(u.h[0]));
    _mm_storeu_si128((__m128i *)(p + 8), vec_to_bf16(u.h[1]));
}
#elif defined(RW_ISA_IS_V4)
/* The same as below, in fewer instructions than GCC generates. */
VEC_INLINE vh vf_to_bf16(vf x)
{
    const __m512i bits = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i near = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return vu_to_halves((vu)_mm512_mask_or_epi32(near, nan, bits, _mm512_set1_epi32(0x400000)) >> 16);
}

VEC_INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    *(vh *)p = vf_to_bf16(x);
}
#else
VEC_INLINE void vf_store_bf16(uint16_t *p, vf x)
{
    const vu bits = (vu)x;
    const vu nan = (vu)(x != x);
    const vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    const vu quiet = bits >> 16 | 0x40u;
    *(vh *)p = vu_to_halves((rounded & ~nan) | (quiet & nan));
}
#endif

VEC_INLINE vf vf_load_f16(const uint16_t *p)
{
#if defined(RW_ISA_IS_V4)
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(RW_ISA_IS_V3)
    union { vf v; __m256 h[2]; } x;
    x.h[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
    x.h[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)));
    return x.v;
#else
    float l[VF_LANES];
    for (int i = 0; i < VF_LANES; i++) l[i] = f16_to_f32(p[i]);
    return vf_load(l);
#endif
}

VEC_INLINE void vf_store_f16(uint16_t *p, vf x)
{
#if defined(RW_ISA_IS_V4)
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif defined(RW_ISA_IS_V3)
    union { vf v; __m256 h[2]; } u = { x };
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(u.h[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(u.h[1], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
    for (int i = 0; i < VF_LANES; i++) p[i] = f32_to_f16(x[i]);
#endif
}

VEC_INLINE vf vf_load_half(const uint16_t *p, rw_dtype dtype)
{
    return dtype == RW_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

VEC_INLINE void vf_store_half(uint16_t *p, rw_dtype dtype, vf x)
{
    if (dtype == RW_F16) vf_store_f16(p, x);
    else vf_store_bf16(p, x);
}

/* Per lane: a where the mask is set (all ones), b where it is not (all zeros). */
VEC_INLINE vf vf_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

VEC_INLINE vd vd_select(vl mask, vd a, vd b)
{
    return (vd)(((vl)a & mask) | ((vl)b & ~mask));
}

/* Per lane: the larger of a and b, or b if either is NaN. _most: x if it is larger than m or NaN, else m. */
#if defined(RW_ISA_IS_V3)
VEC_INLINE vf vf_max(vf a, vf b)
{
    union { vf v; __m256 h[2]; } x = { a }, y = { b };
    for (int i = 0; i < 2; i++) x.h[i] = _mm256_max_ps(x.h[i], y.h[i]);
    return x.v;
}

VEC_INLINE vf vf_most(vf m, vf x)
{
    union { vf v; __m256 h[2]; } a = { x }, b = { m };
    for (int i = 0; i < 2; i++)
        b.h[i] = _mm256_blendv_ps(_mm256_max_ps(a.h[i], b.h[i]), a.h[i], _mm256_cmp_ps(a.h[i], a.h[i], _CMP_UNORD_Q));
    return b.v;
}

VEC_INLINE vd vd_most(vd m, vd x)
{
    union { vd v; __m256d h[2]; } a = { x }, b = { m };
    for (int i = 0; i < 2; i++)
        b.h[i] = _mm256_blendv_pd(_mm256_max_pd(a.h[i], b.h[i]), a.h[i], _mm256_cmp_pd(a.h[i], a.h[i], _CMP_UNORD_Q));
    return b.v;
}
#else
VEC_INLINE vf vf_max(vf a, vf b)
{
    return vf_select((vi)(a > b), a, b);
}

VEC_INLINE vf vf_most(vf m, vf x)
{
    return vf_select((vi)(x > m) | (vi)(x != x), x, m);
}

VEC_INLINE vd vd_most(vd m, vd x)
{
    return vd_select((vl)(x > m) | (vl)(x != x), x, m);
}
#endif

/* a * b + c, with one rounding if the machine has an FMA instruction. */
VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
#if defined(RW_ISA_IS_V4)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(RW_ISA_IS_V3)
    union { vf v; __m256 h[2]; } x = { a }, y = { b }, z = { c };
    z.h[0] = _mm256_fmadd_ps(x.h[0], y.h[0], z.h[0]);
    z.h[1] = _mm256_fmadd_ps(x.h[1], y.h[1], z.h[1]);
    return z.v;
#elif defined(__aarch64__)
    union { vf v; float32x4_t q[4]; } x = { a }, y = { b }, z = { c };
    for (int i = 0; i < 4; i++) z.q[i] = vfmaq_f32(z.q[i], x.q[i], y.q[i]);
    return z.v;
#else
    return a * b + c;
#endif
}

/* Sum and maximum over the lanes, as a fixed tree: halves, quarters, ... */
#if defined(RW_ISA_IS_V4) || defined(RW_ISA_IS_V3)
VEC_INLINE float vf_sum(vf x)
{
    union { vf v; __m256 h[2]; } u = { x };
    const __m256 eight = _mm256_add_ps(u.h[0], u.h[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
#else
VEC_INLINE float vf_sum(vf x)
{
    float l[VF_LANES];
    memcpy(l, &x, sizeof l);
    for (int n = VF_LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) l[i] += l[i + n];
    return l[0];
}
#endif

VEC_INLINE double vd_sum(vd x)
{
    double l[VD_LANES];
    memcpy(l, &x, sizeof l);
    for (int n = VD_LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) l[i] += l[i + n];
    return l[0];
}

#if defined(RW_ISA_IS_V4) || defined(RW_ISA_IS_V3)
VEC_INLINE float vf_max_lane(vf x)
{
    union { vf v; __m256 h[2]; } u = { x };
    const __m256 eight = _mm256_max_ps(u.h[0], u.h[1]);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
#else
VEC_INLINE float vf_max_lane(vf x)
{
    float l[VF_LANES];
    memcpy(l, &x, sizeof l);
    for (int n = VF_LANES / 2; n; n /= 2)
        for (int i = 0; i < n; i++) l[i] = l[i] > l[i + n] ? l[i] : l[i + n];
    return l[0];
}
#endif

#if defined(RW_ISA_IS_V4)
#define VEC_FLOAT(name)                                          \
    VEC_INLINE vf vf_##name(vf x)                                \
    {                                                            \
        return (vf)Sleef_##name##f16_u10((__m512)x);             \
    }
#define VEC_DOUBLE(name)                                         \
    VEC_INLINE vd vd_##name(vd x)                                \
    {                                                            \
        return (vd)Sleef_##name##d8_u10((__m512d)x);             \
    }
#elif defined(RW_ISA_IS_V3)
#define VEC_FLOAT(name)                                          \
    VEC_INLINE vf vf_##name(vf x)                                \
    {                                                            \
        union { vf v; __m256 h[2]; } u = { x };                  \
        u.h[0] = Sleef_##name##f8_u10(u.h[0]);                   \
        u.h[1] = Sleef_##name##f8_u10(u.h[1]);                   \
        return u.v;                                              \
    }
#define VEC_DOUBLE(name)                                         \
    VEC_INLINE vd vd_##name(vd x)                                \
    {                                                            \
        union { vd v; __m256d h[2]; } u = { x };                 \
        u.h[0] = Sleef_##name##d4_u10(u.h[0]);                   \
        u.h[1] = Sleef_##name##d4_u10(u.h[1]);                   \
        return u.v;                                              \
    }
#elif defined(VEC_HAS_16)
#define VEC_FLOAT(name)                                          \
    VEC_INLINE vf vf_##name(vf x)                                \
    {                                                            \
        union { vf v; vec_ps16 q[4]; } u = { x };                \
        for (int i = 0; i < 4; i++) u.q[i] = Sleef_##name##f4_u10(u.q[i]); \
        return u.v;                                              \
    }
#define VEC_DOUBLE(name)                                         \
    VEC_INLINE vd vd_##name(vd x)                                \
    {                                                            \
        union { vd v; vec_pd16 q[4]; } u = { x };                \
        for (int i = 0; i < 4; i++) u.q[i] = Sleef_##name##d2_u10(u.q[i]); \
        return u.v;                                              \
    }
#else
#define VEC_FLOAT(name)                                          \
    VEC_INLINE vf vf_##name(vf x)                                \
    {                                                            \
        for (int i = 0; i < VF_LANES; i++) x[i] = Sleef_##name##f_u10(x[i]); \
        return x;                                                \
    }
#define VEC_DOUBLE(name)                                         \
    VEC_INLINE vd vd_##name(vd x)                                \
    {                                                            \
        for (int i = 0; i < VD_LANES; i++) x[i] = Sleef_##name##_u10(x[i]); \
        return x;                                                \
    }
#endif

#define VEC_FUNCTION(name) VEC_FLOAT(name) VEC_DOUBLE(name)

VEC_DOUBLE(exp)

VEC_INLINE vf vf_sqrt(vf x)
{
    for (int i = 0; i < VF_LANES; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}

VEC_INLINE vd vd_sqrt(vd x)
{
    for (int i = 0; i < VD_LANES; i++) x[i] = __builtin_sqrt(x[i]);
    return x;
}

/* Loads one vector from element i on, of an array of RW_F32 or a 16-bit type. */
VEC_INLINE vf vf_get(const void *p, rw_dtype dtype, int64_t i)
{
    return is_half(dtype) ? vf_load_half((const uint16_t *)p + i, dtype) : vf_load((const float *)p + i);
}

VEC_INLINE void vf_put(void *p, rw_dtype dtype, int64_t i, vf x)
{
    if (is_half(dtype)) vf_store_half((uint16_t *)p + i, dtype, x);
    else vf_store((float *)p + i, x);
}

VEC_INLINE float f_get(const void *p, rw_dtype dtype, int64_t i)
{
    return is_half(dtype) ? half_to_f32(((const uint16_t *)p)[i], dtype) : ((const float *)p)[i];
}

VEC_INLINE void f_put(void *p, rw_dtype dtype, int64_t i, float x)
{
    if (is_half(dtype)) ((uint16_t *)p)[i] = f32_to_half(x, dtype);
    else ((float *)p)[i] = x;
}

/* Stores x as element i of an array of any float type. With `sum`, which may be p, stores that element of `sum` plus x.
   Each is rounded, so the bytes equal those of storing x and adding it with the op accumulate. */
VEC_INLINE void put_added(void *p, rw_dtype dtype, int64_t i, double x, const void *sum)
{
    if (dtype == RW_F64) {
        ((double *)p)[i] = sum ? ((const double *)sum)[i] + x : x;
        return;
    }
    const float own = is_half(dtype) ? half_to_f32(f32_to_half((float)x, dtype), dtype) : (float)x;
    f_put(p, dtype, i, sum ? f_get(sum, dtype, i) + own : own);
}

#endif
