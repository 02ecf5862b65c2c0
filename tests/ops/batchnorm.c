/*
 * batchnorm: running statistics change once per step under every policy, by PyTorch's rule; an evaluation reads them
 * and leaves them unchanged; bit-identical for any number of threads; which values are kept; invalid calls.
 */
#include "support/compare.h"
#include "support/plan_queries.h"

#include "record/tape_mark.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

#define C 19
#define N 6
#define SIDE 40

struct model {
    struct fixture b;
    rw_tensor *x, *weight, *bias, *mean, *var;
};

static struct model open_model(rw_dtype dtype, int threads, const char *policy)
{
    struct model m = { .b = fixture_open(11, threads) };
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    m.x = rw_param(m.b.ctx, "x", dtype, RW_SHAPE(N, C, SIDE, SIDE));
    m.weight = rw_param(m.b.ctx, "weight", dtype, RW_SHAPE(C));
    m.bias = rw_param(m.b.ctx, "bias", dtype, RW_SHAPE(C));
    m.mean = rw_buffer(m.b.ctx, "mean", wide, RW_SHAPE(C));
    m.var = rw_buffer(m.b.ctx, "var", wide, RW_SHAPE(C));
    rw_init_normal(m.x, 1, 2), rw_init_normal(m.weight, 1, 0.1), rw_init_normal(m.bias, 0, 1);
    rw_init_constant(m.mean, 0), rw_init_constant(m.var, 1);
    ckpt_set_policy(m.b.t, policy);
    return m;
}

/* Two layers in a region, the second with the statistics under test; two steps. */
static unsigned char *run(rw_dtype dtype, int threads, const char *policy, size_t *ret)
{
    struct model m = open_model(dtype, threads, policy);
    const size_t each = rw_tensor_bytes(m.mean);
    for (int step = 0; step < 2; step++) {
        ckpt_begin(m.b.t, "bn");
        rw_tensor *const h = rw_relu(m.b.t, rw_batchnorm(m.b.t, m.x, m.weight, m.bias, RW_NONE, RW_NONE, NULL));
        rw_tensor *const y = rw_batchnorm(m.b.t, h, m.weight, m.bias, m.mean, m.var,
                                          &(rw_batchnorm_params){ .momentum = 0.25 });
        ckpt_end(m.b.t);
        cr_assert_eq(rw_backward(m.b.t, rw_sum(m.b.t, rw_mul(m.b.t, y, rw_tanh(m.b.t, y)), RW_ALL_AXES, false)), RW_OK,
                     "%s: %s", policy, rw_error_message(m.b.ctx));
        rw_tape_reset(m.b.t);
    }
    size_t n;
    unsigned char *all = all_gradients(m.b.ctx, &n);
    all = realloc(all, n + 2 * each);
    cr_assert_eq(rw_read(m.b.t, m.mean, all + n, each), RW_OK);
    cr_assert_eq(rw_read(m.b.t, m.var, all + n + each, each), RW_OK);
    *ret = n + 2 * each;
    fixture_close(&m.b);
    return all;
}

Test(ops_batchnorm, bytes_depend_neither_on_threads_nor_on_the_policy)
{
    static const char *const policies[] = { "none", "full", "uniform:1", "ops:relu", "discard:bn" };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t n, more;
        unsigned char *const one = run(types[d], 1, "none", &n);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++)
            for (int threads = 1; threads <= (test_device() != RW_DEVICE_CPU ? 1 : p ? 2 : 8); threads++) {
                unsigned char *const again = run(types[d], threads, policies[p], &more);
                cr_assert_eq(n, more);
                cr_expect_eq(first_difference(one, again, n), -1, "%s, %s, %d threads", rw_dtype_name(types[d]),
                             policies[p], threads);
                free(again);
            }
        free(one);
    }
}

/* Mean and variance over n - 1 of channel c, of x [N, C, SIDE, SIDE]. */
static void statistics(const double *x, int c, double *mean, double *var)
{
    const int pixels = SIDE * SIDE, n = N * pixels;
    *mean = *var = 0;
    for (int i = 0; i < n; i++) *mean += x[(i / pixels * C + c) * pixels + i % pixels] / n;
    for (int i = 0; i < n; i++) *var += pow(x[(i / pixels * C + c) * pixels + i % pixels] - *mean, 2) / (n - 1);
}

Test(ops_batchnorm, running_statistics_move_by_the_momentum_when_the_step_ends)
{
    struct model m = open_model(RW_F64, 2, "full");
    double *const x = malloc(rw_tensor_bytes(m.x));
    double mean[C], var[C], want_mean[C] = { 0 }, want_var[C];
    for (int c = 0; c < C; c++) want_var[c] = 1;
    cr_assert_eq(rw_read(m.b.t, m.x, x, rw_tensor_bytes(m.x)), RW_OK);
    for (int step = 0; step < 3; step++) {
        rw_tensor *const y = rw_batchnorm(m.b.t, m.x, m.weight, m.bias, m.mean, m.var, NULL);
        rw_tensor *const loss = rw_sum(m.b.t, rw_mul(m.b.t, y, y), RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(m.b.t, loss), RW_OK, "%s", rw_error_message(m.b.ctx));
        for (int c = 0; c < C; c++) {
            double of_batch, spread;
            statistics(x, c, &of_batch, &spread);
            want_mean[c] = 0.9 * want_mean[c] + 0.1 * of_batch;
            want_var[c] = 0.9 * want_var[c] + 0.1 * spread;
        }
        rw_tape_reset(m.b.t);
        cr_assert_eq(rw_read(m.b.t, m.mean, mean, sizeof mean), RW_OK);
        cr_assert_eq(rw_read(m.b.t, m.var, var, sizeof var), RW_OK);
        for (int c = 0; c < C; c++) {
            cr_expect_float_eq(mean[c], want_mean[c], 1e-12, "mean of %d, step %d: %g, not %g", c, step, mean[c],
                               want_mean[c]);
            cr_expect_float_eq(var[c], want_var[c], 1e-12, "variance of %d, step %d: %g, not %g", c, step, var[c],
                               want_var[c]);
        }
    }
    free(x);
    fixture_close(&m.b);
}

/*
 * The running statistics of PyTorch 2.15, BatchNorm2d(2, momentum=m, affine=False) in float64, after each of three
 * batches [2, 2, 1, 3] of the numbers below. Without a momentum all batches have equal weight.
 */
Test(ops_batchnorm, running_statistics_are_those_of_pytorch)
{
    static const double momentum[] = { 0.3, 0 }, want[2][3][4] = {
        { { 0.0125, 0.075, 0.928125, 0.9625 }, { 0.12125, 0.09, 0.8503125, 0.874375 },
          { 0.159875, 0.2005, 0.85771875, 0.8401875 } },
        { { 1.0 / 24, 0.25, 0.7604166666666667, 0.875 }, { 0.20833333333333334, 0.1875, 0.7145833333333333, 0.771875 },
          { 0.22222222222222227, 0.2777777777777778, 0.7680555555555556, 0.7680555555555556 } },
    };
    for (int counted = 0; counted < 2; counted++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const mean = rw_buffer(b.ctx, "mean", RW_F64, RW_SHAPE(2));
        rw_tensor *const var = rw_buffer(b.ctx, "var", RW_F64, RW_SHAPE(2));
        rw_tensor *const batches = rw_buffer(b.ctx, "batches", RW_F64, RW_SCALAR);
        rw_init_constant(mean, 0), rw_init_constant(var, 1), rw_init_constant(batches, 0);
        ckpt_set_policy(b.t, "full");
        for (int step = 0; step < 3; step++) {
            double image[12], got[5];
            for (int i = 0; i < 12; i++) image[i] = (i * 7 + step * 5) % 11 / 4.0 - 1;
            rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(2, 2, 1, 3), image, sizeof image));
            ckpt_begin(b.t, "bn");
            rw_tensor *const y = rw_batchnorm(b.t, x, RW_NONE, RW_NONE, mean, var,
                                              &(rw_batchnorm_params){ .momentum = momentum[counted],
                                                                      .batches = counted ? batches : NULL });
            ckpt_end(b.t);
            cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                         rw_error_message(b.ctx));
            rw_tape_reset(b.t);
            cr_assert_eq(rw_read(b.t, mean, got, 2 * sizeof *got), RW_OK);
            cr_assert_eq(rw_read(b.t, var, got + 2, 2 * sizeof *got), RW_OK);
            cr_assert_eq(rw_read(b.t, batches, got + 4, sizeof *got), RW_OK);
            for (int i = 0; i < 4; i++)
                cr_expect_float_eq(got[i], want[counted][step][i], 1e-15, "step %d, number %d: %.17g", step, i, got[i]);
            cr_expect_eq(got[4], counted ? step + 1 : 0);
        }
        fixture_close(&b);
    }
}

/* A layer used twice in each of three steps: batch i, of two rows, has in channel c the mean 40 + c + i^2 and the
   variance 2 (i + 1)^2. */
static void in_each_step_twice(const char *policy, int threads, rw_dtype dtype, unsigned char *ret)
{
    struct fixture b = fixture_open(1, threads);
    rw_tensor *const mean = rw_buffer(b.ctx, "mean", dtype, RW_SHAPE(C));
    rw_tensor *const var = rw_buffer(b.ctx, "var", dtype, RW_SHAPE(C));
    rw_tensor *const batches = rw_buffer(b.ctx, "batches", dtype, RW_SHAPE(1));
    const size_t each = rw_tensor_bytes(mean);
    rw_init_constant(mean, 5), rw_init_constant(var, 7), rw_init_constant(batches, 0);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    for (int step = 0; step < 3; step++) {
        rw_tensor *y[2];
        ckpt_begin(b.t, "bn");
        for (int k = 0; k < 2; k++) {
            const int i = 2 * step + k;
            float image[2 * C];
            for (int c = 0; c < C; c++)
                image[c] = (float)(41 + c + i * i + i), image[C + c] = (float)(39 + c + i * i - i);
            rw_tensor *const x = rw_cast(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2, C), image, sizeof image), dtype);
            y[k] = rw_batchnorm(b.t, rw_relu(b.t, rw_require_grad(b.t, x)), RW_NONE, RW_NONE, mean, var,
                                &(rw_batchnorm_params){ .batches = batches });
        }
        ckpt_end(b.t);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y[0], y[1]), RW_ALL_AXES, false);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(rw_read(b.t, mean, ret, each), RW_OK);
    cr_assert_eq(rw_read(b.t, var, ret + each, each), RW_OK);
    cr_assert_eq(rw_read(b.t, batches, ret + 2 * each, rw_tensor_bytes(batches)), RW_OK);
    fixture_close(&b);
}

/* Each of the six batches has a weight of a sixth; a second use within a step reads the result of the first one. */
Test(ops_batchnorm, each_use_within_a_step_counts_as_a_batch)
{
    static const char *const policies[] = { "none", "full", "uniform:1", "discard:bn", "ops:relu" };
    for (int wide = 0; wide < 2; wide++) {
        const rw_dtype dtype = wide ? RW_F64 : RW_F32;
        const double bound = wide ? 1e-13 : 3e-5; /* some roundings of numbers up to 100 */
        unsigned char one[8 * (2 * C + 1)] = { 0 }, again[8 * (2 * C + 1)] = { 0 };
        in_each_step_twice("none", 1, dtype, one);
        for (int c = 0; c < C; c++) {
            const double mean = number_get(one, dtype, c), var = number_get(one, dtype, C + c);
            cr_expect_float_eq(mean, 40 + c + 55.0 / 6, bound, "mean of channel %d: %g", c, mean);
            cr_expect_float_eq(var, 91.0 / 3, bound, "variance of channel %d: %g", c, var);
        }
        cr_expect_eq(number_get(one, dtype, 2 * C), 6, "%g batches", number_get(one, dtype, 2 * C));
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            in_each_step_twice(policies[p], 2, dtype, again);
            cr_expect_arr_eq(one, again, sizeof one, "%s, %s", policies[p], rw_dtype_name(dtype));
        }
    }
}

Test(ops_batchnorm, an_evaluation_reads_them_and_leaves_them)
{
    struct model m = open_model(RW_F64, 2, "full");
    double mean[C], var[C];
    rw_init_normal(m.mean, 1, 0.5), rw_init_uniform(m.var, 0.5, 2);
    double *const y = malloc(rw_tensor_bytes(m.x)), *const want = malloc(rw_tensor_bytes(m.x));
    const rw_shape column = RW_SHAPE(C, 1, 1);
    rw_tape *const t = m.b.t;
    rw_tensor *const r = rw_pow_scalar(t, rw_add_scalar(t, rw_reshape(t, m.var, column), 1e-3), -0.5);
    rw_tensor *const z = rw_add(t, rw_mul(t, rw_mul(t, rw_sub(t, m.x, rw_reshape(t, m.mean, column)), r),
                                          rw_reshape(t, m.weight, column)), rw_reshape(t, m.bias, column));
    rw_tensor *const x = rw_batchnorm(t, m.x, m.weight, m.bias, m.mean, m.var,
                                      &(rw_batchnorm_params){ .eps = 1e-3, .evaluate = true });
    cr_assert_eq(rw_read(t, m.mean, mean, sizeof mean), RW_OK);
    cr_assert_eq(rw_read(t, x, y, rw_tensor_bytes(m.x)), RW_OK, "%s", rw_error_message(m.b.ctx));
    cr_assert_eq(rw_read(t, z, want, rw_tensor_bytes(m.x)), RW_OK, "%s", rw_error_message(m.b.ctx));
    for (int i = 0; i < N * C * SIDE * SIDE; i++) cr_assert_float_eq(y[i], want[i], 1e-12, "element %d", i);
    cr_assert_eq(rw_backward(t, rw_sum(t, rw_mul(t, x, x), RW_ALL_AXES, false)), RW_OK);
    rw_tape_reset(t);
    cr_assert_eq(rw_read(t, m.mean, var, sizeof var), RW_OK);
    cr_expect_arr_eq(mean, var, sizeof mean);
    free(y), free(want);
    fixture_close(&m.b);
}

/* ---- relu and a sum in the same pass ---- */

struct form {
    bool relu, adds, evaluates, fused;
    double weight; /* of all channels, with a bias of 0; 0: different weights */
};

static rw_tensor *formed(rw_tape *t, const struct form *f, rw_tensor *x, rw_tensor *more, rw_tensor *w, rw_tensor *b,
                         rw_tensor *mean, rw_tensor *var)
{
    const rw_batchnorm_params params = { .evaluate = f->evaluates, .relu = f->fused && f->relu,
                                         .add = f->fused && f->adds ? more : NULL };
    rw_tensor *y = rw_batchnorm(t, x, w, b, mean, var, &params);
    if (!f->fused && f->adds) y = rw_add(t, y, more);
    return !f->fused && f->relu ? rw_relu(t, y) : y;
}

/* The gradients, and the result unless it is recomputed for them. x is channels last, the added tensor is not. */
static unsigned char *with_form(rw_dtype dtype, const struct form *f, const int *extent, bool replays, size_t *ret)
{
    struct fixture b = fixture_open(4, 2);
    rw_tape *const t = b.t;
    const int64_t n = extent[0], c = extent[1], h = extent[2], w = extent[3];
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    const rw_shape shape = h ? RW_SHAPE(n, h, w, c) : RW_SHAPE(n, c), other = h ? RW_SHAPE(n, c, h, w) : shape;
    rw_tensor *const x = rw_param(b.ctx, "x", dtype, shape), *const more = rw_param(b.ctx, "more", dtype, other);
    rw_tensor *const weight = rw_param(b.ctx, "weight", dtype, RW_SHAPE(c));
    rw_tensor *const bias = rw_param(b.ctx, "bias", dtype, RW_SHAPE(c));
    rw_tensor *const mean = rw_buffer(b.ctx, "mean", wide, RW_SHAPE(c));
    rw_tensor *const var = rw_buffer(b.ctx, "var", wide, RW_SHAPE(c));
    rw_init_normal(x, 1, 2), rw_init_normal(more, 0, 1), rw_init_normal(weight, 1, 0.3), rw_init_normal(bias, 0, 1);
    rw_init_constant(mean, 0.5), rw_init_constant(var, 3);
    if (f->weight > 0) rw_init_constant(weight, f->weight), rw_init_constant(bias, 0);
    cr_assert_eq(ckpt_set_policy(t, replays ? "discard:bn" : "none"), RW_OK);
    ckpt_begin(t, "bn");
    rw_tensor *const of = h ? rw_permute(t, x, (const int[]){ 0, 3, 1, 2 }) : x;
    rw_tensor *const y = formed(t, f, rw_scale(t, of, 0.5), rw_scale(t, more, 2), weight, bias, mean, var);
    ckpt_end(t);
    const size_t bytes = replays ? 0 : rw_tensor_bytes(y);
    size_t gradients;
    unsigned char *const result = malloc(bytes + 1);
    if (bytes) cr_assert_eq(rw_read(t, y, result, bytes), RW_OK, "%s", rw_error_message(b.ctx));
    /* has a slope where y is 0, too: relu's own slope decides there */
    rw_tensor *const loss = rw_sum(t, rw_add(t, y, rw_mul(t, y, rw_tanh(t, y))), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *all = all_gradients(b.ctx, &gradients);
    all = realloc(all, bytes + gradients);
    memcpy(all + gradients, result, bytes);
    free(result);
    *ret = bytes + gradients;
    fixture_close(&b);
    return all;
}

Test(ops_batchnorm, with_relu_and_a_sum_has_the_bytes_of_the_three_ops)
{
    static const int extents[][4] = { { 3, 19, 5, 7 }, { 2, 64, 9, 4 }, { 7, 33, 0, 0 }, { 2, 3, 70, 50 } };
    for (int i = 0; i < 4 * 4 * 6; i++) {
        const rw_dtype dtype = types[i % 4];
        const int *const extent = extents[i / 4 % 4];
        struct form f = { .relu = i / 16 % 3 != 1, .adds = i / 16 % 3 != 0, .evaluates = i / 48 };
        size_t n, more;
        unsigned char *const apart = with_form(dtype, &f, extent, false, &n);
        f.fused = true;
        for (int replays = 0; replays < 2; replays++) {
            unsigned char *const one = with_form(dtype, &f, extent, replays, &more);
            cr_assert(replays ? more < n : more == n);
            cr_expect_eq(first_difference(apart, one, more), -1, "%s, relu %d, sum %d, evaluation %d, %d channels%s",
                         rw_dtype_name(dtype), f.relu, f.adds, f.evaluates, extent[1], replays ? ", recomputed" : "");
            free(one);
        }
        free(apart);
    }
}

/* Results so small that half of them round to 0 in the type: relu's mask is read from the result, not computed from
   x. */
Test(ops_batchnorm, relu_cuts_what_rounds_to_zero)
{
    static const struct {
        rw_dtype dtype;
        double least;
    } all[] = { { RW_BF16, 0x1p-133 }, { RW_F16, 0x1p-24 } };
    for (int i = 0; i < 2 * 2; i++) {
        struct form f = { .relu = true, .evaluates = i / 2, .weight = all[i % 2].least };
        size_t n, more;
        unsigned char *const apart = with_form(all[i % 2].dtype, &f, (const int[]){ 40, 19, 0, 0 }, false, &n);
        f.fused = true;
        unsigned char *const one = with_form(all[i % 2].dtype, &f, (const int[]){ 40, 19, 0, 0 }, false, &more);
        cr_assert_eq(n, more);
        cr_expect_eq(first_difference(apart, one, n), -1, "%s, evaluation %d", rw_dtype_name(all[i % 2].dtype), i / 2);
        free(apart), free(one);
    }
}

/* d/dx of the square of a gradient's elements. */
static double *again(const struct form *f)
{
    struct fixture b = fixture_open(6, 1);
    rw_tape *const t = b.t;
    double *const got = malloc(4 * 5 * 3 * 2 * sizeof *got);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F64, RW_SHAPE(4, 5, 3, 2));
    rw_tensor *const more = rw_param(b.ctx, "more", RW_F64, RW_SHAPE(4, 5, 3, 2));
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F64, RW_SHAPE(5));
    rw_tensor *const bias = rw_param(b.ctx, "b", RW_F64, RW_SHAPE(5));
    rw_init_normal(x, 1, 2), rw_init_normal(more, 0, 1), rw_init_normal(w, 1, 0.3), rw_init_normal(bias, 0, 1);
    rw_tensor *const y = formed(t, f, x, more, w, bias, RW_NONE, RW_NONE);
    rw_tensor *of[] = { x, more }, *dx[2];
    rw_tensor *const once = rw_sum(t, rw_add(t, y, rw_mul(t, y, rw_sin(t, y))), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(t, once, of, 2, dx), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const sum = rw_add(t, rw_mul(t, dx[0], dx[0]), rw_mul(t, dx[1], dx[1]));
    cr_assert_eq(rw_backward(t, rw_sum(t, sum, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(t, rw_gradient(x), got, rw_tensor_bytes(x)), RW_OK);
    fixture_close(&b);
    return got;
}

Test(ops_batchnorm, with_relu_and_a_sum_has_their_second_gradient)
{
    struct form f = { .relu = true, .adds = true };
    double *const apart = again(&f);
    f.fused = true;
    double *const one = again(&f);
    for (int i = 0; i < 4 * 5 * 3 * 2; i++)
        cr_expect_float_eq(one[i], apart[i], 1e-12, "element %d: %g, not %g", i, one[i], apart[i]);
    free(apart), free(one);
}

/* ---- an evaluation by statistics that require gradients ---- */

enum { ROWS = 6, GIVEN = 4 }; /* GIVEN: parameters */

/* The evaluation, or its formula in plain ops. */
static rw_tensor *evaluation(rw_tape *t, const struct form *f, rw_tensor *const *of, rw_tensor *mean, rw_tensor *var)
{
    if (f->fused) return formed(t, f, of[0], of[0], of[1], of[1], mean, var);
    rw_tensor *const scale = rw_sqrt(t, rw_add_scalar(t, var, 1e-5));
    rw_tensor *y = rw_add(t, rw_mul(t, rw_div(t, rw_sub(t, of[0], mean), scale), of[1]), of[1]);
    if (f->adds) y = rw_add(t, y, of[0]);
    return f->relu ? rw_relu(t, y) : y;
}

/* Gradients of x, the weight and the statistics, which depend on x, too, if `computed`. twice: second gradients. */
static void gradients_of_given(const struct form *f, rw_dtype dtype, bool computed, bool twice, double *got)
{
    struct fixture b = fixture_open(6, 1);
    rw_tape *const t = b.t;
    rw_tensor *of[GIVEN];
    for (int i = 0; i < GIVEN; i++)
        of[i] = rw_param(b.ctx, (const char *[]){ "x", "w", "m", "v" }[i], dtype, i ? RW_SHAPE(C) : RW_SHAPE(ROWS, C));
    rw_init_normal(of[0], 1, 2), rw_init_normal(of[1], 1, 0.3), rw_init_normal(of[2], 1, 1);
    rw_init_constant(of[3], 3);
    rw_tensor *mean = of[2], *var = of[3], *g;
    if (computed) mean = rw_add(t, mean, rw_mean(t, of[0], RW_AXES(0), false));
    if (computed) var = rw_add(t, var, rw_var(t, of[0], RW_AXES(0), false, false));
    rw_tensor *const z = evaluation(t, f, of, mean, var);
    rw_tensor *loss = rw_sum(t, rw_add(t, z, rw_mul(t, z, rw_sin(t, z))), RW_ALL_AXES, false); /* has a slope at 0 */
    if (twice) cr_assert_eq(rw_grad(t, loss, &of[2], 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    if (twice) loss = rw_sum(t, rw_mul(t, g, g), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0, at = 0; i < GIVEN; i++) {
        const int n = i ? C : ROWS * C;
        rw_tensor *const d = rw_cast(t, rw_gradient(of[i]), RW_F64);
        cr_assert_eq(rw_read(t, d, got + at, (size_t)n * sizeof *got), RW_OK, "%s", rw_error_message(b.ctx));
        at += n;
    }
    fixture_close(&b);
}

Test(ops_batchnorm, given_statistics_have_the_gradients_of_the_formula)
{
    enum { ALL = ROWS * C + 3 * C };
    for (int i = 0; i < 32; i++) {
        static double plain[ALL], one[ALL];
        const rw_dtype dtype = i / 16 ? RW_F32 : RW_F64;
        struct form f = { .relu = i & 1, .adds = i & 2, .evaluates = true };
        gradients_of_given(&f, dtype, i & 4, i & 8, plain);
        f.fused = true;
        gradients_of_given(&f, dtype, i & 4, i & 8, one);
        double greatest = 0;
        for (int k = 0; k < ALL; k++) greatest = fmax(greatest, fabs(plain[k]));
        for (int k = 0; k < ALL; k++)
            cr_expect_float_eq(one[k], plain[k], (i / 16 ? 1e-4 : 1e-12) * greatest, "form %d, element %d: %g, not %g",
                               i, k, one[k], plain[k]);
    }
}

/* Only they require a gradient: the input is data. */
Test(ops_batchnorm, given_statistics_may_be_all_that_is_trained)
{
    struct fixture b = fixture_open(6, 1);
    float got[2];
    rw_tensor *const mean = rw_param(b.ctx, "m", RW_F32, RW_SHAPE(2));
    rw_tensor *const var = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_write(mean, (float[]){ 1, 2 }, sizeof got), RW_OK);
    cr_assert_eq(rw_write(var, (float[]){ 3, 15 }, sizeof got), RW_OK);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 2), (float[]){ 2, 5, 4, 8 }, 4 * sizeof(float));
    rw_tensor *const y = rw_batchnorm(b.t, x, RW_NONE, RW_NONE, mean, var,
                                      &(rw_batchnorm_params){ .eps = 1, .evaluate = true });
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(NULL, rw_gradient(mean), got, sizeof got), RW_OK);
    cr_expect(got[0] == -1 && got[1] == -0.5f, "%g %g", (double)got[0], (double)got[1]);
    cr_assert_eq(rw_read(NULL, rw_gradient(var), got, sizeof got), RW_OK);
    cr_expect(got[0] == -0.25f && got[1] == -0.0703125f, "%g %g", (double)got[0], (double)got[1]);
    fixture_close(&b);
}

/* Keeps x and two numbers per channel, not the result, whatever relu masked in it. */
Test(ops_batchnorm, keeps_x_and_two_numbers_for_each_channel)
{
    for (int relu = 0; relu < 2; relu++) {
        struct model m = open_model(RW_F32, 1, "none");
        rw_memory memory;
        rw_tensor *const y = rw_batchnorm(m.b.t, rw_scale(m.b.t, m.x, 2), m.weight, m.bias, m.mean, m.var,
                                          &(rw_batchnorm_params){ .relu = relu });
        cr_assert_eq(rw_backward(m.b.t, rw_sum(m.b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(m.b.ctx));
        cr_assert_eq(rw_memory_stats(m.b.ctx, &memory), RW_OK);
        cr_assert_eq(memory.kept, rw_tensor_bytes(m.x) + 2 * 512, /* buffers are aligned */ "%zu bytes, relu %d",
                     memory.kept, relu);
        fixture_close(&m.b);
    }
}

static void refuses(struct model *m, rw_tensor *y, rw_status status, const char *text, size_t nodes)
{
    cr_expect_null(y, "%s", text);
    cr_expect_eq(rw_error_status(m->b.ctx), status, "%s: %s", text, rw_error_message(m->b.ctx));
    cr_expect(message_has(rw_error_message(m->b.ctx), text), "\"%s\" is not in: %s", text, rw_error_message(m->b.ctx));
    cr_expect_eq(rw_tape_mark(m->b.t).nodes, nodes, "%s: the tape has grown", text);
    rw_error_clear(m->b.ctx);
}

/* As in PyTorch 2.15: an empty batch leaves the statistics unchanged. */
Test(ops_batchnorm, an_empty_batch_moves_no_running_statistics)
{
    struct model m = open_model(RW_F32, 1, "full");
    rw_init_constant(m.mean, 0.5), rw_init_constant(m.var, 2);
    float mean[C], var[C];
    rw_tensor *const x = rw_require_grad(m.b.t, rw_input(m.b.t, RW_F32, RW_SHAPE(0, C, 3), NULL, 0));
    rw_tensor *const y = rw_batchnorm(m.b.t, x, m.weight, m.bias, m.mean, m.var, NULL);
    cr_assert_not_null(y, "%s", rw_error_message(m.b.ctx));
    cr_assert_eq(rw_backward(m.b.t, rw_sum(m.b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(m.b.ctx));
    rw_tape_reset(m.b.t);
    cr_assert_eq(rw_read(m.b.t, m.mean, mean, sizeof mean), RW_OK);
    cr_assert_eq(rw_read(m.b.t, m.var, var, sizeof var), RW_OK);
    for (int c = 0; c < C; c++) cr_expect(mean[c] == 0.5F && var[c] == 2, "%d: %g, %g", c, mean[c], var[c]);
    fixture_close(&m.b);
}

Test(ops_batchnorm, mistakes_are_named_and_leave_nothing)
{
    struct model m = open_model(RW_F32, 1, "none");
    rw_tape *const t = m.b.t;
    rw_tensor *const x = rw_input(t, RW_F32, RW_SHAPE(2, C, 3, 3), NULL, 0);
    rw_tensor *const one = rw_input(t, RW_F32, RW_SHAPE(1, C, 1, 1), NULL, 0);
    rw_tensor *const rows = rw_input(t, RW_F32, RW_SHAPE(2, C, 3), NULL, 0);
    rw_tensor *const flat = rw_input(t, RW_F32, RW_SHAPE(2, C), NULL, 0);
    rw_tensor *const v = rw_input(t, RW_F32, RW_SHAPE(5), NULL, 0);
    rw_tensor *const narrow = rw_buffer(m.b.ctx, "narrow", RW_BF16, RW_SHAPE(C));
    rw_tensor *const other = rw_buffer(m.b.ctx, "other", RW_F32, RW_SHAPE(C + 1));
    rw_tensor *const half = rw_input(t, RW_BF16, RW_SHAPE(2, C, 3, 3), NULL, 0);
    rw_tape *elsewhere = NULL;
    cr_assert_eq(rw_tape_create(&elsewhere, m.b.ctx), RW_OK);
    rw_tensor *const foreign = rw_input(elsewhere, RW_F32, RW_SHAPE(2, C, 3, 3), NULL, 0);
    const size_t n = rw_tape_mark(t).nodes;
#define BN(x, mean, var, ...)                                                                                          \
    rw_batchnorm(t, x, m.weight, m.bias, mean, var, &(rw_batchnorm_params){ __VA_ARGS__ })
    refuses(&m, BN(x, m.mean, RW_NONE, .eps = 1), RW_ERR_ARGUMENT,
            "running_var: expected a tensor as running_mean is one", n);
    refuses(&m, BN(x, RW_NONE, RW_NONE, .evaluate = true), RW_ERR_ARGUMENT, "expected a tensor in evaluation", n);
    refuses(&m, BN(x, NULL, NULL, .eps = 1), RW_ERR_ARGUMENT, "running_mean is NULL", n);
    refuses(&m, BN(x, v, v, .eps = 1), RW_ERR_ARGUMENT, "expected buffers made by rw_buffer()", n);
    refuses(&m, BN(x, m.mean, other, .eps = 1), RW_ERR_SHAPE, "running_var: expected shape [19]", n);
    refuses(&m, BN(x, narrow, narrow, .eps = 1), RW_ERR_DTYPE, "batchnorm", n);
    refuses(&m, BN(x, m.mean, m.var, .momentum = 2), RW_ERR_ARGUMENT, "batchnorm(momentum): expected 0 to 1, got 2", n);
    refuses(&m, BN(x, m.mean, m.var, .eps = -1), RW_ERR_ARGUMENT,
            "eps: expected a finite number of 0 or more, got -1", n);
    refuses(&m, BN(one, m.mean, m.var, .eps = 1), RW_ERR_SHAPE, "2 elements or more per channel", n);
    refuses(&m, BN(v, m.mean, m.var, .eps = 1), RW_ERR_SHAPE, "batchnorm(x): expected [n, c] or [n, c, ...], got [", n);
    refuses(&m, BN(x, m.mean, m.var, .add = rows), RW_ERR_SHAPE, "batchnorm(add): expected shape [", n);
    refuses(&m, BN(x, m.mean, m.var, .add = half), RW_ERR_DTYPE, "batchnorm", n);
    refuses(&m, BN(x, m.mean, m.var, .add = foreign), RW_ERR_ARGUMENT, "got a value of another tape", n);
    refuses(&m, rw_batchnorm(t, x, v, m.bias, m.mean, m.var, NULL), RW_ERR_SHAPE, "weight: expected shape [19]", n);
    refuses(&m, rw_batchnorm(t, x, m.weight, v, m.mean, m.var, NULL), RW_ERR_SHAPE, "bias: expected shape [19]", n);
    refuses(&m, rw_batchnorm(t, NULL, m.weight, m.bias, m.mean, m.var, NULL), RW_ERR_ARGUMENT, "x is NULL", n);
    refuses(&m, rw_group_norm(t, x, 2, m.weight, m.bias, 1), RW_ERR_ARGUMENT,
            "groups: expected a divisor of 19 channels, got 2", n);
    refuses(&m, rw_group_norm(t, x, 0, m.weight, m.bias, 1), RW_ERR_ARGUMENT,
            "group_norm(groups): expected 1 or more, got 0", n);
    refuses(&m, rw_group_norm(t, v, 1, RW_NONE, RW_NONE, 1), RW_ERR_SHAPE,
            "group_norm(x): expected [n, c] or [n, c, ...]", n);
    refuses(&m, rw_instance_norm(t, flat, m.weight, m.bias, 1), RW_ERR_SHAPE,
            "instance_norm(x): expected [n, c, ...], got [", n);
    refuses(&m, rw_instance_norm(t, one, m.weight, m.bias, 1), RW_ERR_SHAPE, "2 elements or more per channel", n);
    rw_tensor *const several = rw_buffer(m.b.ctx, "several", RW_F32, RW_SHAPE(2));
    rw_tensor *const wide = rw_buffer(m.b.ctx, "wide", RW_F64, RW_SCALAR);
    rw_tensor *const batches = rw_buffer(m.b.ctx, "batches", RW_F32, RW_SCALAR);
    refuses(&m, BN(x, m.mean, m.var, .batches = v), RW_ERR_ARGUMENT, "batchnorm(batches): expected a buffer", n);
    refuses(&m, BN(x, m.mean, m.var, .batches = several), RW_ERR_ARGUMENT,
            "batchnorm(batches): expected shape [] or [1], got [2]", n);
    refuses(&m, BN(x, m.mean, m.var, .batches = wide), RW_ERR_ARGUMENT,
            "batchnorm(batches): expected f32, the type of running_mean, got f64", n);
    refuses(&m, BN(x, RW_NONE, RW_NONE, .batches = batches), RW_ERR_ARGUMENT, "without running statistics", n);
    refuses(&m, BN(x, m.mean, m.var, .batches = batches, .momentum = 0.5), RW_ERR_ARGUMENT,
            "batchnorm(momentum): expected 0 with batches, got 0.5", n);
    refuses(&m, BN(x, m.mean, other, .batches = batches), RW_ERR_SHAPE, "batchnorm", n);
    rw_tape_destroy(&elsewhere);
    fixture_close(&m.b);
}
