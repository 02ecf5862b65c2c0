/* bfloat16 as in the toolkit's header. In C only the storage types. */
#ifndef CUDASIM_CUDA_BF16_H
#define CUDASIM_CUDA_BF16_H

#ifdef __cplusplus

#include "cudasim_half.h"

namespace cudasim {
static inline uint16_t bfloat16_of_double(double x) { return narrow_bits(x, 7, 8); }
static inline float bfloat16_value(uint16_t x) { return cudasim_cast<float>(static_cast<uint32_t>(x) << 16); }
}

CUDASIM_HALF_CLASS(__nv_bfloat16, __nv_bfloat16_raw, cudasim::bfloat16_bits, cudasim::bfloat16_of_double,
                   cudasim::bfloat16_value)
CUDASIM_HALF_FUNCTIONS(__nv_bfloat16, __nv_bfloat16_raw)
CUDASIM_HALF_PAIR(__nv_bfloat16, __nv_bfloat162)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

static inline __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
static inline __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
static inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return __nv_bfloat16_raw(x).x; }
static inline short __bfloat16_as_short(__nv_bfloat16 x) { return static_cast<short>(__nv_bfloat16_raw(x).x); }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16_raw{ x }; }
static inline __nv_bfloat16 __short_as_bfloat16(short x) { return __nv_bfloat16_raw{ static_cast<unsigned short>(x) }; }
static inline __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
static inline __nv_bfloat162 __float2bfloat162_rn(float x) { return { __nv_bfloat16(x), __nv_bfloat16(x) }; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return { __nv_bfloat16(x), __nv_bfloat16(y) }; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return { __nv_bfloat16(v.x), __nv_bfloat16(v.y) }; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return { float(v.x), float(v.y) }; }
static inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return { x, y }; }
static inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return { x, y }; }
static inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return { x, x }; }
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
static inline __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return { v.x, v.x }; }
static inline __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return { v.y, v.y }; }
static inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c)
{
    return { __hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y) };
}

#else

typedef struct { unsigned short x; } __nv_bfloat16_raw;
typedef struct { unsigned short __x; } __nv_bfloat16;

#endif

#endif
