/*
 * Fused updates together with parts that need all gradients first, or change state when the step ends: a scaler,
 * delayed scaling, clipping, all of them. Losses, parameters, moments, scales, histories and a monitor's counts have
 * the bytes of single calls, under every policy, including skipped steps.
 */
#include "api/delayed_scaling_fixture.h"
#include "api/optimizer.h"
#include "base/alloc.h"
#include "plan/build.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 7 };

/* The parts of a step besides its optimizer. */
struct with {
    bool scaler, delayed;
    double max_norm;
};

struct outcome {
    float loss[STEPS], skipped;
    unsigned char *bytes; /* parameters and buffers */
    size_t n;
    float moments[4096];
    uint64_t counts[3];
    rw_memory memory;
};

/* The model of delayed_scaling_fixture.h, with a scale that grows every second step. */
static struct delayed_world open(const char *policy, struct with with)
{
    struct delayed_world x = delayed_world_open(policy, 2, false);
    const rw_scaler_params p = { .init_scale = 8, .growth_interval = 2 };
    if (with.scaler) cr_assert_eq(rw_scaler_create(&x.s, x.b.ctx, &p), RW_OK, "%s", rw_error_message(x.b.ctx));
    if (!with.delayed) rw_delayed_scaling_destroy(&x.d);
    return x;
}

/* Collects the parameters, states and counts after the last step. */
static void finish(struct delayed_world *x, struct outcome *o)
{
    o->bytes = all_parameters(x->b.ctx, &o->n);
    cr_assert_eq(rw_optimizer_settle(x->opt), RW_OK);
    size_t at = 0;
    for (size_t i = 0; i < rw_optimizer_members(x->opt); i++) {
        const struct rw_kept k = rw_optimizer_kept(x->opt, i);
        o->counts[i] = k.step;
        for (int j = 0; j < k.n; j++, at += k.bytes[j - 1] / sizeof(float)) {
            size_t n;
            cr_assert_leq(at * sizeof(float) + k.bytes[j], sizeof o->moments);
            cr_assert_eq(rw_optimizer_read(x->opt, i, j, 0, o->moments + at, k.bytes[j], &n), RW_OK);
        }
    }
    if (x->s) {
        rw_scaler_state s;
        cr_assert_eq(rw_scaler_get(x->s, &s), RW_OK);
        o->skipped = (float)s.skipped;
    }
    delayed_world_close(x);
}

/* Two of the steps have gradients that are not finite, if there is a scaler. */
static float factor_of(const struct delayed_world *x, int step)
{
    return x->s && (step == 1 || step == 4) ? NAN : 1;
}

static rw_tensor *loss_of(struct delayed_world *x, int step, rw_tensor **ret_factor)
{
    const float factor = factor_of(x, step);
    *ret_factor = rw_input(x->b.t, RW_F32, RW_SCALAR, &factor, sizeof factor);
    return rw_mul(x->b.t, delayed_loss(x, 0, 1), *ret_factor);
}

/* The reference: the same steps by single calls. */
static struct outcome by_calls(struct with with)
{
    struct delayed_world x = open("none", with);
    struct outcome o = { 0 };
    for (int s = 0; s < STEPS; s++) {
        rw_tensor *factor, *const loss = loss_of(&x, s, &factor);
        rw_zero_grad(x.b.ctx);
        delayed_backward(&x, loss);
        o.loss[s] = (float)rw_item(x.b.t, loss);
        rw_tape_reset(x.b.t);
        if (x.s) cr_assert_eq(rw_scaler_unscale(x.s), RW_OK);
        if (with.max_norm > 0) cr_assert_eq(rw_clip_grad_norm(x.b.ctx, with.max_norm, NULL), RW_OK);
        cr_assert_eq(x.s ? rw_scaler_step(x.s, x.opt) : rw_optimizer_step(x.opt), RW_OK);
        if (x.d) cr_assert_eq(rw_delayed_scaling_update(x.d, x.s), RW_OK);
        if (x.s) cr_assert_eq(rw_scaler_update(x.s), RW_OK);
    }
    finish(&x, &o);
    return o;
}

/* The steps as launches of a graph, with fused updates or not. */
static struct outcome by_graph(const char *policy, struct with with, bool inside)
{
    struct delayed_world x = open(policy, with);
    struct outcome o = { 0 };
    rw_graph *g = NULL;
    rw_tensor *factor, *const loss = loss_of(&x, 0, &factor);
    const rw_graph_params p = { { recorded_scaler(x.s), recorded_clip(with.max_norm), recorded_update(x.opt, inside),
                                  recorded_delayed(x.d) } };
    cr_assert_eq(rw_graph_create(&g, x.b.t, loss, &p), RW_OK, "%s: %s", policy, rw_error_message(x.b.ctx));
    for (int s = 0; s < STEPS; s++) {
        const float now = factor_of(&x, s);
        cr_assert_eq(rw_input_write(factor, &now, sizeof now), RW_OK);
        cr_assert_eq(audited_launch(g, x.b.t), RW_OK, "%s: %s", policy, rw_error_message(x.b.ctx));
        o.loss[s] = (float)rw_item(x.b.t, loss);
    }
    cr_assert_eq(rw_memory_stats(x.b.ctx, &o.memory), RW_OK);
    cr_assert_eq(o.memory.predicted_peak, o.memory.measured_peak);
    rw_graph_destroy(&g);
    finish(&x, &o);
    return o;
}

static void same(const struct outcome *a, const struct outcome *b, const char *what)
{
    cr_assert_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s: losses", what);
    cr_assert_eq(a->n, b->n);
    cr_assert_eq(first_difference(a->bytes, b->bytes, a->n), -1, "%s: parameters or buffers, byte %ld", what,
                 first_difference(a->bytes, b->bytes, a->n));
    cr_assert_eq(memcmp(a->moments, b->moments, sizeof a->moments), 0, "%s: moments", what);
    cr_assert_eq(memcmp(a->counts, b->counts, sizeof a->counts), 0, "%s: counts of updates", what);
    cr_assert_eq(a->skipped, b->skipped, "%s: %g steps left out, not %g", what, (double)b->skipped, (double)a->skipped);
}

/* Updates in backward must give the same weights as calls, with less gradient memory, under each policy. */
static void every_policy(struct with with)
{
    static const char *const policies[] = { "full", "none", "selective:second", "uniform:2", "block:1", "ops:linear" };
    const size_t n = test_device() == RW_DEVICE_CPU ? sizeof policies / sizeof *policies : 2;
    struct outcome calls = by_calls(with), after = by_graph("none", with, false);
    same(&calls, &after, "after backward");
    if (with.scaler) cr_assert_eq(calls.skipped, 2, "%g", (double)calls.skipped);
    for (size_t i = 0; i < n; i++) {
        struct outcome o = by_graph(policies[i], with, true);
        same(&calls, &o, policies[i]);
        cr_assert_lt(o.memory.gradients, after.memory.gradients);
        cr_assert(o.memory.consumed > 0 && o.memory.consumed < after.memory.gradients, "%zu", o.memory.consumed);
        free(o.bytes);
    }
    free(calls.bytes), free(after.bytes);
}

Test(fused_updates, a_scaler_skips_the_same_updates_as_after_backward)
{
    every_policy((struct with){ .scaler = true });
}
Test(fused_updates, histories_move_on_once) { every_policy((struct with){ .delayed = true }); }
Test(fused_updates, of_a_clipped_step_too) { every_policy((struct with){ .delayed = true, .max_norm = 0.01 }); }
Test(fused_updates, a_scaler_and_clipping) { every_policy((struct with){ .scaler = true, .max_norm = 0.01 }); }
Test(fused_updates, a_scaler_and_histories) { every_policy((struct with){ .scaler = true, .delayed = true }); }
Test(fused_updates, all_of_them) { every_policy((struct with){ true, true, 0.01 }); }

/* ---- order of fused updates ---- */

/* w = 2: the gradients of w and of the marked x are two ends of backward. Both start with this step's scale; a scale
   that grows in every step belongs to the next. */
Test(fused_updates, the_next_scale_is_computed_last)
{
    float of_x[2][3];
    double w_after[2];
    for (int inside = 0; inside < 2; inside++) {
        struct fixture b = fixture_open(1, 1);
        rw_graph *g = NULL;
        rw_optimizer *opt = NULL;
        rw_scaler *s = NULL;
        const float three[4] = { 3, 3, 3, 3 };
        float two = 0;
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1)), *gx = NULL;
        rw_init_constant(w, 2);
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
        cr_assert_eq(rw_scaler_create(&s, b.ctx, &(rw_scaler_params){ .init_scale = 4, .growth_interval = 1 }), RW_OK);
        rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4), three, sizeof three));
        rw_tensor *const y = rw_sum(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false);
        rw_tensor *const loss = rw_add(b.t, y, rw_sum(b.t, rw_mul(b.t, w, w), RW_ALL_AXES, false));
        const rw_graph_params p = { { rw_record_scaler(s), recorded_update(opt, inside) } };
        cr_assert_eq(rw_graph_create(&g, b.t, loss, &p), RW_OK, "%s", rw_error_message(b.ctx));
        for (int step = 0; step < 3; step++) {
            cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
            gx = rw_gradient(x);
            float all[4];
            cr_assert_eq(rw_read(b.t, gx, all, sizeof all), RW_OK, "%s", rw_error_message(b.ctx));
            of_x[inside][step] = all[2];
            cr_assert_eq(all[2], (float)(6 * (4 << step)), "step %d: %g", step, (double)all[2]);
        }
        cr_assert_eq(rw_read(NULL, w, &two, sizeof two), RW_OK);
        w_after[inside] = (double)two;
        rw_graph_destroy(&g);
        rw_scaler_destroy(&s);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
    cr_assert_eq(memcmp(of_x[0], of_x[1], sizeof of_x[0]), 0);
    cr_assert_eq(w_after[0], w_after[1]);
    cr_assert_eq(w_after[0], 2 * 0.75 * 0.75 * 0.75);
}

/* One of three parameters, any of them, has a gradient that is not finite: none is updated. */
Test(fused_updates, one_gradient_that_is_not_finite_is_enough)
{
    for (int bad = 0; bad < 3; bad++) {
        struct fixture b = fixture_open(1, 1);
        rw_graph *g = NULL;
        rw_optimizer *opt = NULL;
        rw_scaler *s = NULL;
        rw_tensor *w[3], *loss = NULL;
        for (int i = 0; i < 3; i++) {
            const float by = i == bad ? INFINITY : 1;
            w[i] = rw_param(b.ctx, (const char *[]){ "a", "b", "c" }[i], RW_F32, RW_SHAPE(1));
            rw_init_constant(w[i], 2);
            rw_tensor *const y = rw_mul(b.t, rw_mul(b.t, w[i], w[i]),
                                        rw_input(b.t, RW_F32, RW_SHAPE(1), &by, sizeof by));
            loss = loss ? rw_add(b.t, loss, y) : y;
        }
        loss = rw_sum(b.t, loss, RW_ALL_AXES, false);
        cr_assert_eq(rw_sgd_create(&opt, b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
        cr_assert_eq(rw_scaler_create(&s, b.ctx, NULL), RW_OK);
        const rw_graph_params p = { { rw_record_scaler(s), rw_record_update_inside(opt) } };
        cr_assert_eq(rw_graph_create(&g, b.t, loss, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 3; i++) {
            float value = 0;
            cr_assert_eq(rw_read(NULL, w[i], &value, sizeof value), RW_OK);
            cr_assert_eq(value, 2, "parameter %d, where that of %d is infinite", i, bad);
        }
        rw_scaler_state state;
        cr_assert_eq(rw_scaler_get(s, &state), RW_OK);
        cr_assert(state.found_inf && state.skipped == 1 && state.scale == 32768);
        rw_graph_destroy(&g);
        rw_scaler_destroy(&s);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* Steps that a scaler has skipped before, in calls, do not change the updates of a graph without a scaler. */
Test(fused_updates, an_optimizer_that_has_left_steps_out_goes_on)
{
    struct outcome o[2] = { 0 };
    for (int inside = 0; inside < 2; inside++) {
        struct delayed_world x = open("none", (struct with){ .scaler = true });
        rw_graph *g = NULL;
        for (int s = 0; s < 3; s++) {
            rw_tensor *factor;
            delayed_backward(&x, loss_of(&x, s, &factor));
            rw_tape_reset(x.b.t);
            cr_assert_eq(rw_scaler_step(x.s, x.opt), RW_OK);
            cr_assert_eq(rw_scaler_update(x.s), RW_OK);
            rw_zero_grad(x.b.ctx);
        }
        const rw_graph_params p = { { recorded_update(x.opt, inside) } };
        cr_assert_eq(rw_graph_create(&g, x.b.t, delayed_loss(&x, 0, 1), &p), RW_OK, "%s", rw_error_message(x.b.ctx));
        for (int s = 0; s < 3; s++) cr_assert_eq(audited_launch(g, x.b.t), RW_OK, "%s", rw_error_message(x.b.ctx));
        rw_graph_destroy(&g);
        finish(&x, &o[inside]);
    }
    cr_assert_eq(o[0].skipped, 1);
    same(&o[0], &o[1], "after a scaler");
    free(o[0].bytes), free(o[1].bytes);
}

/* ---- what both passes of backward read ---- */

/* A recorder that requests a first pass, and makes every gradient depend on all of it. */
struct asker {
    struct rw_step_recorder recorder;
    rw_tensor *sum;
};

static rw_tensor *pass(struct rw_step_recorder *r, struct rw_recording *now, uint32_t param, rw_tensor *gradient)
{
    struct asker *const a = (struct asker *)(void *)r;
    rw_tape *const t = now->t;
    if (!now->is_first_pass) return rw_mul(t, gradient, rw_cast(t, a->sum, rw_tensor_dtype(gradient)));
    rw_tensor *const one = rw_sum(t, rw_cast(t, gradient, RW_F32), RW_ALL_AXES, false);
    a->sum = a->sum && one ? rw_add(t, a->sum, one) : one;
    return a->sum ? gradient : NULL;
}

static const struct rw_recorder_kind asker_kind = { .name = "asker", .reads_all = true, .gradient = pass };

/* The nodes of a step with that op, and the inputs of one of them. */
struct runs {
    int nodes, inputs;
};

static struct runs runs_of(const rw_tape *t, const rw_plan *plan, const char *op)
{
    struct runs r = { 0 };
    for (size_t i = 0; i < plan->n_actions; i++) {
        const struct rw_node *const node = rw_plan_node(t, plan, plan->actions[i].node);
        if (strcmp(t->ctx->ops[node->op]->name, op)) continue;
        r.nodes++;
        r.inputs = (int)node->n_inputs;
    }
    return r;
}

/* An amax of the first pass equals that of the second: it is not kept until the end of the step to be recorded with
   it. */
Test(fused_updates, amaxes_are_noted_of_one_pass)
{
    struct runs quantize[2], note[2];
    for (int twice = 0; twice < 2; twice++) {
        struct delayed_world x = delayed_world_open("none", 1, false);
        struct asker asker = { .recorder.kind = &asker_kind };
        struct rw_step_recorder *const recorder = &asker.recorder;
        rw_tensor *const loss = delayed_loss(&x, 0, 1);
        struct rw_request request = rw_step_request(x.b.t, &loss->id, 1);
        bool *const used_up = calloc(x.b.ctx->n_ids, sizeof *used_up);
        request.recorders = &recorder;
        request.n_recorders = 1;
        request.used_up = twice ? used_up : NULL; /* of no parameter */
        rw_plan *plan = NULL;
        cr_assert_eq(rw_plan_build(x.b.t, &request, &plan), RW_OK, "%s", rw_error_message(x.b.ctx));
        quantize[twice] = runs_of(x.b.t, plan, "quantize");
        note[twice] = runs_of(x.b.t, plan, "note_amax");
        rw_plan_release(plan);
        free(used_up);
        delayed_world_close(&x);
    }
    cr_assert_gt(quantize[1].nodes, quantize[0].nodes, "there is no first pass");
    cr_expect(note[0].nodes == 1 && note[1].nodes == 1);
    cr_expect_eq(note[0].inputs, note[1].inputs, "%d amaxes, not %d", note[1].inputs - 1, note[0].inputs - 1);
}

/* ---- a monitor ---- */

/* Backward is executed twice. */
Test(fused_updates, fp8_counts_equal_those_after_backward)
{
    rw_monitor_site site[2][16];
    size_t n[2] = { 0 };
    for (int inside = 0; inside < 2; inside++) {
        struct delayed_world x = open("full", (struct with){ .scaler = true });
        rw_monitor *m = NULL;
        rw_graph *g = NULL;
        cr_assert_eq(rw_monitor_create(&m, x.b.ctx, NULL), RW_OK);
        cr_assert_eq(rw_monitor_watch(m, &(rw_monitor_sources){ .sites = true }), RW_OK);
        const rw_graph_params p = { { rw_record_scaler(x.s), rw_record_clip(0.01), recorded_update(x.opt, inside) } };
        cr_assert_eq(rw_graph_create(&g, x.b.t, delayed_loss(&x, 0, 1), &p), RW_OK, "%s", rw_error_message(x.b.ctx));
        for (int s = 0; s < 2; s++) cr_assert_eq(audited_launch(g, x.b.t), RW_OK);
        cr_assert_eq(rw_monitor_step(m, &(rw_monitor_values){ .loss = 1, .seconds = 1 }, NULL), RW_OK);
        while (n[inside] < 16 && rw_monitor_get_site(m, n[inside], &site[inside][n[inside]])) n[inside]++;
        rw_graph_destroy(&g);
        rw_monitor_destroy(&m);
        delayed_world_close(&x);
    }
    cr_assert_eq(n[0], n[1]);
    cr_assert_geq(n[0], 6);
    for (size_t i = 0; i < n[0]; i++) {
        cr_assert(i >= 6 || site[0][i].amax > 0 || isnan(site[0][i].amax), "site %zu", i);
        cr_assert_eq(site[0][i].elements, site[1][i].elements, "site %zu: of both passes", i);
        cr_assert_eq(memcmp(&site[0][i].amax, &site[1][i].amax, 5 * sizeof(double)), 0, "site %zu", i);
    }
}

/* ---- exhausted memory ---- */

Test(fused_updates, memory_that_ends_anywhere_changes_nothing)
{
    struct delayed_world x = open("none", (struct with){ .scaler = true, .delayed = true });
    size_t n;
    unsigned char *const before = all_parameters(x.b.ctx, &n);
    rw_status status = RW_ERR_MEMORY;
    for (uint64_t i = 1; status; i += 1 + i / 16) {
        rw_graph *g = NULL;
        rw_tape_reset(x.b.t);
        rw_tensor *const loss = delayed_loss(&x, 0, 1);
        const rw_graph_params p = { { rw_record_scaler(x.s), rw_record_clip(1), rw_record_update_inside(x.opt),
                                      rw_record_delayed_scaling(x.d) } };
        rw_alloc_fail_from(i);
        status = rw_graph_create(&g, x.b.t, loss, &p);
        if (!status) status = rw_graph_launch(g);
        rw_alloc_fail_at(0);
        rw_graph_destroy(&g);
        if (!status) break;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(x.b.ctx));
        rw_error_clear(x.b.ctx);
        unsigned char *const after = all_parameters(x.b.ctx, &n);
        cr_assert_eq(first_difference(before, after, n), -1, "allocation %d", (int)i);
        free(after);
    }
    free(before);
    delayed_world_close(&x);
}
