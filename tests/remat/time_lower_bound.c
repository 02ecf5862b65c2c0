/*
 * The lower bound of rw_tape_plan(): rw_prediction.bound_ms and gap, for the bytes of the budget. Tested on tapes for
 * which an earlier bound was too high, or a gap too small; with offload; and on independent products, of which every
 * choice is planned. More choices on random programs: random_choices.c.
 */
#include "support/support.h"
#include "models/synthetic_op.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

static void plan(struct fixture *b, rw_tensor *loss, const char *policy, rw_prediction *ret)
{
    cr_assert_eq(rw_tape_plan(b->t, loss, policy, ret), RW_OK, "%s: %s", policy, rw_error_message(b->ctx));
    cr_expect(isfinite(ret->bound_ms) && isfinite(ret->gap) && ret->gap >= 0 && ret->bound_ms <= ret->ms,
              "%s: %g ms, bound %g, gap %g", policy, ret->ms, ret->bound_ms, ret->gap);
}

/* The caller saves one output of an op with two, and backward only reads the other: a replay's copy of the saved output
   is not read. */
Test(time_lower_bound, a_saved_output_costs_a_replay_of_its_sibling_nothing)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(256, 256));
    rw_tensor *sum = NULL;
    for (int i = 0; i < 6; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_tensor *y = rw_linear_gelu(b.t, x, rw_param(b.ctx, name, RW_F32, RW_SHAPE(1024, 256)), RW_NONE);
        ckpt_keep(b.t, y);
        y = rw_sum(b.t, y, 1, false);
        sum = sum ? rw_add(b.t, sum, y) : y;
    }
    rw_tensor *const loss = rw_sum(b.t, sum, RW_ALL_AXES, false);
    rw_prediction p;
    static const char *const budgets[] = { "budget:90%", "budget:75%", "budget:60%", "budget:50%" };
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        plan(&b, loss, budgets[i], &p);
        cr_expect_lt(p.gap, 0.05, "%s: %g, moments in forward see this", budgets[i], p.gap);
    }
    fixture_close(&b);
}

/* All values of the tape are large, and only replays read the saved one: two choices that differ by the bytes of one
   alignment must differ at the highest price. */
Test(time_lower_bound, is_finite_where_every_value_is_large)
{
    enum { MIB = (1 << 20) / SYNTH_UNIT };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(SYNTH_UNIT / 4));
    x = synth_apply(b.t, &x, 1, (struct synth){ .units = MIB, .us = 10 });
    ckpt_keep(b.t, x);
    x = synth_apply(b.t, &x, 1, (struct synth){ .units = 3 * MIB / 2, .us = 1000, .reads = 4 });
    x = synth_apply(b.t, &x, 1, (struct synth){ .units = 8 * MIB, .us = 10 });
    x = synth_apply(b.t, &x, 1, (struct synth){ .units = 8 * MIB, .us = 10 });
    rw_tensor *const loss = rw_slice(b.t, x, 0, 0, 1);
    rw_prediction none;
    plan(&b, loss, "none", &none);
    for (size_t bytes = none.peak_bytes; bytes >= none.peak_bytes - none.peak_bytes / 8; bytes -= 1 << 16) {
        char policy[64];
        rw_prediction p;
        snprintf(policy, sizeof policy, "budget:%zuB", bytes);
        if (rw_tape_plan(b.t, loss, policy, &p) == RW_ERR_BUDGET) {
            rw_error_clear(b.ctx);
            break;
        }
        plan(&b, loss, policy, &p);
    }
    fixture_close(&b);
}

/* ---- every choice of eight products ---- */

enum { PRODUCTS = 8, CHOICES = 1 << PRODUCTS, WIDTH = 16 };

/* The sum of the cosines of several products of different widths; returns the products in value. */
static rw_tensor *products(struct fixture *b, rw_tensor **value)
{
    static const int width[PRODUCTS] = { 24, 1, 7, 19, 2, 41, 9, 30 };
    rw_tensor *x = rw_param_find(b->ctx, "x"), *sum = NULL;
    if (!x) x = rw_param(b->ctx, "x", RW_F32, RW_SHAPE(64, 64));
    for (int i = 0; i < PRODUCTS; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        rw_tensor *w = rw_param_find(b->ctx, name);
        if (!w) w = rw_param(b->ctx, name, RW_F32, RW_SHAPE(64, width[i] * WIDTH));
        value[i] = rw_matmul(b->t, x, w);
        rw_tensor *const y = rw_sum(b->t, rw_cos(b->t, value[i]), RW_ALL_AXES, false);
        sum = sum ? rw_add(b->t, sum, y) : y;
    }
    return sum;
}

struct all {
    double ms[CHOICES];
    size_t peak[CHOICES], least, most;
};

/* Plans under every subset of recomputed products, and keeps each time and peak. */
static void plan_all(struct fixture *b, struct all *all)
{
    *all = (struct all){ .least = SIZE_MAX };
    for (unsigned m = 0; m < CHOICES; m++) {
        rw_tensor *value[PRODUCTS], *const loss = products(b, value);
        rw_prediction p;
        for (int i = 0; i < PRODUCTS; i++)
            if (m >> i & 1) ckpt_recompute(b->t, value[i]);
        plan(b, loss, "none", &p);
        all->ms[m] = p.ms;
        all->peak[m] = p.peak_bytes;
        if (p.peak_bytes < all->least) all->least = p.peak_bytes;
        if (p.peak_bytes > all->most) all->most = p.peak_bytes;
        rw_tape_reset(b->t);
    }
}

static double best_within(const struct all *all, size_t bytes)
{
    double best = INFINITY;
    for (unsigned m = 0; m < CHOICES; m++)
        if (all->peak[m] <= bytes) best = fmin(best, all->ms[m]);
    return best;
}

Test(time_lower_bound, gap_is_at_least_the_distance_to_any_choice_within_the_budget)
{
    static struct all all;
    struct fixture b = fixture_open(1, 1);
    rw_tensor *value[PRODUCTS];
    plan_all(&b, &all);
    rw_tensor *const loss = products(&b, value);
    for (size_t k = 0; k <= 100; k++) {
        const size_t bytes = all.least + (all.most - all.least) * k / 100;
        char policy[64];
        rw_prediction p;
        snprintf(policy, sizeof policy, "budget:%zuB", bytes);
        plan(&b, loss, policy, &p);
        const double over = p.ms / best_within(&all, bytes) - 1;
        cr_expect_leq(over, p.gap + 1e-9, "%s: gap %g, but a choice by hand is %g away", policy, p.gap, over);
        cr_expect_leq(over, 0.002, "%s: a choice by hand is %g away", policy, over);
    }
    fixture_close(&b);
}

/* ---- long and regular tapes ---- */

/* Equal nodes, in regions of a hundred or in none: no point of the tape has few live values, and every value has the
   same price. */
static void check_regular(int nodes, bool regions)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2 * SYNTH_UNIT));
    for (int i = 0; i < nodes; i++) {
        if (regions && i % 100 == 0) ckpt_begin(b.t, "block");
        x = synth_apply(b.t, &x, 1, (struct synth){ .units = 8, .us = 20, .reads = 5 });
        if (regions && i % 100 == 99) ckpt_end(b.t);
    }
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    rw_prediction none, p;
    plan(&b, loss, "none", &none);
    for (int percent = 70; percent >= 30; percent -= 20) {
        char policy[32];
        snprintf(policy, sizeof policy, "budget:%d%%", percent);
        plan(&b, loss, policy, &p);
        const double used = (double)p.peak_bytes / ((double)none.peak_bytes * percent / 100);
        cr_expect_geq(used, 0.97, "%d nodes, %s: uses %.4f of it", nodes, policy, used);
        cr_expect_leq(p.gap, 0.01, "%d nodes, %s: %.4f from the bound", nodes, policy, p.gap);
    }
    fixture_close(&b);
}

Test(time_lower_bound, long_and_regular_tapes_use_their_budgets, .timeout = 300)
{
    check_regular(1000, false);
    check_regular(1000, true);
    check_regular(test_steps(10000, 2000), false);
    check_regular(test_steps(30000, 3000), true);
}

/* ---- with offload ---- */

/* At a rate that hides all copies no time is lost; at one that hides some, the bound is the minimum loss. */
Test(time_lower_bound, says_something_where_values_may_move)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2 * SYNTH_UNIT));
    for (int i = 0; i < 200; i++) x = synth_apply(b.t, &x, 1, (struct synth){ .units = 64, .us = 20, .reads = 5 });
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    rw_prediction none, p;
    plan(&b, loss, "none", &none);
    double before = 0;
    for (double rate = 1e12; rate >= 1e7; rate /= 10) {
        const rw_offload o = { .out_bytes_per_s = rate, .in_bytes_per_s = rate };
        cr_assert_eq(rw_context_set_offload(b.ctx, &o), RW_OK);
        plan(&b, loss, "budget:50%+offload", &p);
        cr_expect_geq(p.bound_ms, before * (1 - 1e-9), "%.0e B/s: a slower store bounds more", rate);
        cr_expect_lt(p.gap, 0.10, "%.0e B/s: %g", rate, p.gap);
        before = p.bound_ms;
    }
    cr_expect_gt(before, none.ms * 1.05, "a store that is too slow for anything: %g of %g", before, none.ms);
    fixture_close(&b);
}

/* The gradient of input 1 reads input 2, which nothing else reads. */
static rw_status reads_the_deferred(rw_grad_call *g, const void *data)
{
    (void)data;
    rw_tensor *const in[2] = { rw_grad_upstream(g, 0), rw_grad_input(g, 2) };
    return rw_grad_set(g, 1, synth_apply(rw_grad_tape(g), in, 2, (struct synth){ .units = 64, .us = 10 }));
}

/* A chain of large values, and a slow node whose small output only backward reads. part: its policy, NULL for none. */
static rw_tensor *chain_with_deferred(struct fixture *b, const char *part)
{
    rw_tape_reset(b->t);
    rw_tensor *x = rw_param_find(b->ctx, "x"), *const data = rw_input(b->t, RW_F32, RW_SHAPE(256), NULL, 0);
    if (!x) x = rw_param(b->ctx, "x", RW_F32, RW_SHAPE(SYNTH_UNIT / 4));
    for (int i = 0; i < 16; i++) x = synth_apply(b->t, &x, 1, (struct synth){ .units = 64, .us = 100, .reads = 4 });
    if (part) ckpt_policy_begin(b->t, part);
    ckpt_begin(b->t, "r");
    rw_tensor *const late = synth_apply(b->t, &data, 1, (struct synth){ .units = 1, .us = 2000 });
    ckpt_end(b->t);
    if (part) ckpt_policy_end(b->t);
    rw_tensor *const read[2] = { x, late };
    rw_tensor *const y = synth_apply(b->t, &x, 1, (struct synth){ .units = 1, .us = 1 });
    return rw_sum(b->t, rw_custom_grad(b->t, y, read, 2, reads_the_deferred, NULL, 0), RW_ALL_AXES, false);
}

/* A part that replays is no limit to a budget of the tape, so the plans are the same and so is the bound, also where
   `none` defers the node of the part. */
Test(time_lower_bound, with_offload_does_not_depend_on_what_a_part_defers)
{
    static const char *const parts[] = { "full", "discard:r" };
    struct fixture b = fixture_open(1, 1);
    rw_prediction none, plain, part;
    plan(&b, chain_with_deferred(&b, NULL), "none", &none);
    char budget[64];
    snprintf(budget, sizeof budget, "budget:%zuB+offload", none.peak_bytes * 2 / 5);
    for (double rate = 1e8; rate <= 1e12; rate *= 2) {
        const rw_offload o = { .out_bytes_per_s = rate, .in_bytes_per_s = 1e13 };
        cr_assert_eq(rw_context_set_offload(b.ctx, &o), RW_OK);
        plan(&b, chain_with_deferred(&b, NULL), budget, &plain);
        for (int i = 0; i < 2; i++) {
            plan(&b, chain_with_deferred(&b, parts[i]), budget, &part);
            cr_expect_float_eq(part.bound_ms, plain.bound_ms, 1e-9 * plain.bound_ms, "%s, %.0e B/s: %g, %g without",
                               parts[i], rate, part.bound_ms, plain.bound_ms);
        }
    }
    fixture_close(&b);
}
