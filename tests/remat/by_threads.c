/*
 * A planner with several threads tries the same candidates as with one, in the same order, whichever thread simulates
 * which. If one thread lacks memory, the planner fails as a whole.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "models/synthetic_op.h"
#include "models/model.h"
#include "remat/planner/frontier.h"

#include <criterion/criterion.h>
#include <string.h>

enum { BLOCKS, GRAPH, LLAMA, PROGRAMS };

/* A tape of some hundred nodes whose workspaces do not depend on threads, except for the model. */
static rw_tensor *record(struct fixture *b, int program)
{
    static struct model m;
    static const int32_t tokens[2 * 32] = { 5, 3, 200, 17, 90 };
    if (program == LLAMA) {
        struct model_config config = { 0 };
        cr_assert(model_preset(&config, "tiny"));
        config.kind = MODEL_LLAMA;
        config.layers = 6;
        cr_assert_eq(model_create(&m, b->ctx, &config), RW_OK, "%s", rw_error_message(b->ctx));
        return model_loss(&m, b->t, 2, 32, tokens, tokens);
    }
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(2 * SYNTH_UNIT));
    rw_tensor *const x = program == BLOCKS ? synth_blocks(b->t, p, 12) : synth_graph(b->t, p, 400);
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

/* A frontier planned by so many threads, of a tape recorded for one. */
struct planned {
    struct fixture b;
    struct rw_problem p;
    struct rw_frontier f;
};

static rw_status plan(struct planned *x, uint32_t loss, int threads)
{
    const struct rw_request request = rw_step_request(x->b.t, &loss, 1);
    rw_status status = rw_problem_open(&x->p, x->b.t, &request);
    if (status) return status;
    const int before = x->b.ctx->threads;
    x->b.ctx->threads = threads; /* after recording, because workspaces have a part for each thread */
    status = rw_frontier_init(&x->f, &x->p);
    if (!status) status = rw_frontier_add_moved(&x->f);
    if (status) rw_frontier_finish(&x->f);
    if (status) rw_problem_close(&x->p);
    x->b.ctx->threads = before;
    return status;
}

static void forget(struct planned *x)
{
    rw_frontier_finish(&x->f);
    rw_problem_close(&x->p);
}

static void check_same(const struct rw_candidates *one, const struct rw_candidates *many, int threads)
{
    cr_assert_eq(one->n, many->n, "%d threads: %zu candidates, %zu by one", threads, many->n, one->n);
    cr_assert_eq(one->n_simulations, many->n_simulations);
    for (size_t i = 0; i < one->n; i++) {
        const struct rw_candidate *const a = &one->candidate[i], *const b = &many->candidate[i];
        cr_assert(a->peak == b->peak && a->moved == b->moved && a->seconds == b->seconds && a->base == b->base,
                  "%d threads, candidate %zu: %llu bytes and %.9g s, by one %llu and %.9g", threads, i,
                  (unsigned long long)b->peak, b->seconds, (unsigned long long)a->peak, a->seconds);
        cr_assert_eq(!a->compact.drop, !b->compact.drop);
        cr_assert(!a->compact.drop || !memcmp(a->compact.drop, b->compact.drop, one->graph.n_values));
    }
}

static int rooms_used(const struct rw_simulations *s)
{
    int n = 0;
    for (int i = 0; i < s->threads; i++) n += s->room[i].schedule.n_actions > 0;
    return n;
}

/* Compares frontiers planned by several threads with that of one. */
static void check(int program)
{
    static const int counts[] = { 2, 3, 7 };
    struct planned one = { .b = fixture_open(3, 1) };
    const uint32_t loss = record(&one.b, program)->id;
    int rooms = 0;
    cr_assert_eq(plan(&one, loss, 1), RW_OK);
    cr_assert_eq(rooms_used(&one.f.candidates.sims), 1);
    for (int round = 0; round < test_steps(12, 3); round++) {
        const int threads = counts[round % 3];
        struct planned many = { .b = fixture_open(3, 1) };
        cr_assert_eq(record(&many.b, program)->id, loss);
        cr_assert_eq(plan(&many, loss, threads), RW_OK);
        check_same(&one.f.candidates, &many.f.candidates, threads);
        const int used = rooms_used(&many.f.candidates.sims);
        rooms = used > rooms ? used : rooms;
        forget(&many);
        fixture_close(&many.b);
    }
    cr_expect_gt(rooms, 1, "one thread did all");
    forget(&one);
    fixture_close(&one.b);
}

Test(by_threads, candidates_do_not_depend_on_the_simulating_thread)
{
    for (int program = 0; program < PROGRAMS; program++) check(program);
}

/* More threads allocate at least as much: each has its own memory. */
Test(by_threads, a_piece_that_fails_fails_the_whole)
{
    struct planned x = { .b = fixture_open(3, 1) };
    const uint32_t loss = record(&x.b, BLOCKS)->id;
    const uint64_t before = rw_alloc_count();
    cr_assert_eq(plan(&x, loss, 1), RW_OK);
    const uint64_t allocations = rw_alloc_count() - before;
    forget(&x);
    cr_assert_gt(allocations, 1000);
    for (uint64_t at = 1; at <= allocations; at += 1 + at / 16) {
        const int64_t live = rw_alloc_live();
        rw_alloc_fail_at(at);
        const rw_status status = plan(&x, loss, 3);
        rw_alloc_fail_at(0);
        cr_assert_eq(status, RW_ERR_MEMORY, "allocation %llu", (unsigned long long)at);
        cr_assert_eq(rw_alloc_live(), live, "allocation %llu", (unsigned long long)at);
        rw_error_clear(x.b.ctx);
    }
    fixture_close(&x.b);
}
