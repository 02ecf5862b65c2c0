/*
 * Philox4x32-10: maps a counter and a key to four 32-bit words. Shared by CPU and CUDA, so masks have the same bits.
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 *
 * Law 3: element i of an op draws word i % 4 of block ticket.offset + i / 4.
 */
#ifndef RW_BASE_PHILOX_H
#define RW_BASE_PHILOX_H

#include "base/host_device.h"

#include <stdint.h>

#define RW_PHILOX_ROUNDS 10
#define RW_PHILOX_FACTOR_0 0xD2511F53u
#define RW_PHILOX_FACTOR_1 0xCD9E8D57u
#define RW_PHILOX_KEY_0 0x9E3779B9u /* increments of the keys from round to round */
#define RW_PHILOX_KEY_1 0xBB67AE85u

RW_HOST_DEVICE void rw_philox_rounds(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int round = 0; round < RW_PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)RW_PHILOX_FACTOR_0 * c[0], p1 = (uint64_t)RW_PHILOX_FACTOR_1 * c[2];
        const uint32_t c1 = c[1], c3 = c[3];
        c[0] = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c[1] = (uint32_t)p1;
        c[2] = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c[3] = (uint32_t)p0;
        k0 += RW_PHILOX_KEY_0;
        k1 += RW_PHILOX_KEY_1;
    }
}

/* The four words of one block. */
RW_HOST_DEVICE void rw_philox(uint64_t seed, uint64_t block, uint32_t out[4])
{
    out[0] = (uint32_t)block;
    out[1] = (uint32_t)(block >> 32);
    out[2] = out[3] = 0;
    rw_philox_rounds(out, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* Threshold for the probability p: a word at or above it keeps its element; exact to 2^-32. */
static inline uint32_t philox_threshold(double p)
{
    const double t = p * 4294967296.0;
    return t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

#endif
