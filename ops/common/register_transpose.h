/*
 * Transposes square blocks in registers. Each step is one AVX2 or SSE2 instruction per row, which interleaves the lower
 * or the upper halves of both operands.
 */
#ifndef RW_OPS_REGISTER_TRANSPOSE_H
#define RW_OPS_REGISTER_TRANSPOSE_H

#include "ops/common/vec.h"

typedef uint16_t square_2 __attribute__((vector_size(16), aligned(2), may_alias));
typedef uint32_t square_4 __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint64_t square_8 __attribute__((vector_size(32), aligned(8), may_alias));

/* Selects elements of a and b by index; those of b follow those of a. */
#if __has_builtin(__builtin_shufflevector)
#define TAKE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define TAKE(a, b, ...) __builtin_shuffle(a, b, (__typeof__(a)){ __VA_ARGS__ })
#endif

/* Transposes 8 rows of 8 elements of 2 bytes. */
VEC_INLINE void transpose_square_2(square_2 r[8])
{
    square_2 one[8], two[8];
    for (int i = 0; i < 8; i += 2) {
        one[i] = TAKE(r[i], r[i + 1], 0, 8, 1, 9, 2, 10, 3, 11);
        one[i + 1] = TAKE(r[i], r[i + 1], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            two[i + 2 * k] = TAKE(one[i + k], one[i + k + 2], 0, 1, 8, 9, 2, 3, 10, 11);
            two[i + 2 * k + 1] = TAKE(one[i + k], one[i + k + 2], 4, 5, 12, 13, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = TAKE(two[i], two[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[2 * i + 1] = TAKE(two[i], two[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Transposes 8 rows of 8 elements of 4 bytes. */
VEC_INLINE void transpose_square_4(square_4 r[8])
{
    square_4 one[8], two[8];
    for (int i = 0; i < 8; i += 2) {
        one[i] = TAKE(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        one[i + 1] = TAKE(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            two[i + 2 * k] = TAKE(one[i + k], one[i + k + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            two[i + 2 * k + 1] = TAKE(one[i + k], one[i + k + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        r[i] = TAKE(two[i], two[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = TAKE(two[i], two[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

VEC_INLINE void transpose_square_8(square_8 r[4])
{
    const square_8 a = TAKE(r[0], r[1], 0, 4, 2, 6), b = TAKE(r[0], r[1], 1, 5, 3, 7);
    const square_8 c = TAKE(r[2], r[3], 0, 4, 2, 6), d = TAKE(r[2], r[3], 1, 5, 3, 7);
    r[0] = TAKE(a, c, 0, 1, 4, 5), r[1] = TAKE(b, d, 0, 1, 4, 5);
    r[2] = TAKE(a, c, 2, 3, 6, 7), r[3] = TAKE(b, d, 2, 3, 6, 7);
}

#undef TAKE

#endif
