/*
 * The CPU's own functions of floats, compared in ulps with C's in double: over every exponent of either sign, the edges
 * of their range, infinities and a NaN. A result is the same in every vector lane.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* of_ulps: the accuracy that ops/common/vec_native.h promises. */
struct fn {
    const char *name;
    rw_tensor *(*record)(rw_tape *t, rw_tensor *x);
    double (*value)(double x);
    double of_ulps;
};

static rw_tensor *record_exp(rw_tape *t, rw_tensor *x)
{
    return rw_exp(t, x);
}

static rw_tensor *record_erf(rw_tape *t, rw_tensor *x)
{
    return rw_erf(t, x);
}

static const struct fn exp_fn = { "exp", record_exp, exp, 1.0 }, erf_fn = { "erf", record_erf, erf, 1.2 };

/* Size of an ulp of the floats around y, a result in double. */
static double ulp_of(double y)
{
    int e;
    frexp(y, &e);
    return ldexp(1, e < -125 ? -149 : e - 24);
}

static double ulps_off(float got, double want)
{
    const double past = 0x1.ffffffp127; /* from here on results round to infinity */
    if (isnan(want)) return isnan(got) ? 0 : INFINITY;
    if (fabs(want) >= past) return isinf(got) && (got > 0) == (want > 0) ? 0 : INFINITY;
    if (isinf(got) || isnan(got)) return INFINITY;
    return fabs((double)got - want) / ulp_of(want);
}

static void check(const struct fn *f, float *x, int64_t n)
{
    struct fixture b = fixture_open(1, 2);
    float *const y = malloc((size_t)n * sizeof *y);
    const size_t bytes = (size_t)n * sizeof *y;
    cr_assert_eq(rw_read(b.t, f->record(b.t, rw_input(b.t, RW_F32, RW_SHAPE(n), x, (size_t)n * sizeof *x)), y, bytes),
                 RW_OK, "%s", rw_error_message(b.ctx));
    for (int64_t i = 0; i < n; i++) {
        const double off = ulps_off(y[i], f->value(x[i]));
        cr_assert(off <= f->of_ulps, "%s(%a) is %a, which is off by %.3f ulp", f->name, (double)x[i], (double)y[i],
                  off);
    }
    free(y);
    fixture_close(&b);
}

/* Every `step`-th float: a prime, so that all low bits occur and every lane sees every exponent. */
static void check_all(const struct fn *f, uint32_t step)
{
    const int64_t n = (int64_t)(UINT32_MAX / step);
    float *const x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = (uint32_t)i * step;
        memcpy(x + i, &bits, sizeof bits);
    }
    check(f, x, n);
    free(x);
}

Test(ops_ulps, exp_of_every_exponent)
{
    check_all(&exp_fn, 1009);
}

Test(ops_ulps, erf_of_every_exponent)
{
    check_all(&erf_fn, 1009);
}

/* From the largest result down to 0, in small steps; 1, and the least number that is not rounded to 1. */
Test(ops_ulps, exp_at_its_edges)
{
    enum { N = 1 << 18 };
    float *const x = malloc(N * sizeof *x);
    for (int i = 0; i < N; i++) x[i] = (float)(-106 + 196.0 * i / N);
    static const float edges[] = { 0, -0.0f, INFINITY, -INFINITY, NAN, 88.72283f, 88.722839f, 88.7229f,
                                   -87.33655f, -103.27893f, -103.9720764f, -103.9721f, -104, 89, 0x1p-25f, -0x1p-25f,
                                   0x1.62e43p-2f, -0x1.62e43p-2f, 3e38f, -3e38f };
    memcpy(x, edges, sizeof edges);
    check(&exp_fn, x, N);
    free(x);
}
