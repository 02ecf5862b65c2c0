/*
 * Delayed scaling: its rule as a table, what a step notes and what it does not, and the promise - losses, gradients,
 * scales and histories of micro-batches have the same bytes under every policy, in calls and in graphs. Then what has
 * gone wrong elsewhere, planted: a replay that reads the next scale, a history that moves on twice.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "verify/faults.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the rule ---- */

enum { ROWS = 3, LENGTH = 3 };

struct expected {
    float amax[ROWS];
    double scale[ROWS];
    float latest, oldest; /* of the first row */
};

static const struct rule {
    const char *name;
    rw_delayed_params params;
    struct expected step[6];
} rules[] = {
    { "by the largest of three",
      { .history = LENGTH },
      { { { 448, 448, 57344 }, { 1, 1, 1 }, 448, 0 },
        { { 7, 449, 57345 }, { 1, 0.5, 0.5 }, 7, 0 },
        { { 0, NAN, INFINITY }, { 1, 0.5, 0.5 }, 7, 0 }, /* stay */
        { { 3.5, 1, 1 }, { 1, 0.5, 0.5 }, 3.5, 448 },
        { { 3.4, 1, 1 }, { 64, 0.5, 0.5 }, 3.4f, 7 },
        { { 3.4, 1, 1 }, { 128, 256, 32768 }, 3.4f, 3.5 } } },
    { "by the last one, gradients in E4M3, a quarter of the range",
      { .history = LENGTH, .rule = RW_DELAYED_MOST_RECENT, .margin = 2, .gradient_dtype = RW_F8_E4M3 },
      { { { 448, 448, 448 }, { 0.25, 0.25, 0.25 }, 448, 0 },
        { { 7, 1e-38f, 3e38f }, { 16, 0x1p125, 0x1p-122 }, 7, 0 },
        { { 7, 1, 1 }, { 16, 64, 64 }, 7, 448 } } },
    { "a history of one",
      { .history = 1 },
      { { { 448, 1, 1 }, { 1, 256, 32768 }, 448, 448 }, { { 7, 2, 2 }, { 64, 128, 16384 }, 7, 7 } } },
};

static rw_tensor *buffer(rw_context *ctx, const char *name)
{
    rw_tensor *const x = rw_param_find(ctx, name);
    cr_assert_not_null(x, "%s", name);
    return x;
}

static void read_buffer(rw_context *ctx, const char *name, float *ret, int64_t n)
{
    cr_assert_eq(rw_read(NULL, buffer(ctx, name), ret, (size_t)n * sizeof *ret), RW_OK, "%s", rw_error_message(ctx));
}

static rw_delayed *open_delayed(rw_context *ctx, const rw_delayed_params *p)
{
    rw_delayed *d = NULL;
    cr_assert_eq(rw_delayed_create(&d, ctx, p), RW_OK, "%s", rw_error_message(ctx));
    return d;
}

static void check_step(const struct rule *r, int step, rw_context *ctx)
{
    const struct expected *const e = &r->step[step];
    const int length = r->params.history;
    float scale[ROWS], history[ROWS * LENGTH], amax[ROWS];
    read_buffer(ctx, "fp8.scale", scale, ROWS);
    read_buffer(ctx, "fp8.history", history, ROWS * length);
    read_buffer(ctx, "fp8.amax", amax, ROWS);
    for (int i = 0; i < ROWS; i++) {
        cr_expect_eq((double)scale[i], e->scale[i], "%s, step %d, row %d: %g", r->name, step, i, (double)scale[i]);
        cr_expect_eq(amax[i], 0);
    }
    cr_expect(history[0] == e->latest && history[length - 1] == e->oldest, "%s, step %d: %g ... %g", r->name, step,
              (double)history[0], (double)history[length - 1]);
}

Test(delayed, follows_its_rule_step_by_step)
{
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        struct fixture b = fixture_open(1, 1);
        rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 3));
        rw_delayed *d = open_delayed(b.ctx, &rules[r].params);
        for (int i = 0; i < 6 && rules[r].step[i].scale[0] > 0; i++) {
            rw_tensor *const amax = buffer(b.ctx, "fp8.amax");
            cr_assert_eq(rw_write(amax, rules[r].step[i].amax, sizeof rules[r].step[i].amax), RW_OK);
            cr_assert_eq(rw_delayed_update(d, NULL), RW_OK, "%s", rw_error_message(b.ctx));
            check_step(&rules[r], i, b.ctx);
        }
        rw_delayed_destroy(&d);
        fixture_close(&b);
    }
}

enum { LONG = 200 };

/* The largest number is the last one that stays. */
static float long_number(int row, int at)
{
    return row == 0 && at == LONG - 2 ? 500 : (float)(at + 1 + row);
}

/* A history that no block of threads holds at once. */
Test(delayed, long_histories_move_on_whole)
{
    static float history[ROWS * LONG];
    struct fixture b = fixture_open(1, 1);
    rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(2, 3));
    rw_delayed *d = open_delayed(b.ctx, &(rw_delayed_params){ .history = LONG });
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < ROWS * LONG; i++) history[i] = long_number(i / LONG, i % LONG);
        const float amax[] = { 5, 0, 700 };
        float scale[ROWS];
        cr_assert_eq(rw_write(buffer(b.ctx, "fp8.history"), history, sizeof history), RW_OK);
        cr_assert_eq(rw_write(buffer(b.ctx, "fp8.amax"), amax, sizeof amax), RW_OK);
        cr_assert_eq(rw_delayed_update(d, NULL), RW_OK);
        read_buffer(b.ctx, "fp8.history", history, ROWS * LONG);
        read_buffer(b.ctx, "fp8.scale", scale, ROWS);
        for (int i = 0; i < ROWS * LONG; i++) {
            const int at = i % LONG, row = i / LONG;
            const float is = row == 1 ? long_number(row, at) : at ? long_number(row, at - 1) : amax[row];
            cr_assert_eq(history[i], is, "row %d, %d: %g", row, at, (double)history[i]);
        }
        cr_assert(scale[0] == 0.5f && scale[1] == 1 && scale[2] == 64, "%g %g", (double)scale[0], (double)scale[2]);
    }
    rw_delayed_destroy(&d);
    fixture_close(&b);
}

/* ---- a model of two regions ---- */

enum { TOKENS = 4, WIDTH = 8, BATCHES = 3, MOST_STEPS = 50 };

struct world {
    struct fixture b;
    rw_tensor *up, *down, *other;
    rw_delayed *d;
    rw_optimizer *opt;
    rw_scaler *s;
};

static void init(rw_tensor *w)
{
    cr_assert_eq(rw_init_normal(w, 0, 0.5), RW_OK);
}

static struct world open_world(const char *policy, int threads, bool scales)
{
    struct world x = { .b = fixture_open(5, threads) };
    cr_assert_eq(ckpt_set_policy(x.b.t, policy), RW_OK, "%s", rw_error_message(x.b.ctx));
    init(x.up = rw_param(x.b.ctx, "up", RW_F32, RW_SHAPE(2 * WIDTH, WIDTH)));
    init(x.down = rw_param(x.b.ctx, "down", RW_BF16, RW_SHAPE(WIDTH, 2 * WIDTH)));
    init(x.other = rw_param(x.b.ctx, "other", RW_F32, RW_SHAPE(WIDTH, WIDTH)));
    x.d = open_delayed(x.b.ctx, &(rw_delayed_params){ .history = 4 });
    cr_assert_eq(rw_adamw_create(&x.opt, x.b.ctx, &(rw_adamw_params){ .lr = 0.02 }), RW_OK);
    if (scales) cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, &(rw_scaler_params){ .init_scale = 8 }), RW_OK);
    return x;
}

static void close_world(struct world *x)
{
    rw_delayed_destroy(&x->d);
    rw_scaler_destroy(&x->s);
    rw_adamw_destroy(&x->opt);
    fixture_close(&x->b);
}

/* Both weights in both regions: uses share a history. Micro-batches are of other magnitudes. */
static rw_tensor *loss_of(struct world *x, int number, float factor)
{
    rw_tape *const t = x->b.t;
    float data[TOKENS * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++)
        data[i] = factor * (float)((i * 7 + number * 5) % 11 - 5) * (float)(1 + number % 4) / 8;
    rw_tensor *h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), data);
    cr_assert_eq(rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x->d }), RW_OK);
    for (int l = 0; l < 2; l++) {
        ckpt_begin(t, l ? "second" : "first");
        rw_tensor *const u = rw_dropout(t, rw_gelu(t, rw_linear(t, h, x->up, RW_NONE)), 0.1f);
        h = rw_linear_add(t, u, x->down, RW_NONE, h);
        ckpt_end(t);
    }
    cr_assert_eq(rw_recipe_end(t), RW_OK);
    return rw_mean(t, rw_mul(t, h, h), RW_ALL_AXES, false);
}

static void backward(struct world *x, rw_tensor *loss)
{
    const rw_status status = x->s ? rw_scaler_backward(x->s, x->b.t, loss) : rw_backward(x->b.t, loss);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static void end_step(struct world *x)
{
    const rw_status stepped = x->s ? rw_scaler_step(x->s, x->opt) : rw_optimizer_step(x->opt);
    cr_assert_eq(stepped, RW_OK, "%s", rw_error_message(x->b.ctx));
    cr_assert_eq(rw_delayed_update(x->d, x->s), RW_OK, "%s", rw_error_message(x->b.ctx));
    if (x->s) cr_assert_eq(rw_scaler_update(x->s), RW_OK);
}

struct outcome {
    float loss[MOST_STEPS * BATCHES];
    unsigned char *bytes[MOST_STEPS]; /* of each step: gradients, parameters, scales and histories */
    size_t n;
    int steps;
};

static void keep(struct outcome *o, rw_context *ctx)
{
    size_t a, b;
    unsigned char *const g = all_gradients(ctx, &a), *const p = all_parameters(ctx, &b);
    o->n = a + b;
    o->bytes[o->steps] = malloc(o->n);
    memcpy(o->bytes[o->steps], g, a);
    memcpy(o->bytes[o->steps++] + a, p, b);
    free(g), free(p);
}

/* An optimizer's step. look: between its micro-batches somebody verifies, and evaluates. */
static void train_step(struct world *x, struct outcome *o, bool look)
{
    rw_zero_grad(x->b.ctx);
    for (int m = 0; m < BATCHES; m++) {
        const int number = o->steps * BATCHES + m;
        rw_tensor *const loss = loss_of(x, number, 1);
        if (look) cr_assert_eq(ckpt_verify(x->b.t, loss, NULL), RW_OK, "%s", rw_error_message(x->b.ctx));
        backward(x, loss);
        o->loss[number] = (float)rw_item(x->b.t, loss);
        rw_tape_reset(x->b.t);
        const rw_generator_state generator = rw_generator_get(x->b.ctx);
        if (look) rw_item(x->b.t, loss_of(x, number + 1, 100)); /* forward alone notes nothing */
        rw_tape_reset(x->b.t);
        rw_generator_set(x->b.ctx, generator);
    }
    end_step(x);
    keep(o, x->b.ctx);
}

static struct outcome train(const char *policy, int threads, int steps, int looks_at)
{
    struct world x = open_world(policy, threads, false);
    struct outcome o = { 0 };
    while (o.steps < steps) train_step(&x, &o, o.steps == looks_at);
    close_world(&x);
    return o;
}

/* -1, or the first step that differs. */
static int differ(const struct outcome *a, const struct outcome *b)
{
    cr_assert_eq(a->n, b->n);
    cr_assert_eq(a->steps, b->steps);
    for (int s = 0; s < a->steps && s < b->steps; s++) {
        const size_t at = (size_t)s * BATCHES;
        if (memcmp(a->loss + at, b->loss + at, BATCHES * sizeof *a->loss)) return s;
        if (first_difference(a->bytes[s], b->bytes[s], a->n) >= 0) return s;
    }
    return -1;
}

static void finish(struct outcome *o)
{
    for (int s = 0; s < o->steps; s++) free(o->bytes[s]);
}

/* On the simulated device fewer steps: after the second each launches the same kernels. */
static int steps_of_a_run(void)
{
    return test_device() == RW_DEVICE_CPU ? MOST_STEPS : 4;
}

Test(delayed, gives_the_same_bytes_under_every_policy)
{
    static const char *const policies[] = { "full", "selective:second", "uniform:2", "block:1", "ops:linear",
                                            "ops:quantize", "full+offload:second", "budget:90%" };
    struct outcome none = train("none", 1, steps_of_a_run(), -1);
    cr_assert(isfinite(none.loss[0]) && none.loss[0] > 0);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct outcome other = train(policies[i], 1 + (int)i % 5, steps_of_a_run(), i == 0 ? 1 : -1);
        cr_expect_eq(differ(&none, &other), -1, "%s: step %d differs", policies[i], differ(&none, &other));
        finish(&other);
    }
    finish(&none);
}

/* ---- what is noted ---- */

static float largest(const float *x, int n)
{
    float m = 0;
    for (int i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

/* y = x w^T, whose gradient is c: the three amaxes are known. */
static rw_tensor *product(struct world *x, const float *in, const float *c)
{
    rw_tape *const t = x->b.t;
    rw_tensor *const h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), in);
    cr_assert_eq(rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x->d }), RW_OK);
    rw_tensor *const y = rw_cast(t, rw_linear(t, h, x->other, RW_NONE), RW_F32);
    rw_tensor *const aside = rw_linear(t, h, x->up, RW_NONE); /* nobody's loss depends on it */
    cr_assert_eq(rw_recipe_end(t), RW_OK);
    cr_assert_not_null(aside);
    return rw_sum(t, rw_mul(t, y, rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), c)), RW_ALL_AXES, false);
}

Test(delayed, notes_the_largest_of_all_micro_batches)
{
    struct world x = open_world("none", 1, false);
    const int64_t row = rw_delayed_row(x.d, x.other);
    float in[TOKENS * WIDTH], c[TOKENS * WIDTH], w[WIDTH * WIDTH], amax[9], most[3] = { 0 };
    cr_assert_eq(row, 2);
    cr_assert_eq(rw_delayed_row(x.d, rw_gradient(x.other)), -1);
    cr_assert_eq(rw_delayed_row(x.d, buffer(x.b.ctx, "fp8.history")), -1);
    cr_assert_eq(rw_read(NULL, x.other, w, sizeof w), RW_OK);
    for (int m = 0; m < 3; m++) {
        for (int i = 0; i < TOKENS * WIDTH; i++) in[i] = (float)(i - 9 * m) / 4, c[i] = (float)(20 * m - i) / 1024;
        most[0] = fmaxf(most[0], largest(in, TOKENS * WIDTH));
        most[1] = largest(w, WIDTH * WIDTH);
        most[2] = fmaxf(most[2], largest(c, TOKENS * WIDTH));
        cr_assert_eq(rw_backward(x.b.t, product(&x, in, c)), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_tape_reset(x.b.t);
        read_buffer(x.b.ctx, "fp8.amax", amax, 9);
        cr_expect_arr_eq(amax + 3 * row, most, sizeof most, "after %d", m);
        for (int i = 0; i < 6; i++) cr_expect_eq(amax[i], 0, "row %d of a weight that no loss needs", i);
    }
    close_world(&x);
}

/* Codes by hand with the scales that are there. */
static void decoded(rw_tape *t, float *x, int n, rw_dtype codes, float scale)
{
    rw_tensor *inverse, *const s = rw_input(t, RW_F32, RW_SCALAR, &scale);
    const rw_quantize_params p = { codes, RW_SCALING_TENSOR, true };
    rw_tensor *const c = rw_quantize(t, rw_input(t, RW_F32, RW_SHAPE(n), x), s, &p, &inverse, NULL);
    rw_tensor *const y = rw_dequantize(t, c, inverse, RW_SCALING_TENSOR, RW_F32);
    cr_assert_eq(rw_read(t, y, x, (size_t)n * sizeof *x), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    rw_tape_reset(t);
}

Test(delayed, computes_with_the_scales_that_are_there)
{
    static const float scales[9] = { 1, 1, 1, 1, 1, 1, 16, 128, 0x1p21f }; /* the last one saturates */
    struct world x = open_world("none", 1, false);
    float in[TOKENS * WIDTH], c[TOKENS * WIDTH], w[WIDTH * WIDTH], dw[WIDTH * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++) in[i] = (float)(i % 13 - 5) / 4, c[i] = (float)(i % 7 - 3) / 64;
    cr_assert_eq(rw_write(buffer(x.b.ctx, "fp8.scale"), scales, sizeof scales), RW_OK);
    cr_assert_eq(rw_read(NULL, x.other, w, sizeof w), RW_OK);
    rw_tensor *const loss = product(&x, in, c);
    cr_assert_eq(rw_backward(x.b.t, loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    const double got = rw_item(x.b.t, loss);
    cr_assert_eq(rw_read(NULL, rw_gradient(x.other), dw, sizeof dw), RW_OK);
    rw_tape_reset(x.b.t);
    double sum = 0, bound = 0;
    float d[TOKENS * WIDTH];
    memcpy(d, c, sizeof d);
    decoded(x.b.t, in, TOKENS * WIDTH, RW_F8_E4M3, 16);
    decoded(x.b.t, w, WIDTH * WIDTH, RW_F8_E4M3, 128);
    decoded(x.b.t, d, TOKENS * WIDTH, RW_F8_E5M2, scales[8]);
    for (int i = 0; i < TOKENS; i++)
        for (int o = 0; o < WIDTH; o++)
            for (int k = 0; k < WIDTH; k++) {
                const double term = (double)in[i * WIDTH + k] * (double)w[o * WIDTH + k] * (double)c[i * WIDTH + o];
                sum += term, bound += fabs(term);
            }
    cr_expect(fabs(got - sum) <= 0x1p-8 * bound, "y is rounded to bfloat16: %g, %g", got, sum);
    for (int o = 0; o < WIDTH; o++)
        for (int k = 0; k < WIDTH; k++) {
            double is = 0; /* few bits: exact */
            for (int i = 0; i < TOKENS; i++) is += (double)d[i * WIDTH + o] * (double)in[i * WIDTH + k];
            cr_expect_eq((double)dw[o * WIDTH + k], is, "dw[%d, %d]", o, k);
        }
    close_world(&x);
}

/* ---- a step that is left out, or not finite ---- */

static void read_state(struct world *x, float *scale, float *history, float *amax)
{
    read_buffer(x->b.ctx, "fp8.scale", scale, 9);
    read_buffer(x->b.ctx, "fp8.history", history, 36);
    read_buffer(x->b.ctx, "fp8.amax", amax, 9);
}

Test(delayed, stays_where_a_step_is_left_out_or_not_finite)
{
    float scale[2][9], history[2][36], amax[9];
    for (int scaled = 0; scaled < 2; scaled++) {
        struct world x = open_world("full", 2, scaled);
        struct outcome o = { 0 };
        train_step(&x, &o, false);
        read_state(&x, scale[0], history[0], amax);
        cr_assert_gt(history[0][0], 0);
        rw_zero_grad(x.b.ctx);
        backward(&x, loss_of(&x, 1, INFINITY));
        rw_tape_reset(x.b.t);
        backward(&x, loss_of(&x, 2, 1)); /* its own numbers are finite: the step is left out all the same */
        rw_tape_reset(x.b.t);
        if (scaled) end_step(&x);
        else cr_assert_eq(rw_delayed_update(x.d, NULL), RW_OK);
        read_state(&x, scale[1], history[1], amax);
        for (int i = 0; i < 9; i++) cr_expect_eq(amax[i], 0);
        const int weight = 1; /* an amax that is finite: taken where no scaler says that there was no step */
        const bool same = history[1][4 * weight] == history[0][4 * weight] &&
                          history[1][4 * weight + 1] == history[0][4 * weight + 1];
        cr_expect_eq(same, scaled, "%g %g", (double)history[1][4 * weight], (double)history[1][4 * weight + 1]);
        cr_expect_arr_eq(history[1], history[0], 4 * sizeof(float), "of what is not finite");
        if (scaled) cr_expect_arr_eq(scale[1], scale[0], sizeof scale[0]);
        finish(&o);
        close_world(&x);
    }
}

/* ---- graphs, and runs that go on ---- */

static struct outcome by_graph(bool scales)
{
    struct world x = open_world("full", 2, scales);
    struct outcome o = { 0 };
    rw_graph *g = NULL;
    rw_tensor *const loss = loss_of(&x, 0, 1);
    const rw_graph_params p = { .optimizer = x.opt, .scaler = x.s, .delayed = x.d };
    cr_assert_eq(rw_graph_create(&g, x.b.t, loss, &p), RW_OK, "%s", rw_error_message(x.b.ctx));
    for (int s = 0; s < 4; s++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        o.loss[s * BATCHES] = (float)rw_item(x.b.t, loss);
        keep(&o, x.b.ctx);
    }
    rw_delayed_destroy(&x.d); /* the graph has it */
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_graph_destroy(&g);
    close_world(&x);
    return o;
}

static struct outcome by_calls(bool scales)
{
    struct world x = open_world("none", 1, scales);
    struct outcome o = { 0 };
    for (int s = 0; s < 4; s++) {
        rw_zero_grad(x.b.ctx);
        rw_tensor *const loss = loss_of(&x, 0, 1);
        backward(&x, loss);
        o.loss[s * BATCHES] = (float)rw_item(x.b.t, loss);
        rw_tape_reset(x.b.t);
        end_step(&x);
        keep(&o, x.b.ctx);
    }
    close_world(&x);
    return o;
}

Test(delayed, in_a_graph_is_what_the_calls_make)
{
    for (int scales = 0; scales < 2; scales++) {
        struct outcome a = by_calls(scales), b = by_graph(scales);
        cr_expect_eq(differ(&a, &b), -1, "launch %d differs", differ(&a, &b));
        finish(&a), finish(&b);
    }
}

/* Forward of both, then backward of both: what the first one notes changes nothing that the second one has read. */
static struct outcome of_two_tapes(bool at_once)
{
    struct world x = open_world("full", 1, false);
    struct outcome o = { 0 };
    rw_tape *tapes[2] = { x.b.t, NULL };
    rw_tensor *loss[2];
    cr_assert_eq(rw_tape_create(&tapes[1], x.b.ctx), RW_OK);
    for (int step = 0; step < 2; step++) {
        rw_zero_grad(x.b.ctx);
        for (int i = 0; i < 2; i++) {
            x.b.t = tapes[i];
            loss[i] = loss_of(&x, 2 * step + i, 1);
            o.loss[step * BATCHES + i] = (float)rw_item(x.b.t, loss[i]);
            if (!at_once) backward(&x, loss[i]);
        }
        for (int i = 0; i < 2; i++) {
            x.b.t = tapes[i];
            if (at_once) backward(&x, loss[i]);
            rw_tape_reset(x.b.t);
        }
        end_step(&x);
        keep(&o, x.b.ctx);
    }
    x.b.t = tapes[0];
    rw_tape_destroy(&tapes[1]);
    close_world(&x);
    return o;
}

Test(delayed, steps_of_two_tapes_may_be_under_way)
{
    struct outcome a = of_two_tapes(false), b = of_two_tapes(true);
    cr_expect_eq(differ(&a, &b), -1, "step %d differs", differ(&a, &b));
    finish(&a), finish(&b);
}

/* All that a run needs to go on is in buffers: another context that is given them makes the same steps. */
Test(delayed, goes_on_from_its_buffers)
{
    static const char *const names[] = { "fp8.scale", "fp8.history", "fp8.amax", "up", "down", "other" };
    struct world x = open_world("full", 1, false), y = open_world("none", 2, false);
    struct outcome a = { 0 }, b = { 0 };
    train_step(&x, &a, false);
    for (int i = 0; i < 6; i++) {
        char data[4096];
        rw_tensor *const from = buffer(x.b.ctx, names[i]), *const to = buffer(y.b.ctx, names[i]);
        cr_assert_eq(rw_read(NULL, from, data, rw_tensor_bytes(from)), RW_OK);
        cr_assert_eq(rw_write(to, data, rw_tensor_bytes(to)), RW_OK);
    }
    rw_generator_set(y.b.ctx, rw_generator_get(x.b.ctx));
    rw_delayed_destroy(&y.d);
    y.d = open_delayed(y.b.ctx, &(rw_delayed_params){ .history = 4 }); /* finds them */
    rw_tensor *const l = loss_of(&x, 7, 1), *const m = loss_of(&y, 7, 1);
    cr_expect_eq(rw_item(x.b.t, l), rw_item(y.b.t, m));
    finish(&a), finish(&b);
    close_world(&x), close_world(&y);
}

/* ---- what goes wrong elsewhere ---- */

/* The scale has moved on between forward and backward. */
Test(delayed, an_update_between_forward_and_backward_is_named)
{
    struct world x = open_world("full", 1, false);
    rw_tensor *const loss = loss_of(&x, 1, 1);
    rw_item(x.b.t, loss);
    cr_assert_eq(rw_delayed_update(x.d, NULL), RW_OK);
    cr_assert_eq(rw_backward(x.b.t, loss), RW_ERR_CHANGED);
    cr_assert(strstr(rw_error_message(x.b.ctx), "\"fp8.scale\" changed"), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    close_world(&x);
}

Test(delayed, a_replay_that_reads_the_next_scale_is_named)
{
    struct world x = open_world("full", 1, false);
    ckpt_report r = { 0 };
    rw_tensor *const loss = loss_of(&x, 1, 1);
    cr_assert_eq(ckpt_verify(x.b.t, loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_fault = (struct rw_fault){ .kind = RW_FAULT_SCALE, .op = "quantize" };
    const rw_status status = ckpt_verify(x.b.t, loss, &r);
    const int struck = rw_fault.struck;
    rw_fault = (struct rw_fault){ 0 };
    cr_assert_eq(struck, 1);
    cr_assert_eq(status, RW_ERR_MISMATCH);
    cr_expect_str_eq(r.op, "quantize");
    cr_expect_eq(r.cause, CKPT_CAUSE_INPUT_CHANGED, "%s", ckpt_cause_name(r.cause));
    cr_expect(r.replay);
    close_world(&x);
}

/* Without a verifier the bytes of the step tell. */
Test(delayed, a_replay_that_reads_the_next_scale_makes_another_step)
{
    struct outcome none = train("none", 1, 2, -1);
    rw_fault = (struct rw_fault){ .kind = RW_FAULT_SCALE, .op = "quantize", .skip = 1 };
    struct outcome full = train("full", 1, 2, -1);
    cr_expect_eq(rw_fault.struck, 1);
    rw_fault = (struct rw_fault){ 0 };
    cr_expect_eq(differ(&none, &full), 0);
    finish(&none), finish(&full);
}

/* Amaxes are the largest of a step, and histories move on by what there is of them: twice is as once. */
Test(delayed, a_commit_that_runs_twice_changes_nothing)
{
    static const char *const commits[] = { "note_amax", "delayed_update" };
    struct outcome none = train("none", 1, 2, -1);
    for (int i = 0; i < 2; i++) {
        rw_fault = (struct rw_fault){ .kind = RW_FAULT_COMMIT, .op = commits[i], .skip = i };
        struct outcome other = train("full", 1, 2, -1);
        cr_expect_eq(rw_fault.struck, 1, "%s", commits[i]);
        rw_fault = (struct rw_fault){ 0 };
        cr_expect_eq(differ(&none, &other), -1, "%s", commits[i]);
        finish(&other);
    }
    finish(&none);
}

/* As a module does it that keeps its history aside: whoever runs it again, rolls again. */
static rw_status rolling_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status rolling_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data, *const history = k->in[1].data;
    float amax = 0, m = 0;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) amax = fmaxf(amax, fabsf(x[i]));
    for (int64_t i = k->in[1].layout->numel - 1; i > 0; i--) m = fmaxf(m, history[i] = history[i - 1]);
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) y[i] = x[i] / (m > 0 ? m : 1);
    history[0] = amax;
    return RW_OK;
}

static rw_status rolling_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

HOST_KERNEL_OF(rolling_kernel)
static const rw_op_def rolling = { .name = "rolling", .n_inputs = 2, .n_outputs = 1, .check = rolling_check,
                                   .kernel = HOST_KERNEL(rolling_kernel), .grad = rolling_grad };

Test(delayed, a_history_that_an_op_rolls_whenever_it_runs_is_named)
{
    NEEDS_HOST_MEMORY(); /* elsewhere the test's own kernels work on copies of their inputs */
    struct world x = open_world("full", 1, false);
    ckpt_report r = { 0 };
    rw_tensor *const history = rw_buffer(x.b.ctx, "history", RW_F32, RW_SHAPE(4));
    ckpt_begin(x.b.t, "region");
    rw_tensor *const y = rw_apply(x.b.t, &rolling, (rw_tensor *[]){ x.other, history }, 2, NULL, 0, NULL);
    rw_tensor *const z = rw_mul(x.b.t, y, y);
    ckpt_end(x.b.t);
    rw_tensor *const loss = rw_sum(x.b.t, z, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(x.b.t, loss, &r), RW_ERR_MISMATCH, "%s", rw_error_message(x.b.ctx));
    cr_expect_str_eq(r.op, "rolling");
    cr_expect_eq(r.cause, CKPT_CAUSE_INPUT_WRITTEN, "%s", ckpt_cause_name(r.cause));
    close_world(&x);
}

/* ---- what is refused ---- */

static void expect_failure(rw_context *ctx, rw_status got, rw_status is, const char *text)
{
    cr_expect_eq(got, is, "%s: %s", rw_status_name(got), rw_error_message(ctx));
    cr_expect(strstr(rw_error_message(ctx), text), "%s", rw_error_message(ctx));
    rw_error_clear(ctx);
}

Test(delayed, refuses_what_makes_no_sense)
{
    static const struct {
        rw_delayed_params p;
        rw_status status;
        const char *text;
    } bad[] = { { { .history = -1 }, RW_ERR_ARGUMENT, "history" },
                { { .history = 1025 }, RW_ERR_ARGUMENT, "history" },
                { { .rule = (rw_delayed_rule)2 }, RW_ERR_ARGUMENT, "rule" },
                { { .margin = 7 }, RW_ERR_ARGUMENT, "margin" },
                { { .name = "" }, RW_ERR_ARGUMENT, "name" },
                { { .gradient_dtype = RW_F8_E8M0 }, RW_ERR_DTYPE, "f8_e8m0" },
                { { .history = 5 }, RW_ERR_ARGUMENT, "another shape" } };
    struct world x = open_world("none", 1, false), y = open_world("none", 1, true);
    rw_context *const ctx = x.b.ctx;
    rw_delayed *d = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_failure(ctx, rw_delayed_create(&d, ctx, &bad[i].p), bad[i].status, bad[i].text);
    cr_expect_null(d);
    expect_failure(ctx, rw_delayed_create(NULL, ctx, NULL), RW_ERR_ARGUMENT, "ret_delayed");
    expect_failure(ctx, rw_delayed_update(x.d, y.s), RW_ERR_ARGUMENT, "another context");
    cr_expect_eq(rw_delayed_update(NULL, NULL), RW_ERR_ARGUMENT);
    const rw_recipe recipes[] = { { .kind = RW_RECIPE_BF16, .delayed = x.d },
                                  { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_MX, .delayed = x.d },
                                  { .kind = RW_RECIPE_F8, .delayed = y.d },
                                  { .kind = RW_RECIPE_F8, .delayed = x.d, .gradient_dtype = RW_F8_E4M3 } };
    for (int i = 0; i < 4; i++)
        expect_failure(ctx, rw_recipe_begin(x.b.t, &recipes[i]), i < 3 ? RW_ERR_ARGUMENT : RW_ERR_DTYPE,
                       i < 3 ? "delayed scaling" : "f8_e5m2");
    cr_assert_eq(rw_recipe_begin(x.b.t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x.d }), RW_OK);
    rw_tensor *const late = rw_param(ctx, "late", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    rw_tensor *const h = rw_input(x.b.t, RW_F32, RW_SHAPE(TOKENS, WIDTH), NULL);
    cr_expect_null(rw_linear(x.b.t, h, late, RW_NONE));
    expect_failure(ctx, rw_error_status(ctx), RW_ERR_ARGUMENT, "there when rw_delayed_create() was called");
    cr_expect_null(rw_linear(x.b.t, h, rw_transpose(x.b.t, x.other, 0, 1), RW_NONE));
    rw_error_clear(ctx);
    rw_tensor *const loss = rw_sum(x.b.t, rw_linear(x.b.t, h, x.other, RW_NONE), RW_ALL_AXES, false);
    cr_assert_eq(rw_recipe_end(x.b.t), RW_OK);
    rw_graph *g = NULL;
    const rw_graph_params inside = { .optimizer = x.opt, .update_inside = true, .delayed = x.d };
    expect_failure(ctx, rw_graph_create(&g, x.b.t, loss, &inside), RW_ERR_ARGUMENT, "update_inside");
    expect_failure(ctx, rw_graph_create(&g, x.b.t, loss, &(rw_graph_params){ .delayed = y.d }), RW_ERR_ARGUMENT,
                   "another context");
    rw_delayed_destroy(NULL);
    close_world(&x), close_world(&y);
}

static rw_status try_step(struct world *x)
{
    rw_tape *const t = x->b.t;
    rw_tensor *const h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), NULL);
    rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x->d });
    rw_tensor *const y = rw_linear(t, rw_add_scalar(t, h, 1), x->other, RW_NONE);
    rw_recipe_end(t);
    if (rw_error_status(x->b.ctx)) return rw_error_status(x->b.ctx);
    return rw_backward(t, rw_sum(t, y, RW_ALL_AXES, false));
}

/* The n-th allocation fails, for every n: histories are made whole or not at all, a step notes and moves on or not. */
Test(delayed, out_of_memory_changes_nothing)
{
    struct world x = open_world("full", 1, false);
    rw_context *const ctx = x.b.ctx;
    rw_delayed *d = NULL;
    int failures = 0;
    for (int call = 0; call < 3; call++)
        for (uint64_t n = 1;; n++) {
            size_t bytes[2];
            unsigned char *const was = all_parameters(ctx, &bytes[0]);
            rw_tape_reset(x.b.t);
            if (call == 1) rw_zero_grad(ctx);
            rw_alloc_fail_at(n);
            const rw_status status = call == 0   ? rw_delayed_create(&d, ctx, &(rw_delayed_params){ .name = "own" })
                                     : call == 1 ? try_step(&x)
                                                 : rw_delayed_update(x.d, NULL);
            rw_alloc_fail_at(0);
            rw_error_clear(ctx);
            unsigned char *const is = all_parameters(ctx, &bytes[1]);
            if (status) cr_assert_eq(bytes[0], bytes[1], "call %d, allocation %d", call, (int)n);
            if (status) cr_assert_eq(first_difference(was, is, bytes[0]), -1, "call %d, allocation %d", call, (int)n);
            free(was), free(is);
            if (!status) break;
            failures++;
            cr_assert_eq(status, RW_ERR_MEMORY, "call %d, allocation %d", call, (int)n);
        }
    cr_assert_gt(failures, 20);
    cr_assert_not_null(rw_param_find(ctx, "own.amax"));
    rw_delayed_destroy(&d);
    close_world(&x);
}

Test(delayed, wants_weights)
{
    struct fixture b = fixture_open(1, 1);
    rw_delayed *d = NULL;
    rw_param(b.ctx, "v", RW_F32, RW_SHAPE(3));
    expect_failure(b.ctx, rw_delayed_create(&d, b.ctx, NULL), RW_ERR_ARGUMENT, "no weights of rank 2");
    cr_expect_null(rw_param_find(b.ctx, "fp8.scale"));
    fixture_close(&b);
}
