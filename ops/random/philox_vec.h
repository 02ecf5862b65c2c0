/*
 * 16 Philox blocks at once: 64 consecutive words.
 *
 * A lane is 64 bits wide and computes one block. The halves of a product are the two words that the next round needs.
 * The multiplier reads only lower halves, so leftovers in upper halves do no harm, and no data moves between lanes
 * before the end. Blocks are assigned to lanes so that interleaving pairs of the words' vectors puts the words in
 * order.
 */
#ifndef RW_OPS_PHILOX_VEC_H
#define RW_OPS_PHILOX_VEC_H

#include "base/philox.h"
#include "ops/common/vec_native.h"

#define PHILOX_WORDS 64
#define PHILOX_LANES ND_LANES

typedef uint64_t philox_lanes __attribute__((vector_size(NATIVE_BYTES), aligned(4), may_alias));

#if PHILOX_LANES == 8
#define PHILOX_DEAL { 0, 4, 1, 5, 2, 6, 3, 7 }
#define PHILOX_EVEN 0, 8, 2, 10, 4, 12, 6, 14
#define PHILOX_ODD 1, 9, 3, 11, 5, 13, 7, 15
#elif PHILOX_LANES == 4
#define PHILOX_DEAL { 0, 2, 1, 3 }
#define PHILOX_EVEN 0, 4, 2, 6
#define PHILOX_ODD 1, 5, 3, 7
#else
#define PHILOX_DEAL { 0, 1 }
#define PHILOX_EVEN 0, 2
#define PHILOX_ODD 1, 3
#endif

/* Products of the lower halves. */
VEC_INLINE philox_lanes philox_multiply(philox_lanes a, uint32_t b)
{
#if defined(RW_ISA_IS_V4)
    return (philox_lanes)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(RW_ISA_IS_V3)
    return (philox_lanes)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__x86_64__)
    return (philox_lanes)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#elif defined(__aarch64__)
    return (philox_lanes)vmull_u32(vmovn_u64((uint64x2_t)a), vdup_n_u32(b)); /* NEON has no product of 64 bits */
#else
    return (a & 0xffffffffu) * b;
#endif
}

/* One block per lane: the words are in the lower halves; upper halves are undefined. third and fourth: words of the
   counter, zero for tickets. */
VEC_INLINE void philox_counters(uint64_t seed, philox_lanes block, uint32_t third, uint32_t fourth,
                                philox_lanes word[4])
{
    philox_lanes c0 = block, c1 = block >> 32, c2 = (philox_lanes){ 0 } + third, c3 = (philox_lanes){ 0 } + fourth;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const philox_lanes p0 = philox_multiply(c0, 0xD2511F53u), p1 = philox_multiply(c2, 0xCD9E8D57u);
        c0 = p1 >> 32 ^ c1 ^ k0;
        c1 = p1;
        c2 = p0 >> 32 ^ c3 ^ k1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

VEC_INLINE void philox_blocks(uint64_t seed, philox_lanes block, philox_lanes word[4])
{
    philox_counters(seed, block, 0, 0, word);
}

/* 4 PHILOX_LANES words: those of blocks first, first + 1, ... */
VEC_INLINE void philox_group_of(uint64_t seed, uint64_t first, uint32_t third, uint32_t fourth, uint32_t *words)
{
    philox_lanes w[4];
    philox_counters(seed, (philox_lanes)PHILOX_DEAL + first, third, fourth, w);
    const philox_lanes low = (w[0] & 0xffffffffu) | w[1] << 32, high = (w[2] & 0xffffffffu) | w[3] << 32;
    *(philox_lanes *)words = __builtin_shufflevector(low, high, PHILOX_EVEN);
    *(philox_lanes *)(words + 2 * PHILOX_LANES) = __builtin_shufflevector(low, high, PHILOX_ODD);
}

VEC_INLINE void philox_group(uint64_t seed, uint64_t first, uint32_t *words)
{
    philox_group_of(seed, first, 0, 0, words);
}

/* words[4 i + j]: word j of block first + i, i < 16. */
static inline void philox_fill(uint64_t seed, uint64_t first, uint32_t *words)
{
    for (int i = 0; i < PHILOX_WORDS / 4; i += PHILOX_LANES) philox_group(seed, first + (uint64_t)i, words + 4 * i);
}

#endif
