/*
 * A parameter with a gradient and without an optimizer would never be trained, so the calls that update refuse it; a
 * program that handles the gradient itself excludes it.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <rewind/ops.h>
#include <stdio.h>
#include <string.h>

/* w has an optimizer; late is created after it. */
struct world {
    struct fixture b;
    rw_tensor *w, *late;
    rw_optimizer *opt;
    float before[4];
};

static rw_tensor *param(struct world *x, const char *name)
{
    rw_tensor *const p = rw_param(x->b.ctx, name, RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_init_constant(p, 2), RW_OK);
    return p;
}

static struct world world_open(void)
{
    struct world x = { .b = fixture_open(3, 1) };
    x.w = param(&x, "w");
    cr_assert_eq(rw_sgd_create(&x.opt, x.b.ctx, &(rw_sgd_params){ .lr = 0.25, .momentum = 0.5 }), RW_OK);
    x.late = param(&x, "late");
    cr_assert_eq(rw_read(NULL, x.w, x.before, sizeof x.before), RW_OK);
    return x;
}

static void world_close(struct world *x)
{
    rw_optimizer_destroy(&x->opt);
    fixture_close(&x->b);
}

static rw_tensor *loss_of(struct world *x)
{
    rw_tape_reset(x->b.t);
    return rw_sum(x->b.t, rw_mul(x->b.t, x->w, x->late), RW_ALL_AXES, false);
}

static void backward(struct world *x)
{
    cr_assert_eq(rw_backward(x->b.t, loss_of(x)), RW_OK, "%s", rw_error_message(x->b.ctx));
}

static void expect_refused(struct world *x, rw_status got, const char *call)
{
    float now[4];
    const char *const m = rw_error_message(x->b.ctx);
    cr_assert_eq(got, RW_ERR_ARGUMENT, "%s: %d", call, (int)got);
    cr_assert(!strncmp(m, call, strlen(call)) && strstr(m, "\"late\""), "%s", m);
    cr_assert(strstr(m, "create the optimizer after the parameter, or freeze it"), "%s", m);
    rw_error_clear(x->b.ctx);
    cr_assert_eq(rw_read(NULL, x->w, now, sizeof now), RW_OK);
    cr_assert_eq(memcmp(now, x->before, sizeof now), 0, "%s has changed a parameter", call);
}

static void expect_updated(struct world *x, rw_tensor *p, bool updated)
{
    float now[4];
    cr_assert_eq(rw_read(NULL, p, now, sizeof now), RW_OK);
    cr_assert_eq(memcmp(now, x->before, sizeof now) != 0, updated, "%s", rw_tensor_name(p));
}

Test(params_without_optimizer, a_step_refuses_a_gradient_that_no_optimizer_uses)
{
    struct world x = world_open();
    param(&x, "later");
    backward(&x);
    expect_refused(&x, rw_optimizer_step(x.opt), "rw_optimizer_step");
    expect_refused(&x, rw_optimizer_step(x.opt), "rw_optimizer_step");
    rw_zero_grad(x.b.ctx);
    cr_assert_eq(rw_optimizer_step(x.opt), RW_OK, "a clear gradient is none");
    const float ones[4] = { 1, 1, 1, 1 };
    cr_assert_eq(rw_write(rw_gradient(x.late), ones, sizeof ones), RW_OK);
    expect_refused(&x, rw_optimizer_step(x.opt), "rw_optimizer_step");
    world_close(&x);
}

Test(params_without_optimizer, another_optimizer_may_hold_it)
{
    struct world x = world_open();
    rw_optimizer *other = NULL;
    cr_assert_eq(rw_lion_create(&other, x.b.ctx, NULL), RW_OK);
    backward(&x);
    cr_assert_eq(rw_optimizer_step(x.opt), RW_OK, "%s", rw_error_message(x.b.ctx));
    expect_updated(&x, x.late, false);
    cr_assert_eq(rw_optimizer_step(other), RW_OK);
    expect_updated(&x, x.late, true);
    rw_optimizer_destroy(&other);
    cr_assert_eq(rw_read(NULL, x.w, x.before, sizeof x.before), RW_OK);
    expect_refused(&x, rw_optimizer_step(x.opt), "rw_optimizer_step"); /* referenced while it existed */
    world_close(&x);
}

Test(params_without_optimizer, an_excluded_parameter_is_the_programs_own)
{
    struct world x = world_open();
    rw_optimizer *other = NULL;
    rw_memory before, after;
    float g[4];
    cr_assert_eq(rw_optimizer_exclude(x.late, true), RW_OK);
    backward(&x);
    cr_assert_eq(rw_optimizer_step(x.opt), RW_OK, "%s", rw_error_message(x.b.ctx));
    expect_updated(&x, x.w, true);
    expect_updated(&x, x.late, false);
    cr_assert_eq(rw_read(NULL, rw_gradient(x.late), g, sizeof g), RW_OK);
    cr_assert_eq(g[0], 2, "its gradient is there");
    rw_memory_stats(x.b.ctx, &before);
    cr_assert_eq(rw_lion_create(&other, x.b.ctx, NULL), RW_OK);
    rw_memory_stats(x.b.ctx, &after);
    cr_assert_eq(after.optimizer - before.optimizer, 4 * sizeof(float), "a moment of w alone");
    cr_assert_eq(rw_optimizer_set(other, x.late, NULL), RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(x.b.ctx), "expected a parameter that the optimizer has, got \"late\""),
            "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    rw_optimizer_destroy(&other);
    cr_assert_eq(rw_optimizer_exclude(x.late, false), RW_OK);
    cr_assert_eq(rw_read(NULL, x.w, x.before, sizeof x.before), RW_OK);
    expect_refused(&x, rw_optimizer_step(x.opt), "rw_optimizer_step");
    cr_assert_eq(rw_optimizer_exclude(x.w, true), RW_OK);
    cr_assert_eq(rw_optimizer_exclude(x.late, true), RW_OK);
    cr_assert_eq(rw_lion_create(&other, x.b.ctx, NULL), RW_OK, "an optimizer of no parameter: %s",
                 rw_error_message(x.b.ctx));
    cr_assert_eq(rw_optimizer_step(other), RW_OK);
    rw_optimizer_destroy(&other);
    cr_assert_eq(rw_optimizer_step(x.opt), RW_OK, "it goes on with what it holds");
    expect_updated(&x, x.w, true);
    world_close(&x);
}

Test(params_without_optimizer, a_scaled_step_refuses_it)
{
    struct world x = world_open();
    rw_scaler *s = NULL;
    cr_assert_eq(rw_scaler_create(&s, x.b.ctx, NULL), RW_OK);
    cr_assert_eq(rw_scaler_backward(s, x.b.t, loss_of(&x)), RW_OK);
    expect_refused(&x, rw_scaler_step(s, x.opt), "rw_scaler_step");
    cr_assert_eq(rw_optimizer_exclude(x.late, true), RW_OK);
    cr_assert_eq(rw_scaler_step(s, x.opt), RW_OK, "%s", rw_error_message(x.b.ctx));
    cr_assert_eq(rw_scaler_update(s), RW_OK);
    expect_updated(&x, x.w, true);
    rw_scaler_destroy(&s);
    world_close(&x);
}

Test(params_without_optimizer, a_graph_that_updates_refuses_it)
{
    for (int inside = 0; inside < 2; inside++) {
        struct world x = world_open();
        rw_graph *g = NULL;
        const rw_graph_params p = { { recorded_update(x.opt, inside) } };
        cr_assert_eq(rw_graph_create(&g, x.b.t, loss_of(&x), &p), RW_OK, "%s", rw_error_message(x.b.ctx));
        expect_refused(&x, rw_graph_launch(g), "rw_graph_launch");
        cr_assert_eq(rw_optimizer_exclude(x.late, true), RW_OK);
        for (int k = 0; k < 3; k++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
        expect_updated(&x, x.w, true);
        rw_graph_destroy(&g);
        world_close(&x);
    }
}

Test(params_without_optimizer, a_graph_without_an_optimizer_takes_it)
{
    struct world x = world_open();
    rw_graph *g = NULL;
    cr_assert_eq(rw_graph_create(&g, x.b.t, loss_of(&x), NULL), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
    expect_refused(&x, rw_optimizer_step(x.opt), "rw_optimizer_step");
    rw_graph_destroy(&g);
    world_close(&x);
}

Test(params_without_optimizer, only_parameters_are_excluded)
{
    struct world x = world_open();
    rw_tensor *const buffer = rw_buffer(x.b.ctx, "buffer", RW_F32, RW_SHAPE(2));
    rw_tensor *const others[] = { buffer, rw_gradient(x.w), rw_mul(x.b.t, x.w, x.w), rw_none() };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        cr_expect_eq(rw_optimizer_exclude(others[i], true), RW_ERR_ARGUMENT, "%zu", i);
        rw_error_clear(x.b.ctx);
    }
    cr_expect_eq(rw_optimizer_exclude(NULL, true), RW_ERR_ARGUMENT);
    world_close(&x);
}
