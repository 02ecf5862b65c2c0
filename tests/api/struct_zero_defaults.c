/*
 * Members of parameter structs whose zero is a default: 0 is bit-identical to the default value, and RW_ZERO means
 * zero. The last test knows every double and float member of the public structs from the headers
 * (tests/tools/generate_struct_fields.py), so a new member fails there until it has a row.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <rewind/rewind.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 4 };

struct double_member {
    const char *of, *name;
};

#include "public_doubles.h"

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

/* ---- every double and float member of the public structs ---- */

/* Everything that a use of a struct shows, as text: numbers in full, messages, numbers of nodes. */
struct outcome {
    char text[4096];
    size_t n;
};

static void say(struct outcome *o, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    o->n += (size_t)vsnprintf(o->text + o->n, sizeof o->text - o->n, format, list);
    va_end(list);
    cr_assert_lt(o->n, sizeof o->text);
}

/* The values of x in float64, or the message. */
static void say_values(struct fixture *b, struct outcome *o, rw_tensor *x)
{
    double got[8];
    const size_t n = x ? (size_t)rw_shape_numel(rw_tensor_shape(x)) : 0;
    cr_assert_leq(n, 8);
    if (!x || rw_read(b->t, rw_cast(b->t, x, RW_F64), got, n * sizeof *got)) say(o, "%s\n", rw_error_message(b->ctx));
    else
        for (size_t i = 0; i < n; i++) say(o, "%a ", got[i]);
    rw_error_clear(b->ctx);
}

static const double numbers[8] = { 1, 3, 5, 9, -2, 4, 1, 0 };

static rw_tensor *numbers_of(struct fixture *b, rw_dtype dtype, rw_shape shape)
{
    const size_t bytes = (size_t)rw_shape_numel(shape) * sizeof *numbers;
    return rw_cast(b->t, rw_input(b->t, RW_F64, shape, numbers, bytes), dtype);
}

#define OPTIMIZER(name)                                                                      \
    static void use_##name(struct fixture *b, const void *p, struct outcome *o)              \
    {                                                                                        \
        double x[N];                                                                         \
        (void)b;                                                                             \
        train(name, p, NULL, x);                                                             \
        for (int i = 0; i < N; i++) say(o, "%a ", x[i]);                                     \
    }
OPTIMIZER(adamw)
OPTIMIZER(adam)
OPTIMIZER(sgd)
OPTIMIZER(lion)

static void use_settings(struct fixture *b, const void *p, struct outcome *o)
{
    double x[N];
    (void)b;
    train(adamw, &(rw_adamw_params){ .lr = 0.5, .weight_decay = 0.25 }, p, x);
    for (int i = 0; i < N; i++) say(o, "%a ", x[i]);
}

static void use_attention(struct fixture *b, const void *p, struct outcome *o)
{
    for (int i = 0; i < 2; i++) {
        rw_tensor *const q = numbers_of(b, i ? RW_F64 : RW_F32, RW_SHAPE(1, 1, 4, 2));
        const uint64_t offset = rw_generator_get(b->ctx).offset;
        say_values(b, o, rw_attention(b->t, q, q, q, p));
        say(o, "%d draws\n", (int)(rw_generator_get(b->ctx).offset - offset));
    }
}

static void use_rope(struct fixture *b, const void *p, struct outcome *o)
{
    const int32_t positions[2] = { 1, 2 };
    rw_tensor *const at = rw_input(b->t, RW_I32, RW_SHAPE(2), positions, sizeof positions);
    say_values(b, o, rw_rope_with(b->t, numbers_of(b, RW_F32, RW_SHAPE(1, 1, 2, 4)), at, p));
}

static void use_router(struct fixture *b, const void *p, struct outcome *o)
{
    rw_tensor *index;
    say_values(b, o, rw_moe_router(b->t, numbers_of(b, RW_F32, RW_SHAPE(2, 4)), p, &index, NULL));
}

static void use_batchnorm(struct fixture *b, const void *p, struct outcome *o)
{
    rw_tensor *const mean = rw_buffer(b->ctx, "mean", RW_F32, RW_SHAPE(2));
    rw_tensor *const var = rw_buffer(b->ctx, "var", RW_F32, RW_SHAPE(2));
    rw_tensor *const x = numbers_of(b, RW_F32, RW_SHAPE(4, 2));
    say_values(b, o, rw_batchnorm(b->t, x, RW_NONE, RW_NONE, mean, var, p));
    rw_tape_reset(b->t);
    say_values(b, o, mean);
    say_values(b, o, var);
}

/* Indices, probabilities, a layer, and log-probabilities, with the number of nodes that each recorded. */
static void use_cross_entropy(struct fixture *b, const void *p, struct outcome *o)
{
    const int32_t classes[4] = { 0, 1, 1, 0 };
    rw_tensor *const target = rw_input(b->t, RW_I32, RW_SHAPE(4), classes, sizeof classes);
    for (int i = 0; i < 2; i++) {
        rw_tensor *const x = numbers_of(b, i ? RW_F64 : RW_F32, RW_SHAPE(4, 2));
        rw_tensor *const shares = rw_softmax(b->t, x, -1), *const logs = rw_log_softmax(b->t, x, -1);
        rw_tensor *const w = rw_slice(b->t, x, 0, 0, 2);
        for (int k = 0; k < 4; k++) {
            const size_t nodes = rw_tape_nodes(b->t);
            rw_tensor *const y = k == 0   ? rw_cross_entropy_with(b->t, x, target, RW_NONE, p)
                                 : k == 1 ? rw_cross_entropy_with(b->t, x, shares, RW_NONE, p)
                                 : k == 2 ? rw_linear_cross_entropy(b->t, x, w, target, p)
                                          : rw_nll_loss(b->t, logs, target, RW_NONE, p);
            say(o, "%d nodes ", (int)(rw_tape_nodes(b->t) - nodes));
            say_values(b, o, y);
        }
    }
}

static void use_offload(struct fixture *b, const void *p, struct outcome *o)
{
    rw_context_set_offload(b->ctx, p);
    say(o, "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

static void use_scaler(struct fixture *b, const void *p, struct outcome *o)
{
    rw_scaler *scaler = NULL;
    rw_scaler_create(&scaler, b->ctx, p);
    say(o, "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    rw_scaler_destroy(&scaler);
}

static void use_schedule(struct fixture *b, const void *p, struct outcome *o)
{
    (void)b;
    for (rw_lr_schedule_kind kind = RW_LR_CONSTANT; kind <= RW_LR_STEPS; kind++) {
        rw_lr_schedule s = *(const rw_lr_schedule *)p;
        s.kind = kind;
        for (uint64_t step = 0; step < 8; step++) say(o, "%a ", rw_lr_schedule_rate(&s, step));
    }
}

/* The line of a step that took two seconds, or a time that is unknown because there was no step before. */
static void say_line(struct fixture *b, const rw_monitor_sources *sources, const rw_monitor_values *v,
                     struct outcome *o)
{
    char path[128];
    const char *const tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.60s/rewind-zeros-%ld.jsonl", tmp ? tmp : P_tmpdir, (long)getpid());
    remove(path);
    rw_monitor *m = NULL;
    cr_assert_eq(rw_monitor_create(&m, b->ctx, path), RW_OK);
    cr_assert_eq(rw_monitor_watch(m, sources), RW_OK);
    rw_tensor *const w = rw_param(b->ctx, "w", RW_F32, RW_SHAPE(2, 4));
    rw_tensor *const y = rw_linear(b->t, numbers_of(b, RW_F32, RW_SHAPE(2, 4)), w, RW_NONE);
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, y, RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_monitor_step(m, v, NULL), RW_OK);
    rw_monitor_destroy(&m);
    FILE *const f = fopen(path, "r");
    cr_assert(f && fgets(o->text, sizeof o->text, f));
    fclose(f);
    remove(path);
}

static void use_sources(struct fixture *b, const void *p, struct outcome *o)
{
    say_line(b, p, &(rw_monitor_values){ .seconds = 2 }, o);
}

static void use_monitor_values(struct fixture *b, const void *p, struct outcome *o)
{
    say_line(b, NULL, p, o);
}

/*
 * RW_ZERO shows the same as `like`: another spelling of zero, 0 where that is the default. Or, where none exists,
 * the outcome has the text `shows`.
 */
static const struct {
    const char *of, *name;
    size_t at, size;
    void (*use)(struct fixture *b, const void *p, struct outcome *o);
    const void *rest; /* the other members */
    double like;
    const char *shows;
} rows[] = {
#define ROW(type, member, use, like, shows, ...) \
    { #type, #member, offsetof(type, member), sizeof(type), use, &(const type){ __VA_ARGS__ }, like, shows }
    ROW(rw_adamw_params, lr, use_adamw, 1e-300, NULL, 0),
    ROW(rw_adamw_params, beta1, use_adamw, -1, NULL, 0),
    ROW(rw_adamw_params, beta2, use_adamw, -1, NULL, 0),
    ROW(rw_adamw_params, eps, use_adamw, 1e-300, NULL, .lr = 1),
    ROW(rw_adamw_params, weight_decay, use_adamw, -1, NULL, 0),
    ROW(rw_adam_params, lr, use_adam, 1e-300, NULL, 0),
    ROW(rw_adam_params, beta1, use_adam, -1, NULL, 0),
    ROW(rw_adam_params, beta2, use_adam, -1, NULL, 0),
    ROW(rw_adam_params, eps, use_adam, 1e-300, NULL, .lr = 1),
    ROW(rw_adam_params, weight_decay, use_adam, 0, NULL, 0),
    ROW(rw_sgd_params, lr, use_sgd, 1e-300, NULL, 0),
    ROW(rw_sgd_params, momentum, use_sgd, 0, NULL, 0),
    ROW(rw_sgd_params, dampening, use_sgd, 0, NULL, .momentum = 0.5, .nesterov = true),
    ROW(rw_sgd_params, weight_decay, use_sgd, 0, NULL, 0),
    ROW(rw_lion_params, lr, use_lion, 1e-300, NULL, 0),
    ROW(rw_lion_params, beta1, use_lion, -1, NULL, 0),
    ROW(rw_lion_params, beta2, use_lion, -1, NULL, 0),
    ROW(rw_lion_params, weight_decay, use_lion, 0, NULL, 0),
    ROW(rw_optimizer_settings, lr_factor, use_settings, -1, NULL, 0),
    ROW(rw_optimizer_settings, weight_decay, use_settings, -1, NULL, 0),
    ROW(rw_attention_params, scale, use_attention, 0, "scale: expected a finite number other than 0, got 0", 0),
    ROW(rw_attention_params, dropout, use_attention, 0, NULL, 0),
    ROW(rw_attention_params, soft_cap, use_attention, 0, NULL, 0),
    ROW(rw_rope_params, base, use_rope, 0, "base: expected a finite number above 0, got 0", 0),
    ROW(rw_rope_params, scale, use_rope, 1e-300, NULL, 0),
    ROW(rw_moe_router_params, scale, use_router, 1e-300, NULL, .choice = { .k = 2 }),
    ROW(rw_batchnorm_params, eps, use_batchnorm, 1e-300, NULL, 0),
    ROW(rw_batchnorm_params, momentum, use_batchnorm, 1e-300, NULL, 0),
    ROW(rw_cross_entropy_params, label_smoothing, use_cross_entropy, 0, NULL, 0),
    ROW(rw_cross_entropy_params, z_loss, use_cross_entropy, 0, NULL, 0),
    ROW(rw_offload, out_bytes_per_s, use_offload, 0, NULL, 0),
    ROW(rw_offload, in_bytes_per_s, use_offload, 0, NULL, 0),
    ROW(rw_scaler_params, init_scale, use_scaler, 0, "got 0", 0),
    ROW(rw_scaler_params, growth_factor, use_scaler, 0, "got 0", 0),
    ROW(rw_scaler_params, backoff_factor, use_scaler, 0, "got 0", 0),
    ROW(rw_scaler_params, min_scale, use_scaler, 0, "got 0", 0),
    ROW(rw_scaler_params, max_scale, use_scaler, 0, "got 0", 0),
    ROW(rw_lr_schedule, lr, use_schedule, 0, NULL, .total = 6, .every = 2, .warmup = 1),
    ROW(rw_lr_schedule, min_lr, use_schedule, 0, NULL, .lr = 1, .total = 6, .every = 2, .warmup = 1),
    ROW(rw_lr_schedule, factor, use_schedule, 1e-300, NULL, .lr = 1, .min_lr = 1e-3, .total = 6, .every = 2),
    ROW(rw_monitor_sources, peak_flops, use_sources, 0, NULL, 0),
    ROW(rw_monitor_values, loss, use_monitor_values, 0, NULL, 0),
    ROW(rw_monitor_values, grad_norm, use_monitor_values, -1, NULL, 0),
    ROW(rw_monitor_values, lr, use_monitor_values, 0, "\"lr\":0,", .seconds = 2),
    ROW(rw_monitor_values, tokens, use_monitor_values, 0, "\"tokens_per_s\":0,", .seconds = 2),
    ROW(rw_monitor_values, seconds, use_monitor_values, 0, NULL, .tokens = 2),
    ROW(rw_monitor_values, loss_scale, use_monitor_values, 0, NULL, 0),
};

/* Structs that the library fills in, or an op's own function, or that a function makes: their numbers have no
   defaults. */
static const char *const results[] = { "rw_cost", "rw_op_cost", "rw_monitor_numbers", "rw_monitor_group_numbers",
                                       "rw_monitor_alert", "rw_monitor_site", "rw_nonfinite", "rw_prediction",
                                       "rw_frontier_point", "rw_recorder", "rw_scaler_state", "rw_scaled_step",
                                       "ckpt_report" };

static void show(size_t row, double value, struct outcome *o)
{
    struct fixture b = fixture_open(1, 1);
    char *const p = malloc(rows[row].size);
    cr_assert_not_null(p);
    memcpy(p, rows[row].rest, rows[row].size);
    memcpy(p + rows[row].at, &value, sizeof value);
    *o = (struct outcome){ 0 };
    rows[row].use(&b, p, o);
    free(p);
    fixture_close(&b);
}

Test(struct_zero_defaults, of_every_number)
{
    static struct outcome zero, like;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        show(i, RW_ZERO, &zero);
        show(i, rows[i].like, &like);
        if (rows[i].shows)
            cr_expect(strstr(zero.text, rows[i].shows), "%s.%s: %s", rows[i].of, rows[i].name, zero.text);
        else
            cr_expect_str_eq(zero.text, like.text, "%s.%s: RW_ZERO: %s\nexpected: %s", rows[i].of, rows[i].name,
                             zero.text, like.text);
    }
}

Test(struct_zero_defaults, rows_are_complete)
{
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) {
        bool known = false;
        for (size_t k = 0; k < sizeof results / sizeof *results; k++) known |= !strcmp(results[k], doubles[i].of);
        for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
            known |= !strcmp(rows[k].of, doubles[i].of) && !strcmp(rows[k].name, doubles[i].name);
        cr_expect(known, "%s.%s: give it a row above", doubles[i].of, doubles[i].name);
    }
}
