/*
 * Random programs under random choices: the choice of `full` is replaced by a random tree of segments over the tape and
 * random valid fates; or, every third time, by a point of the planner's frontier. Everything observable must have the
 * bytes of a run that keeps everything. Each choice costs the same when it is simulated twice, without an allocation
 * the second time. The oracle finds every plan sound and its cost as predicted. No choice, nor any candidate of the
 * planner, is faster than the lower bound for its bytes.
 *
 *   REWIND_CHOICES     number of programs (300)
 *   REWIND_FUZZ_SEED   the first seed (1)
 *   REWIND_FUZZ_REPORT 1: prints what was covered
 */
#include "remat/plan_cost_oracle.h"
#include "support/support.h"
#include "whole/fuzz/generate.h"
#include "whole/fuzz/judge.h"
#include "whole/fuzz/shrink.h"

#include "base/alloc.h"
#include "plan/assemble.h"
#include "remat/policy/policy_to_choice.h"
#include "remat/planner/frontier.h"
#include "remat/planner/candidate_gen.h"
#include "remat/schedule/simulate.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* The linker redirects the library's calls of rw_policy_choose() and rw_frontier_init() to the first function of each
   pair. */
rw_status __wrap_rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p);
rw_status __real_rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p);
rw_status __wrap_rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy,
                                  struct rw_choice *ret_choice);
rw_status __real_rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy,
                                  struct rw_choice *ret_choice);

/* Shared with the processes that run the programs. */
static struct covered {
    uint64_t seed;
    uint64_t choices, segments, deepest, replaying, replays, above_once, deferred, moves, planned, points, bounds;
} *covered;

/* In a process of its own a test fails by a crash. */
#define MUST(condition)                                                        \
    do {                                                                       \
        if (condition) break;                                                  \
        fprintf(stderr, "%s:%d: not %s\n", __FILE__, __LINE__, #condition);    \
        abort();                                                               \
    } while (0)

struct dice {
    uint64_t state;
};

static int64_t below(struct dice *d, int64_t n)
{
    uint64_t x = d->state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (int64_t)((x ^ x >> 31) % (uint64_t)n);
}

static bool chance(struct dice *d, int64_t percent)
{
    return below(d, 100) < percent;
}

/* Makes some intervals of [from, to) segments inside of `parent`, recursively. */
static void grow(struct dice *d, struct rw_choice *c, uint32_t parent, uint32_t from, uint32_t to)
{
    if (c->segment[parent].depth >= 6) return;
    for (uint32_t at = from; at < to && chance(d, 85);) {
        const uint32_t first = at + (uint32_t)below(d, 1 + (to - at) / 2);
        const uint32_t end = first + 1 + (uint32_t)below(d, to - first);
        const uint32_t s = rw_choice_add_segment(c, parent);
        MUST(s != RW_NONE_ID);
        for (uint32_t n = first; n < end; n++) c->segment_of[n] = s;
        grow(d, c, s, first, end);
        at = end;
    }
}

static void choose_segments(struct dice *d, const struct rw_problem *p, struct rw_choice *c)
{
    const rw_tape *const t = p->t;
    const int64_t strays = chance(d, 30) ? 10 : 0; /* nodes anywhere else */
    grow(d, c, 0, 0, (uint32_t)p->mark.nodes);
    rw_choice_close(c);
    for (uint32_t n = 0; n < t->n_nodes; n++) {
        const struct rw_node *const node = &t->nodes[n];
        if (chance(d, strays)) c->segment_of[n] = (uint32_t)below(d, (int64_t)c->n_segments);
        if (node->adjoint && node->of != RW_NONE_ID) c->segment_of[n] = c->segment_of[node->of];
    }
}

static uint32_t deepest(const struct rw_choice *c)
{
    uint32_t depth = 0;
    for (uint32_t s = 0; s < c->n_segments; s++)
        if (c->segment[s].depth > depth) depth = c->segment[s].depth;
    return depth;
}

/* Random valid fates: values are dropped, at a random level or at their home. */
static void choose_fates(struct dice *d, const struct rw_problem *p, struct rw_choice *c)
{
    const int64_t drops = below(d, 5) * 25, at_home = below(d, 3) * 50, levels = deepest(c) + 2;
    for (uint32_t v = 0; v < p->mark.values; v++) {
        if (!rw_problem_makes(p, v) || !chance(d, drops)) continue;
        const uint32_t producer = rw_tape_value(p->t, v)->producer;
        const uint32_t level = chance(d, at_home) ? c->segment[c->segment_of[producer]].depth
                                                  : (uint32_t)below(d, levels);
        const struct rw_fate kept = c->fate[v];
        c->fate[v] = (struct rw_fate){ .level = level, .what = level ? RW_KEEP : RW_REPLAY, .why = kept.why };
        if (level && chance(d, 30)) c->fate[v].what = RW_KEEP_FIRST;
        if (!level && chance(d, 50)) c->fate[v].what = RW_MOVE;
        const struct rw_node *const node = &p->t->nodes[producer];
        const bool once = p->t->ctx->ops[node->op]->flags & (RW_OP_STATEFUL | RW_OP_NONDETERMINISTIC);
        if (once || node->adjoint || p->wanted[v]) c->fate[v] = kept;
    }
}

static bool same_cost(const struct rw_cost_of_schedule *a, const struct rw_cost_of_schedule *b)
{
    return a->peak == b->peak && a->peak_action == b->peak_action && a->kept == b->kept && a->replayed == b->replayed &&
           a->workspace == b->workspace && a->n_replays == b->n_replays && a->seconds == b->seconds;
}

/* No choice is below the bound for its bytes; those that offload values are not below the bound with offload. */
static void check_bound(const struct rw_problem *p, const struct rw_cost_of_schedule *cost)
{
    struct rw_candidates c;
    struct rw_bound *b;
    MUST(rw_candidates_init(&c, p) == RW_OK);
    MUST(rw_propose_none(&c) == RW_OK);
    MUST(rw_bound_create(&b, &c.graph, &c.sims.room->schedule) == RW_OK);
    if (!cost->moved) MUST(rw_bound_seconds(b, cost->peak) <= cost->seconds * (1 + 1e-9));
    MUST(rw_bound_seconds_moved(b, cost->peak) <= cost->seconds * (1 + 1e-9));
    MUST(rw_bound_seconds_moved(b, cost->peak) <= rw_bound_seconds(b, cost->peak) * (1 + 1e-9));
    covered->bounds++;
    rw_bound_destroy(&b);
    rw_candidates_finish(&c);
}

/* Simulates twice, with another simulation in between. */
static void check_simulation(const struct rw_problem *p, const struct rw_choice *c)
{
    struct rw_simulation sim = { 0 };
    struct rw_choice none;
    struct rw_cost_of_schedule first, between, again;
    MUST(rw_choice_init(&none, p) == RW_OK);
    rw_choice_close(&none);
    MUST(rw_simulate(p, c, &sim, &first) == RW_OK);
    MUST(rw_simulate(p, &none, &sim, &between) == RW_OK);
    const uint64_t allocations = rw_alloc_count();
    MUST(rw_simulate(p, c, &sim, &again) == RW_OK);
    MUST(rw_alloc_count() == allocations); /* memory of an earlier simulation suffices */
    MUST(same_cost(&first, &again));
    MUST(rw_schedule_is_valid(p, c, &sim.schedule));
    MUST(between.n_replays == 0);
    covered->replaying += first.n_replays > 0;
    covered->replays += first.n_replays;
    covered->above_once += first.n_replays > sim.schedule.n_forward;
    for (size_t i = sim.schedule.n_forward; i < sim.schedule.n_actions; i++) {
        const struct rw_action *const a = &sim.schedule.actions[i];
        covered->deferred += a->kind == RW_ACTION_FORWARD && p->deferrable[a->node];
    }
    check_bound(p, &first);
    rw_simulation_finish(&sim);
    rw_choice_finish(&none);
}

/* Offloads some of the kept values. Not executed: the schedule must satisfy its equations. */
static void check_moves(struct dice *d, const struct rw_problem *p, struct rw_choice *c)
{
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    struct rw_fate *const fates = malloc((p->t->n_values + 1) * sizeof *fates);
    MUST(fates);
    memcpy(fates, c->fate, p->t->n_values * sizeof *fates);
    for (uint32_t v = 0; v < p->mark.values; v++)
        if (rw_problem_makes(p, v) && !rw_fate_drops(&c->fate[v]) && chance(d, 50)) c->fate[v].what = RW_MOVE;
    MUST(rw_choice_is_valid(c, p));
    MUST(rw_simulate(p, c, &sim, &cost) == RW_OK);
    MUST(rw_schedule_is_valid(p, c, &sim.schedule));
    covered->moves += sim.schedule.n_slots;
    check_bound(p, &cost);
    memcpy(c->fate, fates, p->t->n_values * sizeof *fates);
    free(fates);
    rw_simulation_finish(&sim);
}

/* A frontier is being computed, possibly by ckpt_explain(): `full` is one of its candidates, and is not replaced. The
   context's threads simulate the candidates, so a check in one of them would count the allocations of the others. */
static bool planning;

rw_status __wrap_rw_frontier_init(struct rw_frontier *f, const struct rw_problem *p)
{
    const bool before = planning;
    planning = true;
    const rw_status status = __real_rw_frontier_init(f, p);
    planning = before;
    return status;
}

/* The choice of some point: it costs what the point states, and no point is below the bound for its bytes. */
static void choose_point(struct dice *d, const struct rw_problem *p, struct rw_choice *ret_choice)
{
    struct rw_frontier f;
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost;
    double bound;
    planning = true;
    MUST(rw_frontier_init(&f, p) == RW_OK);
    MUST(f.n_points > 0);
    for (size_t i = 1; i < f.n_points; i++) MUST(f.point[i - 1].seconds <= f.point[i].seconds);
    const size_t point = (size_t)below(d, (int64_t)f.n_points);
    MUST(rw_frontier_choose(&f, point, ret_choice) == RW_OK);
    MUST(rw_simulate(p, ret_choice, &sim, &cost) == RW_OK);
    MUST(cost.peak == f.point[point].peak && cost.seconds == f.point[point].seconds);
    for (size_t i = 0; i < f.candidates.n; i++) {
        MUST(rw_frontier_bound(&f, f.candidates.candidate[i].peak, &bound) == RW_OK);
        MUST(bound <= f.candidates.candidate[i].seconds * (1 + 1e-9));
        covered->bounds++;
    }
    covered->planned++;
    covered->points += f.n_points;
    rw_simulation_finish(&sim);
    rw_frontier_finish(&f);
    planning = false;
}

/* Replaces the choice of policy full by a random valid one, whose simulation is checked. */
rw_status __wrap_rw_policy_choose(const struct rw_problem *p, const struct rw_policy *policy,
                                  struct rw_choice *ret_choice)
{
    if (!covered || planning || policy->kind != RW_POLICY_FULL) return __real_rw_policy_choose(p, policy, ret_choice);
    const uint64_t of_problem = p->mark.nodes * 31 + p->targets.n * 7 + p->t->n_held;
    struct dice d = { covered->seed * 0xd1342543de82ef95u + of_problem };
    struct rw_choice c;
    if (chance(&d, 33)) {
        choose_point(&d, p, ret_choice);
        return RW_OK;
    }
    const rw_status status = rw_choice_init(&c, p);
    if (status) return status;
    choose_segments(&d, p, &c);
    choose_fates(&d, p, &c);
    MUST(rw_choice_is_valid(&c, p));
    check_simulation(p, &c);
    check_moves(&d, p, &c);
    covered->choices++;
    covered->segments += c.n_segments - 1;
    covered->deepest = deepest(&c) > covered->deepest ? deepest(&c) : covered->deepest;
    *ret_choice = c;
    return RW_OK;
}

/* Every plan, of random choices and of those that keep everything, must cost what was predicted. */
rw_status __wrap_rw_plan_assemble(const struct rw_problem *p, const struct rw_schedule *s, const uint64_t *offset,
                                  rw_plan **ret_plan);
rw_status __real_rw_plan_assemble(const struct rw_problem *p, const struct rw_schedule *s, const uint64_t *offset,
                                  rw_plan **ret_plan);

rw_status __wrap_rw_plan_assemble(const struct rw_problem *p, const struct rw_schedule *s, const uint64_t *offset,
                                  rw_plan **ret_plan)
{
    const rw_status status = __real_rw_plan_assemble(p, s, offset, ret_plan);
    if (status || !covered) return status;
    const struct oracle o = oracle_of(p->t, *ret_plan);
    struct rw_sweep_scratch sweep = { 0 };
    struct rw_cost_of_schedule cost;
    MUST(!o.fault);
    MUST(rw_schedule_cost(p, s, &sweep, &cost) == RW_OK);
    MUST(o.peak == cost.peak && o.kept == cost.kept && o.n_replays == cost.n_replays);
    rw_sweep_scratch_finish(&sweep);
    return status;
}

static uint64_t from_environment(const char *name, uint64_t fallback)
{
    const char *const text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : fallback;
}

Test(random_choices, gradients_are_those_of_a_run_that_keeps_everything, .timeout = 36000)
{
    const uint64_t count = from_environment("REWIND_CHOICES", 300), first = from_environment("REWIND_FUZZ_SEED", 1);
    struct fz_program *const p = malloc(sizeof *p);
    covered = mmap(NULL, sizeof *covered, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(p && covered != MAP_FAILED);
    *covered = (struct covered){ 0 };
    for (uint64_t seed = first; seed < first + count; seed++) {
        fz_generate(p, seed, 17, fz_host());
        for (int i = 0; i < FZ_STEPS; i++) strcpy(p->policy[i], "full");
        covered->seed = seed;
        const struct fz_verdict v = fz_judge(p, NULL);
        if (v.failure)
            cr_assert_fail("seed %llu: %s: %s\n%s", (unsigned long long)seed, fz_failure_names[v.failure], v.text,
                           fz_print(p, &v));
    }
    if (from_environment("REWIND_FUZZ_REPORT", 0))
        fprintf(stderr, "%llu choices, %llu segments, up to %llu deep; %llu replay, %llu nodes, %llu more than once; "
                "%llu nodes deferred\n",
                (unsigned long long)covered->choices, (unsigned long long)covered->segments,
                (unsigned long long)covered->deepest, (unsigned long long)covered->replaying,
                (unsigned long long)covered->replays, (unsigned long long)covered->above_once,
                (unsigned long long)covered->deferred);
    if (count >= 100) {
        cr_expect_geq(covered->choices, count);
        cr_expect_geq(covered->planned * 4, count);
        cr_expect_geq(covered->points, 4 * covered->planned);
        cr_expect_geq(covered->replaying * 100, covered->choices * 50);
        cr_expect_geq(covered->segments, 3 * covered->choices);
        cr_expect_geq(covered->above_once * 100, covered->choices);
        cr_expect_geq(covered->deferred * 20, covered->choices);
        cr_expect_geq(covered->deepest, 5);
        cr_expect_geq(covered->moves, covered->choices);
        cr_expect_geq(covered->bounds, 20 * count);
    }
    munmap(covered, sizeof *covered);
    covered = NULL;
    free(p);
}
