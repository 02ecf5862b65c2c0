/*
 * Products by expert of small integers, whose results every type holds exactly. There is an expert with more rows than
 * a sum is split into, one with none, one with a few and one with a single row; matrices close to the extents of tiles
 * and panels; and two backward passes, the second of which adds to the first one's sums.
 */
#include "support/compare.h"
#include "support/support.h"

#include "device/cpu/isa.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 600, OUT = 1100, EXPERTS = 4, TOKENS = 1071, SAMPLES = 4000 };

static const int rows_of[EXPERTS] = { 1030, 0, 40, 1 };

enum { X = 1, W, DY };

/* -1, 0 or 1: sums of 1,100 products of two stay far below 256, up to which bfloat16 holds every integer. */
static int number_at(uint32_t seed, int64_t i)
{
    uint32_t x = seed * 0x9e3779b9u + (uint32_t)i * 0x85ebca6bu;
    x ^= x >> 15, x *= 0x2c1b3c6du, x ^= x >> 12, x *= 0x297a2d39u, x ^= x >> 15;
    return (int)(x % 3) - 1;
}

static void *numbers(rw_dtype dtype, uint32_t seed, int64_t n)
{
    void *const data = malloc((size_t)n * rw_dtype_size(dtype));
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, number_at(seed, i)));
    return data;
}

static rw_tensor *input(rw_tape *t, rw_dtype dtype, uint32_t seed, rw_shape shape)
{
    void *const data = numbers(dtype, seed, rw_shape_numel(shape));
    rw_tensor *const x = rw_input(t, dtype, shape, data, (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype));
    free(data);
    return x;
}

/* Experts' tokens are mixed: those of the first are between the others'. */
static int32_t expert_of[TOKENS];
static int64_t row_of[TOKENS]; /* of x */

static void spread_tokens(bool gathers)
{
    int left[EXPERTS], row = 0;
    memcpy(left, rows_of, sizeof left);
    for (int i = 0; i < TOKENS; i++) {
        int expert = i % 26 ? 0 : 2 + i / 26 % 2;
        while (!left[expert]) expert = (expert + 1) % EXPERTS;
        left[expert]--;
        expert_of[i] = expert;
    }
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < TOKENS; i++)
            if (expert_of[i] == e) row_of[i] = gathers ? i : row++;
}

static void *bytes_of(rw_tape *t, rw_tensor *x)
{
    void *const to = malloc(rw_tensor_bytes(x));
    cr_assert_eq(rw_read(t, x, to, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    return to;
}

struct result {
    unsigned char *y, *dx, *dw;
    rw_dtype of_dw; /* float32 for 16-bit types */
};

/* Runs a product by expert, forward and two backward passes. */
static struct result multiply(rw_dtype dtype, bool gathers, int threads)
{
    struct fixture b = fixture_open(1, threads);
    struct result ret = { NULL, NULL, NULL, dtype };
    rw_tensor *const w = rw_param(b.ctx, "w", dtype, RW_SHAPE(EXPERTS, OUT, IN));
    void *const data = numbers(dtype, W, (int64_t)EXPERTS * OUT * IN);
    cr_assert_eq(rw_write(w, data, rw_tensor_bytes(w)), RW_OK);
    free(data);
    for (int pass = 0; pass < 2; pass++) {
        rw_moe_routes r;
        rw_tensor *const x = rw_require_grad(b.t, input(b.t, dtype, X, RW_SHAPE(TOKENS, IN)));
        rw_tensor *const dy = input(b.t, dtype, DY, RW_SHAPE(TOKENS, OUT));
        cr_assert_eq(
            rw_moe_route(b.t, rw_input(b.t, RW_I32, RW_SHAPE(TOKENS, 1), expert_of, sizeof expert_of), EXPERTS, &r),
            RW_OK);
        rw_tensor *const rows = gathers ? rw_moe_linear_of_tokens(b.t, x, w, &r) : rw_moe_linear(b.t, x, w, &r);
        rw_tensor *const y = rw_moe_combine(b.t, rows, &r);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, dy), RW_ALL_AXES, false)), RW_OK, "%s",
                     rw_error_message(b.ctx));
        if (pass)
            ret = (struct result){ bytes_of(b.t, y), bytes_of(b.t, rw_gradient(x)), bytes_of(b.t, rw_gradient(w)),
                                   rw_tensor_dtype(rw_gradient(w)) };
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
    return ret;
}

static double sum_of_y(int64_t token, int64_t out)
{
    const int64_t row = ((int64_t)expert_of[token] * OUT + out) * IN;
    double sum = 0;
    for (int64_t i = 0; i < IN; i++) sum += number_at(X, row_of[token] * IN + i) * number_at(W, row + i);
    return sum;
}

static double sum_of_dx(int64_t token, int64_t in)
{
    double sum = 0;
    for (int64_t o = 0; o < OUT; o++)
        sum += number_at(DY, token * OUT + o) * number_at(W, ((int64_t)expert_of[token] * OUT + o) * IN + in);
    return sum;
}

static double sum_of_dw(int64_t expert, int64_t out, int64_t in)
{
    double sum = 0;
    for (int64_t t = 0; t < TOKENS; t++)
        if (expert_of[t] == expert) sum += number_at(DY, t * OUT + out) * number_at(X, row_of[t] * IN + in);
    return 2 * sum; /* of two passes */
}

/* Elements spread over the result, with strides that reach every row, column and expert. */
static void expect_exact(const struct result *r, rw_dtype dtype, const char *how)
{
    for (int64_t s = 0; s < SAMPLES; s++) {
        const int64_t token = s * 7 % TOKENS, out = s * 13 % OUT, in = s * 17 % IN, expert = s % EXPERTS;
        const int64_t at = (expert * OUT + out) * IN + in;
        cr_assert_eq(number_get(r->y, dtype, token * OUT + out), sum_of_y(token, out), "%s %s: y[%d, %d]",
                     rw_dtype_name(dtype), how, (int)token, (int)out);
        cr_assert_eq(number_get(r->dx, dtype, row_of[token] * IN + in), sum_of_dx(token, in), "%s %s: dx[%d, %d]",
                     rw_dtype_name(dtype), how, (int)token, (int)in);
        cr_assert_eq(number_get(r->dw, r->of_dw, at), sum_of_dw(expert, out, in), "%s %s: dw[%d, %d, %d]",
                     rw_dtype_name(dtype), how, (int)expert, (int)out, (int)in);
    }
}

static void result_free(struct result *r)
{
    free(r->y), free(r->dx), free(r->dw);
}

Test(expert_matmul_exact_integers, each_element_exactly)
{
    static const rw_dtype types[] = { RW_BF16, RW_F32, RW_F16 };
    for (int i = 0; i < (rw_cpu_emulates_amx ? 2 : 6); i++) {
        spread_tokens(i % 2);
        struct result r = multiply(types[i / 2], i % 2, 2);
        expect_exact(&r, types[i / 2], i % 2 ? "gathered" : "in their layout");
        result_free(&r);
    }
}

/* Threads take experts in any order. */
Test(expert_matmul_exact_integers, the_same_bytes_with_any_threads)
{
    spread_tokens(true);
    for (int i = 0; i < (rw_cpu_emulates_amx ? 1 : 2); i++) {
        const rw_dtype dtype = i ? RW_F16 : RW_BF16;
        struct result one = multiply(dtype, true, 1), three = multiply(dtype, true, 3);
        cr_expect_eq(first_difference(one.y, three.y, (size_t)TOKENS * OUT * 2), -1);
        cr_expect_eq(first_difference(one.dx, three.dx, (size_t)TOKENS * IN * 2), -1);
        cr_expect_eq(first_difference(one.dw, three.dw, (size_t)EXPERTS * OUT * IN * rw_dtype_size(one.of_dw)), -1);
        result_free(&one), result_free(&three);
    }
}
