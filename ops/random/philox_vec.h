/* Sixteen Philox blocks at once: 64 consecutive words. */
#ifndef RW_OPS_PHILOX_VEC_H
#define RW_OPS_PHILOX_VEC_H

#include "ops/random/philox.h"
#include "ops/vec.h"

#define PHILOX_WORDS 64

/* words[4 i + j]: word j of block first + i, i < 16. The inner loops are what the compiler vectorises. */
static inline void philox_fill(uint64_t seed, uint64_t first, uint32_t *words)
{
    uint32_t c0[16], c1[16], c2[16], c3[16];
    for (int i = 0; i < 16; i++) {
        c0[i] = (uint32_t)(first + (uint64_t)i);
        c1[i] = (uint32_t)((first + (uint64_t)i) >> 32);
        c2[i] = c3[i] = 0;
    }
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 16; i++) {
            const uint64_t p0 = (uint64_t)0xD2511F53u * c0[i], p1 = (uint64_t)0xCD9E8D57u * c2[i];
            c0[i] = (uint32_t)(p1 >> 32) ^ c1[i] ^ k0;
            c1[i] = (uint32_t)p1;
            c2[i] = (uint32_t)(p0 >> 32) ^ c3[i] ^ k1;
            c3[i] = (uint32_t)p0;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 16; i++) {
        words[4 * i] = c0[i];
        words[4 * i + 1] = c1[i];
        words[4 * i + 2] = c2[i];
        words[4 * i + 3] = c3[i];
    }
}

/* keep probability 1 - p: a word at or above this keeps its element; exact to 2^-32 */
static inline uint32_t philox_threshold(double p)
{
    const double t = p * 4294967296.0;
    return t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

#endif
