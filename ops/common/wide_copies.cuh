/* Copies of bytes in units as wide as row length and address alignment allow. */
#ifndef RW_OPS_WIDE_COPIES_CUH
#define RW_OPS_WIDE_COPIES_CUH

#include "ops/common/elementwise_map.cuh"

struct alignas(16) unit16 {
    uint64_t x[2];
};

/* Calls f with a value of the unsigned type of that many bytes. */
template <typename F> static inline rw_status with_unit(size_t bytes, F f)
{
    switch (bytes) {
    case 1: return f(uint8_t());
    case 2: return f(uint16_t());
    case 4: return f(uint32_t());
    case 8: return f(uint64_t());
    default: return f(unit16());
    }
}

/* Bytes of the widest unit that divides `row` bytes and to which the address is aligned. */
static inline int64_t widest_unit(int64_t row, const void *p)
{
    int64_t unit = 16;
    while (row % unit || !map_is_aligned(p, static_cast<size_t>(unit))) unit /= 2;
    return unit;
}

#endif
