/*
 * Members of parameter structs whose zero is a default: 0 is bit-identical to the default value, and RW_ZERO means
 * zero.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <rewind/moe.h>
#include <rewind/ops.h>
#include <string.h>

enum { N = 4 };

/* ---- optimizers ---- */

static rw_optimizer *opt;

static rw_status adamw(rw_context *ctx, const void *p)
{
    return rw_adamw_create(&opt, ctx, p);
}

static rw_status adam(rw_context *ctx, const void *p)
{
    return rw_adam_create(&opt, ctx, p);
}

static rw_status sgd(rw_context *ctx, const void *p)
{
    return rw_sgd_create(&opt, ctx, p);
}

static rw_status lion(rw_context *ctx, const void *p)
{
    return rw_lion_create(&opt, ctx, p);
}

/* Three steps of a matrix, by an optimizer with these parameters. */
static void train(rw_status (*create)(rw_context *, const void *), const void *p, const rw_optimizer_settings *s,
                  double *ret)
{
    struct fixture b = fixture_open(1, 1);
    const double start[N] = { 1, -2, 0.5, 3 };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F64, RW_SHAPE(2, 2));
    cr_assert_eq(rw_write(w, start, sizeof start), RW_OK);
    cr_assert_eq(create(b.ctx, p), RW_OK, "%s", rw_error_message(b.ctx));
    if (s) cr_assert_eq(rw_optimizer_set(opt, w, s), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < 3; step++) {
        const double g[N] = { 0.5, -0.25 * (step + 1), 1, -3 };
        rw_zero_grad(b.ctx);
        cr_assert_eq(rw_write(rw_gradient(w), g, sizeof g), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    cr_assert_eq(rw_read(NULL, w, ret, N * sizeof *ret), RW_OK);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

#define EXPECT_SAME(create, type, a, c) expect_same(create, &(type)a, &(type)c, NULL, NULL, true, __LINE__)
#define EXPECT_OTHER(create, type, a, c) expect_same(create, &(type)a, &(type)c, NULL, NULL, false, __LINE__)
#define BRACED(...) { __VA_ARGS__ }

static void expect_same(rw_status (*create)(rw_context *, const void *), const void *p, const void *q,
                        const rw_optimizer_settings *s, const rw_optimizer_settings *r, bool same, int line)
{
    double x[N], y[N];
    train(create, p, s, x);
    train(create, q, r, y);
    cr_expect_eq(memcmp(x, y, sizeof x) == 0, same, "line %d: %.17g and %.17g", line, x[0], y[0]);
}

Test(struct_zero_defaults, of_optimizers)
{
    EXPECT_SAME(adamw, rw_adamw_params, BRACED(0), BRACED(.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                                                          .weight_decay = 0.01));
    EXPECT_SAME(adamw, rw_adamw_params, BRACED(.weight_decay = RW_ZERO), BRACED(.weight_decay = -1));
    EXPECT_OTHER(adamw, rw_adamw_params, BRACED(.weight_decay = RW_ZERO), BRACED(.weight_decay = 0));
    EXPECT_SAME(adamw, rw_adamw_params, BRACED(.beta1 = RW_ZERO, .beta2 = RW_ZERO), BRACED(.beta1 = -1, .beta2 = -1));
    EXPECT_SAME(adamw, rw_adamw_params, BRACED(.eps = RW_ZERO, .lr = 1), BRACED(.eps = 1e-300, .lr = 1));
    EXPECT_SAME(adam, rw_adam_params, BRACED(.weight_decay = RW_ZERO), BRACED(0));
    EXPECT_SAME(adam, rw_adam_params, BRACED(.beta2 = RW_ZERO), BRACED(.beta2 = -1));
    EXPECT_SAME(lion, rw_lion_params, BRACED(.beta1 = RW_ZERO, .beta2 = RW_ZERO), BRACED(.beta1 = -1, .beta2 = -1));
    EXPECT_SAME(lion, rw_lion_params, BRACED(0), BRACED(.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.99));
    EXPECT_SAME(sgd, rw_sgd_params, BRACED(0), BRACED(.lr = 1e-3));
    EXPECT_SAME(sgd, rw_sgd_params, BRACED(.momentum = RW_ZERO, .dampening = RW_ZERO), BRACED(0));
    EXPECT_SAME(sgd, rw_sgd_params, BRACED(.momentum = 0.5, .dampening = RW_ZERO, .nesterov = true),
                BRACED(.momentum = 0.5, .nesterov = true));
}

Test(struct_zero_defaults, of_a_learning_rate)
{
    const double start[N] = { 1, -2, 0.5, 3 };
    double x[N];
    train(adamw, &(rw_adamw_params){ .lr = RW_ZERO }, NULL, x);
    cr_expect_eq(memcmp(x, start, sizeof x), 0);
    train(sgd, &(rw_sgd_params){ .lr = RW_ZERO }, NULL, x);
    cr_expect_eq(memcmp(x, start, sizeof x), 0);
    train(lion, NULL, &(rw_optimizer_settings){ .lr_factor = RW_ZERO }, x);
    cr_expect_eq(memcmp(x, start, sizeof x), 0);
}

Test(struct_zero_defaults, of_settings_of_one_parameter)
{
    const rw_adamw_params p = { .lr = 0.5, .weight_decay = 0.25 }, none = { .lr = 0.5, .weight_decay = RW_ZERO };
    expect_same(adamw, &p, &p, &(rw_optimizer_settings){ 0 }, NULL, true, __LINE__);
    expect_same(adamw, &p, &none, &(rw_optimizer_settings){ .weight_decay = RW_ZERO }, NULL, true, __LINE__);
    expect_same(adamw, &p, &none, NULL, NULL, false, __LINE__);
}

Test(struct_zero_defaults, of_a_momentum_that_is_needed)
{
    struct fixture b = fixture_open(1, 1);
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(100));
    cr_expect_eq(sgd(b.ctx, &(rw_sgd_params){ .nesterov = true, .momentum = RW_ZERO }), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    rw_memory m;
    cr_expect_eq(sgd(b.ctx, &(rw_sgd_params){ .momentum = RW_ZERO }), RW_OK);
    rw_memory_stats(b.ctx, &m);
    cr_expect_eq(m.optimizer, 0, "no states");
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- ops ---- */

static void expect_values(struct fixture *b, rw_tensor *y, const float *want, size_t n, const char *what)
{
    float got[8];
    cr_assert_eq(rw_read(b->t, y, got, n * sizeof *got), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (size_t i = 0; i < n; i++) cr_expect_eq(got[i], want[i], "%s, element %zu: %g", what, i, (double)got[i]);
}

/* The mean of the batch is { 3, 6 }, its variance { 4, 9 }. */
static void expect_batch_norm(double momentum, const float *running)
{
    struct fixture b = fixture_open(1, 1);
    const float x[4] = { 1, 3, 5, 9 }, want[4] = { -1, -1, 1, 1 };
    rw_tensor *const mean = rw_buffer(b.ctx, "mean", RW_F32, RW_SHAPE(2));
    rw_tensor *const var = rw_buffer(b.ctx, "var", RW_F32, RW_SHAPE(2));
    const rw_batchnorm_params p = { .eps = RW_ZERO, .momentum = momentum };
    rw_tensor *const y = rw_batchnorm(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2, 2), x, sizeof x), RW_NONE, RW_NONE, mean,
                                      var, &p);
    expect_values(&b, y, want, 4, "batch norm");
    rw_tape_reset(b.t);
    expect_values(&b, mean, running, 2, "running mean");
    fixture_close(&b);
}

Test(struct_zero_defaults, of_batch_norm)
{
    expect_batch_norm(0, (const float[]){ 0.1f * 3, 0.1f * 6 });
    expect_batch_norm(RW_ZERO, (const float[]){ 0, 0 });
}

Test(struct_zero_defaults, of_scales)
{
    struct fixture b = fixture_open(1, 1);
    const float x[4] = { 1, 3, 5, 9 }, none[4] = { 0, 0, 0, 0 };
    rw_tensor *const rows = rw_input(b.t, RW_F32, RW_SHAPE(1, 1, 1, 4), x, sizeof x), *index = NULL;
    expect_values(&b, rw_rope_with(b.t, rows, RW_NONE, &(rw_rope_params){ .scale = RW_ZERO }), none, 4, "rope");
    expect_values(&b, rw_rope_with(b.t, rows, RW_NONE, &(rw_rope_params){ 0 }), x, 4, "rope at position 0");
    rw_tensor *const logits = rw_input(b.t, RW_F32, RW_SHAPE(1, 4), x, sizeof x);
    const rw_moe_router_params p = { .choice = { .k = 2 }, .scale = RW_ZERO };
    expect_values(&b, rw_moe_router(b.t, logits, &p, &index, NULL), none, 2, "router");
    fixture_close(&b);
}

/* A scale of zero is not a default: it is refused, also if a type rounds it to zero. */
Test(struct_zero_defaults, of_attention_are_refused)
{
    static const double scales[] = { RW_ZERO, 1e-300 };
    for (size_t i = 0; i < 2; i++) {
        struct fixture b = fixture_open(1, 1);
        const float x[4] = { 1, 3, 5, 9 };
        rw_tensor *const q = rw_input(b.t, RW_F32, RW_SHAPE(1, 1, 2, 2), x, sizeof x);
        cr_expect_null(rw_attention(b.t, q, q, q, &(rw_attention_params){ .scale = scales[i] }));
        cr_expect_eq(rw_error_status(b.ctx), RW_ERR_ARGUMENT);
        cr_expect(strstr(rw_error_message(b.ctx), "scale: expected a finite number other than 0, got 0"), "%s",
                  rw_error_message(b.ctx));
        fixture_close(&b);
    }
}
