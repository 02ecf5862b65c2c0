/* Conversions of every element type, and the error bounds of compare.h. */
#include "support/compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double number_get(const void *p, rw_dtype dtype, int64_t i)
{
    double d;
    float f;
    uint32_t bits;
    uint16_t upper;
    _Float16 h;
    switch (dtype) {
    case RW_F16: memcpy(&h, (const char *)p + 2 * i, sizeof h); return (double)h;
    case RW_F64: memcpy(&d, (const char *)p + 8 * i, sizeof d); return d;
    case RW_F32: memcpy(&f, (const char *)p + 4 * i, sizeof f); return (double)f;
    case RW_BF16:
        memcpy(&upper, (const char *)p + 2 * i, sizeof upper);
        bits = (uint32_t)upper << 16;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    default: return (double)NAN;
    }
}

bool number_put(void *p, rw_dtype dtype, int64_t i, double x)
{
    const float f = (float)x;
    const _Float16 h = (_Float16)f;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    const uint16_t upper = (uint16_t)(bits >> 16);
    switch (dtype) {
    case RW_F16: memcpy((char *)p + 2 * i, &h, sizeof h); return (double)h == x;
    case RW_F64: memcpy((char *)p + 8 * i, &x, sizeof x); return true;
    case RW_F32: memcpy((char *)p + 4 * i, &f, sizeof f); return (double)f == x;
    case RW_BF16: memcpy((char *)p + 2 * i, &upper, sizeof upper); return number_get(p, dtype, i) == x;
    default: return false;
    }
}

bool tensor_fill(rw_tensor *x, double (*value)(int64_t i))
{
    const rw_dtype dtype = rw_tensor_dtype(x);
    const size_t bytes = rw_tensor_bytes(x);
    unsigned char *const data = malloc(bytes + 1);
    bool exact = true;
    const int64_t n = (int64_t)(bytes / rw_dtype_size(dtype));
    for (int64_t i = 0; i < n; i++) exact &= number_put(data, dtype, i, value(i));
    exact &= !rw_write(x, data, bytes);
    free(data);
    return exact;
}

double unit_roundoff(rw_dtype dtype)
{
    switch (dtype) {
    case RW_F64: return 0x1p-53;
    case RW_F32: return 0x1p-24;
    case RW_BF16: return 0x1p-8;
    case RW_F16: return 0x1p-11;
    default: return (double)NAN;
    }
}

double arithmetic_roundoff(rw_dtype dtype)
{
    return dtype == RW_F64 ? 0x1p-53 : 0x1p-24;
}

double roundings(int n, double u)
{
    return n * u / (1 - n * u);
}

double underflow(rw_dtype dtype, rw_dtype stored, struct roundings r)
{
    return (dtype == RW_F16 ? r.s * 8 * 0x1p-25 : 0) + (stored == RW_F16 ? 0x1p-25 : 0);
}

double tolerance(rw_dtype dtype, rw_dtype stored, struct roundings r, double want, double size)
{
    const double u = arithmetic_roundoff(dtype), v = unit_roundoff(stored);
    /* The reference in double took as many roundings. */
    double e = (roundings(r.n, u) + roundings(r.n, 0x1p-53)) * size;
    if (unit_roundoff(dtype) > u) e += roundings(r.s, unit_roundoff(dtype)) * size;
    if (!(e > 0)) return e;
    e += underflow(dtype, stored, r);
    return v > u ? e + v * (fabs(want) + e) : e;
}
