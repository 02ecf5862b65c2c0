/* The arithmetic of the element-wise ops on CUDA: f_op_NAME() and d_op_NAME(), on float and double. */
#ifndef RW_OPS_POINTWISE_FUNCTIONS_CUH
#define RW_OPS_POINTWISE_FUNCTIONS_CUH

#include "device/cuda/kernel.cuh"

#define VEC_INLINE static __device__ __forceinline__

namespace {

#define SCALAR_FUNCTIONS(prefix, type, suffix)                                            \
    VEC_INLINE type prefix##_all(type x) { return x; }                                    \
    VEC_INLINE type prefix##_select(bool first, type a, type b) { return first ? a : b; } \
    VEC_INLINE type prefix##_exp(type x) { return exp##suffix(x); }                       \
    VEC_INLINE type prefix##_exp_minus(type x) { return exp##suffix(-fabs##suffix(x)); }  \
    VEC_INLINE type prefix##_expm1(type x) { return expm1##suffix(x); }                   \
    VEC_INLINE type prefix##_log(type x) { return log##suffix(x); }                       \
    VEC_INLINE type prefix##_log1p(type x) { return log1p##suffix(x); }                   \
    VEC_INLINE type prefix##_sqrt(type x) { return sqrt##suffix(x); }                     \
    VEC_INLINE type prefix##_tanh(type x) { return tanh##suffix(x); }                     \
    VEC_INLINE type prefix##_erf(type x) { return erf##suffix(x); }                       \
    VEC_INLINE type prefix##_sin(type x) { return sin##suffix(x); }                       \
    VEC_INLINE type prefix##_cos(type x) { return cos##suffix(x); }                       \
    VEC_INLINE type prefix##_pow(type x, type y) { return pow##suffix(x, y); }

SCALAR_FUNCTIONS(f, float, f)
SCALAR_FUNCTIONS(d, double, )

/*
 * n / d, correctly rounded, for 0 <= n <= 1 <= d <= 2. In this range exponents need no special case, so this is the
 * compiler's Newton step and correction (Markstein, IBM J. Res. Dev. 34(1), 1990) without the branch that prevents
 * reordering. Two quotients with the same d share the reciprocal. It was tested for all floats d, with n = 1 and with
 * the n that d is computed from, and for reciprocals with an error of up to one ulp. One quotient is wrong, for which
 * the compiler's result would be wrong, too. The test ptx_accuracy runs the PTX.
 */
VEC_INLINE float f_share(float n, float d)
{
#ifdef RW_CUDASIM
    return n / d;
#else
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    r = fmaf(fmaf(-d, r, 1.0f), r, r);
    const float q = n * r;
    return fmaf(fmaf(-d, q, n), r, q);
#endif
}

VEC_INLINE double d_share(double n, double d) { return n / d; }

#define VM bool
#define V float
#define VS float
#define F(name) f_##name
#include "ops/pointwise/pointwise_functions_tmpl.h"
#undef V
#undef VS
#undef F
#define V double
#define VS double
#define F(name) d_##name
#include "ops/pointwise/pointwise_functions_tmpl.h"
#undef V
#undef VS
#undef VM
#undef F
#undef VEC_INLINE

} // namespace

#endif
