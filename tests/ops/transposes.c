/*
 * Dense copies of transposed values: every byte arrives at its element's position, for every type, at the edges of
 * tiles and of the squares inside of them, whatever the values are.
 */
#include "support/support.h"

#include <rewind/rewind.h>

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Arbitrary bytes; for booleans only 0 and 1. */
static unsigned char *any_bytes(rw_dtype dtype, int64_t n)
{
    const size_t bytes = (size_t)n * rw_dtype_size(dtype);
    unsigned char *const x = malloc(bytes + 1);
    uint32_t state = 12345;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525 + 1013904223;
        x[i] = (unsigned char)(dtype == RW_BOOL ? state >> 31 : state >> 24);
    }
    return x;
}

/* Element [a, b, c] of the result equals that of x, whose extents are dim, with its axes in the order `axes`. */
static void expect_moved(const unsigned char *x, const unsigned char *y, const int64_t *dim, const int *axes,
                         size_t size, const char *what)
{
    const int64_t stride[] = { dim[1] * dim[2], dim[2], 1 };
    int64_t at = 0;
    for (int64_t a = 0; a < dim[axes[0]]; a++)
        for (int64_t b = 0; b < dim[axes[1]]; b++)
            for (int64_t c = 0; c < dim[axes[2]]; c++, at++) {
                const int64_t from = a * stride[axes[0]] + b * stride[axes[1]] + c * stride[axes[2]];
                if (!memcmp(x + (size_t)from * size, y + (size_t)at * size, size)) continue;
                cr_expect_fail("%s, %lld x %lld x %lld: element [%lld, %lld, %lld]", what, (long long)dim[0],
                               (long long)dim[1], (long long)dim[2], (long long)a, (long long)b, (long long)c);
                return;
            }
}

static void check(struct fixture *f, rw_dtype dtype, const int64_t *dim, const int *axes)
{
    const int64_t n = dim[0] * dim[1] * dim[2];
    const size_t size = rw_dtype_size(dtype), bytes = (size_t)n * size;
    unsigned char *const x = any_bytes(dtype, n), *const y = malloc(bytes + 1);
    rw_tensor *const in = rw_input(f->t, dtype, RW_SHAPE(dim[0], dim[1], dim[2]), x,
                                   (size_t)(dim[0] * dim[1] * dim[2]) * rw_dtype_size(dtype));
    cr_assert_eq(rw_read(f->t, rw_contiguous(f->t, rw_permute(f->t, in, axes)), y, bytes), RW_OK, "%s",
                 rw_error_message(f->ctx));
    expect_moved(x, y, dim, axes, size, rw_dtype_name(dtype));
    free(x), free(y);
    rw_tape_reset(f->t);
}

Test(transposes, every_element_is_where_it_goes)
{
    static const rw_dtype types[] = { RW_BOOL, RW_BF16, RW_F16, RW_F32, RW_I32, RW_F64 };
    static const int64_t sizes[][3] = { { 1, 8, 8 },   { 1, 9, 31 },  { 1, 33, 32 }, { 2, 40, 15 },  { 1, 65, 8 },
                                        { 3, 7, 70 },  { 1, 64, 96 }, { 9, 8, 10 },  { 1, 530, 33 }, { 1, 31, 1100 },
                                        { 17, 12, 4 }, { 8, 1, 36 },  { 2, 0, 9 } };
    static const int orders[][3] = { { 0, 2, 1 }, { 2, 1, 0 }, { 1, 2, 0 }, { 2, 0, 1 }, { 1, 0, 2 } };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++)
        for (int threads = 1; threads < 4; threads += 2) {
            struct fixture f = fixture_open(threads, 1);
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) check(&f, types[d], sizes[s], orders[o]);
            fixture_close(&f);
        }
}

/* Rows that begin at an unaligned address, with a stride longer than the row. */
Test(transposes, of_a_part_of_a_matrix)
{
    static const rw_dtype types[] = { RW_BF16, RW_F32, RW_F64 };
    enum { ROWS = 75, COLS = 83, FROM = 3 };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        struct fixture f = fixture_open(1, 1);
        const size_t size = rw_dtype_size(types[d]);
        const int64_t rows = ROWS - FROM, cols = COLS - FROM;
        unsigned char *const x = any_bytes(types[d], ROWS * COLS), *const y = malloc(ROWS * COLS * size);
        rw_tensor *const in = rw_input(f.t, types[d], RW_SHAPE(ROWS, COLS), x, ROWS * COLS * rw_dtype_size(types[d]));
        rw_tensor *const part = rw_slice(f.t, rw_slice(f.t, in, 0, FROM, ROWS), 1, FROM, COLS);
        cr_assert_eq(rw_read(f.t, rw_contiguous(f.t, rw_transpose(f.t, part, 0, 1)), y, (size_t)(rows * cols) * size),
                     RW_OK, "%s", rw_error_message(f.ctx));
        size_t wrong = 0;
        for (int64_t c = 0; c < cols; c++)
            for (int64_t r = 0; r < rows; r++)
                wrong += memcmp(x + (size_t)((r + FROM) * COLS + c + FROM) * size, y + (size_t)(c * rows + r) * size,
                                size) != 0;
        cr_expect_eq(wrong, 0, "%s: %zu elements", rw_dtype_name(types[d]), wrong);
        free(x), free(y);
        fixture_close(&f);
    }
}
