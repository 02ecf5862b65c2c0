/*
 * Tensors of more than 2^31 elements: their last elements are compared with a small run that draws the same random
 * numbers. Takes about 20 GB and a minute on a CPU: only runs if REWIND_TEST_LARGE is set.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define TAIL 4096
#define COUNT (((int64_t)1 << 31) + TAIL)
#define ROWS ((int64_t)65536)
#define COLS ((int64_t)32800)
#define LAST 4 /* rows */

static struct fixture large, small;
static rw_generator_state start;

static void open_both(void)
{
    if (!getenv("REWIND_TEST_LARGE")) return;
    large = fixture_open(9, 0);
    small = fixture_open(9, 0);
    start = rw_generator_get(large.ctx);
}

static void close_both(void)
{
    if (!large.ctx) return;
    fixture_close(&large);
    fixture_close(&small);
}

TestSuite(large, .init = open_both, .fini = close_both, .timeout = 600);

#define NEEDS_A_LARGE_MACHINE() \
    if (!large.ctx) cr_skip_test("REWIND_TEST_LARGE is not set")

/* The small run's next op draws the numbers that element `from` on of the large op drew, which began at block
   `block`. */
static void draw_from(uint64_t block, int64_t from)
{
    rw_generator_set(small.ctx, (rw_generator_state){ start.seed, start.offset + block + (uint64_t)from / 4 });
}

static void same_tail(rw_tensor *from_large, rw_tensor *from_small)
{
    const size_t bytes = rw_tensor_bytes(from_small);
    unsigned char *const a = malloc(bytes), *const b = malloc(bytes);
    cr_assert_eq(bytes, rw_tensor_bytes(from_large));
    cr_assert_eq(rw_read(large.t, from_large, a, bytes), RW_OK, "%s", rw_error_message(large.ctx));
    cr_assert_eq(rw_read(small.t, from_small, b, bytes), RW_OK, "%s", rw_error_message(small.ctx));
    cr_assert_eq(first_difference(a, b, bytes), -1);
    free(a), free(b);
}

Test(large, element_by_element_and_dropout)
{
    NEEDS_A_LARGE_MACHINE();
    rw_tensor *x = rw_rand(large.t, RW_BF16, RW_SHAPE(COUNT));
    x = rw_dropout(large.t, rw_add_scalar(large.t, rw_mul(large.t, x, x), 1), 0.5f);
    draw_from(0, COUNT - TAIL);
    rw_tensor *y = rw_rand(small.t, RW_BF16, RW_SHAPE(TAIL));
    draw_from((uint64_t)COUNT / 4, COUNT - TAIL);
    y = rw_dropout(small.t, rw_add_scalar(small.t, rw_mul(small.t, y, y), 1), 0.5f);
    same_tail(rw_slice(large.t, x, 0, COUNT - TAIL, COUNT), y);
}

static rw_tensor *large_matrix(void)
{
    return rw_rand(large.t, RW_BF16, RW_SHAPE(ROWS, COLS));
}

static rw_tensor *last_rows(rw_tensor *x)
{
    return rw_slice(large.t, x, 0, ROWS - LAST, ROWS);
}

static rw_tensor *small_matrix(void)
{
    draw_from(0, (ROWS - LAST) * COLS);
    return rw_rand(small.t, RW_BF16, RW_SHAPE(LAST, COLS));
}

Test(large, softmax)
{
    NEEDS_A_LARGE_MACHINE();
    same_tail(last_rows(rw_softmax(large.t, large_matrix(), -1)), rw_softmax(small.t, small_matrix(), -1));
}

static rw_tensor *normed(struct fixture *b, rw_tensor *x)
{
    rw_tensor *const w = rw_param(b->ctx, "w", RW_BF16, RW_SHAPE(COLS));
    rw_tensor *const c = rw_param(b->ctx, "c", RW_BF16, RW_SHAPE(COLS));
    cr_assert_eq(rw_init_constant(w, 1.5), RW_OK);
    return rw_layernorm(b->t, x, w, c, 1e-5f);
}

Test(large, layernorm)
{
    NEEDS_A_LARGE_MACHINE();
    rw_tensor *const x = large_matrix(), *const y = small_matrix();
    same_tail(last_rows(normed(&large, x)), normed(&small, y));
}

Test(large, a_transpose)
{
    NEEDS_A_LARGE_MACHINE();
    rw_tensor *const x = rw_contiguous(large.t, rw_transpose(large.t, large_matrix(), 0, 1));
    rw_tensor *const y = rw_contiguous(small.t, rw_transpose(small.t, small_matrix(), 0, 1));
    same_tail(rw_slice(large.t, x, 1, ROWS - LAST, ROWS), y);
}

/* Sums of ones: 2^16 rows, exactly, and their gradient. */
Test(large, sums)
{
    NEEDS_A_LARGE_MACHINE();
    rw_tensor *const x = rw_require_grad(large.t, rw_add_scalar(large.t, rw_scale(large.t, large_matrix(), 0), 1));
    rw_tensor *const columns = rw_sum(large.t, x, RW_AXES(0), false);
    uint16_t *const sums = malloc((size_t)COLS * sizeof *sums);
    rw_tensor *const longest = rw_max(large.t, rw_sum(large.t, x, RW_AXES(-1), false), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(large.t, longest), RW_OK, "%s", rw_error_message(large.ctx));
    const rw_status status = rw_read(large.t, columns, sums, (size_t)COLS * sizeof *sums);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(large.ctx));
    for (int64_t i = 0; i < COLS; i++) cr_assert_eq(sums[i], 0x4780, "%ld: %04x", (long)i, sums[i]); /* 65536 */
    free(sums);
}

/* The mean is over 2^16 rows in the large run and 2^2 here: an exact factor of 2^14 between the gradients. */
Test(large, cross_entropy)
{
    NEEDS_A_LARGE_MACHINE();
    int32_t *const targets = malloc((size_t)ROWS * sizeof *targets);
    for (int64_t i = 0; i < ROWS; i++) targets[i] = (int32_t)(i * 7919 % COLS);
    rw_tensor *const x = rw_require_grad(large.t, large_matrix()), *const y = rw_require_grad(small.t, small_matrix());
    rw_tensor *const of_large = rw_cross_entropy(
        large.t, x, rw_input(large.t, RW_I32, RW_SHAPE(ROWS), targets, ROWS * sizeof *targets));
    const int32_t *const last = targets + ROWS - LAST;
    rw_tensor *const of_small = rw_cross_entropy(small.t, y,
                                                 rw_input(small.t, RW_I32, RW_SHAPE(LAST), last, LAST * sizeof *last));
    free(targets);
    rw_tensor *dx, *dy;
    cr_assert_eq(rw_grad(large.t, of_large, &x, 1, &dx), RW_OK, "%s", rw_error_message(large.ctx));
    cr_assert_eq(rw_grad(small.t, of_small, &y, 1, &dy), RW_OK, "%s", rw_error_message(small.ctx));
    same_tail(last_rows(dx), rw_scale(small.t, dy, 1.0 / 16384));
}

/* Integers: exact in any order. */
Test(large, a_product)
{
    NEEDS_A_LARGE_MACHINE();
    enum { K = 8 };
    float *const a = malloc((size_t)ROWS * K * sizeof *a), *const b = malloc(K * (size_t)COLS * sizeof *b);
    float *const out = malloc((size_t)COLS * sizeof *out);
    for (int64_t i = 0; i < ROWS * K; i++) a[i] = (float)(i % 5);
    for (int64_t i = 0; i < K * COLS; i++) b[i] = (float)(i % 7 - 3);
    rw_tensor *const c = rw_matmul(
        large.t, rw_cast(large.t, rw_input(large.t, RW_F32, RW_SHAPE(ROWS, K), a, ROWS * K * sizeof *a), RW_BF16),
        rw_cast(large.t, rw_input(large.t, RW_F32, RW_SHAPE(K, COLS), b, K * COLS * sizeof *b), RW_BF16));
    rw_tensor *const last = rw_cast(large.t, rw_slice(large.t, c, 0, ROWS - 1, ROWS), RW_F32);
    cr_assert_eq(rw_read(large.t, last, out, (size_t)COLS * sizeof *out), RW_OK, "%s", rw_error_message(large.ctx));
    for (int64_t j = 0; j < COLS; j++) {
        float sum = 0;
        for (int64_t k = 0; k < K; k++) sum += a[(ROWS - 1) * K + k] * b[k * COLS + j];
        cr_assert_eq(out[j], sum, "column %ld", (long)j);
    }
    free(a), free(b), free(out);
}
