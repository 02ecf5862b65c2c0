/*
 * Moving averages of the weights and learning-rate schedules: compared with PyTorch's numbers, bit-identical for every
 * number of threads, and invalid calls are refused.
 */
#include "base/alloc.h"
#include "golden/optimizers.h"
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double value_of(int64_t i, int step)
{
    return ((double)((uint64_t)(i * 31 + step * 17) * 2654435761u >> 9 & 0x7f) - 63) / 64;
}

static void fill(rw_tensor *x, int step)
{
    const rw_dtype dtype = rw_tensor_dtype(x);
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    void *const data = malloc((size_t)n * 8);
    for (int64_t i = 0; i < n; i++) cr_assert(number_put(data, dtype, i, value_of(i % GOLDEN_N, step)));
    cr_assert_eq(rw_write(x, data, rw_tensor_bytes(x)), RW_OK);
    free(data);
}

static const double *golden_average(void)
{
    for (size_t i = 0; i < sizeof golden_rows / sizeof *golden_rows; i++)
        if (!strcmp(golden_rows[i].name, "average")) return golden_rows[i].want;
    return NULL;
}

/* PyTorch's first average is a copy of the model; ours starts from it. Two roundings per step, in float32. */
Test(average, is_that_of_pytorch)
{
    static const rw_dtype dtypes[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    for (int d = 0; d < 4; d++) {
        struct fixture b = fixture_open(1, 2);
        rw_weight_average *average = NULL;
        rw_tensor *const w = rw_param(b.ctx, "w", dtypes[d], RW_SHAPE(61, GOLDEN_N));
        rw_tensor *const buffer = rw_buffer(b.ctx, "b", RW_F32, RW_SHAPE(2));
        fill(w, 0);
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.75), RW_OK, "%s", rw_error_message(b.ctx));
        for (int step = 1; step < GOLDEN_STEPS; step++) {
            fill(w, step);
            cr_assert_eq(rw_weight_average_step(average), RW_OK, "%s", rw_error_message(b.ctx));
        }
        rw_tensor *const x = rw_weight_average_of(average, w);
        cr_assert_null(rw_weight_average_of(average, buffer));
        cr_assert_eq(rw_tensor_dtype(x), d ? RW_F32 : RW_F64);
        void *const got = malloc(rw_tensor_bytes(x));
        cr_assert_eq(rw_read(NULL, x, got, rw_tensor_bytes(x)), RW_OK);
        for (int i = 0; i < 61 * GOLDEN_N; i++) {
            const double is = number_get(got, rw_tensor_dtype(x), i), want = golden_average()[i % GOLDEN_N];
            cr_expect(fabs(is - want) <= 3 * GOLDEN_STEPS * (d ? 0x1p-24 : 0x1p-53), "%s, element %d: %.17g, not %.17g",
                      rw_dtype_name(dtypes[d]), i, is, want);
        }
        free(got);
        rw_weight_average_destroy(&average);
        fixture_close(&b);
    }
}

/*
 * The average of a parameter that does not change is the parameter. decay and 1 - decay, each rounded, do not sum to 1,
 * and the error of their sum, relative to 1 - decay, would show in the long run.
 */
Test(average, of_a_constant_parameter_is_the_parameter)
{
    enum { N = 61 };
    static const double decays[] = { 0, 0.1, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 0.99999 };
    static const rw_dtype dtypes[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    for (int d = 0; d < 4; d++)
        for (size_t k = 0; k < sizeof decays / sizeof *decays; k++) {
            struct fixture b = fixture_open(1, 1);
            rw_weight_average *average = NULL;
            rw_tensor *const w = rw_param(b.ctx, "w", dtypes[d], RW_SHAPE(N));
            rw_init_normal(w, 1.3, 0.3);
            cr_assert_eq(rw_weight_average_create(&average, b.ctx, decays[k]), RW_OK);
            char raw[N * 8], got[N * 8];
            cr_assert_eq(rw_read(NULL, w, raw, rw_tensor_bytes(w)), RW_OK);
            for (int step = 0; step < 100; step++) cr_assert_eq(rw_weight_average_step(average), RW_OK);
            rw_tensor *const x = rw_weight_average_of(average, w);
            cr_assert_eq(rw_read(NULL, x, got, rw_tensor_bytes(x)), RW_OK);
            for (int i = 0; i < N; i++)
                cr_expect_eq(number_get(got, rw_tensor_dtype(x), i), number_get(raw, dtypes[d], i),
                             "%s, decay %g, element %d: %.9g, expected %.9g", rw_dtype_name(dtypes[d]), decays[k], i,
                             number_get(got, rw_tensor_dtype(x), i), number_get(raw, dtypes[d], i));
            rw_weight_average_destroy(&average);
            fixture_close(&b);
        }
}

/*
 * The mean error over 2,000 weights of an average of 600 steps, compared with the same recursion in double. A step
 * rounds by at most half a unit in the last place, with either sign, so the mean of many is far less.
 */
Test(average, of_noise_does_not_drift)
{
    enum { N = 2000, STEPS = 600 };
    static float w[N];
    static double want[N];
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    uint64_t state = 88172645463325252u;
    rw_tensor *const p = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(N));
    for (int step = 0; step <= STEPS; step++) {
        for (int i = 0; i < N; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            w[i] = 1.3f + (float)(((double)(state >> 11) * 0x1p-53 - 0.5) * 0.6);
            want[i] = step ? want[i] + (1 - 0.99) * ((double)w[i] - want[i]) : (double)w[i];
        }
        cr_assert_eq(rw_write(p, w, sizeof w), RW_OK);
        cr_assert_eq(step ? rw_weight_average_step(average) : rw_weight_average_create(&average, b.ctx, 0.99), RW_OK);
    }
    double off = 0;
    cr_assert_eq(rw_read(NULL, rw_weight_average_of(average, p), w, sizeof w), RW_OK);
    for (int i = 0; i < N; i++) off += ((double)w[i] / want[i] - 1) / N;
    cr_expect_leq(fabs(off), 0x1p-23, "the mean is off by %.3g", off);
    rw_weight_average_destroy(&average);
    fixture_close(&b);
}

/* Each step is x + (1 - decay) * (w - x) with the decay of that step, in float32: two roundings. A decay of 0
   copies. */
Test(average, follows_a_decay_that_changes)
{
    static const double decays[] = { 0.5, 0, 0.9, 0.25, 0.999 };
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    rw_tensor *const p = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1));
    float w = 1, got;
    double want = 1;
    cr_assert_eq(rw_write(p, &w, sizeof w), RW_OK);
    cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.75), RW_OK);
    for (int step = 0; step < 5; step++) {
        cr_assert_eq(rw_weight_average_set_decay(average, decays[step]), RW_OK);
        w = 3.1f * (float)(step + 1);
        want += (1 - decays[step]) * ((double)w - want);
        cr_assert_eq(rw_write(p, &w, sizeof w), RW_OK);
        cr_assert_eq(rw_weight_average_step(average), RW_OK);
        cr_assert_eq(rw_read(NULL, rw_weight_average_of(average, p), &got, sizeof got), RW_OK);
        cr_expect_leq(fabs((double)got / want - 1), 10 * 0x1p-24, "step %d: %.9g, expected %.9g", step, (double)got,
                      want);
        if (decays[step] == 0) cr_expect_eq(got, w);
    }
    cr_assert_eq(rw_weight_average_set_decay(average, 0.5), RW_OK);
    cr_assert_eq(rw_weight_average_set_decay(average, 1), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx); /* refused: 0.5 stays */
    cr_assert_eq(rw_weight_average_step(average), RW_OK);
    cr_assert_eq(rw_read(NULL, rw_weight_average_of(average, p), &got, sizeof got), RW_OK);
    cr_expect_leq(fabs((double)got / (want + 0.5 * ((double)w - want)) - 1), 12 * 0x1p-24);
    rw_weight_average_destroy(&average);
    fixture_close(&b);
}

Test(average, is_the_same_bytes_for_every_number_of_threads)
{
    enum { LONG = 40003 };
    static float want[LONG], got[LONG];
    for (int threads = 1; threads <= 5; threads++) {
        struct fixture b = fixture_open(1, threads);
        rw_weight_average *average = NULL;
        rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(LONG));
        rw_init_normal(w, 0, 1);
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.9), RW_OK);
        for (int step = 0; step < 3; step++) {
            rw_init_normal(w, 0, 1);
            if (step == 2) rw_context_set_threads(b.ctx, threads % 3 + 1);
            cr_assert_eq(rw_weight_average_step(average), RW_OK);
        }
        rw_read(NULL, rw_weight_average_of(average, w), threads > 1 ? got : want, sizeof want);
        cr_assert(threads == 1 || !memcmp(got, want, sizeof want), "%d threads", threads);
        rw_weight_average_destroy(&average);
        fixture_close(&b);
    }
}

/* A model that uses the averages instead of the parameters. A step counts as a change of them. */
Test(average, is_an_operand)
{
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_init_constant(w, 2);
    cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
    rw_init_constant(w, 4);
    cr_assert_eq(rw_weight_average_step(average), RW_OK);
    cr_assert_eq(rw_item(b.t, rw_sum(b.t, rw_weight_average_of(average, w), RW_ALL_AXES, false)), 12);
    rw_tape_reset(b.t);
    rw_weight_average_destroy(&average);
    fixture_close(&b);
}

Test(average, of_more_parameters_than_a_node_takes)
{
    const int many = test_device() == RW_DEVICE_CPU ? 4100 : 130;
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    for (int k = 0; k < many; k++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", k);
        rw_init_constant(rw_param(b.ctx, name, RW_F32, RW_SHAPE(1)), k);
    }
    cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK, "%s", rw_error_message(b.ctx));
    for (int k = 0; k < many; k++) {
        float x;
        rw_read(NULL, rw_weight_average_of(average, rw_param_get(b.ctx, (size_t)k)), &x, sizeof x);
        cr_assert_eq(x, k);
    }
    rw_weight_average_destroy(&average);
    fixture_close(&b);
}

Test(average, without_memory_there_is_none)
{
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    rw_memory was, is;
    rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(3));
    rw_memory_stats(b.ctx, &was);
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        rw_alloc_fail_from(n);
        const rw_status status = rw_weight_average_create(&average, b.ctx, 0.5);
        rw_alloc_fail_at(0);
        if (!status) break;
        failures++;
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %d: %s", (int)n, rw_error_message(b.ctx));
        cr_assert_null(average);
        rw_error_clear(b.ctx);
        rw_memory_stats(b.ctx, &is);
        cr_assert_eq(is.optimizer, was.optimizer);
    }
    cr_assert_gt(failures, 5);
    rw_memory_stats(b.ctx, &is);
    cr_assert_eq(is.optimizer - was.optimizer, 12);
    rw_weight_average_destroy(&average);
    rw_memory_stats(b.ctx, &is);
    cr_assert_eq(is.optimizer, was.optimizer);
    fixture_close(&b);
}

/* An average is called "average of P" in every message, and belongs to its context only. */
Test(average, has_a_name)
{
    struct fixture b = fixture_open(1, 1), other = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    float x[4] = { 0 };
    rw_tensor *const p = rw_param(b.ctx, "h.0/w", RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
    rw_tensor *const a = rw_weight_average_of(average, p);
    cr_expect_str_eq(rw_tensor_name(a), "average of h.0/w");
    cr_expect_null(rw_relu(other.t, a));
    cr_expect(strstr(rw_error_message(other.ctx), "\"average of h.0/w\": expected a tensor of this tape"), "%s",
              rw_error_message(other.ctx));
    cr_expect_eq(rw_write(a, x, 3), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "expected 16, the size of \"average of h.0/w\", got 3"), "%s",
              rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, a, p), RW_ALL_AXES, false);
    cr_assert_eq(rw_weight_average_step(average), RW_OK);
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_MODIFIED);
    cr_expect(strstr(rw_error_message(b.ctx), "\"average of h.0/w\" changed"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    rw_weight_average_destroy(&average);
    cr_expect_str_eq(rw_tensor_name(a), "");
    fixture_close(&other);
    fixture_close(&b);
}

Test(average, mistakes_are_refused)
{
    static const double bad[] = { -0.1, 1, NAN, INFINITY };
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL;
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, bad[i]), RW_ERR_ARGUMENT);
        cr_assert(strstr(rw_error_message(b.ctx), "rw_weight_average_create(decay): expected"), "%s",
                  rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    cr_assert_eq(rw_weight_average_create(NULL, b.ctx, 0.5), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_weight_average_create(&average, NULL, 0.5), RW_ERR_ARGUMENT);
    cr_assert_null(average);
    cr_assert_eq(rw_weight_average_step(NULL), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_weight_average_set_decay(NULL, 0.5), RW_ERR_ARGUMENT);
    cr_assert_null(rw_weight_average_of(NULL, NULL));
    rw_weight_average_destroy(NULL);
    rw_weight_average_destroy(&average);
    fixture_close(&b);
}

static void expect_refusal(struct fixture *b, const char *what, const char *words)
{
    cr_expect_eq(rw_error_status(b->ctx), RW_ERR_ARGUMENT, "%s: %s", what, rw_error_message(b->ctx));
    cr_expect(strstr(rw_error_message(b->ctx), words), "%s: %s", what, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

Test(average, its_tensor_is_refused_when_it_has_gone)
{
    static const char gone[] = "belongs to averages that were destroyed";
    struct fixture b = fixture_open(1, 1);
    rw_weight_average *average = NULL, *other = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
    float x[2];
    cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
    rw_tensor *const mean = rw_weight_average_of(average, w);
    rw_weight_average_destroy(&average);
    cr_assert_eq(rw_weight_average_create(&other, b.ctx, 0.5), RW_OK); /* starts from the values of the first */
    cr_expect_null(rw_add(b.t, mean, w));
    expect_refusal(&b, "rw_add", gone);
    cr_expect_eq(rw_read(NULL, mean, x, sizeof x), RW_ERR_ARGUMENT);
    expect_refusal(&b, "rw_read", gone);
    cr_expect_eq(rw_write(mean, x, sizeof x), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect(isnan(rw_item(b.t, mean)));
    expect_refusal(&b, "rw_item", gone);
    cr_expect_eq(rw_eval(b.t, &mean, 1), RW_ERR_ARGUMENT);
    expect_refusal(&b, "rw_eval", gone);
    cr_expect_eq(rw_assign(b.t, mean, w), RW_ERR_ARGUMENT);
    expect_refusal(&b, "rw_assign", gone);
    cr_expect_eq(rw_tensor_shape(mean).rank, 0);
    cr_expect_eq(rw_tensor_bytes(mean), 0);
    cr_expect_str_eq(rw_tensor_name(mean), "");
    cr_expect_null(rw_gradient(mean));
    rw_weight_average_destroy(&other);
    fixture_close(&b);
}

/* Both if another average has reused its slot by then and if not. */
Test(average, a_tape_that_used_it_runs_nothing_before_its_reset)
{
    static const char gone[] = "averages of the weights that were destroyed";
    for (int with = 0; with < 2; with++) {
        struct fixture b = fixture_open(1, 1);
        rw_weight_average *average = NULL, *other = NULL;
        rw_graph *g = NULL;
        rw_tape *graphs = NULL;
        float x[2];
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2));
        rw_init_constant(w, 3);
        cr_assert_eq(rw_tape_create(&graphs, b.ctx), RW_OK);
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
        rw_tensor *const mean = rw_weight_average_of(average, w), *const row = rw_reshape(b.t, mean, RW_SHAPE(1, 2));
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, mean, w), RW_ALL_AXES, false);
        rw_tensor *const again = rw_sum(graphs, rw_mul(graphs, mean, w), RW_ALL_AXES, false);
        cr_assert_eq(rw_item(b.t, loss), 18);
        cr_assert_eq(rw_graph_create(&g, graphs, again, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        rw_weight_average_destroy(&average);
        if (with) cr_assert_eq(rw_weight_average_create(&other, b.ctx, 0.5), RW_OK);
        cr_expect_eq(rw_item(b.t, loss), 18); /* whose average still exists */
        cr_expect_eq(rw_backward(b.t, loss), RW_ERR_ARGUMENT);
        expect_refusal(&b, "rw_backward", gone);
        cr_expect(isnan(rw_item(b.t, rw_sum(b.t, row, RW_ALL_AXES, false))));
        expect_refusal(&b, "rw_item", gone);
        cr_expect_eq(rw_read(b.t, row, x, sizeof x), RW_ERR_ARGUMENT);
        expect_refusal(&b, "rw_read", gone);
        cr_expect_eq(rw_graph_launch(g), RW_ERR_ARGUMENT);
        expect_refusal(&b, "rw_graph_launch", gone);
        rw_tape_reset(b.t);
        cr_expect_eq(rw_item(b.t, rw_sum(b.t, w, RW_ALL_AXES, false)), 6);
        rw_graph_destroy(&g);
        rw_tape_destroy(&graphs);
        rw_weight_average_destroy(&other);
        fixture_close(&b);
    }
}

/* ---- schedules ---- */

static void expect_rates(const char *what, rw_lr_schedule s, const double *want, int n)
{
    for (int step = 0; step < n; step++)
        cr_expect(fabs(rw_lr_schedule_rate(&s, (uint64_t)step) - want[step]) <= 16 * 0x1p-53,
                  "%s, step %d: %.17g, not %.17g", what, step, rw_lr_schedule_rate(&s, (uint64_t)step), want[step]);
}

/* Compared with torch.optim.lr_scheduler: CosineAnnealingLR, LinearLR, StepLR, which compute each rate from the one
   before. */
Test(schedule, is_that_of_pytorch)
{
    static const double cosine[] = { 0.5, 0.48572741234586625, 0.4450825214724776, 0.38425314356845436, 0.3125,
                                     0.24074685643154567, 0.17991747852752235, 0.13927258765413375 };
    static const double linear[] = { 0.5, 0.453125, 0.40625, 0.359375, 0.3125, 0.265625, 0.21875, 0.171875, 0.125,
                                     0.125 };
    static const double steps[] = { 0.5, 0.5, 0.5, 0.125, 0.125, 0.125, 0.03125, 0.03125, 0.03125 };
    expect_rates("cosine", (rw_lr_schedule){ .kind = RW_LR_COSINE, .lr = 0.5, .min_lr = 0.125, .total = 8 }, cosine,
                 8);
    expect_rates("linear", (rw_lr_schedule){ .kind = RW_LR_LINEAR, .lr = 0.5, .min_lr = 0.125, .total = 8 }, linear,
                 10);
    expect_rates("steps", (rw_lr_schedule){ .kind = RW_LR_STEPS, .lr = 0.5, .every = 3, .factor = 0.25 }, steps, 9);
    const double tenths[] = { 0.5, 0.5, 0.05, 0.05, 0.005, 0.005 }; /* the default of gamma */
    expect_rates("steps by default", (rw_lr_schedule){ .kind = RW_LR_STEPS, .lr = 0.5, .every = 2 }, tenths, 6);
    const double warm[] = { 0.125, 0.25, 0.375, 0.5, 0.5, 0.5 };
    expect_rates("constant", (rw_lr_schedule){ .lr = 0.5, .warmup = 4 }, warm, 6);
}

/* The warm-up is part of the total number of steps. After it, a schedule starts at its highest rate and never ends
   below its lowest. */
Test(schedule, warms_up_first)
{
    for (rw_lr_schedule_kind kind = RW_LR_CONSTANT; kind <= RW_LR_STEPS; kind++) {
        const rw_lr_schedule s = { .kind = kind, .lr = 1, .min_lr = 0.25, .warmup = 5, .total = 9, .every = 2,
                                   .factor = 0.125 };
        for (uint64_t step = 0; step < 5; step++) cr_expect_eq(rw_lr_schedule_rate(&s, step), (double)(step + 1) / 5);
        cr_expect_eq(rw_lr_schedule_rate(&s, 5), 1);
        cr_expect_eq(rw_lr_schedule_rate(&s, 9), kind == RW_LR_CONSTANT ? 1 : 0.25);
        cr_expect_eq(rw_lr_schedule_rate(&s, UINT64_MAX), kind == RW_LR_CONSTANT ? 1 : 0.25);
    }
}

/* From `total` on the rate is min_lr exactly; before, after the warm-up, it is between min_lr and lr. */
Test(schedule, stays_between_its_rates_and_ends_at_the_lowest)
{
    static const double high[] = { 1, 0.1, 1e-2, 6e-4, 3e-4, 1e-3, 2e-4, 5e-5, 3e-3 };
    static const double low[] = { 0, 1e-17, 1e-20, 6e-5, 3e-5, 1e-5, 1e-6, 1e-4, 2e-5, 1e-7 };
    for (rw_lr_schedule_kind kind = RW_LR_LINEAR; kind <= RW_LR_COSINE; kind++)
        for (size_t i = 0; i < sizeof high / sizeof *high; i++)
            for (size_t j = 0; j < sizeof low / sizeof *low; j++) {
                const rw_lr_schedule s = { .kind = kind, .lr = high[i], .min_lr = low[j], .warmup = 3, .total = 1003 };
                const double most = fmax(high[i], low[j]), least = fmin(high[i], low[j]);
                cr_expect_eq(rw_lr_schedule_rate(&s, 1003), low[j], "kind %d, %g to %g", (int)kind, high[i], low[j]);
                cr_expect_eq(rw_lr_schedule_rate(&s, 5000), low[j], "kind %d, %g to %g", (int)kind, high[i], low[j]);
                cr_expect_eq(rw_lr_schedule_rate(&s, 3), high[i], "kind %d, %g to %g", (int)kind, high[i], low[j]);
                for (uint64_t step = 3; step < 1003; step++) {
                    const double rate = rw_lr_schedule_rate(&s, step);
                    cr_assert(rate >= least && rate <= most, "kind %d, %g to %g, step %d: %.17g", (int)kind, high[i],
                              low[j], (int)step, rate);
                }
            }
}

/* A factor belongs to STEPS: other kinds ignore it. */
Test(schedule, of_another_kind_ignores_the_factor)
{
    for (rw_lr_schedule_kind kind = RW_LR_CONSTANT; kind <= RW_LR_COSINE; kind++) {
        const rw_lr_schedule plain = { .kind = kind, .lr = 1, .total = 8 };
        rw_lr_schedule odd = plain;
        odd.factor = kind == RW_LR_LINEAR ? NAN : -1;
        cr_expect_eq(rw_lr_schedule_rate(&odd, 5), rw_lr_schedule_rate(&plain, 5), "kind %d", (int)kind);
    }
}

Test(schedule, of_invalid_values_is_nan_and_no_optimizer_takes_it)
{
    static const rw_lr_schedule bad[] = {
        { .kind = (rw_lr_schedule_kind)4, .lr = 1 },
        { .lr = -1 },
        { .lr = NAN },
        { .lr = 1, .min_lr = INFINITY },
        { .kind = RW_LR_COSINE, .lr = 1 },
        { .kind = RW_LR_LINEAR, .lr = 1, .warmup = 7, .total = 7 },
        { .kind = RW_LR_STEPS, .lr = 1, .factor = 0.5 },
        { .kind = RW_LR_STEPS, .lr = 1, .factor = -0.5, .every = 1 },
        { .kind = RW_LR_STEPS, .lr = 1, .factor = 1e110, .every = 1 }, /* the rate of step 3 is infinite */
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) cr_expect(isnan(rw_lr_schedule_rate(&bad[i], 3)), "%zu", i);
    cr_expect(isnan(rw_lr_schedule_rate(NULL, 0)));
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_param(b.ctx, "w", RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_sgd_create(&opt, b.ctx, NULL), RW_OK);
    rw_optimizer_set_lr(opt, rw_lr_schedule_rate(&bad[0], 0));
    cr_expect_eq(rw_optimizer_step(opt), RW_ERR_ARGUMENT);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}
