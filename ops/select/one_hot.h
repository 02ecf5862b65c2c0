/* Shared by one_hot's op definition and its kernels. C11 and C++17. */
#ifndef RW_OPS_ONE_HOT_H
#define RW_OPS_ONE_HOT_H

#include <rewind/types.h>

struct rw_one_hot_attrs {
    int64_t classes, dtype;
};

/* The bits of a 1 of that type. */
static inline uint64_t rw_one_bits(rw_dtype dtype)
{
    switch (dtype) {
    case RW_F32: return 0x3f800000u;
    case RW_F64: return UINT64_C(0x3ff0000000000000);
    case RW_BF16: return 0x3f80u;
    case RW_F16: return 0x3c00u;
    default: return 1;
    }
}

#endif
