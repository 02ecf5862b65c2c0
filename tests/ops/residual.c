/*
 * linear_add and dropout_add, the ends of a residual branch: the result of two ops, rounded once; bit-identical under
 * every policy; and no buffer besides the residual's.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };

static struct fixture open_fixture(bool tf32)
{
    struct fixture b = { NULL, NULL };
    const rw_context_params params = { .device = test_device(), .seed = 3, .threads = 2, .tf32 = tf32 };
    cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    return b;
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

static void expect_same(const struct bytes *a, const struct bytes *b, const char *what, rw_dtype dtype, int i)
{
    cr_assert_eq(a->n, b->n);
    cr_assert_eq(first_difference(a->data, b->data, a->n), -1, "%s %d, %s", what, i, rw_dtype_name(dtype));
}

static void expect_and_free(struct bytes *a, struct bytes *b, const char *what, rw_dtype dtype, int i)
{
    expect_same(a, b, what, dtype, i);
    free(a->data), free(b->data);
}

/* Numbers that every type holds. */
static rw_tensor *numbers(rw_tape *t, rw_dtype dtype, rw_shape shape, double (*number)(int64_t))
{
    const int64_t n = rw_shape_numel(shape);
    char *const data = malloc((size_t)n * 8 + 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, number(i)));
    rw_tensor *const x = rw_require_grad(
        t, rw_input(t, dtype, shape, data, (size_t)n * rw_dtype_size(dtype)));
    free(data);
    return x;
}

static double one(int64_t i)
{
    (void)i;
    return 1;
}

static double sign(int64_t i)
{
    return (((uint64_t)i * 0x9e3779b97f4a7c15u) >> 37) % 2 ? 1 : -1;
}

static double small(int64_t i)
{
    return (double)(i * 7 % 11 - 5);
}

/* ---- linear_add ---- */

struct layer {
    rw_dtype dtype;
    rw_shape x;
    int64_t out;
    bool bias, transposed, tf32, lives;
};

static const struct layer layers[] = {
    { .x = { 2, { 1, 1 } }, .out = 1 },
    { .x = { 2, { 9, 16 } }, .out = 24, .bias = true },
    { .x = { 3, { 2, 5, 33 } }, .out = 7, .bias = true },
    { .x = { 3, { 2, 5, 24 } }, .out = 40 },
    { .x = { 1, { 19 } }, .out = 16, .bias = true },
    { .x = { 2, { 48, 70 } }, .out = 96, .bias = true, .transposed = true },
    { .x = { 3, { 16, 6, 4 } }, .out = 8, .bias = true, .transposed = true },
    { .x = { 2, { 70, 33 } }, .out = 49 },
    { .x = { 3, { 4, 50, 40 } }, .out = 72, .bias = true },
    { .x = { 2, { 0, 8 } }, .out = 8, .bias = true },
    { .x = { 2, { 4, 0 } }, .out = 8, .bias = true },
};

/* The sum first, then all gradients. If the residual is not read later, it is a value of its own whose last use this
   is. */
static struct bytes run(const struct layer *l, bool one_op)
{
    struct fixture b = open_fixture(l->tf32);
    struct bytes r = { 0 };
    const int64_t in = l->x.dim[l->transposed ? 0 : l->x.rank - 1];
    rw_tensor *const x = numbers(b.t, l->dtype, l->x, sign);
    rw_tensor *const w = numbers(b.t, l->dtype, RW_SHAPE(l->out, in), sign);
    rw_tensor *const bias = l->bias ? numbers(b.t, l->dtype, RW_SHAPE(l->out), small) : RW_NONE;
    rw_tensor *const seen = l->transposed ? rw_transpose(b.t, x, 0, l->x.rank - 1) : x;
    rw_shape s = rw_tensor_shape(seen);
    s.dim[s.rank - 1] = l->out;
    rw_tensor *const base = numbers(b.t, l->dtype, s, small);
    rw_tensor *const residual = l->lives ? base : rw_neg(b.t, base);
    rw_tensor *const y = one_op ? rw_linear_add(b.t, seen, w, bias, residual)
                                : rw_add(b.t, residual, rw_linear(b.t, seen, w, bias));
    rw_tensor *const up = numbers(b.t, l->dtype, s, sign);
    rw_require_grad(b.t, y);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, up), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    add(&r, b.t, y), add(&r, b.t, rw_gradient(base)), add(&r, b.t, rw_gradient(x)), add(&r, b.t, rw_gradient(w));
    if (l->bias) add(&r, b.t, rw_gradient(bias));
    fixture_close(&b);
    return r;
}

/* Sums of at most 200 ones and tens have at most eight bits: order and rounding have no effect, every error does. */
Test(residual, whole_numbers_add_up_exactly)
{
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int d = 0; d < 16; d++) {
            struct layer l = layers[i];
            l.dtype = types[d % 4], l.tf32 = d & 4, l.lives = d & 8;
            struct bytes got = run(&l, true), want = run(&l, false);
            expect_and_free(&got, &want, "layer", l.dtype, (int)i);
        }
}

/* k ones, one from the bias and one from the residual: k + 2 is representable, k + 1 is not, and rounds down to k. */
Test(residual, linear_add_rounds_once)
{
    const int64_t shapes[][2] = { { 3, 5 }, { 40, 64 } };
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 4; i++) {
            const int64_t k = types[d] == RW_BF16 ? 256 : 2048, m = shapes[i / 2][0], n = shapes[i / 2][1];
            struct fixture b = open_fixture(false);
            rw_tensor *const x = numbers(b.t, types[d], RW_SHAPE(m, k), one);
            rw_tensor *const w = numbers(b.t, types[d], RW_SHAPE(n, k), one);
            rw_tensor *const bias = numbers(b.t, types[d], RW_SHAPE(n), one);
            rw_tensor *const base = numbers(b.t, types[d], RW_SHAPE(m, n), one);
            rw_tensor *const y = rw_linear_add(b.t, x, w, bias, i % 2 ? base : rw_abs(b.t, base));
            char *const data = malloc(rw_tensor_bytes(y));
            cr_assert_eq(rw_read(b.t, y, data, rw_tensor_bytes(y)), RW_OK, "%s", rw_error_message(b.ctx));
            for (int64_t j = 0; j < m * n; j++)
                cr_assert_eq(number_get(data, types[d], j), (double)(k + 2), "%s, element %d: %g",
                             rw_dtype_name(types[d]), (int)j, number_get(data, types[d], j));
            free(data);
            fixture_close(&b);
        }
}

/* ---- dropout_add ---- */

/* The sum, by one op or in float32 rounded to the type at the end, then the gradients. */
static struct bytes drop(rw_dtype dtype, int64_t n, bool one_op, bool lives, float p)
{
    struct fixture b = open_fixture(false);
    struct bytes r = { 0 };
    const rw_dtype wide = dtype == RW_F64 ? RW_F64 : RW_F32;
    rw_generator_set(b.ctx, (rw_generator_state){ 77, 1000 });
    rw_tensor *const up = rw_randn(b.t, dtype, RW_SHAPE(n)), *const x0 = rw_randn(b.t, dtype, RW_SHAPE(n));
    rw_tensor *const base[2] = { rw_require_grad(b.t, rw_scale(b.t, x0, 3)), rw_require_grad(b.t, rw_neg(b.t, up)) };
    rw_tensor *const x = lives ? base[0] : rw_neg(b.t, base[0]), *const to = lives ? base[1] : rw_neg(b.t, base[1]);
    rw_tensor *y;
    if (one_op) y = rw_dropout_add(b.t, x, to, p);
    else y = rw_cast(b.t, rw_add(b.t, rw_cast(b.t, to, wide), rw_dropout(b.t, rw_cast(b.t, x, wide), p)), dtype);
    rw_require_grad(b.t, y);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, up), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    add(&r, b.t, y), add(&r, b.t, rw_gradient(base[0])), add(&r, b.t, rw_gradient(base[1]));
    fixture_close(&b);
    return r;
}

Test(residual, dropout_add_is_the_sum_rounded_once)
{
    static const int64_t sizes[] = { 0, 1, 3, 4, 63, 64, 65, 1027, 40003 };
    static const float p[] = { 0, 0.1f, 0.5f, 0.9f };
    for (int d = 0; d < 4; d++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            for (int k = 0; k < 8; k++) {
                struct bytes got = drop(types[d], sizes[i], true, k & 1, p[k / 2]);
                struct bytes want = drop(types[d], sizes[i], false, k & 1, p[k / 2]);
                expect_and_free(&got, &want, "size", types[d], (int)sizes[i]);
            }
}

/* Dropped elements are not read; 0 is added to the residual in their place. */
Test(residual, what_is_dropped_may_be_infinite)
{
    enum { N = 300 };
    float huge[N], negative_zero[N], y[N], kept[N];
    struct fixture b = open_fixture(false);
    for (int i = 0; i < N; i++) huge[i] = i % 2 ? INFINITY : NAN, negative_zero[i] = -0.0f;
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(N), huge, sizeof huge);
    rw_tensor *const to = rw_input(b.t, RW_F32, RW_SHAPE(N), negative_zero, sizeof negative_zero);
    rw_generator_set(b.ctx, (rw_generator_state){ 7, 0 });
    cr_assert_eq(rw_read(b.t, rw_dropout(b.t, x, 0.5f), kept, sizeof kept), RW_OK);
    rw_generator_set(b.ctx, (rw_generator_state){ 7, 0 });
    cr_assert_eq(rw_read(b.t, rw_dropout_add(b.t, x, to, 0.5f), y, sizeof y), RW_OK);
    int dropped = 0;
    for (int i = 0; i < N; i++) {
        dropped += kept[i] == 0;
        cr_assert(kept[i] == 0 ? y[i] == 0 && !signbit(y[i]) : i % 2 ? isinf(y[i]) : isnan(y[i]), "element %d", i);
    }
    cr_assert(dropped > N / 4 && dropped < 3 * N / 4);
    fixture_close(&b);
}

/* ---- both ---- */

static rw_tensor *param(struct fixture *b, const char *name, int l, rw_dtype dtype, rw_shape shape)
{
    char text[16];
    snprintf(text, sizeof text, "%s%d", name, l);
    rw_tensor *const p = rw_param(b->ctx, text, dtype, shape);
    rw_init_normal(p, 0, 0.4);
    return p;
}

enum { LAYERS = 3 };

static rw_tensor *layer_of(struct fixture *b, rw_tensor *const w[4], rw_tensor *x, int l)
{
    ckpt_begin(b->t, "ffn");
    rw_tensor *const h = ckpt_name(b->t, rw_linear_gelu(b->t, rw_tanh(b->t, x), w[0], w[1]), "up");
    if (l % 2) x = rw_linear_add(b->t, rw_dropout(b->t, h, 0.1f), w[2], l == 1 ? w[3] : RW_NONE, x);
    else x = rw_dropout_add(b->t, rw_linear(b->t, h, w[2], w[3]), x, 0.2f);
    ckpt_end(b->t);
    return ckpt_name(b->t, x, "stream");
}

/* A step of several blocks under a policy: the result and all gradients. */
static struct bytes train(const char *policy, rw_dtype dtype, bool tf32)
{
    struct fixture b = open_fixture(tf32);
    struct bytes r = { 0 };
    rw_tensor *w[LAYERS][4];
    for (int l = 0; l < LAYERS; l++) {
        w[l][0] = param(&b, "up", l, dtype, RW_SHAPE(48, 16)), w[l][1] = param(&b, "shift", l, dtype, RW_SHAPE(48));
        w[l][2] = param(&b, "down", l, dtype, RW_SHAPE(16, 48)), w[l][3] = param(&b, "bias", l, dtype, RW_SHAPE(16));
    }
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < 3; step++) {
        rw_tensor *x = rw_randn(b.t, dtype, RW_SHAPE(2, 5, 16));
        for (int l = 0; l < LAYERS; l++) x = layer_of(&b, w[l], x, l);
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

Test(residual, the_same_bytes_under_every_policy)
{
    static const char *const policies[] = { "full", "selective:ffn", "uniform:2", "block:1", "ops:linear_add",
                                            "ops:dropout_add", "ops:linear", "names:keep=up", "names:keep=stream" };
    for (int d = 0; d < 5; d++) {
        const rw_dtype dtype = d < 4 ? types[d] : RW_F32;
        struct bytes none = train("none", dtype, d == 4);
        for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
            struct bytes r = train(policies[p], dtype, d == 4);
            expect_same(&r, &none, policies[p], dtype, d);
            free(r.data);
        }
        free(none.data);
    }
}

/* A stream without other readers stays in one buffer. */
static size_t peak(bool one_op, float p)
{
    enum { ROWS = 2048, WIDTH = 64 };
    struct fixture b = open_fixture(false);
    rw_memory m;
    rw_tensor *const w = param(&b, "w", 0, RW_F32, RW_SHAPE(WIDTH, 8));
    rw_tensor *const in = rw_randn(b.t, RW_F32, RW_SHAPE(ROWS, 8));
    rw_tensor *x = rw_randn(b.t, RW_F32, RW_SHAPE(ROWS, WIDTH));
    for (int i = 0; i < 4; i++) {
        rw_tensor *const y = one_op && p == 0 ? in : rw_linear(b.t, in, w, RW_NONE);
        if (!one_op) x = rw_add(b.t, x, rw_dropout(b.t, y, p));
        else x = p > 0 ? rw_dropout_add(b.t, y, x, p) : rw_linear_add(b.t, in, w, RW_NONE, x);
    }
    rw_tensor *const sum = rw_sum(b.t, x, RW_ALL_AXES, false);
    float result;
    cr_assert_eq(rw_read(b.t, sum, &result, sizeof result), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &m);
    fixture_close(&b);
    return m.measured_peak;
}

Test(residual, the_result_reuses_the_memory_of_the_residual)
{
    const size_t stream = 2048 * 64 * sizeof(float);
    cr_assert_leq(peak(true, 0), peak(false, 0) - 3 * stream / 4, "the layer needs a little workspace, but no buffer");
    cr_assert_leq(peak(true, 0.5f), peak(false, 0.5f));
    cr_assert_lt(peak(true, 0.5f), 3 * stream, "x and the residual, and nothing beside them");
}

/* One operand of every sum is read later, the other is not: it does not matter which. */
static size_t peak_beside(bool x_lives)
{
    struct fixture b = open_fixture(false);
    rw_memory m;
    rw_tensor *const kept = rw_randn(b.t, RW_F32, RW_SHAPE(512, 64));
    rw_tensor *stream = rw_randn(b.t, RW_F32, RW_SHAPE(512, 64));
    for (int i = 0; i < 4; i++)
        stream = x_lives ? rw_dropout_add(b.t, kept, stream, 0.5f) : rw_dropout_add(b.t, stream, kept, 0.5f);
    rw_tensor *const sum = rw_sum(b.t, rw_mul(b.t, stream, kept), RW_ALL_AXES, false);
    float result;
    cr_assert_eq(rw_read(b.t, sum, &result, sizeof result), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &m);
    fixture_close(&b);
    return m.measured_peak;
}

Test(residual, either_operand_of_dropout_add_gives_its_buffer)
{
    cr_assert_lt(peak_beside(true), 3 * 512 * 64 * sizeof(float));
    cr_assert_lt(peak_beside(false), 3 * 512 * 64 * sizeof(float));
}
