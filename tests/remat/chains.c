/*
 * The planner on chains: compared with Revolve's closed form for equal steps, and with an exact solver for unequal
 * ones.
 */
#include "remat/planner_fixture.h"
#include "remat/random_tape.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>

/* ---- equal steps ---- */

/* Minimum number of repeated steps to reverse l equal steps with memory for s of their inputs, the first included:
   Griewank and Walther's recurrence. */
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
    rw_tensor *x = rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT));
    for (int i = 0; i < steps; i++) x = synth_apply(s->b.t, &x, 1, (struct synth){ .units = 4, .us = 50, .reads = 1 });
    open_problem(s, rw_sum(s->b.t, x, RW_ALL_AXES, false));
}

/* The inputs of steps 2 to l may be dropped: the first is a parameter. At the peak, two gradients are live besides the
   kept inputs. */
Test(chains, are_what_revolve_says)
{
    for (int steps = 2; steps <= 12; steps++) {
        struct step s;
        struct rw_frontier f;
        open_chain(&s, steps);
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        for (size_t room = 1; room < (size_t)steps; room++) {
            const uint64_t bytes = rw_frontier_none_peak(&f) - ((size_t)steps - 1 - room) * 4 * SYNTH_UNIT;
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

/* ---- unequal steps ---- */

/*
 * Step i of l computes x[i] from x[i - 1] and is differentiated with x[i - 1] and the gradient of x[i], of x[i]'s size;
 * x[0] and its gradient are not in the arena. With m units, minimum seconds of replay of
 *
 *     F(s, t, m)   backward of s + 1 .. t with x[s] and the gradient of x[t] live, x[s] not counted:
 *                  none if t = s + 1; else over j the replay of s + 1 .. j, F(j, t, m - x[j]), F(s, j, m)
 *     G(s, m)      forward and backward of s + 1 .. l, x[s] live and not counted: forward to the end and F(s, l, m),
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

/* Whether steps s + 1 .. j can run with so many bytes live besides their inputs and outputs. */
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
    rw_tensor *x = rw_param(s->b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT / 4));
    for (int i = 1; i <= c->l; i++) {
        const struct synth a = { .units = 1 + below(&d, 8), .us = (double)(1 + below(&d, 50)), .reads = 1 };
        c->units[i] = (int)a.units;
        x = synth_apply(s->b.t, &x, 1, a);
    }
    open_problem(s, rw_sum(s->b.t, x, RW_ALL_AXES, false));
    for (uint32_t n = 0, i = 1; n < s->problem.mark.nodes && i <= (uint32_t)c->l; n++, i++)
        c->seconds[i] = rw_problem_seconds(&s->problem, n);
}

/* No plan is slower, for any number of units for which the solver has an answer. The solver keeps a value until its
   last use; ours may keep one only for a first visit, so a few are faster. */
Test(chains, of_unequal_steps_are_what_an_exact_solver_says, .timeout = 600)
{
    static struct chain c;
    size_t budgets = 0, faster = 0;
    for (uint64_t seed = 1; seed <= tapes() / 8; seed++) {
        struct step s;
        struct rw_frontier f;
        open_unequal(&s, &c, seed);
        solve(&c);
        cr_assert_eq(rw_frontier_init(&f, &s.problem), RW_OK);
        const double none = rw_frontier_none_seconds(&f);
        for (int m = 1; (uint64_t)m * SYNTH_UNIT <= rw_frontier_none_peak(&f); m++) {
            const double best = none + c.whole[0][m], planned = planned_within(&f, (uint64_t)m * SYNTH_UNIT);
            cr_expect(planned == best || planned <= best * (1 + 1e-9),
                      "chain %d of %d, %d units: %g seconds of replay planned, best %g", (int)seed, c.l, m,
                      planned - none, best - none);
            budgets += best < INFINITY;
            faster += best < INFINITY && planned < best * (1 - 1e-9);
        }
        rw_frontier_finish(&f);
        close_step(&s);
    }
    cr_expect_leq(faster * 10, budgets, "%zu of %zu", faster, budgets);
    fprintf(stderr, "unequal chains: %zu budgets, %zu faster than the solver's\n", budgets, faster);
}

/* ---- views ---- */

/* Number of replays of a chain whose nodes are one segment and dropped, with a view in the middle of it. */
static size_t replays_around_a_view(bool ends_at_views)
{
    struct step s = { .b = fixture_open(1, 1) };
    struct rw_replayable g;
    struct rw_compact_choice r;
    struct rw_choice c;
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    rw_tensor *x = rw_param(s.b.ctx, "p", RW_F32, RW_SHAPE(SYNTH_UNIT));
    for (int i = 0; i < 4; i++) {
        if (i == 2) x = rw_slice(s.b.t, x, 0, 0, SYNTH_UNIT / 2);
        x = synth_apply(s.b.t, &x, 1, (struct synth){ .units = 4, .us = 50, .reads = 1 });
    }
    open_problem(&s, rw_sum(s.b.t, x, RW_ALL_AXES, false));
    cr_assert_eq(rw_replayable_init(&g, &s.problem), RW_OK);
    cr_assert_eq(rw_compact_choice_init(&r, &g), RW_OK);
    cr_assert_eq(rw_compact_choice_add_stretch(&r, (struct rw_stretch){ 0, 4, RW_NONE_ID }), 0);
    for (uint32_t v = 0; v < 3; v++) r.drop[v] = RW_DROP_AT;
    r.ends_at_views = ends_at_views;
    cr_assert_eq(rw_compact_choice_choose(&r, &g, &c), RW_OK);
    cr_assert_eq(rw_simulate(&s.problem, &c, &sim, &cost), RW_OK);
    rw_simulation_finish(&sim);
    rw_choice_finish(&c);
    rw_compact_choice_finish(&r);
    rw_replayable_finish(&g);
    close_step(&s);
    return cost.n_replays;
}

/* The adjoint node of the view is in the segment, so the visit continues, and each node is replayed once. */
Test(chains, a_visit_does_not_end_at_a_view)
{
    cr_expect_eq(replays_around_a_view(false), 3);
    cr_expect_eq(replays_around_a_view(true), 4, "the first node once more");
}
