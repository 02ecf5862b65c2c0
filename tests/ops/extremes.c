/*
 * Values at the ends of their types' ranges: exponentials of arguments that exp() alone could not take, norms, indexes
 * outside a table. Each is compared with the definition in double.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- logits ---- */

enum { ROWS = 3, COLS = 40 };
static const int lengths[] = { COLS, COLS - 3 }; /* whole packs of a CUDA kernel; two vectors and a remainder */

/* Far beyond the range in which exp() is finite and above 0 (88 and -103 in float32, 709 and -745 in float64), a
   quarter apart. */
static double logit(rw_dtype dtype, int row, int col)
{
    const double far = dtype == RW_F64 ? 1600 : 200;
    return (row == 1 ? -far : far) + (double)(col * 5 % 11) / 4 - (row == 2 && col % 3 ? 2 * far : 0);
}

struct row {
    double x[COLS], p[COLS], lse;
};

/* Row or column `at` of the first `seen` logits. */
static struct row row_of(rw_dtype dtype, int at, int seen)
{
    struct row r = { 0 };
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < seen; i++) most = fmax(most, r.x[i] = logit(dtype, at, i));
    for (int i = 0; i < seen; i++) sum += exp(r.x[i] - most);
    for (int i = 0; i < seen; i++) r.p[i] = exp(r.x[i] - most) / sum;
    r.lse = most + log(sum);
    return r;
}

static rw_tensor *logits(struct fixture *b, rw_dtype dtype, int cols, bool columns)
{
    void *const x = malloc((size_t)ROWS * COLS * 8);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < cols; c++)
            cr_assert(number_put(x, dtype, columns ? c * ROWS + r : r * cols + c, logit(dtype, r, c)));
    rw_tensor *const y = rw_input(b->t, dtype, columns ? RW_SHAPE(cols, ROWS) : RW_SHAPE(ROWS, cols), x,
                                  (size_t)(cols * ROWS) * rw_dtype_size(dtype));
    free(x);
    return rw_require_grad(b->t, y);
}

/* Sixteen roundings of the largest term, and that of the result. */
static void expect_near(rw_dtype dtype, double got, double want, double term, const char *what, int row, int col)
{
    const double error = 16 * arithmetic_roundoff(dtype) * term + unit_roundoff(dtype) * fabs(want);
    cr_assert(fabs(got - want) <= error, "%s, %s, row %d, column %d: %.9g, not %.9g", what, rw_dtype_name(dtype), row,
              col, got, want);
}

static void *read_all(struct fixture *b, rw_tensor *x)
{
    void *const p = malloc(rw_tensor_bytes(x) + 1);
    cr_assert_eq(rw_read(b->t, x, p, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    return p;
}

/* Softmax, its logarithm and logsumexp of the logits, along rows or columns. */
static void check_rows(struct fixture *b, rw_dtype dtype, int cols, bool columns)
{
    rw_tensor *const x = logits(b, dtype, cols, columns);
    const int axis = columns ? 0 : 1;
    void *const p = read_all(b, rw_softmax(b->t, x, axis)), *const l = read_all(b, rw_log_softmax(b->t, x, axis));
    void *const e = read_all(b, rw_logsumexp(b->t, x, RW_AXES(axis), false));
    for (int r = 0; r < ROWS; r++) {
        const struct row want = row_of(dtype, r, cols);
        expect_near(dtype, number_get(e, dtype, r), want.lse, fabs(want.lse), "logsumexp", r, 0);
        for (int c = 0; c < cols; c++) {
            const int64_t at = columns ? c * ROWS + r : r * cols + c;
            expect_near(dtype, number_get(p, dtype, at), want.p[c], 1, "softmax", r, c);
            expect_near(dtype, number_get(l, dtype, at), want.x[c] - want.lse, fabs(want.x[c]), "log_softmax",
                        r, c);
        }
    }
    free(p);
    free(l);
    free(e);
}

Test(extremes, exponentials_are_shifted_by_the_maximum)
{
    struct fixture b = fixture_open(1, 2);
    for (int l = 0; l < 2; l++)
        for (int columns = 0; columns < 2; columns++) {
            check_rows(&b, RW_F32, lengths[l], columns);
            check_rows(&b, RW_F64, lengths[l], columns);
        }
    fixture_close(&b);
}

/* [ROWS, cols], or its columns as rows, with an offset that changes no difference. */
static void *log_softmax_beside(struct fixture *b, rw_dtype dtype, int cols, bool columns, double offset)
{
    rw_tensor *const x = rw_add_scalar(b->t, logits(b, dtype, cols, columns), offset);
    return read_all(b, rw_log_softmax(b->t, x, columns ? 0 : 1));
}

Test(extremes, an_offset_of_all_logits_changes_no_byte_of_a_logarithm)
{
    struct fixture b = fixture_open(1, 2);
    for (int l = 0; l < 2; l++)
        for (int columns = 0; columns < 2; columns++)
            for (int d = 0; d < 2; d++) {
                const rw_dtype dtype = d ? RW_F64 : RW_F32;
                const size_t bytes = (size_t)(ROWS * lengths[l]) * (d ? sizeof(double) : sizeof(float));
                void *const want = log_softmax_beside(&b, dtype, lengths[l], columns, 0);
                void *const got = log_softmax_beside(&b, dtype, lengths[l], columns, d ? 0x1p40 : 0x1p20);
                cr_expect_eq(memcmp(want, got, bytes), 0, "%s, %d, columns %d", rw_dtype_name(dtype), lengths[l],
                             columns);
                free(want), free(got);
            }
    fixture_close(&b);
}

/* Rows of -inf up to the maximum: the causal form, square, so that every row has one logit more. */
Test(extremes, causal_softmax_is_shifted_too)
{
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 4; i++) {
        const rw_dtype dtype = i % 2 ? RW_F64 : RW_F32;
        const int n = lengths[i / 2];
        void *const x = malloc((size_t)n * (size_t)n * 8);
        for (int at = 0; at < n * n; at++) cr_assert(number_put(x, dtype, at, logit(dtype, 0, at % n)));
        void *const p = read_all(
            &b,
            rw_causal_softmax(b.t, rw_input(b.t, dtype, RW_SHAPE(n, n), x, (size_t)(n * n) * rw_dtype_size(dtype)), 1));
        for (int r = 0; r < n; r++) {
            const struct row want = row_of(dtype, 0, r + 1);
            for (int c = 0; c < n; c++)
                expect_near(dtype, number_get(p, dtype, r * n + c), want.p[c], 1, "causal_softmax", r, c);
        }
        free(x);
        free(p);
    }
    fixture_close(&b);
}

/* Loss and gradient: (p - 1 at the target) / rows. */
Test(extremes, cross_entropy_is_shifted_too)
{
    static const int32_t target[ROWS] = { 4, 36, 0 };
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 4; i++) {
        const rw_dtype dtype = i % 2 ? RW_F64 : RW_F32;
        const int n = lengths[i / 2];
        rw_tensor *x = logits(&b, dtype, n, false), *g;
        rw_tensor *const loss = rw_cross_entropy(b.t, x, rw_input(b.t, RW_I32, RW_SHAPE(ROWS), target, sizeof target));
        cr_assert_eq(rw_grad(b.t, loss, &x, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
        void *const got = read_all(&b, g);
        double want = 0;
        for (int r = 0; r < ROWS; r++) {
            const struct row row = row_of(dtype, r, n);
            want += (row.lse - row.x[target[r]]) / ROWS;
            for (int c = 0; c < n; c++)
                expect_near(dtype, number_get(got, dtype, r * n + c), (row.p[c] - (c == target[r])) / ROWS, 1,
                            "gradient of cross_entropy", r, c);
        }
        expect_near(dtype, rw_item(b.t, loss), want, fabs(logit(dtype, 0, 0)), "cross_entropy", 0, 0);
        free(got);
    }
    fixture_close(&b);
}

/* Scores q k^T around 1600 and -1600, a quarter apart; v selects single probabilities. */
static void check_attention(struct fixture *b, rw_dtype dtype, int d, int sign)
{
    enum { KEYS = 16, MAX = 64 };
    char q[KEYS * MAX * 8] = { 0 }, k[KEYS * MAX * 8] = { 0 }, v[KEYS * MAX * 8] = { 0 };
    double p[KEYS], sum = 0;
    for (int i = 0; i < KEYS; i++) {
        number_put(q, dtype, i * d, 1600 * sign);
        number_put(q, dtype, i * d + 1, 1);
        number_put(k, dtype, i * d, 1);
        number_put(k, dtype, i * d + 1, (double)(i % 5) / 4);
        number_put(v, dtype, i * d + i, 1);
        sum += p[i] = exp((double)(i % 5) / 4);
    }
    const rw_shape s = RW_SHAPE(1, 1, KEYS, d);
    rw_tensor *const y = rw_attention(b->t,
                                      rw_input(b->t, dtype, s, q, (size_t)rw_shape_numel(s) * rw_dtype_size(dtype)),
                                      rw_input(b->t, dtype, s, k, (size_t)rw_shape_numel(s) * rw_dtype_size(dtype)),
                                      rw_input(b->t, dtype, s, v, (size_t)rw_shape_numel(s) * rw_dtype_size(dtype)),
                                      &(rw_attention_params){ .scale = 1 });
    void *const got = read_all(b, y);
    for (int i = 0; i < KEYS * KEYS; i++) {
        const double x = number_get(got, dtype, i / KEYS * d + i % KEYS), want = p[i % KEYS] / sum;
        cr_assert(fabs(x - want) < 1e-4 + 2 * unit_roundoff(dtype) * want, "%s, heads of %d, %d: %g, not %g",
                  rw_dtype_name(dtype), d, i, x, want);
    }
    free(got);
}

/* Heads of 16 use a portable kernel on CUDA, those of 64 in 16 bits the tensor cores. */
Test(extremes, attention_is_shifted_too)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++)
        for (int sign = -1; sign <= 1; sign += 2) {
            check_attention(&b, types[d], 16, sign);
            check_attention(&b, types[d], 64, sign);
        }
    fixture_close(&b);
}

/* ---- scores far below zero: a missing key would have score 0, the largest of all ---- */

enum { QUERIES = 40, FAR_KEYS = 33, WIDEST = 128 };

struct far {
    rw_dtype dtype;
    int d, keys;
    double below, q[QUERIES][WIDEST], k[FAR_KEYS][WIDEST], v[FAR_KEYS][WIDEST], dy[QUERIES][WIDEST];
    double dk[FAR_KEYS][WIDEST], variance[FAR_KEYS][WIDEST];
};

/* Sixteenths up to 1, which every type holds; the first component lowers q k^T by `below`. */
static void fill_far(struct far *f)
{
    const double root = sqrt(f->d);
    for (int c = 0; c < f->d; c++) {
        for (int i = 0; i < QUERIES; i++) f->q[i][c] = (i * 7 + c * 5) % 33 / 16. - 1;
        for (int i = 0; i < QUERIES; i++) f->dy[i][c] = (i * 3 + c * 11) % 31 / 16. - 1;
        for (int j = 0; j < f->keys; j++) f->k[j][c] = (j * 13 + c * 3) % 29 / 16. - 1;
        for (int j = 0; j < f->keys; j++) f->v[j][c] = (j * 5 + c * 7) % 27 / 16. - 1;
    }
    for (int i = 0; i < QUERIES; i++) f->q[i][0] = 8;
    for (int j = 0; j < f->keys; j++) f->k[j][0] = round(-f->below * root / 8 * 4) / 4;
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int c = 0; c < n; c++) sum += a[c] * b[c];
    return sum;
}

/*
 * dk[j] = scale * sum over i of ds q[i], ds = p (dy v[j] - dy o). Rounded separately on the way: o, so that dy o is off
 * by the root of the sum of (u dy o)^2; p and ds; the score and the logarithm of the sum, which change p by as much;
 * every step of the d terms that sum up a score (at most `most`) or dy v (about the root of d / 9).
 */
static void add_query(struct far *f, int i)
{
    const double scale = 1 / sqrt(f->d), u = unit_roundoff(f->dtype);
    const double sums = f->d * pow(arithmetic_roundoff(f->dtype), 2);
    double p[FAR_KEYS], o[WIDEST] = { 0 }, most = -INFINITY, sum = 0, delta = 0, off = 0;
    for (int j = 0; j < f->keys; j++) most = fmax(most, p[j] = scale * dot(f->q[i], f->k[j], f->d));
    for (int j = 0; j < f->keys; j++) sum += p[j] = exp(p[j] - most);
    for (int j = 0; j < f->keys; j++)
        for (int c = 0; c < f->d; c++) o[c] += p[j] / sum * f->v[j][c];
    for (int c = 0; c < f->d; c++) delta += f->dy[i][c] * o[c], off += pow(f->dy[i][c] * o[c] * u, 2);
    const double own = 2 * u * u + 2 * sums * pow(fabs(most) + 1, 2);
    for (int j = 0; j < f->keys; j++) {
        const double dp = dot(f->dy[i], f->v[j], f->d) - delta, weight = scale * p[j] / sum;
        for (int c = 0; c < f->d; c++) {
            f->dk[j][c] += weight * dp * f->q[i][c];
            f->variance[j][c] += pow(weight * f->q[i][c], 2) * (own * dp * dp + off + sums * f->d / 9);
        }
    }
}

/* Attention with scores far below zero, forward and backward. */
static void check_far(struct fixture *b, struct far *f)
{
    static char bytes[4][QUERIES * WIDEST * 8];
    fill_far(f);
    for (int i = 0; i < QUERIES; i++) add_query(f, i);
    for (int c = 0; c < f->d; c++)
        for (int i = 0; i < QUERIES; i++) {
            number_put(bytes[0], f->dtype, i * f->d + c, f->q[i][c]);
            number_put(bytes[3], f->dtype, i * f->d + c, f->dy[i][c]);
            if (i < f->keys) number_put(bytes[1], f->dtype, i * f->d + c, f->k[i][c]);
            if (i < f->keys) number_put(bytes[2], f->dtype, i * f->d + c, f->v[i][c]);
        }
    rw_tensor *x[4];
    for (int i = 0; i < 4; i++)
        x[i] = rw_input(b->t, f->dtype, RW_SHAPE(1, 1, i % 3 ? f->keys : QUERIES, f->d), bytes[i],
                        (size_t)((i % 3 ? f->keys : QUERIES) * f->d) * rw_dtype_size(f->dtype));
    rw_tensor *const k = rw_require_grad(b->t, x[1]), *const y = rw_attention(b->t, x[0], k, x[2], NULL);
    rw_tensor *const loss = rw_sum(b->t, rw_mul(b->t, y, x[3]), RW_AXES(0, 1, 2, 3), false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    void *const got = read_all(b, rw_gradient(k));
    for (int at = 0; at < f->keys * f->d; at++) {
        const int j = at / f->d, c = at % f->d;
        const double is = number_get(got, f->dtype, at), want = f->dk[j][c];
        const double bound = 6 * sqrt(f->variance[j][c]) + unit_roundoff(f->dtype) * fabs(want);
        cr_assert(fabs(is - want) <= bound, "%s, heads of %d, %d keys, %g below 0, dk[%d][%d]: %g, not %g (%g)",
                  rw_dtype_name(f->dtype), f->d, f->keys, f->below, j, c, is, want, bound);
    }
    free(got);
    rw_tape_reset(b->t);
}

Test(extremes, attention_with_large_negative_scores_gives_keys_their_gradient)
{
    static const rw_dtype types[] = { RW_F16, RW_BF16, RW_F32, RW_F64 };
    static struct far f;
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 32; i++) {
        f = (struct far){ .dtype = types[i / 8], .d = i & 1 ? 128 : 64, .keys = i & 2 ? FAR_KEYS - 1 : FAR_KEYS,
                          .below = i & 4 ? 40 : 0 };
        check_far(&b, &f);
    }
    fixture_close(&b);
}

/* ---- gradients where a factor is 0 or infinite ---- */

enum { SEEN_MAX = 8 };

/* The gradients of the sum of `record`'s result on two rows of n, by rw_backward() and by rw_grad(). */
struct both {
    double fused[2][SEEN_MAX], composed[2][SEEN_MAX];
};

/* Two operands' gradients, by rw_backward (fused rules) and by rw_grad (composed rules). */
static struct both both_gradients(struct fixture *b, rw_dtype dtype, int n, const double (*x)[SEEN_MAX],
                                  rw_tensor *(*record)(rw_tape *t, rw_tensor *p, rw_tensor *q))
{
    struct both ret = { 0 };
    for (int again = 0; again < 2; again++) {
        rw_tensor *in[2], *d[2];
        for (int i = 0; i < 2; i++) {
            char bytes[SEEN_MAX * 8];
            for (int k = 0; k < n; k++) number_put(bytes, dtype, k, x[i][k]);
            in[i] = rw_require_grad(b->t, rw_input(b->t, dtype, RW_SHAPE(n), bytes, (size_t)n * rw_dtype_size(dtype)));
        }
        rw_tensor *const loss = rw_sum(b->t, record(b->t, in[0], in[1]), RW_ALL_AXES, false);
        const rw_status status = again ? rw_grad(b->t, loss, in, 2, d) : rw_backward(b->t, loss);
        cr_assert_eq(status, RW_OK, "%s", rw_error_message(b->ctx));
        for (int i = 0; i < 2; i++) {
            void *const got = read_all(b, again ? d[i] : rw_gradient(in[i]));
            for (int k = 0; k < n; k++) (again ? ret.composed : ret.fused)[i][k] = number_get(got, dtype, k);
            free(got);
        }
        rw_tape_reset(b->t);
    }
    return ret;
}

/* NaN equals NaN; a finite gradient is compared within a few roundings. */
static void expect_both(const struct both *got, rw_dtype dtype, int n, const double (*want)[SEEN_MAX])
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < n; k++)
            for (int again = 0; again < 2; again++) {
                const double is = (again ? got->composed : got->fused)[i][k], w = want[i][k];
                const bool same = isfinite(w) ? fabs(is - w) <= 4 * unit_roundoff(dtype) * fabs(w)
                                              : isnan(w) ? isnan(is) : is == w;
                cr_expect(same, "%s, %s: gradient %d of element %d: %g, not %g", rw_dtype_name(dtype),
                          again ? "rw_grad" : "rw_backward", i, k, is, w);
            }
}

static rw_tensor *record_pow(rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    return rw_pow(t, a, b);
}

Test(extremes, gradients_of_a_power_are_chosen_where_a_factor_is_0)
{
    static const double x[2][SEEN_MAX] = { { -0., NAN, 0, 0x1p-140, INFINITY, -0., 3, 0x1p-1030 },
                                           { -2, 0, 0, -0., 0, 3, 0, 0 } };
    const double logs[] = { log(3), -140 * log(2), -1030 * log(2) };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++) {
        const rw_dtype dtype = d ? RW_F64 : RW_F32;
        const double want[2][SEEN_MAX] = { { INFINITY, 0, 0, 0, 0, 0, 0, 0 },
                                           { -INFINITY, NAN, 0, logs[1], INFINITY, 0, logs[0], d ? logs[2] : 0 } };
        const struct both got = both_gradients(&b, dtype, SEEN_MAX, x, record_pow);
        expect_both(&got, dtype, SEEN_MAX, want);
    }
    fixture_close(&b);
}

static rw_tensor *record_pow_under_nonfinite(rw_tape *t, rw_tensor *a, rw_tensor *b)
{
    static const float up[SEEN_MAX] = { INFINITY, NAN, -INFINITY, NAN, INFINITY, INFINITY, 1, INFINITY };
    rw_tensor *const dy = rw_input(t, RW_F32, RW_SHAPE(SEEN_MAX), up, sizeof up);
    return rw_mul(t, rw_pow(t, a, b), rw_cast(t, dy, rw_tensor_dtype(a)));
}

Test(extremes, gradients_of_a_power_are_chosen_under_a_nonfinite_upstream)
{
    static const double x[2][SEEN_MAX] = { { 3, -0., 0, 2, 0, 2, 0, NAN }, { 0, 2, 0, 0, 3, 1, -1, 0 } };
    static const double want[2][SEEN_MAX] = { { 0, NAN, 0, 0, NAN, INFINITY, -INFINITY, 0 },
                                              { INFINITY, 0, 0, NAN, 0, INFINITY, -INFINITY, NAN } };
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++) {
        const struct both got = both_gradients(&b, types[d], SEEN_MAX, x, record_pow_under_nonfinite);
        expect_both(&got, types[d], SEEN_MAX, want);
    }
    fixture_close(&b);
}

/* Two groups of four, every other element: by two axes, then by one. */
static rw_tensor *record_logsumexp(rw_tape *t, rw_tensor *two, rw_tensor *one)
{
    return rw_add(t, rw_logsumexp(t, rw_reshape(t, two, RW_SHAPE(2, 2, 2)), RW_AXES(0, 1), false),
                  rw_logsumexp(t, rw_reshape(t, one, RW_SHAPE(4, 2)), RW_AXES(0), false));
}

Test(extremes, a_logarithm_of_a_sum_has_gradients_beside_an_offset_and_infinity)
{
    static const double x[2][SEEN_MAX] = { { 1e4, 1, 1e4, INFINITY, 1e4, 2, 1e4, -INFINITY },
                                           { 1e4, 1, 1e4, INFINITY, 1e4, 2, 1e4, -INFINITY } };
    static const double want[2][SEEN_MAX] = { { .25, 0, .25, NAN, .25, 0, .25, 0 },
                                              { .25, 0, .25, NAN, .25, 0, .25, 0 } };
    static const double far[2][SEEN_MAX] = { { 1e8, 0, 1e8, 0, 1e8, 0, 1e8, 0 }, { 1e8, 0, 1e8, 0, 1e8, 0, 1e8, 0 } };
    static const double even[2][SEEN_MAX] = { { .25, .25, .25, .25, .25, .25, .25, .25 },
                                              { .25, .25, .25, .25, .25, .25, .25, .25 } };
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++) {
        const struct both infinite = both_gradients(&b, types[d], SEEN_MAX, x, record_logsumexp);
        expect_both(&infinite, types[d], SEEN_MAX, want);
        if (types[d] == RW_F16) continue; /* has no 1e8 */
        const struct both distant = both_gradients(&b, types[d], SEEN_MAX, far, record_logsumexp);
        expect_both(&distant, types[d], SEEN_MAX, even);
    }
    fixture_close(&b);
}

/* dy / b alone would overflow the type, and the product with a / b be infinite, or NaN where a is 0. */
Test(extremes, a_divisor_has_its_gradient_where_the_dividend_s_is_infinite)
{
    static const struct {
        rw_dtype dtype;
        double a, b, dy, want;
    } rows[] = {
        { RW_F16, 0, 0.01, 1024, 0 },        { RW_F16, 0.001, 0.01, 1024, -10240 }, { RW_F16, 0, 0x1p-14, 8, 0 },
        { RW_BF16, 1e-32, 1e-30, 1e10, -1e38 }, { RW_F32, 1e-32, 1e-30, 1e10, -1e38 }, { RW_F32, 0, 1e-40, 1, 0 },
        { RW_F16, 3, 2, 4, -3 },             { RW_F32, 3, 2, 4, -3 },
    };
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 4; k++) { /* gradient of only the divisor, or of both; by rw_backward() or rw_grad() */
            const rw_dtype dtype = rows[i].dtype;
            const double numbers[] = { rows[i].a, rows[i].b, rows[i].dy };
            rw_tensor *in[3], *g = NULL;
            for (int n = 0; n < 3; n++) in[n] = rw_cast(b.t, rw_full(b.t, RW_F64, RW_SHAPE(1), numbers[n]), dtype);
            for (int n = k & 1; n < 2; n++) rw_require_grad(b.t, in[n]);
            rw_tensor *const y = rw_div(b.t, in[0], in[1]);
            rw_tensor *const wide = rw_mul(b.t, rw_cast(b.t, y, RW_F64), rw_cast(b.t, in[2], RW_F64));
            rw_tensor *const loss = rw_sum(b.t, wide, RW_ALL_AXES, false);
            const rw_status status = k & 2 ? rw_grad(b.t, loss, &in[1], 1, &g) : rw_backward(b.t, loss);
            cr_assert_eq(status, RW_OK, "%s", rw_error_message(b.ctx));
            void *const raw = read_all(&b, k & 2 ? g : rw_gradient(in[1]));
            const double got = number_get(raw, dtype, 0), want = rows[i].want;
            cr_expect(fabs(got - want) <= 8 * unit_roundoff(dtype) * fabs(want),
                      "%s, %g / %g, upstream %g, %s: %g, expected %g", rw_dtype_name(dtype), rows[i].a, rows[i].b,
                      rows[i].dy, k & 2 ? "rw_grad" : "rw_backward", got, want);
            free(raw);
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

static rw_tensor *record_bce(rw_tape *t, rw_tensor *x, rw_tensor *target)
{
    return rw_bce_with_logits(t, x, target, RW_NONE, RW_NONE, RW_REDUCTION_NONE);
}

static rw_tensor *record_bce_of_half(rw_tape *t, rw_tensor *x, rw_tensor *target)
{
    rw_tensor *const half = rw_full(t, rw_tensor_dtype(x), RW_SCALAR, .5);
    return rw_bce_with_logits(t, x, target, RW_NONE, half, RW_REDUCTION_NONE);
}

Test(extremes, an_infinite_logit_has_the_gradient_of_its_target)
{
    enum { N = 4 };
    static const double x[2][SEEN_MAX] = { { -INFINITY, -INFINITY, INFINITY, -2 }, { 1, 0, 0, 1 } };
    const double p = 1 / (1 + exp(2)), missed = log1p(exp(2));
    const double want[2][SEEN_MAX] = { { -1, 0, 1, p - 1 }, { INFINITY, INFINITY, -INFINITY, 2 } };
    const double half[2][SEEN_MAX] = { { -.5, 0, 1, (p - 1) / 2 },
                                       { INFINITY, INFINITY, -INFINITY, 2 - missed / 2 } };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 2; d++) {
        const struct both plain = both_gradients(&b, d ? RW_F64 : RW_F32, N, x, record_bce);
        expect_both(&plain, d ? RW_F64 : RW_F32, N, want);
        const struct both weighed = both_gradients(&b, d ? RW_F64 : RW_F32, N, x, record_bce_of_half);
        expect_both(&weighed, d ? RW_F64 : RW_F32, N, half);
    }
    fixture_close(&b);
}

/* Two rows of four; the second is ignored. */
static rw_tensor *record_cross_entropies(rw_tape *t, rw_tensor *x, rw_tensor *y)
{
    static const int32_t list[] = { 1, -100 };
    rw_tensor *const target = rw_input(t, RW_I32, RW_SHAPE(2), list, sizeof list);
    rw_tensor *const rows = rw_reshape(t, y, RW_SHAPE(2, 4));
    return rw_add(t, rw_cross_entropy(t, rw_reshape(t, x, RW_SHAPE(2, 4)), target),
                  rw_cross_entropy_with(t, rows, target, RW_NONE, NULL));
}

Test(extremes, a_row_of_nothing_but_minus_infinity_has_no_gradient)
{
    double x[2][SEEN_MAX];
    static const double want[2][SEEN_MAX] = { { NAN, NAN, NAN, NAN, 0, 0, 0, 0 }, { NAN, NAN, NAN, NAN, 0, 0, 0, 0 } };
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 2 * SEEN_MAX; i++) x[i / SEEN_MAX][i % SEEN_MAX] = -INFINITY;
    for (int d = 0; d < 4; d++) {
        const struct both got = both_gradients(&b, types[d], SEEN_MAX, x, record_cross_entropies);
        expect_both(&got, types[d], SEEN_MAX, want);
    }
    fixture_close(&b);
}

/* ---- norms ---- */

static rw_tensor *normed(struct fixture *b, int which, rw_tensor *x)
{
    rw_tape *const t = b->t;
    if (which == 0) return rw_layernorm(t, x, RW_NONE, RW_NONE, 1e-5);
    if (which == 1) return rw_rmsnorm(t, x, RW_NONE, 1e-5);
    if (which == 2) return rw_group_norm(t, x, 2, RW_NONE, RW_NONE, 1e-5);
    if (which == 3) return rw_instance_norm(t, x, RW_NONE, RW_NONE, 1e-5);
    return rw_batchnorm(t, x, RW_NONE, RW_NONE, RW_NONE, RW_NONE, &(rw_batchnorm_params){ .relu = which == 5 });
}

/* The first n elements of x must be NaN, and the others finite. */
static void expect_none(struct fixture *b, rw_tensor *x, int64_t n, const char *what, int which)
{
    void *const got = read_all(b, x);
    const rw_dtype dtype = rw_tensor_dtype(x);
    for (int64_t i = 0; i < rw_shape_numel(rw_tensor_shape(x)); i++) {
        const double v = number_get(got, dtype, i);
        cr_assert(i < n ? isnan(v) : isfinite(v), "norm %d, %s, %s, element %ld: %g", which, rw_dtype_name(dtype), what,
                  (long)i, v);
    }
    free(got);
}

/* Squares that overflow the type give NaN: results and gradients are not zeros. Other rows are correct. */
static void check_norm(rw_dtype dtype, double size, int which, int64_t width)
{
    enum { N = 2, C = 4, H = 2 };
    struct fixture b = fixture_open(1, 2);
    const bool rows = which < 2;
    const int64_t all = N * C * H * width, row = rows ? width : which < 4 ? all / N : all;
    void *const data = malloc((size_t)all * 8);
    for (int64_t i = 0; i < all; i++)
        cr_assert(number_put(data, dtype, i, (i < row ? size : 1) * ((double)(i * 7 % 11) / 8 - 0.5)));
    rw_tensor *const x = rw_require_grad(
        b.t, rw_input(b.t, dtype, RW_SHAPE(N, C, H, width), data, (size_t)(N * C * H * width) * rw_dtype_size(dtype)));
    rw_tensor *const y = normed(&b, which, x), *dx;
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    rw_tensor *const plain = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, plain, &x, 1, &dx), RW_OK, "%s", rw_error_message(b.ctx));
    expect_none(&b, y, row, "y", which);
    expect_none(&b, dx, row, "rw_grad()", which);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    expect_none(&b, rw_gradient(x), row, "dx", which);
    free(data);
    fixture_close(&b);
}

Test(extremes, squares_beyond_the_type_are_no_zeros)
{
    for (int which = 0; which < 6; which++)
        for (int64_t width = 7; width <= 64; width += 57) {
            check_norm(RW_F32, 0x1p83, which, width);
            check_norm(RW_F32, 0x1p127, which, width);
            check_norm(RW_BF16, 0x1p83, which, width);
            check_norm(RW_F64, 0x1p530, which, width);
        }
}

/* ---- indexes ---- */

/* Read only by forward: no other op of the step reads the index. */
/* One warp of a block has the largest element of a row that a block holds; and a row of -inf only. */
Test(extremes, a_wide_row_is_shifted_by_its_maximum)
{
    enum { N = 2048, AT = 1237 };
    struct fixture b = fixture_open(1, 1);
    static float x[N], y[N];
    x[AT] = 300;
    cr_assert_eq(rw_read(b.t, rw_softmax(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1, N), x, sizeof x), 1), y, sizeof y),
                 RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(y[i], i == AT, "element %d: %g", i, (double)y[i]);
    for (int n = 16; n <= N; n *= 16) { /* in registers, and read twice */
        for (int rest = 0; rest < 2; rest++) {
            for (int i = 0; i < N; i++) x[i] = -INFINITY;
            rw_tensor *const row = rw_input(b.t, RW_F32, RW_SHAPE(1, n - rest), x, (size_t)(n - rest) * sizeof *x);
            cr_assert_eq(rw_read(b.t, rw_softmax(b.t, row, 1), y, (size_t)(n - rest) * sizeof *y), RW_OK);
            for (int i = 0; i < n - rest; i++) cr_assert_eq(y[i], 0, "%d of %d: %g", i, n - rest, (double)y[i]);
        }
    }
    fixture_close(&b);
}

Test(extremes, a_target_beside_the_classes_is_seen_by_the_forward_pass)
{
    enum { CLASSES = 5 };
    struct fixture b = fixture_open(1, 1);
    static const float zeros[3 * CLASSES];
    for (int bad = -1; bad <= CLASSES; bad += CLASSES + 1) {
        const int32_t target[] = { 0, bad, 4 };
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(3, CLASSES), zeros, sizeof zeros);
        rw_tensor *const y = rw_cross_entropy(b.t, x, rw_input(b.t, RW_I32, RW_SHAPE(3), target, sizeof target));
        float loss;
        cr_assert_eq(rw_read(b.t, y, &loss, sizeof loss), RW_ERR_ARGUMENT, "target %d", bad);
        cr_assert(strstr(rw_error_message(b.ctx), "cross_entropy"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(extremes, a_bad_index_is_seen_by_the_forward_pass)
{
    struct fixture b = fixture_open(1, 1);
    static const float zeros[5 * 3];
    for (int bad = -1; bad <= 5; bad += 6) {
        const int32_t index[] = { 0, 4, bad, 2 };
        rw_tensor *const table = rw_input(b.t, RW_F32, RW_SHAPE(5, 3), zeros, sizeof zeros);
        rw_tensor *const y = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(4), index, sizeof index));
        float out[4 * 3];
        cr_assert_eq(rw_read(b.t, y, out, sizeof out), RW_ERR_ARGUMENT, "index %d", bad);
        cr_assert(strstr(rw_error_message(b.ctx), "embedding"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}
