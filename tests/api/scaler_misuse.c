/* Misuse of loss scaling: invalid numbers, calls and graphs are refused; lifetimes; exhausted memory. */
#include "api/scaler_fixture.h"

#include "base/alloc.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void refused(rw_context *ctx, rw_status status, rw_status want, const char *text)
{
    cr_assert_eq(status, want, "%s: %s", text, rw_error_message(ctx));
    cr_assert(strstr(rw_error_message(ctx), text), "%s, not %s", rw_error_message(ctx), text);
    rw_error_clear(ctx);
}

Test(scaler_misuse, refuses_numbers_that_make_no_sense)
{
    static const struct {
        rw_scaler_params params;
        const char *text;
    } wrong[] = {
        { { .init_scale = -1 }, "init_scale" },       { { .init_scale = NAN }, "init_scale" },
        { { .init_scale = INFINITY }, "init_scale" }, { { .init_scale = 1e-39 }, "init_scale" },
        { { .init_scale = 1e39 }, "init_scale" },     { { .growth_factor = 1 }, "growth_factor" },
        { { .growth_factor = NAN }, "growth_factor" }, { { .backoff_factor = 1 }, "backoff_factor" },
        { { .backoff_factor = -2 }, "backoff_factor" }, { { .growth_interval = -1 }, "growth_interval" },
        { { .growth_interval = (1 << 24) + 1 }, "growth_interval" }, { { .hysteresis = -1 }, "hysteresis" },
        { { .min_scale = -1 }, "min_scale" },         { { .min_scale = 8, .max_scale = 4 }, "max_scale" },
        { { .name = "" }, "expected 1 to 255 bytes" },
    };
    struct fixture b = fixture_open(1, 1);
    rw_scaler *s = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(b.ctx, rw_scaler_create(&s, b.ctx, &wrong[i].params), RW_ERR_ARGUMENT, wrong[i].text);
    cr_assert_null(rw_param_get(b.ctx, 0));
    refused(b.ctx, rw_scaler_create(NULL, b.ctx, NULL), RW_ERR_ARGUMENT, "ret_scaler");
    cr_assert_eq(rw_scaler_create(&s, NULL, NULL), RW_ERR_ARGUMENT);
    rw_param(b.ctx, "scaler", RW_F32, RW_SHAPE(4));
    refused(b.ctx, rw_scaler_create(&s, b.ctx, NULL), RW_ERR_ARGUMENT, "expected \"scaler\" to be free");
    rw_buffer(b.ctx, "x", RW_I32, RW_SHAPE(4));
    refused(b.ctx, rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .name = "x" }), RW_ERR_ARGUMENT,
            "expected \"x\" to be free");
    cr_assert_null(s);
    rw_scaler_destroy(&s);
    rw_scaler_destroy(NULL);
    fixture_close(&b);
}

Test(scaler_misuse, says_how_many_gradients_it_takes)
{
    struct fixture b = fixture_open(1, 1);
    char name[16];
    rw_scaler *s = NULL;
    for (int i = 0; i < 32766; i++) {
        snprintf(name, sizeof name, "p%d", i);
        if (!rw_param(b.ctx, name, RW_F32, RW_SHAPE(1))) cr_skip_test("too many pages that guard the device's memory");
    }
    cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_scaler_unscale(s), RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(b.ctx), "rw_scaler_unscale: expected at most 32765 gradients, got 32766"), "%s",
              rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_scaler_destroy(&s);
    fixture_close(&b);
}

Test(scaler_misuse, refuses_calls_in_another_order)
{
    struct zoo z = zoo_open(ADAMW, true, NULL), other = zoo_open(ADAMW, true, NULL);
    rw_context *const ctx = z.b.ctx;
    rw_scaler_state state;
    refused(ctx, rw_scaler_update(z.s), RW_ERR_ARGUMENT, "nothing was unscaled");
    write_gradients(ctx, '.', 0);
    cr_assert_eq(rw_scaler_unscale(z.s), RW_OK);
    refused(ctx, rw_scaler_unscale(z.s), RW_ERR_ARGUMENT, "are unscaled already");
    cr_assert_eq(rw_scaler_step(z.s, z.opt), RW_OK);
    refused(ctx, rw_scaler_unscale(z.s), RW_ERR_ARGUMENT, "are unscaled already");
    refused(ctx, rw_scaler_step(z.s, other.opt), RW_ERR_ARGUMENT, "another context");
    refused(ctx, rw_scaler_step(z.s, NULL), RW_ERR_ARGUMENT, "opt");
    refused(ctx, rw_scaler_get(z.s, NULL), RW_ERR_ARGUMENT, "ret_state");
    cr_assert_eq(rw_scaler_update(z.s), RW_OK);
    refused(ctx, rw_scaler_update(z.s), RW_ERR_ARGUMENT, "nothing was unscaled");
    cr_assert_eq(rw_scaler_get(z.s, &state), RW_OK);
    cr_assert_eq(state.growth_tracker, 1);
    cr_assert_eq(rw_scaler_unscale(NULL), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_scaler_step(NULL, z.opt), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_scaler_update(NULL), RW_ERR_ARGUMENT);
    zoo_close(&z);
    zoo_close(&other);
}

Test(scaler_misuse, refuses_losses_and_graphs_that_it_cannot_scale)
{
    struct zoo z = zoo_open(ADAMW, true, NULL), other = zoo_open(ADAMW, true, NULL);
    rw_context *const ctx = z.b.ctx;
    rw_tape *const t = z.b.t;
    rw_graph *g = NULL;
    rw_tensor *const half = rw_sum(t, z.w[2], RW_ALL_AXES, false), *const loss = rw_sum(t, z.w[0], RW_ALL_AXES, false);
    refused(ctx, rw_scaler_backward(z.s, t, half), RW_ERR_DTYPE, "(loss): expected f32, got f16");
    refused(ctx, rw_scaler_backward(z.s, t, z.w[0]), RW_ERR_ARGUMENT, "rw_scaler_backward");
    refused(ctx, rw_scaler_backward(other.s, t, loss), RW_ERR_ARGUMENT, "another context");
    refused(ctx, rw_scaler_backward(NULL, t, loss), RW_ERR_ARGUMENT, "rw_scaler_backward");
    cr_assert_eq(rw_scaler_backward(z.s, NULL, loss), RW_ERR_ARGUMENT);
    rw_error_clear(ctx);
    refused(ctx, rw_graph_create(&g, t, loss, &(rw_graph_params){ { rw_record_scaler(other.s) } }), RW_ERR_ARGUMENT,
            "rw_graph_create(recorders[0]): rw_record_scaler(s)");
    refused(ctx, rw_graph_create(&g, t, half,
                                 &(rw_graph_params){ { rw_record_scaler(z.s) } }), RW_ERR_DTYPE, "rw_graph_create");
    zoo_close(&z);
    zoo_close(&other);
}

/* A graph of an optimizer that later starts to count on the device: by a step with a scaler, or because another graph
   has both. The message names both causes. */
Test(scaler_misuse, refuses_graphs_that_count_on_the_host)
{
    for (int by_graph = 0; by_graph < 2; by_graph++) {
        struct zoo z = zoo_open(ADAMW, true, NULL);
        rw_tape *other;
        rw_graph *g = NULL, *h = NULL;
        const rw_graph_params both = { { rw_record_scaler(z.s), rw_record_update(z.opt) } };
        cr_assert_eq(rw_tape_create(&other, z.b.ctx), RW_OK);
        rw_tensor *const loss = rw_sum(z.b.t, z.w[0], RW_ALL_AXES, false);
        rw_tensor *const other_loss = rw_sum(other, z.w[0], RW_ALL_AXES, false);
        cr_assert_eq(rw_graph_create(&g, z.b.t, loss, &(rw_graph_params){ { rw_record_update(z.opt) } }), RW_OK);
        cr_assert_eq(rw_graph_launch(g), RW_OK);
        if (!by_graph) cr_assert_eq(rw_scaler_step(z.s, z.opt), RW_OK);
        cr_assert_eq(rw_graph_create(&h, other, other_loss, &both), RW_OK, "%s", rw_error_message(z.b.ctx));
        refused(z.b.ctx, rw_graph_launch(g), RW_ERR_MODIFIED,
                "counts its steps on the device since a later rw_scaler_step() or rw_graph_create() with a scaler; "
                "create the graph again");
        cr_assert_eq(rw_graph_launch(h), RW_OK);
        rw_graph_destroy(&g);
        rw_graph_destroy(&h);
        rw_tape_destroy(&other);
        zoo_close(&z);
    }
}

/* A graph that only updates, created before the optimizer's first step with a scaler: that step invalidates it. */
static rw_graph *plain_graph(struct zoo *z)
{
    rw_graph *g = NULL;
    rw_tensor *const loss = rw_sum(z->b.t, z->w[0], RW_ALL_AXES, false);
    cr_assert_eq(rw_graph_create(&g, z->b.t, loss, &(rw_graph_params){ { rw_record_update(z->opt) } }), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_OK);
    return g;
}

/* The graph launches as before. */
static void still_launches(struct zoo *z, rw_graph *g, const char *what)
{
    rw_error_clear(z->b.ctx);
    rw_zero_grad(z->b.ctx);
    cr_expect_eq(rw_graph_launch(g), RW_OK, "%s: %s", what, rw_error_message(z->b.ctx));
    rw_error_clear(z->b.ctx);
}

Test(scaler_misuse, a_step_that_is_refused_leaves_graphs_as_they_were)
{
    struct zoo z = zoo_open(ADAMW, true, NULL);
    rw_context *const ctx = z.b.ctx;
    rw_scaler *other = NULL;
    rw_graph *g = plain_graph(&z);
    cr_assert_eq(rw_scaler_create(&other, ctx, &(rw_scaler_params){ .name = "other" }), RW_OK);
    write_gradients(ctx, '.', 0);
    cr_assert_eq(rw_scaler_unscale(other), RW_OK);
    refused(ctx, rw_scaler_step(z.s, z.opt), RW_ERR_ARGUMENT, "unscaled by another scaler");
    still_launches(&z, g, "gradients of another scaler");
    rw_tape *t = NULL;
    cr_assert_eq(rw_tape_create(&t, ctx), RW_OK);
    cr_assert_eq(rw_backward(t, rw_sum(t, z.w[0], RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_scaler_unscale(other), RW_OK, "%s", rw_error_message(ctx));
    cr_assert_eq(rw_backward(t, rw_sum(t, z.w[4], RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(ctx));
    refused(ctx, rw_scaler_step(z.s, z.opt), RW_ERR_MODIFIED, "different scales");
    still_launches(&z, g, "gradients of different scales");
    rw_zero_grad(ctx);
    rw_tape_reset(t);
    cr_assert_eq(rw_scaler_backward(other, t, rw_sum(t, z.w[0], RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(ctx));
    refused(ctx, rw_scaler_step(z.s, z.opt), RW_ERR_MODIFIED, "rw_scaler_step");
    still_launches(&z, g, "gradients scaled by another");
    rw_tape_destroy(&t);
    rw_graph_destroy(&g);
    rw_scaler_destroy(&other);
    zoo_close(&z);
}

/* The n-th allocation of an optimizer's first step with a scaler fails, or of a graph with both. */
static void first_use_without_memory(bool creates_graph)
{
    int failures = 0;
    for (uint64_t n = 1;; n++) {
        struct zoo z = zoo_open(ADAMW, true, NULL);
        rw_graph *g = plain_graph(&z), *second = NULL;
        rw_tape *t = NULL;
        cr_assert_eq(rw_tape_create(&t, z.b.ctx), RW_OK);
        rw_tensor *const loss = rw_sum(t, z.w[0], RW_ALL_AXES, false);
        write_gradients(z.b.ctx, '.', 0);
        rw_alloc_fail_from(n);
        const rw_status status =
            creates_graph ? rw_graph_create(&second, t, loss,
                                            &(rw_graph_params){ { rw_record_scaler(z.s), rw_record_update(z.opt) } })
                          : rw_scaler_step(z.s, z.opt);
        rw_alloc_fail_at(0);
        if (status) {
            failures++;
            cr_assert_eq(status, RW_ERR_MEMORY, "allocation %d", (int)n);
            still_launches(&z, g, "out of memory");
            write_gradients(z.b.ctx, '.', 0);
            cr_expect_eq(rw_scaler_step(z.s, z.opt), RW_OK, "%s", rw_error_message(z.b.ctx));
        }
        rw_graph_destroy(&g);
        rw_graph_destroy(&second);
        rw_tape_destroy(&t);
        zoo_close(&z);
        if (!status) break;
    }
    cr_assert_gt(failures, 5);
}

Test(scaler_misuse, a_first_step_without_memory_leaves_graphs_as_they_were) { first_use_without_memory(false); }
Test(scaler_misuse, a_graph_without_memory_leaves_others_as_they_were) { first_use_without_memory(true); }

/* The graph keeps what it needs after the other objects are destroyed. */
Test(scaler_misuse, lives_as_long_as_a_graph_that_uses_it)
{
    struct zoo z = zoo_open(ADAMW, true, NULL);
    rw_graph *g = NULL;
    const float one = 1;
    rw_tensor *const loss = zoo_loss(&z, z.b.t, rw_input(z.b.t, RW_F32, RW_SCALAR, &one, sizeof one));
    cr_assert_eq(rw_graph_create(&g, z.b.t, loss,
                                 &(rw_graph_params){ { rw_record_scaler(z.s), rw_record_update(z.opt) } }), RW_OK);
    cr_assert_eq(rw_scaler_step(z.s, z.opt), RW_OK);
    rw_optimizer_destroy(&z.opt);
    rw_scaler_destroy(&z.s);
    for (int i = 0; i < 3; i++) cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(z.b.ctx));
    float numbers[4];
    cr_assert_eq(rw_read(NULL, rw_param_find(z.b.ctx, "scaler"), numbers, sizeof numbers), RW_OK);
    cr_assert(numbers[0] == 65536 && numbers[1] == 3);
    rw_graph_destroy(&g);
    zoo_close(&z);
}

/* The n-th allocation fails, for every n: a scaler is created completely or not at all, and a step takes place or
   changes nothing. */
Test(scaler_misuse, out_of_memory_changes_nothing)
{
    size_t bytes;
    struct zoo z = zoo_open(ADAMW, false, NULL);
    int failures = 0;
    for (int call = 0; call < 4; call++)
        for (uint64_t n = 1;; n++) {
            unsigned char *const was = zoo_parameters(&z, &bytes);
            write_gradients(z.b.ctx, '.', 0);
            rw_alloc_fail_from(n);
            const rw_status status = call == 0   ? rw_scaler_create(&z.s, z.b.ctx, NULL)
                                     : call == 1 ? rw_scaler_unscale(z.s)
                                     : call == 2 ? rw_scaler_step(z.s, z.opt)
                                                 : rw_scaler_update(z.s);
            rw_alloc_fail_at(0);
            if (status) cr_assert_eq(rw_error_status(z.b.ctx), RW_ERR_MEMORY);
            rw_error_clear(z.b.ctx);
            unsigned char *const is = zoo_parameters(&z, &bytes);
            if (status && !z.s) cr_assert_null(rw_param_find(z.b.ctx, "scaler"));
            if (status) cr_assert_eq(first_difference(was, is, bytes), -1, "call %d, allocation %d", call, (int)n);
            free(was);
            free(is);
            if (!status) break;
            failures++;
            cr_assert_eq(status, RW_ERR_MEMORY, "call %d, allocation %d", call, (int)n);
        }
    cr_assert_gt(failures, 20);
    cr_assert_eq(state_of(z.s).growth_tracker, 1);
    zoo_close(&z);
}
