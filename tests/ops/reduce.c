/*
 * Reductions compared with plain code in double: every pattern of axes, lengths close to lanes, blocks and parts,
 * special values, no elements. Rows (softmax, norms, losses, embedding, rope): float32 and bfloat16 with the fused
 * backward compared with the same op in float64 with the composed one. Bit-identical for every number of threads.
 *
 * Tolerance of a sum: at most 64 + 4 float additions are successive (1024 elements in 16 lanes, a tree over lanes; 64
 * rows by fours); the rest is in double. So |error| <= 70 u sum|x| with u = 2^-24 (2^-53 in double, where the longest
 * chain here is below 16384 additions), plus the rounding of the result. The gradient of logsumexp is exp(x - y) of the
 * stored y, whose absolute error becomes a relative one. Of rows: relative to the largest element, 64 roundings of
 * float32 and, if stored as bfloat16, 2 of its own: the element's and that of the result which a backward reads.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F64 };

/* Values of 8 bits: exact in every type. */
static double value(int64_t i)
{
    return (double)((uint64_t)i * 2654435761u >> 13 & 0xff) / 64 - 2;
}

static void *values(rw_dtype dtype, int64_t n, int64_t seed)
{
    void *const p = malloc((size_t)(n + 1) * 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(p, dtype, i, value(i * 7 + seed)));
    return p;
}

enum kind { SUM, MEAN, MAX, LOGSUMEXP };

static rw_tensor *reduce(rw_tape *t, rw_tensor *x, enum kind kind, uint32_t axes)
{
    switch (kind) {
    case SUM: return rw_sum(t, x, axes, false);
    case MEAN: return rw_mean(t, x, axes, false);
    case MAX: return rw_max(t, x, axes, false);
    default: return rw_logsumexp(t, x, axes, false);
    }
}

/* The output element to which element i belongs. */
static int64_t group(rw_shape s, uint32_t mask, int64_t i)
{
    int64_t o = 0, place[RW_MAX_RANK];
    for (int axis = s.rank - 1; axis >= 0; axis--) {
        place[axis] = i % s.dim[axis];
        i /= s.dim[axis];
    }
    for (int axis = 0; axis < s.rank; axis++)
        if (!(mask >> axis & 1)) o = o * s.dim[axis] + place[axis];
    return o;
}

/* y: the result, size: sum|x| (for logsumexp of the exponentials) divided by the divisor, first: the first maximum. */
struct reference {
    double *y, *size;
    int64_t *first;
};

/* Computes the reduction in plain double. */
static struct reference reference(rw_shape s, uint32_t mask, enum kind kind, int64_t n, int64_t out)
{
    struct reference r = { calloc((size_t)out, 8), calloc((size_t)out, 8), calloc((size_t)out, 8) };
    double *const most = calloc((size_t)out, 8);
    for (int64_t o = 0; o < out; o++) r.first[o] = -1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t o = group(s, mask, i);
        const double x = value(i * 7);
        if (r.first[o] >= 0 && x <= most[o]) continue;
        most[o] = x;
        r.first[o] = i;
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t o = group(s, mask, i);
        const double x = kind == LOGSUMEXP ? exp(value(i * 7) - most[o]) : value(i * 7);
        r.y[o] += x;
        r.size[o] += fabs(x);
    }
    for (int64_t o = 0; o < out; o++) {
        const double count = (double)(n / out);
        if (kind == MEAN) r.y[o] /= count, r.size[o] /= count;
        if (kind == MAX) r.y[o] = most[o], r.size[o] = 0;
        if (kind == LOGSUMEXP) {
            r.size[o] = 4 + fabs(most[o]); /* log of a sum with small relative error; exponentials err by an ulp */
            r.y[o] = most[o] + log(r.y[o]);
        }
    }
    free(most);
    return r;
}

/* Compares one reduction and its gradient with the reference. */
static void check_reduce(struct fixture *b, rw_dtype dtype, rw_shape s, uint32_t mask, enum kind kind)
{
    const int64_t n = rw_shape_numel(s);
    int64_t out = 1;
    for (int axis = 0; axis < s.rank; axis++)
        if (!(mask >> axis & 1)) out *= s.dim[axis];
    const size_t size = rw_dtype_size(dtype);
    const struct reference r = reference(s, mask, kind, n, out);
    void *const x = values(dtype, n, 0);
    unsigned char *const got[] = { malloc((size_t)(n + out) * size), malloc((size_t)(n + out) * size) };
    for (int threads = 1; threads <= 3; threads++) {
        unsigned char *const bytes = got[threads > 1];
        rw_context_set_threads(b->ctx, threads);
        rw_tape_reset(b->t);
        rw_tensor *const in = rw_require_grad(
                             b->t, rw_input(b->t, dtype, s, x, (size_t)n * rw_dtype_size(dtype))),
                         *const y = reduce(b->t, in, kind, mask);
        rw_tensor *g;
        cr_assert_eq(rw_grad(b->t, rw_sum(b->t, y, RW_ALL_AXES, false), &in, 1, &g), RW_OK);
        cr_assert_eq(rw_read(b->t, y, bytes, (size_t)out * size), RW_OK);
        cr_assert_eq(rw_read(b->t, g, bytes + (size_t)out * size, (size_t)n * size), RW_OK);
        if (threads > 1) cr_assert_eq(first_difference(got[0], bytes, (size_t)(n + out) * size), -1, "threads");
    }
    const double v = unit_roundoff(dtype), u = (dtype == RW_F64 ? 16384 : 70) * arithmetic_roundoff(dtype);
    for (int64_t o = 0; o < out; o++) {
        const double sum = u * r.size[o] + DBL_EPSILON * fabs(r.y[o]), y = number_get(got[0], dtype, o);
        cr_assert_leq(fabs(y - r.y[o]), sum + v * (fabs(r.y[o]) + sum), "kind %d type %d axes %x of %lld: %g for %g",
                      kind, dtype, mask, (long long)n, y, r.y[o]);
    }
    for (int64_t i = 0; i < n; i++) {
        const int64_t o = group(s, mask, i);
        const double g = number_get(got[0] + (size_t)out * size, dtype, i);
        const double want = kind == SUM    ? 1
                            : kind == MEAN ? (double)out / (double)n
                            : kind == MAX  ? i == r.first[o]
                                           : exp(value(i * 7) - r.y[o]);
        const double few = arithmetic_roundoff(dtype),
                     off = kind == LOGSUMEXP ? expm1(v * fabs(r.y[o]) + u) + few : few;
        cr_assert_leq(fabs(g - want), (off + v * (1 + off)) * want, "gradient of kind %d: %g for %g", kind, g, want);
    }
    free(r.y), free(r.size), free(r.first), free(x), free(got[0]), free(got[1]);
}

Test(ops_reduce, every_pattern)
{
    struct fixture b = fixture_open(1, 1);
    const rw_shape shapes[] = { RW_SHAPE(7),          RW_SHAPE(40003),       RW_SHAPE(37, 1029),
                                RW_SHAPE(3001, 37),   RW_SHAPE(3, 50, 17),   RW_SHAPE(5, 1, 33),
                                RW_SHAPE(4, 5, 6, 7), RW_SHAPE(3, 200, 130), RW_SHAPE(2, 4, 3, 520) };
    for (size_t d = 0; d < 3; d++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (uint32_t mask = 1; mask < 1u << shapes[i].rank; mask++)
                for (int kind = SUM; kind <= LOGSUMEXP; kind++)
                    check_reduce(&b, types[d], shapes[i], mask, (enum kind)kind);
    fixture_close(&b);
}

Test(ops_reduce, special_values)
{
    struct fixture b = fixture_open(1, 1);
    const float low = -INFINITY, x[] = { low, low, 1, NAN, NAN, 2, INFINITY, 0, 1, low, low, low };
    rw_tensor *const in = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4, 3), x, sizeof x));
    rw_tensor *const most = rw_max(b.t, in, RW_AXES(1), false), *g;
    float m[4], l[4], s[12], first[12];
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, most, RW_ALL_AXES, false), &in, 1, &g), RW_OK);
    cr_assert_eq(rw_read(b.t, most, m, sizeof m), RW_OK);
    cr_assert_eq(rw_read(b.t, g, first, sizeof first), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_logsumexp(b.t, in, RW_AXES(1), false), l, sizeof l), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_softmax(b.t, in, 1), s, sizeof s), RW_OK);
    cr_assert(m[0] == 1 && isnan(m[1]) && m[2] == INFINITY && m[3] == low);
    cr_assert(l[0] == 1 && isnan(l[1]) && l[2] == INFINITY && l[3] == low);
    const float want[] = { 0, 0, 1, 1, 0, 0, 1, 0, 0, 1, 0, 0 };
    for (int i = 0; i < 12; i++) cr_assert_eq(first[i], want[i], "first maximum, element %d", i);
    for (int i = 9; i < 12; i++) cr_assert_eq(s[i], 0, "softmax of a row of -inf");
    fixture_close(&b);
}

Test(ops_reduce, no_elements)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(0, 3), NULL, 0);
    float y[3];
    cr_assert_eq(rw_read(b.t, rw_sum(b.t, x, RW_AXES(0), false), y, sizeof y), RW_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(y[i], 0);
    cr_assert_eq(rw_read(b.t, rw_logsumexp(b.t, x, RW_AXES(0), false), y, sizeof y), RW_OK);
    for (int i = 0; i < 3; i++) cr_assert_eq(y[i], -INFINITY);
    cr_assert_eq(rw_eval(b.t, (rw_tensor *const[]){ rw_softmax(b.t, x, -1), rw_softmax(b.t, x, 0) }, 2), RW_OK);
    cr_assert_null(rw_max(b.t, x, RW_AXES(0), false));
    fixture_close(&b);
}

/* Rows */

typedef rw_tensor *(*build)(rw_tape *t, rw_tensor *const *x);
static int32_t target[512];

static rw_tensor *indexes(rw_tape *t, int64_t n)
{
    return rw_input(t, RW_I32, RW_SHAPE(n), target, (size_t)n * sizeof *target);
}

#define ROWS(name, expr)                                                                                               \
    static rw_tensor *r_##name(rw_tape *t, rw_tensor *const *x)                                                        \
    {                                                                                                                  \
        return expr;                                                                                                   \
    }
ROWS(softmax, rw_softmax(t, x[0], -1))
ROWS(softmax_middle, rw_softmax(t, x[0], 1))
ROWS(log_softmax, rw_log_softmax(t, x[0], -1))
ROWS(log_softmax_middle, rw_log_softmax(t, x[0], 1))
ROWS(causal, rw_causal_softmax(t, x[0], 0.7f))
ROWS(causal_negative, rw_causal_softmax(t, x[0], -0.7f))
ROWS(layernorm, rw_layernorm(t, x[0], x[1], x[2], 1e-5f))
ROWS(layernorm_no_bias, rw_layernorm(t, x[0], x[1], RW_NONE, 1e-5f))
ROWS(rmsnorm, rw_rmsnorm(t, x[0], x[1], 1e-5f))
ROWS(cross_entropy, rw_cross_entropy(t, x[0], indexes(t, rw_tensor_shape(x[0]).dim[0])))
ROWS(mse, rw_mse_loss(t, x[0], x[1]))
ROWS(embedding, rw_embedding(t, x[0], indexes(t, 300)))
ROWS(rope, rw_rope(t, x[0], RW_NONE, 10000.0f))
ROWS(rope_view,
     rw_rope(t, rw_permute(t, x[0], (const int[]){ 0, 2, 1, 3 }), indexes(t, rw_tensor_shape(x[0]).dim[1]), 500.0f))

struct rows_case {
    const char *name;
    build build;
    int n;
    rw_shape shape[3];
};

#define S(...) RW_SHAPE(__VA_ARGS__)
static const struct rows_case rows_cases[] = {
    { "softmax", r_softmax, 1, { S(333, 201) } },
    { "softmax of 5", r_softmax, 1, { S(3, 5) } },
    { "softmax middle", r_softmax_middle, 1, { S(3, 50, 37) } },
    { "softmax middle of 2", r_softmax_middle, 1, { S(3, 50, 2) } },
    { "log_softmax", r_log_softmax, 1, { S(77, 401) } },
    { "log_softmax middle", r_log_softmax_middle, 1, { S(3, 50, 37) } },
    { "causal", r_causal, 1, { S(3, 4, 65, 65) } },
    { "causal, more keys", r_causal, 1, { S(3, 33, 70) } },
    { "causal, more queries", r_causal, 1, { S(3, 40, 33) } },
    { "causal, negative scale", r_causal_negative, 1, { S(3, 40, 33) } },
    { "layernorm", r_layernorm, 3, { S(301, 193), S(193), S(193) } },
    { "layernorm of a row", r_layernorm, 3, { S(1, 7), S(7), S(7) } },
    { "layernorm without bias", r_layernorm_no_bias, 2, { S(3, 65, 300), S(300) } },
    { "rmsnorm", r_rmsnorm, 2, { S(2, 401, 130), S(130) } },
    { "cross_entropy", r_cross_entropy, 1, { S(500, 101) } },
    { "mse", r_mse, 2, { S(333, 201), S(333, 201) } },
    { "mse of 3", r_mse, 2, { S(3), S(3) } },
    { "embedding", r_embedding, 1, { S(103, 300) } },
    { "rope", r_rope, 1, { S(2, 3, 65, 64) } },
    { "rope of 6", r_rope, 1, { S(2, 3, 65, 6) } },
    { "rope of a view", r_rope_view, 1, { S(2, 65, 3, 40) } },
};

/* Result and gradients of sum(y * w), each as doubles and as bytes. */
struct result {
    rw_dtype dtype[4];
    int64_t n[4];
    void *bytes[4];
};

/* Runs a row op with the fused backward or with the composed one. */
static struct result run_rows(struct fixture *b, const struct rows_case *c, rw_dtype dtype, bool composed)
{
    struct result r = { .dtype = { 0, dtype, dtype, dtype } };
    rw_tensor *x[3], *g[3];
    rw_tape_reset(b->t);
    for (int i = 0; i < c->n; i++) {
        r.n[i + 1] = rw_shape_numel(c->shape[i]);
        void *const data = values(dtype, r.n[i + 1], i);
        x[i] = rw_require_grad(
            b->t, rw_input(b->t, dtype, c->shape[i], data, (size_t)rw_shape_numel(c->shape[i]) * rw_dtype_size(dtype)));
        free(data);
    }
    rw_tensor *const y = c->build(b->t, x);
    cr_assert_not_null(y, "%s: %s", c->name, rw_error_message(b->ctx));
    r.dtype[0] = rw_tensor_dtype(y);
    r.n[0] = rw_shape_numel(rw_tensor_shape(y));
    void *const weight = values(r.dtype[0], r.n[0], 5);
    rw_tensor *const w = rw_input(b->t, r.dtype[0], rw_tensor_shape(y), weight,
                                  (size_t)rw_shape_numel(rw_tensor_shape(y)) * rw_dtype_size(r.dtype[0]));
    rw_tensor *const loss = r.n[0] == 1 ? y : rw_sum(b->t, rw_mul(b->t, y, w), RW_ALL_AXES, false);
    rw_require_grad(b->t, y); /* keeps y readable */
    cr_assert_eq(composed ? rw_grad(b->t, loss, x, (size_t)c->n, g) : rw_backward(b->t, loss), RW_OK, "%s: %s", c->name,
                 rw_error_message(b->ctx));
    for (int i = 0; i <= c->n; i++) {
        const size_t bytes = (size_t)r.n[i] * rw_dtype_size(r.dtype[i]);
        r.bytes[i] = malloc(bytes);
        rw_tensor *const read = i == 0 ? y : composed ? g[i - 1] : rw_gradient(x[i - 1]);
        cr_assert_eq(rw_read(b->t, read, r.bytes[i], bytes), RW_OK, "%s: %s", c->name, rw_error_message(b->ctx));
    }
    free(weight);
    return r;
}

/* Compares with the float64 result, relative to the largest element. */
static void close_to(const struct rows_case *c, const struct result *got, const struct result *want, rw_dtype dtype)
{
    for (int i = 0; i <= c->n; i++) {
        double error = 0, most = 0;
        for (int64_t j = 0; j < got->n[i]; j++) {
            const double w = number_get(want->bytes[i], RW_F64, j),
                         e = fabs(number_get(got->bytes[i], got->dtype[i], j) - w);
            most = fmax(most, fabs(w));
            error = e <= error ? error : e; /* a NaN stays */
        }
        const double tolerance = dtype == RW_F64
                                     ? 4096 * DBL_EPSILON
                                     : 64 * unit_roundoff(RW_F32) + (dtype == RW_BF16 ? 2 * unit_roundoff(RW_BF16) : 0);
        cr_assert_leq(error, tolerance * most, "%s, type %d, result %d: error %g of %g", c->name, dtype, i, error,
                      most);
    }
}

Test(ops_reduce, rows)
{
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 512; i++) target[i] = i % 7 == 3 ? -100 : i * 37 % 101;
    for (size_t k = 0; k < sizeof rows_cases / sizeof *rows_cases; k++) {
        const struct rows_case *const c = &rows_cases[k];
        if (c->build == r_embedding)
            for (int i = 0; i < 512; i++) target[i] = i * 37 % 101;
        const struct result want = run_rows(&b, c, RW_F64, true);
        for (size_t d = 0; d < 3; d++) {
            struct result one = { 0 };
            for (int threads = 1; threads <= 3; threads++) {
                rw_context_set_threads(b.ctx, threads);
                const struct result r = run_rows(&b, c, types[d], false);
                if (threads == 1) {
                    one = r;
                    close_to(c, &one, &want, types[d]);
                }
                for (int i = 0; i <= c->n && threads > 1; i++) {
                    const size_t bytes = (size_t)r.n[i] * rw_dtype_size(r.dtype[i]);
                    cr_assert_eq(first_difference(one.bytes[i], r.bytes[i], bytes), -1, "%s: threads", c->name);
                    free(r.bytes[i]);
                }
            }
            for (int i = 0; i <= c->n; i++) free(one.bytes[i]);
        }
        for (int i = 0; i <= c->n; i++) free(want.bytes[i]);
    }
    fixture_close(&b);
}

Test(ops_reduce, sum_all_and_mean_all_are_the_general_forms)
{
    struct fixture b = fixture_open(1, 1);
    float v[35];
    for (int i = 0; i < 35; i++) v[i] = 0.1f * (float)(i * 17 % 35) - 1;
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(5, 7), v, sizeof v);
    cr_expect_eq(rw_tensor_shape(rw_mean_all(b.t, x)).rank, 0);
    const double sum = rw_item(b.t, rw_sum_all(b.t, x)), mean = rw_item(b.t, rw_mean_all(b.t, x));
    cr_expect_eq(sum, rw_item(b.t, rw_sum(b.t, x, RW_ALL_AXES, false)));
    cr_expect_eq(mean, rw_item(b.t, rw_mean(b.t, x, RW_ALL_AXES, false)));
    cr_expect_neq(sum, mean);
    fixture_close(&b);
}

/* A product of one factor is a value of the tape: x may be a parameter. */
Test(ops_reduce, a_product_of_single_elements_is_not_the_argument)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SCALAR), *const m = rw_param(b.ctx, "m", RW_F32, RW_SHAPE(2));
    float g = 0, v[2];
    cr_assert_eq(rw_init_constant(p, 3), RW_OK);
    cr_assert_eq(rw_init_constant(m, 3), RW_OK);
    cr_assert_eq(rw_backward(b.t, rw_prod(b.t, p, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(p), &g, sizeof g), RW_OK);
    cr_expect_eq(g, 1);
    rw_tensor *const y = rw_prod(b.t, m, 0, false);
    cr_expect_eq(rw_tensor_kind_of(y), RW_TENSOR_VALUE);
    cr_assert_eq(rw_read(b.t, y, v, sizeof v), RW_OK);
    cr_expect(v[0] == 3 && v[1] == 3);
    fixture_close(&b);
}

/* Whole rows and columns of a million: the bound does not grow with their length, as it would with one chain of float32
   additions. */
Test(ops_reduce, long_sums_keep_the_bound)
{
    struct fixture b = fixture_open(1, 2);
    const int64_t n = test_device() == RW_DEVICE_CPU ? 1 << 20 : 1 << 15;
    float *const x = malloc((size_t)n * 2 * sizeof *x), y[2];
    double sum[2] = { 0 };
    for (int64_t i = 0; i < 2 * n; i++) sum[i / n] += (double)(x[i] = 0.1f + 0.01f * (float)(i % 7));
    for (int columns = 0; columns < 2; columns++) {
        rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(2, n), x, (size_t)(2 * n) * sizeof *x);
        rw_tensor *const s = columns ? rw_sum(b.t, rw_contiguous(b.t, rw_transpose(b.t, in, 0, 1)), RW_AXES(0), false)
                                     : rw_sum(b.t, in, RW_AXES(1), false);
        cr_assert_eq(rw_read(b.t, s, y, sizeof y), RW_OK);
        for (int r = 0; r < 2; r++)
            cr_assert(fabs((double)y[r] - sum[r]) <= 71 * 0x1p-24 * sum[r], "%.9g, not %.9g", (double)y[r], sum[r]);
    }
    free(x);
    fixture_close(&b);
}
