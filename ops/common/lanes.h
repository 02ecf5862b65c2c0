/*
 * Up to a vector's elements, n of them, from number i on: float, its types of 16 bits, and double, whose dtype is given
 * for the templates' sake. What is loaded behind the n-th is 0.
 */
#ifndef RW_OPS_LANES_H
#define RW_OPS_LANES_H

#include "ops/common/vec_native.h"

VEC_INLINE nf f_load(const void *p, rw_dtype dtype, int64_t i, int64_t n)
{
    return n == NF_LANES ? nf_get(p, dtype, i) : nf_get_some(p, dtype, i, n);
}

VEC_INLINE void f_save(void *p, rw_dtype dtype, int64_t i, int64_t n, nf x)
{
    if (n == NF_LANES) nf_put(p, dtype, i, x);
    else nf_put_some(p, dtype, i, n, x);
}

VEC_INLINE nd d_load(const void *p, rw_dtype dtype, int64_t i, int64_t n)
{
    const double *const from = (const double *)p + i;
    nd x = { 0 };
    (void)dtype;
    if (n == ND_LANES) return *(const nd *)from;
    for (int64_t l = 0; l < n; l++) x[l] = from[l];
    return x;
}

VEC_INLINE void d_save(void *p, rw_dtype dtype, int64_t i, int64_t n, nd x)
{
    double *const to = (double *)p + i;
    (void)dtype;
    if (n == ND_LANES) *(nd *)to = x;
    else for (int64_t l = 0; l < n; l++) to[l] = x[l];
}

#endif
