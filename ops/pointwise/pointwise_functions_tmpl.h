/*
 * The arithmetic of the element-wise ops, written once. Included for each value type V: a vector of floats, a vector of
 * doubles, and on CUDA float and double. F(name) builds the name of a function for that type. The includer provides
 * F(exp), F(tanh), F(select) and so on, F(exp_minus)(x), which is e^-|x|, and F(share)(n, d), which is n / d for 0 <= n
 * <= 1 <= d <= 2. This file defines the ops as F(op_NAME)(inputs, outputs, attribute).
 *
 * No include guard: the includer sets V, VS (its element), VM (its mask) and F.
 */

#define ARITH1(name, expr)                                           \
    VEC_INLINE void F(op_##name)(const V *in, V *out, double attr)   \
    {                                                                \
        const V x = in[0];                                           \
        const VS a = (VS)attr;                                       \
        (void)a;                                                     \
        out[0] = (expr);                                             \
    }

#define ARITH2(name, expr)                                           \
    VEC_INLINE void F(op_##name)(const V *in, V *out, double attr)   \
    {                                                                \
        const V x = in[0], z = in[1];                                \
        (void)attr;                                                  \
        out[0] = (expr);                                             \
    }

/* For two inputs and a constant. */
#define ARITH2_WITH(name, expr)                                      \
    VEC_INLINE void F(op_##name)(const V *in, V *out, double attr)   \
    {                                                                \
        const V x = in[0], z = in[1];                                \
        const VS a = (VS)attr;                                       \
        out[0] = (expr);                                             \
    }

#define ARITH3(name, expr)                                           \
    VEC_INLINE void F(op_##name)(const V *in, V *out, double attr)   \
    {                                                                \
        const V x = in[0], z = in[1], w = in[2];                     \
        (void)attr;                                                  \
        out[0] = (expr);                                             \
    }

#define ZERO F(all)(0)
#define ONE F(all)(1)

VEC_INLINE V F(sigmoid)(V x)
{
    const V e = F(exp_minus)(x);
    return F(share)(F(select)((VM)(x < 0), e, ONE), ONE + e);
}

/* sigmoid(x) and 1 - sigmoid(x), the latter without cancellation where it is small, and their product, which is the
   derivative. */
VEC_INLINE V F(sigmoid_both)(V x, V *ret_rest, V *ret_slope)
{
    const V e = F(exp_minus)(x), of_one = F(share)(ONE, ONE + e), of_e = e * of_one;
    *ret_rest = F(select)((VM)(x < 0), of_one, of_e);
    *ret_slope = of_one * of_e;
    return F(select)((VM)(x < 0), of_e, of_one);
}

/* log(1 + e^x), as a sum of two terms of the same sign. */
VEC_INLINE V F(softplus)(V x)
{
    const V rest = F(log1p)(F(exp_minus)(x));
    return F(select)((VM)(x < 0), rest, x + rest);
}

/* SLEEF's function returns infinity from 10^38 or 10^307 on. For large x the 1 is negligible, so a factor of 2^64 is
   removed. */
VEC_INLINE V F(log1p_of_all)(V x)
{
    const VM large = (VM)(x > (VS)1e37);
    const V y = F(log1p)(F(select)(large, x * (VS)0x1p-64, x));
    return F(select)(large, y + (VS)44.361419555836499802, y);
}

VEC_INLINE V F(cdf)(V x)
{
    return (VS)0.5 * (ONE + F(erf)(x * (VS)0.70710678118654752440));
}

/* (1 + tanh(u)) / 2 in gelu's tanh form equals sigmoid(2 u): a single exp, without cancellation where it is small.
   Returns 2 u. */
VEC_INLINE V F(gelu_inner)(V x)
{
    return (VS)1.59576912160573071176 * (x + (VS)0.044715 * (x * x * x));
}

/* As C's pow(). These exponents are computed with one rounding, which a general power does not guarantee. A root would
   return -0 for -0, and NaN for -infinity. */
VEC_INLINE V F(power)(V x, VS a)
{
    if (a == 1) return x;
    if (a == 2) return x * x;
    if (a == -1) return ONE / x;
    if (a == (VS)0.5) return F(select)((VM)(x == -(VS)INFINITY), F(all)((VS)INFINITY), F(sqrt)(x + (VS)0));
    return F(pow)(x, F(all)(a));
}

ARITH2(add, x + z)
ARITH2(sub, x - z)
ARITH2(mul, x *z)
ARITH2(div, x / z)
ARITH2(maximum, F(select)((VM)((x >= z) | (x != x)), x, z))
ARITH2(minimum, F(select)((VM)((x <= z) | (x != x)), x, z))
ARITH2(at_least, F(select)((VM)((x >= z) | (x != x)), ONE, ZERO))
ARITH2(take, F(select)((VM)(z != 0), x, ZERO))
ARITH2(leave, F(select)((VM)(z != 0), ZERO, x))

ARITH3(clamp, F(select)((VM)(x < z), F(select)((VM)(z > w), w, z), F(select)((VM)(x > w), w, x)))
ARITH3(within,
       F(select)((VM)((x > z) | ((x >= z) & (z == -(VS)INFINITY))),
                 F(select)((VM)((x < w) | (w == (VS)INFINITY)), ONE, ZERO), ZERO)) /* x >= z: false if x is NaN */

ARITH1(scale, x *a)
ARITH1(add_scalar, x + a)
ARITH1(pow_scalar, F(power)(x, a))
ARITH1(neg, -x)
ARITH1(abs, F(select)((VM)(x < 0), -x, x + (VS)0))
ARITH1(sign, F(select)((VM)(x > 0), ONE, F(select)((VM)(x < 0), -ONE, ZERO)))
ARITH1(exp, F(exp)(x))
ARITH1(log, F(log)(x))
ARITH1(log1p, F(log1p_of_all)(x))
ARITH1(sqrt, F(sqrt)(x))
ARITH1(tanh, F(tanh)(x))
ARITH1(erf, F(erf)(x))
ARITH1(sin, F(sin)(x))
ARITH1(cos, F(cos)(x))
ARITH1(sigmoid, F(sigmoid)(x))
ARITH1(relu, F(select)((VM)((x > 0) | (x != x)), x, ZERO))
ARITH1(softplus, F(softplus)(x))
ARITH1(silu, x *F(sigmoid)(x))
ARITH1(gelu, x *F(cdf)(x))
ARITH1(gelu_tanh, x *F(sigmoid)(F(gelu_inner)(x)))
ARITH2(swiglu, x *F(sigmoid)(x) * z)
ARITH2(pow, F(pow)(x, z))
ARITH1(elu, F(select)((VM)(x > 0), x, a *F(expm1)(x)))
ARITH1(celu, F(select)((VM)(x > 0), x, a *F(expm1)(x / a)))
ARITH1(leaky_relu, F(select)((VM)(x > 0), x, a *x))
ARITH1(relu6, F(select)((VM)(x > 6), F(all)(6), F(select)((VM)((x > 0) | (x != x)), x, ZERO)))
ARITH1(hardswish,
       F(select)((VM)(x >= 3), x, F(select)((VM)(x <= -3), ZERO, x *(x + (VS)3) / (VS)6)))

/* d^2 / 2 for a difference d up to a; linear beyond. */
VEC_INLINE V F(huber)(V d, VS a)
{
    const V far = F(select)((VM)(d < 0), -d, d);
    return F(select)((VM)(far <= a), (VS)0.5 * (d * d), a * (far - (VS)0.5 * a));
}

VEC_INLINE V F(clipped)(V d, VS a)
{
    return F(select)((VM)(d > a), F(all)(a), F(select)((VM)(d < -a), F(all)(-a), d));
}

/* Losses of elements. For logits x: z is the target, w the weight of positive targets. */
ARITH3(bce_with_logits, (ONE - z) * x + (ONE + (w - ONE) * z) * F(softplus)(-x))
ARITH3(bce_with_logits_slope, (w * z + (ONE - z)) * F(sigmoid)(x) - w * z)
ARITH2_WITH(huber, F(huber)(x - z, a))
ARITH2(kl_div, F(select)((VM)(z == 0), ZERO, z *F(log)(z) - z * x))

VEC_INLINE void F(op_huber_backward)(const V *in, V *out, double attr)
{
    out[0] = in[2] * F(clipped)(in[0] - in[1], (VS)attr);
}

/* Derivatives times the upstream gradient z. The first input is the value that the rule kept. For NaN, relu and similar
   ops pass z on, as in PyTorch, because NaN is not known to be in the flat branch. */
ARITH2(tanh_backward, z *(ONE - x * x))
ARITH2(sigmoid_backward, z *(x * (ONE - x)))
ARITH2(relu_backward, F(select)((VM)(x <= 0), ZERO, z))
ARITH2(sqrt_backward, z *(VS)0.5 / x)
/* A constant (exponent 0) has slope 0 at 0, too, where 0 times a negative power would be NaN. 1 is subtracted from the
   exponent before it is rounded. */
VEC_INLINE void F(op_pow_scalar_backward)(const V *in, V *out, double attr)
{
    if (attr == 0) out[0] = in[1] * ZERO;
    else out[0] = in[1] * (F(power)(in[0], (VS)(attr - 1)) * (VS)attr);
}

ARITH2_WITH(elu_backward, F(select)((VM)(x <= 0), z *(a *F(exp)(x)), z))
ARITH2_WITH(celu_backward, F(select)((VM)(x <= 0), z *F(exp)(x / a), z))
ARITH2_WITH(leaky_relu_backward, F(select)((VM)(x > 0), z, a *z))
ARITH2(relu6_backward, F(select)((VM)((x <= 0) | (x >= 6)), ZERO, z))
ARITH2(hardswish_backward,
       F(select)((VM)(x <= -3), ZERO, F(select)((VM)(x < 3), z *((x + x + (VS)3) / (VS)6), z)))

/* The gradient of a in a^b, times the upstream gradient: selected instead of multiplied where a factor of 0 meets
   infinity. */
VEC_INLINE void F(op_pow_base_backward)(const V *in, V *out, double attr)
{
    const V a = in[0], b = in[1];
    (void)attr;
    out[0] = F(select)((VM)(b == 0), ZERO, in[2] * (b * F(pow)(a, b - (VS)1)));
}

VEC_INLINE void F(op_pow_exponent_backward)(const V *in, V *out, double attr)
{
    const V a = in[0], b = in[1];
    (void)attr;
    out[0] = F(select)((VM)((a == 0) & (b >= 0)), ZERO, in[2] * (F(pow)(a, b) * F(log)(a)));
}

VEC_INLINE void F(op_silu_backward)(const V *in, V *out, double attr)
{
    V rest, of_s;
    const V s = F(sigmoid_both)(in[0], &rest, &of_s);
    out[0] = in[1] * (s * (ONE + in[0] * rest));
}

VEC_INLINE void F(op_gelu_backward)(const V *in, V *out, double attr)
{
    const V x = in[0];
    out[0] = in[1] * (F(cdf)(x) + x * ((VS)0.39894228040143267794 * F(exp)((VS)-0.5 * (x * x))));
}

VEC_INLINE void F(op_gelu_tanh_backward)(const V *in, V *out, double attr)
{
    V rest, of_s;
    const V x = in[0], s = F(sigmoid_both)(F(gelu_inner)(x), &rest, &of_s);
    const V slope = (VS)1.59576912160573071176 * (ONE + (VS)0.134145 * (x * x));
    out[0] = in[1] * (s + x * of_s * slope);
}

VEC_INLINE void F(op_swiglu_backward)(const V *in, V *out, double attr)
{
    V rest, of_s;
    const V gate = in[0], up = in[1], dy = in[2], s = F(sigmoid_both)(gate, &rest, &of_s);
    out[0] = dy * up * (s * (ONE + gate * rest));
    out[1] = dy * (gate * s);
}

#undef ARITH1
#undef ARITH2
#undef ARITH2_WITH
#undef ARITH3
#undef ZERO
#undef ONE
