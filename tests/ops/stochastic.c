/*
 * Stochastic rounding of bf16 parameters without a master copy: the stored value is one of two neighbors, by the noise
 * that stochastic_rounding.h defines, on every device and for any number of threads; its mean is the unrounded value;
 * nothing finite becomes infinite; graphs, skipped steps and checkpoints change no bit; no master copy exists.
 */
#include "ops/optim/stochastic_rounding.h"
#include "support/compare.h"
#include "support/bf16.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint16_t *values(rw_tensor *x)
{
    uint16_t *const data = malloc(rw_tensor_bytes(x) + 1);
    cr_assert_eq(rw_read(NULL, x, data, rw_tensor_bytes(x)), RW_OK);
    return data;
}

static double one(int64_t i)
{
    return 1;
}

static double start(int64_t i)
{
    return (double)(i % 200 - 100) / 64;
}

static double slope(int64_t i)
{
    return (double)(i * 2654435761u % 4096 - 2048) / 0x1p17;
}

/* ---- the definition ---- */

/* x - lr g of SGD in float32, rounded with the noise of element i of the second parameter in update `step`. */
static uint16_t expected(float x, int64_t i, uint32_t step, uint64_t seed)
{
    const struct rw_update_row row = { .seed = seed, .stream = 2, .step = step };
    uint32_t words[4];
    rw_noise_of(&row, (uint64_t)i / 4, words);
    return (uint16_t)((bits_of(x) + (words[i % 4] >> 16)) >> 16);
}

Test(stochastic, what_is_stored_is_the_definition_s_on_every_device_for_any_number_of_threads)
{
    const int64_t n = test_device() == RW_DEVICE_CPU ? 40003 : 9001; /* more than a thread's part, and a block's */
    for (int threads = 1; threads <= 5; threads += 2) {
        struct fixture b = fixture_open(77, threads);
        rw_param(b.ctx, "first", RW_F32, RW_SHAPE(2));
        rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(n));
        rw_optimizer *opt = NULL;
        cr_assert(tensor_fill(w, start));
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.5, .stochastic_rounding = true }), RW_OK);
        for (uint32_t step = 1; step <= 3; step++) {
            uint16_t *const before = values(w);
            cr_assert(tensor_fill(rw_gradient(w), slope));
            cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
            uint16_t *const after = values(w);
            int off_nearest = 0;
            for (int64_t i = 0; i < n; i++) {
                const float x = of_bf16(before[i]) - 0.5f * (float)slope(i);
                cr_assert_eq(after[i], expected(x, i, step, 77), "step %u, element %lld", step, (long long)i);
                off_nearest += fabsf(of_bf16(after[i]) - x) > fabsf(of_bf16(before[i]) - x);
            }
            cr_expect_gt(off_nearest, 0, "all were rounded to nearest");
            free(before), free(after);
        }
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* ---- the mean ---- */

/* The sum of n independent draws of probability p is within this of n p, except with probability 10^-12: Hoeffding,
   "Probability inequalities for sums of bounded random variables", 1963: 2 exp(-2 d^2 / n). */
static double hoeffding(double n)
{
    return sqrt(n / 2 * log(2e12));
}

static double step_down(int64_t i)
{
    static const double share[] = { 1. / 512, 1. / 8, 0.5, 0.75, 511. / 512 };
    return share[i % 5] * 0x1p-8; /* below 1 neighbors are 2^-8 apart */
}

Test(stochastic, the_mean_is_the_number_itself)
{
    const int64_t n = 20000;
    for (int sign = -1; sign <= 1; sign += 2) {
        struct fixture b = fixture_open(5, 2);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(n));
        rw_optimizer *opt = NULL;
        cr_assert_eq(rw_init_constant(w, sign), RW_OK);
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1, .stochastic_rounding = true }), RW_OK);
        float *const g = malloc((size_t)n * sizeof *g);
        for (int64_t i = 0; i < n; i++) g[i] = (float)(sign * step_down(i));
        cr_assert_eq(rw_write(rw_gradient(w), g, (size_t)n * sizeof *g), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
        uint16_t *const got = values(w);
        double below[5] = { 0 };
        for (int64_t i = 0; i < n; i++) {
            const double x = fabs((double)of_bf16(got[i]));
            cr_assert(x == 1 || x == 1 - 0x1p-8, "no neighbour: %.9g", x);
            below[i % 5] += x < 1;
        }
        for (int i = 0; i < 5; i++) {
            const double draws = (double)n / 5, want = draws * step_down(i) / 0x1p-8;
            cr_expect_leq(fabs(below[i] - want), hoeffding(draws), "%g of %g, not %g", below[i], draws, want);
        }
        free(g), free(got);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* Sixty-four steps of a sixty-fourth of the distance to the neighbor: rounded to nearest, the parameter would never
   change. */
Test(stochastic, small_steps_add_up)
{
    const int64_t n = 4096;
    struct fixture b = fixture_open(6, 2);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(n));
    rw_optimizer *opt = NULL;
    cr_assert(tensor_fill(w, one));
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0x1p-14, .stochastic_rounding = true }), RW_OK);
    cr_assert(tensor_fill(rw_gradient(w), one));
    for (int step = 0; step < 64; step++) cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    uint16_t *const got = values(w);
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)of_bf16(got[i]) / (double)n;
    /* 64 n errors, each of mean zero given those before it and within 2^-8: Azuma, 2 exp(-d^2 / (2 m c^2)) */
    const double most = 0x1p-8 * sqrt(2 * 64 * (double)n * log(2e12)) / (double)n;
    cr_expect_leq(fabs(mean - (1 - 64 * 0x1p-14)), most, "%.9g", mean);
    cr_expect_lt(mean, 1 - 32 * 0x1p-14, "nothing moved");
    free(got);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- extremes ---- */

Test(stochastic, nothing_finite_becomes_infinite_and_nan_stays_nan)
{
    const int64_t n = 256;
    struct fixture b = fixture_open(8, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(n));
    rw_optimizer *opt = NULL;
    uint16_t from[256];
    float g[256];
    for (int64_t i = 0; i < n; i++) { /* a quarter beyond the largest, either sign; infinite; NaN */
        from[i] = i % 4 == 0 ? 0x7f7f : i % 4 == 1 ? 0xff7f : i % 4 == 2 ? 0xff80 : 0x3f80;
        g[i] = i % 4 == 0 ? -0x1p118f : i % 4 == 1 ? 0x1p118f : i % 4 == 2 ? 0 : NAN;
    }
    cr_assert_eq(rw_write(w, from, sizeof from), RW_OK);
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1, .stochastic_rounding = true }), RW_OK);
    cr_assert_eq(rw_write(rw_gradient(w), g, sizeof g), RW_OK);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    uint16_t *const got = values(w);
    for (int64_t i = 0; i < n; i++) {
        if (i % 4 < 3) cr_assert_eq(got[i], from[i], "element %lld: %04x", (long long)i, got[i]);
        else cr_assert(isnan(of_bf16(got[i])));
    }
    free(got);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- every kind ---- */

static rw_status make(rw_optimizer **opt, rw_context *ctx, int kind, bool by_chance)
{
    switch (kind) {
    case 0: return rw_adamw_create(opt, ctx, &(rw_adamw_params){ .lr = 0.01, .stochastic_rounding = by_chance });
    case 1: return rw_adam_create(opt, ctx, &(rw_adam_params){ .lr = 0.01, .stochastic_rounding = by_chance });
    case 2: return rw_lion_create(opt, ctx, &(rw_lion_params){ .lr = 0.01, .stochastic_rounding = by_chance });
    default: return rw_sgd_create(opt, ctx, &(rw_sgd_params){ .lr = 0.01, .momentum = 0.5,
                                                              .stochastic_rounding = by_chance });
    }
}

/* A float32 parameter with the same updates gives the unrounded value; other types are unaffected. */
Test(stochastic, every_optimizer_stores_a_neighbour_and_has_no_master_copy)
{
    static const size_t states[] = { 8, 8, 4, 4 };
    for (int kind = 0; kind < 4; kind++)
        for (int narrow = 0; narrow < 2; narrow++) { /* the type of the gradient */
            uint16_t *half[2];
            for (int by_chance = 0; by_chance < 2; by_chance++) {
                struct fixture b = fixture_open(9, 2);
                const rw_param_options options = { .grad_dtype = narrow ? RW_BF16 : RW_F32 };
                rw_tensor *const w = rw_param_with(b.ctx, "w", RW_BF16, RW_SHAPE(67), &options);
                rw_tensor *const wide = rw_param(b.ctx, "wide", RW_F32, RW_SHAPE(67));
                rw_tensor *const f16 = rw_param(b.ctx, "f16", RW_F16, RW_SHAPE(67));
                rw_tensor *const all[] = { w, wide, f16 };
                rw_optimizer *opt = NULL;
                rw_memory m;
                for (int i = 0; i < 3; i++) cr_assert(tensor_fill(all[i], start));
                cr_assert_eq(make(&opt, b.ctx, kind, by_chance), RW_OK);
                cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
                cr_expect_eq(m.optimizer, 67 * (3 * states[kind] + (by_chance ? 4 : 8)));
                for (int i = 0; i < 3; i++) cr_assert(tensor_fill(rw_gradient(all[i]), start));
                cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
                uint16_t *const got = values(w);
                float *const exact = (float *)(void *)values(wide);
                half[by_chance] = values(f16);
                for (int i = 0; i < 67 && by_chance; i++) {
                    const uint32_t bits = bits_of(exact[i]);
                    cr_assert(got[i] == bits >> 16 || ((bits & 0xffff) && got[i] == (bits >> 16) + 1), "%d: %a of %a",
                              i, (double)of_bf16(got[i]), (double)exact[i]);
                }
                free(got), free(exact);
                rw_optimizer_destroy(&opt);
                fixture_close(&b);
            }
            cr_expect_lt(first_difference(half[0], half[1], 67 * 2), 0, "float16 has other bytes");
            free(half[0]), free(half[1]);
        }
}

/* ---- graphs, skipped steps, checkpoints ---- */

struct run {
    struct fixture b;
    rw_tensor *w, *x;
    rw_optimizer *opt;
    rw_scaler *scaler;
};

static struct run run_open(void)
{
    struct run r = { .b = fixture_open(21, 2) };
    r.w = rw_param(r.b.ctx, "w", RW_BF16, RW_SHAPE(8, 33));
    cr_assert(tensor_fill(r.w, start));
    rw_adamw_create(&r.opt, r.b.ctx, &(rw_adamw_params){ .lr = 0.001, .stochastic_rounding = true });
    cr_assert_eq(rw_scaler_create(&r.scaler, r.b.ctx, NULL), RW_OK);
    return r;
}

static void run_close(struct run *r)
{
    rw_scaler_destroy(&r->scaler);
    rw_optimizer_destroy(&r->opt);
    fixture_close(&r->b);
}

static rw_tensor *record(struct run *r, const float *x)
{
    r->x = rw_input(r->b.t, RW_F32, RW_SHAPE(4, 33), x, 4 * 33 * sizeof *x);
    ckpt_begin(r->b.t, "block");
    rw_tensor *const y = rw_dropout(r->b.t, rw_linear(r->b.t, rw_cast(r->b.t, r->x, RW_BF16), r->w, RW_NONE), 0.25);
    ckpt_end(r->b.t);
    return rw_sum(r->b.t, rw_cast(r->b.t, rw_mul(r->b.t, y, y), RW_F32), RW_ALL_AXES, false);
}

/* Step 2 overflows: it is skipped on the device. */
static void numbers_of(int step, float *x)
{
    for (int i = 0; i < 4 * 33; i++) x[i] = step == 2 ? 0x1p120f : (float)((i * 7 + step * 3) % 13 - 6) / 8;
}

static void one_step(struct run *r, int step)
{
    float x[4 * 33];
    numbers_of(step, x);
    cr_assert_eq(rw_scaler_backward(r->scaler, r->b.t, record(r, x)), RW_OK, "%s", rw_error_message(r->b.ctx));
    cr_assert_eq(rw_scaler_step(r->scaler, r->opt), RW_OK, "%s", rw_error_message(r->b.ctx));
    cr_assert_eq(rw_scaler_update(r->scaler), RW_OK);
    rw_zero_grad(r->b.ctx);
    rw_tape_reset(r->b.t);
}

static void same(struct run *a, struct run *b, const char *what)
{
    uint16_t *const x = values(a->w), *const y = values(b->w);
    cr_expect_lt(first_difference(x, y, rw_tensor_bytes(a->w)), 0, "%s: other bytes", what);
    free(x), free(y);
}

Test(stochastic, graphs_and_policies_and_left_out_steps_make_the_same_bytes)
{
    struct run one = run_open(), other = run_open();
    float x[4 * 33];
    ckpt_set_policy(other.b.t, "full");
    for (int step = 0; step < 5; step++) one_step(&one, step);
    rw_graph *graph = NULL;
    numbers_of(0, x);
    const rw_graph_params params = { { recorded_scaler(other.scaler), rw_record_update(other.opt) } };
    cr_assert_eq(rw_graph_create(&graph, other.b.t, record(&other, x), &params), RW_OK, "%s",
                 rw_error_message(other.b.ctx));
    for (int step = 0; step < 5; step++) {
        numbers_of(step, x);
        cr_assert_eq(rw_input_write(other.x, x, sizeof x), RW_OK);
        cr_assert_eq(rw_graph_launch(graph), RW_OK, "%s", rw_error_message(other.b.ctx));
    }
    rw_scaler_state state;
    cr_assert_eq(rw_scaler_get(other.scaler, &state), RW_OK);
    cr_expect_eq(state.skipped, 1);
    same(&one, &other, "a graph");
    rw_graph_destroy(&graph);
    run_close(&one), run_close(&other);
}

Test(stochastic, a_run_that_is_loaded_goes_on_to_the_bit)
{
    char folder[64], command[96];
    snprintf(folder, sizeof folder, "/tmp/stochastic_%d", (int)getpid());
    struct run one = run_open(), other = run_open(), never = run_open(); /* the last is never saved */
    rw_checkpoint *ck = NULL;
    for (int step = 0; step < 4; step++) one_step(&one, step), one_step(&never, step);
    cr_assert_eq(rw_checkpoint_create(&ck, one.b.ctx, &(rw_checkpoint_params){ .folder = folder,
                                                                               .optimizer = one.opt }), RW_OK);
    cr_assert_eq(rw_checkpoint_save(ck, 4, NULL, 0), RW_OK, "%s", rw_error_message(one.b.ctx));
    rw_checkpoint_destroy(&ck);
    cr_assert_eq(rw_checkpoint_create(&ck, other.b.ctx, &(rw_checkpoint_params){ .folder = folder,
                                                                                 .optimizer = other.opt }), RW_OK);
    cr_assert_eq(rw_checkpoint_load(ck, NULL), RW_OK, "%s", rw_error_message(other.b.ctx));
    rw_checkpoint_destroy(&ck);
    for (int step = 4; step < 7; step++) one_step(&one, step), one_step(&other, step), one_step(&never, step);
    same(&one, &other, "a checkpoint");
    same(&never, &other, "a run that is saved");
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_expect_eq(system(command), 0);
    run_close(&one), run_close(&other), run_close(&never);
}
