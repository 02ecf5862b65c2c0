/*
 * FP8 data and scales: the formats of OCP OFP8 and MX 1.0, in integer arithmetic that CPU and CUDA share, so that their
 * bytes are equal. C11 and C++17.
 */
#ifndef RW_OPS_QUANTIZE_F8_H
#define RW_OPS_QUANTIZE_F8_H

#include "base/host_device.h"

#include <rewind/types.h>

#include <string.h>

RW_HOST_DEVICE float rw_f8_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

RW_HOST_DEVICE uint32_t rw_f8_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* A float's bits without the sign are ordered like its magnitude, with NaN last. So amax is a maximum of integers, in
   any order. */
#define RW_F8_INFINITY 0x7f800000u

RW_HOST_DEVICE uint32_t rw_f8_magnitude(float x)
{
    return rw_f8_bits(x) & 0x7fffffffu;
}

/* 448 for E4M3 and 57344 for E5M2. */
RW_HOST_DEVICE float rw_f8_largest(bool e5m2)
{
    return e5m2 ? 57344.0f : 448.0f;
}

/*
 * Rounds to nearest even, saturating. Below the smallest normal number a code counts multiples of the smallest
 * subnormal: adding a power of two whose last bit has that weight rounds to it. Above, exponent and fraction are
 * rounded as one integer.
 */
RW_HOST_DEVICE uint8_t rw_f8_encode(float x, bool e5m2)
{
    const uint32_t sign = rw_f8_bits(x) >> 24 & 0x80, a = rw_f8_magnitude(x);
    const uint32_t drop = e5m2 ? 21 : 20, bias = e5m2 ? 15 : 7, most = e5m2 ? 0x7b : 0x7e;
    if (a > RW_F8_INFINITY) return 0x7f;
    if (a >= rw_f8_bits(rw_f8_largest(e5m2))) return (uint8_t)(sign | most);
    if (a < (128 - bias) << 23) {
        const float shift = rw_f8_float((127 - bias + 1 + drop) << 23);
        return (uint8_t)(sign | (rw_f8_bits(rw_f8_float(a) + shift) - rw_f8_bits(shift)));
    }
    const uint32_t exact = a - ((127 - bias) << 23), odd = exact >> drop & 1;
    return (uint8_t)(sign | (exact + (1u << (drop - 1)) - 1 + odd) >> drop);
}

RW_HOST_DEVICE float rw_f8_decode(uint8_t code, bool e5m2)
{
    const uint32_t sign = (uint32_t)(code & 0x80) << 24, a = code & 0x7f;
    const uint32_t drop = e5m2 ? 21 : 20, bias = e5m2 ? 15 : 7, infinite = e5m2 ? 0x7c : 0x7f;
    if (a > infinite || (a == infinite && !e5m2)) return rw_f8_float(sign | 0x7fc00000u);
    if (a == infinite) return rw_f8_float(sign | RW_F8_INFINITY);
    if (a < 1u << (23 - drop)) return rw_f8_float(sign | rw_f8_bits((float)a * (e5m2 ? 0x1p-16f : 0x1p-9f)));
    return rw_f8_float(sign | ((a << drop) + ((127 - bias) << 23)));
}

/* 2^(code - 127). */
RW_HOST_DEVICE float rw_e8m0_decode(uint8_t code)
{
    if (code == 0xff) return rw_f8_float(0x7fc00000u);
    return rw_f8_float(code ? (uint32_t)code << 23 : 0x00400000u);
}

/* 2^(127 - code), the factor of elements. */
RW_HOST_DEVICE float rw_e8m0_inverse(uint8_t code)
{
    return code == 0xff ? rw_e8m0_decode(code) : rw_e8m0_decode((uint8_t)(254 - code));
}

/* The smallest power of two that is at least amax / largest; at least 2^-127, which is a subnormal float. */
RW_HOST_DEVICE uint8_t rw_e8m0_of_amax(uint32_t magnitude, bool e5m2)
{
    if (magnitude > RW_F8_INFINITY) return 0xff;
    if (magnitude == RW_F8_INFINITY) return 0xfe;
    const uint32_t bits = rw_f8_bits(rw_f8_float(magnitude) * (1.0f / rw_f8_largest(e5m2)));
    return bits <= 0x00400000u ? 0 : (uint8_t)((bits >> 23) + ((bits & 0x7fffffu) != 0));
}

/* The factor of elements, from their amax. */
RW_HOST_DEVICE float rw_f8_scale_of_amax(uint32_t magnitude, bool e5m2, bool power_of_two)
{
    if (magnitude == 0 || magnitude >= RW_F8_INFINITY) return 1;
    uint32_t bits = rw_f8_bits(rw_f8_largest(e5m2) / rw_f8_float(magnitude));
    if (bits >= RW_F8_INFINITY) bits = 0x7f7fffffu;
    return rw_f8_float(power_of_two ? bits & 0x7f800000u : bits);
}

#endif
