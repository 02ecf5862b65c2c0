/* half as in the toolkit's header. In C only the storage types. */
#ifndef CUDASIM_CUDA_FP16_H
#define CUDASIM_CUDA_FP16_H

#ifdef __cplusplus

#include "cudasim_half.h"

namespace cudasim {
static inline uint16_t half_of_double(double x) { return narrow_bits(x, 10, 5); }
static inline float half_value(uint16_t x) { return widen_bits(x, 10, 5); }
}

CUDASIM_HALF_CLASS(__half, __half_raw, cudasim::half_of_double, cudasim::half_of_double, cudasim::half_value)
CUDASIM_HALF_FUNCTIONS(__half, __half_raw)
CUDASIM_HALF_PAIR(__half, __half2)
using half = __half;
using half2 = __half2;

static inline __half __float2half(float x) { return __half(x); }
static inline __half __float2half_rn(float x) { return __half(x); }
static inline __half __double2half(double x) { return __half(x); }
static inline float __half2float(__half x) { return float(x); }
static inline unsigned short __half_as_ushort(__half x) { return __half_raw(x).x; }
static inline short __half_as_short(__half x) { return static_cast<short>(__half_raw(x).x); }
static inline __half __ushort_as_half(unsigned short x) { return __half_raw{ x }; }
static inline __half __short_as_half(short x) { return __half_raw{ static_cast<unsigned short>(x) }; }
static inline __half __int2half_rn(int x) { return __half(x); }
static inline __half2 __float2half2_rn(float x) { return { __half(x), __half(x) }; }
static inline __half2 __floats2half2_rn(float x, float y) { return { __half(x), __half(y) }; }
static inline __half2 __float22half2_rn(float2 v) { return { __half(v.x), __half(v.y) }; }
static inline float2 __half22float2(__half2 v) { return { float(v.x), float(v.y) }; }
static inline __half2 __halves2half2(__half x, __half y) { return { x, y }; }
static inline __half2 make_half2(__half x, __half y) { return { x, y }; }
static inline __half2 __half2half2(__half x) { return { x, x }; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __low2half2(__half2 v) { return { v.x, v.x }; }
static inline __half2 __high2half2(__half2 v) { return { v.y, v.y }; }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return { __hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y) };
}

#else

typedef struct { unsigned short x; } __half_raw;
typedef struct { unsigned short __x; } __half;

#endif

#endif
