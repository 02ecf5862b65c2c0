/* bfloat16, half and intrinsics compared with slow references. */
#include "test.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <math.h>

/* The value of a pattern of `mantissa` and `exponent` bits, in double. */
static double value_of(unsigned pattern, int mantissa, int exponent)
{
    const int bias = (1 << (exponent - 1)) - 1, e = (int)(pattern >> mantissa) & ((1 << exponent) - 1);
    const double fraction = pattern & ((1u << mantissa) - 1), sign = pattern & 0x8000 ? -1 : 1;
    if (e == (1 << exponent) - 1) return fraction != 0 ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(1 + ldexp(fraction, -mantissa), e - bias) : ldexp(fraction, 1 - bias - mantissa));
}

struct bfloat16 {
    enum { mantissa = 7, exponent = 8 };
    static unsigned of(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
    static unsigned of(double x) { return __bfloat16_as_ushort(__double2bfloat16(x)); }
    static float widen(unsigned p) { return __bfloat162float(__ushort_as_bfloat16((unsigned short)p)); }
};

struct half_float {
    enum { mantissa = 10, exponent = 5 };
    static unsigned of(float x) { return __half_as_ushort(__float2half_rn(x)); }
    static unsigned of(double x) { return __half_as_ushort(__double2half(x)); }
    static float widen(unsigned p) { return __half2float(__ushort_as_half((unsigned short)p)); }
};

/* All 65536 patterns must widen to their value, and their value must convert back to the pattern. */
template <typename F> static void check_patterns()
{
    for (unsigned p = 0; p < 65536; p++) {
        const double v = value_of(p, F::mantissa, F::exponent);
        const float f = F::widen(p);
        if (isnan(v)) {
            cr_assert(isnan(f));
            cr_assert_eq(F::of(f), 0x7fff);
            cr_assert_eq(F::of((double)f), 0x7fff);
            continue;
        }
        cr_assert((double)f == v && signbit(f) == (p >> 15 != 0), "%04x", p);
        cr_assert_eq(F::of(f), p);
        cr_assert_eq(F::of(v), p);
    }
}

/* Values between neighbors: below the middle, the middle (to the even one), above it. Beyond the largest comes
   infinity. */
template <typename F, typename W> static void check_rounding()
{
    const unsigned infinity = ((1u << F::exponent) - 1) << F::mantissa;
    for (unsigned p = 0; p < infinity; p++) {
        const double low = value_of(p, F::mantissa, F::exponent);
        const double high = p + 1 < infinity ? value_of(p + 1, F::mantissa, F::exponent)
                                             : 2 * low - value_of(p - 1, F::mantissa, F::exponent);
        const W middle = (W)(low + (high - low) / 2);
        const unsigned even = p & 1 ? p + 1 : p;
        for (unsigned sign : { 0u, 0x8000u }) {
            const W s = sign ? -1 : 1;
            cr_assert_eq(F::of(s * middle), even | sign, "middle above %04x", p);
            cr_assert_eq(F::of(s * nextafter(middle, (W)0)), p | sign, "below the middle above %04x", p);
            cr_assert_eq(F::of(s * nextafter(middle, (W)INFINITY)), (p + 1) | sign, "above the middle above %04x", p);
        }
    }
}

Test(cudasim_numbers, every_bfloat16) { check_patterns<bfloat16>(); }
Test(cudasim_numbers, every_half) { check_patterns<half_float>(); }
Test(cudasim_numbers, bfloat16_rounds_to_nearest_even_from_float) { check_rounding<bfloat16, float>(); }
Test(cudasim_numbers, bfloat16_rounds_to_nearest_even_from_double) { check_rounding<bfloat16, double>(); }
Test(cudasim_numbers, half_rounds_to_nearest_even_from_float) { check_rounding<half_float, float>(); }
Test(cudasim_numbers, half_rounds_to_nearest_even_from_double) { check_rounding<half_float, double>(); }

Test(cudasim_numbers, arithmetic_rounds_once)
{
    const __nv_bfloat16 a(1.0f), tiny(0x1p-9f), c(0x1.02p0f);
    cr_assert_eq(__bfloat16_as_ushort(a + tiny), 0x3f80);
    cr_assert_eq(__bfloat16_as_ushort(__hfma(c, c, __nv_bfloat16(-1.0f))),
                 __bfloat16_as_ushort(__nv_bfloat16(0x1.02p0 * 0x1.02p0 - 1)));
    const __nv_bfloat162 pair = __floats2bfloat162_rn(1.5f, -2.0f);
    cr_assert_eq(__bfloat1622float2(pair).x, 1.5f);
    cr_assert_eq(__bfloat1622float2(pair).y, -2.0f);
    uint32_t bits;
    memcpy(&bits, &pair, 4);
    cr_assert_eq(bits, 0xc0003fc0u);
    const __half2 h = __floats2half2_rn(1.0f, 65520.0f);
    cr_assert_eq(__half_as_ushort(h.x), 0x3c00);
    cr_assert_eq(__half_as_ushort(h.y), 0x7c00);
}

Test(cudasim_numbers, vectors_are_aligned_as_on_the_device)
{
    cr_assert_eq(alignof(float2), 8);
    cr_assert_eq(alignof(float3), 4);
    cr_assert_eq(alignof(float4), 16);
    cr_assert_eq(alignof(int4), 16);
    cr_assert_eq(alignof(uint2), 8);
    cr_assert_eq(alignof(double2), 16);
    cr_assert_eq(alignof(longlong2), 16);
    cr_assert_eq(alignof(uchar4), 4);
    cr_assert_eq(alignof(__nv_bfloat162), 4);
    cr_assert_eq(sizeof(float3), 12);
    cr_assert_eq(make_float4(1, 2, 3, 4).w, 4);
}

Test(cudasim_numbers, integer_intrinsics)
{
    cr_assert_eq(__popc(0xf0f00001u), 9);
    cr_assert_eq(__clz(0), 32);
    cr_assert_eq(__clz(1), 31);
    cr_assert_eq(__ffs(0), 0);
    cr_assert_eq(__ffs(8), 4);
    cr_assert_eq(__brev(0x00000003u), 0xc0000000u);
    cr_assert_eq(__umulhi(0xd2511f53u, 0xffffffffu), 0xd2511f52u);
    cr_assert_eq(__mulhi(-2, 1 << 30), -1);
    cr_assert_eq(__umul64hi(~0ull, ~0ull), ~0ull - 1);
    cr_assert_eq(__byte_perm(0x33221100u, 0x77665544u, 0x7520u), 0x77552200u);
    cr_assert_eq(__byte_perm(0x80000000u, 0, 0xbbbbu), 0xffffffffu);
    cr_assert_eq(__funnelshift_l(0x80000000u, 0x1u, 1), 3u);
    cr_assert_eq(__funnelshift_r(0x80000000u, 0x1u, 31), 3u);
    cr_assert_eq(max(-1, 2u), 0xffffffffu);
    cr_assert_eq(min(3.0f, NAN), 3.0f);
}

Test(cudasim_numbers, conversions_saturate)
{
    cr_assert_eq(__float2int_rn(2.5f), 2);
    cr_assert_eq(__float2int_rz(-2.9f), -2);
    cr_assert_eq(__float2int_rd(-2.1f), -3);
    cr_assert_eq(__float2int_ru(2.1f), 3);
    cr_assert_eq(__float2int_rn(3e9f), INT32_MAX);
    cr_assert_eq(__float2int_rn(NAN), 0);
    cr_assert_eq(__float2uint_rn(-1.0f), 0);
    cr_assert_eq(__float2uint_rz(4294967040.0f), 4294967040u);
    cr_assert_eq(__double2ll_rn(-1e30), INT64_MIN);
    cr_assert_eq(__float_as_uint(-0.0f), 0x80000000u);
    cr_assert_eq(__uint_as_float(0x3f800000u), 1.0f);
}

Test(cudasim_numbers, atomics_of_integers)
{
    int i = INT32_MAX;
    unsigned u = 3;
    cr_assert_eq(atomicAdd(&i, 1), INT32_MAX);
    cr_assert_eq(i, INT32_MIN);
    cr_assert_eq(atomicInc(&u, 3), 3);
    cr_assert_eq(u, 0);
    cr_assert_eq(atomicDec(&u, 5), 0);
    cr_assert_eq(u, 5);
    cr_assert_eq(atomicCAS(&u, 5, 9), 5);
    cr_assert_eq(atomicCAS(&u, 5, 1), 9);
    cr_assert_eq(u, 9);
    cr_assert_eq(atomicMax(&i, -3), INT32_MIN);
    cr_assert_eq(i, -3);
}
