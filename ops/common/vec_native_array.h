/*
 * The 16 lanes of the fixed vector (vec.h), as several native vectors. When a loop accumulates in a vector that is
 * wider than the registers, the compiler copies it through memory in each iteration, which takes five to nine times as
 * long. Parts of native width stay in registers.
 *
 *     for (int64_t i = 0; i < n; i += VF_LANES)
 *         for (int p = 0; p < NF_PARTS; p++) sum.part[p] += nf_get(x, dtype, i + p * NF_LANES);
 *
 * Element i is in lane i % 16, as in vec.h, so the bytes of a sum over lanes are the same.
 */
#ifndef RW_OPS_COMMON_VEC_NATIVE_ARRAY_H
#define RW_OPS_COMMON_VEC_NATIVE_ARRAY_H

#include "ops/common/vec_native.h"

#define NF_PARTS (VF_LANES / NF_LANES)

struct nf_parts {
    nf part[NF_PARTS];
};

VEC_INLINE struct nf_parts nf_parts_all(float x)
{
    struct nf_parts all;
    for (int p = 0; p < NF_PARTS; p++) all.part[p] = nf_all(x);
    return all;
}

VEC_INLINE vf nf_parts_whole(struct nf_parts x)
{
    vf whole;
    memcpy(&whole, &x, sizeof whole);
    return whole;
}

VEC_INLINE float nf_parts_sum(struct nf_parts x)
{
    return vf_sum(nf_parts_whole(x));
}

VEC_INLINE struct nf_parts nf_parts_get(const void *p, rw_dtype dtype, int64_t i)
{
    struct nf_parts x;
    for (int l = 0; l < NF_PARTS; l++) x.part[l] = nf_get(p, dtype, i + l * NF_LANES);
    return x;
}

/* x in the first n lanes, `fill` in the others. */
VEC_INLINE struct nf_parts nf_parts_first(struct nf_parts x, int64_t n, float fill)
{
    for (int l = 0; l < NF_PARTS; l++) {
        const int64_t own = n - l * NF_LANES;
        x.part[l] = nf_first(x.part[l], own > 0 ? own : 0, fill);
    }
    return x;
}

/* Loads the first n elements; the other lanes are `fill`. */
VEC_INLINE struct nf_parts nf_parts_get_some(const void *p, rw_dtype dtype, int64_t i, int64_t n, float fill)
{
    if (n >= VF_LANES) return nf_parts_get(p, dtype, i);
    struct nf_parts x = nf_parts_all(0);
    for (int l = 0; l < NF_PARTS; l++) {
        const int64_t own = n - l * NF_LANES, at = i + l * NF_LANES;
        if (own >= NF_LANES) x.part[l] = nf_get(p, dtype, at);
        else if (own > 0) x.part[l] = nf_get_some(p, dtype, at, own);
    }
    return fill == 0 ? x : nf_parts_first(x, n, fill);
}

VEC_INLINE void nf_parts_put_some(void *p, rw_dtype dtype, int64_t i, int64_t n, struct nf_parts x)
{
    for (int l = 0; l < NF_PARTS; l++) {
        const int64_t own = n - l * NF_LANES, at = i + l * NF_LANES;
        if (own >= NF_LANES) nf_put(p, dtype, at, x.part[l]);
        else if (own > 0) nf_put_some(p, dtype, at, own, x.part[l]);
    }
}

#endif
