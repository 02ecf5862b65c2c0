/*
 * Attention with options, beyond the table of cases: bit-identical results for all threads and policies, rows that
 * attend to no key, empty documents, memory without a score matrix, and the two halves of a ring.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double number(int64_t i, int salt)
{
    return (double)((i * 37 + salt * 101 + i * i * 11) % 127 - 63) / 32;
}

static rw_tensor *numbers(rw_tape *t, rw_dtype dtype, rw_shape shape, int salt)
{
    const int64_t n = rw_shape_numel(shape);
    char *const data = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, number(i, salt)));
    rw_tensor *const x = rw_input(t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype));
    free(data);
    return rw_require_grad(t, x);
}

static double *read_numbers(rw_tape *t, rw_tensor *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    double *const to = malloc((size_t)(n + 1) * sizeof *to);
    void *const raw = malloc(rw_tensor_bytes(x) + 8);
    cr_assert_eq(rw_read(t, x, raw, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    for (int64_t i = 0; i < n; i++) to[i] = number_get(raw, rw_tensor_dtype(x), i);
    free(raw);
    return to;
}

/* ---- the same bytes ---- */

#define SEQ 150
#define INPUTS 5

/* Three rows packed from documents, with all options, after a region. */
static rw_tensor *loss_of_all(struct fixture *b, rw_dtype dtype, rw_tensor *in[INPUTS])
{
    rw_tape *const t = b->t;
    static const int32_t cuts[3][4] = { { 0, 70, 70, 150 }, { 1, 3, 64, 149 }, { 0, 0, 128, 150 } };
    static const double slopes[] = { 0.5, 0.25, 0.125, 0.0625 };
    static const float narrow[] = { 0.5f, 0.25f, 0.125f, 0.0625f };
    rw_tensor *lse;
    in[0] = numbers(t, dtype, RW_SHAPE(3, 4, SEQ, 8), 1);
    in[1] = numbers(t, dtype, RW_SHAPE(3, 2, SEQ, 8), 2);
    in[2] = numbers(t, dtype, RW_SHAPE(3, 2, SEQ, 12), 3);
    in[3] = numbers(t, dtype, RW_SHAPE(1, 4, SEQ, SEQ), 4);
    in[4] = numbers(t, dtype, RW_SHAPE(4), 5);
    const rw_attention_params o = {
        .causal = true,
        .dropout = 0.25,
        .window = 70,
        .soft_cap = 5,
        .slopes = rw_input(t, dtype == RW_F64 ? RW_F64 : RW_F32, RW_SHAPE(4),
                           dtype == RW_F64 ? (const void *)slopes : (const void *)narrow,
                           4 * (dtype == RW_F64 ? sizeof *slopes : sizeof *narrow)),
        .mask = in[3],
        .sinks = in[4],
        .documents = rw_input(t, RW_I32, RW_SHAPE(3, 4), cuts, sizeof cuts),
    };
    rw_tensor *y = NULL;
    for (int layer = 0; layer < 2; layer++) {
        ckpt_begin(t, "core_attn");
        rw_tensor *const q = layer ? rw_mul(t, in[0], rw_slice(t, y, -1, 0, 8)) : in[0];
        y = rw_attention_lse(t, q, in[1], in[2], &o, &lse);
        y = rw_tanh(t, rw_add(t, y, rw_cast(t, rw_reshape(t, lse, RW_SHAPE(3, 4, SEQ, 1)), dtype)));
        ckpt_end(t);
    }
    return rw_sum(t, rw_mul(t, y, y), RW_ALL_AXES, false);
}

/* All gradients of the step, with so many threads and a policy. */
static unsigned char *gradients(int threads, const char *policy, rw_dtype dtype, size_t *ret_bytes)
{
    struct fixture b = fixture_open(7, threads);
    rw_tensor *in[INPUTS];
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const loss = loss_of_all(&b, dtype, in);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *all = NULL;
    *ret_bytes = 0;
    for (int i = 0; i < INPUTS; i++) {
        rw_tensor *const g = rw_gradient(in[i]);
        const size_t n = rw_tensor_bytes(g);
        all = realloc(all, *ret_bytes + n);
        cr_assert_eq(rw_read(b.t, g, all + *ret_bytes, n), RW_OK);
        *ret_bytes += n;
    }
    fixture_close(&b);
    return all;
}

/* Compares the gradients of all runs, byte for byte. */
static void check_bytes(rw_dtype dtype)
{
    static const struct {
        int threads;
        const char *policy;
    } runs[] = { { 2, "none" }, { 3, "none" }, { 4, "none" }, { 5, "none" }, { 1, "full" }, { 5, "full" },
                 { 2, "selective:core_attn" } };
    size_t n, m;
    unsigned char *const first = gradients(1, "none", dtype, &n);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        unsigned char *const again = gradients(runs[i].threads, runs[i].policy, dtype, &m);
        cr_assert_eq(n, m);
        cr_expect_eq(first_difference(first, again, n), -1, "%s, %d threads, %s", rw_dtype_name(dtype),
                     runs[i].threads, runs[i].policy);
        free(again);
    }
    free(first);
}

Test(attention, options_give_the_same_bytes_with_any_threads_and_policy_f32)
{
    check_bytes(RW_F32);
}

Test(attention, options_give_the_same_bytes_with_any_threads_and_policy_bf16)
{
    check_bytes(RW_BF16);
}

Test(attention, options_pass_the_verifier)
{
    struct fixture b = fixture_open(7, 2);
    rw_tensor *in[INPUTS];
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    rw_tensor *const loss = loss_of_all(&b, RW_F32, in);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* ---- rows that attend to no key ---- */

/* Row 1 is masked completely. Second gradients pass through it, too. */
static void check_masked_row(bool again)
{
    struct fixture b = fixture_open(1, 1);
    double cut[4 * 5];
    for (int i = 0; i < 20; i++) cut[i] = i / 5 == 1 || i == 12 ? -INFINITY : 0;
    rw_tensor *const q = numbers(b.t, RW_F64, RW_SHAPE(1, 2, 4, 3), 1);
    rw_tensor *const k = numbers(b.t, RW_F64, RW_SHAPE(1, 2, 5, 3), 2);
    rw_tensor *const v = numbers(b.t, RW_F64, RW_SHAPE(1, 2, 5, 3), 3);
    rw_tensor *const mask = rw_require_grad(b.t, rw_input(b.t, RW_F64, RW_SHAPE(1, 1, 4, 5), cut, sizeof cut));
    rw_tensor *const y = rw_attention(b.t, q, k, v, &(rw_attention_params){ .mask = mask });
    rw_tensor *loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false), *g[4];
    rw_tensor *const of[] = { q, k, v, mask };
    if (again) {
        cr_assert_eq(rw_grad(b.t, loss, of, 4, g), RW_OK, "%s", rw_error_message(b.ctx));
        loss = rw_sum(b.t, rw_mul(b.t, g[0], g[0]), RW_ALL_AXES, false);
        for (int i = 1; i < 4; i++)
            loss = rw_add(b.t, loss, rw_sum(b.t, rw_mul(b.t, g[i], g[i]), RW_ALL_AXES, false));
    }
    rw_require_grad(b.t, y);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    double *const out = read_numbers(b.t, y);
    for (int i = 0; i < 24; i++) cr_expect(isfinite(out[i]) && (i / 3 % 4 != 1 || out[i] == 0), "%d: %g", i, out[i]);
    free(out);
    for (int x = 0; x < 4; x++) {
        double *const d = read_numbers(b.t, rw_gradient(of[x]));
        const int64_t n = rw_shape_numel(rw_tensor_shape(of[x]));
        for (int64_t i = 0; i < n; i++)
            cr_expect(isfinite(d[i]) && (x || i / 3 % 4 != 1 || d[i] == 0), "input %d, %lld: %g", x, (long long)i,
                      d[i]);
        free(d);
    }
    fixture_close(&b);
}

Test(attention, a_row_that_is_masked_whole_gives_zeros)
{
    check_masked_row(false);
    check_masked_row(true);
}

/* ---- documents ---- */

/* Custom frequencies that equal those of its base, rounded to float32, give nearly the same rope. */
Test(attention, a_rope_by_frequencies_of_its_own)
{
    struct fixture b = fixture_open(5, 1);
    enum { PLACES = 6, WIDTH = 8, ALL = 2 * PLACES * WIDTH };
    double own[ALL], other[ALL], far[ALL];
    float frequency[WIDTH / 2];
    for (int i = 0; i < WIDTH / 2; i++) frequency[i] = (float)pow(100, -2.0 * i / WIDTH);
    rw_tensor *const x = rw_randn(b.t, RW_F64, RW_SHAPE(1, 2, PLACES, WIDTH));
    rw_tensor *const f = rw_input(b.t, RW_F32, RW_SHAPE(WIDTH / 2), frequency, sizeof frequency);
    const rw_rope_params params = { .frequencies = f, .scale = 2 }, base = { .base = 100 };
    const int32_t late[PLACES] = { 7, 8, 9, 10, 11, 12 };
    rw_tensor *const positions = rw_input(b.t, RW_I32, RW_SHAPE(PLACES), late, sizeof late);
    cr_assert_eq(rw_read(b.t, rw_rope_with(b.t, x, RW_NONE, &params), own, sizeof own), RW_OK, "%s",
                 rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_rope(b.t, x, RW_NONE, 100), other, sizeof other), RW_OK);
    for (int i = 0; i < ALL; i++) cr_expect_float_eq(own[i], 2 * other[i], 1e-5, "%d: %g and %g", i, own[i], other[i]);
    cr_assert_eq(rw_read(b.t, rw_rope_with(b.t, x, positions, &base), own, sizeof own), RW_OK);
    cr_assert_eq(rw_read(b.t, rw_rope(b.t, x, positions, 100), far, sizeof far), RW_OK);
    cr_expect_arr_eq(own, far, sizeof far, "the same op");
    rw_tape *const t = b.t;
    rw_tensor *const odd = rw_input(t, RW_F32, RW_SHAPE(3), NULL, 0);
    rw_tensor *const flat = rw_reshape(t, x, RW_SHAPE(2, PLACES, WIDTH));
    const rw_rope_params wrong[] = { { .frequencies = odd }, { .scale = NAN }, { .base = -1 },
                                     { .frequencies = positions } };
    static const rw_status status[] = { RW_ERR_SHAPE, RW_ERR_ARGUMENT, RW_ERR_ARGUMENT, RW_ERR_DTYPE };
    for (int i = 0; i < 4; i++) {
        cr_expect_null(rw_rope_with(t, x, RW_NONE, &wrong[i]), "%d", i);
        cr_expect_eq(rw_error_status(b.ctx), status[i], "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    for (int given = 0; given < 2; given++) {
        cr_expect_null(rw_rope_with(t, x, NULL, given ? &params : &base));
        cr_expect(rw_error_status(b.ctx) == RW_ERR_ARGUMENT && strstr(rw_error_message(b.ctx), "rope_with at") &&
                  strstr(rw_error_message(b.ctx), "positions is NULL"), "%d: %s", given, rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    cr_expect_null(rw_rope_with(t, flat, RW_NONE, &params));
    cr_expect_eq(rw_error_status(b.ctx), RW_ERR_SHAPE, "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

Test(attention, documents_that_fall_or_leave_the_row_are_refused_when_they_are_read)
{
    static const int32_t wrong[][3] = { { 0, 5, 4 }, { -1, 2, 8 }, { 0, 3, 9 } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const q = numbers(b.t, RW_F32, RW_SHAPE(1, 1, 8, 4), 1);
        const rw_attention_params o = { .documents = rw_input(b.t, RW_I32, RW_SHAPE(3), wrong[i], sizeof wrong[i]) };
        rw_tensor *const y = rw_attention(b.t, q, q, q, &o);
        cr_expect_eq(rw_eval(b.t, &y, 1), RW_ERR_ARGUMENT, "%zu: %s", i, rw_error_message(b.ctx));
        cr_expect(strstr(rw_error_message(b.ctx), "attention"), "%s", rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* The position of a document in its row changes its tiles, and so its bits, but not its values. */
Test(attention, a_document_in_a_row_gives_what_it_gives_alone)
{
    struct fixture b = fixture_open(1, 1);
    const int32_t cuts[] = { 0, 40, 120 };
    rw_tensor *const q = numbers(b.t, RW_F64, RW_SHAPE(1, 2, 120, 8), 1);
    const rw_attention_params o = { .causal = true,
                                    .documents = rw_input(b.t, RW_I32, RW_SHAPE(3), cuts, sizeof cuts) };
    double *const packed = read_numbers(b.t, rw_contiguous(b.t, rw_attention(b.t, q, q, q, &o)));
    rw_tensor *const second = rw_slice(b.t, q, 2, 40, 120);
    const rw_attention_params params = { .causal = true };
    double *const alone = read_numbers(b.t, rw_contiguous(b.t, rw_attention(b.t, second, second, second, &params)));
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 80 * 8; i++)
            cr_assert_float_eq(packed[(h * 120 + 40) * 8 + i], alone[h * 80 * 8 + i], 1e-13);
    free(packed), free(alone);
    fixture_close(&b);
}

Test(attention, slopes_have_no_gradient)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = numbers(b.t, RW_F32, RW_SHAPE(1, 2, 3, 4), 1);
    rw_tensor *const slopes = numbers(b.t, RW_F32, RW_SHAPE(2), 2);
    const int recorded_at = __LINE__ + 1;
    rw_tensor *const y = rw_attention(b.t, q, q, q, &(rw_attention_params){ .slopes = slopes });
    cr_expect_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_ERR_NO_GRADIENT);
    cr_expect(strstr(rw_error_message(b.ctx), "slopes"), "%s", rw_error_message(b.ctx));
    char here[300];
    snprintf(here, sizeof here, "%s:%d:", __FILE__, recorded_at);
    cr_expect(strstr(rw_error_message(b.ctx), here), "%s, not %s", rw_error_message(b.ctx), here);
    fixture_close(&b);
}

/* After the last query's slopes, the weights of far keys are below the least normal number: they are 0, in forward and
   backward. */
Test(attention, probabilities_of_distant_keys_underflow_to_zero)
{
    if (!test_flushes()) cr_skip_test("subnormal numbers cost nothing here, and stay");
    enum { LONG = 500, D = 8 };
    static const float steep = 0.25f;
    struct fixture b = fixture_open(1, 3);
    rw_tensor *const x[] = { numbers(b.t, RW_F32, RW_SHAPE(1, 1, LONG, D), 1),
                             numbers(b.t, RW_F32, RW_SHAPE(1, 1, LONG, D), 2),
                             numbers(b.t, RW_F32, RW_SHAPE(1, 1, LONG, D), 3) };
    const rw_attention_params o = { .causal = true,
                                    .slopes = rw_input(b.t, RW_F32, RW_SHAPE(1), &steep, sizeof steep) };
    rw_tensor *const last = rw_slice(b.t, rw_attention(b.t, x[0], x[1], x[2], &o), 2, LONG - 1, LONG);
    rw_tensor *const loss = rw_scale(b.t, rw_sum(b.t, rw_mul(b.t, last, last), RW_ALL_AXES, false), 0x1p-10);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) {
        int64_t zeros = 0;
        double *const d = read_numbers(b.t, rw_gradient(x[i]));
        for (int64_t k = 0; k < LONG * D; k++) {
            zeros += d[k] == 0;
            cr_assert(d[k] == 0 || fabs(d[k]) >= 0x1p-126, "input %d, element %lld: %a", i, (long long)k, d[k]);
        }
        cr_assert(zeros > LONG / 5 * D && zeros < LONG * D, "input %d: %lld are 0", i, (long long)zeros);
        free(d);
    }
    fixture_close(&b);
}

/* ---- memory ---- */

Test(attention, options_take_no_matrix_of_scores)
{
    struct fixture b = fixture_open(1, 1);
    const int64_t seq = 2048;
    const int32_t cuts[] = { 0, 1000, 2048 };
    rw_prediction p;
    rw_tensor *const q = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1, 2, seq, 16), NULL, 0));
    rw_tensor *const sinks = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2), NULL, 0));
    rw_tensor *const keys = rw_input(b.t, RW_F32, RW_SHAPE(1, 1, 1, seq), NULL, 0);
    const rw_attention_params o = { .causal = true,
                                    .dropout = 0.1,
                                    .window = 100,
                                    .soft_cap = 5,
                                    .mask = keys,
                                    .sinks = sinks,
                                    .documents = rw_input(b.t, RW_I32, RW_SHAPE(3), cuts, sizeof cuts) };
    rw_tensor *const loss = rw_sum(b.t, rw_attention(b.t, q, q, q, &o), RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_lt(p.peak_bytes, (size_t)(seq * seq * 4) / 4, "%zu bytes", p.peak_bytes);
    fixture_close(&b);
}

/* ---- the halves of a ring ---- */

static float sum_through_a_window(int64_t window, bool causal)
{
    struct fixture b = fixture_open(7, 2);
    rw_tensor *const q = numbers(b.t, RW_F32, RW_SHAPE(1, 2, 20, 8), 1);
    rw_tensor *const k = numbers(b.t, RW_F32, RW_SHAPE(1, 2, 30, 8), 2);
    const rw_attention_params o = { .causal = causal, .window = window };
    float sum = 0;
    rw_tensor *const y = rw_attention(b.t, q, k, k, &o);
    cr_assert_eq(rw_read(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false), &sum, sizeof sum), RW_OK);
    fixture_close(&b);
    return sum;
}

Test(attention, a_window_without_end_sees_everything)
{
    for (int causal = 0; causal < 2; causal++) {
        const float all = sum_through_a_window(100, causal);
        cr_expect_eq(sum_through_a_window(INT64_MAX, causal), all);
        cr_expect_eq(sum_through_a_window(INT64_MAX - 25, causal), all);
        cr_expect_neq(sum_through_a_window(2, causal), all);
    }
}

Test(attention, two_halves_of_the_keys_merged_give_the_whole)
{
    struct fixture b = fixture_open(1, 2);
    rw_tape *const t = b.t;
    rw_tensor *const q = numbers(t, RW_F64, RW_SHAPE(2, 2, 9, 8), 1);
    rw_tensor *const k = numbers(t, RW_F64, RW_SHAPE(2, 2, 14, 8), 2);
    rw_tensor *const v = numbers(t, RW_F64, RW_SHAPE(2, 2, 14, 8), 3), *lse[2], *part[2], *of[] = { q, k, v };
    rw_tensor *const whole = rw_attention(t, q, k, v, NULL);
    for (int i = 0; i < 2; i++)
        part[i] = rw_attention_lse(t, q, rw_slice(t, k, 2, 6 * i, i ? 14 : 6), rw_slice(t, v, 2, 6 * i, i ? 14 : 6),
                                   NULL, &lse[i]);
    rw_tensor *const merged = rw_attention_merge(t, part[0], lse[0], part[1], lse[1], NULL), *g[2][3];
    double *const a = read_numbers(t, rw_contiguous(t, whole)), *const c = read_numbers(t, rw_contiguous(t, merged));
    for (int i = 0; i < 2 * 2 * 9 * 8; i++) cr_assert_float_eq(a[i], c[i], 1e-13);
    free(a), free(c);
    rw_tensor *const up = numbers(t, RW_F64, RW_SHAPE(2, 2, 9, 8), 4);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(rw_grad(t, rw_sum(t, rw_mul(t, i ? merged : whole, up), RW_ALL_AXES, false), of, 3, g[i]), RW_OK);
    for (int x = 0; x < 3; x++) {
        double *const one = read_numbers(t, rw_contiguous(t, g[0][x]));
        double *const two = read_numbers(t, rw_contiguous(t, g[1][x]));
        for (int64_t i = 0; i < rw_shape_numel(rw_tensor_shape(of[x])); i++) cr_assert_float_eq(one[i], two[i], 1e-12);
        free(one), free(two);
    }
    fixture_close(&b);
}

/* One half attends to no key, then both: its weight is 0, not 0 / 0. */
Test(attention, a_half_that_sees_nothing_weighs_nothing)
{
    struct fixture b = fixture_open(1, 1);
    const float inf = INFINITY, a_lse[] = { -inf, -inf }, b_lse[] = { 1, -inf };
    rw_tensor *const a = numbers(b.t, RW_F32, RW_SHAPE(2, 3), 1), *const c = numbers(b.t, RW_F32, RW_SHAPE(2, 3), 2);
    rw_tensor *const la = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2), a_lse, sizeof a_lse));
    rw_tensor *const lc = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2), b_lse, sizeof b_lse)), *lse, *g[4];
    rw_tensor *const y = rw_attention_merge(b.t, a, la, c, lc, &lse), *const of[] = { a, la, c, lc };
    double *const out = read_numbers(b.t, y), *const sums = read_numbers(b.t, lse), *const x = read_numbers(b.t, c);
    for (int i = 0; i < 6; i++) cr_expect_eq(out[i], i < 3 ? x[i] : 0);
    cr_expect(sums[0] == 1 && sums[1] == -INFINITY, "%g %g", sums[0], sums[1]);
    free(out), free(sums), free(x);
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false), of, 4, g), RW_OK);
    for (int i = 0; i < 4; i++) {
        double *const d = read_numbers(b.t, g[i]);
        const int64_t n = rw_shape_numel(rw_tensor_shape(of[i]));
        for (int64_t k = 0; k < n; k++) cr_expect(isfinite(d[k]), "%d: %g", i, d[k]);
        free(d);
    }
    fixture_close(&b);
}

enum { UNSEEN = 3 * 2, UNSEEN_WAYS = 3 };

/* The merged rows, and the gradients of both sets and their log-sum-exps, by rw_backward() and rw_grad(), and again of
   those. The first set sees no key in row 0, neither in row 1, the second not in row 2; rows there hold x. */
static void merge_unseen(rw_dtype dtype, double x, double *ret_y, double ret_g[UNSEEN_WAYS][4][UNSEEN])
{
    static const double a_lse[] = { -INFINITY, -INFINITY, 0.5 }, b_lse[] = { 0.25, -INFINITY, -INFINITY };
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    for (int way = 0; way < 2; way++) {
        struct fixture b = fixture_open(1, 1);
        double data[4][UNSEEN];
        rw_tensor *in[4], *g[4], *again[4];
        for (int i = 0; i < 4; i++) {
            const rw_dtype type = i % 2 ? wide : dtype;
            const rw_shape s = i % 2 ? RW_SHAPE(3) : RW_SHAPE(3, 2);
            for (int k = 0; k < rw_shape_numel(s); k++) {
                const double own = i % 2 ? (i == 1 ? a_lse : b_lse)[k] : isinf((i ? b_lse : a_lse)[k / 2]) ? x : k - 2;
                number_put(data[i], type, k, own); /* false for NaN */
            }
            in[i] = rw_require_grad(b.t, rw_input(b.t, type, s, data[i],
                                                  (size_t)rw_shape_numel(s) * rw_dtype_size(type)));
        }
        rw_tensor *const y = rw_attention_merge(b.t, in[0], in[1], in[2], in[3], NULL);
        rw_tensor *const loss = rw_sum_all(b.t, rw_mul(b.t, y, y));
        if (way) {
            cr_assert_eq(rw_grad(b.t, loss, in, 4, g), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tensor *sum = NULL;
            for (int i = 0; i < 4; i++) {
                rw_tensor *const squares = rw_cast(b.t, rw_sum_all(b.t, rw_mul(b.t, g[i], g[i])), wide);
                sum = sum ? rw_add(b.t, sum, squares) : squares;
            }
            cr_assert_eq(rw_grad(b.t, sum, in, 4, again), RW_OK, "%s", rw_error_message(b.ctx));
        } else {
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
            double *const out = read_numbers(b.t, y);
            memcpy(ret_y, out, UNSEEN * sizeof *out);
            free(out);
        }
        for (int k = 0; k < (way ? 8 : 4); k++) {
            rw_tensor *const d = !way ? rw_gradient(in[k]) : k < 4 ? g[k] : again[k - 4];
            double *const numbers = read_numbers(b.t, d);
            memcpy(ret_g[way + k / 4][k % 4], numbers, (k % 2 ? 3 : UNSEEN) * sizeof *numbers);
            free(numbers);
        }
        fixture_close(&b);
    }
}

/* 0 times NaN is NaN: rows without a key are not read. */
Test(attention, a_half_that_sees_nothing_may_hold_nan)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16 };
    static const double fills[] = { NAN, INFINITY };
    for (int i = 0; i < 6; i++) {
        double want_y[UNSEEN], y[UNSEEN], want[UNSEEN_WAYS][4][UNSEEN] = { 0 }, g[UNSEEN_WAYS][4][UNSEEN] = { 0 };
        merge_unseen(types[i / 2], 0.5, want_y, want);
        merge_unseen(types[i / 2], fills[i % 2], y, g);
        for (int k = 0; k < UNSEEN; k++) cr_expect(y[k] == want_y[k] && (k / 2 != 1 || y[k] == 0), "%d: %g", k, y[k]);
        for (int k = 0; k < UNSEEN_WAYS * 4 * UNSEEN; k++)
            cr_expect_eq((&g[0][0][0])[k], (&want[0][0][0])[k], "%s, fill %g, gradient %d of %d: %g, not %g",
                         rw_dtype_name(types[i / 2]), fills[i % 2], k / UNSEEN % 4, k / UNSEEN / 4, (&g[0][0][0])[k],
                         (&want[0][0][0])[k]);
    }
}

/* ---- zero extents ---- */

Test(attention, heads_without_width_take_the_mean_of_what_they_see)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = rw_input(b.t, RW_F64, RW_SHAPE(1, 1, 3, 0), NULL, 0);
    rw_tensor *const k = rw_input(b.t, RW_F64, RW_SHAPE(1, 1, 4, 0), NULL, 0);
    rw_tensor *const v = numbers(b.t, RW_F64, RW_SHAPE(1, 1, 4, 2), 3), *const y = rw_attention(b.t, q, k, v, NULL);
    rw_require_grad(b.t, y);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    double *const out = read_numbers(b.t, y), *const g = read_numbers(b.t, rw_gradient(v));
    for (int i = 0; i < 6; i++) {
        double mean = 0;
        for (int key = 0; key < 4; key++) mean += number(key * 2 + i % 2, 3) / 4;
        cr_expect_float_eq(out[i], mean, 1e-15);
    }
    for (int i = 0; i < 8; i++) cr_expect_float_eq(g[i], 0.75, 1e-15);
    free(out), free(g);
    fixture_close(&b);
}

Test(attention, without_keys_a_sink_takes_all)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = numbers(b.t, RW_F32, RW_SHAPE(1, 2, 3, 4), 1);
    rw_tensor *const k = rw_input(b.t, RW_F32, RW_SHAPE(1, 2, 0, 4), NULL, 0);
    rw_tensor *const sinks = numbers(b.t, RW_F32, RW_SHAPE(2), 2), *lse;
    rw_tensor *const y = rw_attention_lse(b.t, q, k, k, &(rw_attention_params){ .sinks = sinks }, &lse);
    rw_require_grad(b.t, y), rw_require_grad(b.t, lse);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, lse, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    double *const out = read_numbers(b.t, y), *const sums = read_numbers(b.t, lse);
    double *const g = read_numbers(b.t, rw_gradient(sinks));
    for (int i = 0; i < 24; i++) cr_expect_eq(out[i], 0);
    for (int i = 0; i < 6; i++) cr_expect_float_eq(sums[i], number(i / 3, 2), 1e-6);
    for (int i = 0; i < 2; i++) cr_expect_float_eq(g[i], 3, 1e-6);
    free(out), free(sums), free(g);
    fixture_close(&b);
}
