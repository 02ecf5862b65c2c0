/*
 * The planner compared with the planners of peers (baseline_planners.h), on one simulator: at a peer's own peak our
 * answer is never slower than the peer, or than a knapsack by more than a hundredth. The peers are checked first:
 * against Revolve's closed form, and against the best of all subsets.
 *
 *   REWIND_RIVALS  if set, prints each peer's peak and time, and ours
 */
#include "remat/plan_only_transformer.h"
#include "remat/baseline_planners.h"
#include "support/support.h"

#include "models/synthetic_op.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct step {
    struct fixture b;
    uint32_t loss;
    struct rw_request request;
    struct rw_problem problem;
    struct rw_simulation sim;
};

static void open_problem(struct step *s, rw_tensor *loss)
{
    cr_assert_not_null(loss, "%s", rw_error_message(s->b.ctx));
    s->loss = loss->id;
    s->request = rw_step_request(s->b.t, &s->loss, 1);
    cr_assert_eq(rw_problem_open(&s->problem, s->b.t, &s->request), RW_OK, "%s", rw_error_message(s->b.ctx));
}

static void close_step(struct step *s)
{
    rw_simulation_finish(&s->sim);
    rw_problem_close(&s->problem);
    fixture_close(&s->b);
}

/* Frees the choice. */
static struct rw_cost_of_schedule cost_of(struct step *s, struct rw_choice *c)
{
    struct rw_cost_of_schedule cost;
    cr_assert(rw_choice_is_valid(c, &s->problem));
    cr_assert_eq(rw_simulate(&s->problem, c, &s->sim, &cost), RW_OK);
    rw_choice_finish(c);
    return cost;
}

static struct rw_cost_of_schedule cost_of_none(struct step *s)
{
    struct rw_choice c;
    cr_assert_eq(rw_choice_init(&c, &s->problem), RW_OK);
    return cost_of(s, &c);
}

/* ---- programs ---- */

/* Steps whose backward reads the input, each a region; unequal ones differ in bytes and seconds. */
static void open_chain(struct step *s, int steps, bool equal)
{
    *s = (struct step){ .b = fixture_open(1, 1) };
    rw_tensor *x = rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT));
    for (int i = 0; i < steps; i++) {
        ckpt_begin(s->b.t, "step");
        x = synth_apply(
            s->b.t, &x, 1,
            (struct synth){ .units = equal ? 4 : 1 + i * 5 % 7, .us = equal ? 50 : 10 + i * 11 % 40, .reads = 1 });
        ckpt_end(s->b.t);
    }
    open_problem(s, rw_sum(s->b.t, x, RW_ALL_AXES, false));
}

/* The same length as in bench/peer_planners. */
#define SEQ 256

static void open_model(struct step *s, enum model_kind kind, float dropout)
{
    const struct model_config config = { .kind = kind, .layers = 12, .width = 256, .dropout = dropout };
    *s = (struct step){ .b = fixture_open(1, 1) };
    open_problem(s, declared_loss(s->b.t, s->b.ctx, config, SEQ));
}

/* ---- checks of the peers ---- */

static size_t choose(size_t n, size_t k)
{
    size_t x = 1;
    for (size_t i = 1; i <= k; i++) x = x * (n - k + i) / i;
    return x;
}

/* Griewank and Walther: r l - C(s + r, s + 1), for the least r with C(s + r, s) >= l. */
static size_t closed_form(size_t l, size_t s)
{
    size_t r = 0;
    while (choose(s + r, s) < l) r++;
    return r * l - choose(s + r, s + 1);
}

/* Forward is the first of the advances; the live bytes besides kept inputs are the same as when all are kept. */
Test(planner_vs_baselines, revolve_repeats_what_its_closed_form_says)
{
    for (int l = 2; l <= 24; l++) {
        struct step s;
        open_chain(&s, l, true);
        const uint64_t none = cost_of_none(&s).peak;
        for (size_t room = 1; room < (size_t)l; room++) {
            struct rw_choice c = rival_revolve(&s.problem, room);
            const struct rw_cost_of_schedule cost = cost_of(&s, &c);
            cr_expect_eq(cost.n_replays, closed_form((size_t)l, room) - ((size_t)l - 1),
                         "%d steps, room for %zu: %zu replays", l, room, cost.n_replays);
            cr_expect_eq(cost.peak, none - ((size_t)l - 1 - room) * 4 * SYNTH_UNIT, "%d steps, room for %zu", l, room);
        }
        close_step(&s);
    }
}

/* For 16 steps in 4 segments: the inputs of 3 of them and the values inside the last are kept, 3 steps of 3 are
   repeated. */
Test(planner_vs_baselines, sqrt_n_keeps_inputs_of_segments)
{
    struct step s;
    open_chain(&s, 16, true);
    struct rw_choice c = rival_sqrt(&s.problem);
    const struct rw_cost_of_schedule cost = cost_of(&s, &c);
    const struct rw_cost_of_schedule none = cost_of_none(&s);
    cr_expect_eq(none.kept - cost.kept, 9 * 4 * SYNTH_UNIT, "%llu", (unsigned long long)(none.kept - cost.kept));
    cr_expect_eq(cost.n_replays, 9, "%zu", cost.n_replays);
    close_step(&s);
}

/* ---- the knapsack solves its knapsack problem ---- */

struct kept {
    double bytes, seconds, all_bytes, best;
    size_t n;
    double item_bytes[24], item_seconds[24];
};

/* The forward values that backward reads, and those of them that the choice keeps. */
static struct kept kept_of(const struct rw_problem *p, const struct rw_choice *c)
{
    struct kept k = { .n = 0 };
    struct rw_replayable g;
    cr_assert_eq(rw_replayable_init(&g, p), RW_OK);
    for (uint32_t v = 0; v < g.n_values; v++) {
        if (!g.late[v]) continue;
        const double bytes = (double)g.bytes[v], seconds = g.seconds[g.producer[v]];
        k.all_bytes += bytes;
        k.item_bytes[k.n] = bytes;
        k.item_seconds[k.n++] = seconds;
        if (rw_fate_drops(&c->fate[g.value[v]])) continue;
        k.bytes += bytes;
        k.seconds += seconds;
    }
    rw_replayable_finish(&g);
    return k;
}

/* The maximum seconds of all subsets of items, with the knapsack's own slots. */
static double best_subset(const struct kept *k, double budget)
{
    double best = 0;
    for (uint32_t set = 0; set < 1u << k->n; set++) {
        double seconds = 0;
        long slots = 0;
        for (size_t i = 0; i < k->n; i++)
            if (set >> i & 1) slots += lrint(k->item_bytes[i] / k->all_bytes * 10000), seconds += k->item_seconds[i];
        if (slots <= lrint(budget * 10000)) best = fmax(best, seconds);
    }
    return best;
}

/* A float sum of 13 items is accurate to 13 parts of 2^24. */
Test(planner_vs_baselines, knapsack_keeps_the_best_subset_of_a_chain)
{
    struct step s;
    open_chain(&s, 14, false);
    for (int percent = 5; percent < 100; percent += 5) {
        struct rw_choice c = rival_knapsack(&s.problem, percent / 100.0);
        const struct kept k = kept_of(&s.problem, &c);
        const double best = best_subset(&k, percent / 100.0);
        cr_assert_eq(k.n, 13);
        cr_expect_leq(fabs(k.seconds - best), best * 13 / (1 << 24), "%d %%: %g of %g s", percent, k.seconds, best);
        rw_choice_finish(&c);
    }
    close_step(&s);
}

/* Number of nodes that are replayed at the budget and are random, or are not. */
static size_t replayed_at(struct step *s, double budget, bool random)
{
    const rw_tape *const t = s->b.t;
    struct rw_choice c = rival_knapsack(&s->problem, budget);
    size_t n = 0;
    cost_of(s, &c);
    for (size_t i = 0; i < s->sim.schedule.n_actions; i++) {
        const struct rw_action *const a = &s->sim.schedule.actions[i];
        if (a->kind != RW_ACTION_REPLAY) continue;
        n += !random || (t->ctx->ops[t->nodes[a->node].op]->flags & RW_OP_RANDOM);
    }
    return n;
}

/* Attention without dropout has the flag as well, but is not random. */
Test(planner_vs_baselines, knapsack_keeps_random_numbers)
{
    struct step s;
    open_model(&s, MODEL_GPT, 0.1f);
    for (int i = 0; i <= 10; i++) cr_expect_eq(replayed_at(&s, i / 10.0, true), 0, "0.%d", i);
    cr_expect_gt(replayed_at(&s, 0, false), 0);
    close_step(&s);
    open_model(&s, MODEL_GPT, 0);
    cr_expect_eq(replayed_at(&s, 0, true), 12);
    close_step(&s);
}

/* ---- comparison with ours ---- */

enum { GPT, GPT_DROPOUT, LLAMA, CHAIN, UNEQUAL_CHAIN, PROGRAMS };

static void open_program(struct step *s, int program)
{
    switch (program) {
    case GPT: open_model(s, MODEL_GPT, 0); break;
    case GPT_DROPOUT: open_model(s, MODEL_GPT, 0.1f); break;
    case LLAMA: open_model(s, MODEL_LLAMA, 0); break;
    default: open_chain(s, 24, program == CHAIN);
    }
}

/*
 * At the peer's own peak, policies by name, sqrt(n) and Revolve are never faster. A knapsack fills its budget to the
 * last slot, while ours decides one value after the other (fill.h), so it may be faster by a thousandth or two:
 * workspaces, and so slots, differ between processors. The bound is at most the time of each.
 */
static void check_rival(struct step *s, struct rw_frontier *f, const char *name, struct rw_choice *c)
{
    const struct rw_cost_of_schedule cost = cost_of(s, c);
    const struct rw_frontier_entry *const ours = rival_ours(f, cost.peak);
    const double most = strncmp(name, "knapsack", 8) ? 1 + 1e-9 : 1.002;
    double bound = 0;
    cr_assert_not_null(ours, "%s: %llu bytes", name, (unsigned long long)cost.peak);
    cr_expect_leq(ours->seconds, cost.seconds * most, "%s: %.6f", name, ours->seconds / cost.seconds);
    cr_assert_eq(rw_frontier_bound(f, cost.peak, &bound), RW_OK);
    cr_expect_leq(bound, cost.seconds * (1 + 1e-6), "%s: %.6f", name, bound / cost.seconds);
    if (!getenv("REWIND_RIVALS")) return;
    fprintf(stderr, "%-20s %8.3f MiB %8.3f ms  ours %8.3f  %.4f  bound %8.3f\n", name, (double)cost.peak / 1048576,
            1e3 * cost.seconds, 1e3 * ours->seconds, ours->seconds / cost.seconds, 1e3 * bound);
}

Test(planner_vs_baselines, ours_is_as_fast_at_a_rivals_own_peak, .timeout = 600)
{
    for (int program = 0; program < PROGRAMS; program++) {
        struct step s;
        struct rw_frontier f;
        struct rw_choice c;
        char name[RIVAL_NAME];
        open_program(&s, program);
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        for (size_t i = 0; rival_next(&s.problem, i, name, &c); i++) check_rival(&s, &f, name, &c);
        rw_frontier_finish(&f);
        close_step(&s);
    }
}

/* Regions of some random ops: values that are expensive and cheap to recompute are mixed. */
static void open_random(struct step *s, int regions, uint32_t seed)
{
    uint32_t r = seed * 2654435761u + 1;
    *s = (struct step){ .b = fixture_open(1, 1) };
    rw_tensor *x = rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT));
    for (int i = 0; i < 4 * regions; i++) {
        if (i % 4 == 0) ckpt_begin(s->b.t, "part");
        r = r * 1664525u + 1013904223u;
        x = synth_apply(s->b.t, &x, 1, (struct synth){ .units = 1 + (r >> 8) % 9,
                                                     .us = 1 + (r >> 16) % 60 * ((r >> 24) % 3),
                                                     .reads = 1 + (r >> 28) % 2 * 3 });
        if (i % 4 == 3) ckpt_end(s->b.t);
    }
    open_problem(s, rw_sum(s->b.t, x, RW_ALL_AXES, false));
}

/* For any costs: planner.md names the counts that are tried. */
Test(planner_vs_baselines, ours_is_as_fast_as_any_count_of_segments_and_blocks_that_is_tried)
{
    static const enum rw_policy_kind kinds[] = { RW_POLICY_UNIFORM, RW_POLICY_BLOCK };
    static const int64_t counts[] = { 1, 2, 3, 4, 6 };
    for (uint32_t seed = 0; seed < 100; seed++) {
        const int regions = 2 + (int)seed % 6;
        struct step s;
        struct rw_frontier f;
        open_random(&s, regions, seed);
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        for (int i = 0; i < 10; i++) {
            const struct rw_policy policy = { .kind = kinds[i % 2], .n = counts[i / 2] };
            char name[RIVAL_NAME];
            if (policy.n > regions) continue;
            snprintf(name, sizeof name, "tape %u, %s:%d", seed, i % 2 ? "block" : "uniform", (int)policy.n);
            struct rw_choice c = rival_named(&s.problem, policy);
            check_rival(&s, &f, name, &c);
        }
        rw_frontier_finish(&f);
        close_step(&s);
    }
}

/* The largest relative decrease of a peak while the budget, and with it the kept bytes, increases. */
static double worst_fall(struct step *s)
{
    double highest = 0, worst = 0, kept = 0;
    for (int percent = 0; percent <= 100; percent += 5) {
        struct rw_choice c = rival_knapsack(&s->problem, percent / 100.0);
        const struct rw_cost_of_schedule cost = cost_of(s, &c);
        cr_expect_geq((double)cost.kept, kept, "%d %%", percent);
        kept = (double)cost.kept;
        highest = fmax(highest, (double)cost.peak);
        worst = fmax(worst, highest / (double)cost.peak);
    }
    return worst;
}

/* From the minimum to the bytes of none: more bytes give neither a smaller arena nor a slower step. */
static void check_ours_rises(struct step *s)
{
    struct rw_frontier f;
    const struct rw_frontier_entry *last = NULL;
    cr_assert_eq(rw_frontier_init(&f, &s->problem), RW_OK);
    for (uint64_t i = 1; i <= 400; i++) {
        const uint64_t bytes = rw_frontier_none_peak(&f) * i / 400;
        const struct rw_frontier_entry *const ours = rival_ours(&f, bytes);
        if (!ours) continue;
        cr_expect_leq(ours->peak, bytes);
        cr_expect(!last || ours->peak >= last->peak);
        cr_expect(!last || ours->seconds <= last->seconds);
        last = ours;
    }
    cr_expect(last && last->seconds == rw_frontier_none_seconds(&f));
    rw_frontier_finish(&f);
}

/* A knapsack does not account for the memory of a chain of replays: if little is kept, most of forward is live
   again. */
Test(planner_vs_baselines, a_knapsack_takes_more_for_less_and_ours_does_not)
{
    static const int programs[] = { GPT, LLAMA, UNEQUAL_CHAIN };
    for (int i = 0; i < 3; i++) {
        struct step s;
        open_program(&s, programs[i]);
        cr_expect_geq(worst_fall(&s), 3, "program %d: %.2f", programs[i], worst_fall(&s));
        check_ours_rises(&s);
        close_step(&s);
    }
}

/* The first of equal items are chosen, so the replayed nodes are a chain to the end of forward, all live at once. */
Test(planner_vs_baselines, a_knapsack_of_equal_steps_frees_nothing)
{
    struct step s;
    open_chain(&s, 24, true);
    const struct rw_cost_of_schedule none = cost_of_none(&s);
    for (int percent = 0; percent < 100; percent += 5) {
        struct rw_choice c = rival_knapsack(&s.problem, percent / 100.0);
        const struct rw_cost_of_schedule cost = cost_of(&s, &c);
        cr_expect_eq(cost.peak, none.peak, "%d %%", percent);
        cr_expect_gt(cost.seconds, none.seconds, "%d %%", percent);
    }
    close_step(&s);
}
