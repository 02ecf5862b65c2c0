/*
 * The ops against PyTorch's values and gradients (golden/golden.txt, made by golden/make_golden.py in float64 from inputs that
 * every type holds exactly).
 *
 * Tolerance. A result that is a sum of n products errs by at most about n u M, u the unit roundoff and M the largest magnitude
 * met; functions and the backward pass add a few dozen roundings of the same size. No case sums over more than 128 terms of
 * magnitude 4: (128 + 64) u 4 (1 + max |want|) bounds float64 and float32. In bfloat16 sums are float32 and only stored
 * values are rounded: at most eight of them lie between an input and a gradient, each off by u = 2^-9 relative, amplified
 * by factors below 4: 8 * 4 u (1 + max |want|).
 */
#include "support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8192

struct array {
    char kind[8];
    rw_shape shape;
    int64_t n;
    double *v;
};

struct golden {
    char name[32];
    struct array a[12];
    int n;
};

static bool next_array(FILE *f, struct array *a)
{
    const long at = ftell(f);
    if (fscanf(f, "%7s", a->kind) != 1) return false;
    if (!strcmp(a->kind, "case")) return fseek(f, at, SEEK_SET), false;
    if (fscanf(f, "%d", &a->shape.rank) != 1) return false;
    for (int i = 0; i < a->shape.rank; i++) cr_assert_eq(fscanf(f, "%ld", &a->shape.dim[i]), 1);
    cr_assert_eq(fscanf(f, " :"), 0);
    a->n = rw_shape_numel(a->shape);
    cr_assert_leq(a->n, MOST);
    a->v = malloc((size_t)a->n * sizeof *a->v);
    for (int64_t i = 0; i < a->n; i++) cr_assert_eq(fscanf(f, "%lf", &a->v[i]), 1);
    return true;
}

static bool next_case(FILE *f, struct golden *g)
{
    char word[8];
    memset(g, 0, sizeof *g);
    if (fscanf(f, "%7s %31s", word, g->name) != 2) return false;
    while (g->n < 12 && next_array(f, &g->a[g->n])) g->n++;
    return true;
}

static rw_tensor *build(const char *name, rw_tape *t, rw_tensor **x)
{
    static const int32_t index[4] = { 2, 0, 2, 1 }, target[4] = { 2, -100, 0, 4 };
#define OP(NAME, ...) if (!strcmp(name, #NAME)) return __VA_ARGS__
    OP(add, rw_add(t, x[0], x[1]));
    OP(sub, rw_sub(t, x[0], x[1]));
    OP(mul, rw_mul(t, x[0], x[1]));
    OP(div, rw_div(t, x[0], x[1]));
    OP(maximum, rw_maximum(t, x[0], x[1]));
    OP(exp, rw_exp(t, x[0]));
    OP(log, rw_log(t, x[0]));
    OP(sqrt, rw_sqrt(t, x[0]));
    OP(tanh, rw_tanh(t, x[0]));
    OP(sigmoid, rw_sigmoid(t, x[0]));
    OP(relu, rw_relu(t, x[0]));
    OP(silu, rw_silu(t, x[0]));
    OP(gelu, rw_gelu(t, x[0]));
    OP(gelu_tanh, rw_gelu_tanh(t, x[0]));
    OP(swiglu, rw_swiglu(t, x[0], x[1]));
    OP(matmul, rw_matmul(t, x[0], x[1]));
    OP(linear, rw_linear(t, x[0], x[1], x[2]));
    OP(layernorm, rw_layernorm(t, x[0], x[1], x[2], 0x1p-10f));
    OP(rmsnorm, rw_rmsnorm(t, x[0], x[1], 0x1p-10f));
    OP(sum, rw_sum(t, x[0], RW_AXES(0, 2), false));
    OP(mean, rw_mean(t, x[0], RW_AXES(-1), true));
    OP(max, rw_max(t, x[0], RW_AXES(1), false));
    OP(softmax, rw_softmax(t, x[0], -1));
    OP(log_softmax, rw_log_softmax(t, x[0], 1));
    OP(logsumexp, rw_logsumexp(t, x[0], RW_AXES(0, 2), false));
    OP(attention_causal, rw_attention(t, x[0], x[1], x[2], &(rw_attention_params){ .causal = true }));
    OP(attention, rw_attention(t, x[0], x[1], x[2], NULL));
    OP(rope, rw_rope(t, x[0], RW_NONE, 100.0f));
    OP(embedding, rw_embedding(t, x[0], rw_input(t, RW_I32, RW_SHAPE(4), index)));
    OP(cross_entropy, rw_cross_entropy(t, x[0], rw_input(t, RW_I32, RW_SHAPE(4), target)));
    OP(mse_loss, rw_mse_loss(t, x[0], x[1]));
    OP(permute, rw_permute(t, x[0], (const int[]){ 2, 0, 1 }));
    OP(concat, rw_concat(t, x, 2, 1));
    OP(slice, rw_slice(t, x[0], 1, 1, 3));
    OP(neg, rw_neg(t, x[0]));
    OP(abs, rw_abs(t, x[0]));
    OP(scale, rw_scale(t, x[0], 1.5));
    OP(add_scalar, rw_add_scalar(t, x[0], 0.75));
    OP(pow_scalar, rw_pow_scalar(t, x[0], 2.5));
    OP(reshape, rw_reshape(t, x[0], RW_SHAPE(6, -1)));
    OP(broadcast_to, rw_broadcast_to(t, x[0], RW_SHAPE(3, 4, 5)));
    OP(causal_softmax, rw_causal_softmax(t, x[0], 0.5f));
    rw_tensor *part[3];
    if (strcmp(name, "split") || rw_split(t, x[0], -1, (const int64_t[]){ 2, 5, 4 }, 3, part)) return NULL;
    return rw_concat(t, (rw_tensor *[]){ part[2], part[1], part[0] }, 3, -1);
}

static void compare(const struct golden *g, const struct array *want, rw_tape *t, rw_tensor *x, rw_dtype dtype)
{
    static double got[MOST];
    double most = 0;
    rw_tensor *const wide = x && (rw_tensor_dtype(x) == RW_F64) ? x : NULL;
    unsigned char raw[MOST * 8];
    cr_assert(x, "%s: no tensor: %s", g->name, rw_error_message(rw_tape_context(t)));
    cr_assert_eq(rw_read(t, x, raw, rw_tensor_bytes(x)), RW_OK, "%s: %s", g->name, rw_error_message(rw_tape_context(t)));
    cr_assert(rw_shape_equal(rw_tensor_shape(x), want->shape), "%s: shape", g->name);
    for (int64_t i = 0; i < want->n; i++) {
        uint32_t bits = 0;
        float f;
        if (wide) memcpy(&got[i], raw + 8 * i, 8);
        else if (rw_tensor_dtype(x) == RW_BF16) memcpy((char *)&bits + 2, raw + 2 * i, 2), memcpy(&f, &bits, 4), got[i] = (double)f;
        else memcpy(&f, raw + 4 * i, 4), got[i] = (double)f;
        most = fmax(most, fabs(want->v[i]));
    }
    const double bound = (dtype == RW_BF16 ? 32 * 0x1p-9 : 768 * (dtype == RW_F64 ? 0x1p-53 : 0x1p-24)) * (1 + most);
    for (int64_t i = 0; i < want->n; i++)
        cr_assert(fabs(got[i] - want->v[i]) <= bound, "%s, %s, %s, element %ld: %.17g, PyTorch has %.17g (bound %g)", g->name,
                  rw_dtype_name(dtype), want->kind, (long)i, got[i], want->v[i], bound);
}

static rw_tensor *input(rw_tape *t, const struct array *a, rw_dtype dtype)
{
    rw_tensor *const wide = rw_input(t, RW_F64, a->shape, a->v);
    unsigned char narrow[MOST * 8];
    rw_tensor *const y = rw_cast(t, wide, dtype);
    cr_assert_eq(rw_read(t, y, narrow, rw_tensor_bytes(y)), RW_OK);
    return rw_input(t, dtype, a->shape, narrow);
}

static void check(const struct golden *g, rw_dtype dtype)
{
    struct bench b = bench_open(1, 2);
    rw_tensor *x[4], *y = NULL;
    int n = 0, k = 0;
    while (!strcmp(g->a[n].kind, "in")) x[n] = rw_require_grad(b.t, input(b.t, &g->a[n], dtype)), n++;
    y = build(g->name, b.t, x);
    cr_assert(y, "%s: %s", g->name, rw_error_message(b.ctx));
    rw_tensor *const w = input(b.t, &g->a[n], rw_tensor_dtype(y));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, w), RW_ALL_AXES, false)), RW_OK, "%s: %s", g->name, rw_error_message(b.ctx));
    compare(g, &g->a[n + 1], b.t, y, dtype);
    for (; k < n; k++) compare(g, &g->a[n + 2 + k], b.t, rw_gradient(x[k]), dtype);
    bench_close(&b);
}

static void all_cases(rw_dtype dtype)
{
    FILE *const f = fopen(REWIND_GOLDEN, "r");
    struct golden g;
    int count = 0;
    cr_assert(f, "%s", REWIND_GOLDEN);
    for (; next_case(f, &g); count++) {
        check(&g, dtype);
        for (int i = 0; i < g.n; i++) free(g.a[i].v);
    }
    fclose(f);
    cr_assert_eq(count, 43);
}

Test(golden, float64) { all_cases(RW_F64); }
Test(golden, float32) { all_cases(RW_F32); }
Test(golden, bfloat16) { all_cases(RW_BF16); }
