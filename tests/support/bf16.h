/* bfloat16 as bits, for tests of single bits. */
#ifndef RW_TESTS_BF16_H
#define RW_TESTS_BF16_H

#include <stdint.h>
#include <string.h>

static inline float of_bf16(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#endif
