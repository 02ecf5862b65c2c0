/*
 * Every precision recipe in use: fifty steps of three micro-batches have the same losses, gradients, parameters, scales
 * and histories under every policy, for any number of threads, and with kept quantized weights.
 */
#include "api/precision_recipe_fixture.h"

#include <criterion/criterion.h>
#include <math.h>

#define F8(...) { .kind = RW_RECIPE_F8, __VA_ARGS__ }

static const struct recipe_way ways[] = {
    { .name = "none", .recipe = { .kind = RW_RECIPE_F32 } },
    { .name = "bf16", .recipe = { .kind = RW_RECIPE_BF16 } },
    { .name = "f16", .recipe = { .kind = RW_RECIPE_F16 }, .scaler = true },
    { .name = "by tensor", .recipe = F8(.scaling = RW_SCALING_TENSOR) },
    { .name = "by tensor, kept", .recipe = F8(.keep_weights = true) },
    { .name = "by blocks", .recipe = F8(.scaling = RW_SCALING_1X128, .gradient_dtype = RW_F8_E4M3) },
    { .name = "by blocks, kept",
      .recipe = F8(.scaling = RW_SCALING_1X128, .gradient_dtype = RW_F8_E4M3, .keep_weights = true) },
    { .name = "mx", .recipe = F8(.scaling = RW_SCALING_MX) },
    { .name = "mx, kept", .recipe = F8(.scaling = RW_SCALING_MX, .keep_weights = true) },
    { .name = "delayed", .recipe = F8(.scaling = RW_SCALING_TENSOR), .delayed = { .history = 4 } },
    { .name = "delayed, kept", .recipe = F8(.keep_weights = true), .delayed = { .history = 4 } },
    { .name = "delayed by the last one",
      .recipe = F8(.scaling = RW_SCALING_TENSOR),
      .delayed = { .history = 3, .rule = RW_DELAYED_MOST_RECENT, .margin = 1, .gradient_dtype = RW_F8_E4M3 },
      .scaler = true },
};

enum { WAYS = sizeof ways / sizeof *ways };

static bool is_kept(int way)
{
    return ways[way].recipe.keep_weights;
}

static int steps_of_a_run(void)
{
    return test_steps(RECIPE_STEPS_MAX, 3);
}

Test(precision_recipe_bit_identity, policies_and_threads_change_no_byte_in_fifty_steps)
{
    static const char *const policies[] = { "full", "uniform:2", "block:1", "selective:second", "ops:linear",
                                            "ops:quantize,cast", "full+offload:second", "budget:95%" };
    const size_t n = test_device() == RW_DEVICE_CPU ? sizeof policies / sizeof *policies : 1;
    for (int w = 0; w < WAYS; w++) {
        const struct recipe_outcome none = recipe_train(&ways[w], "none", 1, steps_of_a_run(), -1);
        cr_assert(isfinite(none.loss[0]) && none.loss[0] > 0);
        for (size_t i = 0; i < n; i++) {
            const struct recipe_outcome o =
                recipe_train(&ways[w], policies[i], 1 + (int)(i + (size_t)w) % 5, steps_of_a_run(), i == 0 ? 1 : -1);
            const int step = recipe_differ(&none, &o);
            cr_expect_eq(step, -1, "%s, %s: step %d differs", ways[w].name, policies[i], step);
        }
    }
}

Test(precision_recipe_bit_identity, kept_quantized_values_equal_computed_ones)
{
    for (int w = 1; w < WAYS; w++) {
        if (!is_kept(w)) continue;
        const struct recipe_outcome made = recipe_train(&ways[w - 1], "none", 1, steps_of_a_run(), -1);
        const struct recipe_outcome kept = recipe_train(&ways[w], "full", 2, steps_of_a_run(), -1);
        const int step = recipe_differ(&made, &kept);
        cr_expect_eq(step, -1, "%s: step %d differs", ways[w].name, step);
    }
}

/* Otherwise equal bytes would prove nothing. */
Test(precision_recipe_bit_identity, recipes_differ)
{
    struct recipe_outcome o[WAYS];
    for (int w = 0; w < WAYS; w++) o[w] = recipe_train(&ways[w], "none", 1, 2, -1);
    for (int a = 0; a < WAYS; a++)
        for (int b = a + 1; b < WAYS; b++)
            if (b != a + 1 || !is_kept(b))
                cr_expect_geq(recipe_differ(&o[a], &o[b]), 0, "%s, %s", ways[a].name, ways[b].name);
}

/* ---- weights of float16 ---- */

enum { SIDE = 8, ROWS = 3 };

/* Small integers: neither they nor their products below are rounded in any type. */
static rw_tensor *rows_of(rw_tape *t, int number, float *sums)
{
    float data[ROWS * SIDE];
    for (int i = 0; i < ROWS * SIDE; i++) {
        data[i] = (float)((i * 5 + number) % 7 - 3);
        sums[i % SIDE] += data[i];
    }
    return rw_input(t, RW_F32, RW_SHAPE(ROWS, SIDE), data, sizeof data);
}

/* The sum of two layers with one weight, unchanged or cast to a type: each column's gradient is that column's sum of
   x. */
static void backward_of_two_uses(struct fixture *b, rw_tensor *w, rw_dtype dtype, float *sums)
{
    rw_tape *const t = b->t;
    rw_recipe_begin(t, &(rw_recipe){ .kind = RW_RECIPE_F8 });
    rw_tensor *const h = rw_cast(t, w, dtype);
    ckpt_begin(t, "r");
    rw_tensor *const y = rw_linear(t, rows_of(t, 1, sums), h, RW_NONE), *const z =
        rw_linear(t, rows_of(t, 2, sums), h, RW_NONE);
    ckpt_end(t);
    rw_recipe_end(t);
    rw_tensor *const wide = rw_add(t, rw_cast(t, y, RW_F32), rw_cast(t, z, RW_F32));
    cr_expect_eq(rw_backward(t, rw_sum(t, wide, RW_ALL_AXES, false)), RW_OK, "%s: %s", rw_dtype_name(dtype),
                 rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
    rw_tape_reset(t);
}

static void expect_gradient(struct fixture *b, rw_tensor *w, const float *sums, const char *what)
{
    float got[SIDE * SIDE];
    rw_tensor *const g = rw_cast(b->t, rw_gradient(w), RW_F32);
    cr_assert_eq(rw_read(b->t, g, got, sizeof got), RW_OK, "%s", rw_error_message(b->ctx));
    for (int i = 0; i < SIDE * SIDE; i++)
        cr_expect_eq(got[i], sums[i % SIDE], "%s: element %d is %g, not %g", what, i, got[i], sums[i % SIDE]);
    rw_tape_reset(b->t);
}

/* A weight that is cast to the type, and a parameter of that type with its gradient in that type, over two
   micro-batches. */
Test(precision_recipe_bit_identity, weights_of_any_type_sum_what_codes_give_them)
{
    static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16 };
    for (int full = 0; full < 2; full++)
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            struct fixture b = fixture_open(3, 1);
            float sums[SIDE] = { 0 }, twice[SIDE] = { 0 };
            ckpt_set_policy(b.t, full ? "full" : "none");
            rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(SIDE, SIDE));
            rw_tensor *const own = rw_param_with(b.ctx, "own", types[i], RW_SHAPE(SIDE, SIDE),
                                                 &(rw_param_options){ types[i] });
            cr_assert_eq(rw_init_constant(w, 0.5), RW_OK);
            cr_assert_eq(rw_init_constant(own, 0.5), RW_OK);
            backward_of_two_uses(&b, w, types[i], sums);
            expect_gradient(&b, w, sums, rw_dtype_name(types[i]));
            for (int batch = 0; batch < 2; batch++) backward_of_two_uses(&b, own, types[i], twice);
            expect_gradient(&b, own, twice, rw_dtype_name(types[i]));
            fixture_close(&b);
        }
}
