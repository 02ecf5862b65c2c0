/*
 * The 16 lanes of vec.h's vector in as many native ones as they take. A loop that adds up in a vector wider than
 * registers has the compiler copy it through memory each time, for five to nine times as long; parts stay in registers.
 *
 *     for (int64_t i = 0; i < n; i += VF_LANES)
 *         for (int p = 0; p < NF_PARTS; p++) sum.part[p] += nf_get(x, dtype, i + p * NF_LANES);
 *
 * Element i is in lane i % 16 as it is there, so the bytes of a sum over lanes are the same.
 */
#ifndef RW_OPS_COMMON_VEC_PARTS_H
#define RW_OPS_COMMON_VEC_PARTS_H

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

VEC_INLINE struct nf_parts nf_parts_of(vf x)
{
    struct nf_parts parts;
    memcpy(&parts, &x, sizeof parts);
    return parts;
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

/* The first n of them; the lanes after them are `fill`. */
VEC_INLINE struct nf_parts nf_parts_get_some(const void *p, rw_dtype dtype, int64_t i, int64_t n, float fill)
{
    if (n >= VF_LANES) return nf_parts_get(p, dtype, i);
    return nf_parts_of(vf_load_some((const char *)p + (size_t)i * float_size(dtype), dtype, n, fill));
}

VEC_INLINE void nf_parts_put_some(void *p, rw_dtype dtype, int64_t i, int64_t n, struct nf_parts x)
{
    if (n >= VF_LANES) for (int l = 0; l < NF_PARTS; l++) nf_put(p, dtype, i + l * NF_LANES, x.part[l]);
    else vf_store_some((char *)p + (size_t)i * float_size(dtype), dtype, n, nf_parts_whole(x));
}

#endif
