/*
 * Squares of numbers turned in registers: row i becomes column i. Each step is one instruction of AVX2 or SSE2 a row,
 * which takes from both operands what lies in their lower, or upper, halves.
 */
#ifndef RW_OPS_COMMON_SQUARES_H
#define RW_OPS_COMMON_SQUARES_H

#include "ops/common/vec.h"

typedef uint16_t square_2 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t square_4 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint64_t square_8 __attribute__((vector_size(32), aligned(8), may_alias));

VEC_INLINE void turn_square_2(square_2 r[8])
{
    const square_2 low[] = { { 0, 8, 1, 9, 2, 10, 3, 11 }, { 0, 1, 8, 9, 2, 3, 10, 11 }, { 0, 1, 2, 3, 8, 9, 10, 11 } };
    const square_2 high[] = { { 4, 12, 5, 13, 6, 14, 7, 15 },
                              { 4, 5, 12, 13, 6, 7, 14, 15 },
                              { 4, 5, 6, 7, 12, 13, 14, 15 } };
    square_2 one[8], two[8];
    for (int i = 0; i < 8; i += 2) {
        one[i] = __builtin_shuffle(r[i], r[i + 1], low[0]);
        one[i + 1] = __builtin_shuffle(r[i], r[i + 1], high[0]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            two[i + 2 * k] = __builtin_shuffle(one[i + k], one[i + k + 2], low[1]);
            two[i + 2 * k + 1] = __builtin_shuffle(one[i + k], one[i + k + 2], high[1]);
        }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = __builtin_shuffle(two[i], two[i + 4], low[2]);
        r[2 * i + 1] = __builtin_shuffle(two[i], two[i + 4], high[2]);
    }
}

VEC_INLINE void turn_square_4(square_4 r[8])
{
    const square_4 low[] = { { 0, 8, 1, 9, 4, 12, 5, 13 }, { 0, 1, 8, 9, 4, 5, 12, 13 }, { 0, 1, 2, 3, 8, 9, 10, 11 } };
    const square_4 high[] = { { 2, 10, 3, 11, 6, 14, 7, 15 },
                              { 2, 3, 10, 11, 6, 7, 14, 15 },
                              { 4, 5, 6, 7, 12, 13, 14, 15 } };
    square_4 one[8], two[8];
    for (int i = 0; i < 8; i += 2) {
        one[i] = __builtin_shuffle(r[i], r[i + 1], low[0]);
        one[i + 1] = __builtin_shuffle(r[i], r[i + 1], high[0]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            two[i + 2 * k] = __builtin_shuffle(one[i + k], one[i + k + 2], low[1]);
            two[i + 2 * k + 1] = __builtin_shuffle(one[i + k], one[i + k + 2], high[1]);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = __builtin_shuffle(two[i], two[i + 4], low[2]);
        r[i + 4] = __builtin_shuffle(two[i], two[i + 4], high[2]);
    }
}

VEC_INLINE void turn_square_8(square_8 r[4])
{
    const square_8 even = { 0, 4, 2, 6 }, odd = { 1, 5, 3, 7 }, low = { 0, 1, 4, 5 }, high = { 2, 3, 6, 7 };
    const square_8 a = __builtin_shuffle(r[0], r[1], even), b = __builtin_shuffle(r[0], r[1], odd);
    const square_8 c = __builtin_shuffle(r[2], r[3], even), d = __builtin_shuffle(r[2], r[3], odd);
    r[0] = __builtin_shuffle(a, c, low), r[1] = __builtin_shuffle(b, d, low);
    r[2] = __builtin_shuffle(a, c, high), r[3] = __builtin_shuffle(b, d, high);
}

#endif
