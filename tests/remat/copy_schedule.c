/*
 * Offloaded values: which copies a choice requires, where they begin and are waited for, and the effect on the arena.
 * Nothing is executed here.
 */
#include "support/support.h"

#include "place/place.h"
#include "remat/policy/policy_to_choice.h"
#include "remat/schedule/inplace.h"
#include "remat/schedule/copy_schedule.h"
#include "remat/schedule/simulate.h"

#include <criterion/criterion.h>

#define BLOCKS 6

/* An open problem of a net with everything kept. */
struct scene {
    struct fixture b;
    struct net n;
    uint32_t loss;
    struct rw_policy keep_all;
    struct rw_request request;
    struct rw_problem problem;
    struct rw_choice choice;
};

static void scene_open(struct scene *s)
{
    *s = (struct scene){ .b = fixture_open(3, 2), .keep_all = { .spec = (char *)"none" } };
    net_init(&s->n, s->b.ctx, BLOCKS, 64, RW_F32, 1);
    s->loss = net_loss(&s->n, s->b.t, 37, 0)->id;
    s->request = (struct rw_request){ .kind = RW_PLAN_STEP, .values = &s->loss, .n_values = 1, .policy = &s->keep_all };
    cr_assert_eq(rw_problem_open(&s->problem, s->b.t, &s->request), RW_OK);
    cr_assert_eq(rw_policy_choose(&s->problem, &s->keep_all, &s->choice), RW_OK);
}

static void scene_close(struct scene *s)
{
    rw_choice_finish(&s->choice);
    rw_problem_close(&s->problem);
    fixture_close(&s->b);
}

/* Offloads every k-th value that may be offloaded. */
static size_t move_some(struct scene *s, size_t k)
{
    size_t n = 0, seen = 0;
    for (uint32_t v = 0; v < s->problem.mark.values; v++) {
        if (!rw_problem_makes(&s->problem, v) || s->problem.wanted[v] || seen++ % k) continue;
        s->choice.fate[v].what = RW_MOVE;
        n++;
    }
    cr_assert(rw_choice_is_valid(&s->choice, &s->problem));
    return n;
}

/* Checks the begins and waits of each value's copies in the list. */
static void check_trips(const struct scene *s, const struct rw_schedule *x)
{
    size_t out = 0, in = 0;
    for (uint32_t i = 0; i < x->n_actions; i++) {
        const struct rw_action *const a = &x->actions[i];
        for (uint32_t k = 0; a->lane == RW_LANE_COMPUTE && k < a->n_words; k++) {
            const struct rw_buffer *const b = &x->buffers[x->refs[a->word + k]];
            const bool moved = b->value != RW_NONE_ID && s->choice.fate[b->value].what == RW_MOVE &&
                               rw_problem_makes(&s->problem, b->value);
            cr_assert(b->first <= i && i <= b->last);
            if (moved && i >= x->n_forward) cr_assert_eq(x->actions[b->first].kind, RW_ACTION_IN);
        }
        out += a->kind == RW_ACTION_OUT;
        in += a->kind == RW_ACTION_IN;
        if (a->kind == RW_ACTION_OUT) cr_assert_lt(i, x->n_forward);
        if (a->kind == RW_ACTION_IN) cr_assert_geq(i, x->n_forward);
    }
    cr_assert_eq(out, in);
    cr_assert_eq(x->n_slots, out);
    uint32_t first = (uint32_t)x->n_forward; /* computed by backward */
    while (x->actions[first].lane != RW_LANE_COMPUTE) first++;
    size_t by_compute = 0;
    for (size_t i = 0; i < x->n_waits; i++) {
        const struct rw_wait w = x->waits[i];
        const struct rw_action *const move = &x->actions[w.on];
        const struct rw_buffer *const from = &x->buffers[x->refs[move->word]];
        if (x->actions[w.action].lane != RW_LANE_COMPUTE) continue;
        by_compute++;
        if (move->kind == RW_ACTION_OUT) cr_assert_leq(w.action, first, "out when forward ends");
        if (move->kind == RW_ACTION_OUT) cr_assert_leq(from->last, w.action, "read until compute waits");
        else cr_assert_eq(x->buffers[x->refs[move->word + 1]].first, w.on);
    }
    cr_assert_eq(by_compute, out + in);
}

/* A value is copied in only after it was copied out: by the time a copy in begins, its lane or compute has waited for
   the copy out. */
static void check_order(const struct rw_schedule *x)
{
    for (uint32_t i = 0; i < x->n_actions; i++) {
        if (x->actions[i].kind != RW_ACTION_IN) continue;
        const uint32_t slot = x->refs[x->actions[i].word];
        bool waited = false;
        for (size_t k = 0; k < x->n_waits; k++) {
            const struct rw_action *const move = &x->actions[x->waits[k].on];
            const bool of_this = move->kind == RW_ACTION_OUT && x->refs[move->word + 1] == slot;
            const bool compute = x->actions[x->waits[k].action].lane == RW_LANE_COMPUTE;
            waited |= of_this && (compute ? x->waits[k].action < i : x->waits[k].action == i);
        }
        cr_assert(waited, "move %u", i);
    }
}

Test(copy_schedule, copies_stand_around_what_they_read_and_bring)
{
    struct scene s;
    scene_open(&s);
    for (size_t k = 1; k <= 3; k++) {
        struct rw_simulation sim = { 0 };
        struct rw_cost_of_schedule cost;
        cr_assert_gt(move_some(&s, k), BLOCKS);
        cr_assert_eq(rw_order(&s.problem, &s.choice, &sim.order, &sim.schedule), RW_OK);
        const size_t computed = sim.schedule.n_actions;
        cr_assert_eq(rw_copy_schedule(&s.problem, &s.choice, &sim.overlap, &sim.schedule), RW_OK);
        cr_assert(rw_schedule_is_valid(&s.problem, &s.choice, &sim.schedule));
        cr_assert_gt(sim.schedule.n_actions, computed);
        check_trips(&s, &sim.schedule);
        check_order(&sim.schedule);
        rw_merge_in_place(&s.problem, &sim.schedule);
        cr_assert(rw_schedule_is_valid(&s.problem, &s.choice, &sim.schedule));
        cr_assert_eq(rw_schedule_cost(&s.problem, &sim.schedule, &sim.sweep, &cost), RW_OK);
        cr_assert_eq(cost.n_replays, 0);
        rw_simulation_finish(&sim);
        for (uint32_t v = 0; v < s.problem.mark.values; v++) s.choice.fate[v].what = RW_KEEP;
    }
    scene_close(&s);
}

/* After the last value that may be offloaded, little of forward remains, and its copy begins only when the value
   exists: compute waits at the end of forward until it is copied. */
Test(copy_schedule, a_copy_begins_when_its_value_is_computed)
{
    struct scene s;
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule kept, moved;
    scene_open(&s);
    cr_assert_eq(rw_simulate(&s.problem, &s.choice, &sim, &kept), RW_OK);
    uint32_t last = 0;
    for (uint32_t v = 0; v < s.problem.mark.values; v++)
        if (rw_problem_makes(&s.problem, v) && !s.problem.wanted[v]) last = v;
    s.choice.fate[last].what = RW_MOVE;
    cr_assert_eq(rw_simulate(&s.problem, &s.choice, &sim, &moved), RW_OK);
    const double out = rw_move_seconds(&s.problem, RW_LANE_OUT, rw_tensor_bytes(rw_tape_value(s.b.t, last)));
    double after = 0; /* the rest of forward */
    for (uint32_t n = rw_tape_value(s.b.t, last)->producer + 1; n < s.problem.mark.nodes; n++)
        if (!s.b.t->nodes[n].adjoint) after += rw_problem_seconds(&s.problem, n);
    cr_assert_gt(out, 2 * after, "%g %g", out, after);
    cr_assert_geq(moved.seconds, kept.seconds + (out - after) * 0.999, "%g %g: %g behind %g", kept.seconds,
                  moved.seconds, out, after);
    rw_simulation_finish(&sim);
    scene_close(&s);
}

/* Copies use some of the cores that compute: the step is longer by that, compared with copies that take no time. */
Test(copy_schedule, compute_loses_what_copies_take_of_its_cores)
{
    struct scene s;
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule cost[2];
    uint64_t bytes = 0;
    scene_open(&s);
    move_some(&s, 3);
    s.b.ctx->store.rate = (struct rw_store_rate){ .out = 1e15, .in = 1e15 };
    for (int i = 0; i < 2; i++) {
        s.b.ctx->store.rate.loss = i * 1e-9;
        cr_assert_eq(rw_simulate(&s.problem, &s.choice, &sim, &cost[i]), RW_OK);
    }
    for (size_t i = 0; i < sim.schedule.n_slots; i++) bytes += 2 * sim.schedule.slots[i].bytes;
    const double lost = rw_move_loss(&s.problem, bytes);
    cr_assert_float_eq(lost, 4e-9 * (double)bytes, 1e-3 * lost, "nominal seconds are a slower machine's");
    cr_assert_gt(lost, 0);
    cr_expect_float_eq(cost[1].seconds - cost[0].seconds, lost, 0.1 * lost);
    rw_simulation_finish(&sim);
    scene_close(&s);
}

/* If a copy is not expected to be complete yet, compute does not wait for it at once. */
Test(copy_schedule, compute_goes_on_beside_a_copy)
{
    struct scene s;
    struct rw_simulation sim = { 0 };
    size_t later = 0;
    scene_open(&s);
    move_some(&s, 3);
    cr_assert_eq(rw_order(&s.problem, &s.choice, &sim.order, &sim.schedule), RW_OK);
    cr_assert_eq(rw_copy_schedule(&s.problem, &s.choice, &sim.overlap, &sim.schedule), RW_OK);
    const struct rw_schedule *const x = &sim.schedule;
    for (size_t i = 0; i < x->n_waits; i++) {
        const struct rw_wait w = x->waits[i];
        if (x->actions[w.on].kind != RW_ACTION_OUT || x->actions[w.action].lane != RW_LANE_COMPUTE) continue;
        size_t between = 0;
        for (uint32_t k = w.on + 1; k < w.action; k++) between += x->actions[k].lane == RW_LANE_COMPUTE;
        later += between > 0;
    }
    cr_assert_gt(later, 0);
    rw_simulation_finish(&sim);
    scene_close(&s);
}

Test(copy_schedule, moving_takes_memory_down_and_time_up)
{
    struct scene s;
    struct rw_simulation sim = { 0 };
    struct rw_cost_of_schedule kept, moved;
    scene_open(&s);
    cr_assert_eq(rw_simulate(&s.problem, &s.choice, &sim, &kept), RW_OK);
    move_some(&s, 1);
    cr_assert_eq(rw_simulate(&s.problem, &s.choice, &sim, &moved), RW_OK);
    cr_assert_lt(moved.kept, kept.kept);
    cr_assert_lt(moved.peak, kept.peak);
    cr_assert_gt(moved.seconds, kept.seconds, "copies that nothing hides take time");
    rw_simulation_finish(&sim);
    scene_close(&s);
}

/* Slots that are in use at the same time do not overlap. */
Test(copy_schedule, slots_are_shared_by_values_that_do_not_meet)
{
    struct scene s;
    struct rw_simulation sim = { 0 };
    scene_open(&s);
    move_some(&s, 1);
    cr_assert_eq(rw_order(&s.problem, &s.choice, &sim.order, &sim.schedule), RW_OK);
    cr_assert_eq(rw_copy_schedule(&s.problem, &s.choice, &sim.overlap, &sim.schedule), RW_OK);
    uint64_t bytes;
    cr_assert_eq(rw_place(sim.schedule.slots, sim.schedule.n_slots, 4096, &bytes), RW_OK);
    cr_assert(rw_place_is_valid(sim.schedule.slots, sim.schedule.n_slots, 4096, bytes));
    rw_simulation_finish(&sim);
    scene_close(&s);
}
