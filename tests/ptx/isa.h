/*
 * Semantics of PTX instructions, from the PTX ISA 9.0, sections 9.7.1 to 9.7.9: translate.py turns each instruction
 * into a call of the function with its name, dots as underscores and types as template arguments.
 *
 * A register is a number of its width without a type (bool for a predicate). Operands are converted to the bits of the
 * instruction's type: excess bits are cut off. A result of an integer type is a number, which is sign-extended to a
 * wider register; one of a floating-point type is bits.
 */
#ifndef RW_TESTS_PTX_ISA_H
#define RW_TESTS_PTX_ISA_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <limits>

namespace ptx {

#define PTX_INTEGER(name, type, unsigned_type, wide_type) \
    struct name {                                         \
        using value = type;                               \
        using bits = unsigned_type;                       \
        using result = type;                              \
        using wide = wide_type;                           \
        static constexpr bool is_float = false;           \
    };
PTX_INTEGER(u8, uint8_t, uint8_t, uint16_t)
PTX_INTEGER(s8, int8_t, uint8_t, int16_t)
PTX_INTEGER(b8, uint8_t, uint8_t, uint16_t)
PTX_INTEGER(u16, uint16_t, uint16_t, uint32_t)
PTX_INTEGER(s16, int16_t, uint16_t, int32_t)
PTX_INTEGER(b16, uint16_t, uint16_t, uint32_t)
PTX_INTEGER(u32, uint32_t, uint32_t, uint64_t)
PTX_INTEGER(s32, int32_t, uint32_t, int64_t)
PTX_INTEGER(b32, uint32_t, uint32_t, uint64_t)
PTX_INTEGER(u64, uint64_t, uint64_t, unsigned __int128)
PTX_INTEGER(s64, int64_t, uint64_t, __int128)
PTX_INTEGER(b64, uint64_t, uint64_t, unsigned __int128)
PTX_INTEGER(pred, bool, bool, bool)
#undef PTX_INTEGER
struct f32 {
    using value = float;
    using bits = uint32_t;
    using result = uint32_t;
    static constexpr bool is_float = true;
};
struct f64 {
    using value = double;
    using bits = uint64_t;
    using result = uint64_t;
    static constexpr bool is_float = true;
};

#define PTX_INLINE inline __attribute__((always_inline))
#define PTX_IN typename T::bits

template <typename T> PTX_INLINE typename T::value value_of(typename T::bits x)
{
    typename T::value v;
    memcpy(&v, &x, sizeof v);
    return v;
}

template <typename T> PTX_INLINE typename T::result give(typename T::value v)
{
    typename T::result r;
    memcpy(&r, &v, sizeof r);
    return r;
}

template <typename T> constexpr unsigned width_of = sizeof(typename T::bits) * 8;

/* ---- integers and floating-point numbers ---- */

#define PTX_ARITHMETIC(name, operation)                                                                       \
    template <typename T> PTX_INLINE typename T::result name(PTX_IN a, PTX_IN b)                              \
    {                                                                                                         \
        if constexpr (T::is_float) return give<T>(value_of<T>(a) operation value_of<T>(b));                   \
        else return static_cast<typename T::result>(static_cast<typename T::bits>(a operation b));            \
    }
PTX_ARITHMETIC(add, +)
PTX_ARITHMETIC(add_rn, +)
PTX_ARITHMETIC(sub, -)
PTX_ARITHMETIC(sub_rn, -)
PTX_ARITHMETIC(mul_rn, *)
#undef PTX_ARITHMETIC

template <typename T> PTX_INLINE typename T::result mul_lo(PTX_IN a, PTX_IN b)
{
    return static_cast<typename T::result>(static_cast<typename T::bits>(static_cast<uint64_t>(a) * b));
}
template <typename T> PTX_INLINE typename T::result mul_hi(PTX_IN a, PTX_IN b)
{
    using W = typename T::wide;
    return static_cast<typename T::result>((static_cast<W>(value_of<T>(a)) * static_cast<W>(value_of<T>(b))) >>
                                           width_of<T>);
}
template <typename T> PTX_INLINE typename T::wide mul_wide(PTX_IN a, PTX_IN b)
{
    using W = typename T::wide;
    return static_cast<W>(static_cast<W>(value_of<T>(a)) * static_cast<W>(value_of<T>(b)));
}
template <typename T> PTX_INLINE typename T::result mad_lo(PTX_IN a, PTX_IN b, PTX_IN c)
{
    return add<T>(mul_lo<T>(a, b), c);
}

template <typename T> PTX_INLINE typename T::wide mad_wide(PTX_IN a, PTX_IN b, typename T::wide c)
{
    return static_cast<typename T::wide>(mul_wide<T>(a, b) + c);
}

/* With a carry: cc is the condition code's carry, which a subtraction uses as a borrow. */
template <typename T> PTX_INLINE typename T::result add_carry(PTX_IN a, PTX_IN b, bool in, bool *out)
{
    const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b + in;
    if (out) *out = sum >> width_of<T> & 1;
    return static_cast<typename T::result>(sum);
}
template <typename T> PTX_INLINE typename T::result sub_borrow(PTX_IN a, PTX_IN b, bool in, bool *out)
{
    const unsigned __int128 difference = static_cast<unsigned __int128>(a) - b - in;
    if (out) *out = difference >> width_of<T> & 1;
    return static_cast<typename T::result>(difference);
}

PTX_INLINE uint32_t fma_rn_(uint32_t a, uint32_t b, uint32_t c)
{
    return give<f32>(fmaf(value_of<f32>(a), value_of<f32>(b), value_of<f32>(c)));
}
PTX_INLINE uint64_t fma_rn_(uint64_t a, uint64_t b, uint64_t c)
{
    return give<f64>(fma(value_of<f64>(a), value_of<f64>(b), value_of<f64>(c)));
}
template <typename T> PTX_INLINE typename T::result fma_rn(PTX_IN a, PTX_IN b, PTX_IN c) { return fma_rn_(a, b, c); }
uint32_t add_zero(uint32_t a, uint32_t b); /* float32 addition, rounded toward zero */
template <typename T> PTX_INLINE typename T::result add_rz(PTX_IN a, PTX_IN b) { return add_zero(a, b); }
uint32_t fma_down(uint32_t a, uint32_t b, uint32_t c); /* float32 fused multiply-add, rounded toward minus infinity */
template <typename T> PTX_INLINE typename T::result fma_rm(PTX_IN a, PTX_IN b, PTX_IN c) { return fma_down(a, b, c); }

template <typename T> PTX_INLINE typename T::result div_rn(PTX_IN a, PTX_IN b)
{
    return give<T>(value_of<T>(a) / value_of<T>(b));
}
template <typename T> PTX_INLINE typename T::result rcp_rn(PTX_IN a) { return give<T>(1 / value_of<T>(a)); }
template <typename T> PTX_INLINE typename T::result sqrt_rn(PTX_IN a)
{
    if constexpr (sizeof(PTX_IN) == 4) return give<T>(sqrtf(value_of<T>(a)));
    else return give<T>(sqrt(value_of<T>(a)));
}
/* The ISA leaves division by zero undefined; the least number by -1 wraps. */
template <typename T> PTX_INLINE typename T::result div(PTX_IN a, PTX_IN b)
{
    const typename T::value x = value_of<T>(a), y = value_of<T>(b);
    if (y == 0) return static_cast<typename T::result>(-1);
    if (y == static_cast<typename T::value>(-1) && x < 0) return static_cast<typename T::result>(0 - a);
    return static_cast<typename T::result>(x / y);
}
template <typename T> PTX_INLINE typename T::result rem(PTX_IN a, PTX_IN b)
{
    const typename T::value x = value_of<T>(a), y = value_of<T>(b);
    if (y == 0) return static_cast<typename T::result>(a);
    if (y == static_cast<typename T::value>(-1) && x < 0) return 0;
    return static_cast<typename T::result>(x % y);
}

template <typename T> constexpr typename T::bits sign_of = static_cast<typename T::bits>(1) << (width_of<T> - 1);

template <typename T> PTX_INLINE typename T::result neg(PTX_IN a)
{
    if constexpr (T::is_float) return a ^ sign_of<T>;
    else return static_cast<typename T::result>(0 - a);
}
template <typename T> PTX_INLINE typename T::result abs(PTX_IN a)
{
    if constexpr (T::is_float) return a & ~sign_of<T>;
    else return value_of<T>(a) < 0 ? static_cast<typename T::result>(0 - a) : static_cast<typename T::result>(a);
}
/* The sign of a, the rest of b. */
template <typename T> PTX_INLINE typename T::result copysign(PTX_IN a, PTX_IN b)
{
    return (a & sign_of<T>) | (b & ~sign_of<T>);
}

/* For a NaN and a number the number, for two NaNs the canonical one; +0 is above -0. */
template <typename T> PTX_INLINE typename T::result extreme(PTX_IN a, PTX_IN b, bool larger)
{
    const typename T::value x = value_of<T>(a), y = value_of<T>(b);
    if constexpr (T::is_float) {
        if (x != x && y != y) return static_cast<typename T::bits>(sizeof a == 4 ? 0x7fffffffull : ~sign_of<T>);
        if (x != x) return b;
        if (y != y) return a;
        if (x == y) return (a & sign_of<T> ? larger : !larger) ? b : a;
    }
    return static_cast<typename T::result>((x > y) == larger ? a : b);
}
template <typename T> PTX_INLINE typename T::result max(PTX_IN a, PTX_IN b) { return extreme<T>(a, b, true); }
template <typename T> PTX_INLINE typename T::result min(PTX_IN a, PTX_IN b) { return extreme<T>(a, b, false); }

/* ---- approximations: within the ISA's bounds, close to the exact result ---- */

uint32_t ex2_of(uint32_t a), ex2_of_any(uint32_t a); /* of_any: subnormal operands and results are not flushed */
uint32_t rcp_of(uint32_t a);
uint64_t rcp_of(uint64_t a);
template <typename T> PTX_INLINE typename T::result ex2_approx_ftz(PTX_IN a) { return ex2_of(a); }
template <typename T> PTX_INLINE typename T::result ex2_approx(PTX_IN a) { return ex2_of_any(a); }
template <typename T> PTX_INLINE typename T::result rcp_approx_ftz(PTX_IN a) { return rcp_of(a); }

/* ---- bits ---- */

template <typename T> PTX_INLINE PTX_IN and_(PTX_IN a, PTX_IN b) { return a & b; }
template <typename T> PTX_INLINE PTX_IN or_(PTX_IN a, PTX_IN b) { return a | b; }
template <typename T> PTX_INLINE PTX_IN xor_(PTX_IN a, PTX_IN b) { return a ^ b; }
template <typename T> PTX_INLINE PTX_IN not_(PTX_IN a)
{
    if constexpr (sizeof a == 1) return !a;
    else return static_cast<PTX_IN>(~a);
}
template <typename T> PTX_INLINE PTX_IN shl(PTX_IN a, uint32_t n)
{
    return n >= width_of<T> ? 0 : static_cast<PTX_IN>(a << n);
}
template <typename T> PTX_INLINE typename T::result shr(PTX_IN a, uint32_t n)
{
    const typename T::value x = value_of<T>(a);
    if (n >= width_of<T>) return x < 0 ? -1 : 0;
    return static_cast<typename T::result>(x >> n);
}
/* Inserts the low `length` bits of a into b from bit `at` on. */
template <typename T> PTX_INLINE PTX_IN bfi(PTX_IN a, PTX_IN b, uint32_t at, uint32_t length)
{
    at &= 0xff, length &= 0xff;
    for (uint32_t i = 0; i < length && at + i < width_of<T>; i++) {
        const PTX_IN one = static_cast<PTX_IN>(1) << (at + i);
        b = a >> i & 1 ? b | one : b & ~one;
    }
    return b;
}
/* Four of the eight bytes of a and b, by the low four digits of c; a digit of 8 or more: the byte's sign, repeated. */
template <typename T> PTX_INLINE uint32_t prmt(uint32_t a, uint32_t b, uint32_t c)
{
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t r = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t digit = c >> 4 * i & 15, byte = static_cast<uint32_t>(bytes >> 8 * (digit & 7)) & 0xff;
        r |= (digit < 8 ? byte : byte & 0x80 ? 0xff : 0) << 8 * i;
    }
    return r;
}
template <typename T> PTX_INLINE uint32_t popc(PTX_IN a)
{
    return static_cast<uint32_t>(__builtin_popcountll(a));
}
template <typename T> PTX_INLINE uint32_t clz(PTX_IN a)
{
    return a ? static_cast<uint32_t>(__builtin_clzll(a)) - (64 - width_of<T>) : width_of<T>;
}
/* Bit 4 a + 2 b + c of the table, for each bit. */
template <typename T> PTX_INLINE uint32_t lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t r = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (table >> i & 1) r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

/* ---- comparisons ---- */

template <typename T> PTX_INLINE PTX_IN selp(PTX_IN a, PTX_IN b, bool p) { return p ? a : b; }

/* Ordered: false with a NaN. The others, which end in u, are true. */
#define PTX_COMPARISON(name, operation)                                                                            \
    template <typename T> PTX_INLINE bool setp_##name(PTX_IN a, PTX_IN b)                                          \
    {                                                                                                              \
        return value_of<T>(a) operation value_of<T>(b);                                                            \
    }                                                                                                              \
    template <typename T> PTX_INLINE bool setp_##name##u(PTX_IN a, PTX_IN b)                                       \
    {                                                                                                              \
        const typename T::value x = value_of<T>(a), y = value_of<T>(b);                                            \
        return x operation y || x != x || y != y;                                                                  \
    }
PTX_COMPARISON(eq, ==)
PTX_COMPARISON(lt, <)
PTX_COMPARISON(le, <=)
PTX_COMPARISON(gt, >)
PTX_COMPARISON(ge, >=)
#undef PTX_COMPARISON
template <typename T> PTX_INLINE bool setp_ne(PTX_IN a, PTX_IN b)
{
    const typename T::value x = value_of<T>(a), y = value_of<T>(b);
    return x < y || x > y;
}
template <typename T> PTX_INLINE bool setp_neu(PTX_IN a, PTX_IN b) { return !(value_of<T>(a) == value_of<T>(b)); }
template <typename T> PTX_INLINE bool setp_nan(PTX_IN a, PTX_IN b)
{
    return value_of<T>(a) != value_of<T>(a) || value_of<T>(b) != value_of<T>(b);
}
template <typename T> PTX_INLINE bool setp_num(PTX_IN a, PTX_IN b) { return !setp_nan<T>(a, b); }

/* ---- conversions: to D from S ---- */

template <typename D, typename S> PTX_INLINE typename D::result cvt(typename S::bits a)
{
    return give<D>(static_cast<typename D::value>(value_of<S>(a)));
}
template <typename D, typename S> PTX_INLINE typename D::result cvt_rn(typename S::bits a) { return cvt<D, S>(a); }
/* Clamps to 0 ... 1; a NaN gives 0. */
template <typename D, typename S> PTX_INLINE typename D::result cvt_sat(typename S::bits a)
{
    const typename S::value x = value_of<S>(a);
    return give<D>(!(x > 0) ? 0 : x > 1 ? 1 : x);
}
/* Out-of-range values are clamped; a NaN gives 0, or with 64 bits only the highest bit set. */
template <typename D> PTX_INLINE typename D::result to_integer(double x, bool from_f64)
{
    using V = typename D::value;
    const bool wide = from_f64 || sizeof(V) == 8;
    if (x != x) return static_cast<typename D::result>(wide ? sign_of<D> : 0);
    const double end = ldexp(1, width_of<D> - std::numeric_limits<V>::is_signed);
    if (x >= end) return std::numeric_limits<V>::max();
    if (std::numeric_limits<V>::is_signed ? x < -end : x <= -1) return std::numeric_limits<V>::min();
    return static_cast<typename D::result>(static_cast<V>(x));
}
#define PTX_ROUNDING(name, function)                                                                               \
    template <typename D, typename S> PTX_INLINE typename D::result name(typename S::bits a)                       \
    {                                                                                                              \
        const double x = function(static_cast<double>(value_of<S>(a)));                                            \
        if constexpr (D::is_float) return give<D>(static_cast<typename D::value>(x));                              \
        else return to_integer<D>(x, sizeof a == 8);                                                               \
    }
PTX_ROUNDING(cvt_rzi, trunc)
PTX_ROUNDING(cvt_rni, nearbyint)
PTX_ROUNDING(cvt_rmi, floor)
PTX_ROUNDING(cvt_rpi, ceil)
#undef PTX_ROUNDING

uint16_t half_of(uint32_t a), brain_of(uint32_t a);
float of_half(uint16_t a), of_brain(uint16_t a);
/* Two at a time: a in the upper half. */
PTX_INLINE uint32_t cvt_rn_f16x2(uint32_t a, uint32_t b)
{
    return static_cast<uint32_t>(half_of(a)) << 16 | half_of(b);
}
PTX_INLINE uint32_t cvt_rn_bf16x2(uint32_t a, uint32_t b)
{
    return static_cast<uint32_t>(brain_of(a)) << 16 | brain_of(b);
}
PTX_INLINE uint16_t cvt_rn_f16_f32(uint32_t a) { return half_of(a); }
PTX_INLINE uint16_t cvt_rn_bf16_f32(uint32_t a) { return brain_of(a); }
PTX_INLINE uint32_t cvt_f32_f16(uint16_t a) { return give<f32>(of_half(a)); }
PTX_INLINE uint32_t cvt_f32_bf16(uint16_t a) { return give<f32>(of_brain(a)); }

} // namespace ptx

#endif
