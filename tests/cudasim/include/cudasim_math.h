/* Arithmetic intrinsics, bit casts, cached loads and vector constructors. Compile with -ffp-contract=off. */
#ifndef CUDASIM_MATH_H
#define CUDASIM_MATH_H

#include "cudasim_device.h"

#include <limits>

template <typename To, typename From> static inline To cudasim_cast(From x)
{
    static_assert(sizeof(To) == sizeof(From), "casts keep the size");
    To y;
    memcpy(static_cast<void *>(&y), &x, sizeof y);
    return y;
}

/* Bit casts */
static inline unsigned __float_as_uint(float x) { return cudasim_cast<unsigned>(x); }
static inline int __float_as_int(float x) { return cudasim_cast<int>(x); }
static inline float __uint_as_float(unsigned x) { return cudasim_cast<float>(x); }
static inline float __int_as_float(int x) { return cudasim_cast<float>(x); }
static inline long long __double_as_longlong(double x) { return cudasim_cast<long long>(x); }
static inline double __longlong_as_double(long long x) { return cudasim_cast<double>(x); }
static inline int __double2hiint(double x) { return static_cast<int>(cudasim_cast<uint64_t>(x) >> 32); }
static inline int __double2loint(double x) { return static_cast<int>(cudasim_cast<uint64_t>(x)); }
static inline double __hiloint2double(int hi, int lo)
{
    return cudasim_cast<double>(static_cast<uint64_t>(static_cast<unsigned>(hi)) << 32 | static_cast<unsigned>(lo));
}

/* Integers */
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline unsigned long long __brevll(unsigned long long x)
{
    unsigned long long y = 0;
    for (int i = 0; i < 64; i++) y |= (x >> i & 1) << (63 - i);
    return y;
}
static inline unsigned __brev(unsigned x) { return static_cast<unsigned>(__brevll(x) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
static inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b)
{
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
static inline long long __mul64hi(long long a, long long b)
{
    return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n)
{
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) << (n & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n)
{
    return static_cast<unsigned>((static_cast<uint64_t>(hi) << 32 | lo) >> (n & 31));
}
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
/* Bytes of x (0 to 3) and y (4 to 7), chosen by the nibbles of s; a nibble's high bit repeats the byte's sign. */
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned nibble = s >> (4 * i) & 15, byte = static_cast<unsigned>(bytes >> (8 * (nibble & 7))) & 255;
        r |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return r;
}

/* Floats, rounded to nearest even: the host's operations without contraction. */
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return sqrt(a); }
static inline double __drcp_rn(double a) { return 1.0 / a; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __frsqrt_rn(float a) { return static_cast<float>(1.0 / sqrt(static_cast<double>(a))); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

/* The device's results are within one or two ulps of these. */
static inline float rsqrtf(float a) { return static_cast<float>(1.0 / sqrt(static_cast<double>(a))); }
static inline double rsqrt(double a) { return 1.0 / sqrt(a); }
static inline float rcbrtf(float a) { return 1.0f / cbrtf(a); }
static inline float normcdff(float a) { return 0.5f * erfcf(-0.70710678118654752f * a); }
static inline double normcdf(double a) { return 0.5 * erfc(-0.70710678118654752 * a); }
static inline float cudasim_exp10f(float a) { return static_cast<float>(pow(10.0, static_cast<double>(a))); }
/* Sine and cosine of pi x: x minus its multiples of a quarter turn, which is exact, then rotated by them. */
static inline void sincospi(double x, double *ret_sin, double *ret_cos)
{
    const double turns = nearbyint(2 * x), rest = x - turns / 2;
    const double s = sin(3.14159265358979323846 * rest), c = cos(3.14159265358979323846 * rest);
    switch (static_cast<int>(fmod(turns, 4) + 4) % 4) {
    case 0: *ret_sin = s, *ret_cos = c; break;
    case 1: *ret_sin = c, *ret_cos = -s; break;
    case 2: *ret_sin = -s, *ret_cos = -c; break;
    default: *ret_sin = -c, *ret_cos = s;
    }
}
/* Macros, because the C library has functions with some of these names. */
#define __expf(x) expf(x)
#define __exp10f(x) cudasim_exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)
#define __sincosf(x, s, c) (void)(*(s) = sinf(x), *(c) = cosf(x))

/* Conversions. To integers they saturate, and NaN gives 0 (for 64 bits the smallest), as on the device. */
template <typename I, typename F> static inline I cudasim_to_integer(F x)
{
    using limits = std::numeric_limits<I>;
    if (x != x) return sizeof(I) == 8 ? (limits::is_signed ? limits::min() : I(1) << 63) : I(0);
    if (x <= static_cast<F>(limits::min())) return limits::min();
    return x >= static_cast<F>(limits::max()) ? limits::max() : static_cast<I>(x);
}
static inline int __float2int_rn(float x) { return cudasim_to_integer<int>(nearbyintf(x)); }
static inline int __float2int_rz(float x) { return cudasim_to_integer<int>(truncf(x)); }
static inline int __float2int_rd(float x) { return cudasim_to_integer<int>(floorf(x)); }
static inline int __float2int_ru(float x) { return cudasim_to_integer<int>(ceilf(x)); }
static inline unsigned __float2uint_rn(float x) { return cudasim_to_integer<unsigned>(nearbyintf(x)); }
static inline unsigned __float2uint_rz(float x) { return cudasim_to_integer<unsigned>(truncf(x)); }
static inline unsigned __float2uint_rd(float x) { return cudasim_to_integer<unsigned>(floorf(x)); }
static inline unsigned __float2uint_ru(float x) { return cudasim_to_integer<unsigned>(ceilf(x)); }
static inline long long __float2ll_rn(float x) { return cudasim_to_integer<long long>(nearbyintf(x)); }
static inline long long __float2ll_rz(float x) { return cudasim_to_integer<long long>(truncf(x)); }
static inline long long __float2ll_rd(float x) { return cudasim_to_integer<long long>(floorf(x)); }
static inline long long __float2ll_ru(float x) { return cudasim_to_integer<long long>(ceilf(x)); }
static inline unsigned long long __float2ull_rn(float x)
{
    return cudasim_to_integer<unsigned long long>(nearbyintf(x));
}
static inline unsigned long long __float2ull_rz(float x) { return cudasim_to_integer<unsigned long long>(truncf(x)); }
static inline unsigned long long __float2ull_rd(float x) { return cudasim_to_integer<unsigned long long>(floorf(x)); }
static inline unsigned long long __float2ull_ru(float x) { return cudasim_to_integer<unsigned long long>(ceilf(x)); }
static inline int __double2int_rn(double x) { return cudasim_to_integer<int>(nearbyint(x)); }
static inline int __double2int_rz(double x) { return cudasim_to_integer<int>(trunc(x)); }
static inline int __double2int_rd(double x) { return cudasim_to_integer<int>(floor(x)); }
static inline int __double2int_ru(double x) { return cudasim_to_integer<int>(ceil(x)); }
static inline unsigned __double2uint_rn(double x) { return cudasim_to_integer<unsigned>(nearbyint(x)); }
static inline unsigned __double2uint_rz(double x) { return cudasim_to_integer<unsigned>(trunc(x)); }
static inline unsigned __double2uint_rd(double x) { return cudasim_to_integer<unsigned>(floor(x)); }
static inline unsigned __double2uint_ru(double x) { return cudasim_to_integer<unsigned>(ceil(x)); }
static inline long long __double2ll_rn(double x) { return cudasim_to_integer<long long>(nearbyint(x)); }
static inline long long __double2ll_rz(double x) { return cudasim_to_integer<long long>(trunc(x)); }
static inline long long __double2ll_rd(double x) { return cudasim_to_integer<long long>(floor(x)); }
static inline long long __double2ll_ru(double x) { return cudasim_to_integer<long long>(ceil(x)); }
static inline unsigned long long __double2ull_rn(double x)
{
    return cudasim_to_integer<unsigned long long>(nearbyint(x));
}
static inline unsigned long long __double2ull_rz(double x) { return cudasim_to_integer<unsigned long long>(trunc(x)); }
static inline unsigned long long __double2ull_rd(double x) { return cudasim_to_integer<unsigned long long>(floor(x)); }
static inline unsigned long long __double2ull_ru(double x) { return cudasim_to_integer<unsigned long long>(ceil(x)); }
static inline float __int2float_rn(int x) { return static_cast<float>(x); }
static inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
static inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
static inline float __ull2float_rn(unsigned long long x) { return static_cast<float>(x); }
static inline double __ll2double_rn(long long x) { return static_cast<double>(x); }
static inline double __ull2double_rn(unsigned long long x) { return static_cast<double>(x); }
static inline double __int2double_rn(int x) { return static_cast<double>(x); }
static inline double __uint2double_rn(unsigned x) { return static_cast<double>(x); }
static inline float __double2float_rn(double x) { return static_cast<float>(x); }

/* min and max of every pair that CUDA has. */
#define CUDASIM_MIN_MAX(type)                                                       \
    static inline constexpr type min(type a, type b) { return a < b ? a : b; }      \
    static inline constexpr type max(type a, type b) { return a > b ? a : b; }
#define CUDASIM_MIN_MAX_MIXED(type, a_type, b_type)                                 \
    static inline constexpr type min(a_type a, b_type b) { return min(static_cast<type>(a), static_cast<type>(b)); } \
    static inline constexpr type max(a_type a, b_type b) { return max(static_cast<type>(a), static_cast<type>(b)); } \
    static inline constexpr type min(b_type a, a_type b) { return min(static_cast<type>(a), static_cast<type>(b)); } \
    static inline constexpr type max(b_type a, a_type b) { return max(static_cast<type>(a), static_cast<type>(b)); }
CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
CUDASIM_MIN_MAX_MIXED(unsigned, int, unsigned)
CUDASIM_MIN_MAX_MIXED(unsigned long, long, unsigned long)
CUDASIM_MIN_MAX_MIXED(unsigned long long, long long, unsigned long long)
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline double min(float a, double b) { return fmin(a, b); }
static inline double max(float a, double b) { return fmax(a, b); }
static inline double min(double a, float b) { return fmin(a, b); }
static inline double max(double a, float b) { return fmax(a, b); }
#undef CUDASIM_MIN_MAX
#undef CUDASIM_MIN_MAX_MIXED

/* Loads and stores with a cache hint: plain accesses here. */
template <typename T> static inline T __ldg(const T *p) { return *p; }
template <typename T> static inline T __ldcg(const T *p) { return *p; }
template <typename T> static inline T __ldca(const T *p) { return *p; }
template <typename T> static inline T __ldcs(const T *p) { return *p; }
template <typename T> static inline T __ldlu(const T *p) { return *p; }
template <typename T> static inline T __ldcv(const T *p) { return *p; }
template <typename T> static inline void __stwb(T *p, T x) { *p = x; }
template <typename T> static inline void __stcg(T *p, T x) { *p = x; }
template <typename T> static inline void __stcs(T *p, T x) { *p = x; }
template <typename T> static inline void __stwt(T *p, T x) { *p = x; }

#define CUDASIM_MAKE(base, type)                                                                        \
    static inline constexpr base##1 make_##base##1(type x) { return { x }; }                            \
    static inline constexpr base##2 make_##base##2(type x, type y) { return { x, y }; }                 \
    static inline constexpr base##3 make_##base##3(type x, type y, type z) { return { x, y, z }; }      \
    static inline constexpr base##4 make_##base##4(type x, type y, type z, type w) { return { x, y, z, w }; }
CUDASIM_MAKE(char, signed char)
CUDASIM_MAKE(uchar, unsigned char)
CUDASIM_MAKE(short, short)
CUDASIM_MAKE(ushort, unsigned short)
CUDASIM_MAKE(int, int)
CUDASIM_MAKE(uint, unsigned)
CUDASIM_MAKE(long, long)
CUDASIM_MAKE(ulong, unsigned long)
CUDASIM_MAKE(longlong, long long)
CUDASIM_MAKE(ulonglong, unsigned long long)
CUDASIM_MAKE(float, float)
CUDASIM_MAKE(double, double)
#undef CUDASIM_MAKE

#endif
