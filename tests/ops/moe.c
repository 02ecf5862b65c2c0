/*
 * Mixtures of experts, beyond the table of cases: rows that do not depend on other rows of the batch, experts without
 * rows, products of the library. moe_routing.c tests the routing.
 */
#include "ops/moe_test_data.h"
#include "support/cases/moe.h"

#include <math.h>
#include <string.h>

/* ---- a layer ---- */

#define WIDTH 24
#define INNER 17

struct layer {
    rw_tensor *x[4], *y;
};

static bool drops; /* the layer's experts have a limited capacity */

static struct layer layer_of(rw_tape *t, rw_dtype dtype, int64_t tokens, int64_t from)
{
    struct layer l = { { numbers(t, dtype, RW_SHAPE(tokens, WIDTH), 1, from * WIDTH),
                         numbers(t, dtype, RW_SHAPE(LAYER_EXPERTS, WIDTH), 2, 0),
                         numbers(t, dtype, RW_SHAPE(LAYER_EXPERTS, 2 * INNER, WIDTH), 3, 0),
                         numbers(t, dtype, RW_SHAPE(LAYER_EXPERTS, WIDTH, INNER), 4, 0) }, NULL };
    const struct op_case c = { .axis = RW_MOE_SIGMOID, .keep = true, .causal = drops, .ignoring = true };
    l.y = op_build_moe_layer(t, l.x, &c);
    cr_assert(l.y, "%s", rw_error_message(rw_tape_context(t)));
    return l;
}

/* So small that a CPU uses its own loops, one chain per element whatever the rows: a token's result does not depend on
   the number of tokens, either. */
Test(moe, a_tokens_result_does_not_depend_on_the_other_tokens)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    const int64_t tokens = 41;
    for (size_t d = 0; d < 4; d++) {
        struct fixture b = fixture_open(1, 3);
        const size_t row = WIDTH * rw_dtype_size(types[d]);
        const struct layer all = layer_of(b.t, types[d], tokens, 0);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, all.y, all.y), RW_ALL_AXES, false)), RW_OK);
        unsigned char *const y = bytes_of(b.t, all.y), *const dx = bytes_of(b.t, rw_gradient(all.x[0]));
        rw_tape_reset(b.t);
        for (int64_t n = 0; n < tokens; n += 5)
            for (int64_t others = 0; others < tokens; others += tokens - 1) {
                if (!others && test_device() != RW_DEVICE_CPU) continue; /* one row: another library product */
                const struct layer one = layer_of(b.t, types[d], 1 + others, n);
                cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, one.y, one.y), RW_ALL_AXES, false)), RW_OK);
                unsigned char *const own = bytes_of(b.t, one.y), *const g = bytes_of(b.t, rw_gradient(one.x[0]));
                cr_expect_eq(first_difference(own, y + (size_t)n * row, row), -1, "%s, token %lld",
                             rw_dtype_name(types[d]), (long long)n);
                cr_expect_eq(first_difference(g, dx + (size_t)n * row, row), -1, "%s, gradient of token %lld",
                             rw_dtype_name(types[d]), (long long)n);
                free(own), free(g);
                rw_tape_reset(b.t);
            }
        free(y), free(dx);
        fixture_close(&b);
    }
}

/* ---- a layer of full size, of the library's products ---- */

enum { FULL = 1024, FULL_EXPERTS = 256, FULL_CHOSEN = 8, FULL_INNER = 16 };

/* The other tokens: distinct, the same in another order, or copies of the one token. In the last case its experts have
   as many rows as there are tokens, and their products are split differently. */
enum company { OTHERS, REVERSED, COPIES, COMPANIES };

struct weights {
    rw_tensor *router, *up, *down;
};

static rw_tensor *normal(rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape, double deviation)
{
    rw_tensor *const p = rw_buffer(ctx, name, dtype, shape);
    cr_assert_eq(rw_init_normal(p, 0, deviation), RW_OK, "%s", rw_error_message(ctx));
    return p;
}

static rw_tensor *full_layer(rw_tape *t, const struct weights *w, rw_tensor *x)
{
    const rw_dtype dtype = rw_tensor_dtype(x);
    const rw_moe_router_params p = { .choice = { .k = FULL_CHOSEN }, .score = RW_MOE_SIGMOID, .normalize = true };
    rw_moe_routes r;
    rw_tensor *index = NULL;
    rw_tensor *const logits = rw_linear(t, dtype == RW_F64 ? x : rw_cast(t, x, RW_F32), w->router, RW_NONE);
    rw_tensor *const weights = rw_moe_router(t, logits, &p, &index, NULL);
    cr_assert_eq(rw_moe_route(t, index, FULL_EXPERTS, &r), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    rw_tensor *const h = rw_moe_weigh(t, rw_silu(t, rw_moe_linear_of_tokens(t, x, w->up, &r)), weights, &r);
    return rw_moe_combine(t, rw_moe_linear(t, h, w->down, &r), &r);
}

/* The result and the gradient of the first token, which is the last if they are reversed. */
static unsigned char *full_token(rw_tape *t, const struct weights *w, rw_dtype dtype, int64_t tokens,
                                 enum company company)
{
    const size_t row = FULL * rw_dtype_size(dtype), n = (size_t)tokens;
    char *const data = malloc(n * row), *const all = malloc(n * row);
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t to = company == REVERSED ? tokens - 1 - i : i, from = company == COPIES ? 0 : i;
        for (int64_t c = 0; c < FULL; c++) number_put(data, dtype, to * FULL + c, number(from * FULL + c, 5) * 2);
    }
    rw_tensor *const x = rw_require_grad(
        t, rw_input(t, dtype, RW_SHAPE(tokens, FULL), data, (size_t)(tokens * FULL) * rw_dtype_size(dtype)));
    rw_tensor *const y = full_layer(t, w, x);
    cr_assert_eq(rw_backward(t, rw_sum(t, rw_mul(t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(rw_tape_context(t)));
    unsigned char *const both = malloc(2 * row);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rw_read(t, i ? rw_gradient(x) : y, all, n * row), RW_OK);
        memcpy(both + (size_t)i * row, all + (company == REVERSED ? n - 1 : 0) * row, row);
    }
    free(data), free(all);
    rw_tape_reset(t);
    return both;
}

/* A token's output must have the same bytes whichever other tokens are in the batch. */
static void expect_a_token_of_its_own(void)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16 };
    const bool all = test_device() == RW_DEVICE_CPU || getenv("REWIND_TEST_LARGE"); /* the simulator is slow */
    for (size_t d = 0; d < (all ? 2 : 1); d++) {
        struct fixture b = fixture_open(7, 2);
        const struct weights w = {
            normal(b.ctx, "router", RW_F32, RW_SHAPE(FULL_EXPERTS, FULL), 0.1),
            normal(b.ctx, "up", types[d], RW_SHAPE(FULL_EXPERTS, FULL_INNER, FULL), 0.05),
            normal(b.ctx, "down", types[d], RW_SHAPE(FULL_EXPERTS, FULL, FULL_INNER), 0.25),
        };
        for (int64_t tokens = all ? 37 : 5; tokens < (all ? 150 : 6); tokens += 84) {
            unsigned char *const first = full_token(b.t, &w, types[d], tokens, OTHERS);
            for (int c = REVERSED; c < COMPANIES; c++) {
                unsigned char *const again = full_token(b.t, &w, types[d], tokens, (enum company)c);
                cr_expect_eq(first_difference(first, again, 2 * FULL * rw_dtype_size(types[d])), -1,
                             "%s, %lld tokens, company %d", rw_dtype_name(types[d]), (long long)tokens, c);
                free(again);
            }
            free(first);
        }
        fixture_close(&b);
    }
}

Test(moe, a_token_of_a_full_layer_has_the_same_bits_beside_any_others)
{
    expect_a_token_of_its_own();
}

Test(moe, a_token_of_a_full_layer_has_the_same_bits_by_code_for_older_processors)
{
    BY_CODE_FOR_AVX2();
    expect_a_token_of_its_own();
}

/* All gradients of a layer of experts, with so many threads and a policy. */
static unsigned char *gradients(int threads, const char *policy, rw_dtype dtype, size_t *ret_bytes)
{
    struct fixture b = fixture_open(5, threads);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    ckpt_begin(b.t, "moe");
    const struct layer l = layer_of(b.t, dtype, 130, 0);
    rw_tensor *const y = rw_dropout(b.t, l.y, 0.25);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    unsigned char *all = NULL;
    *ret_bytes = 0;
    for (int i = 0; i < 4; i++) {
        const size_t n = rw_tensor_bytes(rw_gradient(l.x[i]));
        all = realloc(all, *ret_bytes + n);
        cr_assert_eq(rw_read(b.t, rw_gradient(l.x[i]), all + *ret_bytes, n), RW_OK);
        *ret_bytes += n;
    }
    fixture_close(&b);
    return all;
}

Test(moe, the_same_bytes_with_any_threads_and_policy)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16 };
    for (size_t d = 0; d < 2; d++) {
        size_t n, m;
        drops = d == 0;
        unsigned char *const first = gradients(1, "none", types[d], &n);
        for (int run = 2; run < 8; run++) {
            const char *const policy = run == 6 ? "full" : run == 7 ? "selective:moe" : "none";
            unsigned char *const again = gradients(run < 6 ? run : run - 4, policy, types[d], &m);
            cr_expect_eq(first_difference(first, again, n), -1, "%s, %s, run %d", rw_dtype_name(types[d]), policy, run);
            free(again);
        }
        free(first);
    }
}

/* A token dropped for capacity has neither a result nor a gradient. */
Test(moe, a_dropped_token_gives_nothing_and_gets_nothing)
{
    struct fixture b = fixture_open(1, 2);
    static const int32_t index[] = { 1, 0, 1, 2, 1, 0 };
    rw_tensor *const x = numbers(b.t, RW_F32, RW_SHAPE(3, 8), 1, 0), *const w = numbers(b.t, RW_F32, RW_SHAPE(3, 70, 8),
                                                                                        2, 0);
    rw_tensor *const back = numbers(b.t, RW_F32, RW_SHAPE(3, 8, 70), 3, 0), *const i = rw_input(b.t, RW_I32,
                                                                                                RW_SHAPE(3, 2), index,
                                                                                                sizeof index);
    rw_moe_routes r;
    cr_assert_eq(rw_moe_route(b.t, i, 3, &r), RW_OK);
    cr_assert_eq(rw_moe_route(b.t, rw_moe_drop(b.t, i, RW_NONE, &r, 1), 3, &r), RW_OK);
    rw_tensor *const rows = rw_gelu(b.t, rw_moe_linear_of_tokens(b.t, x, w, &r));
    rw_tensor *const y = rw_moe_combine(b.t, rw_moe_linear(b.t, rows, back, &r), &r);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    float *const out = bytes_of(b.t, y), *const dx = bytes_of(b.t, rw_gradient(x));
    for (int c = 0; c < 8; c++) {
        cr_expect(out[c] != 0 && out[8 + c] != 0 && dx[c] != 0 && dx[8 + c] != 0, "%d", c);
        cr_expect(out[16 + c] == 0 && dx[16 + c] == 0, "%d: %g, %g", c, (double)out[16 + c], (double)dx[16 + c]);
    }
    free(out), free(dx);
    fixture_close(&b);
}

/* With one token, most experts have no rows. The verifier would find parts of their gradients, or of dropped rows, that
   are left unwritten. */
Test(moe, a_layer_passes_the_verifier)
{
    for (int64_t tokens = 1; tokens < 80; tokens += 39) {
        drops = tokens > 40;
        struct fixture b = fixture_open(5, 2);
        cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
        ckpt_begin(b.t, "moe");
        const struct layer l = layer_of(b.t, RW_F32, tokens, 0);
        ckpt_end(b.t);
        cr_assert_eq(ckpt_verify(b.t, rw_sum(b.t, rw_mul(b.t, l.y, l.y), RW_ALL_AXES, false), NULL), RW_OK, "%s",
                     rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* Expert 2 of 3 has no rows. Its gradient is zeros, then the gradient left by an earlier micro-batch. */
Test(moe, an_expert_without_rows_has_a_gradient_of_zeros)
{
    struct fixture b = fixture_open(1, 2);
    static const int32_t first[] = { 0, 1, 1, 0 }, second[] = { 2, 0, 0, 1 };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3, 5, 4));
    cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
    float *before = NULL;
    for (int micro = 0; micro < 2; micro++) {
        rw_moe_routes r;
        rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(2, 2), micro ? second : first, 4 * sizeof(int32_t)), 3, &r);
        rw_tensor *const x = numbers(b.t, RW_F32, RW_SHAPE(2, 4), 3, micro * 50);
        rw_tensor *const y = rw_moe_linear_of_tokens(b.t, x, w, &r);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        float *const g = bytes_of(b.t, rw_gradient(w));
        for (int i = 0; i < 60; i++) {
            /* the sum of the outputs: each row of an expert's gradient is the sum of its tokens */
            double want = before ? (double)before[i] : 0;
            for (int s = 0; s < 4; s++)
                if ((micro ? second : first)[s] == i / 20) want += number(micro * 50 + s / 2 * 4 + i % 4, 3);
            cr_expect_float_eq((double)g[i], want, 1e-6, "micro-batch %d, %d: %g, not %g", micro, i, (double)g[i],
                               want);
            if (!micro && i >= 40) cr_expect_eq(g[i], 0);
        }
        free(before);
        before = g;
        rw_tape_reset(b.t);
    }
    free(before);
    fixture_close(&b);
}

/* ---- experts large enough for the library's products ---- */

enum { WIDE_IN = 80, WIDE_EXPERTS = 3, ROWS_MAX = 600 };

/* The simulated device has no such products: there, the second of two tiles and the last part of a product's depth are
   partial. */
static int full_or_simulated(int full, int simulated)
{
    return test_device() == RW_DEVICE_CPU || getenv("REWIND_TEST_LARGE") ? full : simulated;
}

static int wide_rows(void)
{
    return full_or_simulated(ROWS_MAX, 150);
}

static int wide_out(void)
{
    return full_or_simulated(400, 72);
}

struct products {
    unsigned char *y, *dx, *dw; /* [rows, wide_out()], [tokens, WIDE_IN], [WIDE_EXPERTS, wide_out(), WIDE_IN] */
    size_t of_dw;
};

/* n tokens with one row each, of expert 1, except every `else_every`th, which is of expert 0. */
static struct products multiply(rw_dtype dtype, int n, int else_every, bool gathers, int threads)
{
    struct fixture b = fixture_open(1, threads);
    struct products p;
    int32_t index[ROWS_MAX];
    rw_moe_routes r;
    for (int i = 0; i < n; i++) index[i] = else_every && i % else_every == else_every - 1 ? 0 : 1;
    rw_tensor *const x = numbers(b.t, dtype, RW_SHAPE(n, WIDE_IN), 1, 0);
    rw_tensor *const w = numbers(b.t, dtype, RW_SHAPE(WIDE_EXPERTS, wide_out(), WIDE_IN), 2, 0);
    cr_assert_eq(
        rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(n, 1), index, (size_t)n * sizeof *index), WIDE_EXPERTS, &r),
        RW_OK);
    rw_tensor *const rows = gathers ? rw_moe_linear_of_tokens(b.t, x, w, &r)
                                    : rw_moe_linear(b.t, x, w, &r);
    rw_tensor *const y = rw_moe_combine(b.t, rows, &r);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    p.y = bytes_of(b.t, y), p.dx = bytes_of(b.t, rw_gradient(x)), p.dw = bytes_of(b.t, rw_gradient(w));
    p.of_dw = rw_tensor_bytes(w);
    fixture_close(&b);
    return p;
}

static void products_free(struct products *p)
{
    free(p->y), free(p->dx), free(p->dw);
}

/* Numbers of rows in each split: none, one of each size, several, and remainders. */
static void expect_same_bits_in_any_number_of_rows(void)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    static const int counts[] = { 1, 31, 32, 33, 64, 65, 128, 150, 193, 256, 300, 385, 512, 513, 577 };
    for (int t = 0; t < 4; t++) {
        struct products all = multiply(types[t], wide_rows(), 0, true, 2);
        const size_t size = rw_dtype_size(types[t]);
        for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i] < wide_rows(); i++) {
            const size_t n = (size_t)counts[i];
            struct products some = multiply(types[t], counts[i], 0, true, 2);
            cr_expect_eq(first_difference(some.y, all.y, n * (size_t)wide_out() * size), -1, "%s, %d rows",
                         rw_dtype_name(types[t]), counts[i]);
            cr_expect_eq(first_difference(some.dx, all.dx, n * WIDE_IN * size), -1, "%s, dx of %d rows",
                         rw_dtype_name(types[t]), counts[i]);
            products_free(&some);
        }
        products_free(&all);
    }
}

Test(moe, a_row_has_the_same_bits_in_any_number_of_rows)
{
    expect_same_bits_in_any_number_of_rows();
}

Test(moe, a_row_has_the_same_bits_by_code_for_older_processors)
{
    BY_CODE_FOR_AVX2();
    expect_same_bits_in_any_number_of_rows();
}

/* The reference is the library's own loops in float64. */
Test(moe, the_library_s_products_are_those_of_float64)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16 };
    for (int i = 0; i < 2 * 3 * 3; i++) {
        const bool gathers = i % 2;
        const int every = (int[]){ 0, 2, 7 }[i / 2 % 3];
        const rw_dtype dtype = types[i / 6];
        struct products want = multiply(RW_F64, wide_rows(), every, gathers, 1);
        struct products one = multiply(dtype, wide_rows(), every, gathers, 1);
        struct products many = multiply(dtype, wide_rows(), every, gathers, 4);
        const size_t numel = want.of_dw / sizeof(double);
        /* y is rounded, then 600 of it are summed. */
        const double unit = dtype == RW_BF16 ? 0x1p-6 : dtype == RW_F16 ? 0x1p-9 : 0x1p-16;
        double most = 0;
        for (size_t k = 0; k < numel; k++) most = fmax(most, fabs(((double *)(void *)want.dw)[k]));
        for (size_t k = 0; k < numel; k++) {
            const double dw = ((double *)(void *)want.dw)[k], got = number_get(one.dw, dtype, (int64_t)k);
            cr_assert_float_eq(got, dw, unit * most, "%s: dw %zu: %g, not %g", rw_dtype_name(dtype), k, got, dw);
        }
        for (size_t k = 0; k < (size_t)wide_rows() * (size_t)wide_out(); k++) {
            const double y = ((double *)(void *)want.y)[k], got = number_get(one.y, dtype, (int64_t)k);
            cr_assert_float_eq(got, y, unit * (fabs(y) + 1), "%s: y %zu: %g, not %g", rw_dtype_name(dtype), k, got, y);
        }
        cr_expect_eq(first_difference(one.dw, many.dw, one.of_dw), -1, "%s: 4 threads", rw_dtype_name(dtype));
        const size_t of_y = (size_t)wide_rows() * (size_t)wide_out() * rw_dtype_size(dtype);
        cr_expect_eq(first_difference(one.y, many.y, of_y), -1);
        products_free(&want), products_free(&one), products_free(&many);
    }
}

/* ---- gradients of rows that are read from their tokens instead of being gathered ---- */

struct gradients {
    unsigned char *dx, *dw, *ddx, *ddw; /* the last two in float64, of the sum of the first two's squares */
};

/* k slots per token. `others`: rows are combined by routes other than those of the product. With `lie` the rows are in
   memory, because their signs are changed twice. */
static struct gradients through_rows(rw_dtype dtype, int k, bool gathers, bool others, bool lie)
{
    enum { TOKENS = 90 };
    struct fixture b = fixture_open(1, 2);
    int32_t index[2][TOKENS * 2];
    rw_moe_routes r[2];
    struct gradients ret;
    for (int i = 0; i < TOKENS * k; i++) index[0][i] = (i * 7 + i / 5) % 3, index[1][i] = (i * 5 + i / 3) % 3;
    for (int i = 0; i < 2; i++)
        cr_assert_eq(
            rw_moe_route(b.t,
                         rw_input(b.t, RW_I32, RW_SHAPE(TOKENS, k), index[i], (size_t)(TOKENS * k) * sizeof *index[i]),
                         WIDE_EXPERTS, &r[i]),
            RW_OK);
    rw_tensor *const x = numbers(b.t, dtype, RW_SHAPE(gathers ? TOKENS : TOKENS * k, WIDE_IN), 1, 0);
    rw_tensor *const w = numbers(b.t, dtype, RW_SHAPE(WIDE_EXPERTS, wide_out(), WIDE_IN), 2, 0);
    rw_tensor *rows = gathers ? rw_moe_linear_of_tokens(b.t, x, w, &r[0]) : rw_moe_linear(b.t, x, w, &r[0]);
    if (lie) rows = rw_neg(b.t, rw_neg(b.t, rows));
    rw_tensor *const y = rw_moe_combine(b.t, rows, &r[others]);
    rw_tensor *const both[] = { x, w };
    rw_tensor *grads[2], *again[2];
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false), both, 2, grads), RW_OK, "%s",
                 rw_error_message(b.ctx));
    ret = (struct gradients){ bytes_of(b.t, grads[0]), bytes_of(b.t, grads[1]), NULL, NULL };
    if (dtype != RW_F64) {
        fixture_close(&b);
        return ret;
    }
    rw_tensor *const squares = rw_add(b.t, rw_sum(b.t, rw_mul(b.t, grads[0], grads[0]), RW_ALL_AXES, false),
                                      rw_sum(b.t, rw_mul(b.t, grads[1], grads[1]), RW_ALL_AXES, false));
    cr_assert_eq(rw_grad(b.t, squares, both, 2, again), RW_OK, "%s", rw_error_message(b.ctx));
    ret.ddx = bytes_of(b.t, again[0]), ret.ddw = bytes_of(b.t, again[1]);
    fixture_close(&b);
    return ret;
}

static void expect_near(const void *got, const void *want, size_t n, const char *what)
{
    const double *const a = got, *const b = want;
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fmax(most, fabs(b[i]));
    for (size_t i = 0; i < n; i++)
        cr_assert_float_eq(a[i], b[i], 1e-12 * most, "%s %zu: %g, not %g", what, i, a[i], b[i]);
}

Test(moe, gradients_of_rows_are_read_where_they_come_from)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16 };
    for (int i = 0; i < 3 * 8; i++) {
        const rw_dtype dtype = types[i / 8];
        const int k = 1 + i % 2, tokens = 90;
        const bool gathers = i / 2 % 2, others = i / 4 % 2;
        struct gradients read = through_rows(dtype, k, gathers, others, false);
        struct gradients lie = through_rows(dtype, k, gathers, others, true);
        const size_t n = (size_t)(gathers ? tokens : tokens * k) * WIDE_IN;
        const size_t w = (size_t)(WIDE_EXPERTS * wide_out() * WIDE_IN);
        cr_expect_eq(first_difference(read.dx, lie.dx, n * rw_dtype_size(dtype)), -1, "dx, case %d", i);
        cr_expect_eq(first_difference(read.dw, lie.dw, w * rw_dtype_size(dtype)), -1, "dw, case %d", i);
        if (dtype == RW_F64) { /* sums over tokens are added in another order */
            expect_near(read.ddx, lie.ddx, n, "ddx");
            expect_near(read.ddw, lie.ddw, w, "ddw");
        }
        free(read.dx), free(read.dw), free(read.ddx), free(read.ddw);
        free(lie.dx), free(lie.dw), free(lie.ddx), free(lie.ddw);
    }
}

/* ---- a gradient in one pass, if it is not differentiated again ---- */

/* Bytes of the gradients of rows [90, n] and of weights, by rw_backward() or, of two ops, rw_grad(). */
static void weighed(rw_dtype dtype, int64_t n, bool again, unsigned char **ret_dx, unsigned char **ret_dw)
{
    enum { TOKENS = 45, EACH = 2 };
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    struct fixture b = fixture_open(1, 3);
    int32_t index[TOKENS * EACH];
    rw_moe_routes r;
    for (int i = 0; i < TOKENS * EACH; i++) index[i] = i % 11 == 5 ? RW_MOE_DROPPED : (i * 7 + i / 5) % 4;
    cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS, EACH), index, sizeof index), 4, &r), RW_OK);
    rw_tensor *const x = numbers(b.t, dtype, RW_SHAPE(TOKENS * EACH, n), 3, 0);
    rw_tensor *const w = numbers(b.t, wide, RW_SHAPE(TOKENS, EACH), 4, 0);
    rw_tensor *const y = rw_moe_weigh(b.t, x, w, &r);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
    rw_tensor *const both[] = { x, w };
    rw_tensor *grads[2];
    cr_assert_eq(again ? rw_grad(b.t, loss, both, 2, grads) : rw_backward(b.t, loss), RW_OK, "%s",
                 rw_error_message(b.ctx));
    *ret_dx = bytes_of(b.t, again ? grads[0] : rw_gradient(x));
    *ret_dw = bytes_of(b.t, again ? grads[1] : rw_gradient(w));
    fixture_close(&b);
}

Test(moe, rows_are_weighed_and_multiplied_in_one_pass)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    static const int64_t widths[] = { 1, 15, 16, 64, 77, 300 };
    for (int i = 0; i < 4 * 6; i++) {
        const rw_dtype dtype = types[i / 6];
        const int64_t n = widths[i % 6];
        const size_t weights = 90 * (dtype == RW_F64 ? sizeof(double) : sizeof(float));
        unsigned char *dx[2], *dw[2];
        for (int k = 0; k < 2; k++) weighed(dtype, n, k, &dx[k], &dw[k]);
        cr_expect_eq(first_difference(dx[0], dx[1], 90 * (size_t)n * rw_dtype_size(dtype)), -1, "%s, dx of %d columns",
                     rw_dtype_name(dtype), (int)n);
        cr_expect_eq(first_difference(dw[0], dw[1], weights), -1, "%s, dw of %d columns", rw_dtype_name(dtype), (int)n);
        for (int k = 0; k < 2; k++) free(dx[k]), free(dw[k]);
    }
}

/* ---- the activation between two products, in one pass ---- */

enum { ACT_TOKENS = 45, ACT_EACH = 2, ACT_ROWS = ACT_TOKENS * ACT_EACH };

/* Bytes of the result, the gradients of gate, of up if it exists, and of the weights; in one pass or in two. */
struct activated {
    unsigned char *part[4];
};

/* Runs the activation in one pass or in two. */
static struct activated activated(rw_dtype dtype, int64_t n, bool gated, bool at_once, int threads)
{
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    struct fixture b = fixture_open(threads, 3);
    int32_t index[ACT_ROWS];
    rw_moe_routes r;
    for (int i = 0; i < ACT_ROWS; i++) index[i] = i % 11 == 5 ? RW_MOE_DROPPED : (i * 7 + i / 5) % 4;
    cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(ACT_TOKENS, ACT_EACH), index, sizeof index), 4, &r),
                 RW_OK);
    rw_tensor *const x = numbers(b.t, dtype, RW_SHAPE(ACT_ROWS, 2 * n + 1), 3, 0);
    rw_tensor *const w = numbers(b.t, wide, RW_SHAPE(ACT_TOKENS, ACT_EACH), 4, 0);
    rw_tensor *const gate = rw_slice(b.t, x, -1, 0, n), *const up = rw_slice(b.t, x, -1, n + 1, 2 * n + 1);
    rw_tensor *const y = at_once ? gated ? rw_moe_swiglu_weigh(b.t, gate, up, w, &r)
                                         : rw_moe_silu_weigh(b.t, gate, w, &r)
                                 : rw_moe_weigh(b.t, gated ? rw_swiglu(b.t, gate, up) : rw_silu(b.t, gate), w, &r);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    const struct activated a = { { bytes_of(b.t, y), bytes_of(b.t, rw_gradient(x)), bytes_of(b.t, rw_gradient(w)) } };
    fixture_close(&b);
    return a;
}

Test(moe, activation_and_weight_in_one_pass_have_the_bytes_of_two)
{
    static const rw_dtype types[] = { RW_F64, RW_F32 };
    static const int64_t widths[] = { 1, 15, 16, 64, 77, 300 };
    for (int i = 0; i < 2 * 6 * 2; i++) {
        const rw_dtype dtype = types[i % 2];
        const int64_t n = widths[i / 4];
        const bool gated = i / 2 % 2;
        const size_t size = rw_dtype_size(dtype), bytes[] = { ACT_ROWS * (size_t)n * size,
                                                              ACT_ROWS * (size_t)(2 * n + 1) * size, ACT_ROWS * size };
        struct activated one = activated(dtype, n, gated, true, 1 + i % 3);
        struct activated two = activated(dtype, n, gated, false, 1);
        for (int k = 0; k < 3; k++) {
            cr_expect_eq(first_difference(one.part[k], two.part[k], bytes[k]), -1, "%s, %d columns, part %d of %s",
                         rw_dtype_name(dtype), (int)n, k, gated ? "swiglu" : "silu");
            free(one.part[k]), free(two.part[k]);
        }
    }
}

/* Kept are the activation's inputs, the weights and the routes; the activation only if it is a value of the tape. */
Test(moe, an_activation_in_one_pass_is_not_kept)
{
    size_t kept[2];
    for (int at_once = 0; at_once < 2; at_once++) {
        struct fixture b = fixture_open(1, 3);
        int32_t index[ACT_ROWS];
        rw_moe_routes r;
        for (int i = 0; i < ACT_ROWS; i++) index[i] = i % 4;
        cr_assert_eq(
            rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(ACT_TOKENS, ACT_EACH), index, sizeof index), 4, &r),
            RW_OK);
        rw_tensor *const x = rw_scale(b.t, numbers(b.t, RW_F32, RW_SHAPE(ACT_ROWS, 1024), 3, 0), 2);
        rw_tensor *const w = numbers(b.t, RW_F32, RW_SHAPE(ACT_TOKENS, ACT_EACH), 4, 0);
        rw_tensor *const y = at_once ? rw_moe_silu_weigh(b.t, x, w, &r) : rw_moe_weigh(b.t, rw_silu(b.t, x), w, &r);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        rw_memory m;
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        kept[at_once] = m.kept;
        fixture_close(&b);
    }
    cr_expect_eq(kept[0] - kept[1], ACT_ROWS * 1024 * sizeof(float), "%zu and %zu bytes", kept[0], kept[1]);
}

/* ---- a gradient written past the caches ---- */

enum { STREAMED_OUT = 512 };

/* A parameter's gradient of 16 bits is summed in float32. */
struct streamed {
    rw_dtype dtype;
    bool of_param;
    int64_t in;
};

/* Bytes of the gradient of so many experts' matrices; the first four have rows. */
static unsigned char *streamed_gradient(const struct streamed *s, int64_t experts)
{
    enum { TOKENS = 21 };
    struct fixture b = fixture_open(2, 3);
    int32_t index[TOKENS];
    rw_moe_routes r;
    for (int i = 0; i < TOKENS; i++) index[i] = i * 5 % 4;
    cr_assert_eq(rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS, 1), index, sizeof index), experts, &r),
                 RW_OK);
    rw_tensor *const x = numbers(b.t, s->dtype, RW_SHAPE(TOKENS, s->in), 1, 0);
    rw_tensor *w = numbers(b.t, s->dtype, RW_SHAPE(experts, STREAMED_OUT, s->in), 2, 0);
    if (s->of_param) {
        void *const data = bytes_of(b.t, w);
        w = rw_param(b.ctx, "w", s->dtype, RW_SHAPE(experts, STREAMED_OUT, s->in));
        cr_assert_eq(rw_write(w, data, rw_tensor_bytes(w)), RW_OK);
        free(data);
    }
    rw_tensor *const y = rw_moe_linear(b.t, x, w, &r);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    unsigned char *const bytes = bytes_of(b.t, rw_gradient(w));
    fixture_close(&b);
    return bytes;
}

Test(moe, a_gradient_past_the_caches_has_the_bytes_of_a_small_one)
{
    /* Rows of the last form are partial cache lines at any offset in one: a matrix unit writes the whole lines past the
       caches. */
    static const struct streamed all[] = { { RW_F32, false, 512 }, { RW_BF16, false, 512 }, { RW_BF16, true, 512 },
                                           { RW_BF16, true, 500 } };
    if (test_device() != RW_DEVICE_CPU && !getenv("REWIND_TEST_LARGE")) return; /* the simulator is slow */
    for (int i = 0; i < 4; i++) {
        const size_t size = all[i].of_param ? sizeof(float) : rw_dtype_size(all[i].dtype);
        const size_t expert = (size_t)(STREAMED_OUT * all[i].in) * size, experts = ((8u << 20) + expert - 1) / expert;
        unsigned char *const few = streamed_gradient(&all[i], 4);
        unsigned char *const many = streamed_gradient(&all[i], (int64_t)experts);
        cr_expect_eq(first_difference(few, many, 4 * expert), -1, "case %d", i);
        size_t zeros = 0;
        for (size_t k = 4 * expert; k < experts * expert; k++) zeros += !many[k];
        cr_expect_eq(zeros, (experts - 4) * expert, "case %d: experts without rows", i);
        free(few), free(many);
    }
}
