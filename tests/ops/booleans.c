/*
 * Booleans, beyond the table of op_cases.h: NaN, ties, numbers that a type rounds, every type and layout of condition
 * and operands, bytes other than 0 and 1, conversions, selection next to NaN and infinity, and invalid calls.
 */
#include "record/tape.h"
#include "support/compare.h"
#include "support/refused.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype floats[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };

static struct fixture open(void)
{
    return fixture_open(1, 1);
}

static rw_tensor *numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, const double *x)
{
    unsigned char data[8 * 64];
    for (int64_t i = 0; i < rw_shape_numel(shape); i++) {
        if (rw_dtype_is_float(dtype)) number_put(data, dtype, i, x[i]);
        else if (dtype == RW_I32) ((int32_t *)(void *)data)[i] = (int32_t)x[i];
        else data[i] = (unsigned char)x[i];
    }
    return rw_input(b->t, dtype, shape, data, (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype));
}

static void is_truth(struct fixture *b, rw_tensor *x, const char *want, const char *what)
{
    uint8_t got[64];
    cr_assert(x, "%s: %s", what, rw_error_message(b->ctx));
    cr_assert_eq(rw_tensor_dtype(x), RW_BOOL, "%s", what);
    cr_assert_eq(rw_tensor_bytes(x), strlen(want), "%s", what);
    cr_assert_eq(rw_read(b->t, x, got, strlen(want)), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (size_t i = 0; want[i]; i++) cr_expect_eq(got[i], want[i] - '0', "%s, element %zu: %d", what, i, got[i]);
}

Test(booleans, comparisons_of_every_type_with_nan_and_ties)
{
    struct fixture b = open();
    const double x[] = { 1, 2, 3, NAN, NAN, INFINITY, -0.0, -INFINITY }, y[] = { 2, 2, 2, 2, NAN, INFINITY, 0, 1 };
    for (size_t d = 0; d < 4; d++) {
        rw_tensor *const p = numbers(&b, floats[d], RW_SHAPE(8), x), *const q = numbers(&b, floats[d], RW_SHAPE(8), y);
        is_truth(&b, rw_eq(b.t, p, q), "01000110", "eq");
        is_truth(&b, rw_ne(b.t, p, q), "10111001", "ne");
        is_truth(&b, rw_lt(b.t, p, q), "10000001", "lt");
        is_truth(&b, rw_le(b.t, p, q), "11000111", "le");
        is_truth(&b, rw_gt(b.t, p, q), "00100000", "gt");
        is_truth(&b, rw_ge(b.t, p, q), "01100110", "ge");
        is_truth(&b, rw_isfinite(b.t, p), "11100010", "isfinite");
    }
    const double i[] = { 1, 2, 3 }, j[] = { 2, 2, 2 };
    const rw_dtype whole[] = { RW_I32, RW_BOOL };
    for (int d = 0; d < 2; d++) {
        rw_tensor *const p = numbers(&b, whole[d], RW_SHAPE(3), i), *const q = numbers(&b, whole[d], RW_SHAPE(3), j);
        is_truth(&b, rw_eq(b.t, p, q), d ? "111" : "010", "eq of whole numbers");
        is_truth(&b, rw_lt(b.t, p, q), d ? "000" : "100", "lt of whole numbers");
    }
    fixture_close(&b);
}

/* As many results as a number has bytes: they take as much memory as the number that all elements are compared with. */
Test(booleans, what_is_compared_with_a_number_is_not_written_over_it)
{
    struct fixture b = open();
    const double x[] = { 1, 1, 1, 1, 1, 1, 1, -0.25 };
    for (size_t d = 0; d < 4; d++) {
        const int64_t n = (int64_t)rw_dtype_size(floats[d]);
        rw_tensor *const p = numbers(&b, floats[d], RW_SHAPE(n), x + 8 - n);
        rw_tensor *const kept = rw_cast(b.t, rw_gt_scalar(b.t, p, -0.4375), RW_F32);
        float got[8] = { 0 };
        cr_assert_eq(rw_read(b.t, kept, got, (size_t)n * sizeof *got), RW_OK, "%s", rw_error_message(b.ctx));
        for (int64_t i = 0; i < n; i++) cr_expect_eq(got[i], 1.f, "%s, element %d", rw_dtype_name(floats[d]), (int)i);
    }
    fixture_close(&b);
}

/* As in PyTorch: torch.tensor([0.1], dtype=torch.bfloat16) == 0.1 holds. */
Test(booleans, a_number_is_rounded_to_the_type)
{
    struct fixture b = open();
    const double tenth[] = { 0.1, 0.2 };
    for (size_t d = 0; d < 4; d++) {
        unsigned char data[16];
        for (int64_t i = 0; i < 2; i++) number_put(data, RW_F64, i, tenth[i]);
        rw_tensor *const x = rw_cast(b.t, rw_input(b.t, RW_F64, RW_SHAPE(2), data, sizeof data), floats[d]);
        is_truth(&b, rw_eq_scalar(b.t, x, 0.1), "10", "eq_scalar");
        is_truth(&b, rw_ne_scalar(b.t, x, 0.1), "01", "ne_scalar");
        is_truth(&b, rw_lt_scalar(b.t, x, 0.2), "10", "lt_scalar");
        is_truth(&b, rw_le_scalar(b.t, x, 0.1), "10", "le_scalar");
        is_truth(&b, rw_gt_scalar(b.t, x, 0.1), "01", "gt_scalar");
        is_truth(&b, rw_ge_scalar(b.t, x, 0.2), "01", "ge_scalar");
    }
    fixture_close(&b);
}

Test(booleans, logic_takes_any_byte_and_gives_0_or_1)
{
    struct fixture b = open();
    const double x[] = { 0, 1, 2, 255, 0, 128 }, y[] = { 0, 0, 1, 7, 3, 0 };
    rw_tensor *const p = numbers(&b, RW_BOOL, RW_SHAPE(6), x), *const q = numbers(&b, RW_BOOL, RW_SHAPE(6), y);
    is_truth(&b, rw_logical_not(b.t, p), "100010", "not");
    is_truth(&b, rw_logical_and(b.t, p, q), "001100", "and");
    is_truth(&b, rw_logical_or(b.t, p, q), "011111", "or");
    is_truth(&b, rw_logical_and(b.t, rw_reshape(b.t, p, RW_SHAPE(6, 1)), rw_slice(b.t, q, 0, 2, 4)), "001111110011",
             "and, broadcast");
    is_truth(&b, rw_contiguous(b.t, rw_transpose(b.t, rw_gt_scalar(b.t, rw_cast(b.t, rw_reshape(b.t, p,
                 RW_SHAPE(2, 3)), RW_F32), 0), 0, 1)), "011011", "turned");
    fixture_close(&b);
}

Test(booleans, casts_from_and_to_every_type)
{
    struct fixture b = open();
    const double x[] = { 0, 1, 0.5, -3, NAN, -0.0, INFINITY, 0 }, bytes[] = { 0, 1, 2, 255, 0, 9 };
    for (int d = 0; d < 4; d++) {
        is_truth(&b, rw_cast(b.t, numbers(&b, floats[d], RW_SHAPE(8), x), RW_BOOL), "01111010", "to truth");
        rw_tensor *const back = rw_cast(b.t, rw_cast(b.t, numbers(&b, RW_BOOL, RW_SHAPE(6), bytes), floats[d]), RW_F64);
        double got[6];
        cr_assert_eq(rw_read(b.t, back, got, sizeof got), RW_OK);
        for (int i = 0; i < 6; i++) cr_expect_eq(got[i], bytes[i] != 0, "%s: %g", rw_dtype_name(floats[d]), got[i]);
    }
    int32_t whole[6];
    rw_tensor *const p = numbers(&b, RW_BOOL, RW_SHAPE(6), bytes);
    cr_assert_eq(rw_read(b.t, rw_cast(b.t, p, RW_I32), whole, sizeof whole), RW_OK);
    for (int i = 0; i < 6; i++) cr_expect_eq(whole[i], bytes[i] != 0);
    const double j[] = { 0, -7, 256 };
    is_truth(&b, rw_cast(b.t, numbers(&b, RW_I32, RW_SHAPE(3), j), RW_BOOL), "011", "of whole numbers");
    cr_expect_eq(rw_item(b.t, rw_cast(b.t, numbers(&b, RW_F32, RW_SHAPE(1), x + 3), RW_BOOL)), 1);
    cr_expect_str_eq(rw_dtype_name(RW_BOOL), "bool");
    cr_expect(rw_dtype_size(RW_BOOL) == 1 && !rw_dtype_is_float(RW_BOOL));
    fixture_close(&b);
}

/* Odd extents, so that copies move single bytes and partial packs. */
Test(booleans, views_and_joins_of_bytes)
{
    struct fixture b = open();
    enum { ROWS = 67, COLS = 45 };
    uint8_t x[ROWS * COLS], got[2 * ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = (uint8_t)(i * 7 % 11 < 5);
    rw_tensor *const p = rw_input(b.t, RW_BOOL, RW_SHAPE(ROWS, COLS), x, sizeof x);
    cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, rw_transpose(b.t, p, 0, 1)), got, sizeof x), RW_OK);
    for (int i = 0; i < ROWS * COLS; i++) cr_assert_eq(got[i], x[i % ROWS * COLS + i / ROWS], "element %d", i);
    rw_tensor *const parts[] = { p, rw_logical_not(b.t, p) };
    cr_assert_eq(rw_read(b.t, rw_concat(b.t, parts, 2, 1), got, sizeof got), RW_OK);
    for (int i = 0; i < 2 * ROWS * COLS; i++) {
        const int row = i / (2 * COLS), col = i % (2 * COLS);
        cr_assert_eq(got[i], col < COLS ? x[row * COLS + col] : !x[row * COLS + col - COLS], "element %d", i);
    }
    cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, rw_slice(b.t, p, 1, 3, 20)), got, ROWS * 17), RW_OK);
    for (int i = 0; i < ROWS * 17; i++) cr_assert_eq(got[i], x[i / 17 * COLS + 3 + i % 17], "element %d", i);
    fixture_close(&b);
}

/* Whole rows of packs, partial rows, and elements with a stride of 0. */
Test(booleans, where_of_every_size_of_element)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16, RW_I32, RW_BOOL };
    static const int64_t widths[] = { 1, 7, 16, 33, 64 };
    struct fixture b = open();
    for (size_t d = 0; d < 6; d++)
        for (size_t w = 0; w < 5; w++) {
            const int64_t width = widths[w], n = 5 * width;
            uint8_t condition[5 * 64];
            unsigned char x[8 * 5 * 64], y[8 * 64], got[8 * 5 * 64];
            const size_t size = rw_dtype_size(types[d]);
            for (int64_t i = 0; i < n; i++) condition[i] = i * 5 % 7 < 3 ? (uint8_t)(i % 255 + 1) : 0;
            for (size_t i = 0; i < (size_t)n * size; i++) x[i] = (unsigned char)(i * 37 + 1);
            for (size_t i = 0; i < (size_t)width * size; i++) y[i] = (unsigned char)(i * 91 + 5);
            rw_tensor *const z = rw_where(
                b.t, rw_input(b.t, RW_BOOL, RW_SHAPE(5, width), condition, (size_t)(5 * width) * sizeof *condition),
                rw_input(b.t, types[d], RW_SHAPE(5, width), x, (size_t)(5 * width) * rw_dtype_size(types[d])),
                rw_input(b.t, types[d], RW_SHAPE(width), y, (size_t)width * rw_dtype_size(types[d])));
            cr_assert_eq(rw_read(b.t, z, got, (size_t)n * size), RW_OK, "%s", rw_error_message(b.ctx));
            for (int64_t i = 0; i < n; i++)
                cr_assert_arr_eq(got + (size_t)i * size,
                                 condition[i] ? x + (size_t)i * size : y + (size_t)(i % width) * size, size,
                                 "%s, width %d, element %d", rw_dtype_name(types[d]), (int)width, (int)i);
        }
    fixture_close(&b);
}

/* Rows of sixteen, sliced from longer ones, not aligned to a pack. */
Test(booleans, where_of_columns)
{
    enum { ROWS = 5, MAX = 19, N = 16 };
    struct fixture b = open();
    for (int width = 17; width <= MAX; width++)
        for (int from = 0; from < 2; from++) {
            float x[ROWS * MAX], got[ROWS * N];
            uint8_t condition[ROWS * MAX];
            for (int i = 0; i < ROWS * width; i++) x[i] = (float)(i + 1), condition[i] = i % 3 == 0;
            rw_tensor *const c = rw_input(b.t, RW_BOOL, RW_SHAPE(ROWS, width), condition,
                                          (size_t)(ROWS * width) * sizeof *condition);
            rw_tensor *const y = rw_slice(
                b.t, rw_input(b.t, RW_F32, RW_SHAPE(ROWS, width), x, (size_t)(ROWS * width) * sizeof *x), 1, from,
                from + N);
            rw_tensor *const z = rw_where(b.t, rw_slice(b.t, c, 1, from, from + N), y, rw_neg(b.t, y));
            cr_assert_eq(rw_read(b.t, z, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
            for (int i = 0; i < ROWS * N; i++) {
                const int at = i / N * width + from + i % N;
                cr_assert_eq(got[i], condition[at] ? x[at] : -x[at], "%d from %d, element %d", width, from, i);
            }
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

/* 0, not NaN, for elements that were not selected, and PyTorch's values at the bounds of clamp. */
Test(booleans, gradients_of_what_was_not_taken_are_zero)
{
    struct fixture b = open();
    const double x[] = { -2, -0.5, 0, 1, 1.5, NAN }, inf[] = { INFINITY, INFINITY, 1, INFINITY, NAN, 1 };
    const double want[] = { 0, 0, 1, 0, 0, 0 };
    for (size_t d = 0; d < 4; d++) {
        rw_tensor *const p = rw_require_grad(b.t, numbers(&b, floats[d], RW_SHAPE(6), x));
        rw_tensor *const q = rw_require_grad(b.t, numbers(&b, floats[d], RW_SHAPE(6), inf));
        rw_tensor *const chosen = rw_where(b.t, rw_isfinite(b.t, q), q, numbers(&b, floats[d], RW_SCALAR, x + 2));
        rw_tensor *const loss = rw_sum(b.t, rw_add(b.t, rw_clamp(b.t, p, -0.5, 1), chosen), RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        unsigned char dp[64], dq[64];
        cr_assert_eq(rw_read(b.t, rw_gradient(p), dp, rw_tensor_bytes(p)), RW_OK);
        cr_assert_eq(rw_read(b.t, rw_gradient(q), dq, rw_tensor_bytes(q)), RW_OK);
        for (int i = 0; i < 6; i++) {
            cr_expect_eq(number_get(dp, floats[d], i), want[i], "clamp, element %d", i);
            cr_expect_eq(number_get(dq, floats[d], i), isfinite(inf[i]), "where, element %d", i);
        }
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(booleans, clamp_with_open_sides_and_bounds_that_cross)
{
    struct fixture b = open();
    const double x[] = { -INFINITY, -3, 0.25, 3, INFINITY, NAN };
    const struct {
        double low, high, want[6], slope[6];
    } all[] = { { -INFINITY, 1, { -INFINITY, -3, 0.25, 1, 1, NAN }, { 1, 1, 1, 0, 0, 0 } },
                { -1, INFINITY, { -1, -1, 0.25, 3, INFINITY, NAN }, { 0, 0, 1, 1, 1, 0 } },
                { -INFINITY, INFINITY, { -INFINITY, -3, 0.25, 3, INFINITY, NAN }, { 1, 1, 1, 1, 1, 0 } },
                { 2, -2, { -2, -2, -2, -2, -2, NAN }, { 0 } } };
    for (size_t d = 0; d < 4; d++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            unsigned char got[64], dx[64];
            rw_tensor *const p = rw_require_grad(b.t, numbers(&b, floats[d], RW_SHAPE(6), x));
            rw_tensor *const y = rw_clamp(b.t, p, all[i].low, all[i].high);
            cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_read(b.t, y, got, rw_tensor_bytes(y)), RW_OK);
            cr_assert_eq(rw_read(b.t, rw_gradient(p), dx, rw_tensor_bytes(p)), RW_OK);
            for (int k = 0; k < 6; k++) {
                const double g = number_get(got, floats[d], k), w = all[i].want[k];
                cr_expect(g == w || (isnan(g) && isnan(w)), "%s, %zu, element %d: %g", rw_dtype_name(floats[d]), i, k,
                          g);
                cr_expect_eq(number_get(dx, floats[d], k), all[i].slope[k], "%s, %zu, slope %d",
                             rw_dtype_name(floats[d]), i, k);
            }
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

Test(booleans, what_is_refused)
{
    struct fixture b = open();
    const double x[] = { 1, 2, 3, 4 };
    rw_tensor *const f = numbers(&b, RW_F32, RW_SHAPE(2, 2), x), *const i = numbers(&b, RW_I32, RW_SHAPE(2, 2), x);
    rw_tensor *const truth = numbers(&b, RW_BOOL, RW_SHAPE(2, 2), x);
    rw_tensor *const long_ = numbers(&b, RW_BOOL, RW_SHAPE(4), x), *const more = numbers(&b, RW_BOOL,
                                                                                         RW_SHAPE(1, 2, 2), x);
    REFUSED(RW_ERR_DTYPE, rw_eq(b.t, f, i));
    REFUSED(RW_ERR_SHAPE, rw_logical_or(b.t, truth, long_));
    REFUSED(RW_ERR_DTYPE, rw_logical_not(b.t, f));
    REFUSED(RW_ERR_DTYPE, rw_isfinite(b.t, i));
    REFUSED(RW_ERR_DTYPE, rw_where(b.t, f, f, f));
    REFUSED(RW_ERR_DTYPE, rw_where(b.t, truth, f, i));
    REFUSED(RW_ERR_SHAPE, rw_where(b.t, long_, f, f));
    REFUSED(RW_ERR_DTYPE, rw_masked_fill(b.t, f, i, 0));
    REFUSED(RW_ERR_SHAPE, rw_masked_fill(b.t, f, more, 0));
    REFUSED(RW_ERR_SHAPE, rw_masked_fill(b.t, f, long_, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_masked_fill(b.t, NULL, truth, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_masked_fill(b.t, f, NULL, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_gt_scalar(b.t, NULL, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_clamp(b.t, f, NAN, 1));
    REFUSED(RW_ERR_ARGUMENT, rw_clamp_tensor(b.t, f, RW_NONE, RW_NONE));
    REFUSED(RW_ERR_ARGUMENT, rw_clamp_tensor(b.t, f, NULL, f));
    REFUSED(RW_ERR_DTYPE, rw_clamp(b.t, i, 0, 1));
    REFUSED(RW_ERR_DTYPE, rw_param(b.ctx, "p", RW_BOOL, RW_SHAPE(2)));
    REFUSED(RW_ERR_DTYPE, rw_add(b.t, truth, truth));
    cr_expect_null(rw_masked_fill(NULL, f, truth, 0));
    fixture_close(&b);
}

Test(booleans, buffers_are_written_and_assigned)
{
    struct fixture b = open();
    const uint8_t x[] = { 1, 0, 1 };
    uint8_t got[3];
    rw_tensor *const mask = rw_buffer(b.ctx, "mask", RW_BOOL, RW_SHAPE(3));
    cr_assert_eq(rw_write(mask, x, sizeof x), RW_OK);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_init_constant(w, 2), RW_OK);
    rw_tensor *const y = rw_where(b.t, mask, w, rw_scale(b.t, w, 3));
    cr_assert_eq(rw_assign(b.t, mask, rw_logical_not(b.t, mask)), RW_OK);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    float g[3];
    cr_assert_eq(rw_read(b.t, rw_gradient(w), g, sizeof g), RW_OK);
    cr_expect(g[0] == 1 && g[1] == 3 && g[2] == 1, "%g %g %g", (double)g[0], (double)g[1], (double)g[2]);
    rw_tape_reset(b.t);
    cr_assert_eq(rw_read(b.t, mask, got, sizeof got), RW_OK);
    cr_expect(!got[0] && got[1] && !got[2]);
    fixture_close(&b);
}
