/*
 * How near the statistics of norms are to those of exact sums: what a sum of thousands of numbers loses is less than
 * what the roundings behind it take, beside a mean that is a thousand times the deviation, too. Held against the same
 * op in float64; errors of a channel's mean and scale are those that its results have in common.
 */
#include "support/support.h"

#include <rewind/norm.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

enum { BATCH, GROUP, INSTANCE };

/* n groups of `inside` numbers are normalised. */
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

/* About `mean`, of deviation 1: a sum of four even ones. The same for whoever asks first. */
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
    rw_tensor *const in = rw_input(b.t, dtype, f->shape, dtype == RW_F64 ? (const void *)x : narrow);
    rw_tensor *const out = normed(&b, norm, in);
    cr_assert_not_null(out, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_cast(b.t, out, RW_F64), y, (size_t)n * sizeof *y), RW_OK);
    free(narrow);
    fixture_close(&b);
    return y;
}

/* Element i of group s: a batch's channel lies apart. */
static int64_t at(int norm, const struct form *f, int64_t s, int64_t i)
{
    if (norm != BATCH) return s * f->inside + i;
    int64_t pixels = 1;
    for (int k = 2; k < f->shape.rank; k++) pixels *= f->shape.dim[k];
    return (i / pixels * f->shape.dim[1] + s) * pixels + i % pixels;
}

/*
 * Of y = (x - mean) r all elements share the errors of mean and r, and each has roundings of its own, which add up to
 * some of 1 / sqrt(n) in the mean of n. A mean takes one rounding; so does what is left of x without it, and in numbers
 * of one exponent that goes the same way. A variance takes one, of which r has half, its root and the quotient one
 * each, and the product with a weight, which is 1 here, none.
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

Test(statistics, of_a_batch_are_near)
{
    check_all(BATCH);
}

Test(statistics, of_groups_are_near)
{
    check_all(GROUP);
}

Test(statistics, of_instances_are_near)
{
    check_all(INSTANCE);
}

/* A sum of positive numbers: one rounding, and some of what each run of them takes. */
Test(statistics, a_bias_s_gradient_is_near)
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
    rw_tensor *const dy = rw_input(b.t, RW_F32, RW_SHAPE(N, C, L), narrow);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(N, C, L), narrow + N * C * L);
    rw_tensor *const y = rw_batchnorm(b.t, in, ones, bias, RW_NONE, RW_NONE, NULL);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, dy), RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_gradient(bias), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    for (int c = 0; c < C; c++)
        cr_expect_leq(fabs((double)got[c] / sum[c] - 1), 1.05 * 0x1p-24, "%d: off by %.3g u", c,
                      ((double)got[c] / sum[c] - 1) * 0x1p24);
    free(x), free(narrow);
    fixture_close(&b);
}
