/* One number of any element type: loads it, stores it, stores it repeatedly. */
#ifndef RW_OPS_SCALAR_ACCESS_H
#define RW_OPS_SCALAR_ACCESS_H

#include "ops/common/vec.h"

static inline double get(const void *p, rw_dtype dtype, int64_t i)
{
    switch (dtype) {
    case RW_F32: return ((const float *)p)[i];
    case RW_F64: return ((const double *)p)[i];
    case RW_I32: return ((const int32_t *)p)[i];
    case RW_BOOL: return ((const uint8_t *)p)[i] != 0;
    default: return half_to_f32(((const uint16_t *)p)[i], dtype);
    }
}

/* Converts a double to a 16-bit type with a single rounding: first to float with rounding to odd. */
static inline uint16_t half_of_double(double x, rw_dtype dtype)
{
    float f = (float)x;
    if (isfinite(f) && (double)f != x) {
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        if (fabs((double)f) > fabs(x)) bits--;
        bits |= 1;
        memcpy(&f, &bits, sizeof bits);
    }
    return f32_to_half(f, dtype);
}

static inline void put(void *p, rw_dtype dtype, int64_t i, double x)
{
    switch (dtype) {
    case RW_F32: ((float *)p)[i] = (float)x; break;
    case RW_F64: ((double *)p)[i] = x; break;
    case RW_I32:
        ((int32_t *)p)[i] = x != x ? 0 : x >= 2147483647.0 ? INT32_MAX : x <= -2147483648.0 ? INT32_MIN : (int32_t)x;
        break;
    case RW_BOOL: ((uint8_t *)p)[i] = x != 0; break;
    default: ((uint16_t *)p)[i] = half_of_double(x, dtype);
    }
}

#define MANY(size, type)                                                                      \
    VEC_INLINE void many_##size(void *to, const void *number, int64_t n)                       \
    {                                                                                          \
        type x;                                                                                \
        memcpy(&x, number, sizeof x);                                                          \
        for (int64_t i = 0; i < n; i++) ((type *)to)[i] = x;                                   \
    }

MANY(1, uint8_t)
MANY(2, uint16_t)
MANY(4, uint32_t)
MANY(8, uint64_t)

#undef MANY

static inline void put_many(void *to, int64_t n, rw_dtype dtype, double value)
{
    uint64_t number = 0;
    put(&number, dtype, 0, value);
    switch (rw_dtype_size(dtype)) {
    case 1: many_1(to, &number, n); return;
    case 2: many_2(to, &number, n); return;
    case 4: many_4(to, &number, n); return;
    default: many_8(to, &number, n); return;
    }
}

#endif
