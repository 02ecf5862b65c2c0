/*
 * bfloat16 and half: conversions with one rounding, and arithmetic through wider types without a second rounding.
 *
 * A sum, product, quotient or root of two numbers of p bits rounded to 2p + 2 bits or more and then to p bits equals
 * the one rounded directly (p is 8 or 11, float has 24). A fused multiply-add uses double: its product is exact there,
 * and its sum with a number of p bits is never so close to a tie that 53 bits are not enough.
 */
#ifndef CUDASIM_HALF_H
#define CUDASIM_HALF_H

#include "cudasim_device.h"
#include "cudasim_math.h"

namespace cudasim {

/* Rounds the bits of a float or double, to nearest even: m has `drop` more bits than the result. */
static inline uint64_t round_off(uint64_t m, int drop)
{
    if (drop > 63) return 0;
    const uint64_t half = uint64_t(1) << (drop - 1), rest = m & ((half << 1) - 1);
    m >>= drop;
    return m + (rest > half || (rest == half && (m & 1)));
}

/*
 * A double as a number of `mantissa` stored bits and `exponent` exponent bits. NaN gives all ones without a sign, as in
 * the device's conversions.
 */
static inline uint16_t narrow_bits(double x, int mantissa, int exponent)
{
    const uint64_t bits = cudasim_cast<uint64_t>(x);
    const uint16_t sign = static_cast<uint16_t>(bits >> 63 << 15);
    const int bias = (1 << (exponent - 1)) - 1, e = static_cast<int>(bits >> 52 & 2047) - 1023 + bias;
    const uint64_t fraction = bits & ((uint64_t(1) << 52) - 1), infinity = uint64_t((1 << exponent) - 1) << mantissa;
    if (x != x) return 0x7fff;
    if (e >= (1 << exponent) - 1) return static_cast<uint16_t>(sign | infinity);
    if (e <= 0) { /* subnormal or zero: subnormal doubles are far below all of these */
        const int drop = 52 - mantissa + 1 - e;
        return static_cast<uint16_t>(sign | round_off(fraction | uint64_t(1) << 52, drop));
    }
    return static_cast<uint16_t>(sign | round_off(static_cast<uint64_t>(e) << 52 | fraction, 52 - mantissa));
}

static inline float widen_bits(uint16_t x, int mantissa, int exponent)
{
    const int bias = (1 << (exponent - 1)) - 1, e = x >> mantissa & ((1 << exponent) - 1);
    const unsigned fraction = x & ((1u << mantissa) - 1);
    float y;
    if (e == (1 << exponent) - 1) y = fraction ? __uint_as_float(0x7fffffffu) : __uint_as_float(0x7f800000u);
    else if (e) y = __uint_as_float(static_cast<unsigned>(e - bias + 127) << 23 | fraction << (23 - mantissa));
    else y = ldexpf(static_cast<float>(fraction), 1 - bias - mantissa);
    return x & 0x8000 ? -y : y;
}

/* Fast, because it is used most: bfloat16 is a float's upper half. */
static inline uint16_t bfloat16_bits(float x)
{
    const uint32_t u = cudasim_cast<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

} // namespace cudasim

#define CUDASIM_HALF_CONVERT(type, from, expression) \
    type(from x) : __x(expression) {}

/* The class of one type: `narrow` converts a double to bits, `of_float` a float to bits, `widen` bits to a float. */
#define CUDASIM_HALF_CLASS(type, raw, of_float, narrow, widen)                                        \
    struct raw { unsigned short x; };                                                                 \
    struct CUDASIM_ALIGNED(2) type {                                                                  \
        type() = default;                                                                             \
        constexpr type(raw r) : __x(r.x) {}                                                           \
        CUDASIM_HALF_CONVERT(type, float, of_float(x))                                                \
        CUDASIM_HALF_CONVERT(type, double, narrow(x))                                                 \
        CUDASIM_HALF_CONVERT(type, int, narrow(static_cast<double>(x)))                               \
        CUDASIM_HALF_CONVERT(type, unsigned, narrow(static_cast<double>(x)))                          \
        CUDASIM_HALF_CONVERT(type, short, of_float(static_cast<float>(x)))                            \
        CUDASIM_HALF_CONVERT(type, unsigned short, of_float(static_cast<float>(x)))                   \
        operator raw() const { return raw{ __x }; }                                                   \
        operator float() const { return widen(__x); }                                                 \
        type &operator+=(const type &b) { return *this = type(float(*this) + float(b)); }             \
        type &operator-=(const type &b) { return *this = type(float(*this) - float(b)); }             \
        type &operator*=(const type &b) { return *this = type(float(*this) * float(b)); }             \
        type &operator/=(const type &b) { return *this = type(float(*this) / float(b)); }             \
    protected:                                                                                        \
        unsigned short __x;                                                                           \
    };                                                                                                \
    static inline type operator+(const type &a, const type &b) { return type(float(a) + float(b)); }  \
    static inline type operator-(const type &a, const type &b) { return type(float(a) - float(b)); }  \
    static inline type operator*(const type &a, const type &b) { return type(float(a) * float(b)); }  \
    static inline type operator/(const type &a, const type &b) { return type(float(a) / float(b)); }  \
    static inline type operator+(const type &a) { return a; }                                         \
    static inline type operator-(const type &a) { return raw{ static_cast<unsigned short>(raw(a).x ^ 0x8000) }; } \
    static inline bool operator==(const type &a, const type &b) { return float(a) == float(b); }      \
    static inline bool operator!=(const type &a, const type &b) { return float(a) != float(b); }      \
    static inline bool operator<(const type &a, const type &b) { return float(a) < float(b); }        \
    static inline bool operator<=(const type &a, const type &b) { return float(a) <= float(b); }      \
    static inline bool operator>(const type &a, const type &b) { return float(a) > float(b); }        \
    static inline bool operator>=(const type &a, const type &b) { return float(a) >= float(b); }

#define CUDASIM_HALF_PAIR(type, type2)                                                                \
    struct CUDASIM_ALIGNED(4) type2 { type x, y; };                                                   \
    static inline float __low2float(type2 a) { return float(a.x); }                                   \
    static inline float __high2float(type2 a) { return float(a.y); }                                  \
    static inline type2 __hadd2(type2 a, type2 b) { return { a.x + b.x, a.y + b.y }; }                \
    static inline type2 __hsub2(type2 a, type2 b) { return { a.x - b.x, a.y - b.y }; }                \
    static inline type2 __hmul2(type2 a, type2 b) { return { a.x * b.x, a.y * b.y }; }                \
    static inline type2 __hneg2(type2 a) { return { -a.x, -a.y }; }

/* Arithmetic by name. */
#define CUDASIM_HALF_FUNCTIONS(type, raw)                                                                              \
    static inline type __hadd(type a, type b)                                                                          \
    {                                                                                                                  \
        return a + b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hsub(type a, type b)                                                                          \
    {                                                                                                                  \
        return a - b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hmul(type a, type b)                                                                          \
    {                                                                                                                  \
        return a * b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hdiv(type a, type b)                                                                          \
    {                                                                                                                  \
        return a / b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hadd_rn(type a, type b)                                                                       \
    {                                                                                                                  \
        return a + b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hsub_rn(type a, type b)                                                                       \
    {                                                                                                                  \
        return a - b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hmul_rn(type a, type b)                                                                       \
    {                                                                                                                  \
        return a * b;                                                                                                  \
    }                                                                                                                  \
    static inline type __hfma(type a, type b, type c)                                                                  \
    {                                                                                                                  \
        return type(fma(double(float(a)), double(float(b)), double(float(c))));                                        \
    }                                                                                                                  \
    static inline type __hneg(type a)                                                                                  \
    {                                                                                                                  \
        return -a;                                                                                                     \
    }                                                                                                                  \
    static inline type __habs(type a)                                                                                  \
    {                                                                                                                  \
        return raw{ static_cast<unsigned short>(raw(a).x & 0x7fff) };                                                  \
    }                                                                                                                  \
    static inline type __hmax(type a, type b)                                                                          \
    {                                                                                                                  \
        return type(fmaxf(a, b));                                                                                      \
    }                                                                                                                  \
    static inline type __hmin(type a, type b)                                                                          \
    {                                                                                                                  \
        return type(fminf(a, b));                                                                                      \
    }                                                                                                                  \
    static inline bool __hisnan(type a)                                                                                \
    {                                                                                                                  \
        return float(a) != float(a);                                                                                   \
    }                                                                                                                  \
    static inline bool __heq(type a, type b)                                                                           \
    {                                                                                                                  \
        return a == b;                                                                                                 \
    }                                                                                                                  \
    static inline bool __hne(type a, type b)                                                                           \
    {                                                                                                                  \
        return float(a) < float(b) || float(a) > float(b);                                                             \
    }                                                                                                                  \
    static inline bool __hlt(type a, type b)                                                                           \
    {                                                                                                                  \
        return a < b;                                                                                                  \
    }                                                                                                                  \
    static inline bool __hle(type a, type b)                                                                           \
    {                                                                                                                  \
        return a <= b;                                                                                                 \
    }                                                                                                                  \
    static inline bool __hgt(type a, type b)                                                                           \
    {                                                                                                                  \
        return a > b;                                                                                                  \
    }                                                                                                                  \
    static inline bool __hge(type a, type b)                                                                           \
    {                                                                                                                  \
        return a >= b;                                                                                                 \
    }                                                                                                                  \
    static inline type hsqrt(type a)                                                                                   \
    {                                                                                                                  \
        return type(sqrtf(a));                                                                                         \
    }                                                                                                                  \
    static inline type hexp(type a)                                                                                    \
    {                                                                                                                  \
        return type(expf(a));                                                                                          \
    }                                                                                                                  \
    static inline type hlog(type a)                                                                                    \
    {                                                                                                                  \
        return type(logf(a));                                                                                          \
    }

#endif
