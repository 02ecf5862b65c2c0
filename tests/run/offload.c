/*
 * Offload as requested by a program: by policies and by ckpt_offload(). Whatever is offloaded, and wherever a step is
 * suspended meanwhile, its bytes are those of a step that keeps everything; ckpt_explain() and rw_memory report the
 * offloaded values.
 */
#include "support/support.h"

#include "run/run_advance.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, WIDTH = 64, TOKENS = 37, STEPS = 3 };

/* Micro-batches of one step, whose losses are read or not before their backward, over several steps. */
struct outcome {
    double loss[STEPS];
    unsigned char *gradients[STEPS];
    size_t bytes;
    rw_memory memory;
};

struct way {
    const char *policy;
    int nesting, threads, micro;
    bool reads; /* the loss before backward */
};

/* Trains some steps in the given way, and returns gradients and counts. */
static struct outcome outcome_of(struct way w)
{
    struct fixture b = fixture_open(3, w.threads);
    struct net n;
    struct outcome o = { 0 };
    net_init(&n, b.ctx, LAYERS, WIDTH, RW_F32, w.nesting);
    cr_assert_eq(ckpt_set_policy(b.t, w.policy), RW_OK, "%s", rw_error_message(b.ctx));
    for (int s = 0; s < STEPS; s++) {
        rw_zero_grad(b.ctx);
        for (int i = 0; i < w.micro; i++) {
            rw_tensor *const loss = net_loss(&n, b.t, TOKENS, s * 10 + i);
            if (w.reads) rw_item(b.t, loss);
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", w.policy, rw_error_message(b.ctx));
            o.loss[s] += rw_item(b.t, loss);
            rw_memory_stats(b.ctx, &o.memory);
            cr_assert_eq(o.memory.predicted_peak, o.memory.measured_peak, "%s", w.policy);
            rw_tape_reset(b.t);
        }
        o.gradients[s] = all_gradients(b.ctx, &o.bytes);
    }
    fixture_close(&b);
    return o;
}

static void expect_same(struct outcome *a, struct outcome *b, const char *what)
{
    cr_assert_eq(a->bytes, b->bytes);
    cr_assert_eq(memcmp(a->loss, b->loss, sizeof a->loss), 0, "%s", what);
    for (int s = 0; s < STEPS; s++)
        cr_assert_eq(first_difference(a->gradients[s], b->gradients[s], a->bytes), -1, "%s, step %d", what, s);
}

static void release(struct outcome *o)
{
    for (int s = 0; s < STEPS; s++) free(o->gradients[s]);
}

static const char *const policies[] = { "offload:outer",         "full+offload:outer",      "uniform:2+offload:outer",
                                        "block:2+offload:outer", "ops:linear+offload:inner", "names:offload=up",
                                        "names:keep=up+offload:outer", "selective:inner+offload:middle,outer" };

Test(offload, every_policy_gives_the_bytes_of_none)
{
    for (int nesting = 1; nesting <= 3; nesting++)
        for (int reads = 0; reads < 2; reads++) {
            struct way w = { "none", nesting, 1 + nesting % 3, 1 + reads, reads };
            struct outcome none = outcome_of(w);
            size_t moved = 0;
            cr_assert_eq(none.memory.host, 0);
            for (size_t p = 0; p < sizeof policies / sizeof *policies; p++) {
                w.policy = policies[p];
                struct outcome o = outcome_of(w);
                expect_same(&none, &o, w.policy);
                moved += o.memory.host > 0;
                if (strstr(w.policy, "names:offload")) cr_assert_gt(o.memory.host, 0, "a name is always moved");
                release(&o);
            }
            cr_assert_geq(moved, sizeof policies / sizeof *policies - 2, "most of them move something");
            release(&none);
        }
}

Test(offload, moving_takes_memory_from_the_arena)
{
    struct way w = { "none", 1, 1, 1, false };
    struct outcome none = outcome_of(w);
    w.policy = "offload:outer";
    struct outcome moved = outcome_of(w);
    cr_assert_lt(moved.memory.predicted_peak, none.memory.predicted_peak);
    cr_assert_lt(moved.memory.kept, none.memory.kept);
    cr_assert_geq(moved.memory.host, none.memory.kept - moved.memory.kept);
    release(&none), release(&moved);
}

/* One value in a region that is replayed, and one outside. */
static rw_memory by_hand(const char *policy, rw_tensor *(*decide)(rw_tape *t, rw_tensor *x), char **ret_text)
{
    enum { N = 5000 };
    struct fixture b = fixture_open(1, 1);
    float *const one = malloc(N * sizeof *one);
    rw_memory memory;
    size_t size;
    for (int i = 0; i < N; i++) one[i] = 1;
    counted_clear();
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), one, N * sizeof *one));
    ckpt_begin(b.t, "r");
    rw_tensor *y = decide(b.t, counted_square(b.t, x, 0));
    y = counted_square(b.t, counted_square(b.t, y, 1), 2);
    ckpt_end(b.t);
    y = counted_square(b.t, decide(b.t, y), 3);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(x), one, N * sizeof *one), RW_OK);
    for (int i = 0; i < N; i++) cr_assert_eq(one[i], 16);
    rw_memory_stats(b.ctx, &memory);
    rw_tape_reset(b.t);
    FILE *const f = open_memstream(ret_text, &size);
    rw_tensor *const again = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(N), one, N * sizeof *one));
    ckpt_begin(b.t, "r");
    y = counted_square(b.t, decide(b.t, counted_square(b.t, again, 0)), 1);
    ckpt_end(b.t);
    rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_explain(b.t, f), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(f);
    fixture_close(&b);
    free(one);
    return memory;
}

static rw_tensor *offload(rw_tape *t, rw_tensor *x)
{
    return ckpt_offload(t, x);
}

static rw_tensor *changed_mind(rw_tape *t, rw_tensor *x)
{
    return ckpt_keep(t, ckpt_offload(t, x));
}

static rw_tensor *nothing(rw_tape *t, rw_tensor *x)
{
    return x;
}

Test(offload, a_single_value_wins_over_the_policy)
{
    char *text = NULL;
    by_hand("full", nothing, &text);
    cr_assert_eq(counted_runs[0], 2);
    cr_assert(!strstr(text, "  offloaded "), "%s", text);
    free(text);
    const rw_memory moved = by_hand("full", offload, &text);
    cr_assert_eq(counted_runs[0], 1, "it is copied in, not recomputed");
    cr_assert_eq(moved.host, 2 * 20480, "two slots of whole pages");
    cr_assert(strstr(text, "  offloaded ") && strstr(text, "(ckpt_offload())"), "%s", text);
    free(text);
    const rw_memory saved = by_hand("full", changed_mind, &text);
    cr_assert_eq(saved.host, 0, "the last decision counts");
    cr_assert(!strstr(text, "  offloaded ") && strstr(text, "(ckpt_keep())"), "%s", text);
    free(text);
    by_hand("offload:r,nobody", changed_mind, &text);
    cr_assert(!strstr(text, "  offloaded "), "saved by hand: %s", text);
    cr_assert(strstr(text, "no region is called \"nobody\", nothing is offloaded"), "%s", text);
    free(text);
}

Test(offload, explain_says_what_is_offloaded_and_why)
{
    char *text = NULL;
    by_hand("offload:r", nothing, &text);
    cr_assert(strstr(text, "  offloaded ") && strstr(text, "(the policy offloads the kept values of this region)"),
              "%s", text);
    cr_assert(strstr(text, "offloaded 20480 bytes"), "%s", text);
    free(text);
}

/* The loss is read, other steps run, a graph is launched: all with offloaded values. */
Test(offload, stops_and_graphs)
{
    struct fixture b = fixture_open(3, 2);
    struct net n;
    rw_tape *other = NULL;
    rw_graph *g = NULL;
    size_t bytes;
    net_init(&n, b.ctx, LAYERS, WIDTH, RW_F32, 1);
    n.dropout = 0; /* both tapes draw from one generator */
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, TOKENS, 0)), RW_OK);
    unsigned char *const expected = all_gradients(b.ctx, &bytes);
    rw_tape_reset(b.t);
    rw_zero_grad(b.ctx);
    cr_assert_eq(ckpt_set_policy(b.t, "full+offload:outer"), RW_OK);
    cr_assert_eq(ckpt_set_policy(other, "offload:outer"), RW_OK);
    rw_tensor *const loss = net_loss(&n, b.t, TOKENS, 0), *const other_loss = net_loss(&n, other, TOKENS, 1);
    rw_item(b.t, loss);
    rw_item(other, other_loss);
    const struct rw_run *const run = rw_runs_of(b.t)->first, *const other_run = rw_runs_of(other)->first;
    cr_assert(run && run->store && other_run && other_run->store);
    cr_assert_neq(run->store, other_run->store);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    unsigned char *got = all_gradients(b.ctx, &bytes);
    cr_assert_eq(first_difference(expected, got, bytes), -1);
    free(got);
    rw_tape_reset(b.t);
    rw_tape_reset(other);
    rw_zero_grad(b.ctx);
    cr_assert_eq(rw_graph_create(&g, b.t, net_loss(&n, b.t, TOKENS, 0), NULL), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
        got = all_gradients(b.ctx, &bytes);
        cr_assert_eq(first_difference(expected, got, bytes), -1, "launch %d", i);
        free(got);
    }
    rw_graph_destroy(&g);
    free(expected);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* ---- by budget ---- */

/* The number after "budget:" at the end of the message. */
static unsigned long long least_of(const char *policy)
{
    struct fixture b = fixture_open(3, 1);
    struct net n;
    net_init(&n, b.ctx, LAYERS, WIDTH, RW_F32, 1);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, TOKENS, 0)), RW_ERR_BUDGET);
    const char *at = rw_error_message(b.ctx), *last = NULL;
    while ((at = strstr(at, "budget:"))) last = at++;
    cr_assert_not_null(last);
    const unsigned long long bytes = strtoull(last + strlen("budget:"), NULL, 10);
    cr_assert_eq(strstr(last, "+offload") != NULL, strstr(policy, "+offload") != NULL, "%s", last);
    fixture_close(&b);
    return bytes;
}

static void set_fast(rw_context *ctx)
{
    const rw_offload o = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 };
    cr_assert_eq(rw_context_set_offload(ctx, &o), RW_OK);
}

/* Budgets from the minimum on, with a store that costs almost nothing: values are offloaded, and the bytes are those of
   none. */
Test(offload, a_budget_may_offload_what_does_not_fit)
{
    struct way w = { "none", 1, 1, 1, false };
    struct outcome none = outcome_of(w);
    const unsigned long long least = least_of("budget:256B+offload");
    size_t moved = 0;
    cr_assert_leq(least, least_of("budget:256B"));
    for (int i = 0; i <= 6; i++) {
        const unsigned long long bytes = least + (none.memory.predicted_peak - least) * (unsigned)i / 8;
        struct fixture b = fixture_open(3, 1);
        struct net n;
        rw_memory m;
        char policy[64];
        snprintf(policy, sizeof policy, "budget:%lluB+offload", bytes);
        net_init(&n, b.ctx, LAYERS, WIDTH, RW_F32, 1);
        set_fast(b.ctx);
        cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tensor *const loss = net_loss(&n, b.t, TOKENS, 0);
        if (i % 2) rw_item(b.t, loss);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
        unsigned char *const got = all_gradients(b.ctx, &none.bytes);
        cr_assert_eq(first_difference(none.gradients[0], got, none.bytes), -1, "%s", policy);
        rw_memory_stats(b.ctx, &m);
        cr_assert_leq(m.measured_peak, bytes, "%s", policy);
        cr_assert_eq(m.measured_peak, m.predicted_peak, "%s", policy);
        moved += m.host > 0;
        free(got);
        fixture_close(&b);
    }
    cr_assert_gt(moved, 2);
    release(&none);
}

/* With offload the predicted step is never slower, and with more bytes it is not slower either. */
Test(offload, a_budget_that_may_move_is_never_slower_by_prediction)
{
    struct fixture b = fixture_open(3, 1);
    struct net n;
    double before = 1e30;
    size_t moved = 0;
    net_init(&n, b.ctx, LAYERS, WIDTH, RW_F32, 2);
    set_fast(b.ctx);
    rw_tensor *const loss = net_loss(&n, b.t, TOKENS, 0);
    for (int percent = 25; percent <= 100; percent += 5) {
        char policy[64];
        rw_prediction with, without;
        snprintf(policy, sizeof policy, "budget:%d%%+offload", percent);
        if (rw_tape_plan(b.t, loss, policy, &with)) {
            rw_error_clear(b.ctx);
            continue;
        }
        cr_assert_leq(with.ms, before, "%s", policy);
        before = with.ms;
        moved += with.at_peak.host > 0;
        *strchr(policy, '+') = '\0';
        if (rw_tape_plan(b.t, loss, policy, &without)) rw_error_clear(b.ctx);
        else cr_assert_leq(with.ms, without.ms, "%s", policy);
    }
    cr_assert_gt(moved, 0, "a store that costs next to nothing is used");
    fixture_close(&b);
}

/* ---- values that a plan must not offload ---- */

enum { CHAIN = 12, CHAIN_N = 200000 }; /* so large that a copy takes less time than a square */

/* Squares; the seventh is saved by hand and assigned to a buffer when the step ends. */
static rw_tensor *written_chain(struct fixture *b)
{
    rw_tensor *const state = rw_param_find(b->ctx, "state"), *const p = rw_param_find(b->ctx, "p");
    rw_tensor *x = p;
    for (int i = 0; i < CHAIN; i++) {
        x = counted_square(b->t, x, i);
        if (i == 6) x = ckpt_keep(b->t, x);
        if (i == 8) rw_assign(b->t, state, x);
    }
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

/* A step of the written chain under a policy, with the text of ckpt_explain(). */
static struct outcome written_under(const char *policy, char **ret_text)
{
    struct fixture b = fixture_open(3, 1);
    struct outcome o = { 0 };
    size_t size;
    set_fast(b.ctx);
    rw_init_uniform(rw_param(b.ctx, "p", RW_F32, RW_SHAPE(CHAIN_N)), 0.99, 1.01);
    rw_buffer(b.ctx, "state", RW_F32, RW_SHAPE(CHAIN_N));
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = written_chain(&b);
    FILE *const f = open_memstream(ret_text, &size);
    cr_assert_eq(ckpt_explain(b.t, f), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(f);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    o.gradients[0] = all_gradients(b.ctx, &o.bytes);
    o.loss[0] = rw_item(b.t, loss);
    o.gradients[1] = malloc(o.bytes);
    cr_assert_eq(o.bytes, CHAIN_N * sizeof(float));
    cr_assert_eq(rw_read(NULL, rw_param_find(b.ctx, "state"), o.gradients[1], o.bytes), RW_OK);
    rw_memory_stats(b.ctx, &o.memory);
    fixture_close(&b);
    return o;
}

Test(offload, a_budget_moves_neither_what_is_saved_by_hand_nor_what_a_buffer_is_to_hold)
{
    char *text = NULL;
    struct outcome none = written_under("none", &text);
    free(text);
    for (int percent = 50; percent < 90; percent += 10) {
        char policy[32];
        snprintf(policy, sizeof policy, "budget:%d%%+offload", percent);
        struct outcome o = written_under(policy, &text);
        cr_assert_gt(o.memory.host, 0, "%s", policy);
        const char *const saved = strstr(text, "(ckpt_keep())");
        cr_assert_not_null(saved, "%s: %s", policy, text);
        const char *line = saved;
        while (line > text && line[-1] != '\n') line--;
        cr_expect(!strncmp(line, "  kept ", 7), "%s: %.80s", policy, line);
        for (int i = 0; i < 2; i++)
            cr_expect_eq(first_difference(o.gradients[i], none.gradients[i], none.bytes), -1, "%s, %d", policy, i);
        cr_expect_eq(o.loss[0], none.loss[0]);
        free(text);
        release(&o);
    }
    release(&none);
}
