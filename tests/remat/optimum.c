/*
 * How good the planner's answers are: against the best of all choices on small random tapes, against Revolve's closed
 * form on chains of equal steps and an exact solver's answer on others, and against the lower bound, which must never
 * be above the best.
 *
 * Prints the mean and the largest gap.
 *
 *   REWIND_OPTIMUM  how many random tapes of up to five nodes, and of those whose values may move (1000; under
 *                   AddressSanitizer 100); of longer ones a twentieth
 */
#include "figure.h"
#include "remat/random_tape.h"
#include "support/support.h"

#include "models/model.h"
#include "plan/build.h"
#include "remat/frontier.h"
#include "remat/move.h"

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
};

static void open_problem(struct step *s, rw_tensor *loss)
{
    cr_assert_not_null(loss, "%s", rw_error_message(s->b.ctx));
    s->loss = loss->id;
    s->request = (struct rw_request){
        .kind = RW_PLAN_STEP, .values = &s->loss, .n_values = 1, .policy = &s->b.t->policy
    };
    cr_assert_eq(rw_problem_open(&s->problem, s->b.t, &s->request), RW_OK, "%s", rw_error_message(s->b.ctx));
}

static void open_random(struct step *s, int nodes, uint64_t seed)
{
    s->b = fixture_open(1, 1);
    open_problem(s, random_tape(s->b.t, rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT / 4)), nodes, seed));
}

static void close_step(struct step *s)
{
    rw_problem_close(&s->problem);
    fixture_close(&s->b);
}

/* ---- every choice ---- */

/* The fastest for each number of units that a peak may have. */
#define UNITS 512
struct best {
    uint64_t unit; /* bytes */
    double seconds[UNITS];
    size_t tried;
};

static void begin(struct best *best, uint64_t unit)
{
    *best = (struct best){ .unit = unit };
    for (size_t i = 0; i < UNITS; i++) best->seconds[i] = INFINITY;
}

/* What is enough for a plan is what more is enough for, too. */
static void end(struct best *best)
{
    for (size_t i = 1; i < UNITS; i++)
        if (best->seconds[i - 1] < best->seconds[i]) best->seconds[i] = best->seconds[i - 1];
}

struct search {
    const struct rw_replayable *g;
    struct rw_recipe r;
    struct rw_simulation sim;
    struct best *best;
};

static void try_recipe(struct search *s)
{
    struct rw_choice choice;
    struct rw_cost_of_schedule c;
    cr_assert_eq(rw_recipe_choose(&s->r, s->g, &choice), RW_OK);
    cr_assert_eq(rw_simulate(s->g->p, &choice, &s->sim, &c), RW_OK);
    rw_choice_finish(&choice);
    const size_t units = (size_t)((c.peak + s->best->unit - 1) / s->best->unit);
    cr_assert_lt(units, UNITS);
    if (c.seconds < s->best->seconds[units]) s->best->seconds[units] = c.seconds;
    s->best->tried++;
}

static void try_fates(struct search *s, uint32_t v, int fates)
{
    if (v == s->g->n_values) {
        try_recipe(s);
        return;
    }
    for (int drop = 0; drop < (rw_value_may_drop(s->g, v) ? fates : 1); drop++) {
        s->r.drop[v] = (uint8_t)drop;
        try_fates(s, v + 1, fates);
    }
    s->r.drop[v] = 0;
}

/* All ways to cut forward into segments side by side, with all fates; of longer tapes each node a segment. */
static void try_all(const struct rw_replayable *g, struct best *best)
{
    struct search s = { .g = g, .best = best };
    begin(best, MADE_UNIT);
    const uint32_t n = (uint32_t)g->n_nodes, all = 1u << (n - 1);
    for (uint32_t cuts = 0; cuts < all; cuts++) {
        if (n > 6 && cuts && cuts != all - 1) continue;
        cr_assert_eq(rw_recipe_init(&s.r, g), RW_OK);
        for (uint32_t i = 0, first = 0; i < n; i++) {
            if (i + 1 < n && !(cuts >> i & 1)) continue;
            rw_recipe_add_stretch(&s.r, (struct rw_stretch){ first, i + 1, RW_NONE_ID });
            first = i + 1;
        }
        try_fates(&s, 0, cuts ? 3 : 2);
        rw_recipe_finish(&s.r);
    }
    rw_simulation_finish(&s.sim);
    end(best);
}

static double planned_within(const struct rw_frontier *f, uint64_t bytes)
{
    for (size_t i = 0; i < f->n_points; i++)
        if (f->point[i].peak <= bytes) return f->point[i].seconds;
    return INFINITY;
}

struct gap {
    double sum, most;
    uint64_t seed; /* of the most */
    size_t n, missed, bounds;
    double bound_sum;
};

static void compare(struct rw_frontier *f, const struct best *best, struct gap *gap, uint64_t seed)
{
    for (size_t units = 1; units * MADE_UNIT <= rw_frontier_none_peak(f) && units < UNITS; units++) {
        const double least = best->seconds[units], planned = planned_within(f, units * MADE_UNIT);
        double bound = 0;
        cr_assert_eq(rw_frontier_bound(f, units * MADE_UNIT, &bound), RW_OK);
        cr_assert(bound <= fmin(planned, least) * (1 + 1e-6), "tape %llu, %zu units: bound %g, best %g, planned %g",
                  (unsigned long long)seed, units, bound, least, planned);
        if (least == INFINITY) continue;
        if (planned == INFINITY) {
            gap->missed++;
            continue;
        }
        gap->sum += planned / least;
        if (planned / least > gap->most) gap->most = planned / least, gap->seed = seed;
        gap->bound_sum += least / bound;
        gap->n++;
    }
}

static void say(const char *what, const struct gap *gap)
{
    fprintf(stderr, "%s: %zu budgets, planned over best: mean %.4f, most %.4f (tape %llu); %zu missed", what, gap->n,
            gap->sum / (double)gap->n, gap->most, (unsigned long long)gap->seed, gap->missed);
    if (gap->bound_sum > 0) fprintf(stderr, "; best over bound: mean %.4f", gap->bound_sum / (double)gap->n);
    fprintf(stderr, "\n");
}

/* Lines for scripts/figures.sh, with the bounds that the tests hold. */
static void print_figures(const char *what, const struct gap *gap)
{
    char text[128];
    if (!getenv("REWIND_FIGURES")) return;
    snprintf(text, sizeof text, "planned over the best of all choices, mean, tapes of %s", what);
    figure(text, gap->sum / (double)gap->n, "times", 1.01);
    snprintf(text, sizeof text, "planned over the best of all choices, most, tapes of %s", what);
    figure(text, gap->most, "times", 1.10);
}

static size_t tapes(void)
{
    const char *const text = getenv("REWIND_OPTIMUM");
#ifdef __SANITIZE_ADDRESS__
    const size_t all = 40;
#else
    const size_t all = 1000;
#endif
    return text && *text ? strtoull(text, NULL, 10) : all;
}

/* On tapes of so many nodes; memory: what it costs. */
static void check_gap(int least_nodes, int most_nodes, size_t n, uint64_t first, struct rw_memory_cost memory)
{
    static struct best best;
    struct gap gap = { .most = 0 };
    for (uint64_t seed = first; seed < first + n; seed++) {
        struct step s;
        struct rw_frontier f;
        open_random(&s, least_nodes + (int)(seed % (uint64_t)(most_nodes - least_nodes + 1)), seed);
        s.problem.memory = memory;
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        try_all(&f.candidates.graph, &best);
        compare(&f, &best, &gap, seed);
        rw_frontier_finish(&f);
        close_step(&s);
    }
    char what[64];
    snprintf(what, sizeof what, "%d to %d nodes%s", least_nodes, most_nodes, memory.picoseconds ? ", far memory" : "");
    say(what, &gap);
    if (n > 1 && !memory.picoseconds) print_figures(what, &gap);
    cr_expect_leq(gap.sum, 1.01 * (double)gap.n);
    /* candidates are made without regard to what is near: where all is far, a tape in a hundred loses a little more */
    cr_expect_leq(gap.most, memory.picoseconds ? 1.15 : 1.10);
    cr_expect_leq(gap.missed * 50, gap.n);
}

Test(optimum, is_nearly_reached_on_small_tapes_and_never_below_the_bound, .timeout = 3600)
{
    check_gap(3, 5, tapes(), 1, (struct rw_memory_cost){ 0 });
    check_gap(3, 5, 1, 830, (struct rw_memory_cost){ 0 }); /* takes two values at once, where every node is a segment */
}

Test(optimum, is_nearly_reached_on_tapes_of_up_to_ten_nodes, .timeout = 3600)
{
    check_gap(6, 10, tapes() / 20, 1000, (struct rw_memory_cost){ 0 });
}

/* A unit that is far, both ways, takes so many microseconds, where nodes take up to 50: as much as what they do with
   it. */
Test(optimum, counts_what_memory_costs_that_is_far, .timeout = 3600)
{
    for (uint64_t us = 1; us <= 16; us *= 4)
        for (uint64_t units = 0; units <= 20; units += 10)
            check_gap(3, 5, tapes() / 50, 1 + 100 * us,
                      (struct rw_memory_cost){ units * MADE_UNIT, us * 1000000 * ((1 << 20) / MADE_UNIT) });
}

/* Products with a parameter each, as large as what they make, between ops that have none. */
static rw_tensor *layers_of_parameters(struct fixture *b, int layers)
{
    rw_tensor *x = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT / 4));
    for (int i = 0; i < layers; i++) {
        char name[16];
        snprintf(name, sizeof name, "w%d", i);
        x = rw_exp(b->t, rw_mul(b->t, x, rw_param(b->ctx, name, RW_F32, RW_SHAPE(MADE_UNIT / 4))));
    }
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

/* What parameters take of the caches is not there for values; the bound knows it, and no more than it. */
Test(optimum, counts_parameters_among_what_is_near)
{
    static struct best best;
    struct gap gap = { .most = 0 };
    for (int layers = 1; layers <= 3; layers++)
        for (uint64_t units = 0; units <= 12; units++) {
            struct step s = { .b = fixture_open(1, 1) };
            struct rw_frontier f;
            open_problem(&s, layers_of_parameters(&s.b, layers));
            s.problem.memory = (struct rw_memory_cost){ units * MADE_UNIT, 1000000u * ((1 << 20) / MADE_UNIT) };
            cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
            try_all(&f.candidates.graph, &best);
            compare(&f, &best, &gap, (uint64_t)layers * 100 + units);
            rw_frontier_finish(&f);
            close_step(&s);
        }
    say("layers with parameters, far memory", &gap);
    cr_expect_leq(gap.most, 1.10);
}

/* ---- every choice of what is kept, replayed and moved ---- */

/* Times the size of other tapes, so that a unit is what may be moved at all. */
enum { LARGER = RW_LEAST_MOVED / MADE_UNIT };

/* Will backward read it, or what it replays? */
static bool is_read_late(const struct search *s, uint32_t v)
{
    const struct rw_replayable *const g = s->g;
    if (g->late[v]) return true;
    for (uint32_t i = 0; i < g->n_nodes; i++)
        for (uint32_t k = g->input_at[i]; k < g->input_at[i + 1]; k++)
            for (uint32_t w = g->output_at[i]; g->input[k] == v && w < g->output_at[i + 1]; w++)
                if (s->r.drop[w] == RW_DROP_ONCE) return true;
    return false;
}

/* Of the first n values, the last one first: what reads a value has been decided before it. */
static void try_moves(struct search *s, uint32_t n)
{
    static const uint8_t drops[] = { RW_DROP_NOT, RW_DROP_MOVED, RW_DROP_ONCE };
    if (!n) {
        try_recipe(s);
        return;
    }
    const uint32_t v = n - 1;
    for (int i = 0; i < (rw_value_may_drop(s->g, v) && is_read_late(s, v) ? 3 : 1); i++) {
        s->r.drop[v] = drops[i];
        try_moves(s, v);
    }
    s->r.drop[v] = RW_DROP_NOT;
}

static void compare_moves(const struct rw_frontier *f, const struct best *best, struct gap *gap, uint64_t seed)
{
    for (size_t units = 1; units < UNITS && units * best->unit <= rw_frontier_none_peak(f); units++) {
        const double least = best->seconds[units], planned = planned_within(f, units * best->unit);
        if (least == INFINITY) continue;
        if (planned == INFINITY) {
            gap->missed++;
            continue;
        }
        gap->sum += planned / least;
        if (planned / least > gap->most) gap->most = planned / least, gap->seed = seed;
        gap->n++;
    }
}

/* The tape of a seed, at one of three rates of the store, from one that hides nearly all to one that hides little. */
static void compare_with_all_moves(uint64_t seed, struct gap *gap)
{
    static const double rates[] = { 64e9, 16e9, 4e9 };
    static struct best best;
    struct step s = { .b = fixture_open(1, 1) };
    struct rw_frontier f;
    const double rate = rates[seed % 3];
    const rw_offload o = { .out_bytes_per_s = rate, .in_bytes_per_s = rate };
    cr_assert_eq(rw_context_set_offload(s.b.ctx, &o), RW_OK);
    rw_tensor *const p = rw_param(s.b.ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT / 4));
    open_problem(&s, random_tape_of(s.b.t, p, 3 + (int)(seed % 6), seed, LARGER));
    cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
    cr_assert_eq(rw_frontier_add_moved(&f), RW_OK);
    struct search all = { .g = &f.candidates.graph, .best = &best };
    begin(&best, RW_LEAST_MOVED);
    cr_assert_eq(rw_recipe_init(&all.r, all.g), RW_OK);
    try_moves(&all, (uint32_t)all.g->n_values);
    end(&best);
    compare_moves(&f, &best, gap, seed);
    rw_recipe_finish(&all.r);
    rw_simulation_finish(&all.sim);
    rw_frontier_finish(&f);
    close_step(&s);
}

Test(optimum, is_nearly_reached_where_each_value_may_move, .timeout = 3600)
{
    struct gap gap = { .most = 0 };
    for (uint64_t seed = 1; seed <= tapes(); seed++) compare_with_all_moves(seed, &gap);
    say("3 to 8 nodes, values may move", &gap);
    print_figures("3 to 8 nodes, values may move", &gap);
    cr_expect_leq(gap.sum, 1.01 * (double)gap.n);
    cr_expect_leq(gap.most, 1.10, "tape %llu: %.4f", (unsigned long long)gap.seed, gap.most);
    cr_expect_leq(gap.missed * 1000, gap.n);
}

/* ---- chains ---- */

/* Least repeated steps to reverse l equal steps with room for s of their inputs, the first included: Griewank and
   Walther's recurrence. */
static size_t revolve(size_t l, size_t s)
{
    static size_t t[65][65];
    for (size_t i = 1; i <= l; i++)
        for (size_t k = 1; k <= s; k++) {
            t[i][k] = i == 1 ? 0 : SIZE_MAX;
            if (i > 1 && k == 1) t[i][k] = i * (i - 1) / 2;
            for (size_t j = 1; i > 1 && k > 1 && j < i; j++) {
                const size_t steps = j + t[i - j][k - 1] + t[j][k];
                if (steps < t[i][k]) t[i][k] = steps;
            }
        }
    return t[l][s];
}

/* Equal steps, of which backward reads the input. */
static void open_chain(struct step *s, int steps)
{
    s->b = fixture_open(1, 1);
    rw_tensor *x = rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT));
    for (int i = 0; i < steps; i++) x = made_apply(s->b.t, &x, 1, (struct made){ .units = 4, .us = 50, .reads = 1 });
    open_problem(s, rw_sum(s->b.t, x, RW_ALL_AXES, false));
}

/* Of what may be dropped there are the inputs of steps 2 to l: the parameter is there. What is alive besides the kept
   inputs where the peak is reached: two gradients. */
Test(optimum, on_chains_is_what_revolve_says)
{
    for (int steps = 2; steps <= 12; steps++) {
        struct step s;
        struct rw_frontier f;
        open_chain(&s, steps);
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        for (size_t room = 1; room < (size_t)steps; room++) {
            const uint64_t bytes = rw_frontier_none_peak(&f) - ((size_t)steps - 1 - room) * 4 * MADE_UNIT;
            const double planned = planned_within(&f, bytes);
            const double replays = (planned - rw_frontier_none_seconds(&f)) / 51e-6;
            const size_t best = revolve((size_t)steps, room) - ((size_t)steps - 1);
            cr_expect_float_eq(replays, (double)best, 1e-3, "%d steps, room for %zu: %.2f replays, Revolve %zu", steps,
                               room, replays, best);
        }
        rw_frontier_finish(&f);
        close_step(&s);
    }
}

/* ---- chains of unequal steps ---- */

/*
 * Step i of l makes x[i] of x[i - 1] and is differentiated with x[i - 1] and the gradient of x[i], of x[i]'s size;
 * x[0] and its gradient are not in the arena. With m units, least seconds of replay of
 *
 *     F(s, t, m)   backward of s + 1 .. t where x[s] and the gradient of x[t] are there, x[s] not counted:
 *                  none where t = s + 1; else over j the replay of s + 1 .. j, F(j, t, m - x[j]), F(s, j, m)
 *     G(s, m)      forward and backward of s + 1 .. l, x[s] there and not counted: forward to the end and F(s, l, m),
 *                  or over j forward to j, G(j, m - x[j]), F(s, j, m)
 *
 * Source: Beaumont et al., "Optimal checkpointing for heterogeneous chains", ACM TOMS 50 (2024), the persistent case.
 */
enum { STEPS = 12, CHAIN_UNITS = STEPS * 8 + 17 };

struct chain {
    int l, units[STEPS + 1];
    double seconds[STEPS + 1];
    double inside[STEPS][STEPS + 1][CHAIN_UNITS], whole[STEPS + 1][CHAIN_UNITS]; /* F, G */
};

/* May steps s + 1 .. j run with so much beside what they read and make? */
static bool passes(const struct chain *c, int s, int j, int beside, int m)
{
    for (int k = s + 1; k <= j; k++)
        if (beside + (k - 1 > s ? c->units[k - 1] : 0) + c->units[k] > m) return false;
    return true;
}

static double at_least(const double *row, int m)
{
    return m < 0 ? INFINITY : row[m];
}

static double solve_inside(const struct chain *c, int s, int t, int m)
{
    if (t == s + 1) return c->units[t] + c->units[s] <= m ? 0 : INFINITY;
    double best = INFINITY, replay = 0;
    for (int j = s + 1; j < t && passes(c, s, j, c->units[t], m); j++) {
        replay += c->seconds[j];
        best = fmin(best, replay + at_least(c->inside[j][t], m - c->units[j]) + c->inside[s][j][m]);
    }
    return best;
}

static double solve_whole(const struct chain *c, int s, int m)
{
    double best = passes(c, s, c->l, 0, m) ? c->inside[s][c->l][m] : INFINITY;
    for (int j = s + 1; j < c->l && passes(c, s, j, 0, m); j++)
        best = fmin(best, at_least(c->whole[j], m - c->units[j]) + c->inside[s][j][m]);
    return best;
}

static void solve(struct chain *c)
{
    for (int length = 1; length <= c->l; length++)
        for (int s = 0; s + length <= c->l; s++)
            for (int m = 0; m < CHAIN_UNITS; m++) c->inside[s][s + length][m] = solve_inside(c, s, s + length, m);
    for (int s = c->l; s-- > 0;)
        for (int m = 0; m < CHAIN_UNITS; m++) c->whole[s][m] = solve_whole(c, s, m);
}

static void open_unequal(struct step *s, struct chain *c, uint64_t seed)
{
    struct dice d = { seed };
    s->b = fixture_open(1, 1);
    *c = (struct chain){ .l = 3 + (int)(seed % (STEPS - 2)) };
    rw_tensor *x = rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT / 4));
    for (int i = 1; i <= c->l; i++) {
        const struct made a = { .units = 1 + below(&d, 8), .us = (double)(1 + below(&d, 50)), .reads = 1 };
        c->units[i] = (int)a.units;
        x = made_apply(s->b.t, &x, 1, a);
    }
    open_problem(s, rw_sum(s->b.t, x, RW_ALL_AXES, false));
    for (uint32_t n = 0, i = 1; n < s->problem.mark.nodes && i <= (uint32_t)c->l; n++, i++)
        c->seconds[i] = rw_problem_seconds(&s->problem, n);
}

/* To the replay: no plan is faster, and none slower, at any number of units that the solver has an answer for. */
Test(optimum, on_unequal_chains_is_what_an_exact_solver_says, .timeout = 600)
{
    static struct chain c;
    size_t budgets = 0;
    for (uint64_t seed = 1; seed <= tapes() / 8; seed++) {
        struct step s;
        struct rw_frontier f;
        open_unequal(&s, &c, seed);
        solve(&c);
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        const double none = rw_frontier_none_seconds(&f);
        for (int m = 1; (uint64_t)m * MADE_UNIT <= rw_frontier_none_peak(&f); m++) {
            const double best = none + c.whole[0][m], planned = planned_within(&f, (uint64_t)m * MADE_UNIT);
            cr_expect(planned == best || fabs(planned - best) <= 1e-9 * best,
                      "chain %d of %d, %d units: %g seconds of replay planned, best %g", (int)seed, c.l, m,
                      planned - none, best - none);
            budgets += best < INFINITY;
        }
        rw_frontier_finish(&f);
        close_step(&s);
    }
    fprintf(stderr, "unequal chains: %zu budgets, each the solver's\n", budgets);
}

/* From 75 per cent of none's peak down to so many: what is planned is at most so many times the bound. */
static void check_gap_to_bound(struct step *s, rw_tensor *loss, unsigned least_percent, double most, const char *name)
{
    struct rw_frontier f;
    open_problem(s, loss);
    cr_assert_eq(rw_frontier_init(&f, &s->problem), RW_OK);
    for (unsigned percent = 75; percent >= least_percent; percent -= 5) {
        const uint64_t bytes = rw_frontier_none_peak(&f) * percent / 100;
        const double planned = planned_within(&f, bytes);
        double bound;
        cr_assert_eq(rw_frontier_bound(&f, bytes, &bound), RW_OK);
        cr_expect_leq(bound, planned);
        cr_expect_leq(planned, most * bound, "%s, %u %%: %.4f", name, percent, planned / bound);
    }
    rw_frontier_finish(&f);
}

static rw_tensor *record_model(struct step *s, enum model_kind kind, int layers)
{
    static struct model m;
    static const int32_t tokens[2 * 64];
    struct model_config config = { 0 };
    cr_assert(model_preset(&config, "tiny"));
    config.kind = kind;
    config.layers = layers;
    config.width = 128;
    config.hidden = 0;
    config.max_seq = 64;
    config.dropout = kind == MODEL_GPT ? 0.1f : 0;
    cr_assert_eq(model_create(&m, s->b.ctx, &config), RW_OK);
    return model_loss(&m, s->b.t, 2, 64, tokens, tokens);
}

/* The figure that is promised of real models, printed by bench/planning for larger ones. */
static void check_model(enum model_kind kind)
{
    struct step s = { .b = fixture_open(1, 1) };
    check_gap_to_bound(&s, record_model(&s, kind, 12), 25, 1.03, model_name(kind));
    close_step(&s);
}

Test(optimum, is_three_percent_away_at_most_for_gpt_and_llama)
{
    check_model(MODEL_GPT);
    check_model(MODEL_LLAMA);
}

/* All points, and of each every part of what it keeps moved. */
static size_t try_all_parts(struct rw_frontier *f)
{
    const size_t before = f->candidates.n_simulations;
    for (size_t i = 0; i < f->n_points; i++)
        for (uint8_t part = 1; part <= RW_MOVED_PARTS; part++)
            cr_assert_eq(rw_candidates_add_moved(&f->candidates, f->point[i].candidate, part), RW_OK);
    return f->candidates.n_simulations - before;
}

static double best_within(const struct rw_candidates *c, uint64_t bytes)
{
    double best = INFINITY;
    for (size_t i = 0; i < c->n; i++)
        if (c->candidate[i].peak <= bytes) best = fmin(best, c->candidate[i].seconds);
    return best;
}

/* Of what could be moved a part is tried: what is not tried would have gained little. */
static void check_moved(double rate, int layers)
{
    struct step s = { .b = fixture_open(1, 1) };
    struct rw_frontier moved, all;
    const rw_offload o = { .out_bytes_per_s = rate, .in_bytes_per_s = rate };
    cr_assert_eq(rw_context_set_offload(s.b.ctx, &o), RW_OK);
    open_problem(&s, record_model(&s, MODEL_GPT, layers));
    cr_assert_eq(rw_frontier_init(&moved, &s.problem), RW_OK);
    cr_assert_eq(rw_frontier_init(&all, &s.problem), RW_OK);
    const size_t before = moved.candidates.n_simulations;
    cr_assert_eq(rw_frontier_add_moved(&moved), RW_OK);
    const size_t tried = moved.candidates.n_simulations - before, of = try_all_parts(&all);
    cr_expect_lt(3 * tried, of, "%zu of %zu", tried, of);
    double worst = 1;
    for (unsigned percent = 95; percent > 2; percent -= percent > 20 ? 5 : 1) {
        const uint64_t bytes = rw_frontier_none_peak(&all) * percent / 100;
        const double best = best_within(&all.candidates, bytes);
        if (best < INFINITY) worst = fmax(worst, planned_within(&moved, bytes) / best);
    }
    if (getenv("REWIND_OPTIMUM"))
        fprintf(stderr, "%d layers at %g bytes/s: %zu of %zu tried, off by %.4f\n", layers, rate, tried, of, worst);
    cr_expect_leq(worst, 1.03, "%d layers at %g bytes/s: %.4f", layers, rate, worst);
    rw_frontier_finish(&moved);
    rw_frontier_finish(&all);
    close_step(&s);
}

/* On tapes that are too long for every choice to be tried: the best that moving the first parts of what is kept gives
   is reached, and now and then left far behind, as a value can be skipped. */
Test(optimum, of_what_is_kept_any_value_may_move_on_longer_tapes)
{
    size_t better = 0, n = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        struct step s = { .b = fixture_open(1, 1) };
        struct rw_frontier moved, parts;
        const rw_offload o = { .out_bytes_per_s = seed % 2 ? 16e9 : 4e9, .in_bytes_per_s = 16e9 };
        cr_assert_eq(rw_context_set_offload(s.b.ctx, &o), RW_OK);
        rw_tensor *const p = rw_param(s.b.ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT / 4));
        open_problem(&s, random_tape_of(s.b.t, p, 26 + (int)(3 * seed), seed, LARGER));
        cr_assert_eq(rw_frontier_init(&moved, &s.problem), RW_OK);
        cr_assert_eq(rw_frontier_init(&parts, &s.problem), RW_OK);
        cr_assert_eq(rw_frontier_add_moved(&moved), RW_OK);
        try_all_parts(&parts);
        for (unsigned percent = 95; percent > 10; percent -= 5, n++) {
            const uint64_t bytes = rw_frontier_none_peak(&parts) * percent / 100;
            const double best = best_within(&parts.candidates, bytes), planned = planned_within(&moved, bytes);
            cr_expect(planned <= best * 1.02, "tape %llu, %u %%: %g, by parts %g", (unsigned long long)seed, percent,
                      planned, best);
            better += planned * 1.01 < best;
        }
        rw_frontier_finish(&moved);
        rw_frontier_finish(&parts);
        close_step(&s);
    }
    fprintf(stderr, "26 to 62 nodes, values may move: at %zu of %zu budgets faster than by parts\n", better, n);
    cr_expect_gt(better * 50, n);
}

Test(optimum, is_nearly_reached_where_values_move)
{
    for (int layers = 12; layers <= 36; layers += 24) {
        check_moved(4e8, layers);
        check_moved(2e9, layers);
    }
}

/* Where weights are much and pictures small, what fills memory is what one product works with. */
static void check_images(enum model_kind kind)
{
    static struct model m;
    static const int32_t tokens[8 * 64];
    struct model_config config = { .kind = kind };
    struct step s = { .b = fixture_open(1, 1) };
    cr_assert(model_preset(&config, "small"));
    cr_assert_eq(model_declare(&m, s.b.ctx, &config), RW_OK);
    check_gap_to_bound(&s, model_loss(&m, s.b.t, 8, 64, tokens, tokens), 50, 1.02, model_name(kind));
    close_step(&s);
}

Test(optimum, is_two_percent_away_at_most_for_networks_for_images)
{
    check_images(MODEL_RESNET50);
    check_images(MODEL_DENSENET121);
}

Test(optimum, many_equal_layers_need_less_than_half_of_what_full_takes)
{
    struct fixture b = fixture_open(1, 1);
    struct step s = { .b = b };
    struct rw_frontier f;
    rw_tensor *x = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(MADE_UNIT));
    for (int i = 0; i < 96; i++) {
        ckpt_begin(b.t, "layer");
        for (int k = 0; k < 3; k++) x = made_apply(b.t, &x, 1, (struct made){ .units = 4, .us = 20, .reads = 1 });
        ckpt_end(b.t);
    }
    open_problem(&s, rw_sum(b.t, x, RW_ALL_AXES, false));
    cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
    uint64_t full = 0, least = UINT64_MAX;
    for (size_t i = 0; i < f.n_points; i++) {
        if (rw_frontier_policy(&f, i) && rw_frontier_policy(&f, i)->kind == RW_POLICY_FULL) full = f.point[i].peak;
        if (f.point[i].peak < least) least = f.point[i].peak;
    }
    const double at_half = planned_within(&f, full / 2), none = rw_frontier_none_seconds(&f);
    if (getenv("REWIND_OPTIMUM"))
        fprintf(stderr, "96 layers: full %llu, least %llu; at half of full %.3f of none's time\n",
                (unsigned long long)full, (unsigned long long)least, at_half / none);
    cr_expect_leq(least * 2, full);
    cr_expect_lt(at_half, 1.8 * none);
    rw_frontier_finish(&f);
    close_step(&s);
}

Test(optimum, the_same_tape_has_the_same_points)
{
    struct step s;
    struct rw_frontier f[2];
    open_random(&s, 9, 77);
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_frontier_init(&f[i], &s.problem), RW_OK);
    cr_assert_eq(f[0].n_points, f[1].n_points);
    for (size_t i = 0; i < f[0].n_points; i++) {
        cr_expect_eq(f[0].point[i].peak, f[1].point[i].peak);
        cr_expect_eq(f[0].point[i].seconds, f[1].point[i].seconds);
        cr_expect_eq(f[0].point[i].candidate, f[1].point[i].candidate);
    }
    for (int i = 0; i < 2; i++) rw_frontier_finish(&f[i]);
    close_step(&s);
}
