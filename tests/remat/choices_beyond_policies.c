/*
 * Choices that no policy makes: segments across regions and without any, single values, nested snapshots. Each is
 * scheduled, placed and run, and its gradients must have the bytes of a run that keeps everything. Invalid choices are
 * refused.
 */
#include "remat/manual_choice_fixture.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define STEPS 16
#define STEPS_MAX 512

/* A chain of squares x[0] -> x[1] -> ..., whose adjoint nodes read the inputs; each has its own counter. */
struct chain {
    struct fixture b;
    rw_tensor *p, *x[STEPS_MAX + 1], *loss;
    int n;
};

static void open_chain(struct chain *c, int n)
{
    c->b = fixture_open(3, 1);
    c->n = n;
    c->p = rw_param(c->b.ctx, "p", RW_F32, RW_SHAPE(100));
    rw_init_uniform(c->p, 0.99, 1.01);
    cr_assert_eq(ckpt_set_policy(c->b.t, "none"), RW_OK);
    c->x[0] = rw_mul(c->b.t, c->p, c->p);
}

static void end_chain(struct chain *c, rw_tensor *y)
{
    c->loss = rw_sum(c->b.t, y, RW_ALL_AXES, false);
    cr_assert_not_null(c->loss, "%s", rw_error_message(c->b.ctx));
}

/* x[i + 1] = tanh(x[i])^2: two nodes per step, whose outputs adjoint nodes read. */
static rw_tensor *squashed(struct chain *c, int i)
{
    return counted_square(c->b.t, rw_tanh(c->b.t, c->x[i]), i);
}

typedef void (*record_fn)(struct chain *c);
typedef void (*choose_fn)(struct by_hand *h, struct chain *c);

/* The gradient of p. *ret_plan (may be NULL) is the cached plan of the chain, which stays open. */
static unsigned char *gradients(struct chain *c, int n, record_fn record, choose_fn choose, const rw_plan **ret_plan,
                                size_t *ret_bytes)
{
    open_chain(c, n);
    record(c);
    if (choose) {
        struct by_hand h;
        by_hand_open(&h, &c->b, c->loss);
        choose(&h, c);
        *ret_plan = by_hand_plan(&h);
        by_hand_close(&h);
    }
    counted_clear();
    cr_assert_eq(rw_backward(c->b.t, c->loss), RW_OK, "%s", rw_error_message(c->b.ctx));
    rw_memory m;
    rw_memory_stats(c->b.ctx, &m);
    cr_assert_eq(m.predicted_peak, m.measured_peak);
    if (choose) cr_assert_eq(m.predicted_peak, (*ret_plan)->arena_bytes, "this very plan has run");
    return all_gradients(c->b.ctx, ret_bytes);
}

/* Runs the chain with and without the choice and compares. c has the state of the second run. */
static const rw_plan *compare(struct chain *c, int n, record_fn record, choose_fn choose)
{
    const rw_plan *plan = NULL;
    size_t bytes;
    unsigned char *const kept = gradients(c, n, record, NULL, NULL, &bytes);
    fixture_close(&c->b);
    unsigned char *const chosen = gradients(c, n, record, choose, &plan, &bytes);
    cr_expect_eq(first_difference(kept, chosen, bytes), -1);
    free(kept);
    free(chosen);
    return plan;
}

/* ---- segments and regions ---- */

static void record_two_regions(struct chain *c)
{
    for (int i = 0; i < 8; i++) {
        if (i % 4 == 0) ckpt_begin(c->b.t, "region");
        c->x[i + 1] = squashed(c, i);
        if (i % 4 == 3) ckpt_end(c->b.t);
    }
    end_chain(c, c->x[8]);
}

/* Drops every value computed in the nodes of x .. y except y itself. */
static void drop_inside(struct by_hand *h, const rw_tensor *x, const rw_tensor *y, uint32_t level)
{
    const rw_tape *const t = h->b->t;
    for (uint32_t n = x->producer; n <= y->producer; n++)
        for (uint32_t i = 0; i < t->nodes[n].n_outputs; i++)
            if (t->nodes[n].first_output + i != y->id)
                by_hand_drop(h, rw_tape_value(h->b->t, t->nodes[n].first_output + i), level);
}

static void choose_across(struct by_hand *h, struct chain *c)
{
    by_hand_segment(h, 0, c->x[3], c->x[6]);
    by_hand_segments_end(h);
    drop_inside(h, c->x[3], c->x[6], 1);
}

Test(choices_beyond_policies, a_segment_spans_two_regions)
{
    struct chain c;
    const rw_plan *const plan = compare(&c, 8, record_two_regions, choose_across);
    for (int i = 1; i <= 8; i++) {
        cr_expect_eq(by_hand_replays(plan, c.x[i]), i >= 3 && i < 6, "x[%d]", i);
        cr_expect_eq(counted_runs[i - 1], 1 + (i >= 3 && i < 6), "x[%d]", i);
    }
    cr_expect_eq(plan->cost.replayed_nodes, 3 + 3, "three squares, and the tanh in front of all but the first");
    fixture_close(&c.b);
}

static void record_without_regions(struct chain *c)
{
    for (int i = 0; i < c->n; i++) c->x[i + 1] = counted_square(c->b.t, c->x[i], i % COUNTERS);
    end_chain(c, c->x[c->n]);
}

static void choose_segments(struct by_hand *h, struct chain *c)
{
    for (int i = 0; i < STEPS; i += 4) by_hand_segment(h, 0, c->x[i + 1], c->x[i + 4]);
    by_hand_segments_end(h);
    for (int i = 0; i < STEPS; i += 4) drop_inside(h, c->x[i + 1], c->x[i + 4], 1);
}

Test(choices_beyond_policies, segments_need_no_region)
{
    struct chain c;
    const rw_plan *const plan = compare(&c, STEPS, record_without_regions, choose_segments);
    for (int i = 1; i <= STEPS; i++) cr_expect_eq(counted_runs[i - 1], 1 + (i % 4 != 0), "x[%d]", i);
    cr_expect_eq(plan->cost.replayed_nodes, STEPS / 4 * 3);
    fixture_close(&c.b);
}

/* A skip: x[2] is read by the visit of the product, and later by that of the squares. */
static void record_skip(struct chain *c)
{
    for (int i = 0; i < 4; i++) c->x[i + 1] = counted_square(c->b.t, c->x[i], i);
    c->x[5] = rw_mul(c->b.t, c->x[4], c->x[2]);
    end_chain(c, c->x[5]);
}

static void choose_for_visits(struct by_hand *h, struct chain *c)
{
    by_hand_segment(h, 0, c->x[1], c->x[4]);
    by_hand_segment(h, 0, c->x[5], c->x[5]);
    by_hand_segments_end(h);
    by_hand_drop(h, c->x[2], 1);
}

static void choose_for_first(struct by_hand *h, struct chain *c)
{
    choose_for_visits(h, c);
    h->g.choice.fate[c->x[2]->base].what = RW_KEEP_FIRST;
}

Test(choices_beyond_policies, a_value_is_kept_for_the_first_visit_that_reads_it)
{
    struct chain c;
    const rw_plan *plan = compare(&c, 5, record_skip, choose_for_visits);
    cr_expect_eq(by_hand_replays(plan, c.x[2]), 2);
    const uint64_t kept = plan->kept_bytes;
    fixture_close(&c.b);
    plan = compare(&c, 5, record_skip, choose_for_first);
    cr_expect_eq(by_hand_replays(plan, c.x[2]), 1, "the product's visit finds what forward made");
    cr_expect_geq(plan->kept_bytes, kept + (size_t)rw_tensor_layout(c.x[2])->numel * sizeof(float));
    fixture_close(&c.b);
}

/* ---- single values ---- */

static void choose_to_move(struct by_hand *h, struct chain *c)
{
    for (int i = 1; i < STEPS; i++) h->g.choice.fate[c->x[i]->base].what = RW_MOVE;
}

/* Kept, but offloaded: nothing is executed twice, and every copy out has its copy in. */
Test(choices_beyond_policies, values_that_are_offloaded)
{
    struct chain c;
    const rw_plan *const plan = compare(&c, STEPS, record_without_regions, choose_to_move);
    size_t out = 0, in = 0;
    for (size_t i = 0; i < plan->n_actions; i++) {
        out += plan->actions[i].kind == RW_ACTION_OUT;
        in += plan->actions[i].kind == RW_ACTION_IN;
    }
    for (int i = 1; i <= STEPS; i++) cr_expect_eq(counted_runs[i - 1], 1, "x[%d]", i);
    cr_expect_eq(out, STEPS - 1, "%zu", out);
    cr_expect_eq(in, out);
    cr_expect_gt(plan->store_bytes, 0);
    rw_memory m;
    cr_assert_eq(rw_memory_stats(c.b.ctx, &m), RW_OK);
    cr_expect_eq(m.host, plan->store_bytes);
    fixture_close(&c.b);
}

static void choose_one(struct by_hand *h, struct chain *c)
{
    by_hand_drop(h, c->x[7], 0);
}

Test(choices_beyond_policies, one_value_outside_any_segment_is_recomputed_once)
{
    struct chain c;
    const rw_plan *const plan = compare(&c, STEPS, record_without_regions, choose_one);
    for (int i = 1; i <= STEPS; i++) cr_expect_eq(counted_runs[i - 1], 1 + (i == 7), "x[%d]", i);
    cr_expect_eq(plan->cost.replayed_nodes, 1);
    fixture_close(&c.b);
}

#define READERS 5

/* x[1] is the output of one region, and each of the next regions reads it, forward and backward. */
static void record_readers(struct chain *c)
{
    ckpt_begin(c->b.t, "maker");
    c->x[1] = counted_square(c->b.t, c->x[0], 0);
    ckpt_end(c->b.t);
    for (int i = 1; i <= READERS; i++) {
        ckpt_begin(c->b.t, "reader");
        c->x[i + 1] = counted_square(c->b.t, rw_mul(c->b.t, c->x[i], c->x[1]), i);
        ckpt_end(c->b.t);
    }
    end_chain(c, c->x[READERS + 1]);
}

static void choose_readers(struct by_hand *h, struct chain *c, uint32_t level)
{
    const rw_tape *const t = h->b->t;
    by_hand_segment(h, 0, c->x[1], c->x[1]);
    for (int i = 1; i <= READERS; i++) {
        const struct rw_node *const square = &t->nodes[c->x[i + 1]->producer];
        by_hand_segment(h, 0, rw_tape_value(t, t->operands[square->first_input]), c->x[i + 1]);
    }
    by_hand_segments_end(h);
    by_hand_drop(h, c->x[1], level);
}

static void choose_held(struct by_hand *h, struct chain *c)
{
    choose_readers(h, c, 0);
}

static void choose_for_each(struct by_hand *h, struct chain *c)
{
    choose_readers(h, c, 1);
}

/* The actions in which a replay writes the value, and the last action that reads each. */
Test(choices_beyond_policies, values_of_a_region_are_recomputed_once_and_held_through_backward)
{
    struct chain c;
    const rw_plan *const plan = compare(&c, READERS, record_readers, choose_held);
    cr_expect_eq(by_hand_replays(plan, c.x[1]), 1);
    cr_expect_eq(counted_runs[0], 2);
    cr_expect_eq(plan->cost.replayed_nodes, 1);
    fixture_close(&c.b);
}

Test(choices_beyond_policies, values_of_a_region_are_recomputed_for_each_region_that_reads_them)
{
    struct chain c;
    const rw_plan *const plan = compare(&c, READERS, record_readers, choose_for_each);
    cr_expect_eq(by_hand_replays(plan, c.x[1]), READERS, "each reader is one visit");
    cr_expect_eq(counted_runs[0], 1 + READERS);
    cr_expect_eq(plan->cost.replayed_nodes, READERS);
    fixture_close(&c.b);
}

/* ---- snapshots within snapshots ---- */

/* The steps i + 1 .. j are in `segment`: halves become nested segments, and the value between them a snapshot of its
   visit. */
static void halve(struct by_hand *h, struct chain *c, uint32_t segment, int i, int j)
{
    if (j - i < 2) return;
    const int middle = (i + j) / 2;
    by_hand_drop(h, c->x[middle], h->g.choice.segment[segment].depth);
    halve(h, c, by_hand_segment(h, segment, c->x[i + 1], c->x[middle]), i, middle);
    halve(h, c, by_hand_segment(h, segment, c->x[middle + 1], c->x[j]), middle, j);
}

static void choose_halves(struct by_hand *h, struct chain *c)
{
    halve(h, c, 0, 0, c->n);
    by_hand_segments_end(h);
}

/*
 * Treeverse with halves: log2(n) snapshots, and each level repeats half of the steps. Source: Griewank, "Achieving
 * logarithmic growth of temporal and spatial complexity in reverse automatic differentiation" (1992).
 */
Test(choices_beyond_policies, snapshots_within_snapshots_take_memory_and_runs_in_logarithms)
{
    uint64_t before = 0;
    for (int n = 4, log = 2; n <= STEPS_MAX; n *= 2, log++) {
        struct chain c;
        const rw_plan *const plan = compare(&c, n, record_without_regions, choose_halves);
        const uint64_t buffer = 512, peak = plan->largest_live;
        cr_expect_eq(plan->cost.replayed_nodes, (size_t)(n / 2 * log), "%d steps: %zu", n, plan->cost.replayed_nodes);
        cr_expect_leq(peak, (uint64_t)(log + 5) * buffer, "%d steps: peak %llu", n, (unsigned long long)peak);
        if (before) cr_expect_leq(peak, before + buffer, "one snapshot more for twice the steps");
        before = peak;
        fixture_close(&c.b);
    }
}

/* ---- invalid choices ---- */

static rw_status once_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status once_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->out[0].layout->numel * sizeof(float));
    return RW_OK;
}

static rw_status once_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_upstream(g, 0));
}

static const rw_op_def stateful = { .name = "stateful", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_STATEFUL,
                                    .check = once_check, .kernel = { [RW_DEVICE_CPU] = once_kernel },
                                    .grad = once_grad };
static const rw_op_def random_order = { .name = "random_order", .n_inputs = 1, .n_outputs = 1,
                                        .flags = RW_OP_NONDETERMINISTIC, .check = once_check,
                                        .kernel = { [RW_DEVICE_CPU] = once_kernel }, .grad = once_grad };

struct refused {
    struct chain c;
    struct by_hand h;
    rw_tensor *effect, *random, *written;
    uint32_t outer, inner;
};

/* A chain with a buffer and an effect, for choices that violate one rule each. */
static void open_refused(struct refused *r)
{
    struct chain *const c = &r->c;
    rw_tape *t;
    open_chain(c, 8);
    t = c->b.t;
    rw_tensor *const state = rw_buffer(c->b.ctx, "state", RW_F32, RW_SHAPE(100));
    for (int i = 0; i < 8; i++) c->x[i + 1] = squashed(c, i);
    r->effect = rw_apply(t, &stateful, &c->x[8], 1, NULL, 0, NULL);
    r->random = rw_apply(t, &random_order, &r->effect, 1, NULL, 0, NULL);
    r->written = rw_scale(t, c->x[4], 0.5);
    rw_assign(t, state, r->written);
    end_chain(c, r->random);
    by_hand_open(&r->h, &c->b, c->loss);
    r->outer = by_hand_segment(&r->h, 0, c->x[2], c->x[5]);
    r->inner = by_hand_segment(&r->h, r->outer, c->x[3], c->x[4]);
    by_hand_segment(&r->h, r->outer, c->x[5], c->x[5]);
    by_hand_segments_end(&r->h);
    by_hand_drop(&r->h, c->x[3], 2);
    by_hand_drop(&r->h, c->x[7], 0);
    cr_assert(rw_choice_is_valid(&r->h.g.choice, &r->h.g.problem));
}

#define REFUSED(change)                                                                        \
    do {                                                                                       \
        struct refused r;                                                                      \
        open_refused(&r);                                                                      \
        struct rw_choice *const k = &r.h.g.choice;                                             \
        const rw_tape *const t = r.c.b.t;                                                      \
        (void)k, (void)t;                                                                      \
        change;                                                                                \
        cr_expect_not(rw_choice_is_valid(&r.h.g.choice, &r.h.g.problem), "%s", #change);       \
        by_hand_close(&r.h);                                                                   \
        fixture_close(&r.c.b);                                                                 \
    } while (0)

static uint32_t first_adjoint(const rw_tape *t)
{
    uint32_t n = 0;
    while (!t->nodes[n].adjoint) n++;
    return n;
}

static uint32_t adjoint_of_a_segment(const rw_tape *t, const struct rw_choice *k)
{
    uint32_t n = first_adjoint(t);
    while (!k->segment_of[n]) n++;
    return n;
}

Test(choices_beyond_policies, what_is_no_tree_is_refused)
{
    REFUSED(k->n_segments = 0);
    REFUSED(k->segment[0].end--);
    REFUSED(k->segment[0].depth = 1);
    REFUSED(k->segment[0].parent = 1);
    REFUSED(k->segment[r.outer].end++);
    REFUSED(k->segment[r.outer].end--);
    REFUSED(k->segment[r.inner].end = r.inner);
    REFUSED(k->segment[r.inner].end += 2);
    REFUSED(k->segment[r.inner].parent = 0);
    REFUSED(k->segment[r.inner].parent = r.inner + 1);
    REFUSED(k->segment[r.inner].depth++);
    REFUSED(k->segment[r.inner].jump = r.inner);
    REFUSED(k->segment_of[r.c.x[1]->producer] = (uint32_t)k->n_segments);
    REFUSED(k->segment_of[first_adjoint(t)] = RW_NONE_ID);
    REFUSED(k->segment_of[adjoint_of_a_segment(t, k)] = 0);
}

Test(choices_beyond_policies, fates_that_cannot_be_are_refused)
{
    REFUSED(by_hand_drop(&r.h, r.c.loss, 0));
    REFUSED(by_hand_drop(&r.h, r.effect, 0));
    REFUSED(by_hand_drop(&r.h, r.effect, 1));
    REFUSED(by_hand_drop(&r.h, r.random, 0));
    REFUSED(by_hand_drop(&r.h, r.written, 0));
    REFUSED(k->fate[t->nodes[first_adjoint(t)].first_output].what = RW_REPLAY);
    REFUSED(k->fate[t->nodes[first_adjoint(t)].first_output].level = 1);
    REFUSED(k->fate[r.c.x[3]->id].what = RW_REPLAY);
    REFUSED(k->fate[r.c.x[3]->id].what = RW_MOVE);
    REFUSED(k->fate[r.c.x[3]->id].what = RW_KEEP_FIRST + 1);
    REFUSED(k->fate[r.c.x[7]->id].what = RW_KEEP_FIRST + 1);
    REFUSED(k->fate[r.c.x[7]->id] = ((struct rw_fate){ .level = 0, .what = RW_KEEP_FIRST }));
}
