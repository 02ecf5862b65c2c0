/*
 * The numeric arguments of ops. On float64 an op uses them unrounded: its result and its gradients agree with the
 * definition, in long double, to 1e-15. On the other types it rounds them to float32, so that a double and the nearest
 * float give the same bytes.
 */
#include "support/support.h"

#include "base/philox.h"

#include <complex.h>
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

typedef long double complex number;

enum { MAX = 32 };

/* A use of one argument: y, of n elements, computed from x. */
struct use {
    const char *name;
    rw_shape shape; /* of x */
    double value;   /* no float */
    rw_tensor *(*record)(rw_tape *t, rw_tensor *x, double value);
    void (*define)(const number *x, long double value, number *y);
};

static const rw_generator_state start = { 9, 77 };

/* The word that decides on element i of the first random op. */
static uint32_t word_of(int i)
{
    uint32_t word[4];
    rw_philox(start.seed, start.offset + (uint64_t)i / 4, word);
    return word[i % 4];
}

/* ---- norms: rows of four, with an epsilon larger than the variance ---- */

static rw_tensor *ones(rw_tape *t, rw_dtype dtype, int n)
{
    return rw_add_scalar(t, rw_scale(t, rw_rand(t, dtype, RW_SHAPE(n)), 0), 1);
}

static rw_tensor *record_layernorm(rw_tape *t, rw_tensor *x, double value)
{
    return rw_layernorm(t, x, ones(t, rw_tensor_dtype(x), 4), RW_NONE, value);
}

static rw_tensor *record_rmsnorm(rw_tape *t, rw_tensor *x, double value)
{
    return rw_rmsnorm(t, x, ones(t, rw_tensor_dtype(x), 4), value);
}

static void define_norm(const number *x, long double eps, bool centred, number *y)
{
    for (int row = 0; row < 2; row++) {
        number mean = 0, square = 0;
        for (int i = 0; centred && i < 4; i++) mean += x[4 * row + i] / 4;
        for (int i = 0; i < 4; i++) square += (x[4 * row + i] - mean) * (x[4 * row + i] - mean) / 4;
        for (int i = 0; i < 4; i++) y[4 * row + i] = (x[4 * row + i] - mean) / csqrtl(square + eps);
    }
}

static void define_layernorm(const number *x, long double value, number *y)
{
    define_norm(x, value, true, y);
}

static void define_rmsnorm(const number *x, long double value, number *y)
{
    define_norm(x, value, false, y);
}

/* ---- dropout ---- */

static rw_tensor *record_dropout(rw_tape *t, rw_tensor *x, double value)
{
    return rw_dropout(t, x, value);
}

static rw_tensor *record_dropout_add(rw_tape *t, rw_tensor *x, double value)
{
    return rw_dropout_add(t, x, rw_scale(t, x, 2), value);
}

static number kept(int i, long double p)
{
    return word_of(i) >= p * 0x1p32L ? 1 / (1 - p) : 0;
}

static void define_dropout(const number *x, long double value, number *y)
{
    for (int i = 0; i < 8; i++) y[i] = x[i] * kept(i, value);
}

static void define_dropout_add(const number *x, long double value, number *y)
{
    for (int i = 0; i < 8; i++) y[i] = 2 * x[i] + x[i] * kept(i, value);
}

/* ---- scores ---- */

static rw_tensor *record_causal_softmax(rw_tape *t, rw_tensor *x, double value)
{
    return rw_causal_softmax(t, x, value);
}

/* Row q of two, over the keys that it attends to. */
static void probabilities(const number *score, int sees, int n, number *p)
{
    number sum = 0;
    for (int i = 0; i < n; i++) sum += p[i] = i < sees ? cexpl(score[i]) : 0;
    for (int i = 0; i < n; i++) p[i] /= sum;
}

static void define_causal_softmax(const number *x, long double value, number *y)
{
    for (int q = 0; q < 2; q++) {
        number score[4];
        for (int i = 0; i < 4; i++) score[i] = value * x[4 * q + i];
        probabilities(score, q + 3, 4, y + 4 * q);
    }
}

/* Queries, keys and values are one tensor [1, 1, 2, 4]. */
static rw_tensor *record_attention_scale(rw_tape *t, rw_tensor *x, double value)
{
    return rw_attention(t, x, x, x, &(rw_attention_params){ .scale = value });
}

static rw_tensor *record_attention_dropout(rw_tape *t, rw_tensor *x, double value)
{
    return rw_attention(t, x, x, x, &(rw_attention_params){ .dropout = value });
}

static void define_attention(const number *x, long double scale, long double drop, number *y)
{
    for (int q = 0; q < 2; q++) {
        number score[2] = { 0, 0 }, p[2];
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 4; i++) score[k] += scale * x[4 * q + i] * x[4 * k + i];
        probabilities(score, 2, 2, p);
        for (int i = 0; i < 4; i++) y[4 * q + i] = 0;
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 4; i++) y[4 * q + i] += p[k] * (drop > 0 ? kept(2 * q + k, drop) : 1) * x[4 * k + i];
    }
}

static void define_attention_scale(const number *x, long double value, number *y)
{
    define_attention(x, value, 0, y);
}

static void define_attention_dropout(const number *x, long double value, number *y)
{
    define_attention(x, 0.5L, value, y);
}

/* ---- rope ---- */

static rw_tensor *record_rope(rw_tape *t, rw_tensor *x, double value)
{
    return rw_rope(t, x, RW_NONE, value);
}

static void define_rope(const number *x, long double value, number *y)
{
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 2; i++) {
            const long double angle = s * powl(value, -(long double)i / 2);
            const number a = x[4 * s + i], b = x[4 * s + i + 2];
            y[4 * s + i] = a * cosl(angle) - b * sinl(angle);
            y[4 * s + i + 2] = b * cosl(angle) + a * sinl(angle);
        }
}

/* ---- element by element ---- */

static rw_tensor *record_scale(rw_tape *t, rw_tensor *x, double value)
{
    return rw_scale(t, x, value);
}

static rw_tensor *record_add_scalar(rw_tape *t, rw_tensor *x, double value)
{
    return rw_add_scalar(t, x, value);
}

static rw_tensor *record_pow_scalar(rw_tape *t, rw_tensor *x, double value)
{
    return rw_pow_scalar(t, rw_mul(t, x, x), value);
}

static void define_scale(const number *x, long double value, number *y)
{
    for (int i = 0; i < 8; i++) y[i] = x[i] * value;
}

static void define_add_scalar(const number *x, long double value, number *y)
{
    for (int i = 0; i < 8; i++) y[i] = x[i] + value;
}

static void define_pow_scalar(const number *x, long double value, number *y)
{
    for (int i = 0; i < 8; i++) y[i] = cpowl(x[i] * x[i], value);
}

#define USE(NAME, VALUE, ...) { #NAME, RW_SHAPE(__VA_ARGS__), VALUE, record_##NAME, define_##NAME }
static const struct use uses[] = {
    USE(layernorm, 0.1, 2, 4),
    USE(rmsnorm, 0.1, 2, 4),
    USE(dropout, 0.3, 2, 4),
    USE(dropout_add, 0.3, 2, 4),
    USE(causal_softmax, 0.7, 2, 4),
    USE(attention_scale, 0.35, 1, 1, 2, 4),
    USE(attention_dropout, 0.3, 1, 1, 2, 4),
    USE(rope, 10.1, 1, 1, 2, 4),
    USE(scale, 0.7, 2, 4),
    USE(add_scalar, 0.1, 2, 4),
    USE(pow_scalar, 1.3, 2, 4),
};
#define N_USES (sizeof uses / sizeof *uses)

static const double x_of[8] = { 0.25, -0.5, 0.375, 0.75, -0.125, 0.625, 0.5, -0.875 };
static const double w_of[8] = { 1, 0.5, -0.75, 0.25, 0.625, -1, 0.875, -0.375 };

/* dx is that of the sum of w y. */
struct outcome {
    unsigned char y[MAX * 8], dx[MAX * 8];
};

/* The value and the gradient of one op with the given constant. */
static struct outcome run(struct fixture *b, const struct use *u, rw_dtype dtype, double value)
{
    struct outcome o = { 0 };
    const size_t bytes = 8 * rw_dtype_size(dtype);
    rw_tape_reset(b->t);
    rw_generator_set(b->ctx, start);
    rw_tensor *const x = rw_cast(
        b->t, rw_input(b->t, RW_F64, u->shape, x_of, (size_t)rw_shape_numel(u->shape) * sizeof *x_of), dtype);
    rw_require_grad(b->t, x);
    rw_tensor *const y = u->record(b->t, x, value);
    rw_tensor *const w = rw_cast(
        b->t, rw_input(b->t, RW_F64, u->shape, w_of, (size_t)rw_shape_numel(u->shape) * sizeof *w_of), dtype);
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, rw_mul(b->t, w, y), RW_ALL_AXES, false)), RW_OK, "%s: %s", u->name,
                 rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, y, o.y, bytes), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, rw_gradient(x), o.dx, bytes), RW_OK, "%s", rw_error_message(b->ctx));
    return o;
}

/* got is within 1e-15 of wanted, relative to the largest element. */
static void expect(const struct use *u, const char *what, const unsigned char *got, const long double *wanted)
{
    long double most = 0;
    for (int i = 0; i < 8; i++) most = fmaxl(most, fabsl(wanted[i]));
    for (int i = 0; i < 8; i++) {
        const double g = ((const double *)(const void *)got)[i];
        cr_expect(fabsl(g - wanted[i]) <= 1e-15L * most, "%s, %s %d: %.17g, not %.17Lg (%.2Lg)", u->name, what, i, g,
                  wanted[i], (g - wanted[i]) / most);
    }
}

/* Derivatives by a complex step, so small that terms of higher order vanish. */
Test(scalar_argument_precision, of_float64_are_doubles)
{
    struct fixture b = fixture_open(9, 1);
    for (size_t c = 0; c < N_USES; c++) {
        const struct use *const u = &uses[c];
        const struct outcome o = run(&b, u, RW_F64, u->value);
        long double y[8], dx[8];
        number x[8], out[8];
        for (int j = -1; j < 8; j++) {
            for (int i = 0; i < 8; i++) x[i] = x_of[i] + (i == j ? 1e-100L * I : 0);
            u->define(x, u->value, out);
            for (int i = 0; j < 0 && i < 8; i++) y[i] = creall(out[i]);
            for (int i = 0; j >= 0 && i < 8; i++) dx[j] = (i ? dx[j] : 0) + w_of[i] * cimagl(out[i]) / 1e-100L;
        }
        expect(u, "element", o.y, y);
        expect(u, "gradient", o.dx, dx);
    }
    fixture_close(&b);
}

/* Dropout compares words with the double, too: the word that equals it is kept, the next one is not. */
Test(scalar_argument_precision, a_probability_of_float64_is_a_double)
{
    struct fixture b = fixture_open(9, 1);
    const double word = word_of(0);
    for (int i = 0; i < 2; i++)
        for (size_t c = 2; c < 4; c++) {
            const double p = (word + i) * 0x1p-32;
            const struct outcome o = run(&b, &uses[c], RW_F64, p);
            const double y = *(const double *)(const void *)o.y, rest = c == 3 ? 2 * x_of[0] : 0;
            cr_expect_eq(y != rest, i == 0, "%s: %g, p %.17g", uses[c].name, y, p);
        }
    fixture_close(&b);
}

/* The nearest float of each value, and values that equal a word of dropout: the same bytes. The gradient of a power
   subtracts 1 from the double. */
Test(scalar_argument_precision, of_other_types_are_rounded_to_float32)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(9, 1);
    for (size_t c = 0; c < N_USES; c++)
        for (size_t d = 0; d < 3; d++)
            for (int i = 0; i < 3 && uses[c].record != record_pow_scalar; i++) {
                const double value = i ? (word_of(0) + (double)(i - 1)) * 0x1p-32 : uses[c].value;
                const struct outcome a = run(&b, &uses[c], types[d], value),
                                     z = run(&b, &uses[c], types[d], (double)(float)value);
                cr_expect_eq(first_difference(&a, &z, sizeof a), -1, "%s, %s, %.17g", uses[c].name,
                             rw_dtype_name(types[d]), value);
            }
    fixture_close(&b);
}

/* A value that rounds to a number that is refused, or that has another meaning, is treated as that number. */
Test(scalar_argument_precision, are_rounded_before_they_are_looked_at)
{
    struct fixture b = fixture_open(9, 1);
    const float f[4] = { 1, 2, 3, 4 };
    const double d[4] = { 1, 2, 3, 4 };
    rw_tensor *const narrow = rw_input(b.t, RW_F32, RW_SHAPE(4), f, sizeof f);
    rw_tensor *const wide = rw_input(b.t, RW_F64, RW_SHAPE(4), d, sizeof d);
    cr_assert_eq(rw_dropout(b.t, narrow, 1e-60), narrow, "0 as a float");
    cr_assert_neq(rw_dropout(b.t, wide, 1e-60), wide);
    cr_assert_not_null(rw_dropout(b.t, wide, 1 - 0x1p-40));
    cr_assert_not_null(rw_rmsnorm(b.t, wide, wide, 1e300));
    cr_assert_eq(rw_error_status(b.ctx), RW_OK);
    cr_assert_null(rw_dropout(b.t, narrow, 1 - 0x1p-40), "1 as a float");
    rw_error_clear(b.ctx);
    cr_assert_null(rw_rmsnorm(b.t, narrow, narrow, 1e300), "infinite as a float");
    rw_error_clear(b.ctx);
    fixture_close(&b);
}
