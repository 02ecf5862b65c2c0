/*
 * Budgets of parts: a part takes at most its own budget, or the step fails before it runs and names the minimum. Less
 * budget never takes more of what the part counts, more is never slower, whatever the other parts have. Observable
 * results have the bytes of `none`.
 */
#include "remat/random_tape.h"
#include "support/support.h"

#include "base/alloc.h"
#include "plan/build.h"
#include "remat/schedule/live_set.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS = 2, ROOM = 1 << 16 };

/* Index of the part that contains node i, -1 for none: parts follow each other directly, or with other nodes around
   each. */
static int part_of(int i, int nodes, bool side_by_side)
{
    const int band = i * (2 * PARTS + 1) / (nodes + 1);
    if (i > nodes) return -1;
    return side_by_side ? i * PARTS / (nodes + 1) : band % 2 ? band / 2 : -1;
}

/* A random tape with some stretches in parts, some nodes in regions, and some of these in parts of their own. */
static rw_tensor *tape_in_parts(struct fixture *b, uint64_t seed, const char *const *spec)
{
    struct dice d = { seed };
    rw_tensor *value[64] = { rw_param(b->ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT / 4)) };
    const int nodes = 40 + (int)below(&d, 20);
    const bool side_by_side = seed % 2;
    for (int i = 1; i <= nodes; i++) {
        const int part = part_of(i, nodes, side_by_side);
        if (part >= 0 && (i == 1 || part != part_of(i - 1, nodes, side_by_side)))
            cr_assert_eq(ckpt_policy_begin(b->t, spec[part]), RW_OK, "%s", rw_error_message(b->ctx));
        const bool region = !below(&d, 3), inner = !below(&d, 5);
        if (inner) ckpt_policy_begin(b->t, "full");
        if (region) ckpt_begin(b->t, "r");
        rw_tensor *in[2] = { value[i - 1], value[i - 1 - (i > 1 ? below(&d, i < 4 ? i - 1 : 3) : 0)] };
        const int n = in[0] != in[1] && below(&d, 2) ? 2 : 1;
        const struct synth a = { .units = 1 + below(&d, 8), .us = (double)(1 + below(&d, 50)),
                                .reads = (int32_t)below(&d, n == 2 ? 8 : 2) | (int32_t)below(&d, 2) * 4,
                                .tail = !below(&d, 5) };
        value[i] = synth_apply(b->t, in, n, a);
        if (region) ckpt_end(b->t);
        if (inner) ckpt_policy_end(b->t);
        if (part >= 0 && part != part_of(i + 1, nodes, side_by_side)) ckpt_policy_end(b->t);
    }
    return rw_sum(b->t, value[nodes], RW_ALL_AXES, false);
}

/* ---- memory of a part, counted action by action ---- */

static bool is_of_part(const rw_tape *t, const struct rw_tape_part *part, uint32_t n)
{
    while (t->nodes[n].adjoint) {
        if (t->nodes[n].of == RW_NONE_ID) return false;
        n = t->nodes[n].of;
    }
    return n >= part->first && n < part->end;
}

/* Maximum bytes of a part's live buffers, action by action. */
static uint64_t taken_by(const struct rw_planning *g, const struct rw_tape_part *part)
{
    const struct rw_schedule *const s = &g->schedule;
    const rw_tape *const t = g->problem.t;
    uint32_t *const holder = malloc((s->n_buffers + 1) * sizeof *holder);
    uint64_t most = 0;
    for (uint32_t a = 0; a < s->n_actions; a++) {
        uint64_t live = 0;
        rw_find_holders(s, a, holder);
        for (uint32_t i = 0; i < s->n_buffers; i++) {
            if (!rw_buffer_is_placed(s, i) || !rw_buffer_lives(&s->buffers[i], a)) continue;
            const uint32_t v = s->buffers[holder[i]].value;
            const uint32_t n = v == RW_NONE_ID ? s->actions[a].node : rw_tape_value(t, v)->producer;
            if (n != RW_NONE_ID && is_of_part(t, part, n)) live += rw_buffer_room(&g->problem, &s->buffers[i]);
        }
        if (live > most) most = live;
    }
    free(holder);
    return most;
}

static struct rw_memory_cost memory; /* of the tapes; 0: nominal costs */

struct answer {
    rw_status status;
    uint64_t taken, all, least;
    double seconds;
};

static void check_uses(const struct rw_planning *g, int tape)
{
    for (size_t i = 0; i < g->parts.n; i++) {
        const struct rw_part_use *const use = &g->parts.use[i];
        cr_expect_eq(use->bytes, taken_by(g, &g->problem.t->parts[use->part]), "tape %d, part %zu", tape, i);
        cr_expect_leq(use->bytes, use->budget);
    }
}

/* part: index of the part with the budget. */
static struct answer plan_parts(uint64_t seed, const char *whole, const char *const *spec, size_t part)
{
    struct fixture b = fixture_open(3, 1);
    struct rw_planning g;
    struct answer a = { 0 };
    rw_plan *plan;
    if (memory.picoseconds) {
        *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
        rw_costs_of(b.ctx)->memory = memory;
    }
    cr_assert_eq(ckpt_set_policy(b.t, whole), RW_OK);
    const uint32_t loss = tape_in_parts(&b, seed, spec)->id;
    const struct rw_request request = rw_step_request(b.t, &loss, 1);
    a.status = rw_planning_open(&g, b.t, &request);
    a.least = g.least;
    if (a.status) {
        cr_expect_eq(a.status, RW_ERR_BUDGET, "%s", rw_error_message(b.ctx));
        cr_expect(strstr(rw_error_message(b.ctx), "part_budgets.c"), "%s", rw_error_message(b.ctx));
    } else {
        cr_assert_eq(rw_planning_place(&g, &plan), RW_OK);
        rw_plan_release(plan);
        check_uses(&g, (int)seed);
        const struct rw_part_use *const use = &g.parts.use[g.parts.n > 1 ? part : 0];
        a.taken = use->bytes;
        a.all = use->all;
        a.seconds = g.cost.seconds;
        rw_planning_close(&g);
    }
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
    return a;
}

static struct answer plan_with(uint64_t seed, const char *whole, size_t part, uint64_t bytes, const char *others)
{
    char text[32];
    const char *spec[PARTS] = { others, others };
    snprintf(text, sizeof text, "budget:%lluB", (unsigned long long)bytes);
    spec[part] = text;
    return plan_parts(seed, whole, spec, part);
}

struct seen {
    size_t dropped, with_others, faster; /* budgets that are slower or faster than all kept, tapes whose others drop */
};

/* Budgets of one part from its minimum to all it can take; the others have that policy. */
static void check_monotone(uint64_t seed, const char *whole, const char *other, struct seen *seen)
{
    const size_t part = seed % PARTS;
    const char *rest[PARTS] = { other, other };
    rest[part] = "budget:100%";
    const struct answer all = plan_parts(seed, whole, rest, part);
    if (all.status) return; /* the others do not fit */
    seen->with_others += strcmp(other, "budget:100%") != 0;
    const uint64_t least = plan_with(seed, whole, part, 1, other).least;
    if (!least) return; /* nothing of it is ever in the arena */
    cr_assert_eq(plan_with(seed, whole, part, least - 1, other).status, RW_ERR_BUDGET);
    struct answer before = { .seconds = 1e30 };
    for (uint64_t k = 0; k <= 8; k++) {
        const uint64_t bytes = least + (all.all - least) * k / 8;
        const struct answer a = plan_with(seed, whole, part, bytes, other);
        cr_assert_eq(a.status, RW_OK, "tape %d", (int)seed);
        cr_expect_leq(a.taken, bytes, "tape %d", (int)seed);
        cr_expect_geq(a.taken, before.taken, "tape %d: less took more", (int)seed);
        cr_expect_leq(a.seconds, before.seconds, "tape %d: more was slower", (int)seed);
        seen->dropped += a.seconds > all.seconds;
        seen->faster += a.seconds < all.seconds;
        before = a;
    }
    cr_expect_eq(before.seconds, all.seconds, "tape %d", (int)seed);
}

static const char *const wholes[] = { "none", "full", "ops:made" };

Test(part_budgets, are_bounds_and_monotone_whatever_the_others_have)
{
    static const char *const others[] = { "budget:100%", "budget:85%", "budget:70%" };
    struct seen seen = { 0 };
    for (uint64_t seed = 1; seed <= 24; seed++) check_monotone(seed, wholes[seed % 3], others[seed / 3 % 3], &seen);
    cr_expect_gt(seen.dropped, 30, "%zu", seen.dropped);
    cr_expect_gt(seen.with_others, 5, "%zu", seen.with_others);
    cr_expect_eq(seen.faster, 0, "%zu", seen.faster);
}

/* With a price of memory replays may be faster than misses. Then this holds for one part with a budget. */
Test(part_budgets, are_bounds_and_monotone_whatever_memory_costs)
{
    struct seen seen = { 0 };
    for (uint64_t seed = 1; seed <= 24; seed++) {
        memory = (struct rw_memory_cost){ seed % 4 * 8 * SYNTH_UNIT, 1000000000ull << seed % 3 };
        check_monotone(seed, wholes[seed % 3], "none", &seen);
    }
    cr_expect_gt(seen.dropped, 30, "%zu", seen.dropped);
}

/* A value that is copied in has a later buffer than the one that reuses its memory. */
Test(part_budgets, count_values_copied_in)
{
    struct fixture b = fixture_open(3, 1);
    struct rw_planning g;
    rw_plan *plan;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64, 64));
    rw_tensor *x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(64, 64));
    for (int part = 0; part < PARTS; part++) {
        cr_assert_eq(ckpt_policy_begin(b.t, "budget:90%"), RW_OK);
        for (int i = 0; i < 4; i++) {
            rw_tensor *const inner = rw_linear(b.t, x, w, RW_NONE);
            x = rw_gelu(b.t, inner);
            ckpt_offload(b.t, inner); /* gelu's gradient reuses its memory */
        }
        cr_assert_eq(ckpt_policy_end(b.t), RW_OK);
    }
    const uint32_t loss = rw_mean(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false)->id;
    const struct rw_request request = rw_step_request(b.t, &loss, 1);
    cr_assert_eq(rw_planning_open(&g, b.t, &request), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_planning_place(&g, &plan), RW_OK);
    rw_plan_release(plan);
    cr_expect_eq(g.parts.n, PARTS);
    cr_expect_gt(g.schedule.n_slots, 0);
    check_uses(&g, 0);
    rw_planning_close(&g);
    fixture_close(&b);
}

/* The minimum of a part with all others kept also suffices when the others have their minimum. */
Test(part_budgets, do_not_depend_on_each_other)
{
    size_t tried = 0;
    for (uint64_t seed = 570; seed <= 630; seed++) { /* 611: they would, by dropping what replays of others read */
        const char *const whole = wholes[seed / 2 % 3];
        char text[PARTS][32];
        const char *spec[PARTS];
        bool some = true;
        for (size_t part = 0; part < PARTS; part++) {
            const uint64_t least = plan_with(seed, whole, part, 1, "budget:100%").least;
            some &= least > 0;
            snprintf(text[part], sizeof text[part], "budget:%lluB", (unsigned long long)least);
            spec[part] = text[part];
        }
        if (!some) continue;
        tried++;
        cr_expect_eq(plan_parts(seed, whole, spec, 0).status, RW_OK, "tape %d", (int)seed);
    }
    cr_expect_gt(tried, 40, "%zu", tried);
}

/* A chain in a part; memory beyond the caches has a price, so a step that replays may be faster than `none`. */
static rw_tensor *chain_in_part(struct fixture *b, const char *spec)
{
    rw_tape_reset(b->t);
    rw_tensor *x = rw_param_find(b->ctx, "x");
    if (!x) x = rw_param(b->ctx, "x", RW_F32, RW_SHAPE(2 * SYNTH_UNIT / 4));
    cr_assert_eq(ckpt_policy_begin(b->t, spec), RW_OK);
    for (int i = 0; i < 24; i++) x = synth_apply(b->t, &x, 1, (struct synth){ .units = 64, .us = 2, .reads = 4 });
    cr_assert_eq(ckpt_policy_end(b->t), RW_OK);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

Test(part_budgets, a_larger_one_is_not_slower_where_memory_has_a_price)
{
    struct fixture b = fixture_open(3, 1);
    rw_prediction p, before = { .ms = 1e30 };
    *rw_costs_place(b.ctx) = calloc(1, sizeof *rw_costs_of(b.ctx));
    /* a third of the chain, 500 us */
    rw_costs_of(b.ctx)->memory = (struct rw_memory_cost){ 8 * 64 * SYNTH_UNIT, 500000000 };
    for (int percent = 55; percent <= 100; percent += 5) {
        char spec[32];
        snprintf(spec, sizeof spec, "budget:%d%%", percent);
        cr_assert_eq(rw_tape_plan(b.t, chain_in_part(&b, spec), NULL, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_leq(p.ms, before.ms, "%s: %g ms, %g with less", spec, p.ms, before.ms);
        cr_expect_geq(p.peak_bytes, before.peak_bytes, "%s", spec);
        before = p;
    }
    cr_assert_eq(rw_tape_plan(b.t, chain_in_part(&b, "none"), NULL, &p), RW_OK);
    cr_expect_gt(p.ms, 1.2 * before.ms, "the fastest step replays: %g ms, none %g", before.ms, p.ms);
    free(rw_costs_of(b.ctx));
    *rw_costs_place(b.ctx) = NULL;
    fixture_close(&b);
}

/* Half of the part's values are computed from a large value before it that nothing else reads again. */
static rw_tensor *part_after_large_value(struct fixture *b, const char *spec)
{
    rw_tape_reset(b->t);
    rw_tensor *x = rw_param_find(b->ctx, "x"), *const data = rw_input(b->t, RW_F32, RW_SHAPE(256), NULL, 0);
    if (!x) x = rw_param(b->ctx, "x", RW_F32, RW_SHAPE(2 * SYNTH_UNIT / 4));
    rw_tensor *const large = synth_apply(b->t, &data, 1, (struct synth){ .units = 1024, .us = 10 }), *sum = NULL;
    cr_assert_eq(ckpt_policy_begin(b->t, spec), RW_OK);
    for (int i = 0; i < 16; i++) {
        rw_tensor *const in[2] = { x, i % 2 ? large : data };
        const struct synth of_wide = { .units = 32, .us = i % 2 ? 5 : 10, .reads = 4 };
        rw_tensor *const wide = synth_apply(b->t, in, 2, of_wide);
        rw_tensor *const narrow = synth_apply(b->t, &wide, 1, (struct synth){ .units = 2, .us = 10 });
        rw_tensor *const both[2] = { sum, narrow };
        sum = sum ? synth_apply(b->t, both, 2, (struct synth){ .units = 2, .us = 1 }) : narrow;
    }
    cr_assert_eq(ckpt_policy_end(b->t), RW_OK);
    sum = synth_apply(b->t, &sum, 1, (struct synth){ .units = 1024, .us = 10 }); /* it needs the memory of `large` */
    return rw_sum(b->t, sum, RW_ALL_AXES, false);
}

/* Such a value costs memory that does not count as the part's, so it is read again only if the budget needs it. */
Test(part_budgets, replays_that_keep_values_of_others_come_last)
{
    struct fixture b = fixture_open(3, 1);
    rw_prediction all, p;
    cr_assert_eq(rw_tape_plan(b.t, part_after_large_value(&b, "budget:100%"), NULL, &all), RW_OK);
    for (int percent = 95; percent >= 60; percent -= 5) {
        char spec[32];
        snprintf(spec, sizeof spec, "budget:%d%%", percent);
        cr_assert_eq(rw_tape_plan(b.t, part_after_large_value(&b, spec), NULL, &p), RW_OK);
        cr_expect_leq(p.peak_bytes, all.peak_bytes, "%s: %zu, %zu with all", spec, p.peak_bytes, all.peak_bytes);
    }
    cr_expect_eq(rw_tape_plan(b.t, part_after_large_value(&b, "budget:25%"), NULL, &p), RW_OK, "if it must: %s",
                 rw_error_message(b.ctx));
    fixture_close(&b);
}

/* ---- observable results, and executions ---- */

enum { N = 1024, VALUE = N * sizeof(float), LAYERS = 12 };

static rw_tensor *layers(rw_tape *t, rw_tensor *x, int id)
{
    for (int i = 0; i < LAYERS; i++) x = counted_square(t, i % 3 ? x : rw_dropout(t, x, 0.1f), id + i);
    return x;
}

/* Two parts with the same layers, no region. */
static rw_tensor *two_parts(struct fixture *b, const char *first, const char *second)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_normal(p, 0, 1);
    cr_assert_eq(ckpt_policy_begin(b->t, first), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tensor *x = layers(b->t, p, 0);
    cr_assert_eq(ckpt_policy_end(b->t), RW_OK);
    cr_assert_eq(ckpt_policy_begin(b->t, second), RW_OK, "%s", rw_error_message(b->ctx));
    x = layers(b->t, x, LAYERS);
    cr_assert_eq(ckpt_policy_end(b->t), RW_OK);
    return rw_mean(b->t, x, RW_ALL_AXES, false);
}

static unsigned char *run(const char *first, const char *second, int *ret_first, int *ret_second, size_t *ret_bytes)
{
    struct fixture b = fixture_open(17, 2);
    counted_clear();
    rw_tensor *const loss = two_parts(&b, first, second);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    *ret_first = *ret_second = 0;
    for (int i = 0; i < LAYERS; i++) *ret_first += counted_runs[i], *ret_second += counted_runs[LAYERS + i];
    unsigned char *const gradients = all_gradients(b.ctx, ret_bytes);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
    return gradients;
}

Test(part_budgets, a_budget_for_one_part_and_none_for_another_are_the_bytes_of_none)
{
    int one, two;
    size_t n, bytes;
    unsigned char *const none = run("none", "none", &one, &two, &n);
    static const char *const specs[][2] = { { "budget:55%", "none" }, { "none", "budget:55%" },
                                            { "budget:55%", "budget:70%" } };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        unsigned char *const g = run(specs[i][0], specs[i][1], &one, &two, &bytes);
        cr_assert_eq(bytes, n);
        cr_expect_eq(first_difference(g, none, n), -1, "%s, %s", specs[i][0], specs[i][1]);
        cr_expect(i == 1 ? one == LAYERS : one > LAYERS, "%s, %s: %d", specs[i][0], specs[i][1], one);
        cr_expect(i == 0 ? two == LAYERS : two > LAYERS, "%s, %s: %d", specs[i][0], specs[i][1], two);
        free(g);
    }
    free(none);
}

/* A part in a region that is replayed, around regions with another policy: 40 and 41 are kept, 42 replayed. */
static rw_tensor *part_in_region(struct fixture *b, const char *spec)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_normal(p, 0, 1);
    ckpt_begin(b->t, "outer");
    rw_tensor *x = rw_tanh(b->t, p);
    cr_assert_eq(ckpt_policy_begin(b->t, spec), RW_OK);
    for (int i = 0; i < 2; i++) {
        ckpt_begin(b->t, "decided by the budget");
        x = layers(b->t, x, i * LAYERS);
        ckpt_end(b->t);
        ckpt_policy_begin(b->t, i ? "full" : "none");
        ckpt_begin(b->t, "decided inside");
        x = counted_square(b->t, counted_square(b->t, x, 40 + 2 * i), 41 + 2 * i);
        ckpt_end(b->t);
        ckpt_policy_end(b->t);
    }
    cr_assert_eq(ckpt_policy_end(b->t), RW_OK);
    ckpt_end(b->t);
    ckpt_policy_begin(b->t, "budget:1B"); /* it is empty */
    ckpt_policy_end(b->t);
    return rw_mean(b->t, x, RW_ALL_AXES, false);
}

Test(part_budgets, inside_of_what_is_replayed_and_around_other_parts)
{
    int percent = 100;
    for (; percent; percent -= 15) {
        struct fixture b = fixture_open(17, 2);
        char spec[32];
        int runs = 0;
        snprintf(spec, sizeof spec, "budget:%d%%", percent);
        cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
        rw_tensor *const loss = part_in_region(&b, spec);
        counted_clear();
        const rw_status status = rw_backward(b.t, loss);
        cr_assert(!status || status == RW_ERR_BUDGET, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        for (int i = 0; i < 2 * LAYERS; i++) runs += counted_runs[i];
        if (!status) {
            cr_expect(percent > 90 || runs > 2 * LAYERS, "%s", spec);
            cr_expect_eq(counted_runs[40], 1, "%s: %d", spec, counted_runs[40]);
            cr_expect_eq(counted_runs[41], 1, "%s: %d", spec, counted_runs[41]);
            cr_expect_eq(counted_runs[42], 2, "%s: %d", spec, counted_runs[42]);
            if (percent == 70) cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        }
        fixture_close(&b);
        if (status) break;
    }
    cr_expect(percent > 0 && percent < 60, "%d", percent);
}

/* ---- explanations ---- */

Test(part_budgets, are_explained)
{
    struct fixture b = fixture_open(17, 1);
    static char text[ROOM];
    rw_prediction p, none;
    rw_tensor *const loss = two_parts(&b, "budget:55%", "none");
    FILE *const f = tmpfile();
    cr_assert_not_null(f);
    cr_assert_eq(ckpt_explain(b.t, f), RW_OK, "%s", rw_error_message(b.ctx));
    rewind(f);
    text[fread(text, 1, ROOM - 1, f)] = '\0';
    fclose(f);
    unsigned long long taken = 0, allowed = 0, all = 0;
    const char *const line = strstr(text, "part of ");
    cr_assert_not_null(line, "%s", text);
    cr_expect_null(strstr(line + 1, "part of "), "one has a budget: %s", text);
    cr_assert_eq(sscanf(strstr(line, "takes"), "takes %llu bytes at most, %llu are allowed, %llu with all", &taken,
                        &allowed, &all), 3, "%s", line);
    cr_expect_eq(allowed, all * 55 / 100);
    cr_expect(taken && taken <= allowed, "%s", line);
    cr_expect(strstr(text, "the budget: bytes weighed against seconds"), "%s", text);
    cr_expect(strstr(text, "budget:SIZE of the whole tape is refused"), "%s", text);
    cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_OK);
    setenv("REWIND_POLICY", "none", 1);
    struct fixture c = fixture_open(17, 1);
    cr_assert_eq(rw_tape_plan(c.t, two_parts(&c, "budget:1B", "none"), NULL, &none), RW_OK, "REWIND_POLICY wins");
    unsetenv("REWIND_POLICY");
    cr_expect_lt(p.peak_bytes, none.peak_bytes);
    fixture_close(&c);
    fixture_close(&b);
}

#define REFUSED(b, status, call, words)                                                        \
    do {                                                                                       \
        cr_expect_eq((call), (status), "%s", rw_error_message((b).ctx));                       \
        cr_expect(strstr(rw_error_message((b).ctx), words), "%s", rw_error_message((b).ctx)); \
        rw_error_clear((b).ctx);                                                               \
    } while (0)

Test(part_budgets, that_cannot_be_are_refused_by_name)
{
    struct fixture b = fixture_open(17, 1);
    rw_prediction p = { 0 };
    rw_frontier_point point;
    size_t n = 1;
    REFUSED(b, RW_ERR_UNSUPPORTED, ckpt_policy_begin(b.t, "total:1GiB"), "got total:, which is for the whole tape");
    REFUSED(b, RW_ERR_UNSUPPORTED, ckpt_policy_begin(b.t, "budget:40%+offload"),
            "got +offload, which is for the whole tape");
    REFUSED(b, RW_ERR_POLICY, ckpt_policy_begin(b.t, "budget:0%"), "column 8");
    REFUSED(b, RW_ERR_POLICY, ckpt_policy_begin(b.t, "budget:40 %"), "column 10");
    cr_assert_eq(ckpt_policy_begin(b.t, "budget:50%"), RW_OK);
    REFUSED(b, RW_ERR_UNSUPPORTED, ckpt_policy_begin(b.t, "budget:10%"),
            "expected no budget inside the part begun at ");
    cr_assert_eq(ckpt_policy_begin(b.t, "none"), RW_OK);
    REFUSED(b, RW_ERR_UNSUPPORTED, ckpt_policy_begin(b.t, "budget:10%"),
            "expected no budget inside the part begun at ");
    cr_assert_eq(ckpt_policy_end(b.t), RW_OK);
    cr_assert_eq(ckpt_policy_end(b.t), RW_OK);
    REFUSED(b, RW_ERR_REGION, ckpt_policy_end(b.t), "expected an open policy, got none");
    counted_clear();
    rw_tensor *const loss = two_parts(&b, "none", "budget:1KiB");
    REFUSED(b, RW_ERR_BUDGET, rw_backward(b.t, loss), "\"budget:1KiB\", column 8");
    cr_expect_eq(counted_runs[0], 0, "nothing ran");
    REFUSED(b, RW_ERR_BUDGET, rw_tape_plan(b.t, loss, NULL, &p), "budget:1KiB");
    cr_expect_gt(p.least_bytes, VALUE);
    cr_assert_eq(ckpt_set_policy(b.t, "budget:50%"), RW_OK);
    REFUSED(b, RW_ERR_UNSUPPORTED, rw_backward(b.t, loss), "has a budget of its own");
    REFUSED(b, RW_ERR_UNSUPPORTED, rw_tape_frontier(b.t, loss, &point, &n), "has a budget of its own");
    fixture_close(&b);
}

Test(part_budgets, give_everything_back_when_an_allocation_fails)
{
    struct fixture b = fixture_open(3, 1);
    const uint32_t loss = two_parts(&b, "budget:60%", "budget:80%")->id;
    const struct rw_request request = rw_step_request(b.t, &loss, 1);
    rw_plan *first = NULL;
    cr_assert_eq(rw_plan_build(b.t, &request, &first), RW_OK, "%s", rw_error_message(b.ctx));
    rw_plan_release(first);
    rw_status status = RW_ERR_MEMORY;
    for (uint64_t at = 1; status; at += 1 + at / 16) {
        rw_plan *plan = NULL;
        const int64_t live = rw_alloc_live();
        rw_alloc_fail_at(at);
        status = rw_plan_build(b.t, &request, &plan);
        rw_alloc_fail_at(0);
        if (!status) rw_plan_release(plan);
        cr_assert(status == RW_OK || status == RW_ERR_MEMORY);
        if (status) cr_assert_eq(rw_alloc_live(), live, "allocation %llu", (unsigned long long)at);
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}
