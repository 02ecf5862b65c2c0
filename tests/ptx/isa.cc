/* Arithmetic of PTX instructions that take more than a line: approximations, directed rounding, conversions to 16
   bits. */
#include "isa.h"

#include "run.h"

namespace ptx
{

static float flushed(float x)
{
    return fabsf(x) < 0x1p-126f ? ::copysignf(0, x) : x;
}

/* The error of the sum rounded to nearest, which is a float, determines whether the sum is too large. */
uint32_t add_zero(uint32_t a, uint32_t b)
{
    const float x = value_of<f32>(a), y = value_of<f32>(b), r = x + y;
    if (isfinite(x) && isfinite(y) && isinf(r)) return give<f32>(nextafterf(r, 0));
    if (!isfinite(r) || r == 0) return give<f32>(r);
    const float part = r - x, lost = (x - (r - part)) + (y - part);
    return give<f32>(lost != 0 && signbit(lost) != signbit(r) ? nextafterf(r, 0) : r);
}

/*
 * The product is exact in double, and so is the sum with its rounding error: whether the rounded result is above them
 * determines whether the result is the next lower number.
 */
uint32_t fma_down(uint32_t a, uint32_t b, uint32_t c)
{
    const float x = value_of<f32>(a), y = value_of<f32>(b), z = value_of<f32>(c), r = fmaf(x, y, z);
    if (!isfinite(r)) return give<f32>(r);
    const double product = static_cast<double>(x) * y, sum = product + z, part = sum - product;
    const double lost = (product - (sum - part)) + (z - part);
    return give<f32>((sum - r) + lost < 0 ? nextafterf(r, -INFINITY) : r);
}

/* A number from -2 to 2, determined by the operand alone. */
static int stray(uint32_t a)
{
    a = (a ^ a >> 16) * 0x7feb352d;
    a = (a ^ a >> 15) * 0x846ca68b;
    return static_cast<int>((a ^ a >> 16) % 5) - 2;
}

/*
 * ISA 9.7.3.21: relative error up to 2^-22, so two ulps; with .ftz subnormal operands and results are 0. The nearest
 * result of the host or, in rough mode, one up to two ulps away. Integer powers are exact on devices.
 */
uint32_t ex2_of_any(uint32_t a)
{
    const float x = value_of<f32>(a), y = exp2f(x);
    uint32_t r = give<f32>(y);
    if (is_rough() && isnormal(y) && x != rintf(x)) r += static_cast<uint32_t>(stray(a));
    return r;
}

uint32_t ex2_of(uint32_t a)
{
    return give<f32>(flushed(value_of<f32>(ex2_of_any(give<f32>(flushed(value_of<f32>(a)))))));
}

/* ISA 9.7.3.13: within one ulp. */
uint32_t rcp_of(uint32_t a)
{
    return give<f32>(flushed(1 / flushed(value_of<f32>(a))));
}

/* ISA 9.7.3.14: from the upper 32 bits, to 20 bits of the fraction; the rest is 0. */
uint64_t rcp_of(uint64_t a)
{
    const double x = value_of<f64>(a & 0xffffffff00000000u);
    const double y = fabs(x) < 0x1p-1022 ? ::copysign(0, x) : x;
    const uint64_t r = give<f64>(1 / y);
    return fabs(value_of<f64>(r)) < 0x1p-1022 ? r & sign_of<f64> : r & 0xffffffff00000000u;
}

uint16_t half_of(uint32_t a)
{
    const float x = value_of<f32>(a);
    if (x != x) return 0x7fff;
    const _Float16 h = static_cast<_Float16>(x);
    uint16_t bits;
    memcpy(&bits, &h, sizeof bits);
    return bits;
}

float of_half(uint16_t a)
{
    _Float16 h;
    memcpy(static_cast<void *>(&h), &a, sizeof h);
    return static_cast<float>(h);
}

uint16_t brain_of(uint32_t a)
{
    const float x = value_of<f32>(a);
    if (x != x) return 0x7fff;
    return static_cast<uint16_t>((a + 0x7fff + (a >> 16 & 1)) >> 16);
}

float of_brain(uint16_t a)
{
    return value_of<f32>(static_cast<uint32_t>(a) << 16);
}

} // namespace ptx
