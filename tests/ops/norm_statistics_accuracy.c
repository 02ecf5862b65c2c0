/*
 * Accuracy of the statistics of norms compared with exact sums: the error of a sum of thousands of numbers is less than
 * that of the later roundings, also if the mean is a thousand times the deviation. Compared with the same op in
 * float64; the errors of a channel's mean and scale are those common to all its results.
 */
#include "support/compare.h"
#include "support/support.h"

#include <rewind/norm.h>
#include <rewind/reductions.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { BATCH, GROUP, INSTANCE };

/* n groups of `inside` numbers are normalized. */
struct form {
    rw_shape shape;
    int64_t n, inside;
};

static const struct form *forms_of(int norm, size_t *ret)
{
    static const struct form batch[] = { { { 2, { 5000, 3 } }, 3, 5000 }, { { 3, { 4, 3, 5000 } }, 3, 20000 },
                                         { { 4, { 3, 70, 31, 9 } }, 70, 837 }, { { 3, { 1, 2, 31 } }, 2, 31 } },
                             group[] = { { { 3, { 2, 6, 4096 } }, 4, 12288 }, { { 3, { 3, 40, 31 } }, 6, 620 } },
                             instance[] = { { { 3, { 2, 3, 4096 } }, 6, 4096 }, { { 4, { 1, 40, 31, 33 } }, 40, 1023 },
                                            { { 3, { 2, 2, 100000 } }, 4, 100000 }, { { 3, { 2, 5, 31 } }, 10, 31 } };
    *ret = norm == GROUP ? 2 : 4;
    return norm == BATCH ? batch : norm == GROUP ? group : instance;
}

static rw_tensor *normed(struct fixture *b, int norm, rw_tensor *x)
{
    rw_tape *const t = b->t;
    if (norm == BATCH) return rw_batchnorm(t, x, RW_NONE, RW_NONE, RW_NONE, RW_NONE, NULL);
    if (norm == GROUP) return rw_group_norm(t, x, 2, RW_NONE, RW_NONE, 1e-5);
    return rw_instance_norm(t, x, RW_NONE, RW_NONE, 1e-5);
}

/* Numbers with mean `mean` and deviation 1: a sum of four uniform ones. The same in every test. */
static double *numbers(int64_t n, double mean)
{
    double *const x = malloc((size_t)n * sizeof *x);
    uint64_t state = 88172645463325252u;
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            sum += (double)(state >> 11) * 0x1p-53 - 0.5;
        }
        x[i] = (double)(float)(mean + sum * sqrt(3));
    }
    return x;
}

static double *results(int norm, const struct form *f, rw_dtype dtype, const double *x)
{
    struct fixture b = fixture_open(1, 2);
    const int64_t n = f->n * f->inside;
    double *const y = malloc((size_t)n * sizeof *y);
    float *const narrow = malloc((size_t)n * sizeof *narrow);
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)x[i];
    rw_tensor *const in = rw_input(b.t, dtype, f->shape, dtype == RW_F64 ? (const void *)x : narrow,
                                   (size_t)rw_shape_numel(f->shape) * rw_dtype_size(dtype));
    rw_tensor *const out = normed(&b, norm, in);
    cr_assert_not_null(out, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_cast(b.t, out, RW_F64), y, (size_t)n * sizeof *y), RW_OK);
    free(narrow);
    fixture_close(&b);
    return y;
}

/* Element i of group s: a batch's channel is not contiguous. */
static int64_t at(int norm, const struct form *f, int64_t s, int64_t i)
{
    if (norm != BATCH) return s * f->inside + i;
    int64_t pixels = 1;
    for (int k = 2; k < f->shape.rank; k++) pixels *= f->shape.dim[k];
    return (i / pixels * f->shape.dim[1] + s) * pixels + i % pixels;
}

/*
 * All elements of y = (x - mean) r share the errors of mean and r, and each has roundings of its own, which add up to
 * some of 1 / sqrt(n) in the mean of n. A mean takes one rounding; so does the difference from it, which has the same
 * sign for numbers of one exponent. A variance takes one, half of which is in r, its root and the quotient one each,
 * and the product with a weight, which is 1 here, none.
 */
static void check(int norm, const struct form *f, double mean)
{
    const double u = 0x1p-24, own = 4 * u / sqrt((double)f->inside);
    double *const x = numbers(f->n * f->inside, mean);
    double *const y = results(norm, f, RW_F32, x), *const want = results(norm, f, RW_F64, x);
    for (int64_t s = 0; s < f->n; s++) {
        double shift = 0, scale = 0, square = 0;
        for (int64_t i = 0; i < f->inside; i++) {
            const int64_t k = at(norm, f, s, i);
            shift += (y[k] - want[k]) / (double)f->inside;
            scale += (y[k] - want[k]) * want[k], square += want[k] * want[k];
        }
        cr_expect_leq(fabs(shift), own + (mean + 0.5) * u, "norm %d of %ld about %g: shifted by %.3g u", norm,
                      (long)f->inside, mean, shift / u);
        cr_expect_leq(fabs(scale / square), own + 2.5 * u, "norm %d of %ld about %g: scaled by %.3g u", norm,
                      (long)f->inside, mean, scale / square / u);
    }
    free(x), free(y), free(want);
}

static void check_all(int norm)
{
    size_t n;
    const struct form *const forms = forms_of(norm, &n);
    for (size_t i = 0; i < n; i++) check(norm, &forms[i], 0), check(norm, &forms[i], 1), check(norm, &forms[i], 1000);
}

Test(norm_statistics_accuracy, of_a_batch_are_near)
{
    check_all(BATCH);
}

Test(norm_statistics_accuracy, of_groups_are_near)
{
    check_all(GROUP);
}

Test(norm_statistics_accuracy, of_instances_are_near)
{
    check_all(INSTANCE);
}

/* A sum of positive numbers: one rounding, plus some for each partial sum. */
Test(norm_statistics_accuracy, a_bias_s_gradient_is_near)
{
    struct fixture b = fixture_open(1, 2);
    enum { N = 16, C = 3, L = 4096 };
    rw_tensor *const bias = rw_param(b.ctx, "bias", RW_F32, RW_SHAPE(C));
    rw_tensor *const ones = rw_ones(b.t, RW_F32, RW_SHAPE(C));
    double *const x = numbers(2 * N * C * L, 3), sum[C] = { 0 };
    float *const narrow = malloc(2 * N * C * L * sizeof *narrow), got[C];
    for (int i = 0; i < 2 * N * C * L; i++) narrow[i] = fabsf((float)x[i]);
    for (int i = 0; i < N * C * L; i++) sum[i / L % C] += (double)narrow[i];
    rw_init_constant(bias, 0);
    rw_tensor *const dy = rw_input(b.t, RW_F32, RW_SHAPE(N, C, L), narrow, N * C * L * sizeof *narrow);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(N, C, L), narrow + N * C * L, N * C * L * sizeof(float));
    rw_tensor *const y = rw_batchnorm(b.t, in, ones, bias, RW_NONE, RW_NONE, NULL);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, dy), RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_gradient(bias), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    for (int c = 0; c < C; c++)
        cr_expect_leq(fabs((double)got[c] / sum[c] - 1), 1.05 * 0x1p-24, "%d: off by %.3g u", c,
                      ((double)got[c] / sum[c] - 1) * 0x1p24);
    free(x), free(narrow);
    fixture_close(&b);
}

/* ---- a large offset ---- */

enum { OF_LAYER = 3, NORMS };

static const char *const names[NORMS] = { "batchnorm", "group_norm", "instance_norm", "layernorm" };

/* n numbers, normalized as one group. */
static rw_tensor *normed_row(struct fixture *b, int norm, rw_tensor *x, int64_t rows, int64_t n)
{
    rw_tape *const t = b->t;
    if (norm == OF_LAYER) return rw_layernorm(t, x, RW_NONE, RW_NONE, 1e-5);
    if (norm == INSTANCE) return rw_instance_norm(t, rw_reshape(t, x, RW_SHAPE(1, rows, n)), RW_NONE, RW_NONE, 1e-5);
    if (norm == GROUP) return rw_group_norm(t, rw_reshape(t, x, RW_SHAPE(rows, 1, n)), 1, RW_NONE, RW_NONE, 1e-5);
    rw_tensor *const columns = rw_transpose(t, x, 0, 1);
    return rw_batchnorm(t, columns, RW_NONE, RW_NONE, RW_NONE, RW_NONE, NULL);
}

static const int64_t lengths[] = { 2, 3, 7, 31, 100, 128, 257, 300, 1003, 4096, 5000 };
#define LENGTHS (sizeof lengths / sizeof *lengths)
enum { ROWS = 5, LONGEST = 5000 };
static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

static rw_tensor *input_of(struct fixture *b, rw_dtype dtype, int64_t n, const double *x)
{
    rw_tensor *const wide = rw_input(b->t, RW_F64, RW_SHAPE(ROWS, n), x, (size_t)(ROWS * n) * sizeof *x);
    void *const raw = malloc((size_t)(ROWS * n) * 8);
    rw_tensor *const narrow = rw_cast(b->t, wide, dtype);
    cr_assert_eq(rw_read(b->t, narrow, raw, rw_tensor_bytes(narrow)), RW_OK);
    rw_tensor *const in = rw_require_grad(
        b->t, rw_input(b->t, dtype, RW_SHAPE(ROWS, n), raw, (size_t)(ROWS * n) * rw_dtype_size(dtype)));
    free(raw);
    return in;
}

static double *all_of(struct fixture *b, rw_tensor *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    double *const y = malloc((size_t)n * sizeof *y);
    void *const raw = malloc(rw_tensor_bytes(x));
    cr_assert_eq(rw_read(b->t, x, raw, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    for (int64_t i = 0; i < n; i++) y[i] = number_get(raw, rw_tensor_dtype(x), i);
    free(raw);
    return y;
}

/* The rounding error of their mean would be divided by the root of eps. */
Test(norm_statistics_accuracy, of_equal_numbers_leave_nothing)
{
    static const double offsets[] = { 1000.1, -3.3, 1e6 + 0.3, 4.7e-3 };
    static double x[ROWS * LONGEST];
    for (int norm = 0; norm < NORMS; norm++)
        for (size_t d = 0; d < 4; d++)
            for (size_t l = 0; l < LENGTHS; l++)
                for (size_t o = 0; o < 4; o++) {
                    if (types[d] == RW_F16 && o == 2) continue; /* beyond its range */
                    struct fixture b = fixture_open(1, 2);
                    const int64_t n = lengths[l];
                    for (int64_t i = 0; i < ROWS * n; i++) x[i] = offsets[o] * (double)(1 + i / n);
                    double *const y = all_of(&b, normed_row(&b, norm, input_of(&b, types[d], n, x), ROWS, n));
                    double most = 0;
                    for (int64_t i = 0; i < ROWS * n; i++) most = fmax(most, fabs(y[i]));
                    cr_expect_eq(most, 0, "%s, %s, %d numbers %g: %.3g, expected 0", names[norm],
                                 rw_dtype_name(types[d]), (int)n, offsets[o], most);
                    free(y);
                    fixture_close(&b);
                }
}

/* One group's numbers as doubles: xh, and the gradient of sum(w xh) with the weights w. */
static void exact_row(const double *x, const double *w, int64_t n, double *xh, double *dx)
{
    double mean = 0, square = 0, w_mean = 0, wx_mean = 0;
    for (int64_t i = 0; i < n; i++) mean += (x[i] - x[0]) / (double)n;
    for (int64_t i = 0; i < n; i++) square += pow(x[i] - x[0] - mean, 2) / (double)n;
    const double r = 1 / sqrt(square + 1e-5);
    for (int64_t i = 0; i < n; i++) {
        xh[i] = (x[i] - x[0] - mean) * r;
        w_mean += w[i] / (double)n, wx_mean += w[i] * xh[i] / (double)n;
    }
    for (int64_t i = 0; i < n; i++) dx[i] = r * (w[i] - w_mean - xh[i] * wx_mean);
}

/*
 * A layer's numbers with an offset of up to a million deviations. x is rounded before; the remaining error depends on
 * the numbers' deviation, 1, not on their offset: at most n roundings of a sum in any order, and a few of the rest.
 */
static void check_offset(double offset, int64_t n, bool composed)
{
    struct fixture b = fixture_open(1, 2);
    double *const x = numbers(ROWS * n, offset), *const w = numbers(ROWS * n, 0);
    double *const xh = malloc((size_t)n * sizeof *xh), *const dx = malloc((size_t)n * sizeof *dx);
    rw_tensor *in = input_of(&b, RW_F32, n, x), *g;
    rw_tensor *const y = rw_layernorm(b.t, in, RW_NONE, RW_NONE, 1e-5), *const dy = input_of(&b, RW_F32, n, w);
    double *const got = all_of(&b, y);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, dy), RW_ALL_AXES, false);
    if (composed) cr_assert_eq(rw_grad(b.t, loss, &in, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    else cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    double *const slope = all_of(&b, composed ? g : rw_gradient(in));
    const double bound = ((double)n + 16) * 0x1p-24;
    double most = 0, most_slope = 0;
    for (int64_t row = 0; row < ROWS; row++) {
        exact_row(x + row * n, w + row * n, n, xh, dx);
        for (int64_t i = 0; i < n; i++) {
            most = fmax(most, fabs(got[row * n + i] - xh[i]) / (1 + fabs(xh[i])));
            most_slope = fmax(most_slope, fabs(slope[row * n + i] - dx[i]) / (8 * (1 + fabs(xh[i]))));
        }
    }
    cr_expect_leq(most, bound, "%d numbers about %g: off by %.3g, %.3g allowed", (int)n, offset, most, bound);
    cr_expect_leq(most_slope, bound, "%d numbers about %g, %s: the gradient is off by %.3g, %.3g allowed", (int)n,
                  offset, composed ? "rw_grad" : "rw_backward", most_slope, bound);
    free(x), free(w), free(xh), free(dx), free(got), free(slope);
    fixture_close(&b);
}

Test(norm_statistics_accuracy, of_a_layer_do_not_lose_the_spread_beside_an_offset)
{
    static const double offsets[] = { 0, 10, 1e3, -1e5, 1e6 };
    for (size_t l = 3; l < LENGTHS; l++)
        for (size_t o = 0; o < 5; o++)
            for (int composed = 0; composed < 2; composed++) check_offset(offsets[o], lengths[l], composed);
}

Test(norm_statistics_accuracy, a_variance_does_not_lose_the_spread_beside_an_offset)
{
    static const double offsets[] = { 0, 10, 1e3, -1e5, 1e6 };
    for (size_t l = 0; l < LENGTHS; l++)
        for (size_t o = 0; o < 5; o++) {
            const int64_t n = lengths[l];
            struct fixture b = fixture_open(1, 2);
            double *const x = numbers(ROWS * n, offsets[o]);
            double *const got = all_of(&b, rw_var(b.t, input_of(&b, RW_F32, n, x), RW_AXES(-1), false, false));
            for (int row = 0; row < ROWS; row++) {
                double mean = 0, want = 0;
                const double *const own = x + row * n;
                for (int64_t i = 0; i < n; i++) mean += (own[i] - own[0]) / (double)n;
                for (int64_t i = 0; i < n; i++) want += pow(own[i] - own[0] - mean, 2) / (double)n;
                cr_expect_leq(fabs(got[row] - want), ((double)n + 8) * 0x1p-24 * want,
                              "%d numbers about %g: %.9g, expected %.9g", (int)n, offsets[o], got[row], want);
            }
            free(x), free(got);
            fixture_close(&b);
        }
}

/* It is not below 0 either: its root would be NaN. */
Test(norm_statistics_accuracy, a_variance_of_equal_numbers_is_nothing_beside_them)
{
    static double x[ROWS * LONGEST];
    for (size_t d = 0; d < 2; d++)
        for (size_t l = 0; l < LENGTHS; l++) {
            struct fixture b = fixture_open(1, 2);
            const double u = d ? 0x1p-24 : 0x1p-53;
            const int64_t n = lengths[l];
            for (int64_t i = 0; i < ROWS * n; i++) x[i] = 1000.1 * (double)(1 + i / n);
            double *const got = all_of(&b, rw_var(b.t, input_of(&b, types[d], n, x), RW_AXES(-1), false, false));
            for (int row = 0; row < ROWS; row++)
                cr_expect(got[row] >= 0 && got[row] <= pow(64 * u * u * x[row * n], 2), "%s, %d numbers: %.3g",
                          rw_dtype_name(types[d]), (int)n, got[row]);
            free(got);
            fixture_close(&b);
        }
}
