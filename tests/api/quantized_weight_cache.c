/*
 * Quantized weights that are kept between micro-batches: quantized once per optimizer step, and once more after any
 * write to the weight or its scale, whatever other tapes are in progress. precision_recipe_bit_identity.c checks that
 * the bytes are the same.
 */
#include "api/precision_recipe_fixture.h"
#include "base/alloc.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const struct recipe_way way = { .recipe = { .kind = RW_RECIPE_F8, .keep_weights = true } };
static const struct recipe_way delayed = { .recipe = { .kind = RW_RECIPE_F8, .keep_weights = true },
                                           .delayed = { .history = 4 } };

/* Number of times that the tape quantizes the weight. */
static int makes_codes(const rw_tape *t, const rw_tensor *weight)
{
    int n = 0;
    for (size_t i = 0; i < t->n_nodes; i++) {
        const struct rw_node *const node = &t->nodes[i];
        if (strcmp(t->ctx->ops[node->op]->name, "quantize")) continue;
        const struct rw_tensor *const v = rw_tape_value(t, t->operands[node->first_input]);
        n += v->leaf != RW_NONE_ID && t->leaves[v->leaf].kind == RW_LEAF_PARAM &&
             t->leaves[v->leaf].param == weight->id;
    }
    return n;
}

/* A micro-batch on that tape. Returns the number of times that it has quantized a weight. */
static int batch(struct recipe_world *x, rw_tape *t, int number)
{
    rw_tensor *const loss = recipe_loss(x, t, number);
    const int n = makes_codes(t, x->up);
    recipe_backward(x, t, loss);
    rw_tape_reset(t);
    return n;
}

Test(quantized_weight_cache, are_computed_once_per_optimizer_step)
{
    for (int d = 0; d < 2; d++) {
        struct recipe_world x = recipe_world_open(d ? &delayed : &way, "full", 1);
        for (int step = 0; step < 3; step++) {
            for (int m = 0; m < RECIPE_BATCHES; m++) cr_expect_eq(batch(&x, x.b.t, m), m == 0, "step %d, %d", step, m);
            recipe_end_step(&x);
            rw_zero_grad(x.b.ctx);
        }
        recipe_world_close(&x);
    }
}

Test(quantized_weight_cache, are_recomputed_when_a_weight_was_written)
{
    struct recipe_world x = recipe_world_open(&delayed, "none", 1);
    batch(&x, x.b.t, 0);
    cr_expect_eq(batch(&x, x.b.t, 1), 0);
    cr_assert_eq(rw_init_normal(x.up, 0, 1), RW_OK);
    cr_expect_eq(batch(&x, x.b.t, 2), 1);
    cr_expect_eq(batch(&x, x.b.t, 3), 0);
    cr_assert_eq(rw_delayed_scaling_update(x.d, NULL), RW_OK); /* its scale */
    cr_expect_eq(batch(&x, x.b.t, 4), 1);
    x.recipe.delayed = NULL; /* scaled differently */
    cr_expect_eq(batch(&x, x.b.t, 5), 1);
    cr_expect_eq(batch(&x, x.b.t, 6), 0);
    x.recipe.keep_weights = false;
    cr_expect_eq(batch(&x, x.b.t, 7), 1);
    recipe_world_close(&x);
}

/* A step without backward keeps nothing and invalidates nothing; a tape that is not reset has its own quantized
   weight. */
Test(quantized_weight_cache, of_steps_that_have_no_backward)
{
    struct recipe_world x = recipe_world_open(&way, "full", 1);
    for (int i = 0; i < 2; i++) {
        rw_item(x.b.t, recipe_loss(&x, x.b.t, i));
        cr_expect_eq(makes_codes(x.b.t, x.up), 1);
        rw_tape_reset(x.b.t);
    }
    cr_expect_eq(batch(&x, x.b.t, 2), 1);
    for (int i = 0; i < 3; i++) {
        recipe_backward(&x, x.b.t, recipe_loss(&x, x.b.t, i));
        cr_expect_eq(makes_codes(x.b.t, x.up), 0, "%d", i);
    }
    recipe_end_step(&x);
    rw_tape_reset(x.b.t);
    for (int i = 0; i < 3; i++) {
        recipe_backward(&x, x.b.t, recipe_loss(&x, x.b.t, i));
        cr_expect_eq(makes_codes(x.b.t, x.up), 1, "%d", i);
    }
    recipe_world_close(&x);
}

/* A frozen weight is quantized once. */
Test(quantized_weight_cache, where_nothing_is_trained)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_buffer(b.ctx, "w", RW_F32, RW_SHAPE(5, 7));
    const float data[3 * 7] = { 1, 2, 3 };
    double sum[3];
    cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_recipe_begin(b.t, &way.recipe), RW_OK);
        rw_tensor *const y = rw_linear(b.t, rw_input(b.t, RW_F32, RW_SHAPE(3, 7), data, sizeof data), w, RW_NONE);
        cr_assert_eq(rw_recipe_end(b.t), RW_OK);
        cr_expect_eq(makes_codes(b.t, w), i == 0);
        sum[i] = rw_item(b.t, rw_sum(b.t, y, RW_ALL_AXES, false));
        cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_expect(sum[0] == sum[1] && sum[1] == sum[2]);
    fixture_close(&b);
}

/* ---- other tapes ---- */

/*
 * Forward of two tapes, then backward of both, in either order; a third step reads the quantized weight that they have
 * kept. between: the weight is written while the first tape is in progress. Its backward does not read the weight, so
 * it uses the quantized value of before.
 */
static uint64_t of_two_tapes(bool keep, bool reversed, bool between)
{
    struct recipe_world x = recipe_world_open(&way, "none", 1);
    rw_tape *t[2] = { x.b.t, NULL };
    rw_tensor *loss[2];
    uint64_t digest = 0;
    x.recipe.keep_weights = keep;
    cr_assert_eq(rw_tape_create(&t[1], x.b.ctx), RW_OK);
    for (int i = 0; i < 2; i++) {
        if (i && between) cr_assert_eq(rw_init_constant(x.up, 0.3), RW_OK);
        loss[i] = recipe_loss(&x, t[i], i);
        cr_assert_eq(rw_forward(t[i], &loss[i], 1), RW_OK, "%s", rw_error_message(x.b.ctx));
    }
    for (int i = 0; i < 2; i++) recipe_backward(&x, t[i ^ (int)reversed], loss[i ^ (int)reversed]);
    for (int i = 0; i < 2; i++) rw_tape_reset(t[i]);
    for (int i = 0; i < 3; i++) { /* the last one reads at the latest what the one before it has kept */
        const int n = batch(&x, t[i % 2], 2 + i);
        if (keep) cr_expect(i < 2 || n == 0);
        digest = digest * 31 + recipe_digest(x.b.ctx);
    }
    rw_tape_destroy(&t[1]);
    recipe_world_close(&x);
    return digest;
}

Test(quantized_weight_cache, of_tapes_that_are_under_way_at_once)
{
    for (int reversed = 0; reversed < 2; reversed++)
        for (int between = 0; between < 2; between++)
            cr_expect_eq(of_two_tapes(true, reversed, between), of_two_tapes(false, reversed, between),
                         "%d %d", reversed, between);
}

/* An evaluation, on a tape that is reset, or destroyed. */
Test(quantized_weight_cache, of_a_tape_that_makes_them_no_more)
{
    for (int goes = 0; goes < 2; goes++) {
        struct recipe_world x = recipe_world_open(&way, "none", 1);
        rw_tape *t = NULL;
        for (int i = 0; i < 3; i++) {
            if (!t) cr_assert_eq(rw_tape_create(&t, x.b.ctx), RW_OK);
            rw_item(t, recipe_loss(&x, t, 0));
            if (goes) rw_tape_destroy(&t);
            rw_tape_reset(t);
            cr_expect_eq(batch(&x, x.b.t, i), i == 0);
        }
        rw_tape_destroy(&t);
        recipe_world_close(&x);
    }
}

/* One weight, scaled in two ways alternately. */
/* A linear is read without a gradient, which writes its codes, and recorded again on the same tape. */
Test(quantized_weight_cache, of_a_tape_that_has_evaluated_them)
{
    struct fixture b = fixture_open(1, 1);
    static const float numbers[64] = { 1, -2, 3 };
    float g[2][32 * 32];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(32, 32));
    rw_init_normal(w, 0, 1);
    for (int step = 0; step < 4; step++) {
        const rw_recipe recipe = { .kind = RW_RECIPE_F8, .keep_weights = step % 2 == 0 };
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 32), numbers, sizeof numbers);
        rw_recipe_begin(b.t, &recipe);
        rw_no_grad_begin(b.t);
        const double read = rw_item(b.t, rw_sum_all(b.t, rw_cast(b.t, rw_linear(b.t, x, w, RW_NONE), RW_F32)));
        rw_no_grad_end(b.t);
        rw_tensor *const loss = rw_sum_all(b.t, rw_cast(b.t, rw_linear(b.t, x, w, RW_NONE), RW_F32));
        rw_recipe_end(b.t);
        rw_zero_grad(b.ctx);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "step %d: %s", step, rw_error_message(b.ctx));
        cr_expect_eq(rw_item(b.t, loss), read);
        cr_assert_eq(rw_read(b.t, rw_gradient(w), g[step % 2], sizeof g[0]), RW_OK);
        if (step % 2) cr_expect(!memcmp(g[0], g[1], sizeof g[0]), "step %d", step);
        rw_tape_reset(b.t);
        if (step == 1) rw_init_normal(w, 0, 2);
    }
    fixture_close(&b);
}

Test(quantized_weight_cache, of_two_recipes)
{
    static const rw_scaling scalings[] = { RW_SCALING_TENSOR, RW_SCALING_1X128 };
    uint64_t digest[2];
    for (int keep = 0; keep < 2; keep++) {
        struct recipe_world x = recipe_world_open(&way, "full", 1);
        x.recipe.keep_weights = keep;
        for (int i = 0; i < 4; i++) {
            x.recipe.scaling = scalings[i % 2];
            cr_expect_eq(batch(&x, x.b.t, i), i < 2 || !keep);
        }
        digest[keep] = recipe_digest(x.b.ctx);
        recipe_world_close(&x);
    }
    cr_expect_eq(digest[0], digest[1]);
}

/* The kept data that a step has read differ when its backward starts: the weight was written, and another step has
   quantized it anew. */
Test(quantized_weight_cache, that_change_under_a_step_are_named)
{
    struct recipe_world x = recipe_world_open(&way, "full", 1);
    rw_tape *t = NULL;
    cr_assert_eq(rw_tape_create(&t, x.b.ctx), RW_OK);
    batch(&x, t, 0);
    rw_tensor *const loss = recipe_loss(&x, x.b.t, 1);
    rw_item(x.b.t, loss);
    cr_assert_eq(rw_init_constant(x.up, 0.3), RW_OK);
    batch(&x, t, 2);
    cr_expect_eq(rw_backward(x.b.t, loss), RW_ERR_MODIFIED);
    cr_expect(strstr(rw_error_message(x.b.ctx), "\"up\" changed"), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    rw_tape_destroy(&t);
    recipe_world_close(&x);
}

/* A weight that is written between recording and backward is an error whether its quantized form is kept or not (law
   8). */
Test(quantized_weight_cache, of_a_weight_that_was_written_since)
{
    for (int delays = 0; delays < 2; delays++)
        for (int keep = 0; keep < 2; keep++) {
            struct recipe_world x = recipe_world_open(delays ? &delayed : &way, "full", 1);
            x.recipe.keep_weights = keep;
            batch(&x, x.b.t, 0);
            rw_tensor *const loss = recipe_loss(&x, x.b.t, 1);
            cr_expect_eq(makes_codes(x.b.t, x.up), !keep);
            cr_assert_eq(rw_init_constant(x.up, 0.3), RW_OK);
            cr_expect_eq(rw_backward(x.b.t, loss), RW_ERR_MODIFIED, "keep %d, delayed %d", keep, delays);
            cr_expect(strstr(rw_error_message(x.b.ctx), "\"up\" changed"), "%s", rw_error_message(x.b.ctx));
            rw_error_clear(x.b.ctx);
            rw_tape_reset(x.b.t);
            batch(&x, x.b.t, 2);
            recipe_world_close(&x);
        }
}

/* ---- amaxes of delayed scaling ---- */

/* One linear layer per weight, and what the program has done. */
struct noted {
    struct fixture b;
    rw_tensor *w[3];
    rw_delayed_scaling *d;
    rw_optimizer *opt;
    rw_tape *other;
    rw_recipe recipe;
    uint64_t random;
};

static struct noted noted_open(bool keep, uint64_t seed)
{
    static const char *const names[] = { "a", "b", "c" };
    struct noted x = { .b = fixture_open(1, 1), .random = seed };
    for (int i = 0; i < 3; i++) {
        x.w[i] = rw_param(x.b.ctx, names[i], RW_F32, RW_SHAPE(6, 6));
        cr_assert_eq(rw_init_normal(x.w[i], 0, i + 1), RW_OK);
    }
    cr_assert_eq(rw_delayed_scaling_create(&x.d, x.b.ctx, &(rw_delayed_scaling_params){ .history = 3 }), RW_OK);
    cr_assert_eq(rw_sgd_create(&x.opt, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    cr_assert_eq(rw_tape_create(&x.other, x.b.ctx), RW_OK);
    x.recipe = (rw_recipe){ .kind = RW_RECIPE_F8, .delayed = x.d, .keep_weights = keep };
    return x;
}

static void noted_close(struct noted *x)
{
    rw_tape_destroy(&x->other);
    rw_delayed_scaling_destroy(&x->d);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

static unsigned draw(struct noted *x, unsigned below)
{
    x->random = x->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(x->random >> 33) % below;
}

/* The sum of the layers of a set of weights. */
static rw_tensor *layers(struct noted *x, rw_tape *t, unsigned set)
{
    float data[4 * 6];
    for (int i = 0; i < 24; i++) data[i] = (float)(i % 7 - 3) / 4;
    rw_tensor *loss = rw_input(t, RW_F32, RW_SCALAR, NULL, 0);
    cr_assert_eq(rw_recipe_begin(t, &x->recipe), RW_OK);
    for (int i = 0; i < 3; i++) {
        if (!(set >> i & 1)) continue;
        rw_tensor *const h = rw_input(t, RW_F32, RW_SHAPE(4, 6), data, sizeof data);
        rw_tensor *const y = rw_cast(t, rw_linear(t, h, x->w[i], RW_NONE), RW_F32);
        loss = rw_add(t, loss, rw_mean_all(t, rw_mul(t, y, y)));
    }
    cr_assert_eq(rw_recipe_end(t), RW_OK);
    cr_assert(loss, "%s", rw_error_message(x->b.ctx));
    return loss;
}

/* Reads a loss, without gradients or not, on the tape of the steps or on another. */
static void evaluate(struct noted *x, unsigned set)
{
    rw_tape *const t = draw(x, 2) ? x->other : x->b.t;
    const bool no_grad = draw(x, 2);
    if (no_grad) rw_no_grad_begin(t);
    rw_tensor *const loss = layers(x, t, set);
    if (no_grad) rw_no_grad_end(t);
    rw_item(t, loss);
    rw_tape_reset(t);
}

/* One of the weights may be in a branch that no loss depends on. */
static void train(struct noted *x, unsigned set, unsigned aside)
{
    rw_tensor *const loss = layers(x, x->b.t, set), *const z = layers(x, x->b.t, aside);
    if (draw(x, 2)) rw_item(x->b.t, draw(x, 2) ? loss : z);
    cr_assert_eq(rw_backward(x->b.t, loss), RW_OK, "%s", rw_error_message(x->b.ctx));
    const bool both = draw(x, 3) == 0 && aside;
    if (both) cr_assert_eq(rw_backward(x->b.t, z), RW_OK, "%s", rw_error_message(x->b.ctx));
    rw_tape_reset(x->b.t);
}

static void any_event(struct noted *x)
{
    const unsigned set = 1 + draw(x, 7), aside = draw(x, 8), i = draw(x, 3);
    switch (draw(x, 6)) {
    case 0:
    case 1: evaluate(x, set); break;
    case 2:
    case 3: train(x, set, aside); break;
    case 4:
        cr_assert_eq(rw_optimizer_step(x->opt), RW_OK, "%s", rw_error_message(x->b.ctx));
        rw_zero_grad(x->b.ctx);
        if (i) cr_assert_eq(rw_delayed_scaling_update(x->d, NULL), RW_OK);
        break;
    default: cr_assert_eq(rw_init_constant(x->w[i], (double)set), RW_OK);
    }
    cr_assert_eq(rw_error_status(x->b.ctx), RW_OK, "%s", rw_error_message(x->b.ctx));
}

enum { NOTED = 3 * 3 * 5 };

static void state_of(struct noted *x, float *ret)
{
    static const char *const names[] = { "fp8.amax", "fp8.scale", "fp8.history" };
    for (int i = 0; i < 3; i++)
        cr_assert_eq(rw_read(NULL, rw_param_find(x->b.ctx, names[i]), ret + 9 * i, i < 2 ? 36 : 108), RW_OK);
}

/* An evaluation quantizes a weight, and a training step reads the kept data: the step records its amax. */
Test(quantized_weight_cache, of_an_evaluation_have_an_amax)
{
    float is[2][NOTED];
    for (int keep = 0; keep < 2; keep++) {
        struct noted x = noted_open(keep, 1);
        for (int step = 0; step < 3; step++) {
            evaluate(&x, 7);
            for (int m = 0; m < 2; m++) {
                cr_assert_eq(rw_backward(x.b.t, layers(&x, x.b.t, 7)), RW_OK, "%s", rw_error_message(x.b.ctx));
                rw_tape_reset(x.b.t);
            }
            state_of(&x, is[keep]);
            for (int i = 0; i < 3; i++)
                cr_expect_gt(is[keep][3 * i + 1], 1, "keep %d, step %d, weight %d", keep, step, i);
            cr_assert_eq(rw_delayed_scaling_update(x.d, NULL), RW_OK);
        }
        state_of(&x, is[keep]);
        noted_close(&x);
    }
    cr_expect_arr_eq(is[0], is[1], sizeof is[0]);
}

/* Random programs: amaxes, scales and histories are those without the option, after each call. */
Test(quantized_weight_cache, have_the_amaxes_of_data_that_is_not_kept)
{
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct noted x[2] = { noted_open(false, seed), noted_open(true, seed) };
        for (int event = 0; event < 30; event++) {
            float is[2][NOTED];
            for (int keep = 0; keep < 2; keep++) {
                any_event(&x[keep]);
                state_of(&x[keep], is[keep]);
            }
            cr_assert_arr_eq(is[0], is[1], sizeof is[0], "seed %d, event %d", (int)seed, event);
        }
        for (int keep = 0; keep < 2; keep++) noted_close(&x[keep]);
    }
}

/* ---- averages ---- */

/* y of a linear layer whose weight is the average; *ret_made says whether the average was quantized. */
static double through_average(struct fixture *b, const rw_weight_average *average, rw_tensor *w, bool keep,
                              int *ret_made)
{
    static const float data[3 * 7] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    rw_recipe recipe = way.recipe;
    recipe.keep_weights = keep;
    rw_tensor *const a = rw_weight_average_of(average, w);
    cr_assert_eq(rw_recipe_begin(b->t, &recipe), RW_OK);
    rw_tensor *const y = rw_linear(b->t, rw_input(b->t, RW_F32, RW_SHAPE(3, 7), data, sizeof data), a, RW_NONE);
    cr_assert_eq(rw_recipe_end(b->t), RW_OK);
    cr_assert(y, "%s", rw_error_message(b->ctx));
    *ret_made = makes_codes(b->t, a);
    const double sum = rw_item(b->t, rw_sum(b->t, y, RW_ALL_AXES, false));
    cr_assert_eq(rw_error_status(b->ctx), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return sum;
}

/* The quantized form of a destroyed average is freed, and no other average finds it. */
Test(quantized_weight_cache, of_averages)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory before, after;
    int made;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(5, 7));
    for (int turn = 0; turn < 3; turn++) {
        rw_weight_average *average = NULL;
        cr_assert_eq(rw_init_normal(w, 0, 1 + turn), RW_OK);
        cr_assert_eq(rw_memory_stats(b.ctx, &before), RW_OK);
        cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.5), RW_OK);
        const double sum = through_average(&b, average, w, true, &made);
        cr_expect_eq(made, 1, "turn %d: codes of a destroyed average", turn);
        cr_expect_eq(through_average(&b, average, w, true, &made), sum);
        cr_expect_eq(made, 0);
        cr_expect_eq(through_average(&b, average, w, false, &made), sum);
        cr_assert_eq(rw_memory_stats(b.ctx, &after), RW_OK);
        cr_expect_gt(after.parameters, before.parameters);
        rw_weight_average_destroy(&average);
        cr_assert_eq(rw_memory_stats(b.ctx, &after), RW_OK);
        cr_expect_eq(after.parameters, before.parameters);
    }
    fixture_close(&b);
}

/* ---- what it takes, and what is refused ---- */

Test(quantized_weight_cache, take_a_byte_an_element_and_their_scales)
{
    static const rw_scaling scalings[] = { RW_SCALING_TENSOR, RW_SCALING_1X128, RW_SCALING_MX };
    static const size_t scales[] = { 4, 2 * 3 * 4, 130 * 9 };
    for (int k = 0; k < 3; k++) {
        struct fixture b = fixture_open(1, 1);
        rw_memory before, after;
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(130, 260));
        rw_tensor *const x = rw_param(b.ctx, "x", RW_BF16, RW_SHAPE(3, 260)); /* not used as a weight here */
        rw_memory_stats(b.ctx, &before);
        for (int i = 0; i < 3; i++) {
            const rw_recipe recipe = { .kind = RW_RECIPE_F8, .scaling = scalings[k], .keep_weights = true };
            cr_assert_eq(rw_recipe_begin(b.t, &recipe), RW_OK);
            rw_tensor *const y = rw_linear(b.t, x, w, RW_NONE);
            cr_assert_eq(rw_recipe_end(b.t), RW_OK);
            rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tape_reset(b.t);
            cr_assert_eq(rw_init_normal(w, 0, 1), RW_OK);
        }
        rw_memory_stats(b.ctx, &after);
        cr_expect_eq(after.parameters - before.parameters, 130 * 260 + scales[k], "scaling %d: %zu", k,
                     after.parameters - before.parameters);
        cr_expect_null(rw_param_get(b.ctx, 2), "they are not visible, and no file has them");
        fixture_close(&b);
    }
}

Test(quantized_weight_cache, are_not_for_graphs)
{
    struct recipe_world x = recipe_world_open(&way, "none", 1);
    rw_graph *g = NULL;
    for (int i = 0; i < 2; i++) { /* quantized, then read */
        rw_tensor *const loss = recipe_loss(&x, x.b.t, 0);
        cr_expect_eq(rw_graph_create(&g, x.b.t, loss,
                                     &(rw_graph_params){ { rw_record_update(x.opt) } }), RW_ERR_UNSUPPORTED);
        cr_expect(strstr(rw_error_message(x.b.ctx), "\"up\""), "%s", rw_error_message(x.b.ctx));
        cr_expect_null(g);
        rw_error_clear(x.b.ctx);
        recipe_backward(&x, x.b.t, loss);
        rw_tape_reset(x.b.t);
    }
    recipe_world_close(&x);
}

/* Ops that are recorded after the graph read the weight of the latest launch. */
Test(quantized_weight_cache, are_not_for_the_tape_of_a_graph)
{
    for (int keep = 0; keep < 2; keep++) {
        struct fixture b = fixture_open(1, 1);
        const rw_recipe recipe = { .kind = RW_RECIPE_F8, .keep_weights = keep };
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(16, 16));
        float data[256];
        for (int i = 0; i < 256; i++) data[i] = 1;
        rw_tape *other = NULL;
        rw_optimizer *opt = NULL;
        rw_graph *g = NULL;
        cr_assert_eq(rw_init_constant(w, 1), RW_OK);
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 1 }), RW_OK);
        cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
        rw_tensor *sum[2], *loss = NULL;
        for (int i = 0; i < 2; i++) { /* the other tape keeps them */
            rw_tape *const t = i ? b.t : other;
            rw_tensor *const in = rw_input(t, RW_F32, RW_SHAPE(16, 16), data, sizeof data);
            if (i) loss = rw_sum_all(t, rw_mul(t, w, in));
            if (i) cr_assert_eq(rw_graph_create(&g, t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_recipe_begin(t, &recipe), RW_OK);
            rw_no_grad_begin(t);
            sum[i] = rw_sum_all(t, rw_cast(t, rw_linear(t, in, w, RW_NONE), RW_F32));
            rw_no_grad_end(t);
            cr_assert_eq(rw_recipe_end(t), RW_OK);
            if (!i) cr_assert_eq(rw_item(t, sum[i]), 4096);
        }
        for (int k = 0; k < 3; k++) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
            const double got = rw_item(b.t, sum[1]);
            cr_expect_eq(got, 4096 * (1 - k), "keep %d, launch %d: %g; %s", keep, k, got, rw_error_message(b.ctx));
            cr_assert_eq(rw_optimizer_step(opt), RW_OK, "%s", rw_error_message(b.ctx));
        }
        rw_graph_destroy(&g);
        rw_tape_destroy(&other);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* A refused call undoes what it would have kept. */
Test(quantized_weight_cache, of_a_call_that_is_refused)
{
    struct recipe_world x = recipe_world_open(&way, "none", 1);
    rw_tensor *const few = rw_param(x.b.ctx, "few", RW_F32, RW_SHAPE(3));
    for (int i = 0; i < 3; i++) {
        const size_t nodes = rw_tape_nodes(x.b.t);
        cr_assert_eq(rw_recipe_begin(x.b.t, &x.recipe), RW_OK);
        rw_tensor *const h = rw_input(x.b.t, RW_BF16, RW_SHAPE(2, 35), NULL, 0);
        cr_expect_null(rw_linear(x.b.t, h, x.up, few));
        cr_assert_eq(rw_recipe_end(x.b.t), RW_OK);
        rw_error_clear(x.b.ctx);
        cr_expect_eq(rw_tape_nodes(x.b.t), nodes);
        cr_expect_eq(batch(&x, x.b.t, i), i == 0);
    }
    recipe_world_close(&x);
}

/* The n-th allocation fails, for every n: the next try has the same effect as a first one. */
static void memory_ends_anywhere(const struct recipe_way *of)
{
    struct recipe_world x = recipe_world_open(of, "full", 1);
    size_t bytes[2];
    unsigned char *const was = all_gradients(x.b.ctx, &bytes[0]);
    rw_status status = RW_ERR_MEMORY;
    int failures = 0;
    for (uint64_t n = 1; status; n++) {
        rw_tape_reset(x.b.t);
        const float data[4 * 35] = { 1, 2, 3 };
        rw_tensor *const h = rw_input(x.b.t, RW_F32, RW_SHAPE(4, 35), data, sizeof data);
        cr_assert_eq(rw_recipe_begin(x.b.t, &x.recipe), RW_OK);
        rw_alloc_fail_from(n);
        rw_tensor *const y = rw_linear(x.b.t, h, x.up, x.bias);
        cr_assert_eq(rw_recipe_end(x.b.t), RW_OK);
        status = y ? rw_backward(x.b.t, rw_sum(x.b.t, rw_cast(x.b.t, y, RW_F32), RW_ALL_AXES, false)) : RW_ERR_MEMORY;
        rw_alloc_fail_at(0);
        rw_error_clear(x.b.ctx);
        if (!status) break;
        failures++;
        unsigned char *const is = all_gradients(x.b.ctx, &bytes[1]);
        cr_assert_eq(first_difference(was, is, bytes[0]), -1, "allocation %d", (int)n);
        free(is);
    }
    cr_expect_gt(failures, 10);
    free(was);
    recipe_world_close(&x);
}

Test(quantized_weight_cache, memory_that_ends_anywhere_changes_nothing)
{
    memory_ends_anywhere(&way);
    memory_ends_anywhere(&delayed);
}
