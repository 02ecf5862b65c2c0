/*
 * The equations of schedule.h hold for schedules under every policy and for manual choices, and a schedule with one
 * wrong number violates one of them.
 */
#include "remat/manual_choice_fixture.h"

#include "record/overwrite.h"
#include "remat/policy/policy_to_choice.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* A net with nested regions, dropout and a buffer that is written; one value is held from an earlier run. */
struct scene {
    struct fixture b;
    struct net net;
    struct by_hand h;
    rw_tensor *held;
};

static void open_scene(struct scene *s, const char *policy)
{
    s->b = fixture_open(3, 2);
    net_init(&s->net, s->b.ctx, 3, 16, RW_F32, 2);
    rw_tensor *const count = rw_buffer(s->b.ctx, "count", RW_F32, RW_SHAPE(16));
    cr_assert_eq(ckpt_set_policy(s->b.t, policy), RW_OK);
    rw_tensor *const loss = net_loss(&s->net, s->b.t, 7, 0);
    s->held = rw_max(s->b.t, s->net.up[0], RW_AXES(0), false);
    cr_assert_eq(rw_assign(s->b.t, count, rw_add(s->b.t, count, s->held)), RW_OK);
    rw_tensor *const both = rw_add(s->b.t, loss, rw_sum(s->b.t, rw_mul(s->b.t, s->held, s->held), RW_ALL_AXES, false));
    by_hand_open(&s->h, &s->b, both);
    rw_choice_finish(&s->h.g.choice);
    cr_assert_eq(rw_policy_choose(&s->h.g.problem, &s->b.t->policy, &s->h.g.choice), RW_OK);
    cr_assert_eq(rw_simulate(&s->h.g.problem, &s->h.g.choice, &s->h.sim, &s->h.g.cost), RW_OK);
}

static void close_scene(struct scene *s)
{
    by_hand_close(&s->h);
    fixture_close(&s->b);
}

static bool is_valid(struct scene *s)
{
    return rw_schedule_is_valid(&s->h.g.problem, &s->h.g.choice, &s->h.sim.schedule);
}

Test(schedule_invariants, equations_hold_under_every_policy)
{
    static const char *const policies[] = { "none", "full", "selective:outer", "selective:middle", "uniform:2",
                                            "block:1", "ops:linear,gelu", "names:keep=up" };
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        struct scene s;
        open_scene(&s, policies[i]);
        cr_expect(is_valid(&s), "%s", policies[i]);
        cr_expect_eq(s.h.g.cost.n_replays > 0, i > 0, "%s", policies[i]);
        close_scene(&s);
    }
}

/* ---- one number is wrong ---- */

static uint32_t find_action(const struct rw_schedule *s, enum rw_action_kind kind, uint32_t from)
{
    while (from < s->n_actions && s->actions[from].kind != kind) from++;
    cr_assert_lt(from, s->n_actions);
    return from;
}

static uint32_t last_action(const struct rw_schedule *s, enum rw_action_kind kind)
{
    uint32_t i = (uint32_t)s->n_actions;
    while (i && s->actions[i - 1].kind != kind) i--;
    cr_assert(i);
    return i - 1;
}

/* A buffer in the arena that is read: written by a replay or not, in reused memory or not. */
static uint32_t find_buffer(const struct rw_schedule *s, bool replay, bool merged)
{
    uint32_t b = 0;
    while (b < s->n_buffers && (s->buffers[b].source != RW_NONE_ID || s->buffers[b].value == RW_NONE_ID ||
                                s->buffers[b].replay != replay || (s->buffers[b].merged != b) != merged ||
                                s->buffers[b].first == s->buffers[b].last))
        b++;
    cr_assert_lt(b, s->n_buffers);
    return b;
}

/* Written in forward, read by an action of backward. */
static uint32_t kept_buffer(const struct rw_schedule *s, const rw_tape *t)
{
    for (size_t i = s->n_forward; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        for (uint32_t w = 0; w < t->nodes[a->node].n_inputs; w++) {
            const struct rw_buffer *const b = &s->buffers[s->refs[a->word + w]];
            if (b->source == RW_NONE_ID && b->first < s->n_forward) return s->refs[a->word + w];
        }
    }
    cr_assert_fail("nothing is kept");
    return 0;
}

/* An input of an action of backward that a replay has computed. */
static uint32_t *read_of_replayed(const struct rw_schedule *s, const rw_tape *t)
{
    for (size_t i = s->n_forward; i < s->n_actions; i++) {
        const struct rw_action *const a = &s->actions[i];
        for (uint32_t w = 0; a->kind == RW_ACTION_BACKWARD && w < t->nodes[a->node].n_inputs; w++)
            if (s->buffers[s->refs[a->word + w]].replay) return &s->refs[a->word + w];
    }
    cr_assert_fail("no replay is read");
    return NULL;
}

/* The forward buffer of the value that another buffer holds. */
static uint32_t forward_buffer(const struct rw_schedule *s, uint32_t value)
{
    uint32_t b = 0;
    while (s->buffers[b].value != value) b++;
    return b;
}

static void swap_actions(struct rw_schedule *s, uint32_t i, uint32_t k)
{
    const struct rw_action a = s->actions[i];
    s->actions[i] = s->actions[k];
    s->actions[k] = a;
}

/* A second execution of a replay after the first, with outputs of its own that no action reads, or that all readers
   read. */
static void repeat_replay(struct rw_schedule *s, uint32_t i)
{
    cr_assert_lt(s->n_actions, s->cap_actions);
    memmove(s->actions + i + 1, s->actions + i, (s->n_actions - i) * sizeof *s->actions);
    s->n_actions++;
    for (size_t b = 0; b < s->n_buffers; b++) {
        s->buffers[b].first += s->buffers[b].first > i;
        s->buffers[b].last += s->buffers[b].last > i;
    }
}

#define BROKEN(change)                                         \
    do {                                                       \
        struct scene scene;                                    \
        open_scene(&scene, "full");                            \
        cr_assert(is_valid(&scene));                           \
        struct rw_schedule *const s = &scene.h.sim.schedule;   \
        struct rw_choice *const c = &scene.h.g.choice;         \
        const rw_tape *const t = scene.b.t;                    \
        (void)s, (void)c, (void)t;                             \
        change;                                                \
        cr_expect_not(is_valid(&scene), "%s", #change);        \
        close_scene(&scene);                                   \
    } while (0)

Test(schedule_invariants, a_wrong_action_is_seen)
{
    BROKEN(s->n_forward++);
    BROKEN(s->n_forward--);
    BROKEN(s->n_forward = s->n_actions + 1);
    BROKEN(s->n_actions--);
    BROKEN(s->actions[3].node = s->actions[4].node);
    BROKEN(s->actions[3].node = RW_NONE_ID);
    BROKEN(s->actions[3].n_words--);
    BROKEN(s->actions[3].word = (uint32_t)s->n_refs);
    BROKEN(s->actions[3].word++);
    BROKEN(s->actions[3].lane = RW_LANE_OUT);
    BROKEN(s->actions[3].kind = RW_ACTION_REPLAY);
    BROKEN(s->actions[3].kind = RW_ACTION_BACKWARD);
    BROKEN(s->actions[find_action(s, RW_ACTION_REPLAY, 0)].kind = RW_ACTION_FORWARD);
    BROKEN(s->actions[find_action(s, RW_ACTION_BACKWARD, 0)].kind = RW_ACTION_FORWARD);
    BROKEN(s->actions[last_action(s, RW_ACTION_COMMIT)].kind = RW_ACTION_FORWARD);
    BROKEN(swap_actions(s, 1, 2));
    BROKEN(swap_actions(s, last_action(s, RW_ACTION_COMMIT), last_action(s, RW_ACTION_BACKWARD)));
    BROKEN(repeat_replay(s, find_action(s, RW_ACTION_REPLAY, 0)));
}

/* Exchanges two inputs of an action, of the same size and with other readers. */
static void swap_inputs(struct rw_schedule *s, const rw_tape *t)
{
    for (size_t i = 0; i < s->n_actions; i++) {
        uint32_t *const ref = &s->refs[s->actions[i].word], first = ref[0];
        if (t->nodes[s->actions[i].node].n_inputs < 2 || s->buffers[ref[0]].last == i || s->buffers[ref[1]].last == i ||
            s->buffers[ref[0]].value == s->buffers[ref[1]].value)
            continue;
        ref[0] = ref[1];
        ref[1] = first;
        return;
    }
    cr_assert_fail("no action with two such inputs");
}

Test(schedule_invariants, a_wrong_read_is_seen)
{
    BROKEN(swap_inputs(s, t));
    BROKEN(s->refs[5] = (uint32_t)s->n_buffers);
    BROKEN(*read_of_replayed(s, t) = forward_buffer(s, s->buffers[*read_of_replayed(s, t)].value));
    BROKEN(s->buffers[*read_of_replayed(s, t)].value++);
    BROKEN(s->refs[s->actions[s->n_forward].word] = s->refs[s->actions[s->n_actions - 1].word]);
}

Test(schedule_invariants, a_wrong_life_is_seen)
{
    BROKEN(s->buffers[find_buffer(s, true, false)].first++);
    BROKEN(s->buffers[find_buffer(s, true, false)].first--);
    BROKEN(s->buffers[find_buffer(s, true, false)].last++);
    BROKEN(s->buffers[find_buffer(s, true, false)].last--);
    BROKEN(s->buffers[find_buffer(s, false, false)].last = (uint32_t)s->n_actions);
    BROKEN(s->buffers[find_buffer(s, false, true)].last++);
    BROKEN(s->buffers[find_buffer(s, false, true)].first++);
    BROKEN(s->buffers[find_buffer(s, false, false)].source = (uint32_t)s->n_sources);
}

static uint32_t root_of_merged(const struct rw_schedule *s)
{
    return s->buffers[find_buffer(s, false, true)].merged;
}

/* An op overwrites an input that is read later. */
static void merge_too_early(struct rw_schedule *s, const rw_tape *t)
{
    for (uint32_t i = 0; i < s->n_actions; i++) {
        const struct rw_node *const node = &t->nodes[s->actions[i].node];
        if (s->actions[i].kind == RW_ACTION_COMMIT || !node->n_outputs) continue;
        const uint32_t out = s->refs[s->actions[i].word + node->n_inputs];
        for (uint32_t w = 0; w < node->n_inputs; w++) {
            const uint32_t in = s->refs[s->actions[i].word + w];
            struct rw_buffer *const x = &s->buffers[in], *const y = &s->buffers[out];
            if (!rw_may_overwrite(t, node, 0, w) || x->last <= i || x->source != RW_NONE_ID || x->merged != in ||
                y->source != RW_NONE_ID || y->merged != out || x->bytes != y->bytes)
                continue;
            y->merged = in;
            if (x->last < y->last) x->last = y->last;
            return;
        }
    }
    cr_assert_fail("every input that may be written over dies");
}

Test(schedule_invariants, memory_that_two_values_have_at_once_is_seen)
{
    BROKEN(merge_too_early(s, t));
    BROKEN(s->buffers[find_buffer(s, true, false)].merged = find_buffer(s, false, false));
    BROKEN(s->buffers[find_buffer(s, false, true)].merged = (uint32_t)s->n_buffers);
    BROKEN(s->buffers[find_buffer(s, false, true)].bytes++);
    BROKEN(s->buffers[find_buffer(s, false, true)].merged = find_buffer(s, false, true));
    BROKEN(s->buffers[root_of_merged(s)].merged = find_buffer(s, false, true));
    BROKEN(s->buffers[root_of_merged(s)].last--);
}

/* The same list under another choice: a visit replayed too often, or not often enough. */
Test(schedule_invariants, replays_for_the_wrong_visits_are_seen)
{
    BROKEN(c->fate[s->buffers[find_buffer(s, true, false)].value] = (struct rw_fate){ 0 });
    BROKEN(for (size_t v = 0; v < t->n_values; v++) c->fate[v].level = 0);
    BROKEN(for (size_t n = 0; n < t->n_nodes; n++) c->segment_of[n] = 0);
    BROKEN(c->fate[s->buffers[kept_buffer(s, t)].value].what = RW_REPLAY);
}

/* x, computed from a parameter only, is read by three segments, twice each in backward, and recomputed for each of
   them. */
struct readers {
    struct fixture b;
    struct by_hand h;
    rw_tensor *p, *x, *unread;
    uint32_t segment[3], made[3]; /* the buffers that replays wrote x to, in the order of the list */
};

/* Records x with its three segments, and schedules the choice. */
static void open_readers(struct readers *r)
{
    r->b = fixture_open(3, 1);
    r->p = rw_param(r->b.ctx, "p", RW_F32, RW_SHAPE(10));
    rw_tape *const t = r->b.t;
    rw_tensor *first[3], *last[3], *y = r->p;
    r->x = rw_scale(t, r->p, 2);
    r->unread = rw_scale(t, r->p, 3);
    for (int i = 0; i < 3; i++) {
        first[i] = rw_mul(t, y, r->x);
        y = last[i] = rw_mul(t, first[i], r->x);
    }
    by_hand_open(&r->h, &r->b, rw_sum(t, rw_add(t, y, r->unread), RW_ALL_AXES, false));
    for (int i = 0; i < 3; i++) r->segment[i] = by_hand_segment(&r->h, 0, first[i], last[i]);
    by_hand_segments_end(&r->h);
    by_hand_drop(&r->h, r->x, 1);
    cr_assert_eq(rw_order(&r->h.g.problem, &r->h.g.choice, &r->h.sim.order, &r->h.sim.schedule), RW_OK);
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->h.sim.schedule.n_buffers; i++)
        if (r->h.sim.schedule.buffers[i].value == r->x->id && r->h.sim.schedule.buffers[i].replay) r->made[n++] = i;
    cr_assert_eq(n, 3);
}

static bool close_readers(struct readers *r)
{
    const bool valid = rw_schedule_is_valid(&r->h.g.problem, &r->h.g.choice, &r->h.sim.schedule);
    by_hand_close(&r->h);
    fixture_close(&r->b);
    return valid;
}

Test(schedule_invariants, a_read_of_another_visits_buffer_is_seen)
{
    for (int redirects = 0; redirects < 2; redirects++) {
        struct readers r;
        open_readers(&r);
        struct rw_schedule *const s = &r.h.sim.schedule;
        const uint32_t of_first = r.made[0], of_second = r.made[1];
        struct rw_buffer *const second = &s->buffers[of_second];
        const uint32_t at = second->last;
        for (uint32_t i = second->first + 1; redirects && i <= at; i++)
            for (uint32_t w = 0; w < s->actions[i].n_words; w++) {
                uint32_t *const ref = &s->refs[s->actions[i].word + w];
                if (*ref == of_second && i < at) second->last = i;
                if (*ref == of_second && i == at) *ref = of_first;
            }
        if (redirects) cr_assert(second->last < at && second->last > second->first, "it is read before");
        if (redirects) s->buffers[of_first].last = at;
        cr_expect_eq(close_readers(&r), !redirects);
    }
}

Test(schedule_invariants, a_second_replay_for_one_visit_is_seen)
{
    struct readers r;
    open_readers(&r);
    struct rw_choice *const c = &r.h.g.choice;
    for (size_t n = 0; n < r.b.t->n_nodes; n++)
        if (c->segment_of[n]) c->segment_of[n] = r.segment[0]; /* three visits become one */
    cr_expect_not(close_readers(&r));
}

/* Inserts a replay of a value that is dropped, but only read in forward, after the first replay. */
static void add_unread_replay(struct readers *r)
{
    struct rw_schedule *const s = &r->h.sim.schedule;
    const uint32_t at = s->buffers[r->made[0]].first, in = s->refs[s->actions[at].word], out = (uint32_t)s->n_buffers;
    cr_assert(s->n_refs + 2 <= s->cap_refs && s->n_buffers < s->cap_buffers);
    repeat_replay(s, at);
    s->actions[at + 1].node = r->unread->producer;
    s->actions[at + 1].word = (uint32_t)s->n_refs;
    s->refs[s->n_refs++] = in;
    s->refs[s->n_refs++] = out;
    s->buffers[s->n_buffers++] = (struct rw_buffer){ .value = r->unread->id, .first = at + 1, .last = at + 1,
                                                     .source = RW_NONE_ID, .bytes = 40, .replay = true,
                                                     .merged = out };
}

Test(schedule_invariants, a_replay_without_a_reader_is_seen)
{
    for (int added = 0; added < 2; added++) {
        struct readers r;
        open_readers(&r);
        by_hand_drop(&r.h, r.unread, 1);
        if (added) add_unread_replay(&r);
        cr_expect_eq(close_readers(&r), !added);
    }
}

/* ---- values that exist already ---- */

/* A node with two outputs is replayed for one of them: the other one, which is held, is read from its result. */
Test(schedule_invariants, a_held_value_is_read_where_it_is_held)
{
    for (int policy = 0; policy < 2; policy++) {
        struct fixture b = fixture_open(3, 1);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(5, 7));
        int32_t targets[5] = { 0, 1, 2, 3, 4 };
        cr_assert_eq(ckpt_set_policy(b.t, policy ? "full" : "none"), RW_OK);
        ckpt_begin(b.t, "region");
        rw_tensor *const x = rw_cross_entropy(b.t, p, rw_input(b.t, RW_I32, RW_SHAPE(5), targets, sizeof targets));
        rw_tensor *const y = rw_mul(b.t, x, rw_tanh(b.t, x));
        ckpt_end(b.t);
        rw_tensor *const loss = rw_scale(b.t, y, 2);
        cr_assert_gt(b.t->nodes[x->producer].n_outputs, 1);
        cr_assert_eq(rw_eval(b.t, (rw_tensor *[]){ x, y }, 2), RW_OK);
        struct by_hand h;
        by_hand_open(&h, &b, loss);
        cr_assert(h.g.problem.given[x->id]);
        by_hand_plan(&h);
        size_t runs = 0;
        for (size_t i = 0; i < h.g.schedule.n_actions; i++) runs += h.g.schedule.actions[i].node == x->producer;
        cr_expect_eq(runs, 1, "its other output is not there");
        for (size_t i = 0; i < h.g.schedule.n_buffers; i++) {
            const struct rw_buffer *const k = &h.g.schedule.buffers[i];
            if (k->value == x->id && k->source == RW_NONE_ID) cr_expect_eq(k->first, k->last, "it is not read");
        }
        by_hand_close(&h);
        fixture_close(&b);
    }
}
