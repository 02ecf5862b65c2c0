/*
 * Moments of Adam in bfloat16: the stored value is float32's result, the first moment rounded to nearest, the second
 * stochastically by the noise that stochastic_rounding.h defines, on every device and for any number of threads.
 * Rounded to nearest a second moment would not change; rounded stochastically it does. Graphs, policies, fused updates,
 * skipped steps and checkpoints change no bit; files of moments of another type are refused.
 */
#include "api/optimizer.h"
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

enum { M, V };

static uint16_t nearest(float x)
{
    const uint32_t bits = bits_of(x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t by_chance(float x, uint32_t noise)
{
    return (uint16_t)((bits_of(x) + noise) >> 16);
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
    return (double)(i * 2654435761u % 4096 - 2048) / 0x1p13;
}

/* State j of parameter i of an optimizer, of so many bytes. */
static void *state(rw_optimizer *opt, size_t i, int j, size_t bytes)
{
    char *const data = malloc(bytes + 1);
    for (size_t at = 0, n; at < bytes; at += n)
        cr_assert_eq(rw_optimizer_read(opt, i, j, at, data + at, bytes - at, &n), RW_OK);
    return data;
}

static void *values(rw_tensor *x)
{
    void *const data = malloc(rw_tensor_bytes(x) + 1);
    cr_assert_eq(rw_read(NULL, x, data, rw_tensor_bytes(x)), RW_OK);
    return data;
}

static uint32_t word(uint64_t seed, uint32_t stream, uint32_t step, int64_t i)
{
    const struct rw_update_row row = { .seed = seed, .stream = stream, .step = step };
    uint32_t words[4];
    rw_noise_of(&row, (uint64_t)i / 4, words);
    return words[i % 4];
}

/* ---- the definition ---- */

static const double lr = 0.01, b1 = 0.9, b2 = 0.999, eps = 1e-8, decay = 0.01;

/* AdamW of one element, x and its float32 moments. */
static float adamw(float x, float g, uint32_t step, float *m, float *v)
{
    const double c1 = 1 - pow(b1, step), c2 = 1 - pow(b2, step);
    *m = *m + (float)(1 - b1) * (g - *m);
    *v = (float)b2 * *v + (float)(1 - b2) * g * g;
    return x * (float)(1 - lr * decay) - (float)(lr / c1) * *m / (sqrtf(*v) * (float)(1 / sqrt(c2)) + (float)eps);
}

/* Checks the update of a float32 parameter, the second one of its optimizer. */
static void expect_updated(uint32_t step, int64_t n, const float *before, const uint16_t *m0, const uint16_t *v0,
                           const float *after, const uint16_t *m1, const uint16_t *v1)
{
    int off_nearest = 0;
    for (int64_t i = 0; i < n; i++) {
        float m = of_bf16(m0[i]), v = of_bf16(v0[i]);
        const float x = adamw(before[i], slope(i), step, &m, &v);
        cr_assert_eq(bits_of(after[i]), bits_of(x), "step %u, element %d: %a, not %a", step, (int)i, (double)after[i],
                     (double)x);
        cr_assert_eq(m1[i], nearest(m), "step %u, first moment %d", step, (int)i);
        cr_assert_eq(v1[i], by_chance(v, word(77, 2, step, i) & 0xffff), "step %u, second moment %d", step, (int)i);
        off_nearest += v1[i] != nearest(v);
    }
    cr_expect_gt(off_nearest, 0, "all were rounded to nearest");
}

Test(adam_bf16_moments, what_is_stored_is_the_definition_s_on_every_device_for_any_number_of_threads)
{
    const int64_t n = test_device() == RW_DEVICE_CPU ? 40003 : 9001; /* more than a thread's part, and a block's */
    for (int threads = 1; threads <= 5; threads += 2) {
        struct fixture b = fixture_open(77, threads);
        rw_param(b.ctx, "first", RW_F32, RW_SHAPE(2));
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(n));
        rw_optimizer *opt = NULL;
        cr_assert(tensor_fill(w, start));
        const rw_adamw_params p = { .lr = lr, .weight_decay = decay, .decay_all = true, .moments = RW_BF16 };
        cr_assert_eq(rw_adamw_create(&opt, b.ctx, &p), RW_OK);
        cr_assert(tensor_fill(rw_gradient(w), slope));
        for (uint32_t step = 1; step <= 3; step++) {
            float *const before = values(w);
            uint16_t *const m0 = state(opt, 1, M, (size_t)n * 2), *const v0 = state(opt, 1, V, (size_t)n * 2);
            cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
            float *const after = values(w);
            uint16_t *const m1 = state(opt, 1, M, (size_t)n * 2), *const v1 = state(opt, 1, V, (size_t)n * 2);
            expect_updated(step, n, before, m0, v0, after, m1, v1);
            free(before), free(after), free(m0), free(v0), free(m1), free(v1);
        }
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* Next to a float32 parameter with the same values: moments and masters are its own, stochastic rounding uses the other
   half of its word, and float64 is unchanged. */
Test(adam_bf16_moments, of_every_type_of_parameter)
{
    enum { N = 67, TYPES = 4 };
    static const rw_dtype dtypes[TYPES] = { RW_F32, RW_F16, RW_BF16, RW_F64 };
    for (int chance = 0; chance < 2; chance++) {
        struct fixture b = fixture_open(9, 2);
        rw_tensor *w[TYPES];
        rw_optimizer *opt = NULL;
        rw_memory memory;
        for (int k = 0; k < TYPES; k++) {
            w[k] = rw_param(b.ctx, (const char *[]){ "a", "b", "c", "d" }[k], dtypes[k], RW_SHAPE(N));
            cr_assert(tensor_fill(w[k], start));
        }
        cr_assert_eq(rw_adam_create(&opt, b.ctx,
                                    &(rw_adam_params){ .lr = lr, .stochastic_rounding = chance, .moments = RW_BF16 }),
                     RW_OK);
        cr_assert_eq(rw_memory_stats(b.ctx, &memory), RW_OK);
        cr_expect_eq(memory.optimizer, (size_t)(N * (4 + 8 + (chance ? 4 : 8) + 16)), "%zu", memory.optimizer);
        for (int k = 0; k < TYPES; k++) cr_assert(tensor_fill(rw_gradient(w[k]), slope));
        cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
        float *const exact = values(w[0]);
        uint16_t *const half = values(w[2]), *const m = state(opt, 0, M, 2 * N);
        for (size_t k = 0; k < TYPES; k++) {
            const bool wide = dtypes[k] == RW_F64;
            void *const mk = state(opt, k, M, wide ? 8 * N : 2 * N), *const vk = state(opt, k, V, wide ? 8 * N : 2 * N);
            for (int i = 0; i < N; i++) {
                float mi = 0, vi = 0;
                adamw(0, slope(i), 1, &mi, &vi);
                if (wide) {
                    cr_assert_float_eq(((double *)mk)[i], (double)mi, 1e-6 * fabs((double)mi));
                    continue;
                }
                cr_assert_eq(((uint16_t *)mk)[i], m[i], "parameter %zu, first moment %d", k, i);
                cr_assert_eq(((uint16_t *)vk)[i], by_chance(vi, word(9, (uint32_t)k + 1, 1, i) & 0xffff), "%zu, %d", k,
                             i);
            }
            free(mk), free(vk);
        }
        for (int i = 0; i < N; i++)
            cr_assert_eq(half[i], chance ? by_chance(exact[i], word(9, 3, 1, i) >> 16) : nearest(exact[i]), "%d", i);
        free(exact), free(half), free(m);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* ---- rounding to nearest ---- */

static double mean_of(const uint16_t *h, int64_t n)
{
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean += (double)of_bf16(h[i]) / (double)n;
    return mean;
}

/* With beta2 = 0.999 a rising moment rounded to nearest stops where a thousandth of the remaining way is half of the
   distance to the neighbor, and a falling one does not change at all. */
Test(adam_bf16_moments, a_second_moment_stalls_to_nearest_and_moves_with_stochastic_rounding)
{
    enum { N = 256, UP = 3000, DOWN = 1500 };
    struct fixture b = fixture_open(6, 2);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_optimizer *opt = NULL;
    cr_assert(tensor_fill(w, one));
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .moments = RW_BF16 }), RW_OK);
    cr_assert(tensor_fill(rw_gradient(w), one));
    const float zero[N] = { 0 };
    uint16_t stuck = 0;
    double want = 0;
    for (int step = 0; step < UP + DOWN; step++) {
        const float g = step < UP;
        if (step == UP) {
            uint16_t *const v = state(opt, 0, V, 2 * N);
            cr_expect_float_eq(want, 0.95, 0.01);
            cr_expect_leq(of_bf16(stuck), 0.25f, "to nearest it would be %g", (double)of_bf16(stuck));
            cr_expect_float_eq(mean_of(v, N), want, 0.05, "%g", mean_of(v, N));
            free(v);
            cr_assert_eq(rw_write(rw_gradient(w), zero, sizeof zero), RW_OK);
        }
        want = 0.999 * want + 0.001 * (double)g;
        stuck = nearest(0.999f * of_bf16(stuck) + 0.001f * g);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    /* Each step's error is within the distance of neighbors below 1, has mean zero given those before it, and its
       remainder shrinks by 0.999: Azuma, 2 exp(-d^2 / (2 sum c^2)), is 10^-12 at 0.042. */
    uint16_t *const v = state(opt, 0, V, 2 * N);
    cr_expect_eq(of_bf16(stuck), 0.25f, "to nearest it would have begun: %g", (double)of_bf16(stuck));
    cr_expect_float_eq(mean_of(v, N), want, 0.05, "%g", mean_of(v, N));
    free(v);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- extremes ---- */

Test(adam_bf16_moments, nothing_finite_becomes_infinite_and_nan_stays_nan)
{
    enum { N = 192 };
    struct fixture b = fixture_open(8, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_optimizer *opt = NULL;
    float g[N]; /* a square a quarter beyond the largest bfloat16; infinite; NaN */
    for (int i = 0; i < N; i++) g[i] = i % 3 == 0 ? 0x1.ff4p63f : i % 3 == 1 ? INFINITY : NAN;
    cr_assert(tensor_fill(w, one));
    cr_assert_eq(rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .beta2 = -1, .moments = RW_BF16 }), RW_OK);
    cr_assert_eq(rw_write(rw_gradient(w), g, sizeof g), RW_OK);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    uint16_t *const v = state(opt, 0, V, sizeof g / 2);
    for (int i = 0; i < N; i++) {
        if (i % 3 == 2) cr_assert(isnan(of_bf16(v[i])));
        else cr_assert_eq(v[i], i % 3 ? 0x7f80 : 0x7f7f, "%d: %04x", i, v[i]);
    }
    free(v);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* ---- what is refused ---- */

Test(adam_bf16_moments, of_other_types_are_refused)
{
    static const rw_dtype others[] = { RW_F64, RW_F16, RW_I32, RW_F8_E5M2, (rw_dtype)77, (rw_dtype)-1 };
    for (size_t i = 0; i < 2 * sizeof others / sizeof *others; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_optimizer *opt = NULL;
        rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3));
        const rw_dtype d = others[i / 2];
        const rw_status status = i % 2 ? rw_adam_create(&opt, b.ctx, &(rw_adam_params){ .moments = d })
                                       : rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .moments = d });
        cr_assert_eq(status, RW_ERR_DTYPE, "%zu", i);
        cr_assert_null(opt);
        cr_assert(strstr(rw_error_message(b.ctx), i % 2 ? "rw_adam_create(moments)" : "rw_adamw_create(moments)"),
                  "%s", rw_error_message(b.ctx));
        fixture_close(&b);
    }
}

/* ---- graphs, skipped steps, fused updates, checkpoints ---- */

enum { PARAMS = 3, STEPS = 6, ROWS = 4, IN = 33, OUT = 8 };

struct run {
    struct fixture b;
    rw_tensor *w[PARAMS], *x;
    rw_optimizer *opt;
    rw_scaler *scaler;
};

static struct run run_open(rw_dtype moments, bool scaled)
{
    struct run r = { .b = fixture_open(21, 2) };
    r.w[0] = rw_param(r.b.ctx, "w", RW_BF16, RW_SHAPE(OUT, IN));
    r.w[1] = rw_param(r.b.ctx, "u", RW_F32, RW_SHAPE(OUT, OUT));
    r.w[2] = rw_param(r.b.ctx, "v", RW_F16, RW_SHAPE(OUT, OUT));
    for (int k = 0; k < PARAMS; k++) cr_assert(tensor_fill(r.w[k], start));
    cr_assert_eq(rw_adamw_create(&r.opt, r.b.ctx,
                                 &(rw_adamw_params){ .lr = 0.001, .stochastic_rounding = true, .moments = moments }),
                 RW_OK);
    if (scaled) cr_assert_eq(rw_scaler_create(&r.scaler, r.b.ctx, &(rw_scaler_params){ .init_scale = 8 }), RW_OK);
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
    rw_tape *const t = r->b.t;
    r->x = rw_input(t, RW_F32, RW_SHAPE(ROWS, IN), x, ROWS * IN * sizeof *x);
    ckpt_begin(t, "block");
    rw_tensor *y = rw_dropout(t, rw_linear(t, rw_cast(t, r->x, RW_BF16), r->w[0], RW_NONE), 0.25);
    y = rw_gelu(t, rw_linear(t, rw_cast(t, y, RW_F32), r->w[1], RW_NONE));
    ckpt_end(t);
    y = rw_linear(t, rw_cast(t, y, RW_F16), r->w[2], RW_NONE);
    return rw_mean(t, rw_cast(t, rw_mul(t, y, y), RW_F32), RW_ALL_AXES, false);
}

/* Step 2 overflows if it is scaled: it is skipped on the device. */
static void numbers_of(const struct run *r, int step, float *x)
{
    for (int i = 0; i < ROWS * IN; i++)
        x[i] = r->scaler && step == 2 ? 0x1p120f : (float)((i * 7 + step * 3) % 13 - 6) / 64;
}

/* Steps [from, to) of the run. */
static void train(struct run *r, int from, int to)
{
    float x[ROWS * IN];
    for (int step = from; step < to; step++) {
        numbers_of(r, step, x);
        rw_tensor *const loss = record(r, x);
        if (r->scaler) {
            cr_assert_eq(rw_scaler_backward(r->scaler, r->b.t, loss), RW_OK, "%s", rw_error_message(r->b.ctx));
            cr_assert_eq(rw_scaler_step(r->scaler, r->opt), RW_OK, "%s", rw_error_message(r->b.ctx));
            cr_assert_eq(rw_scaler_update(r->scaler), RW_OK);
        } else {
            cr_assert_eq(rw_backward(r->b.t, loss), RW_OK, "%s", rw_error_message(r->b.ctx));
            cr_assert_eq(rw_optimizer_step(r->opt), RW_OK, "%s", rw_error_message(r->b.ctx));
        }
        rw_zero_grad(r->b.ctx);
        rw_tape_reset(r->b.t);
    }
}

static void launch(struct run *r, bool inside)
{
    float x[ROWS * IN];
    rw_graph *graph = NULL;
    numbers_of(r, 0, x);
    const rw_graph_params params = { { recorded_scaler(r->scaler), recorded_update(r->opt, inside) } };
    cr_assert_eq(rw_graph_create(&graph, r->b.t, record(r, x), &params), RW_OK, "%s", rw_error_message(r->b.ctx));
    for (int step = 0; step < STEPS; step++) {
        numbers_of(r, step, x);
        cr_assert_eq(rw_input_write(r->x, x, sizeof x), RW_OK);
        cr_assert_eq(rw_graph_launch(graph), RW_OK, "%s", rw_error_message(r->b.ctx));
    }
    rw_graph_destroy(&graph);
}

/* Parameters and states. */
static void same(struct run *a, struct run *b, const char *what)
{
    for (size_t k = 0; k < PARAMS; k++) {
        void *const x = values(a->w[k]), *const y = values(b->w[k]);
        cr_expect_lt(first_difference(x, y, rw_tensor_bytes(a->w[k])), 0, "%s: other bytes of %zu", what, k);
        free(x), free(y);
        const struct rw_kept kept = rw_optimizer_kept(a->opt, k);
        for (int j = 0; j < kept.n; j++) {
            void *const p = state(a->opt, k, j, kept.bytes[j]), *const q = state(b->opt, k, j, kept.bytes[j]);
            cr_expect_lt(first_difference(p, q, kept.bytes[j]), 0, "%s: other bytes of %s of %zu", what, kept.name[j],
                         k);
            free(p), free(q);
        }
    }
}

Test(adam_bf16_moments, graphs_and_policies_and_left_out_steps_make_the_same_bytes)
{
    static const char *const policies[] = { "none", "full", "selective:block", "uniform:1", "block:1", "ops:linear" };
    for (int scaled = 0; scaled < 2; scaled++) {
        struct run one = run_open(RW_BF16, scaled);
        train(&one, 0, STEPS);
        for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
            struct run other = run_open(RW_BF16, scaled), inside = run_open(RW_BF16, false);
            cr_assert_eq(ckpt_set_policy(other.b.t, policies[i]), RW_OK);
            cr_assert_eq(ckpt_set_policy(inside.b.t, policies[i]), RW_OK);
            if (i % 2) train(&other, 0, STEPS);
            else launch(&other, false);
            same(&one, &other, policies[i]);
            if (!scaled) {
                launch(&inside, true);
                same(&one, &inside, "inside backward");
            }
            run_close(&other), run_close(&inside);
        }
        run_close(&one);
    }
}

static rw_checkpoint *checkpoint_of(struct run *r, const char *folder)
{
    rw_checkpoint *ck = NULL;
    const rw_checkpoint_params params = { .folder = folder, .optimizer = r->opt };
    cr_assert_eq(rw_checkpoint_create(&ck, r->b.ctx, &params), RW_OK, "%s", rw_error_message(r->b.ctx));
    return ck;
}

Test(adam_bf16_moments, a_run_that_is_loaded_goes_on_to_the_bit_and_other_moments_are_refused)
{
    char folder[64], command[96];
    for (int narrow = 0; narrow < 2; narrow++) {
        const rw_dtype dtype = narrow ? RW_BF16 : RW_F32;
        snprintf(folder, sizeof folder, "/tmp/moments_%d_%d", (int)getpid(), narrow);
        struct run one = run_open(dtype, true), other = run_open(dtype, true);
        struct run wrong = run_open(narrow ? RW_F32 : RW_BF16, true);
        rw_checkpoint_found found;
        train(&one, 0, 4);
        rw_checkpoint *ck = checkpoint_of(&one, folder);
        cr_assert_eq(rw_checkpoint_save(ck, 4, NULL, 0), RW_OK, "%s", rw_error_message(one.b.ctx));
        rw_checkpoint_destroy(&ck);
        ck = checkpoint_of(&wrong, folder);
        void *const before = values(wrong.w[0]);
        cr_assert_eq(rw_checkpoint_load(ck, &found), RW_ERR_DTYPE);
        cr_assert(strstr(rw_error_message(wrong.b.ctx), "exp_avg:w\": expected"), "%s", rw_error_message(wrong.b.ctx));
        cr_assert(strstr(rw_error_message(wrong.b.ctx), narrow ? "F32, got BF16" : "BF16, got F32"));
        rw_error_clear(wrong.b.ctx);
        void *const after = values(wrong.w[0]);
        cr_expect_lt(first_difference(before, after, rw_tensor_bytes(wrong.w[0])), 0, "something was loaded");
        free(before), free(after);
        rw_checkpoint_destroy(&ck);
        ck = checkpoint_of(&other, folder);
        cr_assert_eq(rw_checkpoint_load(ck, &found), RW_OK, "%s", rw_error_message(other.b.ctx));
        rw_checkpoint_destroy(&ck);
        train(&one, 4, STEPS), train(&other, 4, STEPS);
        same(&one, &other, "a checkpoint");
        snprintf(command, sizeof command, "rm -rf %s", folder);
        cr_expect_eq(system(command), 0);
        run_close(&one), run_close(&other), run_close(&wrong);
    }
}
