/*
 * The widest vector of the instruction set, for kernels that compute each element independently: the number of lanes
 * does not affect their results. Reductions use the fixed vector of vec.h instead, which the compiler keeps in memory
 * if registers are narrower.
 */
#ifndef RW_OPS_COMMON_VEC_NATIVE_H
#define RW_OPS_COMMON_VEC_NATIVE_H

#include "ops/common/vec.h"

#if defined(RW_ISA_IS_V4)
#define NATIVE_BYTES 64
typedef __m512 native_ps;
typedef __m512d native_pd;
#define NATIVE_PS(name) Sleef_##name##f16_u10
#define NATIVE_PD(name) Sleef_##name##d8_u10
#define NATIVE_MAX_PS _mm512_max_ps
#define NATIVE_MIN_PS _mm512_min_ps
#define NATIVE_SQRT_PS _mm512_sqrt_ps
#define NATIVE_SQRT_PD _mm512_sqrt_pd
#elif defined(RW_ISA_IS_V3)
#define NATIVE_BYTES 32
typedef __m256 native_ps;
typedef __m256d native_pd;
#define NATIVE_PS(name) Sleef_##name##f8_u10
#define NATIVE_PD(name) Sleef_##name##d4_u10
#define NATIVE_MAX_PS _mm256_max_ps
#define NATIVE_MIN_PS _mm256_min_ps
#define NATIVE_SQRT_PS _mm256_sqrt_ps
#define NATIVE_SQRT_PD _mm256_sqrt_pd
#else
#define NATIVE_BYTES 16
#if defined(VEC_HAS_16)
typedef vec_ps16 native_ps;
typedef vec_pd16 native_pd;
#define NATIVE_PS(name) Sleef_##name##f4_u10
#define NATIVE_PD(name) Sleef_##name##d2_u10
#endif
#if defined(__x86_64__)
#define NATIVE_MAX_PS _mm_max_ps
#define NATIVE_MIN_PS _mm_min_ps
#define NATIVE_SQRT_PS _mm_sqrt_ps
#define NATIVE_SQRT_PD _mm_sqrt_pd
#elif defined(__aarch64__)
#define NATIVE_SQRT_PS vsqrtq_f32
#define NATIVE_SQRT_PD vsqrtq_f64
#endif
#endif

#define NF_LANES (NATIVE_BYTES / 4)
#define ND_LANES (NATIVE_BYTES / 8)

typedef float nf __attribute__((vector_size(NATIVE_BYTES), aligned(4), may_alias));
typedef double nd __attribute__((vector_size(NATIVE_BYTES), aligned(8), may_alias));
typedef int32_t ni __attribute__((vector_size(NATIVE_BYTES), aligned(4), may_alias));
typedef uint32_t nu __attribute__((vector_size(NATIVE_BYTES), aligned(4), may_alias));
typedef int64_t nl __attribute__((vector_size(NATIVE_BYTES), aligned(8), may_alias));
typedef uint16_t nh __attribute__((vector_size(NATIVE_BYTES / 2), aligned(2), may_alias));

VEC_INLINE nf nf_all(float x)
{
    return x - (nf){ 0 };
}

VEC_INLINE nd nd_all(double x)
{
    return x - (nd){ 0 };
}

VEC_INLINE nf nf_select(ni mask, nf a, nf b)
{
    return (nf)(((ni)a & mask) | ((ni)b & ~mask));
}

VEC_INLINE nd nd_select(nl mask, nd a, nd b)
{
    return (nd)(((nl)a & mask) | ((nl)b & ~mask));
}

/* Is any lane of a mask set? */
VEC_INLINE bool nf_any(ni mask)
{
#if defined(RW_ISA_IS_V4)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(RW_ISA_IS_V3)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < NF_LANES; i++) any |= mask[i];
    return any != 0;
#endif
}

/* a * b + c, with one rounding if the machine has an FMA instruction. */
VEC_INLINE nf nf_fma(nf a, nf b, nf c)
{
#if defined(RW_ISA_IS_V4)
    return (nf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(RW_ISA_IS_V3)
    return (nf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (nf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

VEC_INLINE nd nd_fma(nd a, nd b, nd c)
{
#if defined(RW_ISA_IS_V4)
    return (nd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(RW_ISA_IS_V3)
    return (nd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__aarch64__)
    return (nd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

VEC_INLINE nf nf_of_bf16(nh h)
{
#if defined(RW_ISA_IS_V4)
    return (nf)(vu_of_halves(h) << 16);
#else
    return (nf)(__builtin_convertvector(h, nu) << 16);
#endif
}

/* Rounds to nearest even; NaN stays NaN. */
VEC_INLINE nh nf_to_bf16(nf x)
{
#if defined(RW_ISA_IS_V4)
    return vf_to_bf16(x);
#elif defined(RW_ISA_IS_V3)
    return (nh)vec_to_bf16((__m256)x);
#else
    const nu bits = (nu)x;
    const nu nan = (nu)(x != x);
    const nu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return __builtin_convertvector((rounded & ~nan) | ((bits >> 16 | 0x40u) & nan), nh);
#endif
}

VEC_INLINE nf nf_of_f16(nh h)
{
#if defined(RW_ISA_IS_V4)
    return (nf)_mm512_cvtph_ps((__m256i)h);
#elif defined(RW_ISA_IS_V3)
    return (nf)_mm256_cvtph_ps((__m128i)h);
#else
    nf x;
    for (int i = 0; i < NF_LANES; i++) x[i] = f16_to_f32(h[i]);
    return x;
#endif
}

VEC_INLINE nh nf_to_f16(nf x)
{
#if defined(RW_ISA_IS_V4)
    return (nh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(RW_ISA_IS_V3)
    return (nh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    nh h;
    for (int i = 0; i < NF_LANES; i++) h[i] = f32_to_f16(x[i]);
    return h;
#endif
}

VEC_INLINE nf nf_of_half(nh h, rw_dtype dtype)
{
    return dtype == RW_F16 ? nf_of_f16(h) : nf_of_bf16(h);
}

VEC_INLINE nh nf_to_half(nf x, rw_dtype dtype)
{
    return dtype == RW_F16 ? nf_to_f16(x) : nf_to_bf16(x);
}

/* Loads elements from i on, of an array of RW_F32 or a 16-bit type. dtype is a constant after inlining. */
VEC_INLINE nf nf_get(const void *p, rw_dtype dtype, int64_t i)
{
    return is_half(dtype) ? nf_of_half(*(const nh *)((const uint16_t *)p + i), dtype)
                          : *(const nf *)((const float *)p + i);
}

VEC_INLINE void nf_put(void *p, rw_dtype dtype, int64_t i, nf x)
{
    if (is_half(dtype)) *(nh *)((uint16_t *)p + i) = nf_to_half(x, dtype);
    else *(nf *)((float *)p + i) = x;
}

/* Loads up to 16 bytes as two words, the lowest address first, and reads nothing beyond the first `bytes`, an even
   number. Does this with a few moves that depend on the bits of that number. For rows of one length these branches are
   predictable. */
typedef uint64_t vec_words __attribute__((vector_size(16)));

VEC_INLINE uint64_t vec_word(const char *p, int64_t bytes)
{
    uint64_t eight = 0;
    uint32_t four = 0;
    uint16_t two = 0;
    if (bytes >= 8) memcpy(&eight, p, sizeof eight);
    else if (bytes > 0) {
        if (bytes & 4) memcpy(&four, p, sizeof four);
        if (bytes & 2) memcpy(&two, p + (bytes & 4), sizeof two);
        eight = four | (uint64_t)two << 8 * (bytes & 4);
    }
    return eight;
}

VEC_INLINE void vec_put_word(char *p, int64_t bytes, uint64_t eight)
{
    const uint32_t four = (uint32_t)eight;
    const uint16_t two = (uint16_t)(eight >> 8 * (bytes & 4));
    if (bytes >= 8) memcpy(p, &eight, sizeof eight);
    else if (bytes > 0) {
        if (bytes & 4) memcpy(p, &four, sizeof four);
        if (bytes & 2) memcpy(p + (bytes & 4), &two, sizeof two);
    }
}

VEC_INLINE vec_words vec_get_words(const void *p, int64_t bytes)
{
    return (vec_words){ vec_word(p, bytes), vec_word((const char *)p + 8, bytes - 8) };
}

VEC_INLINE void vec_put_words(void *p, int64_t bytes, vec_words x)
{
    vec_put_word(p, bytes, x[0]);
    vec_put_word((char *)p + 8, bytes - 8, x[1]);
}

#if !defined(RW_ISA_IS_V4)
/* The mask of the lanes below n. */
VEC_INLINE ni nf_before(int64_t n)
{
#if defined(RW_ISA_IS_V3)
    const ni lane = { 0, 1, 2, 3, 4, 5, 6, 7 };
#else
    const ni lane = { 0, 1, 2, 3 };
#endif
    return (ni)(lane < (int32_t)n);
}
#endif

/* x in the first n lanes, `fill` in the others. */
VEC_INLINE nf nf_first(nf x, int64_t n, float fill)
{
    if (n >= NF_LANES) return x;
#if defined(RW_ISA_IS_V4)
    return (nf)_mm512_mask_blend_ps((__mmask16)((1u << n) - 1), _mm512_set1_ps(fill), (__m512)x);
#else
    return nf_select(nf_before(n), x, nf_all(fill));
#endif
}

/* Loads the first n < NF_LANES elements; the other lanes are 0. */
VEC_INLINE nf nf_get_some(const void *p, rw_dtype dtype, int64_t i, int64_t n)
{
#if defined(RW_ISA_IS_V4)
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (is_half(dtype)) return nf_of_half((nh)_mm256_maskz_loadu_epi16(mask, (const uint16_t *)p + i), dtype);
    return (nf)_mm512_maskz_loadu_ps(mask, (const float *)p + i);
#else
    if (is_half(dtype)) {
        const vec_words x = vec_get_words((const uint16_t *)p + i, 2 * n);
        return nf_of_half(*(const nh *)&x, dtype);
    }
#if defined(RW_ISA_IS_V3)
    return (nf)_mm256_maskload_ps((const float *)p + i, (__m256i)nf_before(n));
#else
    return (nf)vec_get_words((const float *)p + i, 4 * n);
#endif
#endif
}

/* Stores the first n lanes. */
VEC_INLINE void nf_put_some(void *p, rw_dtype dtype, int64_t i, int64_t n, nf x)
{
#if defined(RW_ISA_IS_V4)
    const __mmask16 mask = (__mmask16)((1u << n) - 1);
    if (is_half(dtype)) _mm256_mask_storeu_epi16((uint16_t *)p + i, mask, (__m256i)nf_to_half(x, dtype));
    else _mm512_mask_storeu_ps((float *)p + i, mask, (__m512)x);
#else
    union { vec_words words[NATIVE_BYTES / 16]; nh half; nf whole; } u = { .whole = x };
    if (is_half(dtype)) {
        u.half = nf_to_half(x, dtype);
        for (int w = 0; w < NATIVE_BYTES / 32 || !w; w++)
            vec_put_words((uint16_t *)p + i + 8 * w, 2 * n - 16 * w, u.words[w]);
    } else {
        for (int w = 0; w < NATIVE_BYTES / 16; w++)
            vec_put_words((float *)p + i + 4 * w, 4 * n - 16 * w, u.words[w]);
    }
#endif
}

/* The same for the end of a loop that is compiled a hundred times: not inlined unless it is a single instruction. */
#if defined(RW_ISA_IS_V4)
#define nf_get_rest nf_get_some
#define nf_put_rest nf_put_some
#else
static __attribute__((noinline, unused)) nf nf_get_rest_of_half(const void *p, rw_dtype dtype, int64_t i, int64_t n)
{
    return nf_get_some(p, dtype, i, n);
}

VEC_INLINE nf nf_get_rest(const void *p, rw_dtype dtype, int64_t i, int64_t n)
{
    return is_half(dtype) ? nf_get_rest_of_half(p, dtype, i, n) : nf_get_some(p, dtype, i, n);
}

static __attribute__((noinline, unused)) void nf_put_rest(void *p, rw_dtype dtype, int64_t i, int64_t n, nf x)
{
    nf_put_some(p, dtype, i, n, x);
}
#endif

/* Is element i aligned for nf_stream()? */
VEC_INLINE bool nf_is_aligned(const void *p, rw_dtype dtype, int64_t i)
{
    return !(((uintptr_t)p + (size_t)i * float_size(dtype)) % (float_size(dtype) * NF_LANES));
}

/* As nf_put(), with a non-temporal store: cache lines that are written completely are not read first. Other threads see
   the data only after nf_fence(). */
VEC_INLINE void nf_stream(void *p, rw_dtype dtype, int64_t i, nf x)
{
    void *const to = (char *)p + (size_t)i * float_size(dtype);
#if defined(RW_ISA_IS_V4)
    if (is_half(dtype)) _mm256_stream_si256(to, (__m256i)nf_to_half(x, dtype));
    else _mm512_stream_ps(to, (__m512)x);
#elif defined(RW_ISA_IS_V3)
    if (is_half(dtype)) _mm_stream_si128(to, (__m128i)nf_to_half(x, dtype));
    else _mm256_stream_ps(to, (__m256)x);
#else
    nf_put(to, dtype, 0, x);
#endif
}

/* Required after the last nf_stream(): a release does not order non-temporal stores of x86-64. Elsewhere nf_stream()
   stores as nf_put(). */
VEC_INLINE void nf_fence(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* a > b ? a : b and a < b ? a : b, so that a NaN in b is kept. */
#if defined(NATIVE_MAX_PS)
VEC_INLINE nf nf_larger(nf a, nf b)
{
    return (nf)NATIVE_MAX_PS((native_ps)a, (native_ps)b);
}

VEC_INLINE nf nf_smaller(nf a, nf b)
{
    return (nf)NATIVE_MIN_PS((native_ps)a, (native_ps)b);
}
#else
VEC_INLINE nf nf_larger(nf a, nf b)
{
    return nf_select((ni)(a > b), a, b);
}

VEC_INLINE nf nf_smaller(nf a, nf b)
{
    return nf_select((ni)(a < b), a, b);
}
#endif

#if defined(NATIVE_PS)
#define NATIVE_FLOAT(name)                                       \
    VEC_INLINE nf nf_##name(nf x)                                \
    {                                                            \
        return (nf)NATIVE_PS(name)((native_ps)x);                \
    }
#define NATIVE_DOUBLE(name)                                      \
    VEC_INLINE nd nd_##name(nd x)                                \
    {                                                            \
        return (nd)NATIVE_PD(name)((native_pd)x);                \
    }

VEC_INLINE nf nf_sqrt(nf x)
{
    return (nf)NATIVE_SQRT_PS((native_ps)x);
}

VEC_INLINE nd nd_sqrt(nd x)
{
    return (nd)NATIVE_SQRT_PD((native_pd)x);
}

VEC_INLINE nf nf_pow(nf x, nf y)
{
    return (nf)NATIVE_PS(pow)((native_ps)x, (native_ps)y);
}

VEC_INLINE nd nd_pow(nd x, nd y)
{
    return (nd)NATIVE_PD(pow)((native_pd)x, (native_pd)y);
}
#else
#define NATIVE_FLOAT(name)                                       \
    VEC_INLINE nf nf_##name(nf x)                                \
    {                                                            \
        for (int i = 0; i < NF_LANES; i++) x[i] = Sleef_##name##f_u10(x[i]); \
        return x;                                                \
    }
#define NATIVE_DOUBLE(name)                                      \
    VEC_INLINE nd nd_##name(nd x)                                \
    {                                                            \
        for (int i = 0; i < ND_LANES; i++) x[i] = Sleef_##name##_u10(x[i]); \
        return x;                                                \
    }

VEC_INLINE nf nf_sqrt(nf x)
{
    for (int i = 0; i < NF_LANES; i++) x[i] = __builtin_sqrtf(x[i]);
    return x;
}

VEC_INLINE nd nd_sqrt(nd x)
{
    for (int i = 0; i < ND_LANES; i++) x[i] = __builtin_sqrt(x[i]);
    return x;
}

VEC_INLINE nf nf_pow(nf x, nf y)
{
    for (int i = 0; i < NF_LANES; i++) x[i] = Sleef_powf_u10(x[i], y[i]);
    return x;
}

VEC_INLINE nd nd_pow(nd x, nd y)
{
    for (int i = 0; i < ND_LANES; i++) x[i] = Sleef_pow_u10(x[i], y[i]);
    return x;
}
#endif

#define NATIVE_FUNCTION(name) NATIVE_FLOAT(name) NATIVE_DOUBLE(name)

NATIVE_DOUBLE(exp)
NATIVE_FUNCTION(log)
NATIVE_FUNCTION(tanh)
NATIVE_FUNCTION(log1p)
NATIVE_FUNCTION(sin)
NATIVE_FUNCTION(cos)
NATIVE_FUNCTION(expm1)
NATIVE_DOUBLE(erf)

/* p[0] x^(n - 1) + ... + p[n - 1] */
VEC_INLINE nf nf_polynomial(const float *p, int n, nf x)
{
    nf sum = nf_all(p[0]);
    for (int i = 1; i < n; i++) sum = nf_fma(sum, x, nf_all(p[i]));
    return sum;
}

/*
 * For |x| up to 104: returns the fraction f of e^x = f * 2^n, with x = n ln 2 + r and f = 1 + r + r^2 p(r). n is left
 * in the lowest bits of *ret_n. p was fitted like the polynomials of erf below. ln 2 is split into two parts so that n
 * times the first is exact (Cody and Waite). Within 1 ulp. SLEEF's function is a call; this one is inlined into the
 * loop.
 */
VEC_INLINE nf nf_exp_fraction(nf x, nf *ret_n)
{
    static const float p[] = { 1.973337494e-4f, 1.393527142e-3f, 8.333587088e-3f, 4.166645929e-2f, 1.666666567e-1f,
                               0.5f };
    const nf magic = nf_all(0x1.8p23f); /* adding it leaves the nearest integer in the lowest bits */
    *ret_n = nf_fma(x, nf_all(1.44269504088896341f), magic);
    const nf n = *ret_n - magic;
    const nf r = nf_fma(n, nf_all(2.12194440e-4f), nf_fma(n, nf_all(-0.693359375f), x));
    return nf_fma(nf_polynomial(p, 6, r), r * r, r) + 1.0f;
}

/* y * 2^n, with n in the lowest bits as from nf_exp_fraction(). In two steps, of which only the second may round. */
VEC_INLINE nf nf_times_two_to(nf y, nf n)
{
#if defined(RW_ISA_IS_V4)
    return (nf)_mm512_scalef_ps((__m512)y, (__m512)(n - nf_all(0x1.8p23f)));
#else
    const ni whole = (ni)n - (ni)nf_all(0x1.8p23f), half = whole >> 1;
    return y * (nf)((nu)(half + 127) << 23) * (nf)((nu)(whole - half + 127) << 23);
#endif
}

/* e^x within 1 ulp: 0 below -104, infinity above 89, NaN for NaN. */
VEC_INLINE nf nf_exp(nf x)
{
    nf n;
    const nf y = nf_exp_fraction(nf_larger(nf_all(-104.0f), nf_smaller(nf_all(89.0f), x)), &n);
    return nf_times_two_to(y, n);
}

/* e^-|x|, which never overflows. */
VEC_INLINE nf nf_exp_minus(nf x)
{
    nf n;
    const nf y = nf_exp_fraction(nf_larger(nf_all(-104.0f), (nf)((ni)x | INT32_MIN)), &n);
    return nf_times_two_to(y, n);
}

VEC_INLINE nd nd_exp_minus(nd x)
{
    return nd_exp((nd)((nl)x | INT64_MIN));
}

VEC_INLINE vf vf_exp(vf x)
{
    union { vf v; nf part[VF_LANES / NF_LANES]; } u = { x };
    for (int i = 0; i < VF_LANES / NF_LANES; i++) u.part[i] = nf_exp(u.part[i]);
    return u.v;
}

/*
 * erf within 1.1 ulp (1.2 without FMA), in a third of the time of SLEEF's: x + x p(x^2) up to 0.9275, above that 1 -
 * exp(-(x + x q(x))), which is 1 from 4 on. p and q were fitted to minimize the relative error of the result (Lawson's
 * algorithm: least squares, reweighted repeatedly by the remaining error).
 */
VEC_INLINE nf nf_erf(nf x)
{
    static const float p[] = { 8.333236424e-5f, -8.133956288e-4f, 5.200258796e-3f, -2.685908541e-2f, 1.128368983e-1f,
                               -3.761263336e-1f, 1.283791666e-1f };
    static const float q[] = { -2.140667273e-4f, 3.215630120e-3f, -2.289212898e-2f, 1.052652234e-1f, 6.357157457e-1f,
                               1.285151222e-1f };
    const ni sign = (ni)x & INT32_MIN;
    const nf size = (nf)((ni)x ^ sign), t = nf_select((ni)(size > 4), nf_all(4), size);
    const nf near = nf_fma(nf_polynomial(p, 7, t * t), t, t);
    const nf far = nf_all(1) - nf_exp(-nf_fma(nf_polynomial(q, 6, t), t, t));
    return (nf)((ni)nf_select((ni)(t < 0.9275f), near, far) | sign);
}

#endif
