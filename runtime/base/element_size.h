/* Bytes of an element of each data type, for the folders below record/. */
#ifndef RW_BASE_ELEMENT_SIZE_H
#define RW_BASE_ELEMENT_SIZE_H

#include <rewind/types.h>

/* 0 for a number that is no data type. */
static inline size_t rw_element_size(int32_t dtype)
{
    static const uint8_t size[RW_DTYPE_COUNT] = {
        [RW_F32] = 4,  [RW_F64] = 8,     [RW_BF16] = 2,    [RW_F16] = 2,    [RW_I32] = 4,
        [RW_BOOL] = 1, [RW_F8_E4M3] = 1, [RW_F8_E5M2] = 1, [RW_F8_E8M0] = 1,
    };
    return (uint32_t)dtype < RW_DTYPE_COUNT ? size[dtype] : 0;
}

#endif
