/* Trains the model of delayed_scaling_fixture.h and records its results. */
#include "api/delayed_scaling_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

rw_tensor *delayed_buffer(rw_context *ctx, const char *name)
{
    rw_tensor *const x = rw_param_find(ctx, name);
    cr_assert_not_null(x, "%s", name);
    return x;
}

void delayed_read(rw_context *ctx, const char *name, float *ret, int64_t n)
{
    const rw_status status = rw_read(NULL, delayed_buffer(ctx, name), ret, (size_t)n * sizeof *ret);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(ctx));
}

rw_delayed_scaling *delayed_open(rw_context *ctx, const rw_delayed_scaling_params *p)
{
    rw_delayed_scaling *d = NULL;
    cr_assert_eq(rw_delayed_scaling_create(&d, ctx, p), RW_OK, "%s", rw_error_message(ctx));
    return d;
}

static void init(rw_tensor *w)
{
    cr_assert_eq(rw_init_normal(w, 0, 0.5), RW_OK);
}

struct delayed_world delayed_world_open(const char *policy, int threads, bool scales)
{
    struct delayed_world x = { .b = fixture_open(5, threads) };
    cr_assert_eq(ckpt_set_policy(x.b.t, policy), RW_OK, "%s", rw_error_message(x.b.ctx));
    init(x.up = rw_param(x.b.ctx, "up", RW_F32, RW_SHAPE(2 * WIDTH, WIDTH)));
    init(x.down = rw_param(x.b.ctx, "down", RW_BF16, RW_SHAPE(WIDTH, 2 * WIDTH)));
    init(x.other = rw_param(x.b.ctx, "other", RW_F32, RW_SHAPE(WIDTH, WIDTH)));
    x.d = delayed_open(x.b.ctx, &(rw_delayed_scaling_params){ .history = 4 });
    cr_assert_eq(rw_adamw_create(&x.opt, x.b.ctx, &(rw_adamw_params){ .lr = 0.02 }), RW_OK);
    if (scales) cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, &(rw_scaler_params){ .init_scale = 8 }), RW_OK);
    return x;
}

void delayed_world_close(struct delayed_world *x)
{
    rw_delayed_scaling_destroy(&x->d);
    rw_scaler_destroy(&x->s);
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

rw_tensor *delayed_loss(struct delayed_world *x, int number, float factor)
{
    rw_tape *const t = x->b.t;
    float data[TOKENS * WIDTH];
    for (int i = 0; i < TOKENS * WIDTH; i++)
        data[i] = factor * (float)((i * 7 + number * 5) % 11 - 5) * (float)(1 + number % 4) / 8;
    rw_tensor *h = rw_input(t, RW_F32, RW_SHAPE(TOKENS, WIDTH), data, sizeof data);
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

void delayed_backward(struct delayed_world *x, rw_tensor *loss)
{
    const rw_status status = x->s ? rw_scaler_backward(x->s, x->b.t, loss) : rw_backward(x->b.t, loss);
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

void delayed_end_step(struct delayed_world *x)
{
    const rw_status stepped = x->s ? rw_scaler_step(x->s, x->opt) : rw_optimizer_step(x->opt);
    cr_assert_eq(stepped, RW_OK, "%s", rw_error_message(x->b.ctx));
    cr_assert_eq(rw_delayed_scaling_update(x->d, x->s), RW_OK, "%s", rw_error_message(x->b.ctx));
    if (x->s) cr_assert_eq(rw_scaler_update(x->s), RW_OK);
}

void delayed_keep(struct delayed_outcome *o, rw_context *ctx)
{
    size_t a, b;
    unsigned char *const g = all_gradients(ctx, &a), *const p = all_parameters(ctx, &b);
    o->n = a + b;
    o->bytes[o->steps] = malloc(o->n);
    memcpy(o->bytes[o->steps], g, a);
    memcpy(o->bytes[o->steps++] + a, p, b);
    free(g), free(p);
}

void delayed_train_step(struct delayed_world *x, struct delayed_outcome *o, bool look)
{
    rw_zero_grad(x->b.ctx);
    for (int m = 0; m < BATCHES; m++) {
        const int number = o->steps * BATCHES + m;
        rw_tensor *const loss = delayed_loss(x, number, 1);
        if (look) cr_assert_eq(ckpt_verify(x->b.t, loss, NULL), RW_OK, "%s", rw_error_message(x->b.ctx));
        delayed_backward(x, loss);
        o->loss[number] = (float)rw_item(x->b.t, loss);
        rw_tape_reset(x->b.t);
        const rw_generator_state generator = rw_generator_get(x->b.ctx);
        if (look) rw_item(x->b.t, delayed_loss(x, number + 1, 100)); /* forward without backward records no amaxes */
        rw_tape_reset(x->b.t);
        rw_generator_set(x->b.ctx, generator);
    }
    delayed_end_step(x);
    delayed_keep(o, x->b.ctx);
}

struct delayed_outcome delayed_train(const char *policy, int threads, int steps, int looks_at)
{
    struct delayed_world x = delayed_world_open(policy, threads, false);
    struct delayed_outcome o = { 0 };
    while (o.steps < steps) delayed_train_step(&x, &o, o.steps == looks_at);
    delayed_world_close(&x);
    return o;
}

int delayed_differ(const struct delayed_outcome *a, const struct delayed_outcome *b)
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

void delayed_finish(struct delayed_outcome *o)
{
    for (int s = 0; s < o->steps; s++) free(o->bytes[s]);
}
