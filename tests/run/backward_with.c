/* rw_backward_with(): bit-identical to the single calls, planned once per list, and without effect where it fails. */
#include "run/recorder_fixture.h"

#include "api/backward_with.h"
#include "base/alloc.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SCALED = 1, CLIPPED = 2, DELAYED = 4, TWO = 8, MICRO_BATCHES = 16 };

/* Whatever precedes the last micro-batch. */
static void first_batch(struct world *x, int how)
{
    rw_zero_grad(x->b.ctx);
    if (!(how & MICRO_BATCHES)) return;
    rw_tensor *const loss = loss_of(x, 0.75);
    cr_assert_eq(how & SCALED ? rw_scaler_backward(x->s, x->b.t, loss) : rw_backward(x->b.t, loss), RW_OK);
    rw_tape_reset(x->b.t);
}

static double norm_of(int step)
{
    return 0.5 / (step + 1);
}

static void step_by_calls(struct world *x, int how, int step)
{
    rw_tensor *const loss = loss_of(x, 1);
    cr_assert_eq(how & SCALED ? rw_scaler_backward(x->s, x->b.t, loss) : rw_backward(x->b.t, loss), RW_OK);
    if (how & SCALED) cr_assert_eq(rw_scaler_unscale(x->s), RW_OK);
    if (how & CLIPPED) cr_assert_eq(rw_clip_grad_norm(x->b.ctx, norm_of(step), NULL), RW_OK);
    for (int i = 0; i < (how & TWO ? 2 : 1); i++) {
        rw_optimizer *const opt = how & TWO ? x->only[i] : x->opt;
        cr_assert_eq(how & SCALED ? rw_scaler_step(x->s, opt) : rw_optimizer_step(opt), RW_OK);
    }
    if (how & DELAYED) cr_assert_eq(rw_delayed_scaling_update(x->d, how & SCALED ? x->s : NULL), RW_OK);
    if (how & SCALED) cr_assert_eq(rw_scaler_update(x->s), RW_OK);
}

static rw_backward_params params_of(const struct world *x, int how, int step)
{
    return (rw_backward_params){ { recorded_scaler(how & SCALED ? x->s : NULL),
                                   recorded_clip(how & CLIPPED ? norm_of(step) : 0),
                                   rw_record_update(how & TWO ? x->only[0] : x->opt),
                                   how & TWO ? rw_record_update(x->only[1]) : rw_record_nothing(),
                                   recorded_delayed(how & DELAYED ? x->d : NULL) } };
}

static struct outcome stepped(int how, bool by_list)
{
    struct world x = world_open();
    size_t plans = 0;
    for (int s = 0; s < STEPS + 2; s++) {
        first_batch(&x, how);
        const rw_backward_params params = params_of(&x, how, s);
        if (by_list)
            cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK, "%s", rw_error_message(x.b.ctx));
        else step_by_calls(&x, how, s);
        rw_tape_reset(x.b.t);
        rw_memory m;
        cr_assert_eq(rw_memory_stats(x.b.ctx, &m), RW_OK);
        if (s == 1) plans = m.plans;
        if (s > 1) cr_expect_eq(m.plans, plans, "planned again for another norm");
    }
    size_t n;
    unsigned char *const gradients = all_gradients(x.b.ctx, &n);
    struct outcome o = outcome_of(&x);
    unsigned char *const both = malloc(o.n + n);
    memcpy(both, o.bytes, o.n);
    memcpy(both + o.n, gradients, n);
    free(o.bytes);
    free(gradients);
    return (struct outcome){ both, o.n + n };
}

Test(backward_with, a_backward_with_a_list_computes_what_calls_do)
{
    for (int how = 0; how < 32; how++) {
        char what[32];
        snprintf(what, sizeof what, "combination %d", how);
        struct outcome calls = stepped(how, false), list = stepped(how, true);
        same(&calls, &list, what);
    }
}

/* Another list in each step, of the same kinds. */
Test(backward_with, a_backward_with_another_list_is_planned_again)
{
    struct outcome o[2];
    for (int by_list = 0; by_list < 2; by_list++) {
        struct world x = world_open();
        for (int s = 0; s < 4; s++) {
            rw_optimizer *const opt = x.only[s % 2];
            rw_zero_grad(x.b.ctx);
            const rw_backward_params params = { { rw_record_update(opt) } };
            if (by_list) cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK);
            else cr_assert_eq(rw_backward(x.b.t, loss_of(&x, 1)) || rw_optimizer_step(opt), RW_OK);
            rw_tape_reset(x.b.t);
        }
        o[by_list] = outcome_of(&x);
    }
    same(&o[0], &o[1], "lists in turn");
}

/* A loss that is read before goes on to its backward: forward runs once. */
Test(backward_with, a_backward_with_a_list_continues_a_step)
{
    struct world x = world_open();
    rw_tensor *const y = rw_add(x.b.t, counted_square(x.b.t, x.w, 1), rw_cast(x.b.t, x.v, RW_F32));
    rw_tensor *const loss = rw_sum(x.b.t, y, RW_ALL_AXES, false);
    counted_clear();
    cr_expect(isfinite(rw_item(x.b.t, loss)));
    cr_assert_eq(rw_backward_with(x.b.t, loss, &(rw_backward_params){ { rw_record_update(x.opt) } }), RW_OK, "%s",
                 rw_error_message(x.b.ctx));
    cr_expect_eq(counted_runs[1], 1);
    world_close(&x);
}

/* The context's plan keeps no object alive, and ends with the first of its objects. */
Test(backward_with, a_backward_with_a_list_holds_no_object)
{
    struct world x = world_open();
    rw_memory m;
    for (int round = 0; round < 4; round++) {
        const rw_backward_params params = params_of(&x, SCALED | CLIPPED | DELAYED | TWO, 0);
        rw_zero_grad(x.b.ctx);
        cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_tape_reset(x.b.t);
        if (round == 0) rw_optimizer_destroy(&x.only[1]);
        if (round == 1) rw_scaler_destroy(&x.s);
        if (round == 2) rw_delayed_scaling_destroy(&x.d);
        cr_expect_eq(rw_backward_recorders_of(x.b.ctx) == NULL, round < 3, "after %d", round);
        if (!x.only[1]) x.only[1] = optimizer_without(x.b.ctx, x.w);
        if (!x.s) cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, NULL), RW_OK);
        if (!x.d) cr_assert_eq(rw_delayed_scaling_create(&x.d, x.b.ctx, NULL), RW_OK);
    }
    rw_optimizer_destroy(&x.opt);
    for (int i = 0; i < 2; i++) rw_optimizer_destroy(&x.only[i]);
    cr_assert_eq(rw_memory_stats(x.b.ctx, &m), RW_OK);
    cr_expect_eq(m.optimizer, 0, "%zu bytes", m.optimizer);
    world_close(&x);
}

/* Steps of a list with a scaler and a clip, or of calls, that reach w or v: `reached` says which. */
static struct outcome steps_that_reach(const char *reached, bool by_list, bool clears)
{
    struct world x = world_open();
    const rw_backward_params list = { { rw_record_scaler(x.s), rw_record_clip(0.05), rw_record_update(x.opt) } };
    for (const char *at = reached; *at; at++) {
        rw_tape *const t = x.b.t;
        rw_tensor *const y = rw_cast(t, *at == 'v' ? x.v : x.w, RW_F32);
        rw_tensor *const loss = rw_scale(t, rw_sum_all(t, rw_mul(t, y, y)), 1);
        if (clears) rw_zero_grad(x.b.ctx);
        if (by_list) {
            const rw_status status = rw_backward_with(t, loss, &list);
            cr_assert_eq(status, clears || at == reached ? RW_OK : RW_ERR_MODIFIED, "%s", rw_error_message(x.b.ctx));
        } else {
            cr_assert_eq(rw_scaler_backward(x.s, t, loss), RW_OK);
            cr_assert_eq(rw_scaler_unscale(x.s), RW_OK);
            cr_assert_eq(rw_clip_grad_norm(x.b.ctx, 0.05, NULL), RW_OK);
            cr_assert_eq(rw_scaler_step(x.s, x.opt), RW_OK);
            cr_assert_eq(rw_scaler_update(x.s), RW_OK);
        }
        rw_error_clear(x.b.ctx);
        rw_tape_reset(t);
    }
    return outcome_of(&x);
}

/* Clipping read what an earlier step had left in the memory of a clear gradient. */
Test(backward_with, a_list_finds_clear_gradients_absent)
{
    static const char *const reached[] = { "vw", "wvw", "vwvvw" };
    for (size_t i = 0; i < sizeof reached / sizeof *reached; i++) {
        struct outcome list = steps_that_reach(reached[i], true, true);
        struct outcome calls = steps_that_reach(reached[i], false, true);
        same(&list, &calls, reached[i]);
    }
}

/* Gradients of an earlier list were divided by the scale again. A second rw_scaler_unscale() is refused. */
Test(backward_with, a_list_with_a_scaler_does_not_unscale_twice)
{
    struct outcome one = steps_that_reach("w", true, false), both = steps_that_reach("wv", true, false);
    same(&both, &one, "the second list is refused");
}

static rw_tensor *return_it(void *user, rw_tape *t, rw_tensor *param, rw_tensor *gradient)
{
    return gradient;
}

static const rw_recorder_def unchanged = { .name = "unchanged", .gradient = return_it };

/* A step that is refused, or fails before its update, has changed nothing: a graph that counts on the host is valid. */
Test(backward_with, a_backward_with_a_list_that_fails_changes_nothing)
{
    struct world x = world_open();
    rw_tape *other = NULL;
    rw_graph *g = NULL;
    cr_assert_eq(rw_tape_create(&other, x.b.ctx), RW_OK);
    struct world of_graph = x;
    of_graph.b.t = other;
    cr_assert_eq(create_graph(&of_graph, &g, LIST(rw_record_update(x.opt))), RW_OK);
    const rw_backward_params inside = { { rw_record_update_inside(x.opt) } }, scaled = params_of(&x, SCALED, 0),
                             custom = { { rw_record_custom(&unchanged, NULL), rw_record_update(x.opt) } },
                             plain = params_of(&x, 0, 0);
    cr_expect_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &inside), RW_ERR_UNSUPPORTED);
    cr_expect(strstr(rw_error_message(x.b.ctx), "rw_backward_with(recorders[0]): expected a recorder that runs after "
                     "backward, got rw_record_update_inside(), which needs a graph"), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    cr_expect_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &custom), RW_ERR_UNSUPPORTED);
    rw_error_clear(x.b.ctx);
    rw_tensor *const constant = rw_ones(x.b.t, RW_F32, RW_SCALAR);
    cr_expect_eq(rw_backward_with(x.b.t, constant, &scaled), RW_ERR_ARGUMENT);
    rw_error_clear(x.b.ctx);
    rw_tape_reset(x.b.t);
    cr_expect_eq(rw_scaler_backward(x.s, x.b.t, loss_of(&x, 1)), RW_OK);
    rw_tape_reset(x.b.t);
    cr_expect_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &plain), RW_ERR_MODIFIED, "gradients are scaled");
    rw_error_clear(x.b.ctx);
    rw_zero_grad(x.b.ctx);
    rw_tape_reset(x.b.t);
    rw_tensor *const before = rw_buffer(x.b.ctx, "before", RW_F32, RW_SCALAR);
    cr_assert_eq(rw_init_constant(before, 1), RW_OK);
    rw_tensor *const loss = rw_mul(x.b.t, loss_of(&x, 1), before);
    cr_assert_eq(rw_init_constant(before, 2), RW_OK); /* after it was recorded: backward refuses it */
    cr_expect_eq(rw_backward_with(x.b.t, loss, &scaled), RW_ERR_MODIFIED);
    rw_error_clear(x.b.ctx);
    cr_expect_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
    rw_graph_destroy(&g);
    rw_tape_destroy(&other);
    world_close(&x);
}

/* A step without memory can be repeated after rw_zero_grad(): no parameter or buffer has changed. */
Test(backward_with, a_backward_with_a_list_without_memory_can_be_repeated)
{
    struct world x = world_open();
    const rw_backward_params params = params_of(&x, SCALED | CLIPPED | DELAYED | TWO, 0);
    size_t n;
    unsigned char *const before = all_parameters(x.b.ctx, &n);
    rw_status status = RW_ERR_MEMORY;
    for (uint64_t i = 1; status; i++) {
        rw_tensor *const loss = loss_of(&x, 1);
        rw_alloc_fail_from(i);
        status = rw_backward_with(x.b.t, loss, &params);
        rw_alloc_fail_at(0);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        rw_zero_grad(x.b.ctx);
        rw_tape_reset(x.b.t);
        unsigned char *const after = all_parameters(x.b.ctx, &n);
        cr_assert_eq(first_difference(before, after, n), -1, "allocation %d", (int)i);
        free(after);
    }
    free(before);
    rw_tape_reset(x.b.t);
    struct outcome failed = outcome_of(&x);
    struct world y = world_open();
    step_by_calls(&y, SCALED | CLIPPED | DELAYED | TWO, 0);
    rw_tape_reset(y.b.t);
    struct outcome calls = outcome_of(&y);
    same(&calls, &failed, "after failures");
}

/* A step that a scaler has skipped in between counts: the list is planned again. */
Test(backward_with, an_optimizer_that_counts_on_the_device_is_planned_again)
{
    struct outcome o[2];
    for (int by_list = 0; by_list < 2; by_list++) {
        struct world x = world_open();
        const rw_backward_params params = params_of(&x, 0, 0);
        for (int s = 0; s < 3; s++) {
            rw_zero_grad(x.b.ctx);
            if (s == 1) {
                cr_assert_eq(rw_scaler_backward(x.s, x.b.t, loss_of(&x, 1e38)), RW_OK);
                cr_assert_eq(rw_scaler_step(x.s, x.opt), RW_OK);
                cr_assert_eq(rw_scaler_update(x.s), RW_OK);
            } else if (by_list) {
                cr_assert_eq(rw_backward_with(x.b.t, loss_of(&x, 1), &params), RW_OK, "%s", rw_error_message(x.b.ctx));
            } else {
                step_by_calls(&x, 0, s);
            }
            rw_tape_reset(x.b.t);
        }
        rw_scaler_state state;
        cr_assert_eq(rw_scaler_get(x.s, &state), RW_OK);
        cr_assert_eq(state.skipped, 1);
        o[by_list] = outcome_of(&x);
    }
    same(&o[0], &o[1], "a skipped step in between");
}
