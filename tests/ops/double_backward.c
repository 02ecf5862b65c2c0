/*
 * Gradients that can be differentiated again, in 16-bit types. For every case of op_cases.c the gradients of rw_grad(),
 * whose rules record several ops, are compared with those of rw_backward(), whose fused ops compute in float32. Inputs
 * are those of the table times powers of two, so that squares and products leave the range of float16 at both ends.
 *
 * Both are computed in float32 from the same stored operands and rounded to the type once. The fused one takes n
 * roundings of 2^-24 of the terms M (compare.h), the composed one at most twice as many (gradcheck.c). Each is rounded
 * by v relative to itself, in float16 by at least 2^-25: |a - b| <= G(3 n, 2^-24) M + 2 v max(|a|, |b|) + 2^-24.
 * Intermediates that both rules store, an output for example, are the same and add nothing. Only attention's fused op
 * may store intermediates that the composed one does not, if a 16-bit matrix unit takes p and ds: this adds G(s, v) M,
 * and on average a thirty-second of that, as in accuracy.c. A gradient to which a norm's fused op adds in its own pass
 * is stored before the composed one adds to it: G(1, v) M.
 *
 * REWIND_TEST_OPS: see op_cases.h; REWIND_TEST_SHOW=1 prints the share of its bound that each case uses (without --tap,
 * which hides it).
 */
#include "support/op_builds.h"
#include "support/op_run.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* About 1e-3, 1, 4 (scores that saturate a soft cap) and 300. */
static const int shifts[] = { -10, 0, 2, 8 };

static bool worked(rw_status status, rw_tape *t, const struct op_case *c, rw_dtype dtype, const char *what)
{
    cr_expect(status == RW_OK, "%s, %s: %s: %s: %s", c->name, rw_dtype_name(dtype), what, rw_status_name(status),
              rw_error_message(rw_tape_context(t)));
    rw_error_clear(rw_tape_context(t));
    rw_tape_reset(t);
    return status == RW_OK;
}

static double most_of(const struct op_case *c, rw_dtype stored, int i, double a, double b, double size)
{
    const double v = unit_roundoff(stored);
    const double tiny = stored == RW_F16 ? 0x1p-24 : 0;
    const int s = c->group == OP_ATTENTION ? op_allowed(c, i).s : c->group == OP_NORMS && c->keep;
    return (roundings(3 * op_allowed(c, i).n, 0x1p-24) + roundings(s, v)) * size + 2 * v * fmax(fabs(a), fabs(b)) +
           tiny;
}

/* For attention: rounding errors have independent signs, and so have those of the two results. */
static void close_on_average(const struct op_case *c, rw_dtype dtype, int shift, int i, const struct outcome *got,
                             const struct outcome *want, const struct outcome *size)
{
    const double v = unit_roundoff(dtype), n = 3 * op_allowed(c, i).n, s = op_allowed(c, i).s;
    double errors = 0, sizes = 0, squares = 0;
    for (int64_t k = 0; k < got->numel[i]; k++) {
        const double a = number_get(got->raw[i], got->dtype[i], k), b = number_get(want->raw[i], want->dtype[i], k);
        if (!isfinite(b)) continue;
        errors += (a - b) * (a - b);
        squares += b * b;
        sizes += pow(number_get(size->raw[i], RW_F64, k), 2);
    }
    const double tiny = dtype == RW_F16 ? 0x1p-24 * sqrt((double)got->numel[i]) : 0;
    const double most = (sqrt(n) * 0x1p-24 + sqrt(s) * v) / 32 * sqrt(sizes) + v * sqrt(2 * squares) + tiny;
    cr_expect(errors == 0 || sqrt(errors) <= most,
              "%s, %s, times 2^%d, gradient of input %d: off by %.3g on the average, %.3g allowed", c->name,
              rw_dtype_name(dtype), shift, i - 1, sqrt(errors), most);
}

/* A gradient is not compared if the fused op cannot compute it either, as of a power of a negative number, or if its
   terms exceed float64. */
static double close_to(const struct op_case *c, rw_dtype dtype, int shift, const struct outcome *got,
                       const struct outcome *want, const struct outcome *size)
{
    double worst = 0;
    for (int i = 1; i < got->n; i++) {
        cr_assert(got->numel[i] == want->numel[i] && got->dtype[i] == want->dtype[i], "%s: shapes", c->name);
        for (int64_t k = 0; k < got->numel[i]; k++) {
            const double a = number_get(got->raw[i], got->dtype[i], k), b = number_get(want->raw[i], want->dtype[i], k);
            const double magnitude = fabs(number_get(size->raw[i], RW_F64, k));
            if (a == b || !isfinite(b) || !isfinite(magnitude)) continue;
            const double most = most_of(c, got->dtype[i], i, a, b, magnitude);
            cr_expect(
                fabs(a - b) <= most,
                "%s, %s, times 2^%d, gradient of input %d, element %lld: %.9g by rw_grad(), %.9g by rw_backward(): "
                "off by %.3g, %.3g allowed",
                c->name, rw_dtype_name(dtype), shift, i - 1, (long long)k, a, b, fabs(a - b), most);
            if (!(fabs(a - b) <= most)) return INFINITY; /* one element suffices */
            worst = fmax(worst, fabs(a - b) / most);
        }
        if (c->group == OP_ATTENTION) close_on_average(c, dtype, shift, i, got, want, size);
    }
    return worst;
}

/* op_number()s times 2^shift. The caller frees them. */
static struct op_data scaled(const struct op_case *c, int shift)
{
    struct op_data data = { .w = NULL };
    for (int i = 0; i < c->n; i++) {
        const int64_t n = rw_shape_numel(op_base_shape(&c->in[i]));
        double *const x = malloc((size_t)(n + 1) * sizeof *x);
        for (int64_t k = 0; k < n; k++) x[k] = ldexp(op_number(c->in[i].range, k, i), shift);
        data.x[i] = x;
    }
    return data;
}

static void check(struct fixture *b, const struct op_case *c, rw_dtype dtype, int shift)
{
    struct op_data data = scaled(c, shift);
    struct outcome got, want = { 0 }, size = { 0 };
    if (worked(op_run_composed(&got, b->t, c, dtype, &data), b->t, c, dtype, "rw_grad()") &&
        worked(op_run(&want, b->t, c, dtype, &data, OP_PLAIN), b->t, c, dtype, "rw_backward()") &&
        worked(op_run_sizes(&size, b->t, c, &data), b->t, c, dtype, "magnitudes")) {
        const double worst = close_to(c, dtype, shift, &got, &want, &size);
        if (getenv("REWIND_TEST_SHOW"))
            fprintf(stderr, "# %-4s %-60s 2^%-3d %.3f of the bound\n", rw_dtype_name(dtype), c->name, shift, worst);
    }
    op_forget(&got), op_forget(&want), op_forget(&size);
    for (int i = 0; i < c->n; i++) free((double *)data.x[i]);
}

/* The logits are products: 2^16 times the table's are too large for float16. Simulated kernels run with one magnitude
   only. */
static bool in_range(const struct op_case *c, rw_dtype dtype, int shift)
{
    if (test_device() == RW_DEVICE_CUDA && shift) return false;
    return c->build != op_build_linear_cross_entropy || dtype != RW_F16 || shift < 8;
}

static void check_group(enum op_group group, rw_dtype dtype)
{
    size_t n;
    const struct op_case *const all = op_cases(&n);
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < n; i++) {
        const struct op_case *const c = &all[i];
        if (c->group != group || !c->n || c->large || c->tiled || c->typed) continue;
        for (size_t k = 0; k < sizeof shifts / sizeof *shifts; k++)
            if (in_range(c, dtype, shifts[k])) check(&b, c, dtype, shifts[k]);
    }
    fixture_close(&b);
}

#define GROUP(name, group)                                                                                             \
    Test(double_backward, name##_bf16)                                                                                 \
    {                                                                                                                  \
        check_group(group, RW_BF16);                                                                                   \
    }                                                                                                                  \
    Test(double_backward, name##_f16)                                                                                  \
    {                                                                                                                  \
        check_group(group, RW_F16);                                                                                    \
    }

GROUP(pointwise, OP_POINTWISE)
GROUP(products, OP_PRODUCTS)
GROUP(norms, OP_NORMS)
GROUP(reductions, OP_REDUCTIONS)
GROUP(attention, OP_ATTENTION)
GROUP(tables, OP_TABLES)
GROUP(shapes, OP_SHAPES)
GROUP(random, OP_RANDOM)

/* ---- attention under a soft cap that saturates ---- */

enum { PLACES = 5, WIDTH = 8 };

static rw_tensor *heads(struct fixture *b, rw_dtype dtype, enum op_range range, double times, int salt)
{
    char x[2 * 2 * PLACES * WIDTH];
    for (int i = 0; i < 2 * PLACES * WIDTH; i++) number_put(x, dtype, i, times * op_number(range, i, salt));
    return rw_require_grad(
        b->t, rw_input(b->t, dtype, RW_SHAPE(1, 2, PLACES, WIDTH), x, 2 * PLACES * WIDTH * rw_dtype_size(dtype)));
}

/* Every score is about 14 `times` squared. The three gradients, concatenated, as doubles. */
static void capped(struct fixture *b, rw_dtype dtype, double times, bool composed, double *ret)
{
    rw_tensor *x[] = { heads(b, dtype, OP_POSITIVE, times, 0), heads(b, dtype, OP_POSITIVE, times, 1),
                       heads(b, dtype, OP_SIGNED, 1, 2) },
              *g[3];
    rw_tensor *const y = rw_attention(b->t, x[0], x[1], x[2], &(rw_attention_params){ .soft_cap = 5 });
    rw_tensor *const w = rw_reshape(b->t, heads(b, dtype, OP_SIGNED, 1, 9), rw_tensor_shape(y));
    rw_tensor *const loss = rw_sum(b->t, rw_mul(b->t, y, w), RW_ALL_AXES, false);
    cr_assert_eq(composed ? rw_grad(b->t, loss, x, 3, g) : rw_backward(b->t, loss), RW_OK, "%s",
                 rw_error_message(b->ctx));
    for (int i = 0; i < 3; i++) {
        char raw[2 * 2 * PLACES * WIDTH];
        cr_assert_eq(rw_read(b->t, composed ? g[i] : rw_gradient(x[i]), raw, sizeof raw), RW_OK);
        for (int k = 0; k < 2 * PLACES * WIDTH; k++) *ret++ = number_get(raw, dtype, k);
    }
    rw_tape_reset(b->t);
}

/*
 * The slope of a cap is 1 - t^2, about 0.01 at a score of 14 under a cap of 5: with t^2 rounded to v it is off by v /
 * 0.01. In float32 only each result's own rounding remains, and in the fused op possibly those of p and ds: 4 v of the
 * norm.
 */
Test(double_backward, the_slope_of_a_cap_is_not_of_16_bits)
{
    static const rw_dtype types[] = { RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++)
        for (double times = 0.25; times <= 1; times *= 2) {
            double got[6 * PLACES * WIDTH], want[6 * PLACES * WIDTH];
            capped(&b, types[d], times, true, got);
            capped(&b, types[d], times, false, want);
            for (int i = 0; i < 3; i++) {
                double error = 0, norm = 0;
                for (int k = 2 * i * PLACES * WIDTH; k < 2 * (i + 1) * PLACES * WIDTH; k++)
                    error += pow(got[k] - want[k], 2), norm += pow(want[k], 2);
                cr_expect(sqrt(error) <= 4 * unit_roundoff(types[d]) * sqrt(norm),
                          "%s, times %g, input %d: off by %.3g", rw_dtype_name(types[d]), times, i, sqrt(error / norm));
            }
        }
    fixture_close(&b);
}

/* ---- losses that are scaled against underflow ---- */

enum { TOKENS = 1000, CLASSES = 5, LOGITS = TOKENS * CLASSES };

static rw_tensor *many(struct fixture *b, rw_dtype dtype, int salt)
{
    static char x[2 * LOGITS];
    for (int64_t i = 0; i < LOGITS; i++) number_put(x, dtype, i, op_number(OP_SCORES, i, salt));
    return rw_require_grad(
        b->t, rw_input(b->t, dtype, RW_SHAPE(TOKENS, CLASSES), x, TOKENS * CLASSES * rw_dtype_size(dtype)));
}

static void scaled_loss(struct fixture *b, rw_dtype dtype, bool squares, bool composed, double *ret)
{
    static int32_t target[TOKENS];
    static char raw[2 * LOGITS];
    for (int i = 0; i < TOKENS; i++) target[i] = i % CLASSES;
    rw_tensor *x = many(b, dtype, 0), *g;
    rw_tensor *const loss = squares ? rw_mse_loss(b->t, x, many(b, dtype, 1))
                                    : rw_cross_entropy(b->t, x,
                                                       rw_input(b->t, RW_I32, RW_SHAPE(TOKENS), target, sizeof target));
    rw_tensor *const more = rw_scale(b->t, loss, 0x1p16);
    cr_assert_eq(composed ? rw_grad(b->t, more, &x, 1, &g) : rw_backward(b->t, more), RW_OK, "%s",
                 rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, composed ? g : rw_gradient(x), raw, sizeof raw), RW_OK);
    for (int64_t i = 0; i < LOGITS; i++) ret[i] = number_get(raw, dtype, i);
    rw_tape_reset(b->t);
}

/*
 * Float16 does not hold 2^16, the upstream gradient of the loss, and its rounding of 1 / 1000 has an error of v. A
 * gradient has a few terms that float32 holds, of at most 2^7: both results are rounded, and terms that cancel are off
 * by 32 roundings of 2^-24.
 */
Test(double_backward, a_loss_may_be_scaled_beyond_the_type)
{
    static const rw_dtype types[] = { RW_BF16, RW_F16 };
    static double got[LOGITS], want[LOGITS];
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++)
        for (int squares = 0; squares < 2; squares++) {
            scaled_loss(&b, types[d], squares, true, got);
            scaled_loss(&b, types[d], squares, false, want);
            for (int i = 0; i < LOGITS; i++) {
                const double most = 2 * unit_roundoff(types[d]) * fabs(want[i]) + 32 * 0x1p-24 * 0x1p7;
                cr_assert(fabs(got[i] - want[i]) <= most, "%s, %s, element %d: %.9g, not %.9g",
                          squares ? "mse_loss" : "cross_entropy", rw_dtype_name(types[d]), i, got[i], want[i]);
            }
        }
    fixture_close(&b);
}

/* ---- second gradients of norms ---- */

enum { ROWS = 4, COLUMNS = 9, MANY = ROWS * COLUMNS };

static rw_tensor *numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, int shift, int salt)
{
    char x[8 * MANY];
    for (int64_t i = 0; i < rw_shape_numel(shape); i++)
        cr_assert(number_put(x, dtype, i, ldexp(op_number(OP_SIGNED, i, salt), shift)));
    return rw_input(b->t, dtype, shape, x, (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype));
}

/* The gradient of sum(u g), where g is that of sum(w y). */
static void second(struct fixture *b, rw_dtype dtype, int kind, double *ret)
{
    const rw_shape shape = kind > 1 ? RW_SHAPE(ROWS / 2, 3, 2, 3) : RW_SHAPE(ROWS, COLUMNS);
    const rw_shape vector = RW_SHAPE(kind > 1 ? 3 : COLUMNS);
    rw_tape *const t = b->t;
    rw_tensor *x = rw_require_grad(t, numbers(b, dtype, shape, -7, 0)), *g;
    rw_tensor *const weight = numbers(b, dtype, vector, 0, 1), *const bias = numbers(b, dtype, vector, 0, 2);
    rw_tensor *const y = kind == 0   ? rw_rmsnorm(t, x, weight, 1e-6)
                         : kind == 1 ? rw_layernorm(t, x, weight, bias, 1e-6)
                         : kind == 2 ? rw_group_norm(t, x, 1, weight, bias, 1e-6)
                                     : rw_batchnorm(t, x, weight, bias, RW_NONE, RW_NONE, NULL);
    rw_tensor *loss = rw_sum(t, rw_mul(t, y, numbers(b, dtype, shape, -2, 3)), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(t, loss, &x, 1, &g), RW_OK, "%s", rw_error_message(b->ctx));
    loss = rw_sum(t, rw_mul(t, g, numbers(b, dtype, shape, -3, 4)), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(t, loss, &x, 1, &g), RW_OK, "%s", rw_error_message(b->ctx));
    char raw[8 * MANY];
    cr_assert_eq(rw_read(t, g, raw, rw_tensor_bytes(g)), RW_OK);
    for (int64_t i = 0; i < rw_shape_numel(shape); i++) ret[i] = number_get(raw, dtype, i);
    rw_tape_reset(t);
}

/*
 * Their formula has a power of the variance, about 2^-14, that is 2^21, which float16 does not hold. Everything is
 * computed in float32 from the operands, which are exact, to the result, which is rounded by v of itself; float32's own
 * errors are less than another v of the norm.
 */
Test(double_backward, second_gradients_of_small_rows)
{
    static const rw_dtype types[] = { RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++)
        for (int kind = 0; kind < 4; kind++) {
            double got[MANY] = { 0 }, want[MANY] = { 0 }, error = 0, norm = 0;
            second(&b, types[d], kind, got);
            second(&b, RW_F64, kind, want);
            for (int i = 0; i < MANY; i++) error += pow(got[i] - want[i], 2), norm += pow(want[i], 2);
            cr_expect(sqrt(error) <= 2 * unit_roundoff(types[d]) * sqrt(norm), "%s, norm %d: off by %.3g",
                      rw_dtype_name(types[d]), kind, sqrt(error / norm));
        }
    fixture_close(&b);
}
