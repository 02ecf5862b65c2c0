/*
 * Loads and stores of up to one vector, n elements from element i on, of float, its 16-bit types, and double. double
 * has a dtype argument only so that templates can call all types the same way. Lanes from n on are loaded as 0.
 */
#ifndef RW_OPS_PARTIAL_VECTORS_H
#define RW_OPS_PARTIAL_VECTORS_H

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
