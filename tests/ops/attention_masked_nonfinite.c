/*
 * Attention with infinity and NaN in excluded rows: a key that a mask, a causal rule, a window or a document excludes
 * has no effect, forward and backward; nor has what a causal softmax excludes. Results that do not depend on such a row
 * are compared by bytes with those of a run in which it holds ordinary numbers.
 */
#include "support/compare.h"
#include "support/support.h"

#include <rewind/attention.h>

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 4, KV_HEADS = 2, SEQ_MAX = 150, PLACES = 2 };

/* The operand whose rows hold the poison. */
enum place { OF_K, OF_V, OF_BOTH, OF_Q, OF_DY, PLACE_COUNT };
static const char *const places[] = { "k", "v", "k and v", "q", "dy" };

enum rule { CAUSAL, WINDOW, TRUTHS, NUMBERS, DOCUMENTS, CAPPED, RULES };
static const char *const rules[] = { "causal", "a window", "a mask of truths", "a mask of numbers", "documents",
                                     "soft cap, slopes and causal" };

struct attention {
    rw_dtype dtype;
    enum rule rule;
    int64_t seq, kv_seq, d, dv;
    double dropout;
};

static const int32_t cuts[] = { 3, 40, 67, 140 };

static bool is_seen_by_mask(int64_t i, int64_t j)
{
    return i != 5 && (i * 7 + j * 3) % 5 != 0 && j % 31 != 9;
}

/* Whether query i attends to key j, by the definitions in attention.h. */
static bool is_seen(const struct attention *a, int64_t i, int64_t j)
{
    const int64_t at = i + a->kv_seq - a->seq;
    switch (a->rule) {
    case WINDOW: return j <= at && j > at - 20;
    case TRUTHS:
    case NUMBERS: return is_seen_by_mask(i, j);
    case DOCUMENTS:
        for (int n = 0; n < 3; n++)
            if (i >= cuts[n] && i < cuts[n + 1]) return j >= cuts[n] && j < cuts[n + 1];
        return false;
    default: return j <= at;
    }
}

/* The poison for those rows of an operand. */
struct poison {
    enum place where;
    double value;
    int64_t rows[PLACES]; /* keys, or queries */
};

static bool has(const struct poison *p, int64_t row)
{
    return p && (p->rows[0] == row || p->rows[1] == row);
}

static double number(int64_t i, int salt)
{
    return (double)((i * 37 + salt * 101 + i * i % 1009 * 11) % 127 - 63) / 64;
}

static rw_tensor *operand(rw_tape *t, const struct attention *a, int64_t heads, int64_t rows, int64_t d, int salt,
                          const struct poison *p)
{
    const int64_t n = BATCH * heads * rows * d;
    char *const data = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) {
        const bool poisoned = has(p, i / d % rows) && i % d % 3 != 1; /* a part of a row */
        number_put(data, a->dtype, i, poisoned ? p->value : number(i, salt));
    }
    rw_tensor *const x = rw_input(t, a->dtype, RW_SHAPE(BATCH, heads, rows, d), data,
                                  (size_t)(BATCH * heads * rows * d) * rw_dtype_size(a->dtype));
    free(data);
    return x;
}

static rw_tensor *mask_of(rw_tape *t, const struct attention *a)
{
    const rw_dtype dtype = a->rule == TRUTHS ? RW_BOOL : a->dtype;
    char *const data = calloc((size_t)(a->seq * a->kv_seq), 8);
    for (int64_t i = 0; i < a->seq * a->kv_seq; i++) {
        const bool seen = is_seen(a, i / a->kv_seq, i % a->kv_seq);
        if (a->rule == TRUTHS) data[i] = seen;
        else number_put(data, dtype, i, seen ? number(i, 7) : -(double)INFINITY);
    }
    rw_tensor *const x = rw_input(t, dtype, RW_SHAPE(1, 1, a->seq, a->kv_seq), data,
                                  (size_t)(a->seq * a->kv_seq) * rw_dtype_size(dtype));
    free(data);
    return x;
}

/* Records attention with the options of a case. */
static rw_tensor *record(rw_tape *t, const struct attention *a, rw_tensor *const *in, rw_tensor *mask)
{
    static const float narrow[HEADS] = { 0.5f, 0.25f, 0.125f, 0.0625f };
    static const double wide[HEADS] = { 0.5, 0.25, 0.125, 0.0625 };
    rw_attention_params o = { .dropout = a->dropout };
    const rw_attention_params plain = { .causal = true, .dropout = a->dropout };
    if (a->rule == CAUSAL) return rw_attention(t, in[0], in[1], in[2], &plain);
    if (a->rule == WINDOW) o.causal = true, o.window = 20;
    if (a->rule == DOCUMENTS) o.documents = rw_input(t, RW_I32, RW_SHAPE(4), cuts, sizeof cuts);
    if (a->rule == CAPPED) {
        const bool f64 = a->dtype == RW_F64;
        o.causal = true, o.soft_cap = 5;
        o.slopes = rw_input(t, f64 ? RW_F64 : RW_F32, RW_SHAPE(HEADS), f64 ? (const void *)wide : narrow,
                            HEADS * (f64 ? sizeof *wide : sizeof *narrow));
    }
    o.mask = mask;
    return rw_attention(t, in[0], in[1], in[2], &o);
}

enum { Y, DQ, DK, DV, DMASK, RESULTS };
static const char *const names[] = { "y", "dq", "dk", "dv", "dmask" };

struct results {
    unsigned char *raw[RESULTS];
};

static void free_results(struct results *r)
{
    for (int i = 0; i < RESULTS; i++) free(r->raw[i]);
}

static unsigned char *bytes_of(struct fixture *b, rw_tensor *x)
{
    unsigned char *const raw = malloc(rw_tensor_bytes(x) + 1);
    cr_assert_eq(rw_read(b->t, x, raw, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    return raw;
}

/* Runs a case with a poison or without, and returns its results. */
static struct results run(const struct attention *a, const struct poison *p, int threads)
{
    struct fixture b = fixture_open(7, threads);
    rw_tape *const t = b.t;
    const struct poison *const of[] = { p && p->where == OF_Q ? p : NULL,
                                        p && (p->where == OF_K || p->where == OF_BOTH) ? p : NULL,
                                        p && (p->where == OF_V || p->where == OF_BOTH) ? p : NULL };
    rw_tensor *const in[] = { operand(t, a, HEADS, a->seq, a->d, 1, of[0]),
                              operand(t, a, KV_HEADS, a->kv_seq, a->d, 2, of[1]),
                              operand(t, a, KV_HEADS, a->kv_seq, a->dv, 3, of[2]) };
    rw_tensor *const mask = a->rule == TRUTHS || a->rule == NUMBERS ? mask_of(t, a) : NULL;
    rw_tensor *const dy = operand(t, a, HEADS, a->seq, a->dv, 4, p && p->where == OF_DY ? p : NULL);
    for (int i = 0; i < 3; i++) rw_require_grad(t, in[i]);
    if (a->rule == NUMBERS) rw_require_grad(t, mask);
    rw_tensor *const y = rw_require_grad(t, record(t, a, in, mask));
    cr_assert_eq(rw_backward(t, rw_sum(t, rw_mul(t, y, dy), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    struct results r = { { bytes_of(&b, rw_contiguous(t, y)) } };
    for (int i = 0; i < 3; i++) r.raw[DQ + i] = bytes_of(&b, rw_gradient(in[i]));
    if (a->rule == NUMBERS) r.raw[DMASK] = bytes_of(&b, rw_gradient(mask));
    fixture_close(&b);
    return r;
}

/* Whether query i depends on a poisoned row; for key j, whether any query that attends to it does. */
static bool is_touched(const struct attention *a, const struct poison *p, int64_t i)
{
    if (p->where == OF_Q || p->where == OF_DY) return has(p, i);
    for (int64_t j = 0; j < a->kv_seq; j++)
        if (has(p, j) && is_seen(a, i, j)) return true;
    return false;
}

static bool is_touched_key(const struct attention *a, const struct poison *p, int64_t j)
{
    for (int64_t i = 0; i < a->seq; i++)
        if (is_seen(a, i, j) && is_touched(a, p, i)) return true;
    return false;
}

/* Compares the rows of a result that do not depend on the poison. Returns their number. */
static int same_rows(const struct attention *a, const struct poison *p, int which, const unsigned char *got,
                     const unsigned char *want)
{
    const bool keys = which == DK || which == DV;
    const int64_t rows = keys ? a->kv_seq : a->seq, heads = keys ? KV_HEADS : HEADS;
    const int64_t d = which == Y || which == DV ? a->dv : a->d, n = d * (int64_t)rw_dtype_size(a->dtype);
    int same = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (keys ? is_touched_key(a, p, r) : is_touched(a, p, r) && !(which == Y && p->where == OF_DY)) continue;
        for (int64_t h = 0; h < BATCH * heads; h++) {
            const int64_t at = (h * rows + r) * n;
            const int64_t off = first_difference(got + at, want + at, (size_t)n), i = off / (n / d);
            same++;
            cr_expect_lt(off, 0, "%s, %s, heads of %d, %g in %s[%d]: %s of row %d, column %d is %g, expected %g",
                         rw_dtype_name(a->dtype), rules[a->rule], (int)a->d, p->value, places[p->where],
                         (int)p->rows[0], names[which], (int)r, (int)i,
                         number_get(got + at, a->dtype, off < 0 ? 0 : i),
                         number_get(want + at, a->dtype, off < 0 ? 0 : i));
            if (off >= 0) return same;
        }
    }
    return same;
}

/* A NaN that is visible is not hidden: it is in all of a row's output if k or q has it, and in one column if v has
   it. */
static void reaches_who_sees_it(const struct attention *a, const struct poison *p, const unsigned char *y)
{
    if (!isnan(p->value) || p->where == OF_DY || a->dropout > 0) return;
    for (int64_t k = 0; k < BATCH * HEADS * a->seq * a->dv; k++) {
        const int64_t row = k / a->dv % a->seq;
        bool some = p->where != OF_Q;
        for (int64_t j = 0; j < a->kv_seq; j++) some |= is_seen(a, row, j);
        if (!is_touched(a, p, row) || !some || (p->where == OF_V && k % a->dv % 3 == 1)) continue;
        cr_assert(isnan(number_get(y, a->dtype, k)), "%s, %s, NaN in %s[%d]: row %d is %g", rw_dtype_name(a->dtype),
                  rules[a->rule], places[p->where], (int)p->rows[0], (int)row, number_get(y, a->dtype, k));
    }
}

/* The mask's gradient is 0 for excluded pairs, and unchanged for untouched rows. */
static void check_mask_gradient(const struct attention *a, const struct poison *p, const unsigned char *got,
                                const unsigned char *want)
{
    for (int64_t k = 0; got && k < a->seq * a->kv_seq; k++) {
        const int64_t i = k / a->kv_seq, j = k % a->kv_seq;
        if (is_seen(a, i, j) && is_touched(a, p, i)) continue;
        const double is = number_get(got, a->dtype, k), expected = number_get(want, a->dtype, k);
        cr_assert_eq(is, expected, "%s, %g in %s[%d]: dmask of %d, %d is %g, expected %g", rw_dtype_name(a->dtype),
                     p->value, places[p->where], (int)p->rows[0], (int)i, (int)j, is, expected);
    }
}

/* Places each poison in each operand, and compares the rows that do not depend on it. */
static void check(const struct attention *a)
{
    static const double values[] = { NAN, INFINITY, -INFINITY };
    const int n_values = test_steps(3, 1);
    struct results want = run(a, NULL, 2);
    for (int where = 0; where < PLACE_COUNT; where++)
        for (int v = 0; v < (where == OF_BOTH ? 1 : n_values); v++) {
            const int64_t rows = where == OF_Q || where == OF_DY ? a->seq : a->kv_seq;
            const struct poison p = { (enum place)where, values[v],
                                      { where == OF_Q || where == OF_DY ? 33 : rows * 2 / 3, rows - 1 } };
            struct results got = run(a, &p, 1 + v);
            int same = 0;
            for (int i = Y; i <= DV; i++) same += same_rows(a, &p, i, got.raw[i], want.raw[i]);
            cr_expect_gt(same, 0, "nothing was compared");
            reaches_who_sees_it(a, &p, got.raw[Y]);
            check_mask_gradient(a, &p, got.raw[DMASK], want.raw[DMASK]);
            free_results(&got);
        }
    free_results(&want);
}

/* Widths of 64 in 16 bits use a GPU's tensor cores, others the ordinary kernels. */
static void check_all(rw_dtype dtype)
{
    static const int64_t widths[][2] = { { 8, 12 }, { 64, 64 } };
    for (int rule = 0; rule < RULES; rule++)
        for (int w = 0; w < 2; w++)
            for (int form = 0; form < 2; form++) {
                struct attention a = { dtype, (enum rule)rule, 70, 70, widths[w][0], widths[w][1], form ? 0.25 : 0 };
                if (form) a.seq = 40;
                if (rule == DOCUMENTS) a.seq = a.kv_seq = 150;
                if (!test_steps(1, 0) && (form + w + rule) % 2) continue;
                check(&a);
            }
}

Test(attention_masked_nonfinite, rows_have_no_effect_f32)
{
    check_all(RW_F32);
}

Test(attention_masked_nonfinite, rows_have_no_effect_f64)
{
    check_all(RW_F64);
}

Test(attention_masked_nonfinite, rows_have_no_effect_bf16)
{
    check_all(RW_BF16);
}

Test(attention_masked_nonfinite, rows_have_no_effect_f16)
{
    check_all(RW_F16);
}

/* Two passes if the pairs of batch and head are few, one if they are many; padding after a short row. */
Test(attention_masked_nonfinite, padding_of_many_heads_has_no_effect)
{
    struct fixture b = fixture_open(1, 3);
    enum { B = 5, H = 3, S = 20, D = 8, N = B * H * S * D };
    static float x[N], y[2][N], g[2][3][N];
    uint8_t seen[B * S];
    for (int i = 0; i < B * S; i++) seen[i] = i % S < 13 + i / S;
    rw_tensor *const mask = rw_input(b.t, RW_BOOL, RW_SHAPE(B, 1, 1, S), seen, sizeof seen);
    for (int poisoned = 0; poisoned < 2; poisoned++) {
        rw_tensor *in[3];
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < N; i++) {
                const bool hidden = k && !seen[i / (H * S * D) * S + i / D % S];
                x[i] = poisoned && hidden ? NAN : (float)number(i, k);
            }
            in[k] = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(B, H, S, D), x, sizeof x));
        }
        rw_tensor *const out = rw_attention(b.t, in[0], in[1], in[2], &(rw_attention_params){ .mask = mask });
        rw_require_grad(b.t, out);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, out, out), RW_ALL_AXES, false)), RW_OK);
        cr_assert_eq(rw_read(b.t, rw_contiguous(b.t, out), y[poisoned], sizeof y[0]), RW_OK);
        for (int k = 0; k < 3; k++) cr_assert_eq(rw_read(b.t, rw_gradient(in[k]), g[poisoned][k], sizeof x), RW_OK);
    }
    cr_expect_eq(memcmp(y[0], y[1], sizeof y[0]), 0, "y");
    for (int k = 0; k < 3; k++) cr_expect_eq(memcmp(g[0][k], g[1][k], sizeof x), 0, "gradient %d", k);
    fixture_close(&b);
}

/* ---- causal softmax ---- */

static double score(int64_t i)
{
    return (double)(i * 37 % 41 - 20) / 32;
}

/* The gradient of the scores, if element (i, k) of the upstream gradient that query i does not see is `unseen`. */
static void *causal_gradient(struct fixture *b, rw_dtype dtype, int64_t queries, int64_t keys, double unseen)
{
    const size_t bytes = (size_t)(queries * keys) * rw_dtype_size(dtype);
    char *const raw = malloc(bytes);
    for (int64_t i = 0; i < queries * keys; i++) number_put(raw, dtype, i, score(i));
    rw_tensor *const s = rw_require_grad(b->t, rw_input(b->t, dtype, RW_SHAPE(queries, keys), raw, bytes));
    rw_tensor *y = rw_causal_softmax(b->t, s, 0.5);
    for (int64_t i = 0; i < queries; i++)
        for (int64_t k = 0; k < keys; k++)
            number_put(raw, dtype, i * keys + k, k > i + keys - queries ? unseen : score(3 * i + k));
    rw_tensor *dy = rw_input(b->t, dtype, RW_SHAPE(queries, keys), raw, bytes);
    cr_assert_eq(rw_backward_from(b->t, &y, &dy, 1), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, rw_gradient(s), raw, bytes), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return raw;
}

/* Rows of one vector, of a warp and a block in registers, and of those that are read twice. */
Test(attention_masked_nonfinite, gradients_that_a_causal_softmax_excludes)
{
    static const rw_dtype dtypes[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    static const int64_t sizes[][2] = { { 5, 5 }, { 5, 2 }, { 3, 16 }, { 16, 64 }, { 9, 77 }, { 3, 2048 },
                                        { 3, 8200 } };
    struct fixture b = fixture_open(1, 2);
    for (int d = 0; d < 4; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const int64_t queries = sizes[i][0], keys = sizes[i][1];
            void *const want = causal_gradient(&b, dtypes[d], queries, keys, 0);
            for (int k = 0; k < 2; k++) {
                void *const got = causal_gradient(&b, dtypes[d], queries, keys, k ? NAN : -INFINITY);
                cr_expect(!memcmp(got, want, (size_t)(queries * keys) * rw_dtype_size(dtypes[d])),
                          "%s, %d queries, %d keys", rw_dtype_name(dtypes[d]), (int)queries, (int)keys);
                free(got);
            }
            free(want);
        }
    fixture_close(&b);
}
