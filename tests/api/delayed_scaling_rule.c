/*
 * The rule of delayed scaling: its histories and scales compared with a table, which steps record amaxes and which do
 * not, and which scales are used.
 */
#include "api/delayed_scaling_fixture.h"

#include <criterion/criterion.h>
#include <math.h>
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
    rw_delayed_scaling_params params;
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

static void check_step(const struct rule *r, int step, rw_context *ctx)
{
    const struct expected *const e = &r->step[step];
    const int length = r->params.history;
    float scale[ROWS], history[ROWS * LENGTH], amax[ROWS];
    delayed_read(ctx, "fp8.scale", scale, ROWS);
    delayed_read(ctx, "fp8.history", history, ROWS * length);
    delayed_read(ctx, "fp8.amax", amax, ROWS);
    for (int i = 0; i < ROWS; i++) {
        cr_expect_eq((double)scale[i], e->scale[i], "%s, step %d, row %d: %g", r->name, step, i, (double)scale[i]);
        cr_expect_eq(amax[i], 0);
    }
    cr_expect(history[0] == e->latest && history[length - 1] == e->oldest, "%s, step %d: %g ... %g", r->name, step,
              (double)history[0], (double)history[length - 1]);
}

Test(delayed_scaling_rule, follows_its_rule_step_by_step)
{
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++) {
        struct fixture b = fixture_open(1, 1);
        rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 3));
        rw_delayed_scaling *d = delayed_open(b.ctx, &rules[r].params);
        for (int i = 0; i < 6 && rules[r].step[i].scale[0] > 0; i++) {
            rw_tensor *const amax = delayed_buffer(b.ctx, "fp8.amax");
            cr_assert_eq(rw_write(amax, rules[r].step[i].amax, sizeof rules[r].step[i].amax), RW_OK);
            cr_assert_eq(rw_delayed_scaling_update(d, NULL), RW_OK, "%s", rw_error_message(b.ctx));
            check_step(&rules[r], i, b.ctx);
        }
        rw_delayed_scaling_destroy(&d);
        fixture_close(&b);
    }
}

enum { LONG = 200 };

/* The largest element is the last one that stays in the window. */
static float long_number(int row, int at)
{
    return row == 0 && at == LONG - 2 ? 500 : (float)(at + 1 + row);
}

/* A history longer than one block of threads. */
Test(delayed_scaling_rule, long_histories_move_on_whole)
{
    static float history[ROWS * LONG];
    struct fixture b = fixture_open(1, 1);
    rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(2, 3));
    rw_delayed_scaling *d = delayed_open(b.ctx, &(rw_delayed_scaling_params){ .history = LONG });
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < ROWS * LONG; i++) history[i] = long_number(i / LONG, i % LONG);
        const float amax[] = { 5, 0, 700 };
        float scale[ROWS];
        cr_assert_eq(rw_write(delayed_buffer(b.ctx, "fp8.history"), history, sizeof history), RW_OK);
        cr_assert_eq(rw_write(delayed_buffer(b.ctx, "fp8.amax"), amax, sizeof amax), RW_OK);
        cr_assert_eq(rw_delayed_scaling_update(d, NULL), RW_OK);
        delayed_read(b.ctx, "fp8.history", history, ROWS * LONG);
        delayed_read(b.ctx, "fp8.scale", scale, ROWS);
        for (int i = 0; i < ROWS * LONG; i++) {
            const int at = i % LONG, row = i / LONG;
            const float is = row == 1 ? long_number(row, at) : at ? long_number(row, at - 1) : amax[row];
            cr_assert_eq(history[i], is, "row %d, %d: %g", row, at, (double)history[i]);
        }
        cr_assert(scale[0] == 0.5f && scale[1] == 1 && scale[2] == 64, "%g %g", (double)scale[0], (double)scale[2]);
    }
    rw_delayed_scaling_destroy(&d);
    fixture_close(&b);
}

/* ---- recorded amaxes ---- */

static float largest(const float *x, int n)
{
    float m = 0;
    for (int i = 0; i < n; i++) m = fmaxf(m, fabsf(x[i]));
    return m;
}

/* y = x w^T, whose gradient is c: the three amaxes are known. */
static rw_tensor *product(struct delayed_world *x, const float *in, const float *c)
{
    rw_tape *const t = x->b.t;
    rw_tensor *const h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), in, TOKENS * WIDTH * sizeof *in);
    cr_assert_eq(rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x->d }), RW_OK);
    rw_tensor *const y = rw_cast(t, rw_linear(t, h, x->other, RW_NONE), RW_F32);
    rw_tensor *const aside = rw_linear(t, h, x->up, RW_NONE); /* no loss depends on it */
    cr_assert_eq(rw_recipe_end(t), RW_OK);
    cr_assert_not_null(aside);
    return rw_sum(t, rw_mul(t, y, rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), c, TOKENS * WIDTH * sizeof *c)),
                  RW_ALL_AXES, false);
}

Test(delayed_scaling_rule, notes_the_largest_of_all_micro_batches)
{
    struct delayed_world x = delayed_world_open("none", 1, false);
    const int64_t row = rw_delayed_scaling_row(x.d, x.other);
    float in[TOKENS * WIDTH], c[TOKENS * WIDTH], w[WIDTH * WIDTH], amax[9], most[3] = { 0 };
    cr_assert_eq(row, 2);
    cr_assert_eq(rw_delayed_scaling_row(x.d, rw_gradient(x.other)), -1);
    cr_assert_eq(rw_delayed_scaling_row(x.d, delayed_buffer(x.b.ctx, "fp8.history")), -1);
    cr_assert_eq(rw_read(NULL, x.other, w, sizeof w), RW_OK);
    for (int m = 0; m < 3; m++) {
        for (int i = 0; i < TOKENS * WIDTH; i++) in[i] = (float)(i - 9 * m) / 4, c[i] = (float)(20 * m - i) / 1024;
        most[0] = fmaxf(most[0], largest(in, TOKENS * WIDTH));
        most[1] = largest(w, WIDTH * WIDTH);
        most[2] = fmaxf(most[2], largest(c, TOKENS * WIDTH));
        cr_assert_eq(rw_backward(x.b.t, product(&x, in, c)), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_tape_reset(x.b.t);
        delayed_read(x.b.ctx, "fp8.amax", amax, 9);
        cr_expect_arr_eq(amax + 3 * row, most, sizeof most, "after %d", m);
        for (int i = 0; i < 6; i++) cr_expect_eq(amax[i], 0, "row %d of a weight that no loss needs", i);
    }
    delayed_world_close(&x);
}

/* No amaxes are recorded when a step is only verified, checked for values that are not finite, or when its loss is
   read. */
Test(delayed_scaling_rule, notes_nothing_of_a_step_that_is_only_looked_at)
{
    static const char *const modes[] = { "0", "1", "digest" };
    for (int m = 0; m < 3; m++) {
        setenv("REWIND_VERIFY", modes[m], 1);
        struct delayed_world x = delayed_world_open("full", 1, false);
        unsetenv("REWIND_VERIFY");
        float amax[9], seen = 0;
        rw_nonfinite where;
        rw_tensor *const loss = delayed_loss(&x, 1, 1);
        cr_assert_eq(ckpt_verify(x.b.t, loss, NULL), RW_OK, "%s", rw_error_message(x.b.ctx));
        cr_assert_eq(rw_find_nonfinite(x.b.t, loss, 0, &where), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_item(x.b.t, loss);
        delayed_read(x.b.ctx, "fp8.amax", amax, 9);
        for (int i = 0; i < 9; i++) cr_expect_eq(amax[i], 0, "REWIND_VERIFY=%s, row %d", modes[m], i);
        delayed_backward(&x, loss);
        delayed_read(x.b.ctx, "fp8.amax", amax, 9);
        for (int i = 0; i < 9; i++) seen = fmaxf(seen, amax[i]);
        cr_expect_gt(seen, 0);
        delayed_world_close(&x);
    }
}

/* ways: bit 0, the program reads a product that no loss depends on after backward; bit 1, before it; bit 2, it assigns
   the product's sum to a buffer. Steps are equal, so a context knows after the first one what they read. */
static void of_a_product_aside(unsigned ways)
{
    struct delayed_world x = delayed_world_open("none", 1, false);
    rw_tape *const t = x.b.t;
    rw_tensor *const sum = rw_buffer(x.b.ctx, "sum", RW_F32, RW_SCALAR);
    float in[TOKENS * WIDTH], amax[9];
    for (int i = 0; i < TOKENS * WIDTH; i++) in[i] = (float)(i - 9) / 4;
    for (int step = 0; step < 4; step++) {
        rw_tensor *const h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), in, sizeof in);
        cr_assert_eq(rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x.d }), RW_OK);
        rw_tensor *const y = rw_linear(t, h, x.other, RW_NONE), *const z = rw_linear(t, h, x.up, RW_NONE);
        cr_assert_eq(rw_recipe_end(t), RW_OK);
        rw_tensor *const loss = rw_mean_all(t, rw_cast(t, y, RW_F32));
        rw_tensor *const aside = rw_sum_all(t, rw_cast(t, z, RW_F32));
        if (ways & 4) cr_assert_eq(rw_assign(t, sum, aside), RW_OK);
        if (ways & 2) rw_item(t, aside);
        cr_assert_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(x.b.ctx));
        if (ways & 1) rw_item(t, aside);
        rw_tape_reset(t);
        delayed_read(x.b.ctx, "fp8.amax", amax, 9);
        for (int i = 0; i < 9; i++) /* the input is quantized once, with the first weight's row */
            cr_expect_eq(amax[i] > 0, i >= 6, "ways %u, step %d, row %d: %g", ways, step, i, (double)amax[i]);
        cr_assert_eq(rw_delayed_scaling_update(x.d, NULL), RW_OK);
    }
    delayed_world_close(&x);
}

Test(delayed_scaling_rule, notes_nothing_that_no_loss_depends_on)
{
    for (unsigned ways = 0; ways < 8; ways++) of_a_product_aside(ways);
    setenv("REWIND_EAGER", "1", 1);
    for (unsigned ways = 0; ways < 8; ways++) of_a_product_aside(ways);
    unsetenv("REWIND_EAGER");
}

/* Quantizes by hand with the current scales. */
static void decoded(rw_tape *t, float *x, int n, rw_dtype codes, float scale)
{
    rw_tensor *inverse, *const s = rw_input(t, RW_F32, RW_SCALAR, &scale, sizeof scale);
    const rw_quantize_params p = { codes, RW_SCALING_TENSOR, true };
    rw_tensor *const c = rw_quantize(t, rw_input(t, RW_F32, RW_SHAPE(n), x, (size_t)n * sizeof *x), s, &p, &inverse,
                                     NULL);
    rw_tensor *const y = rw_dequantize(t, c, inverse, RW_SCALING_TENSOR, RW_F32);
    cr_assert_eq(rw_read(t, y, x, (size_t)n * sizeof *x), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
    rw_tape_reset(t);
}

Test(delayed_scaling_rule, computes_with_the_scales_that_are_there)
{
    static const float scales[9] = { 1, 1, 1, 1, 1, 1, 16, 128, 0x1p21f }; /* the last one saturates */
    struct delayed_world x = delayed_world_open("none", 1, false);
    float in[TOKENS * WIDTH], c[TOKENS * WIDTH], w[WIDTH * WIDTH], dw[WIDTH * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++) in[i] = (float)(i % 13 - 5) / 4, c[i] = (float)(i % 7 - 3) / 64;
    cr_assert_eq(rw_write(delayed_buffer(x.b.ctx, "fp8.scale"), scales, sizeof scales), RW_OK);
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
            double is = 0; /* few bits, so exact */
            for (int i = 0; i < TOKENS; i++) is += (double)d[i * WIDTH + o] * (double)in[i * WIDTH + k];
            cr_expect_eq((double)dw[o * WIDTH + k], is, "dw[%d, %d]", o, k);
        }
    delayed_world_close(&x);
}

/* One product: scaled by earlier steps, which here saturates, by current scaling, or both on one tape, in that
   order. */
static void of_recipes(struct delayed_world *x, int first, int last, float *ret)
{
    const rw_recipe recipes[] = { { .kind = RW_RECIPE_F8, .delayed = x->d }, { .kind = RW_RECIPE_F8 } };
    float in[TOKENS * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++) in[i] = (float)(i % 13 - 5) / 4;
    rw_tensor *const h = rw_input(x->b.t, RW_F32, RW_SHAPE(TOKENS, WIDTH), in, sizeof in), *y = NULL;
    for (int i = first; i <= last; i++) {
        cr_assert_eq(rw_recipe_begin(x->b.t, &recipes[i]), RW_OK);
        y = rw_linear(x->b.t, h, x->other, RW_NONE);
        cr_assert_eq(rw_recipe_end(x->b.t), RW_OK);
    }
    y = rw_cast(x->b.t, y, RW_F32);
    cr_assert_eq(rw_read(x->b.t, y, ret, TOKENS * WIDTH * sizeof *ret), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_tape_reset(x->b.t);
}

Test(delayed_scaling_rule, codes_of_another_recipe_on_the_tape_are_others)
{
    static const float scales[9] = { 1, 1, 1, 1, 1, 1, 0x1p14f, 0x1p14f, 1 };
    float by_steps[TOKENS * WIDTH], by_itself[TOKENS * WIDTH], after[TOKENS * WIDTH];
    struct delayed_world x = delayed_world_open("none", 1, false);
    cr_assert_eq(rw_write(delayed_buffer(x.b.ctx, "fp8.scale"), scales, sizeof scales), RW_OK);
    of_recipes(&x, 0, 0, by_steps);
    of_recipes(&x, 1, 1, by_itself);
    of_recipes(&x, 0, 1, after);
    cr_expect_arr_neq(by_itself, by_steps, sizeof by_itself);
    cr_expect_arr_eq(by_itself, after, sizeof by_itself);
    delayed_world_close(&x);
}

/* ---- a step that is skipped, or not finite ---- */

static void read_state(struct delayed_world *x, float *scale, float *history, float *amax)
{
    delayed_read(x->b.ctx, "fp8.scale", scale, 9);
    delayed_read(x->b.ctx, "fp8.history", history, 36);
    delayed_read(x->b.ctx, "fp8.amax", amax, 9);
}

Test(delayed_scaling_rule, stays_where_a_step_is_left_out_or_not_finite)
{
    float scale[2][9], history[2][36], amax[9];
    for (int scaled = 0; scaled < 2; scaled++) {
        struct delayed_world x = delayed_world_open("full", 2, scaled);
        struct delayed_outcome o = { 0 };
        delayed_train_step(&x, &o, false);
        read_state(&x, scale[0], history[0], amax);
        cr_assert_gt(history[0][0], 0);
        rw_zero_grad(x.b.ctx);
        delayed_backward(&x, delayed_loss(&x, 1, INFINITY));
        rw_tape_reset(x.b.t);
        delayed_backward(&x, delayed_loss(&x, 2, 1)); /* its own values are finite, but it is skipped all the same */
        rw_tape_reset(x.b.t);
        if (scaled) delayed_end_step(&x);
        else cr_assert_eq(rw_delayed_scaling_update(x.d, NULL), RW_OK);
        read_state(&x, scale[1], history[1], amax);
        for (int i = 0; i < 9; i++) cr_expect_eq(amax[i], 0);
        const int weight = 1; /* an amax that is finite: recorded, because no scaler skipped the step */
        const bool same = history[1][4 * weight] == history[0][4 * weight] &&
                          history[1][4 * weight + 1] == history[0][4 * weight + 1];
        cr_expect_eq(same, scaled, "%g %g", (double)history[1][4 * weight], (double)history[1][4 * weight + 1]);
        cr_expect_arr_eq(history[1], history[0], 4 * sizeof(float), "of what is not finite");
        if (scaled) cr_expect_arr_eq(scale[1], scale[0], sizeof scale[0]);
        delayed_finish(&o);
        delayed_world_close(&x);
    }
}
