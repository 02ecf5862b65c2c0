/*
 * Optimizers of every kind: compared with PyTorch in float64 (golden/make_optimizers.py), bit-identical for every
 * number of threads and in graphs; and settings of single parameters have the effect of an optimizer with these
 * settings.
 */
#include "golden/optimizers.h"
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the kinds ---- */

/* Creates an optimizer by the name of its golden values. */
static rw_status make(rw_optimizer **opt, rw_context *ctx, const char *name)
{
    if (!strncmp(name, "sgd", 3)) {
        rw_sgd_params p = { .lr = 0.0625, .decay_all = true };
        if (strcmp(name, "sgd") && strcmp(name, "sgd, momentum")) p.weight_decay = 0.5;
        if (strcmp(name, "sgd") && strcmp(name, "sgd, decay")) p.momentum = 0.75;
        if (!strcmp(name, "sgd, dampening")) p.dampening = 0.25;
        p.nesterov = !strcmp(name, "sgd, nesterov");
        return rw_sgd_create(opt, ctx, &p);
    }
    if (!strcmp(name, "lion"))
        return rw_lion_create(opt, ctx, &(rw_lion_params){ .lr = 0.0625, .beta1 = 0.875, .beta2 = 0.125,
                                                           .weight_decay = 0.25, .decay_all = true });
    if (!strcmp(name, "adamw"))
        return rw_adamw_create(opt, ctx, &(rw_adamw_params){ .lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.3,
                                                             .weight_decay = 0.2, .decay_all = true });
    return rw_adam_create(opt, ctx, &(rw_adam_params){ .lr = 0.05, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.3,
                                                       .weight_decay = strcmp(name, "adam") ? 0.2 : 0,
                                                       .decay_all = true });
}

static double gradient_of(int64_t i, int step)
{
    return ((double)((uint64_t)(i * 31 + step * 17) * 2654435761u >> 9 & 0x7f) - 63) / 64;
}

static double start_of(int64_t i, int step)
{
    return ((double)((uint64_t)i * 40503u >> 3 & 0x7f) - 50) / 32;
}

/* Repeats a few numbers, so that every vector lane has each of them. */
static void fill(rw_tensor *x, double (*value)(int64_t, int), int step)
{
    const rw_dtype dtype = rw_tensor_dtype(x);
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    void *const data = malloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, value(i % GOLDEN_N, step)));
    cr_assert_eq(rw_write(x, data, rw_tensor_bytes(x)), RW_OK);
    free(data);
}

/*
 * States and master copies are float32 here, of numbers up to 4, and a step has at most ten roundings, none of whose
 * errors grows in the next step: five steps, each number rounded to within 2^-22, and 16-bit parameters once more.
 */
static double bound_of(rw_dtype dtype, double want)
{
    if (dtype == RW_F64) return 64 * 0x1p-53 * (1 + fabs(want));
    return 64 * 0x1p-24 * (1 + fabs(want)) + (dtype == RW_F32 ? 0 : unit_roundoff(dtype) * fabs(want));
}

/* Compares the parameters after five steps with PyTorch's. */
static void check_golden(const char *name, const double *want, rw_dtype dtype, rw_dtype grad_dtype)
{
    struct fixture b = fixture_open(1, 2);
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param_with(b.ctx, "w", dtype, RW_SHAPE(61, GOLDEN_N),
                                       &(rw_param_options){ .grad_dtype = grad_dtype });
    cr_assert_eq(make(&opt, b.ctx, name), RW_OK, "%s", rw_error_message(b.ctx));
    fill(w, start_of, 0);
    for (int step = 0; step < GOLDEN_STEPS; step++) {
        rw_zero_grad(b.ctx);
        fill(rw_gradient(w), gradient_of, step);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
    }
    void *const got = malloc(rw_tensor_bytes(w));
    cr_assert_eq(rw_read(NULL, w, got, rw_tensor_bytes(w)), RW_OK);
    for (int i = 0; i < 61 * GOLDEN_N; i++) {
        const double x = number_get(got, dtype, i), y = want[i % GOLDEN_N];
        cr_expect(fabs(x - y) <= bound_of(dtype, y), "%s, %s, element %d: %.17g, not %.17g", name, rw_dtype_name(dtype),
                  i, x, y);
    }
    free(got);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

static bool is_optimizer(const char *name)
{
    return strcmp(name, "average") != 0;
}

Test(optimizers, are_those_of_pytorch)
{
    static const rw_dtype dtypes[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    for (size_t i = 0; i < sizeof golden_rows / sizeof *golden_rows; i++)
        for (size_t d = 0; is_optimizer(golden_rows[i].name) && d < 4; d++) {
            check_golden(golden_rows[i].name, golden_rows[i].want, dtypes[d], RW_F32);
            check_golden(golden_rows[i].name, golden_rows[i].want, dtypes[d], dtypes[d]);
        }
}

/* ---- the same bytes ---- */

enum { N = 5 };

/* Parameters of every type, one of them longer than a thread's part, and one whose gradient stays clear. */
struct zoo {
    struct fixture b;
    rw_tensor *w[N + 1];
    rw_optimizer *opt;
};

static struct zoo zoo_open(const char *name, int threads)
{
    static const rw_dtype dtypes[N + 1] = { RW_F32, RW_BF16, RW_F16, RW_F64, RW_F32, RW_BF16 };
    const int64_t long_one = test_device() == RW_DEVICE_CPU ? 40003 : 9001;
    struct zoo z = { .b = fixture_open(3, threads) };
    for (int k = 0; k <= N; k++) {
        char text[8];
        snprintf(text, sizeof text, "w%d", k);
        z.w[k] = rw_param(z.b.ctx, text, dtypes[k], k == 4 ? RW_SHAPE(long_one) : RW_SHAPE(7, 5 + k));
        cr_assert_eq(rw_init_normal(z.w[k], 0, 1), RW_OK);
    }
    cr_assert_eq(make(&z.opt, z.b.ctx, name), RW_OK, "%s", rw_error_message(z.b.ctx));
    return z;
}

static void zoo_close(struct zoo *z)
{
    rw_optimizer_destroy(&z->opt);
    fixture_close(&z->b);
}

static rw_tensor *zoo_loss(struct zoo *z)
{
    rw_tensor *sum = NULL;
    for (int k = 0; k < N; k++) {
        rw_tensor *const x = rw_cast(z->b.t, z->w[k], RW_F32);
        rw_tensor *const y = rw_sum(z->b.t, rw_mul(z->b.t, x, rw_dropout(z->b.t, x, 0.25f)), RW_ALL_AXES, false);
        sum = sum ? rw_add(z->b.t, sum, y) : y;
    }
    return sum;
}

/* Four steps by calls or by a graph; returns the parameters. */
static unsigned char *train(const char *name, int threads, bool graph, size_t *bytes)
{
    struct zoo z = zoo_open(name, threads);
    rw_graph *g = NULL;
    for (int s = 0; s < 4; s++) {
        rw_optimizer_set_lr(z.opt, 0.03 / (s + 1));
        if (graph && !g)
            cr_assert_eq(rw_graph_create(&g, z.b.t, zoo_loss(&z),
                                         &(rw_graph_params){ { rw_record_update(z.opt) } }), RW_OK);
        if (g) {
            cr_assert_eq(audited_launch(g, z.b.t), RW_OK, "%s", rw_error_message(z.b.ctx));
            continue;
        }
        rw_zero_grad(z.b.ctx);
        cr_assert_eq(rw_backward(z.b.t, zoo_loss(&z)), RW_OK, "%s", rw_error_message(z.b.ctx));
        rw_tape_reset(z.b.t);
        cr_assert_eq(rw_optimizer_step(z.opt), RW_OK, "%s", rw_error_message(z.b.ctx));
    }
    unsigned char *const all = all_parameters(z.b.ctx, bytes);
    rw_graph_destroy(&g);
    zoo_close(&z);
    return all;
}

Test(optimizers, give_the_same_bytes_for_every_number_of_threads_and_in_graphs)
{
    for (size_t i = 0; i < sizeof golden_rows / sizeof *golden_rows; i++) {
        const char *const name = golden_rows[i].name;
        size_t bytes;
        if (!is_optimizer(name)) continue;
        unsigned char *const want = train(name, 1, false, &bytes);
        for (int threads = 1; threads <= 5; threads++) {
            unsigned char *const got = train(name, threads, threads % 2, &bytes);
            cr_assert_eq(first_difference(got, want, bytes), -1, "%s, %d threads", name, threads);
            free(got);
        }
        free(want);
    }
}

/* ---- settings of single parameters ---- */

static rw_status adamw(rw_optimizer **opt, rw_context *ctx, double lr, double decay, bool all)
{
    return rw_adamw_create(opt, ctx, &(rw_adamw_params){ .lr = lr, .weight_decay = decay, .decay_all = all });
}

/* w[0] after some steps: a matrix, by an optimizer with these parameters, with these settings for it. */
static double after(double lr, double decay, bool all, bool vector, const rw_optimizer_settings *settings)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    double x[3];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F64, vector ? RW_SHAPE(3) : RW_SHAPE(1, 3));
    cr_assert_eq(adamw(&opt, b.ctx, lr, decay, all), RW_OK);
    fill(w, start_of, 0);
    if (settings) cr_assert_eq(rw_optimizer_set(opt, w, settings), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < 3; step++) {
        rw_zero_grad(b.ctx);
        fill(rw_gradient(w), gradient_of, step);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    cr_assert_eq(rw_read(NULL, w, x, sizeof x), RW_OK);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
    return x[1];
}

Test(optimizers, settings_of_one_parameter_are_those_numbers)
{
    const double start = start_of(1, 0);
    cr_expect_eq(after(0.5, 0.25, false, false, &(rw_optimizer_settings){ .lr_factor = 0.5 }),
                 after(0.25, 0.25, false, false, NULL));
    cr_expect_eq(after(0.5, 0.25, false, false, &(rw_optimizer_settings){ .weight_decay = 0.125 }),
                 after(0.5, 0.125, false, false, NULL));
    cr_expect_eq(after(0.5, 0.25, false, false, &(rw_optimizer_settings){ .weight_decay = -1 }),
                 after(0.5, -1, false, false, NULL));
    cr_expect_eq(after(0.5, 0.25, false, true, NULL), after(0.5, -1, false, true, NULL), "a vector does not decay");
    cr_expect_eq(after(0.5, 0.25, false, true, &(rw_optimizer_settings){ .weight_decay = 0.125 }),
                 after(0.5, 0.125, true, true, NULL), "but it may be told to");
    cr_expect_eq(after(0.5, 0.25, false, false, &(rw_optimizer_settings){ .lr_factor = -1 }), start);
    cr_expect_eq(after(0.5, 0.25, false, false, &(rw_optimizer_settings){ 0 }), after(0.5, 0.25, false, false, NULL));
    cr_expect_neq(after(0.5, 0.25, false, false, NULL), after(0.5, -1, false, false, NULL));
}

/* Settings of one parameter do not affect the next one, though both have one rank and one step. */
Test(optimizers, settings_of_one_parameter_leave_the_others)
{
    struct zoo a = zoo_open("adamw", 1), z = zoo_open("adamw", 1);
    const float ones[64] = { 1, 1, 1 };
    cr_assert_eq(rw_optimizer_set(z.opt, z.w[1], &(rw_optimizer_settings){ .lr_factor = 0.1 }), RW_OK);
    for (int k = 0; k < 2; k++) {
        struct zoo *const one = k ? &z : &a;
        for (int i = 0; i < 3; i++) cr_assert_eq(rw_write(rw_gradient(one->w[i]), ones,
                                                          rw_tensor_bytes(rw_gradient(one->w[i]))), RW_OK);
        cr_assert_eq(rw_optimizer_step(one->opt), RW_OK);
    }
    for (int i = 0; i < 3; i++) {
        unsigned char x[256], y[256];
        const size_t bytes = rw_tensor_bytes(a.w[i]);
        cr_assert_eq(rw_read(NULL, a.w[i], x, bytes), RW_OK);
        cr_assert_eq(rw_read(NULL, z.w[i], y, bytes), RW_OK);
        cr_expect_eq(memcmp(x, y, bytes) == 0, i != 1, "parameter %d", i);
    }
    zoo_close(&a);
    zoo_close(&z);
}

/* ---- untrained parameters ---- */

/* A frozen base with a small update added to it, as in LoRA. */
Test(optimizers, frozen_weights_take_neither_gradients_nor_states)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory before, is;
    rw_tensor *const base = rw_buffer(b.ctx, "base", RW_F32, RW_SHAPE(64, 64));
    cr_assert_eq(rw_init_normal(base, 0, 1), RW_OK);
    rw_memory_stats(b.ctx, &before);
    rw_tensor *const down = rw_param(b.ctx, "down", RW_F32, RW_SHAPE(2, 64));
    rw_tensor *const up = rw_param(b.ctx, "up", RW_F32, RW_SHAPE(64, 2));
    rw_init_normal(down, 0, 1);
    rw_optimizer *opt = NULL;
    cr_assert_eq(rw_lion_create(&opt, b.ctx, NULL), RW_OK);
    float x[64], was[64 * 64], now[64 * 64];
    for (int i = 0; i < 64; i++) x[i] = (float)gradient_of(i, 0);
    rw_read(NULL, base, was, sizeof was);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(1, 64), x, sizeof x);
    rw_tensor *const y = rw_add(b.t, rw_linear(b.t, in, base, RW_NONE),
                                rw_linear(b.t, rw_linear(b.t, in, down, RW_NONE), up, RW_NONE));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &is);
    cr_expect_eq(is.gradients - before.gradients, 2 * 2 * 64 * sizeof(float));
    cr_expect_eq(is.optimizer - before.optimizer, 2 * 2 * 64 * sizeof(float), "one moment each");
    cr_expect_null(rw_gradient(base));
    rw_read(NULL, base, now, sizeof now);
    cr_expect_eq(memcmp(was, now, sizeof was), 0);
    float moved[128];
    rw_read(NULL, up, moved, sizeof moved);
    cr_expect_eq(fabsf(moved[0]), 1e-4f, "up was zero: it moves by the rate");
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

Test(optimizers, sgd_without_momentum_has_no_states)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_memory m;
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(100));
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, NULL), RW_OK);
    rw_memory_stats(b.ctx, &m);
    cr_expect_eq(m.optimizer, 0);
    rw_optimizer_destroy(&opt);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .momentum = 0.9 }), RW_OK);
    rw_memory_stats(b.ctx, &m);
    cr_expect_eq(m.optimizer, 400);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- mistakes ---- */

static void refused(struct fixture *b, rw_status got, rw_optimizer *opt, const char *text)
{
    cr_expect_eq(got, RW_ERR_ARGUMENT, "%s", text);
    cr_expect_null(opt);
    cr_expect(strstr(rw_error_message(b->ctx), text), "%s, not %s", rw_error_message(b->ctx), text);
    rw_error_clear(b->ctx);
}

Test(optimizers, refuse_numbers_that_make_no_sense)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3)), *const free_one = rw_buffer(b.ctx, "b", RW_F32,
                                                                                                 RW_SHAPE(3));
    static const struct {
        rw_sgd_params params;
        const char *text;
    } bad[] = {
        { { .lr = -1 }, "rw_sgd_create(lr): expected 0 or more, got -1" },
        { { .momentum = 1 }, "(momentum): expected below 1, got 1" },
        { { .momentum = NAN }, "(momentum): expected below 1, got nan" },
        { { .momentum = 0.5, .dampening = 1 }, "(dampening): expected below 1 and above -1e300, got 1" },
        { { .weight_decay = INFINITY }, "(weight_decay): expected a finite number, got inf" },
        { { .nesterov = true }, "expected a momentum above 0" },
        { { .nesterov = true, .momentum = 0.5, .dampening = 0.1 }, "no dampening with nesterov, got 0.5 and 0.1" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        refused(&b, rw_sgd_create(&opt, b.ctx, &bad[i].params), opt, bad[i].text);
    static const double no[] = { NAN, INFINITY, -INFINITY };
    for (int i = 0; i < 3; i++) { /* every number that an optimizer takes as a parameter */
        refused(&b, rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = no[i] }), opt, "(lr): ");
        refused(&b, rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .momentum = no[i] }), opt, "(momentum): ");
        refused(&b, rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .dampening = no[i] }), opt, "(dampening): ");
        refused(&b, rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .weight_decay = no[i] }), opt, "(weight_decay): ");
        refused(&b, rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .beta1 = no[i] }), opt, "(beta1): ");
        refused(&b, rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .eps = no[i] }), opt, "(eps): ");
        refused(&b, rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .beta2 = no[i] }), opt, "(beta2): ");
        refused(&b, rw_lion_create(&opt, b.ctx, &(rw_lion_params){ .beta1 = no[i] }), opt, "(beta1): ");
    }
    refused(&b, rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .eps = -1 }), opt,
            "rw_adam_create(eps): expected 0 or more, got -1");
    refused(&b, rw_lion_create(&opt, b.ctx, &(rw_lion_params){ .beta2 = 1 }), opt,
            "rw_lion_create(beta2): expected below 1, got 1");
    refused(&b, rw_lion_create(NULL, b.ctx, NULL), opt, "ret_opt");
    cr_expect_eq(rw_adam_create(&opt, NULL, NULL), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_lion_create(&opt, b.ctx, NULL), RW_OK);
    refused(&b, rw_optimizer_set(opt, free_one, NULL), NULL, "expected a parameter that the optimizer has, got \"b\"");
    refused(&b, rw_optimizer_set(opt, NULL, NULL), NULL, "param is NULL");
    refused(&b, rw_optimizer_set(opt, w, &(rw_optimizer_settings){ .lr_factor = NAN }), NULL,
            "of \"w\": expected finite numbers, got nan");
    for (int i = 0; i < 3; i++) {
        refused(&b, rw_optimizer_set(opt, w, &(rw_optimizer_settings){ .lr_factor = no[i] }), NULL, "lr_factor");
        refused(&b, rw_optimizer_set(opt, w, &(rw_optimizer_settings){ .weight_decay = no[i] }), NULL, "weight_decay");
        rw_optimizer_set_lr(opt, no[i]);
        refused(&b, rw_optimizer_step(opt), NULL, "(lr): expected a finite number of 0 or more");
    }
    cr_expect_eq(rw_optimizer_set(NULL, w, NULL), RW_ERR_ARGUMENT);
    cr_expect_eq(rw_optimizer_step(NULL), RW_ERR_ARGUMENT);
    rw_optimizer_set_lr(NULL, 1);
    rw_optimizer_destroy(&opt);
    rw_optimizer_destroy(&opt);
    rw_optimizer_destroy(NULL);
    fixture_close(&b);
}

/* The rate of a parameter is a product. The call that sets the second of its numbers is refused, with a message that
   names all, and the weights stay finite with the numbers before. */
Test(optimizers, refuse_rates_that_overflow)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
    float got[4];
    rw_init_constant(w, 1);
    refused(&b, rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1e39 }), opt,
            "rw_sgd_create(lr): expected an update whose numbers are finite in f32, got a learning rate of 1e+39, an "
            "lr_factor of 1 and a weight_decay of 0 for \"w\"");
    refused(&b, rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .lr = 3e38 }), opt, "rw_adam_create(lr)");
    refused(&b, rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 1e30, .weight_decay = 1e10 }), opt,
            "a weight_decay of 1e+10");
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1e30 }), RW_OK);
    refused(&b, rw_optimizer_set(opt, w, &(rw_optimizer_settings){ .lr_factor = 1e30 }), NULL,
            "rw_optimizer_set(lr_factor, weight_decay): expected an update whose numbers are finite in f32, got a "
            "learning rate of 1e+30, an lr_factor of 1e+30 ");
    cr_expect_eq(rw_optimizer_set(opt, w, &(rw_optimizer_settings){ .lr_factor = 1e5 }), RW_OK);
    rw_optimizer_set_lr(opt, 1e35);
    refused(&b, rw_optimizer_step(opt), NULL, "rw_optimizer_set_lr(lr): expected an update whose numbers are finite in "
            "f32, got a learning rate of 1e+35, an lr_factor of 100000 ");
    cr_assert_eq(rw_write(rw_gradient(w), (float[4]){ 0 }, sizeof got), RW_OK);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    cr_assert_eq(rw_read(NULL, w, got, sizeof got), RW_OK);
    for (int i = 0; i < 4; i++) cr_expect_eq(got[i], 1, "%g", (double)got[i]);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}
