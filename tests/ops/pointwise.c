/*
 * Element-wise ops, copies and fills compared with scalar code in double: every type, sizes close to vector widths,
 * broadcast and strided operands, special values; and bit-identical for every number of threads.
 *
 * Tolerance: SLEEF's functions err by at most 1 ulp each, and no op takes more than eight successive roundings. So 24
 * unit roundoffs of the type, relative to the result plus the larger of 1 and the operands' magnitude if terms may
 * cancel, bound all of them. bfloat16 rounds once from float32, by one of its own.
 */
#include "support/cases/functions.h"
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A row of functions.h, or an op of two operands. */
struct fn {
    const char *name;
    const struct op_function *unary;
    rw_tensor *(*binary)(rw_tape *t, rw_tensor *x, rw_tensor *y);
    double (*value)(double x, double y);
};

#define BINARY(name, op, expr)                                                                                         \
    static rw_tensor *b_##name(rw_tape *t, rw_tensor *x, rw_tensor *y)                                                 \
    {                                                                                                                  \
        return op;                                                                                                     \
    }                                                                                                                  \
    static double v_##name(double x, double y)                                                                         \
    {                                                                                                                  \
        return expr;                                                                                                   \
    }

BINARY(add, rw_add(t, x, y), x + y)
BINARY(sub, rw_sub(t, x, y), x - y)
BINARY(mul, rw_mul(t, x, y), x *y)
BINARY(div, rw_div(t, x, y), x / y)
BINARY(maximum, rw_maximum(t, x, y), x >= y ? x : y)
BINARY(minimum, rw_minimum(t, x, y), x <= y ? x : y)
BINARY(swiglu, rw_swiglu(t, x, y), x / (1 + exp(-x)) * y)

#define B(name) { #name, NULL, b_##name, v_##name }
static const struct fn binary[] = { B(add), B(sub), B(mul), B(div), B(maximum), B(minimum), B(swiglu) };
#define BINARIES (sizeof binary / sizeof *binary)

/* Number i of all ops: those of the table that have a definition, then those of two operands. False past the last. */
static bool function_at(size_t i, struct fn *ret)
{
    size_t n, k = 0;
    const struct op_function *const all = op_functions(&n);
    while (k < n && (!all[k].of || i--)) k++;
    if (k < n) *ret = (struct fn){ .name = all[k].name, .unary = &all[k] };
    else if (i < BINARIES) *ret = binary[i];
    return k < n || i < BINARIES;
}

static bool is_positive(const struct fn *f)
{
    return f->unary && f->unary->range == OP_POSITIVE;
}

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };

static double sample(int64_t i, int salt, bool positive)
{
    const double x = (double)((i * 7919 + salt * 104729) % 251 - 125) / 32;
    return positive || salt ? fabs(x) + 0.125 : x;
}

static void *samples(rw_dtype dtype, int64_t n, int salt, bool positive)
{
    char *const p = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(p, dtype, i, sample(i, salt, positive)));
    return p;
}

static double value_of(const struct fn *f, double x, double y)
{
    return f->unary ? (double)f->unary->of(x, op_function_constant(f->unary)) : f->value(x, y);
}

static void expect(const struct fn *f, int d, int64_t i, double got, double x, double y)
{
    const double want = value_of(f, x, y), size = fabs(want) + (fabs(x) > 1 ? fabs(x) : 1);
    const double off = 24 * arithmetic_roundoff(types[d]) * size;
    const double stored = types[d] == RW_BF16 ? unit_roundoff(RW_BF16) * (fabs(want) + off) : 0;
    cr_assert(got == want || fabs(got - want) <= off + stored, "%s, %s, element %lld: %.17g of %g and %g, not %.17g",
              f->name, rw_dtype_name(types[d]), (long long)i, got, x, y, want);
}

static rw_tensor *apply(const struct fn *f, rw_tape *t, rw_tensor *x, rw_tensor *y)
{
    return f->unary ? op_function_record(t, f->unary, x) : f->binary(t, x, y);
}

Test(ops_pointwise, values_of_every_size_type_and_number_of_threads)
{
    static const int64_t sizes[] = { 0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 1000, 16385, 40003 };
    struct fixture b[3] = { fixture_open(1, 1), fixture_open(1, 2), fixture_open(1, 3) };
    struct fn f;
    for (size_t i = 0; function_at(i, &f); i++)
        for (int d = 0; d < 3; d++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
                const int64_t n = sizes[s];
                const size_t bytes = (size_t)n * rw_dtype_size(types[d]);
                void *const x = samples(types[d], n, 0, is_positive(&f)), *const y = samples(types[d], n, 1, true);
                char *const out[2] = { malloc(bytes + 1), malloc(bytes + 1) };
                for (int th = 0; th < 3; th++) {
                    rw_tensor *const a = rw_input(b[th].t, types[d], RW_SHAPE(n), x,
                                                  (size_t)n * rw_dtype_size(types[d])),
                                     *const c = rw_input(b[th].t, types[d], RW_SHAPE(n), y,
                                                         (size_t)n * rw_dtype_size(types[d]));
                    cr_assert_eq(rw_read(b[th].t, apply(&f, b[th].t, a, c), out[th > 0], bytes), RW_OK, "%s",
                                 rw_error_message(b[th].ctx));
                    rw_tape_reset(b[th].t);
                    if (th)
                        cr_assert_eq(memcmp(out[0], out[1], bytes), 0, "%s: %d threads, other bytes", f.name,
                                     th + 1);
                }
                for (int64_t i = 0; i < n; i++)
                    expect(&f, d, i, number_get(out[0], types[d], i), number_get(x, types[d], i),
                           number_get(y, types[d], i));
                free(x), free(y), free(out[0]), free(out[1]);
            }
    for (int th = 0; th < 3; th++) fixture_close(&b[th]);
}

/* Operands of shape [5, 3, 37], as views with strides and broadcasting. */
static rw_tensor *operand(rw_tape *t, int kind, rw_dtype dtype, const void *data)
{
    switch (kind) {
    case 0: return rw_input(t, dtype, RW_SHAPE(5, 3, 37), data, 5 * 3 * 37 * rw_dtype_size(dtype));
    case 1: return rw_input(t, dtype, RW_SHAPE(37), data, 37 * rw_dtype_size(dtype));
    case 2: return rw_input(t, dtype, RW_SHAPE(1), data, rw_dtype_size(dtype));
    case 3: return rw_input(t, dtype, RW_SHAPE(5, 1, 37), data, 5 * 37 * rw_dtype_size(dtype));
    case 4: return rw_input(t, dtype, RW_SHAPE(3, 1), data, 3 * rw_dtype_size(dtype));
    case 5:
        return rw_permute(t, rw_input(t, dtype, RW_SHAPE(37, 3, 5), data, 37 * 3 * 5 * rw_dtype_size(dtype)),
                          (const int[]){ 2, 1, 0 });
    case 6:
        return rw_slice(t, rw_input(t, dtype, RW_SHAPE(5, 3, 41), data, 5 * 3 * 41 * rw_dtype_size(dtype)), 2, 3, 40);
    case 7:
        return rw_transpose(
            t, rw_slice(t, rw_input(t, dtype, RW_SHAPE(5, 37, 4), data, 5 * 37 * 4 * rw_dtype_size(dtype)), -1, 1, 4),
            1, 2);
    default:
        return rw_broadcast_to(t, rw_input(t, dtype, RW_SHAPE(5, 3, 1), data, 5 * 3 * rw_dtype_size(dtype)),
                               RW_SHAPE(5, 3, 37));
    }
}

/* Index of element (i, j, k) of an operand in its data. */
static int64_t place(int kind, int64_t i, int64_t j, int64_t k)
{
    const int64_t at[] = {
        (i * 3 + j) * 37 + k,     k,        0, i * 37 + k, j, (k * 3 + j) * 5 + i, (i * 3 + j) * 41 + k + 3,
        (i * 37 + k) * 4 + j + 1, i * 3 + j
    };
    return at[kind];
}

Test(ops_pointwise, broadcast_and_strided_operands)
{
    struct fixture b = fixture_open(1, 2);
    struct fn f;
    for (size_t i = 0; function_at(i, &f); i++)
        for (int d = 0; d < 3; d++)
            for (int p = 0; p < 9; p++)
                for (int q = 0; q < 9; q++) {
                    if (f.unary && q) continue;
                    rw_tensor *x, *y = NULL;
                    void *const dx = samples(types[d], 1000, 0, is_positive(&f)), *const dy = samples(types[d], 1000, 1,
                                                                                                      true);
                    x = operand(b.t, p, types[d], dx);
                    if (f.binary) y = operand(b.t, q, types[d], dy);
                    const bool whole = rw_shape_numel(rw_tensor_shape(x)) == 555 ||
                                       (y && rw_shape_numel(rw_tensor_shape(y)) == 555);
                    if (whole && (!y || strcmp(f.name, "swiglu") ||
                                  rw_shape_equal(rw_tensor_shape(x), rw_tensor_shape(y)))) {
                        char out[555 * 8];
                        cr_assert_eq(rw_read(b.t, apply(&f, b.t, x, y), out, 555 * rw_dtype_size(types[d])), RW_OK,
                                     "%s", rw_error_message(b.ctx));
                        for (int64_t e = 0; e < 555; e++)
                            expect(&f, d, e, number_get(out, types[d], e),
                                   number_get(dx, types[d], place(p, e / 111, e / 37 % 3, e % 37)),
                                   number_get(dy, types[d], place(q, e / 111, e / 37 % 3, e % 37)));
                    }
                    rw_tape_reset(b.t);
                    free(dx), free(dy);
                }
    fixture_close(&b);
}

Test(ops_pointwise, special_values)
{
    struct fixture b = fixture_open(1, 1);
    const double x[8] = { NAN, 1, INFINITY, -INFINITY, 0.0, -0.0, 2, -1e308 }, y[8] = { 1, NAN, 1, 1, -0.0, 0.0, 2, 1 };
    double out[8];
    rw_tensor *const a = rw_input(b.t, RW_F64, RW_SHAPE(8), x, sizeof x), *const c = rw_input(b.t, RW_F64, RW_SHAPE(8),
                                                                                              y, sizeof y);
    rw_read(b.t, rw_maximum(b.t, a, c), out, sizeof out);
    cr_assert(isnan(out[0]) && isnan(out[1]), "NaN wins");
    cr_assert(out[2] == INFINITY && out[3] == 1 && !signbit(out[4]) && signbit(out[5]));
    rw_read(b.t, rw_minimum(b.t, a, c), out, sizeof out);
    cr_assert(isnan(out[0]) && isnan(out[1]), "NaN wins");
    cr_assert(out[2] == 1 && out[3] == -INFINITY && !signbit(out[4]) && signbit(out[5]));
    rw_read(b.t, rw_softplus(b.t, a), out, sizeof out);
    cr_assert(isnan(out[0]) && out[2] == INFINITY && out[3] == 0 && out[7] == 0);
    rw_read(b.t, rw_log1p(b.t, a), out, sizeof out);
    cr_assert(isnan(out[0]) && out[2] == INFINITY && isnan(out[3]) && out[4] == 0 && isnan(out[7]));
    rw_read(b.t, rw_relu(b.t, a), out, sizeof out);
    cr_assert(isnan(out[0]) && out[2] == INFINITY && out[3] == 0);
    rw_read(b.t, rw_sigmoid(b.t, a), out, sizeof out);
    cr_assert(isnan(out[0]) && out[2] == 1 && out[3] == 0 && out[7] == 0);
    rw_read(b.t, rw_abs(b.t, a), out, sizeof out);
    cr_assert(isnan(out[0]) && out[3] == INFINITY && !signbit(out[5]));
    rw_read(b.t, rw_sign(b.t, a), out, sizeof out);
    cr_assert(out[0] == 0 && out[2] == 1 && out[3] == -1 && out[5] == 0 && !signbit(out[5]) && out[7] == -1);
    rw_read(b.t, rw_log(b.t, a), out, sizeof out);
    cr_assert(out[2] == INFINITY && isnan(out[3]) && out[4] == -INFINITY && isnan(out[7]));
    fixture_close(&b);
}

/* Up to the largest number, and -0 is unchanged. */
Test(pointwise, log1p_of_what_is_large)
{
    struct fixture b = fixture_open(1, 1);
    const double wide[4] = { 9e36, 1.1e37, 1.5e307, DBL_MAX };
    const float narrow[4] = { 9e36f, 1.1e37f, FLT_MAX, -0.0f };
    double doubles[4];
    float floats[4];
    rw_read(b.t, rw_log1p(b.t, rw_input(b.t, RW_F64, RW_SHAPE(4), wide, sizeof wide)), doubles, sizeof doubles);
    rw_read(b.t, rw_log1p(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4), narrow, sizeof narrow)), floats, sizeof floats);
    for (int i = 0; i < 4; i++) {
        const double want = log1p(narrow[i]);
        cr_expect_float_eq(doubles[i], log1p(wide[i]), 4 * DBL_EPSILON * log1p(wide[i]), "%g: %g", wide[i], doubles[i]);
        cr_expect_float_eq(floats[i], want, 4 * FLT_EPSILON * want, "%g: %g", (double)narrow[i], (double)floats[i]);
    }
    cr_expect(signbit(floats[3]));
    fixture_close(&b);
}

/* A NaN stays NaN; a GPU does not specify its payload. */
static void same_bfloat16(const uint16_t *x, const uint16_t *want, int n)
{
    for (int i = 0; i < n; i++) {
        const bool any_nan = test_device() != RW_DEVICE_CPU && (want[i] & 0x7fff) > 0x7f80;
        cr_assert(any_nan ? (x[i] & 0x7fff) > 0x7f80 : x[i] == want[i], "%d: %04x instead of %04x", i, x[i], want[i]);
    }
}

Test(ops_pointwise, rounding_to_bfloat16_is_to_nearest_even_and_keeps_nan)
{
    struct fixture b = fixture_open(1, 1);
    const uint32_t bits[8] = { 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                               0x7f7fffff, 0x7f800001, 0x80000001, 0xffffffff };
    uint16_t half[8], scaled[8];
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(8), bits, sizeof bits), *const h = rw_cast(b.t, x, RW_BF16);
    rw_read(b.t, h, half, sizeof half);
    const uint16_t want[8] = { 0x3f80, 0x3f82, 0x3f81, 0x3f80, 0x7f80, 0x7fc0, 0x8000, 0xffff };
    same_bfloat16(half, want, 8);
    rw_read(b.t, rw_scale(b.t, h, 1), scaled, sizeof scaled);
    same_bfloat16(scaled, want, 8);
    fixture_close(&b);
}

/* x to a constant power, its slope, or the slope's: as C's pow() including the sign of 0; results that are rounded once
   equal it exactly in float32. */
static void expect_power(rw_dtype dtype, double x, double exponent, int order, double got)
{
    const bool once = exponent == 1 || exponent == 2 || exponent == -1 || exponent == 0.5;
    double want = pow(x, exponent - order);
    for (int i = 0; i < order; i++) want = exponent - i == 0 ? 0 : want * (exponent - i);
    const bool same = isnan(want) ? isnan(got)
                      : dtype == RW_F32 && once && !order ? got == (double)(float)want
                      : want == 0 || isinf(want) ? got == want
                      : fabs(got - want) <= 24 * unit_roundoff(dtype) * fabs(want);
    cr_expect(same && (isnan(want) || signbit(got) == signbit(want)), "%s, %g to the %g, order %d: %.9g, not %.9g",
              rw_dtype_name(dtype), x, exponent, order, got, want);
}

Test(ops_pointwise, powers_by_constants_are_those_of_c)
{
    enum { N = 12 };
    static const double xs[N] = { NAN, INFINITY, -INFINITY, 0.0, -0.0, 1, -1, -3, 2.5, 0.3125, 1.4375, 3.0625 };
    static const double exponents[] = { 2, 1, -1, 0.5, 0, 3, -2, 1.5 };
    static const rw_dtype floats[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++)
        for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
            const double exponent = exponents[e];
            double in[N], out[3][N];
            for (int i = 0; i < N; i++) number_put(in, floats[d], i, xs[i]);
            rw_tensor *const x = rw_require_grad(
                b.t, rw_input(b.t, floats[d], RW_SHAPE(N), in, N * rw_dtype_size(floats[d])));
            rw_tensor *const y = rw_pow_scalar(b.t, x, exponent);
            rw_tensor *first = NULL, *second = NULL;
            const int orders = exponent == 0 || exponent == 1 ? 2 : 3;
            rw_grad(b.t, y, &x, 1, &first);
            if (orders > 2) rw_grad(b.t, first, &x, 1, &second);
            rw_read(b.t, y, out[0], rw_tensor_bytes(y));
            if (second) rw_read(b.t, second, out[2], rw_tensor_bytes(second));
            cr_assert_eq(rw_backward_from(b.t, &y, NULL, 1), RW_OK, "%s", rw_error_message(b.ctx));
            rw_read(b.t, rw_gradient(x), out[1], rw_tensor_bytes(x));
            for (int i = 0; i < N; i++)
                for (int order = 0; order < orders; order++)
                    expect_power(floats[d], xs[i], exponent, order, number_get(out[order], floats[d], i));
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

Test(ops_pointwise, an_infinite_gradient_leaves_zero_where_nothing_flows)
{
    struct fixture b = fixture_open(1, 1);
    const double x[2] = { 1, 2 }, y[2] = { 2, 1 }, w[2] = { INFINITY, INFINITY };
    rw_tensor *const in[2] = { rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(2), x, sizeof x)),
                               rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(2), y, sizeof y)) };
    rw_tensor *const m = rw_mul(b.t, rw_maximum(b.t, in[0], in[1]), rw_input(b.t, RW_F64, RW_SHAPE(2), w, sizeof w));
    rw_tensor *g[2];
    cr_assert_eq(rw_grad(b.t, m, in, 2, g), RW_OK);
    for (int i = 0; i < 2; i++) {
        double out[2];
        rw_read(b.t, g[i], out, sizeof out);
        cr_assert(out[i] == 0 && out[1 - i] == INFINITY);
    }
    fixture_close(&b);
}

Test(ops_pointwise, a_square_has_no_third_derivative_at_zero)
{
    struct fixture b = fixture_open(1, 1);
    const double zero = 0;
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(1), &zero, sizeof zero));
    rw_tensor *y = rw_pow_scalar(b.t, x, 2);
    const double want[3] = { 0, 2, 0 };
    for (int order = 0; order < 3; order++) {
        cr_assert_eq(rw_grad(b.t, y, &x, 1, &y), RW_OK, "%s", rw_error_message(b.ctx));
        if (y) cr_assert_eq(rw_item(b.t, y), want[order]);
        else break;
    }
    fixture_close(&b);
}

Test(ops_shape, dense_copies_of_transposed_tensors)
{
    static const struct {
        int64_t dim[3];
        int axes[3];
    } cases[] = { { { 1, 70, 45 }, { 0, 2, 1 } }, { { 3, 33, 64 }, { 0, 2, 1 } },  { { 31, 5, 65 }, { 2, 1, 0 } },
                  { { 129, 7, 9 }, { 2, 0, 1 } }, { { 40, 41, 42 }, { 1, 2, 0 } }, { { 300, 2, 200 }, { 2, 1, 0 } } };
    for (int threads = 1; threads <= 3; threads++) {
        struct fixture b = fixture_open(1, threads);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
            for (int d = 0; d < 3; d++) {
                const int64_t *const n = cases[c].dim;
                const int *const axes = cases[c].axes;
                const int64_t numel = n[0] * n[1] * n[2], stride[3] = { n[1] * n[2], n[2], 1 };
                const size_t size = rw_dtype_size(types[d]);
                unsigned char *const x = malloc((size_t)numel * size), *const y = malloc((size_t)numel * size);
                for (size_t i = 0; i < (size_t)numel * size; i++) x[i] = (unsigned char)(i * 2654435761u >> 13);
                rw_tensor *const in = rw_input(b.t, types[d], RW_SHAPE(n[0], n[1], n[2]), x,
                                               (size_t)(n[0] * n[1] * n[2]) * rw_dtype_size(types[d]));
                cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, rw_permute(b.t, in, axes)), y, (size_t)numel * size),
                             RW_OK);
                const int64_t s[3] = { stride[axes[0]], stride[axes[1]], stride[axes[2]] },
                              e[3] = { n[axes[0]], n[axes[1]], n[axes[2]] };
                for (int64_t i = 0, at = 0; i < e[0]; i++)
                    for (int64_t j = 0; j < e[1]; j++)
                        for (int64_t k = 0; k < e[2]; k++, at++)
                            cr_assert_eq(memcmp(y + (size_t)at * size,
                                                x + (size_t)(i * s[0] + j * s[1] + k * s[2]) * size, size),
                                         0);
                rw_tape_reset(b.t);
                free(x), free(y);
            }
        fixture_close(&b);
    }
}

/* Rows of eight, or four, sliced from longer ones: unaligned rows are moved element by element. */
Test(ops_shape, dense_copies_of_columns)
{
    enum { ROWS = 7, MAX = 19 };
    struct fixture b = fixture_open(1, 1);
    for (int width = 9; width <= MAX; width++)
        for (int from = 0; from < 2; from++)
            for (int n = 4; n <= 8; n += 4) {
                float x[ROWS * MAX], y[ROWS * 8], z[ROWS * 8];
                for (int i = 0; i < ROWS * width; i++) x[i] = (float)i;
                rw_tensor *const whole = rw_input(b.t, RW_F32, RW_SHAPE(ROWS, width), x,
                                                  (size_t)(ROWS * width) * sizeof *x);
                rw_tensor *const part = rw_slice(b.t, whole, 1, from, from + n);
                cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, part), y, (size_t)(ROWS * n) * sizeof *y), RW_OK);
                cr_assert_eq(rw_read(b.t, rw_neg(b.t, part), z, (size_t)(ROWS * n) * sizeof *z), RW_OK);
                for (int i = 0; i < ROWS * n; i++) {
                    const float want = (float)(i / n * width + from + i % n);
                    cr_assert(y[i] == want && z[i] == -want, "%d of %d from %d, element %d: %g, %g", n, width, from, i,
                              (double)y[i], (double)z[i]);
                }
                rw_tape_reset(b.t);
            }
    fixture_close(&b);
}

Test(random_fills, uniform_deviates_stay_below_the_open_end)
{
    struct fixture b = fixture_open(1, 2);
    static float x[4096];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4096));
    rw_init_uniform(p, 1, 1 + 0x1p-23); /* half of them would round up */
    rw_read(NULL, p, x, sizeof x);
    for (int i = 0; i < 4096; i++) cr_assert_eq(x[i], 1);
    fixture_close(&b);
}

/* The number before 3, for which x + 3 rounds up to 6; and numbers at which the slope is constant. */
Test(ops_pointwise, the_second_slope_of_hardswish_ends_at_three)
{
    static const double at[] = { -4, -3, -2.984375, 0, 2.984375, 3, 4 };
    enum { N = sizeof at / sizeof *at };
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    for (int d = 0; d < 4; d++) {
        struct fixture b = fixture_open(1, 1);
        double got[N];
        rw_tensor *x = rw_cast(b.t, rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(N), at, sizeof at)), types[d]),
                  *g;
        rw_tensor *const y = rw_sum(b.t, rw_hardswish(b.t, x), RW_ALL_AXES, false);
        cr_assert_eq(rw_grad(b.t, y, &x, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_grad(b.t, rw_sum(b.t, g, RW_ALL_AXES, false), &x, 1, &g), RW_OK, "%s",
                     rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, rw_cast(b.t, g, RW_F64), got, sizeof got), RW_OK);
        for (int i = 0; i < N; i++)
            cr_expect_float_eq(got[i], fabs(at[i]) < 3 ? 1.0 / 3 : 0, 0x1p-9, "%s at %g: %g", rw_dtype_name(types[d]),
                               at[i], got[i]);
        fixture_close(&b);
    }
}
