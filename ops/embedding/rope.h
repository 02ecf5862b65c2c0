/* What rope's check and kernel share. */
#ifndef RW_OPS_ROPE_H
#define RW_OPS_ROPE_H

#include <rewind/op.h>

struct rw_rope_attrs {
    double base;
    int64_t inverse;
};

/* cos and sin per position and pair, in whole doubles */
static inline size_t rw_rope_table_bytes(int64_t seq, int64_t half, rw_dtype dtype)
{
    const size_t n = (size_t)(seq * half * 2);
    return dtype == RW_F64 ? n * sizeof(double) : (n * sizeof(float) + 7) / 8 * 8;
}

#endif
