/*
 * Edge cases of ops: kinks and ties, NaN and infinity, rows without visible keys, indexes outside a table, the last
 * place of long sums, of exponentials, of angles and of conversions. Each is compared with the promise of its header.
 */
#include "support/cases/functions.h"
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype wide[] = { RW_F32, RW_F64 };

/* A tensor of that type whose elements are value(i). */
static rw_tensor *made(struct fixture *b, rw_dtype dtype, rw_shape shape, double (*value)(int64_t))
{
    const int64_t n = rw_shape_numel(shape);
    void *const data = malloc((size_t)(n + 1) * 8);
    for (int64_t i = 0; i < n; i++) number_put(data, dtype, i, value(i));
    rw_tensor *const x = rw_require_grad(
        b->t, rw_input(b->t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype)));
    free(data);
    return x;
}

/* A number of float32, rounded to bfloat16. */
static double rounded(double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static double *numbers(struct fixture *b, rw_tensor *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    void *const raw = malloc(rw_tensor_bytes(x) + 1);
    double *const to = malloc((size_t)(n + 1) * sizeof *to);
    cr_assert_eq(rw_read(b->t, x, raw, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    for (int64_t i = 0; i < n; i++) to[i] = number_get(raw, rw_tensor_dtype(x), i);
    free(raw);
    return to;
}

/* The gradient of the sum of y. */
static double *gradient(struct fixture *b, rw_tensor *y, rw_tensor *x)
{
    rw_tensor *const loss = rw_sum(b->t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    return numbers(b, rw_gradient(x));
}

/* ---- kinks ---- */

static double signs(int64_t i)
{
    static const double x[] = { -1, 0, 1, NAN, -0.0, 2 };
    return x[i % 6];
}

static double zero(int64_t i)
{
    return 0;
}

Test(edge_values, the_gradient_of_equals_goes_to_the_first)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(6), signs), *const y = made(&b, RW_F32, RW_SHAPE(6), signs);
    double *const to_x = gradient(&b, rw_maximum(b.t, x, y), x), *const to_y = numbers(&b, rw_gradient(y));
    for (int i = 0; i < 6; i++) cr_assert(to_x[i] == 1 && to_y[i] == 0, "element %d: %g and %g", i, to_x[i], to_y[i]);
    free(to_x), free(to_y);
    fixture_close(&b);
}

static double squares(int64_t i)
{
    static const double x[] = { 0, 4, -1, 0.25, -0.0, 16 };
    return x[i % 6];
}

/* docs/patterns.md, "A branch that is not finite": with one where() the gradient is NaN, with two it is not. */
Test(edge_values, a_branch_that_is_not_taken_is_made_safe_by_a_second_where)
{
    static const double root[] = { 0, 2, 0, 0.5, 0, 4 };
    for (int twice = 0; twice < 2; twice++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(6), squares), *const positive = rw_gt_scalar(b.t, x, 0);
        rw_tensor *const safe = rw_where(b.t, positive, x, rw_full(b.t, RW_F32, RW_SHAPE(1), 1));
        rw_tensor *const none = rw_zeros(b.t, RW_F32, RW_SHAPE(1));
        rw_tensor *const y = rw_where(b.t, positive, rw_sqrt(b.t, twice ? safe : x), none);
        double *const dx = gradient(&b, y, x), *const values = numbers(&b, y);
        for (int i = 0; i < 6; i++) {
            cr_expect_eq(values[i], root[i], "%d", i);
            if (root[i] > 0) cr_expect_eq(dx[i], 0.5 / root[i], "%d: %g", i, dx[i]);
            else cr_expect(twice ? dx[i] == 0 : isnan(dx[i]), "%d, %s: %g", i, twice ? "two" : "one", dx[i]);
        }
        free(dx), free(values);
        fixture_close(&b);
    }
}

static double corner_x;
static double at_corner(int64_t i)
{
    return corner_x;
}

static void check_corner(struct fixture *b, const struct op_corner *c, rw_dtype dtype, bool again)
{
    corner_x = c->x;
    rw_tensor *const x = made(b, dtype, RW_SHAPE(6), at_corner);
    rw_tensor *const y = op_function_record(b->t, op_function_named(c->name), x);
    rw_tensor *const loss = rw_sum(b->t, y, RW_ALL_AXES, false);
    rw_tensor *dx = NULL;
    const rw_status status = again ? rw_grad(b->t, loss, &x, 1, &dx) : rw_backward(b->t, loss);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(b->ctx));
    if (!again) dx = rw_gradient(x);
    double *const slope = numbers(b, dx);
    for (int i = 0; i < 6; i++)
        cr_assert_float_eq(slope[i], c->slope, 2e-7, "%s of %g: %.9g", c->name, c->x, slope[i]);
    free(slope);
    rw_tape_reset(b->t);
}

Test(edge_values, slopes_at_kinks_and_of_nan)
{
    struct fixture b = fixture_open(1, 1);
    size_t n;
    const struct op_corner *const corners = op_corners(&n);
    for (size_t k = 0; k < n; k++)
        for (int d = 0; d < 2; d++)
            for (int again = 0; again < 2; again++) check_corner(&b, &corners[k], wide[d], again);
    fixture_close(&b);
}

/* The gradient of the bias through the norm's own relu: 1 for each of 1, NaN and 2. */
Test(edge_values, a_nan_after_a_norm_with_relu_passes_its_gradient_on)
{
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++) {
        rw_tensor *const x = made(&b, wide[d], RW_SHAPE(6, 1), signs);
        rw_tensor *const bias = made(&b, wide[d], RW_SHAPE(1), zero);
        rw_tensor *const mean = rw_zeros(b.t, wide[d], RW_SHAPE(1)), *const var = rw_ones(b.t, wide[d], RW_SHAPE(1));
        const rw_batchnorm_params params = { .evaluate = true, .relu = true };
        rw_tensor *const y = rw_batchnorm(b.t, x, RW_NONE, bias, mean, var, &params);
        double *const flows = gradient(&b, y, bias);
        cr_assert_eq(*flows, 3, "%g", *flows);
        free(flows);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

static double one_or_infinite(int64_t i)
{
    return i % 3 == 1 ? INFINITY : i % 3 == 2 ? -INFINITY : 1;
}

/* Given statistics are constants, and the gradient passes only through their factor: it is the same for every x. */
Test(edge_values, of_an_infinite_x_an_evaluated_norm_has_a_finite_gradient)
{
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++) {
        rw_tensor *const x = made(&b, wide[d], RW_SHAPE(50, 20), one_or_infinite);
        rw_tensor *const mean = rw_zeros(b.t, wide[d], RW_SHAPE(20)), *const var = rw_ones(b.t, wide[d], RW_SHAPE(20));
        const rw_batchnorm_params params = { .evaluate = true, .eps = 3 };
        double *const dx = gradient(&b, rw_batchnorm(b.t, x, RW_NONE, RW_NONE, mean, var, &params), x);
        for (int i = 0; i < 50 * 20; i++) cr_assert_eq(dx[i], 0.5, "element %d: %g", i, dx[i]);
        free(dx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A row longer than the blocks that threads take, in place: each element is processed once. */
static double small(int64_t i)
{
    return (double)(i % 63 - 31) / 32;
}

Test(edge_values, a_long_row_in_place)
{
    struct fixture b = fixture_open(1, 3);
    for (int d = 0; d < 2; d++) {
        const int64_t n = 100003;
        rw_tensor *y = rw_input_at(RW_HERE, b.t, wide[d], RW_SHAPE(n), NULL, 0);
        y = rw_add(b.t, y, made(&b, wide[d], RW_SHAPE(n), small));
        for (int i = 0; i < 5; i++) y = rw_scale(b.t, y, -2);
        double *const got = numbers(&b, y);
        for (int64_t i = 0; i < n; i++) cr_assert_eq(got[i], -32 * small(i), "element %ld: %g", (long)i, got[i]);
        free(got);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- NaN and infinity ---- */

static int64_t nan_at;
static double with_nan(int64_t i)
{
    return i == nan_at ? (double)NAN : small(i);
}

Test(edge_values, a_nan_anywhere_is_the_maximum)
{
    static const int lengths[] = { 1, 7, 16, 40, 1100 };
    struct fixture b = fixture_open(1, 2);
    for (int d = 0; d < 2; d++)
        for (int l = 0; l < 5; l++)
            for (int at = 0; at < 4; at++)
                for (int columns = 0; columns < 2; columns++) {
                    const int n = lengths[l], place = at < 3 ? at * (n - 1) / 2 : n > 20 ? 17 : 0;
                    nan_at = columns ? place * 3 + 1 : n + place;
                    rw_tensor *const x = made(&b, wide[d], columns ? RW_SHAPE(n, 3) : RW_SHAPE(3, n), with_nan);
                    double *const most = numbers(&b, rw_max(b.t, x, RW_AXES(columns ? 0 : 1), false));
                    cr_assert(!isnan(most[0]) && isnan(most[1]) && !isnan(most[2]), "%s, NaN at %d of %d: %g %g %g",
                              rw_dtype_name(wide[d]), place, n, most[0], most[1], most[2]);
                    free(most);
                    rw_tape_reset(b.t);
                }
    fixture_close(&b);
}

static double infinite_rows(int64_t i)
{
    const int64_t row = i / 20;
    return row == 1 ? -(double)INFINITY : row == 2 && i % 20 == 3 ? (double)INFINITY : small(i);
}

/* [4, 20]: rows of numbers, of minus infinity, of one infinity among numbers, of numbers. */
static rw_tensor *infinite(struct fixture *b, rw_dtype dtype, bool columns)
{
    rw_tensor *const x = made(b, dtype, RW_SHAPE(4, 20), infinite_rows);
    return columns ? rw_contiguous(b->t, rw_transpose(b->t, x, 0, 1)) : x;
}

Test(edge_values, logsumexp_and_softmax_of_infinity)
{
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++)
        for (int columns = 0; columns < 2; columns++) {
            const int axis = columns ? 0 : 1;
            rw_tensor *const x = infinite(&b, wide[d], columns);
            double *const sum = numbers(&b, rw_logsumexp(b.t, x, RW_AXES(axis), false));
            double *const p = numbers(&b, rw_softmax(b.t, x, axis));
            cr_assert(isfinite(sum[0]) && sum[1] == -INFINITY && sum[2] == INFINITY && isfinite(sum[3]),
                      "%s, axis %d: %g %g %g %g", rw_dtype_name(wide[d]), axis, sum[0], sum[1], sum[2], sum[3]);
            for (int i = 0; i < 20; i++) {
                const double none = p[columns ? i * 4 + 1 : 20 + i], some = p[columns ? i * 4 : i];
                cr_assert(none == 0 && some > 0, "%s, axis %d: %g, %g", rw_dtype_name(wide[d]), axis, none, some);
            }
            free(sum), free(p);
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

static double lowest_in_the_middle(int64_t i)
{
    return i / 20 % 3 == 1 ? -(double)INFINITY : 0;
}

/* Over two axes, [4, 3, 20]: groups of 80, one of which is all minus infinity. */
Test(edge_values, logsumexp_shares_its_gradient_out)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++) {
        rw_tensor *const x = made(&b, types[d], RW_SHAPE(4, 3, 20), lowest_in_the_middle);
        double *const g = gradient(&b, rw_logsumexp(b.t, x, RW_AXES(0, 2), false), x);
        for (int i = 0; i < 240; i++) {
            const double want = i / 20 % 3 == 1 ? 0 : 1. / 80;
            const double error = 4 * unit_roundoff(types[d]) + 16 * arithmetic_roundoff(types[d]);
            cr_assert(fabs(g[i] - want) <= error * want, "%s, element %d: %.9g, not %.9g", rw_dtype_name(types[d]), i,
                      g[i], want);
        }
        free(g);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(edge_values, the_mean_of_nothing_is_nan)
{
    struct fixture b = fixture_open(1, 1);
    double *const y = numbers(&b, rw_mean(b.t, rw_input(b.t, RW_F32, RW_SHAPE(0, 3), NULL, 0), RW_AXES(0), false));
    for (int i = 0; i < 3; i++) cr_assert(isnan(y[i]), "%g", y[i]);
    free(y);
    fixture_close(&b);
}

/* ---- nothing to see ---- */

/* Five queries of two keys: the first three attend to none. */
Test(edge_values, queries_before_the_first_key_see_nothing)
{
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++) {
        const rw_attention_params params = { .causal = true };
        rw_tensor *const q = made(&b, wide[d], RW_SHAPE(1, 1, 5, 4), small);
        rw_tensor *const k = made(&b, wide[d], RW_SHAPE(1, 1, 2, 4), small);
        rw_tensor *const v = made(&b, wide[d], RW_SHAPE(1, 1, 2, 4), small);
        rw_tensor *const y = rw_attention(b.t, q, k, v, &params);
        double *const got = numbers(&b, y), *const dq = gradient(&b, y, q), *const dv = numbers(&b, rw_gradient(v));
        for (int i = 0; i < 12; i++) cr_assert(got[i] == 0 && dq[i] == 0, "element %d: %g, %g", i, got[i], dq[i]);
        for (int i = 12; i < 16; i++) cr_assert_eq(got[i], small(i - 12), "the first key alone");
        double sum = 0;
        for (int i = 0; i < 8; i++) sum += dv[i];
        cr_assert(fabs(sum - 8) < 1e-6, "two queries of four: %g", sum);
        free(got), free(dq), free(dv);
        rw_tensor *const s = made(&b, wide[d], RW_SHAPE(5, 2), small);
        double *const p = numbers(&b, rw_causal_softmax(b.t, s, 1));
        for (int i = 0; i < 6; i++) cr_assert_eq(p[i], 0, "element %d: %g", i, p[i]);
        cr_assert(p[6] == 1 && p[7] == 0);
        free(p);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- indexes ---- */

static void expect_refused(struct fixture *b, rw_tensor *y, int32_t index)
{
    cr_assert_eq(rw_eval(b->t, &y, 1), RW_ERR_ARGUMENT, "index %d: %s", index, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

Test(edge_values, an_index_beside_the_table)
{
    static const int32_t bad[] = { -1, 5, INT32_MIN, INT32_MAX };
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 4; i++) {
        const int32_t index[3] = { 0, 4, bad[i] };
        rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(3, 5), small);
        rw_tensor *const at = rw_input(b.t, RW_I32, RW_SHAPE(3), index, sizeof index);
        expect_refused(&b, rw_cross_entropy(b.t, x, at), bad[i]);
        expect_refused(&b, rw_embedding(b.t, made(&b, RW_F32, RW_SHAPE(5, 2), small), at), bad[i]);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- the last place ---- */

static double tenth(int64_t i)
{
    return (double)0.1f;
}

/* A million equal squares: their mean equals one of them, up to the roundings of a sum in blocks. */
Test(edge_values, a_long_mean_of_squares)
{
    struct fixture b = fixture_open(1, 2);
    const rw_shape shape = RW_SHAPE(1 << 20);
    const double got = rw_item(b.t, rw_mse_loss(b.t, made(&b, RW_F32, shape, tenth), made(&b, RW_F32, shape, zero)));
    const double want = (double)(0.1f * 0.1f);
    cr_assert(fabs(got - want) <= 70 * 0x1p-24 * want, "%.9g, not %.9g", got, want);
    fixture_close(&b);
}

static double scores(int64_t i)
{
    return i % 2 ? 0 : -(double)(i / 2) / 4;
}

static double one_and_zero(int64_t i)
{
    return i % 2 ? 0 : 1;
}

static double one(int64_t i)
{
    return 1;
}

/* For two keys with the scores -x and 0, the first has the weight e^-x / (1 + e^-x): this tests the exponential in
   isolation. */
Test(edge_values, exponentials_of_attention)
{
    enum { PAIRS = 200 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++) {
        const rw_attention_params params = { .scale = 1 };
        rw_tensor *const q = made(&b, wide[d], RW_SHAPE(PAIRS, 1, 1, 1), one);
        rw_tensor *const k = made(&b, wide[d], RW_SHAPE(PAIRS, 1, 2, 1), scores);
        rw_tensor *const v = made(&b, wide[d], RW_SHAPE(PAIRS, 1, 2, 1), one_and_zero);
        double *const got = numbers(&b, rw_attention(b.t, q, k, v, &params));
        for (int i = 0; i < PAIRS; i++) {
            const double e = exp(-(double)i / 4), want = e / (1 + e);
            cr_assert(fabs(got[i] - want) <= 8 * unit_roundoff(wide[d]) * want, "%s, -%g: %.17g, not %.17g",
                      rw_dtype_name(wide[d]), (double)i / 4, got[i], want);
        }
        free(got);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* At a far position, an error in the eighth digit of a frequency is an error of radians. */
Test(edge_values, angles_of_large_positions)
{
    enum { D = 16 };
    struct fixture b = fixture_open(1, 1);
    const int32_t position = 100003;
    rw_tensor *const x = made(&b, RW_F64, RW_SHAPE(1, 1, 1, D), one);
    double *const got = numbers(&b,
                                rw_rope(b.t, x, rw_input(b.t, RW_I32, RW_SHAPE(1), &position, sizeof position), 10000));
    for (int i = 0; i < D / 2; i++) {
        const double angle = position * pow(10000, -(double)i / (D / 2));
        cr_assert(fabs(got[i] - (cos(angle) - sin(angle))) < 1e-10, "pair %d: %.17g", i, got[i]);
        cr_assert(fabs(got[i + D / 2] - (cos(angle) + sin(angle))) < 1e-10, "pair %d: %.17g", i, got[i + D / 2]);
    }
    free(got);
    fixture_close(&b);
}

/* From double to 16 bits there is one rounding: a value just beyond a tie is not a tie. */
Test(edge_values, conversions_round_once)
{
    struct fixture b = fixture_open(1, 1);
    const double x[4] = { 1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-11 + 0x1p-40, 1 + 3 * 0x1p-8 - 0x1p-40,
                          1 + 3 * 0x1p-11 - 0x1p-40 };
    rw_tensor *const in = rw_input(b.t, RW_F64, RW_SHAPE(4), x, sizeof x);
    double *const bf16 = numbers(&b, rw_cast(b.t, in, RW_BF16)), *const f16 = numbers(&b, rw_cast(b.t, in, RW_F16));
    cr_assert(bf16[0] == 1 + 0x1p-7 && bf16[2] == 1 + 0x1p-7, "%.9g %.9g", bf16[0], bf16[2]);
    cr_assert(f16[1] == 1 + 0x1p-10 && f16[3] == 1 + 0x1p-10, "%.9g %.9g", f16[1], f16[3]);
    free(bf16), free(f16);
    fixture_close(&b);
}

Test(edge_values, integers_of_what_is_no_integer)
{
    struct fixture b = fixture_open(1, 1);
    const float x[6] = { NAN, 3e9f, -3e9f, INFINITY, -1.75f, 1.75f };
    int32_t got[6];
    rw_tensor *const y = rw_cast(b.t, rw_input(b.t, RW_F32, RW_SHAPE(6), x, sizeof x), RW_I32);
    cr_assert_eq(rw_read(b.t, y, got, sizeof got), RW_OK);
    const int32_t want[6] = { 0, INT32_MAX, INT32_MIN, INT32_MAX, -1, 1 };
    for (int i = 0; i < 6; i++) cr_assert_eq(got[i], want[i], "%g: %d", (double)x[i], got[i]);
    fixture_close(&b);
}

/* ---- dropout in attention ---- */

static int64_t keys;
static double unit_rows(int64_t i)
{
    return i / keys % keys == i % keys;
}

/* Scores of 0 and an identity matrix v: the output is the mask, which equals that of a dropout of the scores. */
Test(edge_values, attention_drops_what_a_dropout_of_its_scores_would)
{
    static const int64_t lengths[] = { 8, 7, 20 };
    struct fixture b = fixture_open(1, 2);
    for (int l = 0; l < 3; l++) {
        keys = lengths[l];
        const rw_shape queries = RW_SHAPE(2, 2, 70, keys), kv = RW_SHAPE(2, 2, keys, keys);
        const rw_attention_params params = { .dropout = 0.25f };
        rw_generator_set(b.ctx, (rw_generator_state){ 5, 100 });
        double *const got = numbers(&b, rw_attention(b.t, made(&b, RW_F32, queries, zero), made(&b, RW_F32, kv, zero),
                                                     made(&b, RW_F32, kv, unit_rows), &params));
        rw_generator_set(b.ctx, (rw_generator_state){ 5, 100 });
        double *const mask = numbers(&b, rw_dropout(b.t, made(&b, RW_F32, RW_SHAPE(2, 2, 70, keys), one), 0.25f));
        for (int64_t i = 0; i < 2 * 2 * 70 * keys; i++)
            cr_assert_eq(got[i] != 0, mask[i] != 0, "%ld keys, element %ld", (long)keys, (long)i);
        free(got), free(mask);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(edge_values, ops_that_have_nothing_to_do_give_back_what_they_were_given)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(3, 4), small);
    const rw_generator_state before = rw_generator_get(b.ctx);
    cr_assert_eq(rw_dropout(b.t, x, 0), x);
    cr_assert_eq(rw_contiguous(b.t, x), x);
    cr_assert_eq(rw_cast(b.t, x, RW_F32), x);
    rw_tensor *const column = rw_transpose(b.t, made(&b, RW_F32, RW_SHAPE(1, 4), small), 0, 1);
    cr_assert_eq(rw_contiguous(b.t, column), column, "an axis of one element has no stride");
    cr_assert_eq(rw_generator_get(b.ctx).offset, before.offset);
    fixture_close(&b);
}

/* ---- products ---- */

static double weights(int64_t i)
{
    return (double)(i * 37 % 41 - 20) / 32;
}

static void expect_product(struct fixture *b, rw_tensor *x, rw_tensor *y, const char *what)
{
    double *const got = numbers(b, rw_matmul(b->t, x, y));
    double *const want = numbers(b, rw_matmul(b->t, rw_contiguous(b->t, x), rw_contiguous(b->t, y)));
    for (int64_t i = 0; i < 64 * 64; i++) cr_assert_eq(got[i], want[i], "%s, element %ld", what, (long)i);
    free(got), free(want);
}

/* Large enough for the library, which accepts neither row strides of 0 nor columns that are not contiguous. */
Test(edge_values, products_of_strides_that_the_library_does_not_take)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(64, 64), weights);
    rw_tensor *const row = rw_broadcast_to(b.t, made(&b, RW_F32, RW_SHAPE(64), weights), RW_SHAPE(64, 64));
    rw_tensor *const apart = rw_reshape(b.t, rw_slice(b.t, made(&b, RW_F32, RW_SHAPE(2, 64, 64), weights), 0, 1, 2),
                                        RW_SHAPE(64, 64));
    rw_tensor *const every = rw_reshape(
        b.t, rw_slice(b.t, rw_transpose(b.t, made(&b, RW_F32, RW_SHAPE(64, 64, 2), weights), 0, 1), 2, 0, 1),
        RW_SHAPE(64, 64));
    rw_tensor *const second = rw_slice(b.t, made(&b, RW_F32, RW_SHAPE(64, 64, 2), weights), 2, 1, 2);
    rw_tensor *const strided = rw_permute(b.t, second, (const int[]){ 2, 1, 0 });
    expect_product(&b, row, x, "rows that stand still");
    expect_product(&b, x, row, "rows of the second that stand still");
    expect_product(&b, x, apart, "a part");
    expect_product(&b, x, every, "turned");
    rw_tensor *const three = rw_reshape(b.t, x, RW_SHAPE(1, 64, 64));
    double *const got = numbers(&b, rw_matmul(b.t, three, strided));
    double *const want = numbers(&b, rw_matmul(b.t, three, rw_contiguous(b.t, strided)));
    for (int i = 0; i < 64 * 64; i++) cr_assert_eq(got[i], want[i], "columns apart, element %d", i);
    free(got), free(want);
    fixture_close(&b);
}

static double columns_by_number(int64_t i)
{
    return (double)(i % 2048);
}

/* Wider than a tile: each column has its own bias. */
Test(edge_values, the_bias_of_a_wide_layer)
{
    enum { WIDTH = 1000 };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(70, 64), zero);
    rw_tensor *const w = made(&b, RW_F32, RW_SHAPE(WIDTH, 64), one);
    rw_tensor *const bias = made(&b, RW_F32, RW_SHAPE(WIDTH), columns_by_number);
    double *const got = numbers(&b, rw_linear(b.t, x, w, bias));
    for (int i = 0; i < 70 * WIDTH; i++) cr_assert_eq(got[i], i % WIDTH, "element %d: %g", i, got[i]);
    free(got);
    fixture_close(&b);
}

/* Few bits each, whose product has more than bfloat16 holds. */
static double of_two_sizes(int64_t i)
{
    return i / 300 % 2 ? weights(i) * 8 : weights(i) / 8;
}

/* An addend is rounded before it is added to a sum, as if it had been stored: one op and two give the same bytes. */
Test(edge_values, a_narrow_gradient_is_rounded_before_it_is_added)
{
    enum { ROWS = 8, COLS = 300 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const bias = rw_param_with(b.ctx, "bias", RW_BF16, RW_SHAPE(COLS),
                                          &(rw_param_options){ .grad_dtype = RW_BF16 });
    double sum[COLS] = { 0 }, want[COLS] = { 0 };
    for (int i = 0; i < ROWS * COLS; i++) sum[i % COLS] += of_two_sizes(i);
    for (int pass = 0; pass < 3; pass++) {
        rw_tensor *const x = made(&b, RW_BF16, RW_SHAPE(ROWS, COLS), zero);
        rw_tensor *const y = rw_mul(b.t, rw_add(b.t, x, bias), made(&b, RW_BF16, RW_SHAPE(ROWS, COLS), of_two_sizes));
        double *const got = gradient(&b, y, bias);
        for (int i = 0; i < COLS; i++) {
            want[i] = rounded(want[i] + rounded(sum[i]));
            cr_assert_eq(got[i], want[i], "pass %d, column %d: %.9g, not %.9g", pass, i, got[i], want[i]);
        }
        free(got);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- concatenation inputs ---- */

Test(edge_values, pieces_of_two_buffers_are_not_one)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = made(&b, RW_F32, RW_SHAPE(8), small), *piece[2];
    const int64_t sizes[2] = { 4, 4 };
    cr_assert_eq(rw_split(b.t, x, 0, sizes, 2, piece), RW_OK);
    rw_tensor *const other = made(&b, RW_F32, RW_SHAPE(4), small);
    rw_tensor *const p = rw_concat(b.t, (rw_tensor *const[]){ piece[0], other }, 2, 0);
    rw_tensor *const q = rw_concat(b.t, (rw_tensor *const[]){ other, piece[1] }, 2, 0);
    rw_tensor *const y = rw_add(b.t, rw_scale(b.t, p, 3), rw_scale(b.t, q, 5));
    double *const g = gradient(&b, y, x);
    for (int i = 0; i < 8; i++) cr_assert_eq(g[i], i < 4 ? 3 : 5, "element %d: %g", i, g[i]);
    free(g);
    fixture_close(&b);
}

static double count(int64_t i)
{
    return (double)i;
}

Test(edge_values, concatenation_inputs_of_any_strides)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = made(&b, RW_F64, RW_SHAPE(3, 4, 5), count), *const transposed = rw_transpose(b.t, x, 1, 2);
    rw_tensor *const narrow = rw_slice(b.t, x, 2, 1, 4);
    double *const a = numbers(&b, rw_concat(b.t, (rw_tensor *const[]){ transposed, transposed }, 2, -2));
    double *const c = numbers(&b, rw_concat(b.t, (rw_tensor *const[]){ narrow, narrow }, 2, 1));
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 10; j++)
            for (int k = 0; k < 4; k++) cr_assert_eq(a[(i * 10 + j) * 4 + k], (i * 4 + k) * 5 + j % 5);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 8; j++)
            for (int k = 0; k < 3; k++) cr_assert_eq(c[(i * 8 + j) * 3 + k], (i * 4 + j % 4) * 5 + k + 1);
    free(a), free(c);
    fixture_close(&b);
}

Test(edge_values, shapes_that_do_not_fit_are_refused)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = made(&b, RW_F32, RW_SHAPE(1, 3, 4, 2), small);
    rw_tensor *const k = made(&b, RW_F32, RW_SHAPE(1, 2, 4, 2), small);
    rw_tensor *const parts[] = { made(&b, RW_F32, RW_SHAPE(2, 3), small), made(&b, RW_F32, RW_SHAPE(2, 4), small) };
    cr_assert_null(rw_attention(b.t, q, k, k, NULL));
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_SHAPE);
    rw_error_clear(b.ctx);
    cr_assert_null(rw_concat(b.t, parts, 2, 0));
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_SHAPE);
    rw_error_clear(b.ctx);
    cr_assert_not_null(rw_concat(b.t, parts, 2, 1));
    fixture_close(&b);
}
