/*
 * Indexing ops, beyond the table of op_cases.h: positions compared with a search of the row, ties and NaN, every type
 * that has no gradient, indexes out of range, the order of sums, and invalid calls.
 */
#include "record/tape.h"
#include "support/compare.h"
#include "support/refused.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PADDED(table, index, row) \
    rw_embedding_with(b.t, table, index, &(rw_embedding_params){ .has_padding_index = true, .padding_index = row })

static const rw_dtype floats[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };

/* Many are equal, some are NaN or infinite, with zeros of both signs. */
static double value_of(int64_t i)
{
    const uint32_t k = (uint32_t)(i * 2654435761u) >> 16;
    if (k % 41 == 0) return NAN;
    if (k % 43 == 0) return INFINITY;
    if (k % 47 == 0) return -INFINITY;
    return k % 7 == 0 ? -0.0 : (k % 13 - 6.0) / 4;
}

static rw_tensor *values(struct fixture *b, rw_dtype dtype, rw_shape shape, bool nan)
{
    const int64_t n = rw_shape_numel(shape);
    unsigned char *const data = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) number_put(data, dtype, i, nan || !isnan(value_of(i)) ? value_of(i) : 1.5);
    rw_tensor *const x = rw_input(b->t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype));
    free(data);
    return x;
}

static bool comes_first(double v, int64_t i, double w, int64_t j, bool smallest)
{
    if (isnan(v) || isnan(w)) return isnan(v) && isnan(w) ? i < j : isnan(v);
    if (v == w) return i < j;
    return smallest ? v < w : v > w;
}

/* The indexes of a row in descending order of value, by selection. */
static void places_of(int64_t base, int64_t n, int64_t step, int64_t k, bool smallest, int32_t *place)
{
    for (int64_t done = 0; done < k; done++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++) {
            bool used = false;
            for (int64_t j = 0; j < done; j++) used |= place[j] == i;
            if (used) continue;
            if (best < 0 || comes_first(value_of(base + i * step), i, value_of(base + best * step), best, smallest))
                best = i;
        }
        place[done] = (int32_t)best;
    }
}

Test(indexes, the_first_of_the_largest_and_of_the_smallest_along_any_axis)
{
    static const int64_t extents[][3] = { { 3, 1, 1 }, { 2, 5, 7 }, { 3, 33, 65 }, { 2, 1500, 1 }, { 1, 70, 200 } };
    struct fixture b = fixture_open(1, 2);
    for (size_t s = 0; s < sizeof extents / sizeof *extents; s++)
        for (int d = 0; d < 4; d++)
            for (int smallest = 0; smallest < 2; smallest++) {
                const int64_t outer = extents[s][0], n = extents[s][1], inner = extents[s][2];
                rw_tensor *const x = values(&b, floats[d], RW_SHAPE(outer, n, inner), true);
                rw_tensor *const y = smallest ? rw_argmin(b.t, x, 1, s % 2) : rw_argmax(b.t, x, -2, s % 2);
                cr_assert(y, "%s", rw_error_message(b.ctx));
                cr_assert(rw_shape_equal(rw_tensor_shape(y),
                                         s % 2 ? RW_SHAPE(outer, 1, inner) : RW_SHAPE(outer, inner)));
                int32_t got[256];
                cr_assert_eq(rw_read(b.t, y, got, rw_tensor_bytes(y)), RW_OK, "%s", rw_error_message(b.ctx));
                for (int64_t i = 0; i < outer * inner; i++) {
                    int32_t want;
                    places_of(i / inner * n * inner + i % inner, n, inner, 1, smallest, &want);
                    cr_assert_eq(got[i], want, "%s, shape %zu, %d: %d, not %d", rw_dtype_name(floats[d]), s,
                                 (int)i, got[i], want);
                }
                rw_tape_reset(b.t);
            }
    fixture_close(&b);
}

/* Equal elements far apart in a long row, in each type: the first is chosen, also if nothing exceeds -infinity. */
Test(indexes, the_first_of_equal_ones_of_a_long_row)
{
    enum { N = 3000 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++)
        for (int k = 0; k < 3; k++) {
            unsigned char *const data = malloc(8 * N);
            for (int i = 0; i < N; i++) number_put(data, floats[d], i, k == 2 ? -INFINITY : k ? 0.5 : i % 7 / 8.0);
            if (k < 2) number_put(data, floats[d], 1100, 2), number_put(data, floats[d], 2700, 2);
            int32_t got = -1;
            rw_tensor *const y = rw_argmax(
                b.t, rw_input(b.t, floats[d], RW_SHAPE(N), data, N * rw_dtype_size(floats[d])), 0, false);
            cr_assert_eq(rw_read(b.t, y, &got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
            cr_expect_eq(got, k < 2 ? 1100 : 0, "%s, %d: %d", rw_dtype_name(floats[d]), k, got);
            free(data);
        }
    fixture_close(&b);
}

Test(indexes, topk_in_order_with_ties_and_nan)
{
    static const int64_t sizes[][3] = { { 3, 1, 1 }, { 4, 7, 7 }, { 5, 64, 8 }, { 2, 1100, 30 }, { 2, 33, 32 } };
    struct fixture b = fixture_open(1, 2);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int d = 0; d < 4; d++) {
            const int64_t rows = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
            rw_tensor *top, *place;
            cr_assert_eq(rw_topk(b.t, values(&b, floats[d], RW_SHAPE(rows, n), true), k, -1, &top, &place), RW_OK);
            int32_t got[256], want[64];
            unsigned char number[8 * 256];
            cr_assert_eq(rw_read(b.t, place, got, rw_tensor_bytes(place)), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_read(b.t, top, number, rw_tensor_bytes(top)), RW_OK);
            for (int64_t row = 0; row < rows; row++) {
                places_of(row * n, n, 1, k, false, want);
                for (int64_t i = 0; i < k; i++) {
                    const double v = value_of(row * n + want[i]), w = number_get(number, floats[d], row * k + i);
                    cr_assert_eq(got[row * k + i], want[i], "%s, row %d, number %d", rw_dtype_name(floats[d]),
                                 (int)row, (int)i);
                    cr_assert(v == w || (isnan(v) && isnan(w)), "%g, not %g", w, v);
                }
            }
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

/* The gradient goes to the element that was chosen, and to no other. */
Test(indexes, topk_of_another_axis_and_its_gradient)
{
    struct fixture b = fixture_open(1, 1);
    const float x[] = { 1, 5, 3, 5, 2, 5 };
    float got[4], dx[6];
    int32_t at[4];
    rw_tensor *const in = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3, 2), x, sizeof x)), *top, *place;
    cr_assert_eq(rw_topk(b.t, in, 2, 0, &top, &place), RW_OK);
    const float w[] = { 1, 10, 100, 1000 };
    rw_tensor *const weight = rw_input(b.t, RW_F32, RW_SHAPE(2, 2), w, sizeof w);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, top, weight), RW_ALL_AXES, false);
    cr_assert(!rw_tensor_requires_grad(rw_cast(b.t, place, RW_F32)));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(in), dx, sizeof dx), RW_OK);
    const float want[] = { 0, 10, 1, 1000, 100, 0 };
    for (int i = 0; i < 6; i++) cr_expect_eq(dx[i], want[i], "%d: %g", i, (double)dx[i]);
    cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, top), got, sizeof got), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, place), at, sizeof at), RW_OK);
    cr_expect(got[0] == 3 && got[1] == 5 && got[2] == 2 && got[3] == 5);
    cr_expect(at[0] == 1 && at[1] == 0 && at[2] == 2 && at[3] == 1);
    fixture_close(&b);
}

/* Arbitrary bytes, for every element size. */
Test(indexes, gather_and_index_select_of_every_type)
{
    static const rw_dtype types[] = { RW_BOOL, RW_F16, RW_I32, RW_F64 };
    enum { R = 5, C = 9, J = 7 };
    struct fixture b = fixture_open(1, 1);
    unsigned char x[R * C * 8], got[J * C * 8];
    int32_t index[J * C], list[J];
    for (size_t i = 0; i < sizeof x; i++) x[i] = (unsigned char)(i * 71 + 3);
    for (int i = 0; i < J * C; i++) index[i] = i * 7 % R;
    for (int i = 0; i < J; i++) list[i] = i * 3 % R;
    for (int d = 0; d < 4; d++) {
        const size_t size = rw_dtype_size(types[d]);
        rw_tensor *const in = rw_input(b.t, types[d], RW_SHAPE(R, C), x, R * C * rw_dtype_size(types[d]));
        rw_tensor *const y = rw_gather(b.t, in, 0, rw_input(b.t, RW_I32, RW_SHAPE(J, C), index, sizeof index));
        cr_assert_eq(rw_read(b.t, y, got, J * C * size), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < J * C; i++)
            cr_assert_arr_eq(got + (size_t)i * size, x + (size_t)(index[i] * C + i % C) * size, size, "element %d", i);
        rw_tensor *const z = rw_index_select(b.t, in, 0, rw_input(b.t, RW_I32, RW_SHAPE(J), list, sizeof list));
        cr_assert_eq(rw_read(b.t, z, got, J * C * size), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < J; i++)
            cr_assert_arr_eq(got + (size_t)(i * C) * size, x + (size_t)(list[i] * C) * size, C * size, "row %d", i);
    }
    fixture_close(&b);
}

/*
 * In the order of the index, then the addend: for 1, 2^-24 and 2^-24 in float32 the order is visible. x is 2^24, to
 * which adding 1 alone has no effect.
 */
Test(indexes, sums_are_taken_in_the_order_of_the_index)
{
    struct fixture b = fixture_open(1, 1);
    const int32_t index[] = { 1, 1, 1, 0, 0, 0, 2, 2 };
    const float src[] = { 1, 0x1p-24f, 0x1p-24f, 0x1p-24f, 0x1p-24f, 1, 1, 1 }, x[] = { 0, 0, 0x1p24f };
    const float want[] = { 1 + 0x1p-23f, 1, 0x1p24f + 2 };
    float got[3];
    rw_tensor *const at = rw_input(b.t, RW_I32, RW_SHAPE(8), index, sizeof index), *const from = rw_input(
                                                                                       b.t, RW_F32, RW_SHAPE(8), src,
                                                                                       sizeof src);
    rw_tensor *const y = rw_scatter_add(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3), x, sizeof x), 0, at, from);
    cr_assert_eq(rw_read(b.t, y, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) cr_expect_eq(got[i], want[i], "scatter_add, element %d: %a", i, (double)got[i]);
    rw_tensor *const p = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3), x, sizeof x));
    rw_tensor *const lists[] = { rw_gather(b.t, p, 0, at), rw_index_select(b.t, p, 0, at),
                                 rw_reshape(b.t, rw_embedding_bag(b.t, rw_reshape(b.t, p, RW_SHAPE(3, 1)),
                                                                  rw_reshape(b.t, at, RW_SHAPE(8, 1)), RW_BAG_SUM),
                                            RW_SHAPE(8)) };
    for (int k = 0; k < 3; k++) {
        rw_tensor *g = NULL;
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, lists[k], from), RW_ALL_AXES, false);
        cr_assert_eq(rw_grad(b.t, loss, (rw_tensor *[]){ p }, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, g, got, sizeof got), RW_OK);
        for (int i = 0; i < 2; i++) cr_expect_eq(got[i], want[i], "%d, element %d: %a", k, i, (double)got[i]);
    }
    fixture_close(&b);
}

Test(indexes, one_out_of_range_is_named_when_it_runs)
{
    struct fixture b = fixture_open(1, 1);
    const float x[6] = { 0 };
    for (int k = 0; k < 10; k++) {
        const int32_t out = k % 2 ? -1 : k == 4 ? 2 : 3, bad[] = { k % 3 ? out : 1, k % 3 ? 1 : out };
        float got[16];
        rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(3, 2), x, sizeof x);
        rw_tensor *const row = rw_input(b.t, RW_I32, RW_SHAPE(1, 2), bad, sizeof bad), *const list = rw_input(
                                                                                           b.t, RW_I32, RW_SHAPE(2),
                                                                                           bad, sizeof bad);
        rw_tensor *const src = rw_input(b.t, RW_F32, RW_SHAPE(1, 2), x, 2 * sizeof *x);
        static const char *const names[] = { "gather", "scatter_add", "index_select", "embedding_bag" };
        rw_tensor *const y = k < 2   ? rw_gather(b.t, in, 0, row)
                             : k < 4 ? rw_scatter_add(b.t, in, 0, row, src)
                             : k < 6 ? rw_index_select(b.t, in, k == 4, list)
                                     : rw_embedding_bag(b.t, in, row, RW_BAG_MEAN);
        cr_assert(y, "%d: %s", k, rw_error_message(b.ctx));
        cr_expect_eq(rw_read(b.t, y, got, rw_tensor_bytes(y)), RW_ERR_ARGUMENT, "%d", k);
        const char *const m = rw_error_message(b.ctx);
        cr_expect(strstr(m, names[k / 2 < 3 ? k / 2 : 3]) && strstr(m, "out of range"), "%d: %s", k, m);
        char holds[64];
        const int least = bad[1] < bad[0], most = !least;
        snprintf(holds, sizeof holds, "holds %d (element %d) to %d (element %d)", bad[least], least, bad[most], most);
        cr_expect(strstr(m, holds) || test_device() != RW_DEVICE_CPU, "%d: %s, not %s", k, m, holds);
        rw_error_clear(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The padding's row is read but gets no gradient, and contributes nothing to second gradients. */
Test(indexes, a_padding_is_read_and_has_no_gradient)
{
    struct fixture b = fixture_open(1, 1);
    const double rows[] = { 1, 2, 3, 4, 5, 6 }, up[] = { 1, 10, 100, 1000, 1e4, 1e5 }, more[] = { 7, 8, 9, 10, 11, 12 };
    const int32_t places[] = { 2, 0, 2 };
    double y[6], first[6], second[6];
    rw_tensor *const table = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(3, 2), rows, sizeof rows));
    rw_tensor *const u = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(3, 2), up, sizeof up));
    rw_tensor *const z = PADDED(table, rw_input(b.t, RW_I32, RW_SHAPE(3), places, sizeof places), -3);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, z, u), RW_ALL_AXES, false);
    rw_tensor *slope, *again;
    cr_assert_eq(rw_grad(b.t, loss, &table, 1, &slope), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const weighed = rw_mul(b.t, slope, rw_input(b.t, RW_F64, RW_SHAPE(3, 2), more, sizeof more));
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, weighed, RW_ALL_AXES, false), &u, 1, &again), RW_OK);
    cr_assert_eq(rw_read(b.t, z, y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, slope, first, sizeof first), RW_OK);
    cr_assert_eq(rw_read(b.t, again, second, sizeof second), RW_OK);
    const double want[][6] = { { 5, 6, 1, 2, 5, 6 }, { 0, 0, 0, 0, 10001, 100010 }, { 11, 12, 0, 0, 11, 12 } };
    for (int i = 0; i < 6; i++)
        cr_expect(y[i] == want[0][i] && first[i] == want[1][i] && second[i] == want[2][i], "%d: %g, %g, %g", i, y[i],
                  first[i], second[i]);
    fixture_close(&b);
}

/* Bags of padding only give 0 in each mode, not a quotient by 0 or minus infinity; offsets have to begin with 0. */
Test(indexes, bags_of_nothing_but_padding)
{
    struct fixture b = fixture_open(1, 1);
    const float rows[] = { 1, -2, -3, 4 };
    const int32_t places[] = { 1, 1, 0, 1 }, begin[] = { 0, 4 };
    rw_tensor *const table = rw_input(b.t, RW_F32, RW_SHAPE(2, 2), rows, sizeof rows);
    rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(2, 2), places, sizeof places);
    rw_tensor *const flat = rw_reshape(b.t, index, RW_SHAPE(4));
    for (int mode = RW_BAG_SUM; mode <= RW_BAG_MAX; mode++) {
        float y[4];
        const rw_embedding_bag_params p = { .mode = (rw_bag_mode)mode, .has_padding_index = true, .padding_index = 1 };
        cr_assert_eq(rw_read(b.t, rw_embedding_bag_with(b.t, table, index, &p), y, sizeof y), RW_OK);
        cr_expect(y[0] == 0 && y[1] == 0 && y[2] == 1 && y[3] == -2, "mode %d: %g %g %g %g", mode, y[0], y[1], y[2],
                  y[3]);
    }
    float y[4];
    for (int ends = 0; ends < 2; ends++) { /* a bag of padding, one with a row, an empty one */
        static const int32_t start[] = { 0, 2, 4, 4 };
        float most[6];
        const rw_embedding_bag_params p = { .mode = RW_BAG_MAX,
                                            .has_padding_index = true,
                                            .padding_index = 1,
                                            .ends = ends,
                                            .offsets = rw_input(b.t, RW_I32, RW_SHAPE(3 + ends), start,
                                                                (size_t)(3 + ends) * sizeof *start) };
        cr_assert_eq(rw_read(b.t, rw_embedding_bag_with(b.t, table, flat, &p), most, sizeof most), RW_OK);
        for (int i = 0; i < 6; i++) cr_expect_eq(most[i], i == 2 ? 1 : i == 3 ? -2 : 0, "%d: %g", i, most[i]);
    }
    const rw_embedding_bag_params p = { .mode = RW_BAG_MEAN,
                                        .offsets = rw_input(b.t, RW_I32, RW_SHAPE(2), begin, sizeof begin) };
    cr_expect_eq(rw_read(b.t, rw_embedding_bag_with(b.t, table, flat, &p), y, sizeof y), RW_OK);
    cr_expect(y[0] == -2 && y[1] == 2.5f && y[2] == 0 && y[3] == 0, "%g %g %g %g", y[0], y[1], y[2], y[3]);
    fixture_close(&b);
}

/* The weight of a row that is in no bag is not read either, and has no gradient, of any order. */
Test(indexes, the_weight_of_a_padding_counts_nothing)
{
    struct fixture b = fixture_open(1, 1);
    const float rows[] = { 1, 2, NAN, INFINITY, 5, 6 }, weights[] = { 1, NAN, 2, INFINITY };
    const int32_t places[] = { 0, 1, 2, 1 }, begin[] = { 0, 2 };
    for (int way = 0; way < 2; way++) { /* with offsets, and without */
        const rw_shape s = way ? RW_SHAPE(2, 2) : RW_SHAPE(4);
        rw_tensor *const table = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3, 2), rows, sizeof rows));
        rw_tensor *const w = rw_require_grad(b.t, rw_input(b.t, RW_F32, s, weights, sizeof weights));
        rw_tensor *const index = rw_input(b.t, RW_I32, s, places, sizeof places), *in[] = { table, w }, *g[2], *again;
        const rw_embedding_bag_params p = { .weights = w,
                                            .has_padding_index = true,
                                            .padding_index = 1,
                                            .offsets = way ? RW_NONE
                                                           : rw_input(b.t, RW_I32, RW_SHAPE(2), begin, sizeof begin) };
        rw_tensor *const z = rw_embedding_bag_with(b.t, table, index, &p);
        float y[4], of_table[6], of_weights[4], twice[4];
        cr_assert_eq(rw_grad(b.t, rw_sum_all(b.t, rw_mul(b.t, z, z)), in, 2, g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_grad(b.t, rw_sum_all(b.t, g[0]), &w, 1, &again), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, z, y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, g[0], of_table, sizeof of_table), RW_OK);
        cr_assert_eq(rw_read(b.t, g[1], of_weights, sizeof of_weights), RW_OK);
        cr_assert_eq(rw_read(b.t, again, twice, sizeof twice), RW_OK);
        const float bags[] = { 1, 2, 10, 12 }, by_table[] = { 2, 4, 0, 0, 40, 48 }, by_weights[] = { 10, 0, 244, 0 };
        const float second[] = { 12, 0, 88, 0 }; /* of 2 w^2 times the sum of the row */
        for (int i = 0; i < 4; i++) cr_expect_eq(y[i], bags[i], "%d, bag %d: %g", way, i, y[i]);
        for (int i = 0; i < 6; i++) cr_expect_eq(of_table[i], by_table[i], "%d, table %d: %g", way, i, of_table[i]);
        for (int i = 0; i < 4; i++)
            cr_expect(of_weights[i] == by_weights[i] && twice[i] == second[i], "%d, weight %d: %g, second %g", way, i,
                      of_weights[i], twice[i]);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/*
 * NaN is the maximum, and of equal elements the first gets the gradient. A row in no bag gets no gradient and is not
 * read, even if it is NaN or larger than all others. The second gradient goes back to the same positions.
 */
Test(indexes, the_row_of_a_maximum)
{
    struct fixture b = fixture_open(1, 1);
    const double rows[] = { 1, NAN, 5, -INFINITY, 5, 7, NAN, NAN }, up[] = { 1, 10, 100, 1000, 1e4, 1e5 };
    const int32_t places[] = { 0, 2, 1, 3, 3, 1, 0, 2, 3 }, begin[] = { 0, 3, 6 };
    double y[6], first[8], second[6];
    rw_tensor *const table = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(4, 2), rows, sizeof rows));
    rw_tensor *const u = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(3, 2), up, sizeof up));
    for (int way = 0; way < 2; way++) { /* with offsets, and without */
        rw_tensor *const index = rw_input(b.t, RW_I32, way ? RW_SHAPE(3, 3) : RW_SHAPE(9), places, 9 * sizeof *places);
        const rw_embedding_bag_params p = { .mode = RW_BAG_MAX,
                                            .has_padding_index = true,
                                            .padding_index = 3,
                                            .offsets = way ? RW_NONE
                                                           : rw_input(b.t, RW_I32, RW_SHAPE(3), begin, sizeof begin) };
        rw_tensor *const z = rw_embedding_bag_with(b.t, table, index, &p), *slope, *again;
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, z, u), RW_ALL_AXES, false);
        cr_assert_eq(rw_grad(b.t, loss, &table, 1, &slope), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tensor *const sum = rw_sum(b.t, rw_mul(b.t, slope, rw_arange(b.t, RW_F64, 0, 2, 1)), RW_ALL_AXES, false);
        cr_assert_eq(rw_grad(b.t, sum, &u, 1, &again), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, z, y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, slope, first, sizeof first), RW_OK);
        cr_assert_eq(rw_read(b.t, again, second, sizeof second), RW_OK);
        const double most[] = { 5, NAN, 5, -INFINITY, 5, NAN }, taken[] = { 0, 1e5 + 10, 100, 1000, 1e4 + 1, 0, 0, 0 };
        for (int i = 0; i < 6; i++)
            cr_expect(isnan(most[i]) ? isnan(y[i]) : y[i] == most[i], "%d, maximum %d: %g", way, i, y[i]);
        for (int i = 0; i < 8; i++) cr_expect_eq(first[i], taken[i], "%d, gradient %d: %g", way, i, first[i]);
        for (int i = 0; i < 6; i++) cr_expect_eq(second[i], i % 2, "%d, second %d: %g", way, i, second[i]);
    }
    fixture_close(&b);
}

/* Keeps the positions of the maxima and which bags are empty, not the rows. */
Test(indexes, a_maximum_keeps_places)
{
    struct fixture b = fixture_open(1, 1);
    ckpt_set_policy(b.t, "none");
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(40, 128));
    rw_tensor *const index = rw_zeros(b.t, RW_I32, RW_SHAPE(16, 30));
    const rw_embedding_bag_params p = { .mode = RW_BAG_MAX };
    rw_tensor *const y = rw_embedding_bag_with(b.t, table, index, &p);
    rw_memory memory;
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
    cr_expect_eq(memory.kept, rw_tensor_bytes(y) + 2048 /* index, in alignment units */, "%zu bytes", memory.kept);
    fixture_close(&b);
}

/* Offsets begin with 0, do not decrease, and end within the index, which has `n` places. */
Test(indexes, offsets_of_bags_are_looked_at_when_they_are_read)
{
    static const struct {
        int n, given, offset[3];
        bool fits, ends;
    } all[] = {
        { 3, 2, { 0, 3 }, true },  { 3, 3, { 0, 1, 1 }, true },  { 0, 2, { 0, 0 }, true },  { 3, 1, { 0 }, true },
        { 3, 2, { 1, 2 }, false }, { 3, 2, { 2, 0 }, false },    { 3, 2, { -1, 2 }, false }, { 3, 2, { 0, -1 }, false },
        { 3, 2, { 0, 4 }, false }, { 3, 3, { 0, 2, 1 }, false }, { 0, 1, { 1 }, false },     { 3, 1, { 3 }, false },
        { 3, 3, { 0, 4, 2 }, false },
        { 3, 2, { 0, 3 }, true, true }, { 3, 3, { 0, 2, 3 }, true, true }, { 0, 1, { 0 }, true, true },
        { 3, 3, { 0, 1, 2 }, false, true }, { 3, 2, { 0, 4 }, false, true }, { 3, 3, { 0, 4, 3 }, false, true },
        { 0, 1, { 1 }, false, true },
    };
    static const int32_t zero[3];
    for (size_t k = 0; k < 2 * (sizeof all / sizeof *all); k++) {
        const size_t i = k / 2;
        const bool most = k % 2 && all[i].n; /* without rows a maximum is a sum */
        const int bags = all[i].given - all[i].ends;
        struct fixture b = fixture_open(1, 1);
        float y[6];
        rw_tensor *const table = rw_ones(b.t, RW_F32, RW_SHAPE(2, 2));
        rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(all[i].n), zero, (size_t)all[i].n * sizeof *zero);
        const rw_embedding_bag_params p = { .mode = k % 2 ? RW_BAG_MAX : RW_BAG_SUM,
                                            .ends = all[i].ends,
                                            .offsets = rw_input(b.t, RW_I32, RW_SHAPE(all[i].given), all[i].offset,
                                                                (size_t)all[i].given * sizeof *all[i].offset) };
        rw_tensor *const got = rw_embedding_bag_with(b.t, table, index, &p);
        cr_assert(got, "%zu: %s", k, rw_error_message(b.ctx));
        cr_expect_eq(rw_read(b.t, got, y, rw_tensor_bytes(got)), all[i].fits ? RW_OK : RW_ERR_ARGUMENT, "%zu: %s", k,
                     rw_error_message(b.ctx));
        for (int j = 0; all[i].fits && j < bags; j++) {
            const int end = j + 1 < all[i].given ? all[i].offset[j + 1] : all[i].n, rows = end - all[i].offset[j];
            const float want = most ? rows > 0 : (float)rows;
            cr_expect(y[2 * j] == want && y[2 * j + 1] == want, "%zu, bag %d: %g", k, j, y[2 * j]);
        }
        cr_expect(all[i].fits || strstr(rw_error_message(b.ctx), most ? "embedding_bag_argmax recorded at"
                                                                      : "embedding_bag_offsets recorded at"),
                  "%zu: %s", k, rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

Test(indexes, what_is_refused)
{
    struct fixture b = fixture_open(1, 1);
    const int32_t zero[8] = { 0 };
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(3, 2), zero, 3 * 2 * sizeof *zero), *const none = rw_input(
                                                                                                b.t, RW_F32,
                                                                                                RW_SHAPE(0, 2), zero,
                                                                                                0);
    rw_tensor *const d = rw_input(b.t, RW_F64, RW_SHAPE(1, 2), zero, 2 * rw_dtype_size(RW_F64)), *const s = rw_input(
                                                                                                     b.t, RW_F32,
                                                                                                     RW_SHAPE(1, 2),
                                                                                                     zero,
                                                                                                     2 * sizeof *zero);
    rw_tensor *const at = rw_input(b.t, RW_I32, RW_SHAPE(1, 2), zero, 2 * sizeof *zero), *const wide = rw_input(
                                                                                             b.t, RW_I32,
                                                                                             RW_SHAPE(1, 3), zero,
                                                                                             3 * sizeof *zero);
    rw_tensor *const list = rw_input(b.t, RW_I32, RW_SHAPE(2), zero, 2 * sizeof *zero);
    REFUSED(RW_ERR_DTYPE, rw_argmax(b.t, list, 0, false));
    REFUSED(RW_ERR_SHAPE, rw_argmax(b.t, x, 2, false));
    REFUSED(RW_ERR_SHAPE, rw_argmin(b.t, none, 0, false));
    REFUSED(RW_ERR_DTYPE, rw_gather(b.t, x, 0, x));
    REFUSED(RW_ERR_SHAPE, rw_gather(b.t, x, 0, list));
    REFUSED(RW_ERR_SHAPE, rw_gather(b.t, x, 0, wide));
    REFUSED(RW_ERR_SHAPE, rw_gather(b.t, x, -3, at));
    REFUSED(RW_ERR_ARGUMENT, rw_gather(b.t, NULL, 0, at));
    REFUSED(RW_ERR_SHAPE, rw_scatter_add(b.t, x, 0, at, x));
    REFUSED(RW_ERR_DTYPE, rw_scatter_add(b.t, x, 0, at, d));
    REFUSED(RW_ERR_DTYPE, rw_scatter_add(b.t, at, 0, at, at));
    REFUSED(RW_ERR_ARGUMENT, rw_scatter_add(b.t, NULL, 0, at, s));
    REFUSED(RW_ERR_ARGUMENT, rw_scatter_add(b.t, x, 0, NULL, s));
    REFUSED(RW_ERR_SHAPE, rw_index_select(b.t, x, 2, list));
    REFUSED(RW_ERR_SHAPE, rw_index_select(b.t, x, 0, at));
    REFUSED(RW_ERR_DTYPE, rw_index_select(b.t, x, 0, x));
    REFUSED(RW_ERR_SHAPE, rw_embedding_bag(b.t, x, list, RW_BAG_SUM));
    REFUSED(RW_ERR_DTYPE, rw_embedding_bag(b.t, x, x, RW_BAG_SUM));
    REFUSED(RW_ERR_DTYPE, rw_embedding_bag(b.t, at, at, RW_BAG_SUM));
    REFUSED(RW_ERR_ARGUMENT, rw_embedding_bag(b.t, x, at, RW_BAG_MAX));
    rw_tensor *const real = rw_input(b.t, RW_F32, RW_SHAPE(2), NULL, 0);
#define BAG(table, index, ...) rw_embedding_bag_with(b.t, table, index, &(rw_embedding_bag_params){ __VA_ARGS__ })
    REFUSED(RW_ERR_ARGUMENT, BAG(x, at, .mode = (rw_bag_mode)3));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, at, .mode = RW_BAG_MEAN, .weights = x));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, at, .ends = true));
    REFUSED(RW_ERR_SHAPE, BAG(x, list, .offsets = rw_input(b.t, RW_I32, RW_SHAPE(0), NULL, 0), .ends = true));
    REFUSED(RW_ERR_SHAPE,
            BAG(x, list, .offsets = rw_input(b.t, RW_I32, RW_SHAPE(1), zero, sizeof *zero), .ends = true));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, rw_input(b.t, RW_I32, RW_SHAPE(2, 0), NULL, 0), .mode = RW_BAG_MAX));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, list, .mode = RW_BAG_SUM));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, at, .offsets = list));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, at, .has_padding_index = true, .padding_index = 100));
    REFUSED(RW_ERR_ARGUMENT, BAG(NULL, at, .mode = RW_BAG_SUM));
    REFUSED(RW_ERR_SHAPE, BAG(x, list, .offsets = at));
    REFUSED(RW_ERR_DTYPE, BAG(x, list, .offsets = real));
    REFUSED(RW_ERR_DTYPE, BAG(x, x, .mode = RW_BAG_SUM));
    REFUSED(RW_ERR_DTYPE, BAG(at, at, .mode = RW_BAG_MAX));
    REFUSED(RW_ERR_ARGUMENT, PADDED(x, at, 100));
    REFUSED(RW_ERR_ARGUMENT, PADDED(NULL, at, 0));
    REFUSED(RW_ERR_ARGUMENT, rw_embedding_with(b.t, x, at, &(rw_embedding_params){ .padding_index = 1 }));
    REFUSED(RW_ERR_ARGUMENT, BAG(x, at, .padding_index = 1));
    const struct {
        rw_tensor *x;
        int64_t k;
        int axis;
        rw_status status;
    } tops[] = { { x, 4, 0, RW_ERR_SHAPE }, { x, -1, 0, RW_ERR_SHAPE }, { x, 1, 2, RW_ERR_SHAPE },
                 { list, 1, 0, RW_ERR_DTYPE }, { NULL, 1, 0, RW_ERR_ARGUMENT },
                 { rw_zeros(b.t, RW_F32, RW_SCALAR), 1, 0, RW_ERR_SHAPE } };
    for (size_t i = 0; i < sizeof tops / sizeof *tops; i++) {
        const size_t nodes = b.t->n_nodes;
        rw_tensor *top = x, *place = x;
        cr_expect_eq(rw_topk(b.t, tops[i].x, tops[i].k, tops[i].axis, &top, &place), tops[i].status, "%zu: %s", i,
                     rw_error_message(b.ctx));
        cr_expect(!top && !place);
        rw_error_clear(b.ctx);
        cr_expect_eq(b.t->n_nodes, nodes);
    }
    rw_tensor *top;
    cr_expect_eq(rw_topk(b.t, x, 1, 0, &top, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_topk(NULL, x, 1, 0, &top, &top), RW_ERR_ARGUMENT);
    fixture_close(&b);
}

/* Long enough to be divided between threads, and bit-identical for any number of them. */
Test(indexes, bytes_do_not_depend_on_threads)
{
    enum { R = 300, C = 150, J = 400 };
    static int32_t index[J * C];
    static uint16_t src[J * C], first[R * C], got[R * C];
    for (int i = 0; i < J * C; i++) index[i] = (i * 7919 % 104729) % R, number_put(src, RW_BF16, i, (i % 200) / 128.0);
    for (int threads = 1; threads < 6; threads++) {
        struct fixture b = fixture_open(1, threads);
        rw_tensor *const x = rw_full(b.t, RW_BF16, RW_SHAPE(R, C), 3);
        rw_tensor *const y = rw_scatter_add(b.t, x, 0, rw_input(b.t, RW_I32, RW_SHAPE(J, C), index, sizeof index),
                                            rw_input(b.t, RW_BF16, RW_SHAPE(J, C), src, sizeof src));
        cr_assert_eq(rw_read(b.t, y, threads > 1 ? got : first, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
        if (threads > 1) cr_assert_eq(first_difference((unsigned char *)first, (unsigned char *)got, sizeof got), -1);
        fixture_close(&b);
    }
}
