/* Trains the model of precision_recipe_fixture.h and records its results. */
#include "api/precision_recipe_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { WIDE = 35, HIDDEN = 67, ROWS_MAX = 33 };

static rw_tensor *param(struct recipe_world *x, const char *name, rw_dtype dtype, rw_shape shape)
{
    rw_tensor *const p = rw_param(x->b.ctx, name, dtype, shape);
    cr_assert_eq(rw_init_normal(p, 0, 0.2), RW_OK, "%s", rw_error_message(x->b.ctx));
    return p;
}

struct recipe_world recipe_world_open(const struct recipe_way *way, const char *policy, int threads)
{
    struct recipe_world x = { .b = fixture_open(5, threads), .recipe = way->recipe };
    rw_context *const ctx = x.b.ctx;
    const bool narrow = way->recipe.kind == RW_RECIPE_F8 || way->recipe.kind == RW_RECIPE_BF16;
    cr_assert_eq(ckpt_set_policy(x.b.t, policy), RW_OK, "%s", rw_error_message(ctx));
    x.first = param(&x, "first", RW_F32, RW_SHAPE(WIDE, WIDE));
    x.up = param(&x, "up", RW_F32, RW_SHAPE(HIDDEN, WIDE));
    x.bias = param(&x, "bias", RW_F32, RW_SHAPE(HIDDEN));
    x.down = param(&x, "down", narrow ? RW_BF16 : RW_F32, RW_SHAPE(WIDE, HIDDEN));
    x.last = param(&x, "last", RW_F32, RW_SHAPE(WIDE, WIDE));
    if (way->delayed.history)
        cr_assert_eq(rw_delayed_scaling_create(&x.d, ctx, &way->delayed), RW_OK, "%s", rw_error_message(ctx));
    const rw_scaler_params scales = { .init_scale = 64, .growth_interval = 5 };
    if (way->scaler) cr_assert_eq(rw_scaler_create(&x.s, ctx, &scales), RW_OK, "%s", rw_error_message(ctx));
    x.recipe.delayed = x.d;
    cr_assert_eq(rw_adamw_create(&x.opt, ctx, &(rw_adamw_params){ .lr = 0.01 }), RW_OK, "%s", rw_error_message(ctx));
    return x;
}

void recipe_world_close(struct recipe_world *x)
{
    rw_delayed_scaling_destroy(&x->d);
    rw_scaler_destroy(&x->s);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

static void begin(rw_tape *t, const rw_recipe *recipe)
{
    cr_assert_eq(rw_recipe_begin(t, recipe), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
}

static void end(rw_tape *t)
{
    cr_assert_eq(rw_recipe_end(t), RW_OK, "%s", rw_error_message(rw_tape_context(t)));
}

/* A layer that an FP8 recipe leaves in bfloat16. */
static rw_tensor *edge(struct recipe_world *x, rw_tape *t, rw_tensor *h, rw_tensor *w)
{
    const bool codes = x->recipe.kind == RW_RECIPE_F8;
    if (codes) begin(t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    rw_tensor *const y = rw_linear(t, h, w, RW_NONE);
    if (codes) end(t);
    return y;
}

rw_tensor *recipe_loss(struct recipe_world *x, rw_tape *t, int number)
{
    float data[ROWS_MAX * WIDE];
    const int rows = ROWS_MAX - number * 5 % 17; /* extents differ between micro-batches */
    for (int i = 0; i < rows * WIDE; i++)
        data[i] = (float)((i * 7 + number * 5) % 23 - 11) * (float)(1 + number % 3) / 16;
    rw_tensor *const in = rw_input(t, RW_F32, RW_SHAPE(rows, WIDE), data, (size_t)(rows * WIDE) * sizeof *data);
    begin(t, &x->recipe);
    rw_tensor *h = edge(x, t, in, x->first);
    for (int l = 0; l < 2; l++) {
        ckpt_begin(t, l ? "second" : "first");
        rw_tensor *const n = rw_softmax(t, h, -1);
        rw_tensor *const u = rw_dropout(t, rw_gelu(t, rw_linear(t, rw_add(t, h, n), x->up, x->bias)), 0.1);
        h = rw_linear_add(t, u, x->down, RW_NONE, h);
        ckpt_end(t);
    }
    h = rw_cast(t, edge(x, t, h, x->last), RW_F32);
    end(t);
    rw_tensor *const loss = rw_mean(t, rw_mul(t, h, h), RW_ALL_AXES, false);
    cr_assert_not_null(loss, "%s", rw_error_message(x->b.ctx));
    return loss;
}

void recipe_backward(struct recipe_world *x, rw_tape *t, rw_tensor *loss)
{
    const rw_status status = x->s ? rw_scaler_backward(x->s, t, loss) : rw_backward(t, loss);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

void recipe_end_step(struct recipe_world *x)
{
    rw_status status = x->s ? rw_scaler_step(x->s, x->opt) : rw_optimizer_step(x->opt);
    if (!status && x->d) status = rw_delayed_scaling_update(x->d, x->s);
    if (!status && x->s) status = rw_scaler_update(x->s);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static uint64_t mixed(uint64_t h, unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ data[i]) * 0x100000001b3u;
    free(data);
    return h;
}

uint64_t recipe_digest(rw_context *ctx)
{
    size_t n, m;
    unsigned char *const g = all_gradients(ctx, &n), *const p = all_parameters(ctx, &m);
    return mixed(mixed(0xcbf29ce484222325u, g, n), p, m);
}

struct recipe_outcome recipe_train(const struct recipe_way *way, const char *policy, int threads, int steps,
                                   int verified)
{
    struct recipe_world x = recipe_world_open(way, policy, threads);
    struct recipe_outcome o = { .steps = steps };
    for (int s = 0; s < steps; s++) {
        rw_zero_grad(x.b.ctx);
        for (int m = 0; m < RECIPE_BATCHES; m++) {
            const int number = s * RECIPE_BATCHES + m;
            rw_tensor *const loss = recipe_loss(&x, x.b.t, number);
            if (s == verified)
                cr_assert_eq(ckpt_verify(x.b.t, loss, NULL), RW_OK, "%s: %s", policy, rw_error_message(x.b.ctx));
            recipe_backward(&x, x.b.t, loss);
            o.loss[number] = (float)rw_item(x.b.t, loss);
            rw_tape_reset(x.b.t);
        }
        recipe_end_step(&x);
        o.digest[s] = recipe_digest(x.b.ctx);
    }
    recipe_world_close(&x);
    return o;
}

int recipe_differ(const struct recipe_outcome *a, const struct recipe_outcome *b)
{
    for (int s = 0; s < a->steps; s++) {
        const size_t at = (size_t)s * RECIPE_BATCHES;
        if (memcmp(a->loss + at, b->loss + at, RECIPE_BATCHES * sizeof *a->loss)) return s;
        if (a->digest[s] != b->digest[s]) return s;
    }
    return -1;
}
