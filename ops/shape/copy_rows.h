/* Copies many short rows of bytes at a time: a call or a division per row would take longer than a short copy. */
#ifndef RW_OPS_SHAPE_COPY_ROWS_H
#define RW_OPS_SHAPE_COPY_ROWS_H

#include "ops/common/vec.h"

/* bytes is a constant after inlining: a few moves. */
VEC_INLINE void rows_of(char *to, int64_t to_step, const char *from, int64_t from_step, size_t bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++) memcpy(to + i * to_step, from + i * from_step, bytes);
}

/* n rows; steps from one to the next in bytes. */
static inline void copy_rows(char *to, int64_t to_step, const char *from, int64_t from_step, size_t bytes, int64_t n)
{
    if (to_step == (int64_t)bytes && from_step == (int64_t)bytes) {
        memcpy(to, from, bytes * (size_t)n);
        return;
    }
    switch (bytes) {
    case 1: rows_of(to, to_step, from, from_step, 1, n); return;
    case 2: rows_of(to, to_step, from, from_step, 2, n); return;
    case 4: rows_of(to, to_step, from, from_step, 4, n); return;
    case 8: rows_of(to, to_step, from, from_step, 8, n); return;
    case 16: rows_of(to, to_step, from, from_step, 16, n); return;
    case 32: rows_of(to, to_step, from, from_step, 32, n); return;
    case 64: rows_of(to, to_step, from, from_step, 64, n); return;
    default: rows_of(to, to_step, from, from_step, bytes, n);
    }
}

/* A row of elements `stride` apart, with fast paths for 2 (deinterleaving), -1 (reversing) and 0 (one element
   repeated). */
#define STRIDED(size, type)                                                                    \
    VEC_INLINE void strided_##size(void *to, const void *from, int64_t stride, int64_t n)      \
    {                                                                                          \
        type *const y = (type *)to;                                                            \
        const type *const x = (const type *)from, first = *x;                                  \
        if (stride == 1) memcpy(y, x, (size_t)n * sizeof *y);                                  \
        else if (stride == 2) for (int64_t i = 0; i < n; i++) y[i] = x[2 * i];                 \
        else if (stride == 0) for (int64_t i = 0; i < n; i++) y[i] = first;                    \
        else if (stride == -1) for (int64_t i = 0; i < n; i++) y[i] = x[-i];                   \
        else for (int64_t i = 0; i < n; i++) y[i] = x[i * stride];                             \
    }

STRIDED(1, uint8_t)
STRIDED(2, uint16_t)
STRIDED(4, uint32_t)
STRIDED(8, uint64_t)

static inline void copy_strided(void *to, const void *from, int64_t stride, int64_t n, size_t size)
{
    switch (size) {
    case 1: strided_1(to, from, stride, n); return;
    case 2: strided_2(to, from, stride, n); return;
    case 4: strided_4(to, from, stride, n); return;
    default: strided_8(to, from, stride, n); return;
    }
}

/* Interleaves two rows of elements. */
#define ZIPPED(size, type)                                                                     \
    VEC_INLINE void zipped_##size(void *to, const void *a, const void *b, int64_t n)           \
    {                                                                                          \
        type *const y = (type *)to;                                                            \
        for (int64_t i = 0; i < n; i++) {                                                      \
            y[2 * i] = ((const type *)a)[i];                                                   \
            y[2 * i + 1] = ((const type *)b)[i];                                               \
        }                                                                                      \
    }

ZIPPED(1, uint8_t)
ZIPPED(2, uint16_t)
ZIPPED(4, uint32_t)
ZIPPED(8, uint64_t)

static inline void zip_rows(void *to, const void *a, const void *b, int64_t n, size_t size)
{
    switch (size) {
    case 1: zipped_1(to, a, b, n); return;
    case 2: zipped_2(to, a, b, n); return;
    case 4: zipped_4(to, a, b, n); return;
    default: zipped_8(to, a, b, n); return;
    }
}

#undef STRIDED
#undef ZIPPED

#endif
