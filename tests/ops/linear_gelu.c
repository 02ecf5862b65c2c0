/*
 * linear_gelu: if our kernel computes the function, the bytes equal those of linear followed by gelu_tanh. If cuBLASLt
 * does, they are the same under every policy and with or without a backward. TF32: only on request, and only for
 * float32 on CUDA.
 */
#include "support/compare.h"
#include "support/support.h"

#include "ops/common/pass_ops.h"
#include "ops/matmul/matmul.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

static struct fixture open_fixture(uint64_t seed, bool tf32)
{
    struct fixture b = { NULL, NULL };
    const rw_context_params params = { .device = test_device(), .seed = seed, .threads = 2, .tf32 = tf32 };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
}

/* Whether cuBLASLt's epilogue computes the function. */
static bool is_fused(rw_dtype dtype, int64_t out, bool tf32)
{
    return test_device() == RW_DEVICE_CUDA && (rw_dtype_size(dtype) == 2 || (tf32 && dtype == RW_F32)) && out % 8 == 0;
}

struct bytes {
    size_t n;
    unsigned char *data;
};

static void add(struct bytes *b, rw_tape *t, rw_tensor *x)
{
    const size_t n = rw_tensor_bytes(x);
    b->data = realloc(b->data, b->n + n + 1);
    cr_assert_eq(rw_read(t, x, b->data + b->n, n), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    b->n += n;
}

static rw_tensor *param(struct fixture *b, const char *name, rw_dtype dtype, rw_shape shape)
{
    rw_tensor *const p = rw_param(b->ctx, name, dtype, shape);
    rw_init_normal(p, 0, 0.4);
    return p;
}

struct layer {
    rw_dtype dtype;
    rw_shape x;
    int64_t out;
    bool bias, transposed, tf32;
};

/* The activation first, then all gradients, whose upstream gradient is rounded by a product of its own. */
static struct bytes run(const struct layer *l, bool one_op, bool backward)
{
    struct fixture b = open_fixture(3, l->tf32);
    struct bytes r = { 0 };
    const int64_t in = l->x.dim[l->transposed ? 0 : l->x.rank - 1];
    rw_tensor *const w = param(&b, "w", l->dtype, RW_SHAPE(l->out, in));
    rw_tensor *const bias = l->bias ? param(&b, "b", l->dtype, RW_SHAPE(l->out)) : RW_NONE;
    rw_tensor *const x = param(&b, "x", l->dtype, l->x);
    rw_tensor *const seen = l->transposed ? rw_transpose(b.t, x, 0, l->x.rank - 1) : x;
    rw_tensor *const y = one_op ? rw_linear_gelu(b.t, seen, w, bias) : rw_gelu_tanh(b.t, rw_linear(b.t, seen, w, bias));
    rw_tensor *const up = rw_randn(b.t, l->dtype, rw_tensor_shape(y));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, up), RW_ALL_AXES, false);
    if (backward) {
        rw_require_grad(b.t, y);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    }
    add(&r, b.t, y);
    if (backward) {
        add(&r, b.t, rw_gradient(w)), add(&r, b.t, rw_gradient(x));
        if (l->bias) add(&r, b.t, rw_gradient(bias));
    }
    fixture_close(&b);
    return r;
}

static const struct layer layers[] = {
    { .x = { 2, { 1, 1 } }, .out = 1 },
    { .x = { 2, { 9, 16 } }, .out = 24, .bias = true },
    { .x = { 3, { 2, 5, 33 } }, .out = 7, .bias = true },
    { .x = { 3, { 2, 5, 24 } }, .out = 40 },
    { .x = { 1, { 19 } }, .out = 16, .bias = true },
    { .x = { 2, { 48, 70 } }, .out = 96, .bias = true, .transposed = true },
    { .x = { 3, { 16, 6, 4 } }, .out = 8, .bias = true, .transposed = true },
    { .x = { 2, { 0, 8 } }, .out = 8, .bias = true },
    { .x = { 2, { 4, 0 } }, .out = 8, .bias = true },
};

static void forget(struct bytes *b)
{
    free(b->data);
}

Test(linear_gelu, one_op_gives_what_two_give)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int d = 0; d < 8; d++) {
            struct layer l = layers[i];
            l.dtype = types[d % 4], l.tf32 = d >= 4;
            struct bytes one = run(&l, true, true), two = run(&l, false, true);
            cr_assert_eq(one.n, two.n);
            if (!is_fused(l.dtype, l.out, l.tf32))
                cr_assert_eq(first_difference(one.data, two.data, one.n), -1, "layer %d, %s", (int)i,
                             rw_dtype_name(l.dtype));
            forget(&one), forget(&two);
        }
}

/* ---- peak memory of backward ---- */

/* h of a wide layer, then dh: the product that reads h last is executed before the one that writes dh. In float64 no
   product needs a workspace here. */
Test(linear_gelu, the_weight_gradient_releases_x_before_dx_is_computed)
{
    enum { ROWS = 64, WIDE = 2048, NARROW = 8, H = ROWS * WIDE * 8 };
    for (int one_op = 0; one_op < 2; one_op++) {
        struct fixture b = open_fixture(3, false);
        rw_prediction p;
        rw_tensor *const up = param(&b, "up", RW_F64, RW_SHAPE(WIDE, NARROW));
        rw_tensor *const down = param(&b, "down", RW_F64, RW_SHAPE(NARROW, WIDE));
        rw_tensor *const x = param(&b, "x", RW_F64, RW_SHAPE(ROWS, NARROW));
        rw_tensor *const h = rw_linear(b.t, x, up, RW_NONE);
        rw_tensor *const y = one_op ? rw_linear_add(b.t, h, down, RW_NONE, x) : rw_linear(b.t, h, down, RW_NONE);
        rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
        cr_assert_eq(rw_tape_plan(b.t, loss, "none", &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect(p.largest_live < H + H / 2, "%zu bytes live, h has %d", p.largest_live, H);
        fixture_close(&b);
    }
}

/* ---- the bias gradient, computed with the slope ---- */

/*
 * gelu(x + bias) with an identity weight: the gradient of x is dz itself, and that of the bias the sum of its columns.
 * Appends dx, dweight and, with `wanted`, dbias.
 */
static struct bytes slopes(rw_dtype dtype, rw_shape shape, int threads, bool wanted)
{
    struct fixture b = fixture_open(9, threads);
    struct bytes r = { 0 };
    const int64_t n = shape.dim[shape.rank - 1];
    char *const identity = calloc((size_t)(n * n), 8);
    for (int64_t i = 0; i < n; i++) number_put(identity, dtype, i * (n + 1), 1);
    rw_tensor *const w = rw_require_grad(
        b.t, rw_input(b.t, dtype, RW_SHAPE(n, n), identity, (size_t)(n * n) * rw_dtype_size(dtype)));
    rw_tensor *const x = rw_require_grad(b.t, rw_scale(b.t, rw_randn(b.t, dtype, shape), 2));
    rw_tensor *const bias = rw_scale(b.t, rw_randn(b.t, dtype, RW_SHAPE(n)), 1);
    if (wanted) rw_require_grad(b.t, bias);
    rw_tensor *const y = rw_linear_gelu(b.t, x, w, bias);
    rw_tensor *const up = threads > 1 ? rw_randn(b.t, dtype, shape) : rw_full_at(RW_HERE, b.t, dtype, RW_SCALAR, 0.75);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, up), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    add(&r, b.t, rw_gradient(x)), add(&r, b.t, rw_gradient(w));
    if (wanted) add(&r, b.t, rw_gradient(bias));
    free(identity);
    fixture_close(&b);
    return r;
}

/* sum_to of dz, as a separate op. */
static struct bytes summed(rw_dtype dtype, rw_shape shape, const struct bytes *dz)
{
    struct fixture b = fixture_open(9, 1);
    struct bytes r = { 0 };
    add(&r, b.t,
        rw_sum_to(b.t, rw_input(b.t, dtype, shape, dz->data, (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype)),
                  RW_SHAPE(shape.dim[shape.rank - 1])));
    fixture_close(&b);
    return r;
}

Test(linear_gelu, the_bias_gradient_is_the_sum_of_the_slopes_that_were_stored)
{
    const rw_shape shapes[] = { RW_SHAPE(2, 2),  RW_SHAPE(3, 5),    RW_SHAPE(2, 5, 24), RW_SHAPE(64, 33),
                                RW_SHAPE(1, 8),  RW_SHAPE(9, 1),    RW_SHAPE(7),        RW_SHAPE(0, 8),
                                RW_SHAPE(70, 600), RW_SHAPE(700, 96), RW_SHAPE(701, 97),  RW_SHAPE(3, 1500, 16) };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int d = 0; d < 4; d++)
            for (int threads = 1; threads < 4; threads += 2) {
                struct bytes with = slopes(types[d], shapes[i], threads, true);
                struct bytes without = slopes(types[d], shapes[i], threads, false);
                struct bytes sum = summed(types[d], shapes[i], &with);
                cr_assert_eq(first_difference(with.data, without.data, without.n), -1, "slopes %d, %s", (int)i,
                             rw_dtype_name(types[d]));
                cr_assert_eq(with.n, without.n + sum.n);
                cr_assert_eq(first_difference(with.data + without.n, sum.data, sum.n), -1, "sum %d, %s", (int)i,
                             rw_dtype_name(types[d]));
                forget(&with), forget(&without), forget(&sum);
            }
}

/* Large enough that some element differs: the function of the unrounded product is another number. */
Test(linear_gelu, the_function_is_taken_before_rounding_where_the_library_takes_it)
{
    for (int d = 0; d < 8; d++)
        for (int form = 0; form < 4; form++) {
            const bool odd = form & 1, batch = form & 2; /* rows that are not contiguous: a product for each of two */
            struct layer l = { .dtype = types[d % 4], .x = { 2, { 30, 40 } }, .out = odd ? 65 : 64,
                               .bias = true, .tf32 = d >= 4, .transposed = batch };
            if (batch) l.x = RW_SHAPE(40, 30, 2);
            struct bytes one = run(&l, true, false), two = run(&l, false, false);
            cr_assert_eq(first_difference(one.data, two.data, one.n) >= 0, is_fused(l.dtype, l.out, l.tf32), "%s, %d",
                         rw_dtype_name(l.dtype), (int)l.out);
            forget(&one), forget(&two);
        }
}

/* The function's argument is not read again: the same bytes as with a backward. */
Test(linear_gelu, without_a_backward)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int d = 0; d < 4; d++) {
            struct layer l = layers[i];
            l.dtype = types[d];
            struct bytes with = run(&l, true, true), without = run(&l, true, false);
            cr_assert_eq(first_difference(with.data, without.data, without.n), -1, "layer %d, %s", (int)i,
                         rw_dtype_name(l.dtype));
            forget(&with), forget(&without);
        }
}

/* A step of three layers under a policy: activations and gradients. */
static struct bytes train(const char *policy, rw_dtype dtype, bool tf32)
{
    struct fixture b = open_fixture(5, tf32);
    struct bytes r = { 0 };
    rw_tensor *up[3], *shift[3], *down[3];
    for (int l = 0; l < 3; l++) {
        char name[16];
        snprintf(name, sizeof name, "up%d", l), up[l] = param(&b, name, dtype, RW_SHAPE(48, 16));
        snprintf(name, sizeof name, "shift%d", l), shift[l] = param(&b, name, dtype, RW_SHAPE(48));
        snprintf(name, sizeof name, "down%d", l), down[l] = param(&b, name, dtype, RW_SHAPE(16, 48));
    }
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_randn(b.t, dtype, RW_SHAPE(2, 5, 16));
        for (int l = 0; l < 3; l++) {
            ckpt_begin(b.t, "ffn");
            rw_tensor *const h = ckpt_name(b.t, rw_linear_gelu(b.t, x, up[l], shift[l]), "up");
            x = rw_add(b.t, x, rw_linear(b.t, rw_dropout(b.t, h, 0.1f), down[l], RW_NONE));
            ckpt_end(b.t);
        }
        rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false);
        if (step == 0)
            cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        add(&r, b.t, loss);
        for (size_t i = 0; rw_param_get(b.ctx, i); i++) add(&r, b.t, rw_gradient(rw_param_get(b.ctx, i)));
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
    return r;
}

Test(linear_gelu, under_every_policy)
{
    static const char *const policies[] = { "full", "selective:ffn", "uniform:2", "block:1", "ops:linear_gelu",
                                            "ops:linear", "names:keep=up" };
    for (int d = 0; d < 5; d++) {
        const rw_dtype dtype = d < 4 ? types[d] : RW_F32;
        struct bytes none = train("none", dtype, d == 4);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            struct bytes r = train(policies[p], dtype, d == 4);
            cr_assert_eq(r.n, none.n);
            cr_assert_eq(first_difference(r.data, none.data, r.n), -1, "%s, %s", rw_dtype_name(dtype), policies[p]);
            forget(&r);
        }
        forget(&none);
    }
}

/* ---- TF32 ---- */

enum { M = 24, K = 50, COLS = 40 };

/* a b, or sum + a b; also the factors' gradients. */
static struct bytes product(rw_dtype dtype, bool tf32, bool adds, float *a, float *x)
{
    struct fixture b = open_fixture(8, tf32);
    struct bytes r = { 0 };
    rw_tensor *const left = rw_randn(b.t, dtype, RW_SHAPE(M, K));
    rw_tensor *const right = rw_randn(b.t, dtype, RW_SHAPE(K, COLS));
    rw_tensor *const none = rw_scale(b.t, rw_randn(b.t, dtype, RW_SHAPE(M, COLS)), 0);
    add(&r, b.t, adds ? rw_matmul_add_at(RW_HERE, b.t, none, left, right) : rw_matmul(b.t, left, right));
    if (dtype == RW_F32) {
        cr_assert_eq(rw_read(b.t, left, a, M * K * sizeof *a), RW_OK);
        cr_assert_eq(rw_read(b.t, right, x, K * COLS * sizeof *x), RW_OK);
    }
    fixture_close(&b);
    return r;
}

/*
 * K roundings of the terms and their sum to float32. With TF32 each factor has 11 significant bits, truncated or
 * rounded, so a term is off by less than 2 2^-10 and the square of that.
 */
static void expect_near(const struct bytes *y, const float *a, const float *x, bool tf32)
{
    const double off = tf32 ? 0x1p-9 + 0x1p-20 : 0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < COLS; j++) {
            double want = 0, terms = 0;
            float got;
            for (int k = 0; k < K; k++) {
                want += (double)a[i * K + k] * (double)x[k * COLS + j];
                terms += fabs((double)a[i * K + k] * (double)x[k * COLS + j]);
            }
            memcpy(&got, y->data + sizeof got * (size_t)(i * COLS + j), sizeof got);
            cr_assert_leq(fabs((double)got - want), terms * ((K + 2) * 0x1p-24 * 1.01 * (1 + off) + off));
        }
}

Test(linear_gelu, tf32_only_when_it_is_requested)
{
    float a[M * K], x[K * COLS];
    for (int d = 0; d < 4; d++)
        for (int adds = 0; adds < 2; adds++) {
            struct bytes plain = product(types[d], false, adds, a, x), asked = product(types[d], true, adds, a, x);
            const bool shows = test_device() == RW_DEVICE_CUDA && types[d] == RW_F32;
            cr_assert_eq(first_difference(plain.data, asked.data, plain.n) >= 0, shows, "%s", rw_dtype_name(types[d]));
            if (types[d] == RW_F32) expect_near(&plain, a, x, false), expect_near(&asked, a, x, shows);
            forget(&plain), forget(&asked);
        }
}
