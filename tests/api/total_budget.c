/*
 * `total:SIZE` when the context holds more than the step itself: arenas of larger steps, suspended steps, results of
 * other tapes. The memory reported by rw_memory_stats(), with arenas at their actual size, is within SIZE, or the call
 * names the minimum, which then suffices.
 */
#include "support/support.h"

#include "run/arena_pool.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4096, BYTES = N * 4, LINKS = 12 };

struct world {
    struct fixture b;
    rw_tensor *w;
};

static struct world open_world(void)
{
    struct world x = { fixture_open(1, 1), NULL };
    x.w = rw_param(x.b.ctx, "w", RW_F32, RW_SHAPE(N));
    rw_init_normal(x.w, 0, 1);
    return x;
}

static void ok(const struct world *x, rw_status status)
{
    cr_assert_eq(status, RW_OK, "%s", rw_error_message(x->b.ctx));
}

static rw_tape *add_tape(const struct world *x, const char *policy)
{
    rw_tape *t = NULL;
    ok(x, rw_tape_create(&t, x->b.ctx));
    ok(x, ckpt_set_policy(t, policy));
    return t;
}

static rw_tensor *chain(const struct world *x, rw_tape *t, int links)
{
    rw_tensor *y = x->w;
    for (int i = 0; i < links; i++) y = rw_tanh(t, rw_mul(t, y, y));
    return rw_mean(t, y, RW_ALL_AXES, false);
}

static rw_memory stats(const struct world *x)
{
    rw_memory m;
    ok(x, rw_memory_stats(x->b.ctx, &m));
    return m;
}

static size_t held(const struct world *x)
{
    const rw_memory m = stats(x);
    return m.parameters + m.gradients + m.optimizer + m.inputs + m.results + m.arenas;
}

static void set_total(const struct world *x, rw_tape *t, size_t bytes)
{
    char policy[64];
    snprintf(policy, sizeof policy, "total:%zuB", bytes);
    ok(x, ckpt_set_policy(t, policy));
}

/* The minimum of the step recorded on the tape. */
static size_t least_of(const struct world *x, rw_tape *t, rw_tensor *loss)
{
    rw_prediction p = { .least_bytes = 0 };
    cr_assert_eq(rw_tape_plan(t, loss, "total:1B", &p), RW_ERR_BUDGET);
    rw_error_clear(x->b.ctx);
    return p.least_bytes;
}

static size_t least(const struct world *x, rw_tape *t)
{
    const size_t bytes = least_of(x, t, chain(x, t, LINKS));
    rw_tape_reset(t);
    return bytes;
}

static void clear(const struct world *x, rw_tape *t)
{
    rw_tape_reset(t);
    rw_zero_grad(x->b.ctx);
}

/* The step on the tape takes its predicted bytes, and the context holds no more. */
static void expect_held(const struct world *x, rw_tape *t, size_t bound)
{
    rw_prediction p;
    rw_tensor *const loss = chain(x, t, LINKS);
    ok(x, rw_tape_plan(t, loss, NULL, &p));
    cr_expect_leq(p.total_bytes, bound);
    ok(x, rw_backward(t, loss));
    cr_expect_leq(held(x), bound, "%zu held, %zu allowed", held(x), bound);
    cr_expect_geq(held(x), p.total_bytes, "%zu held, %zu said", held(x), p.total_bytes);
    cr_expect_eq(stats(x).measured_peak, p.peak_bytes);
    cr_expect_eq(stats(x).gradients, p.at_peak.gradients);
    if (p.total_bytes == bound) cr_expect_eq(held(x), bound);
}

/* The chain's gradients without any bound, in a context of its own. The caller frees. */
static unsigned char *plain_gradients(size_t *ret_bytes)
{
    struct world plain = open_world();
    ok(&plain, rw_backward(plain.b.t, chain(&plain, plain.b.t, LINKS)));
    unsigned char *const gradients = all_gradients(plain.b.ctx, ret_bytes);
    fixture_close(&plain.b);
    return gradients;
}

static void expect_plain_gradients(const struct world *x)
{
    size_t bytes, n;
    unsigned char *const plain = plain_gradients(&bytes), *const own = all_gradients(x->b.ctx, &n);
    cr_assert_eq(n, bytes);
    cr_expect_eq(first_difference(plain, own, bytes), -1);
    free(plain);
    free(own);
}

static int allocations;
static const struct rw_device_fns *below;

static void *count_alloc(void *state, size_t bytes)
{
    allocations++;
    return below->alloc(state, bytes);
}

/* `none` leaves its arena: the next step under a total replaces it by a smaller one. After that nothing is
   allocated. */
Test(total_budget, arena_of_a_larger_step_before)
{
    struct world x = open_world();
    const size_t bound = least(&x, x.b.t);
    ok(&x, rw_backward(x.b.t, chain(&x, x.b.t, LINKS)));
    cr_assert_gt(held(&x), bound, "or this shows nothing");
    clear(&x, x.b.t);
    set_total(&x, x.b.t, bound);
    expect_held(&x, x.b.t, bound);
    struct rw_device_fns counting = *(below = x.b.ctx->device);
    counting.alloc = count_alloc;
    x.b.ctx->device = &counting;
    for (int i = 0; i < 3; i++) {
        clear(&x, x.b.t);
        expect_held(&x, x.b.t, bound);
    }
    cr_expect_eq(allocations, 0, "%d allocations", allocations);
    expect_plain_gradients(&x);
    x.b.ctx->device = below;
    fixture_close(&x.b);
}

/* If the total has space for the larger arena, it stays: alternating steps of two sizes do not reallocate. */
Test(total_budget, a_larger_arena_stays_if_memory_allows)
{
    struct world x = open_world();
    ok(&x, rw_backward(x.b.t, chain(&x, x.b.t, 2 * LINKS)));
    const size_t arenas = stats(&x).arenas;
    clear(&x, x.b.t);
    set_total(&x, x.b.t, held(&x));
    expect_held(&x, x.b.t, held(&x));
    cr_expect_eq(stats(&x).arenas, arenas);
    cr_expect_lt(stats(&x).predicted_peak, arenas, "or this shows nothing");
    fixture_close(&x.b);
}

/* The first of two suspended steps is given up, and with less space also the other. */
Test(total_budget, suspended_steps_release_their_arenas)
{
    for (size_t stay = 0; stay < 3; stay++) {
        struct world x = open_world();
        rw_tape *u[2] = { add_tape(&x, "none"), add_tape(&x, "none") };
        rw_tensor *const loss[2] = { chain(&x, u[0], LINKS), chain(&x, u[1], LINKS) };
        rw_prediction p;
        rw_item(u[0], loss[0]);
        const size_t arena = stats(&x).arenas;
        rw_item(u[1], loss[1]);
        rw_tensor *const own = chain(&x, x.b.t, 1);
        ok(&x, rw_tape_plan(x.b.t, own, "none", &p));
        const size_t bound = p.total_bytes + stay * arena;
        set_total(&x, x.b.t, bound);
        ok(&x, rw_backward(x.b.t, own));
        cr_expect_eq(held(&x), bound, "%zu held, %zu allowed", held(&x), bound);
        cr_expect_eq(stats(&x).runs, stay);
        for (int i = 1; i >= 0; i--) {
            rw_zero_grad(x.b.ctx);
            ok(&x, rw_backward(u[i], loss[i]));
            expect_plain_gradients(&x);
            if (i) cr_expect_eq(stats(&x).runs, stay == 2, "the one that stopped last is the last to go");
        }
        rw_tape_destroy(&u[0]);
        rw_tape_destroy(&u[1]);
        fixture_close(&x.b);
    }
}

/* While they can be read, they count, and the minimum grows by them. Afterwards they are freed. */
Test(total_budget, results_of_another_tape)
{
    struct world x = open_world();
    rw_tape *u = add_tape(&x, "none");
    rw_prediction p;
    const size_t alone = least(&x, x.b.t);
    set_total(&x, x.b.t, alone);
    expect_held(&x, x.b.t, alone); /* a plan made when there were none */
    clear(&x, x.b.t);
    rw_tensor *y[8];
    for (int i = 0; i < 8; i++) y[i] = rw_exp(u, rw_scale(u, x.w, i));
    ok(&x, rw_eval(u, y, 8));
    rw_tensor *const loss = chain(&x, x.b.t, LINKS);
    cr_expect_eq(rw_backward(x.b.t, loss), RW_ERR_BUDGET);
    char said[64];
    snprintf(said, sizeof said, "the minimum is total:%zuB", alone + 8 * BYTES);
    cr_expect(strstr(rw_error_message(x.b.ctx), said), "%s", rw_error_message(x.b.ctx));
    rw_error_clear(x.b.ctx);
    cr_expect_eq(least_of(&x, x.b.t, loss), alone + 8 * BYTES);
    rw_tape_reset(x.b.t);
    set_total(&x, x.b.t, alone + 8 * BYTES);
    expect_held(&x, x.b.t, alone + 8 * BYTES);
    ok(&x, rw_tape_plan(x.b.t, chain(&x, x.b.t, 1), "none", &p));
    cr_expect_eq(p.at_peak.results, 8 * BYTES + 2 * 256, "%zu: the other tape's, the last step's and its own",
                 p.at_peak.results);
    clear(&x, x.b.t);
    rw_tape_reset(u);
    cr_expect_geq(stats(&x).results, 8 * BYTES, "or this shows nothing");
    set_total(&x, x.b.t, alone);
    expect_held(&x, x.b.t, alone);
    expect_plain_gradients(&x);
    rw_tape_destroy(&u);
    fixture_close(&x.b);
}

/* Results of two tapes that can no longer be read are freed. */
Test(total_budget, results_that_are_still_read_stay)
{
    struct world x = open_world();
    rw_tape *u[2] = { add_tape(&x, "none"), add_tape(&x, "none") };
    rw_tensor *y[2];
    float before[N], after[N];
    for (int i = 0; i < 2; i++) {
        y[i] = rw_exp(u[i], x.w);
        ok(&x, rw_eval(u[i], &y[i], 1));
    }
    ok(&x, rw_read(u[1], y[1], before, sizeof before));
    rw_tape_reset(u[0]);
    const size_t bound = least(&x, x.b.t);
    set_total(&x, x.b.t, bound);
    for (int i = 0; i < 2; i++) {
        expect_held(&x, x.b.t, bound);
        clear(&x, x.b.t);
    }
    cr_expect_lt(stats(&x).results, 2 * BYTES);
    ok(&x, rw_read(u[1], y[1], after, sizeof after));
    cr_expect(!memcmp(before, after, sizeof after));
    for (int i = 0; i < 2; i++) rw_tape_destroy(&u[i]);
    fixture_close(&x.b);
}

/* The tape's own block of results is not larger than its step needs, either. */
Test(total_budget, results_of_an_evaluation_before)
{
    struct world x = open_world();
    const size_t bound = least(&x, x.b.t);
    rw_tensor *const y = rw_exp(x.b.t, x.w);
    ok(&x, rw_eval(x.b.t, &y, 1));
    clear(&x, x.b.t);
    cr_expect_geq(stats(&x).results, BYTES, "or this shows nothing");
    set_total(&x, x.b.t, bound);
    expect_held(&x, x.b.t, bound);
    fixture_close(&x.b);
}

/* Memory is taken between the loss and its backward: the suspended step is planned anew for the remaining memory. */
Test(total_budget, allocations_while_the_step_is_suspended)
{
    struct world x = open_world();
    const size_t bound = least(&x, x.b.t) + 16 * BYTES;
    rw_tape *u = add_tape(&x, "none");
    rw_tensor *const loss = chain(&x, x.b.t, LINKS);
    set_total(&x, x.b.t, bound);
    rw_item(x.b.t, loss);
    cr_expect_eq(stats(&x).runs, 1);
    rw_input(u, RW_F32, RW_SHAPE(15 * N), NULL, 0);
    cr_assert_gt(held(&x), bound, "or this shows nothing");
    ok(&x, rw_backward(x.b.t, loss));
    cr_expect_leq(held(&x), bound, "%zu held, %zu allowed", held(&x), bound);
    expect_plain_gradients(&x);
    rw_tape_destroy(&u);
    fixture_close(&x.b);
}

/* Other steps take and free arenas between the launches. Memory that the graph has not counted makes a launch fail,
   without other effect: launches succeed after it is freed. */
Test(total_budget, graphs)
{
    struct world x = open_world();
    rw_graph *g = NULL;
    rw_optimizer *opt = NULL;
    rw_tape *u = add_tape(&x, "none");
    const size_t bound = least(&x, x.b.t);
    rw_tensor *const loss = chain(&x, x.b.t, LINKS);
    set_total(&x, x.b.t, bound);
    ok(&x, rw_graph_create(&g, x.b.t, loss, NULL));
    for (int i = 0; i < 4; i++) {
        ok(&x, rw_graph_launch(g));
        cr_expect_eq(held(&x), bound, "launch %d: %zu held, %zu allowed", i, held(&x), bound);
        expect_plain_gradients(&x);
        if (i % 2) continue;
        ok(&x, rw_backward(u, chain(&x, u, 2 * LINKS)));
        cr_assert_gt(held(&x), bound, "or this shows nothing");
        rw_tape_reset(u);
        rw_zero_grad(x.b.ctx);
    }
    ok(&x, rw_adamw_create(&opt, x.b.ctx, NULL));
    char said[64];
    snprintf(said, sizeof said, "the minimum is total:%zuB", bound + stats(&x).optimizer);
    cr_expect_eq(rw_graph_launch(g), RW_ERR_BUDGET);
    cr_expect(strstr(rw_error_message(x.b.ctx), said), "%s, not %s", rw_error_message(x.b.ctx), said);
    rw_error_clear(x.b.ctx);
    rw_optimizer_destroy(&opt);
    ok(&x, rw_graph_launch(g));
    expect_plain_gradients(&x);
    rw_graph_destroy(&g);
    rw_tape_destroy(&u);
    fixture_close(&x.b);
}

/* A graph frees the arena of another one, which requests its former arena again. */
Test(total_budget, graphs_of_two_tapes)
{
    struct world x = open_world();
    rw_graph *g[2] = { NULL };
    rw_tape *t[2] = { add_tape(&x, "none"), add_tape(&x, "none") };
    for (int i = 0; i < 2; i++) {
        rw_prediction p;
        rw_tensor *const loss = chain(&x, t[i], LINKS << i);
        ok(&x, rw_tape_plan(t[i], loss, "none", &p));
        set_total(&x, t[i], p.total_bytes + 1024 + (i ? 0 : BYTES)); /* including the results of both */
        ok(&x, rw_graph_create(&g[i], t[i], loss, NULL));
    }
    for (int i = 0; i < 6; i++) {
        ok(&x, rw_graph_launch(g[i % 2]));
        if (i % 2 == 0) expect_plain_gradients(&x);
    }
    for (int i = 0; i < 2; i++) rw_graph_destroy(&g[i]);
    for (int i = 0; i < 2; i++) rw_tape_destroy(&t[i]);
    fixture_close(&x.b);
}

static void give_gradients_up(const struct world *x, rw_optimizer *opt)
{
    rw_graph *g = NULL;
    rw_tape *u = add_tape(x, "none");
    const size_t before = stats(x).gradients;
    rw_zero_grad(x->b.ctx);
    ok(x, rw_graph_create(&g, u, chain(x, u, 2), &(rw_graph_params){ { rw_record_update_inside(opt) } }));
    ok(x, rw_graph_launch(g));
    rw_graph_destroy(&g);
    rw_tape_destroy(&u);
    cr_assert_eq(stats(x).gradients, before - BYTES, "or this shows nothing");
}

/* A fused update has freed gradients: the next backward allocates them again, and they count. */
Test(total_budget, gradients_that_have_no_memory_yet)
{
    struct world x = open_world();
    struct world other = x; /* another parameter of the same context */
    rw_optimizer *opt = NULL;
    other.w = rw_param(x.b.ctx, "v", RW_F32, RW_SHAPE(N));
    ok(&x, rw_adamw_create(&opt, x.b.ctx, NULL));
    give_gradients_up(&x, opt);
    const size_t bound = least(&x, x.b.t);
    set_total(&x, x.b.t, bound);
    expect_held(&x, x.b.t, bound);
    cr_expect_eq(stats(&x).gradients, 2 * BYTES);
    rw_tape_reset(x.b.t);
    give_gradients_up(&other, opt); /* as many bytes, which the step does not need: a plan of its own */
    expect_held(&x, x.b.t, bound);
    cr_expect_eq(stats(&x).gradients, BYTES);
    rw_optimizer_destroy(&opt);
    fixture_close(&x.b);
}

/* The verifier's own memory is not bounded, but that of the verified step is. */
Test(total_budget, verified)
{
    setenv("REWIND_VERIFY", "1", 1);
    struct world x = open_world();
    unsetenv("REWIND_VERIFY");
    ckpt_report report;
    const size_t bound = least(&x, x.b.t);
    set_total(&x, x.b.t, bound);
    rw_tensor *const loss = chain(&x, x.b.t, LINKS);
    ok(&x, ckpt_verify(x.b.t, loss, &report));
    cr_expect_eq(report.mismatches, 0);
    ok(&x, rw_backward(x.b.t, loss));
    expect_plain_gradients(&x);
    fixture_close(&x.b);
}

/* A gradient that the program wants to read is a result. The rehearsal has none, so it is counted once, and it is not
   read before the step has run. */
Test(total_budget, verified_with_a_gradient_to_read)
{
    setenv("REWIND_VERIFY", "1", 1);
    struct world x = open_world();
    unsetenv("REWIND_VERIFY");
    rw_prediction p;
    for (int pass = 0; pass < 2; pass++) {
        rw_tensor *const y = rw_require_grad(x.b.t, rw_mul(x.b.t, x.w, x.w));
        rw_tensor *const loss = rw_mean(x.b.t, rw_tanh(x.b.t, rw_mul(x.b.t, y, y)), RW_ALL_AXES, false);
        set_total(&x, x.b.t, least_of(&x, x.b.t, loss));
        ok(&x, ckpt_verify(x.b.t, loss, NULL));
        cr_expect_null(rw_gradient(y), "a rehearsal's");
        rw_error_clear(x.b.ctx);
        ok(&x, rw_tape_plan(x.b.t, loss, NULL, &p));
        ok(&x, rw_backward(x.b.t, loss));
        cr_expect_eq(stats(&x).measured_peak, p.peak_bytes);
        cr_expect_not_null(rw_gradient(y));
        clear(&x, x.b.t);
    }
    fixture_close(&x.b);
}

/* The pool itself: the previous arena, whether it still exists, and the one that may stay. */
Test(total_budget, arenas_of_the_pool)
{
    struct fixture b = fixture_open(1, 1);
    struct rw_arenas pool = { 0 };
    struct rw_arena *a[3], *again = NULL;
    for (size_t i = 0; i < 3; i++) cr_assert_eq(rw_arena_borrow(b.ctx, &pool, NULL, i ? 4096 : 8192, &a[i]), RW_OK);
    for (int i = 0; i < 3; i++) rw_arena_give_back(a[i]);
    cr_assert_eq(rw_arena_borrow(b.ctx, &pool, a[1], 4096, &again), RW_OK);
    cr_expect_eq(again, a[1], "the one it had, of two that fit");
    rw_arena_give_back(again);
    cr_expect_eq(rw_arena_growth(b.ctx, &pool, NULL, 8192), 0);
    cr_expect_eq(rw_arena_growth(b.ctx, &pool, NULL, 8193), 8193);
    rw_arenas_free_others(b.ctx, &pool, a[1], 4096);
    cr_expect(pool.first == a[1] && !a[1]->next, "of one that fits only that stays");
    cr_assert_eq(rw_arena_borrow(b.ctx, &pool, a[2], 4096, &again), RW_OK);
    cr_expect_eq(again, a[1], "the one it had is no more");
    rw_arena_give_back(again);
    rw_arenas_free_others(b.ctx, &pool, a[1], 4095);
    cr_expect_null(pool.first, "a larger one does not stay");
    rw_arenas_finish(b.ctx, &pool);
    fixture_close(&b);
}
