/*
 * Nested regions under `full`: the nodes that are replayed are those that the children need, in exact numbers, and the
 * work of planning is proportional to the schedule, whatever the depth.
 */
#include "support/support.h"
#include "support/work_counter.h"

#include "plan/build.h"
#include "remat/policy/policy_to_choice.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 4

struct pair {
    struct fixture b;
    rw_tensor *p, *q;
};

static struct pair open_pair(void)
{
    struct pair s = { .b = fixture_open(5, 1) };
    s.p = rw_param(s.b.ctx, "p", RW_F32, RW_SHAPE(WIDTH));
    s.q = rw_param(s.b.ctx, "q", RW_F32, RW_SHAPE(WIDTH));
    rw_init_uniform(s.p, -0.01, 0.01);
    rw_init_uniform(s.q, -0.5, 0.5);
    return s;
}

/* Begins with an add, which reads x only in a replay; adjoint nodes read tanh and exp. */
static rw_tensor *four_nodes(struct pair *s, rw_tensor *x)
{
    rw_tape *const t = s->b.t;
    rw_tensor *const a = rw_add(t, x, s->p);
    return rw_mul(t, rw_tanh(t, a), rw_exp(t, rw_neg(t, a)));
}
#define OWN 4  /* number of its nodes that a visit repeats: all except the product */
#define ALL 5

/* `levels` nested regions, each except the innermost with k of the next inside. */
static rw_tensor *tree(struct pair *s, rw_tensor *x, int levels, int k)
{
    ckpt_begin(s->b.t, "region");
    if (levels == 1) x = four_nodes(s, x);
    for (int i = 0; levels > 1 && i < k; i++) x = tree(s, x, levels - 1, k);
    ckpt_end(s->b.t);
    return x;
}

static rw_cost cost_of(struct pair *s, rw_tensor *y)
{
    rw_cost cost;
    rw_tensor *const loss = rw_sum(s->b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_tape_cost(s->b.t, loss, &cost), RW_OK, "%s", rw_error_message(s->b.ctx));
    return cost;
}

static size_t power(size_t k, int n)
{
    return n ? k * power(k, n - 1) : 1;
}

/*
 * Every child has one visit of its own. At each level above it, the nodes before the last child are replayed once more
 * to reach it.
 */
Test(nesting, children_are_replayed_once_for_themselves_and_once_a_level_for_the_last_of_them)
{
    struct pair s = open_pair();
    cr_assert_eq(ckpt_set_policy(s.b.t, "full"), RW_OK);
    for (int levels = 1; levels <= 4; levels++)
        for (int k = 2; power((size_t)k, levels) < 3000; k *= 2) {
            const size_t leaves = power((size_t)k, levels - 1), blocks = leaves / (size_t)k * (size_t)(k - 1);
            const rw_cost cost = cost_of(&s, tree(&s, s.q, levels, k));
            cr_expect_eq(cost.forward_nodes, ALL * leaves + 1);
            cr_expect_eq(cost.replayed_nodes, OWN * leaves + (size_t)(levels - 1) * ALL * blocks,
                         "%d levels of %d: %zu nodes are replayed", levels, k, cost.replayed_nodes);
            rw_tape_reset(s.b.t);
        }
    fixture_close(&s.b);
}

Test(nesting, regions_side_by_side_do_not_know_each_other)
{
    struct pair s = open_pair();
    cr_assert_eq(ckpt_set_policy(s.b.t, "full"), RW_OK);
    for (int n = 1; n <= 64; n *= 4) {
        rw_tensor *x = s.q;
        for (int i = 0; i < n; i++) x = tree(&s, x, 2, 8);
        const rw_cost cost = cost_of(&s, x);
        cr_expect_eq(cost.replayed_nodes, (size_t)n * (8 * OWN + 7 * ALL), "%d trees: %zu", n, cost.replayed_nodes);
        rw_tape_reset(s.b.t);
    }
    fixture_close(&s.b);
}

/* Nested regions: region i + 1 is inside region i, with four nodes before it, after it, or both. */
enum where { BEFORE = 1, AFTER = 2 };

static rw_tensor *nest(struct pair *s, int depth, int where)
{
    rw_tensor *x = s->q;
    for (int i = 0; i < depth; i++) {
        ckpt_begin(s->b.t, "region");
        if (where & BEFORE) x = four_nodes(s, x);
    }
    for (int i = 0; i < depth; i++) {
        if (where & AFTER) x = four_nodes(s, x);
        ckpt_end(s->b.t);
    }
    return x;
}

/* Each region computes a value that is read outside all of them. */
static rw_tensor *nest_read_outside(struct pair *s, int depth)
{
    rw_tape *const t = s->b.t;
    rw_tensor *x = s->q, **const out = malloc((size_t)depth * sizeof *out);
    for (int i = 0; i < depth; i++) {
        ckpt_begin(t, "region");
        x = rw_tanh(t, rw_add(t, x, s->p));
        out[i] = rw_exp(t, x);
    }
    for (int i = 0; i < depth; i++) ckpt_end(t);
    for (int i = 0; i < depth; i++) x = rw_add(t, x, rw_mul(t, out[i], out[i]));
    free(out);
    return x;
}

/* Values of inner regions that a region reads are recomputed by replaying all of these: once in the visit of each. */
Test(nesting, values_after_an_inner_region_repeat_it_once_per_level)
{
    struct pair s = open_pair();
    cr_assert_eq(ckpt_set_policy(s.b.t, "full"), RW_OK);
    for (size_t depth = 1; depth <= 64; depth *= 4) {
        const rw_cost before = cost_of(&s, nest(&s, (int)depth, BEFORE));
        cr_expect_eq(before.replayed_nodes, depth * ALL - 1);
        rw_tape_reset(s.b.t);
        const rw_cost after = cost_of(&s, nest(&s, (int)depth, AFTER));
        cr_expect_eq(after.replayed_nodes, depth * OWN + ALL * depth * (depth - 1) / 2, "%zu", after.replayed_nodes);
        rw_tape_reset(s.b.t);
    }
    fixture_close(&s.b);
}

/* Work of planning, and of explaining, nested regions. */
struct works {
    uint64_t plan, explain;
};

/* Plans and explains nested regions, and returns the work of both. */
static struct works works_of(struct pair *s, int depth, bool read_outside)
{
    FILE *const out = fopen("/dev/null", "w");
    cr_assert_not_null(out);
    rw_tensor *const y = read_outside ? nest_read_outside(s, depth) : nest(s, depth, BEFORE);
    rw_tensor *const loss = rw_sum(s->b.t, y, RW_ALL_AXES, false);
    const uint32_t value = loss->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &value, .n_values = 1,
                                        .policy = &s->b.t->policy };
    rw_plan *plan = NULL;
    const uint64_t begin = work_done();
    cr_assert_eq(rw_plan_build(s->b.t, &request, &plan), RW_OK, "%s", rw_error_message(s->b.ctx));
    const uint64_t planned = work_done();
    cr_assert_eq(ckpt_explain(s->b.t, out), RW_OK);
    const struct works works = { planned - begin, work_done() - planned };
    rw_plan_release(plan);
    rw_tape_reset(s->b.t);
    fclose(out);
    return works;
}

/* Eight times the depth: quadratic work would be 64 times as much; sorting everything gave 10 times. */
static void grows_with_the_depth(bool read_outside)
{
    struct pair s = open_pair();
    cr_assert_eq(ckpt_set_policy(s.b.t, "full"), RW_OK);
    const struct works small = works_of(&s, 1000, read_outside), large = works_of(&s, 8000, read_outside);
    cr_expect_gt(small.plan, 100000);
    cr_expect_gt(small.explain, 100000);
    cr_expect_lt(large.plan, 9 * small.plan, "planning: %llu and %llu", (unsigned long long)small.plan,
                 (unsigned long long)large.plan);
    cr_expect_lt(large.explain, 9 * small.explain, "explaining: %llu and %llu", (unsigned long long)small.explain,
                 (unsigned long long)large.explain);
    fixture_close(&s.b);
}

/* One timeout for all tests: with several, Criterion leaks memory for the shorter ones. */
Test(nesting, planning_a_deep_nest_works_in_proportion, .timeout = 300)
{
    grows_with_the_depth(false);
}

/* `full` repeats the nodes after inner regions once per level. Under a budget that is one candidate of many, and its
   schedule, quadratic in the depth, is abandoned before its end. */
Test(nesting, a_budget_of_a_deep_nest_works_in_proportion, .timeout = 300)
{
    struct pair s = open_pair();
    uint64_t work[2];
    for (int i = 0; i < 2; i++) {
        rw_prediction p;
        rw_tensor *const loss = rw_sum(s.b.t, nest(&s, i ? 1000 : 250, AFTER), RW_ALL_AXES, false);
        const uint64_t begin = work_done();
        cr_assert_eq(rw_tape_plan(s.b.t, loss, "budget:60%", &p), RW_OK, "%s", rw_error_message(s.b.ctx));
        work[i] = work_done() - begin;
        rw_tape_reset(s.b.t);
    }
    cr_expect_lt(work[1], 6 * work[0], "%llu and %llu", (unsigned long long)work[0], (unsigned long long)work[1]);
    fixture_close(&s.b);
}

Test(nesting, values_that_leave_a_deep_nest_cost_no_walk_each, .timeout = 300)
{
    grows_with_the_depth(true);
}

/* ---- which nested regions become segments ---- */

/* Number of segments that `full` makes of the tape, except the whole one. */
static size_t segments_of(struct pair *s, rw_tensor *y)
{
    struct rw_problem problem;
    struct rw_choice choice;
    const uint32_t loss = rw_sum(s->b.t, y, RW_ALL_AXES, false)->id;
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1,
                                        .policy = &s->b.t->policy };
    cr_assert_eq(rw_problem_open(&problem, s->b.t, &request), RW_OK, "%s", rw_error_message(s->b.ctx));
    cr_assert_eq(rw_policy_choose(&problem, &s->b.t->policy, &choice), RW_OK);
    const size_t n = choice.n_segments - 1;
    rw_choice_finish(&choice);
    rw_problem_close(&problem);
    rw_tape_reset(s->b.t);
    return n;
}

/* An inner region that drops as much as its inputs take: the product in exp's rule reads one value, of x's size. */
static rw_tensor *drops_as_much(struct pair *s, rw_tensor *x)
{
    ckpt_begin(s->b.t, "inner");
    rw_tensor *const y = rw_exp(s->b.t, x);
    ckpt_end(s->b.t);
    return y;
}

/* The same with a value that three nodes of its rules read: it, two products, their sum, for four values. */
static rw_tensor *drops_as_much_of_four(struct pair *s)
{
    rw_tape *const t = s->b.t;
    rw_tensor *x[4];
    for (int i = 0; i < 4; i++) x[i] = rw_add(t, s->q, s->p);
    ckpt_begin(t, "inner");
    rw_tensor *const y = rw_exp(t, rw_add(t, rw_add(t, x[0], x[1]), rw_add(t, x[2], x[3]))), *const z = rw_mul(t, y, y);
    ckpt_end(t);
    return z;
}

Test(nesting, a_region_that_drops_no_more_than_comes_in_is_dissolved)
{
    struct pair s = open_pair();
    cr_assert_eq(ckpt_set_policy(s.b.t, "full"), RW_OK);
    for (int of_four = 0; of_four < 2; of_four++) {
        ckpt_begin(s.b.t, "outer");
        rw_tensor *const z = of_four ? drops_as_much_of_four(&s) : drops_as_much(&s, rw_add(s.b.t, s.q, s.p));
        ckpt_end(s.b.t);
        const size_t n = segments_of(&s, z);
        cr_expect_eq(n, 1, "%zu: %s", n, of_four ? "a value that several nodes read counts once" : "a tie");
    }
    ckpt_begin(s.b.t, "outer");
    rw_tensor *x = rw_add(s.b.t, s.q, s.p);
    ckpt_begin(s.b.t, "inner");
    x = rw_tanh(s.b.t, rw_exp(s.b.t, x));
    ckpt_end(s.b.t);
    ckpt_end(s.b.t);
    cr_expect_eq(segments_of(&s, x), 2, "more than comes in");
    fixture_close(&s.b);
}

/* The middle region has one input, and drops one value; the other belongs to the region that was merged into it. */
Test(nesting, a_region_has_what_was_dissolved_into_it)
{
    struct pair s = open_pair();
    rw_tape *const t = s.b.t;
    cr_assert_eq(ckpt_set_policy(t, "full"), RW_OK);
    ckpt_begin(t, "outer");
    rw_tensor *const x = rw_add(t, s.q, s.p);
    ckpt_begin(t, "middle");
    rw_tensor *const y = drops_as_much(&s, rw_scale(t, x, 2));
    ckpt_end(t);
    ckpt_end(t);
    const size_t n = segments_of(&s, y);
    cr_expect_eq(n, 2, "%zu: the outer one and the middle one", n);
    fixture_close(&s.b);
}

Test(nesting, gradients_of_a_deep_nest_are_those_without_recompute, .timeout = 300)
{
    static const int depths[] = { 1, 2, 300, 5000, 70000 };
    for (int i = 0; i < test_steps(10, 8); i++) {
        unsigned char *bytes[2];
        size_t n = 0, replayed = 0;
        for (int policy = 0; policy < 2; policy++) {
            struct pair s = open_pair();
            cr_assert_eq(ckpt_set_policy(s.b.t, policy ? "full" : "none"), RW_OK);
            rw_tensor *const y = i % 2 ? nest_read_outside(&s, depths[i / 2]) : nest(&s, depths[i / 2], BEFORE);
            rw_tensor *const loss = rw_sum(s.b.t, y, RW_ALL_AXES, false);
            rw_cost cost;
            cr_assert_eq(rw_tape_cost(s.b.t, loss, &cost), RW_OK);
            cr_assert_eq(rw_backward(s.b.t, loss), RW_OK, "%s", rw_error_message(s.b.ctx));
            replayed = cost.replayed_nodes;
            bytes[policy] = all_gradients(s.b.ctx, &n);
            fixture_close(&s.b);
        }
        cr_expect_geq(replayed, (size_t)depths[i / 2]);
        cr_expect_eq(first_difference(bytes[0], bytes[1], n), -1, "depth %d", depths[i / 2]);
        free(bytes[0]);
        free(bytes[1]);
    }
}

/* Paths in messages: outermost first; what does not fit is omitted at that end. */
Test(nesting, a_path_keeps_its_inner_end)
{
    struct fixture b = fixture_open(1, 1);
    char text[64];
    static const char *const names[] = { "model", "block", "attention" };
    for (int i = 0; i < 3; i++) ckpt_begin(b.t, names[i]);
    static const struct {
        size_t size;
        const char *path;
    } cases[] = { { 64, "model/block/attention" }, { 22, "model/block/attention" }, { 21, ".../block/attention" },
                  { 20, ".../block/attention" },   { 19, ".../attention" },         { 14, ".../attention" },
                  { 13, "attention" },             { 10, "attention" },             { 5, "atte" },
                  { 1, "" } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(text, '#', sizeof text);
        rw_region_path(b.t, 2, text, cases[i].size);
        cr_expect_str_eq(text, cases[i].path, "%zu bytes: %s", cases[i].size, text);
        for (size_t k = cases[i].size; k < sizeof text; k++) cr_expect_eq(text[k], '#');
    }
    rw_region_path(b.t, 0, text, sizeof text);
    cr_expect_str_eq(text, "model");
    rw_region_path(b.t, RW_NONE_ID, text, sizeof text);
    cr_expect_str_eq(text, "");
    fixture_close(&b);
}
