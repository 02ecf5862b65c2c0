/* Shared by rope's check and kernels: attributes, the layout of pairs, the size of the table. */
#ifndef RW_OPS_ROPE_H
#define RW_OPS_ROPE_H

#include <rewind/op.h>

struct rw_rope_attrs {
    double base;
    int64_t inverse;
    int64_t interleaved;
    int64_t given; /* input 2 has the angles of the pairs at position 1; base is not used */
    double scale;  /* of cos and sin */
};

/* The type of angles and arithmetic: float64 for float64, else float32. */
static inline rw_dtype rw_rope_wide(rw_dtype dtype)
{
    return dtype == RW_F64 ? RW_F64 : RW_F32;
}

/* Pair i: elements i and i + d/2, or 2i and 2i + 1. The distance from the first element of a pair to that of the next
   pair, and to its own second element. */
struct rw_rope_pairs {
    int64_t step, apart;
};

static inline struct rw_rope_pairs rw_rope_pairs_of(const struct rw_rope_attrs *a, int64_t half)
{
    struct rw_rope_pairs p;
    p.step = a->interleaved ? 2 : 1;
    p.apart = a->interleaved ? 1 : half;
    return p;
}

/* cos and sin per position and pair, rounded up to whole doubles */
static inline size_t rw_rope_table_bytes(int64_t seq, int64_t half, rw_dtype dtype)
{
    const size_t n = (size_t)(seq * half * 2);
    return dtype == RW_F64 ? n * sizeof(double) : (n * sizeof(float) + 7) / 8 * 8;
}

#endif
