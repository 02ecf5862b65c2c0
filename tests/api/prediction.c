/*
 * rw_tape_plan(): its prediction is exactly what the step then takes, to the byte. A prediction runs nothing, allocates
 * nothing on the device and has no lasting effect.
 */
#include "support/support.h"

#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char *const policies[] = { "none", "full", "selective:outer", "selective:inner", "uniform:2", "block:1",
                                        "ops:linear" };
#define N_POLICIES (sizeof policies / sizeof *policies)

static size_t arena_of(const rw_memory_breakdown *b)
{
    return b->transient + b->kept + b->replayed + b->adjoint + b->workspace + b->fragmentation;
}

static void expect_sums(const rw_prediction *p, const char *policy)
{
    const rw_memory_breakdown *const b = &p->at_peak;
    cr_expect_eq(arena_of(b), p->peak_bytes, "%s: the arena's parts sum to %zu, not %zu", policy, arena_of(b),
                 p->peak_bytes);
    cr_expect_eq(p->peak_bytes - b->fragmentation, p->largest_live, "%s", policy);
    cr_expect_eq(p->total_bytes, b->parameters + b->gradients + b->optimizer + b->inputs + b->results + arena_of(b),
                 "%s", policy);
}

Test(prediction, says_what_the_step_then_takes)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_optimizer *opt = NULL;
    net_init(&n, b.ctx, 4, 32, RW_F32, 2);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    for (size_t i = 0; i < N_POLICIES; i++) {
        rw_prediction p, own;
        rw_memory m;
        rw_cost cost;
        rw_tensor *const loss = net_loss(&n, b.t, 24, 0);
        cr_assert_eq(rw_tape_plan(b.t, loss, policies[i], &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(ckpt_set_policy(b.t, policies[i]), RW_OK);
        cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &own), RW_OK);
        cr_assert_eq(own.peak_bytes, p.peak_bytes, "the tape's own policy is the same one");
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        rw_item(b.t, loss);
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
        cr_expect_eq(p.peak_bytes, m.measured_peak, "%s: %zu, measured %zu", policies[i], p.peak_bytes,
                     m.measured_peak);
        cr_expect_eq(p.largest_live, m.largest_live);
        cr_expect(!memcmp(&p.cost, &cost, sizeof cost), "%s", policies[i]);
        cr_expect_eq(p.at_peak.parameters, m.parameters);
        cr_expect_eq(p.at_peak.gradients, m.gradients);
        cr_expect_eq(p.at_peak.optimizer, m.optimizer);
        cr_expect_eq(p.at_peak.inputs, m.inputs);
        cr_expect_eq(p.at_peak.results, m.results, "%s: %zu, not %zu", policies[i], p.at_peak.results, m.results);
        expect_sums(&p, policies[i]);
        cr_expect_gt(p.ms, 0);
        rw_tape_reset(b.t);
        rw_zero_grad(b.ctx);
    }
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* A step also computes what the last one read, here a value that needs a large one, which the loss does not need. The
   predicted step is that one, and a per cent budget is of its arena. */
Test(prediction, of_a_step_that_computes_what_the_last_one_read)
{
    static const char *const logged[] = { "none", "budget:90%", "full", "budget:600000B" };
    for (int i = 0; i < 4; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64, 64));
        cr_assert_eq(rw_init_constant(w, 0.125), RW_OK);
        cr_assert_eq(ckpt_set_policy(b.t, logged[i]), RW_OK);
        for (int step = 0; step < 4; step++) {
            rw_prediction p, none;
            rw_memory m;
            rw_cost cost;
            rw_frontier_point point[64];
            size_t n = 64;
            rw_tensor *y = w;
            for (int layer = 0; layer < 6; layer++) y = rw_gelu(b.t, rw_linear(b.t, y, w, RW_NONE));
            rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
            rw_tensor *const large = rw_exp(b.t, rw_concat(b.t, (rw_tensor *[]){ y, y, y, y, y, y, y, y }, 8, 0));
            rw_tensor *const metric = rw_mean(b.t, rw_tanh(b.t, large), RW_ALL_AXES, false);
            cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
            cr_assert_eq(rw_tape_frontier(b.t, loss, point, &n), RW_OK);
            cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK);
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
            cr_expect_eq(p.peak_bytes, m.measured_peak, "%s, step %d: %zu, measured %zu", logged[i], step,
                         p.peak_bytes, m.measured_peak);
            cr_expect(!memcmp(&p.cost, &cost, sizeof cost), "%s, step %d", logged[i], step);
            if (i == 1) cr_expect_leq(m.measured_peak, none.peak_bytes * 9 / 10);
            if (i == 3) cr_expect_leq(m.measured_peak, 600000u);
            cr_expect_geq(none.peak_bytes, point[0].peak_bytes);
            rw_item(b.t, metric);
            rw_zero_grad(b.ctx);
            rw_tape_reset(b.t);
        }
        fixture_close(&b);
    }
}

static int allocations;
static const struct rw_device_fns *below;

static void *count_alloc(void *state, size_t bytes)
{
    allocations++;
    return below->alloc(state, bytes);
}

/* x -> x^2 -> ... in a region: five values of equal size, of which backward reads four. */
static rw_tensor *chain(struct fixture *b, int64_t n)
{
    rw_tensor *y = rw_require_grad(b->t, rw_input(b->t, RW_F32, RW_SHAPE(n), NULL, 0));
    ckpt_begin(b->t, "r");
    for (int i = 0; i < 4; i++) y = counted_square(b->t, y, i);
    ckpt_end(b->t);
    return rw_sum(b->t, y, RW_ALL_AXES, false);
}

Test(prediction, runs_nothing_and_leaves_nothing)
{
    struct fixture b = fixture_open(1, 1);
    counted_clear();
    rw_tensor *const loss = chain(&b, 1000);
    struct rw_device_fns counting = *(below = b.ctx->device);
    counting.alloc = count_alloc;
    b.ctx->device = &counting;
    const struct rw_tape_mark before = rw_tape_mark(b.t);
    const rw_generator_state drawn = rw_generator_get(b.ctx);
    const struct rw_plan_cache cache = *rw_plan_cache_of(b.ctx);
    rw_memory m;
    for (size_t i = 0; i < N_POLICIES; i++) {
        rw_prediction p;
        if (strncmp(policies[i], "ops:", 4)) cr_assert_eq(rw_tape_plan(b.t, loss, policies[i], &p), RW_OK);
    }
    static const char *const budgets[] = { "budget:95%", "budget:95%+offload", "total:1GiB", "budget:1B" };
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
        rw_prediction p;
        cr_assert_eq(rw_tape_plan(b.t, loss, budgets[i], &p), i < 3 ? RW_OK : RW_ERR_BUDGET);
        rw_error_clear(b.ctx);
    }
    rw_frontier_point points[16];
    size_t n = 16;
    cr_assert_eq(rw_tape_frontier(b.t, loss, points, &n), RW_OK);
    const struct rw_tape_mark after = rw_tape_mark(b.t);
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_expect_eq(allocations, 0, "%d allocations on the device", allocations);
    for (int i = 0; i < 4; i++) cr_expect_eq(counted_runs[i], 0);
    cr_expect(!memcmp(&before, &after, sizeof before), "the tape is not what it was");
    cr_expect_eq(rw_generator_get(b.ctx).offset, drawn.offset);
    const struct rw_plan_cache *const now = rw_plan_cache_of(b.ctx);
    cr_expect(now->n == cache.n && now->hits == cache.hits && now->misses == cache.misses);
    cr_expect_eq(m.measured_peak, 0);
    cr_expect_str_eq(ckpt_policy(b.t), "none");
    b.ctx->device = below;
    fixture_close(&b);
}

/* The live bytes at the peak: under none all values that backward reads and the first gradient; under full one
   chain. */
Test(prediction, says_where_and_of_what)
{
    struct fixture b = fixture_open(1, 1);
    const size_t value = 1024 * sizeof(float);
    rw_prediction none, full;
    rw_tensor *const loss = chain(&b, 1024);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
    cr_assert_eq(rw_tape_plan(b.t, loss, "full", &full), RW_OK);
    cr_expect_eq(none.at_peak.replayed, 0);
    cr_expect_geq(none.at_peak.kept, 3 * value);
    cr_expect_geq(full.at_peak.replayed, 3 * value, "%zu", full.at_peak.replayed);
    cr_expect_eq(full.at_peak.kept, 0, "%zu kept: the input is no value of the arena", full.at_peak.kept);
    const rw_prediction *const both[] = { &none, &full };
    for (int i = 0; i < 2; i++) {
        const rw_peak_location *const w = &both[i]->where;
        cr_expect_str_eq(w->op, "counted_square", "%s", w->op);
        cr_expect_str_eq(w->region, "r");
        cr_expect(strstr(w->file, "support.c"), "%s", w->file);
        cr_expect_gt(w->line, 0);
        cr_expect_lt(w->action, w->actions);
        expect_sums(both[i], i ? "full" : "none");
    }
    /* Under none the peak is first reached when the fourth square is computed while three are kept. Under full it is
       after the four squares, their sum and its gradient, when the third value is recomputed. */
    cr_expect(!strcmp(none.where.kind, "forward") && none.where.action == 3, "%s, %zu", none.where.kind,
              none.where.action);
    cr_expect(!strcmp(full.where.kind, "replay") && full.where.action == 8, "%s, %zu", full.where.kind,
              full.where.action);
    fixture_close(&b);
}

Test(prediction, a_failure_leaves_the_answer_untouched)
{
    struct fixture b = fixture_open(1, 1);
    rw_prediction p, same;
    memset(&p, 0x5a, sizeof p);
    same = p;
    rw_tensor *const loss = chain(&b, 16);
    cr_assert_eq(rw_tape_plan(b.t, loss, "ops:nothing", &p), RW_ERR_POLICY);
    cr_expect(strstr(rw_error_message(b.ctx), "column 5"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_tape_plan(b.t, loss, "selective:", &p), RW_ERR_POLICY);
    cr_expect(!memcmp(&p, &same, sizeof p));
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    fixture_close(&b);
}

/* ---- budgets ---- */

static rw_tensor *net_step(struct fixture *b, struct net *n)
{
    return net_loss(n, b->t, 24, 0);
}

Test(prediction, the_frontier_is_what_budgets_give)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_frontier_point points[256], few[3];
    rw_prediction none, p;
    size_t count = 256, room = 3, asked = 0;
    net_init(&n, b.ctx, 4, 32, RW_F32, 2);
    rw_tensor *const loss = net_step(&b, &n);
    cr_assert_eq(rw_tape_frontier(b.t, loss, points, &count), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_tape_frontier(b.t, loss, NULL, &asked), RW_OK);
    cr_assert_eq(asked, count);
    cr_assert_gt(count, 3);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
    cr_expect_leq(points[count - 1].ms, none.ms);
    cr_expect_leq(points[count - 1].peak_bytes, none.peak_bytes);
    for (size_t i = 1; i < count; i++) {
        cr_expect_gt(points[i].peak_bytes, points[i - 1].peak_bytes);
        cr_expect_lt(points[i].ms, points[i - 1].ms);
        cr_expect_leq(points[i].bound_ms, points[i - 1].bound_ms * (1 + 1e-9));
    }
    for (size_t i = 0; i < count; i++)
        cr_expect(points[i].bound_ms > 0 && points[i].bound_ms <= points[i].ms * (1 + 1e-9), "%g ms, bound %g",
                  points[i].ms, points[i].bound_ms);
    cr_expect_gt(points[0].bound_ms, points[count - 1].bound_ms, "a step with little memory replays");
    for (size_t i = 0; i < count; i += 1 + count / 8) {
        char policy[64];
        snprintf(policy, sizeof policy, "budget:%zuB", points[i].peak_bytes);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_eq(p.peak_bytes, points[i].peak_bytes, "%s: %zu", policy, p.peak_bytes);
        cr_expect_eq(p.ms, points[i].ms);
        cr_expect_eq(p.least_bytes, points[0].peak_bytes);
        cr_expect_eq(p.bound_ms, points[i].bound_ms, "%s: %g and %g", policy, p.bound_ms, points[i].bound_ms);
        cr_expect_float_eq(p.gap, p.ms / p.bound_ms - 1, 1e-12, "%s: %g", policy, p.gap);
        expect_sums(&p, policy);
    }
    cr_assert_eq(rw_tape_frontier(b.t, loss, few, &room), RW_OK);
    cr_expect(room == 3 && few[0].ms == points[0].ms && few[2].ms == points[count - 1].ms, "thinned");
    fixture_close(&b);
}

Test(prediction, below_the_least_that_is_named)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_frontier_point points[256];
    rw_prediction p, same;
    size_t count = 256;
    char policy[64];
    net_init(&n, b.ctx, 3, 32, RW_F32, 1);
    rw_tensor *const loss = net_step(&b, &n);
    cr_assert_eq(rw_tape_frontier(b.t, loss, points, &count), RW_OK);
    memset(&p, 0x5a, sizeof p);
    same = p;
    snprintf(policy, sizeof policy, "budget:%zuB", points[0].peak_bytes - 1);
    cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_ERR_BUDGET);
    cr_expect_eq(p.least_bytes, points[0].peak_bytes);
    same.least_bytes = p.least_bytes;
    cr_expect(!memcmp(&p, &same, sizeof p), "the rest is untouched");
    rw_error_clear(b.ctx);
    snprintf(policy, sizeof policy, "budget:%zuB", p.least_bytes);
    cr_expect_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK);
    fixture_close(&b);
}

/* Names in policies of parts, and what the tape has lost, matter under every budget. */
Test(prediction, the_frontier_is_refused_as_a_budget_is)
{
    static const char *const parts[] = { "ops:nothing", "selective:nothing" };
    for (int i = 0; i < 3; i++) {
        struct fixture b = { 0 };
        const rw_context_params params = { .device = test_device(), .threads = 1, .strict_policy = true };
        rw_weight_average *average = NULL;
        rw_frontier_point points[16];
        rw_prediction p;
        size_t n = 16;
        cr_assert_eq(rw_context_create(&b.ctx, &params), RW_OK);
        cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(64));
        rw_init_normal(w, 0, 1);
        if (i < 2) ckpt_policy_begin(b.t, parts[i]);
        else cr_assert_eq(rw_weight_average_create(&average, b.ctx, 0.9f), RW_OK);
        ckpt_begin(b.t, "r");
        rw_tensor *const x = rw_mul(b.t, rw_tanh(b.t, w), average ? rw_weight_average_of(average, w) : w);
        ckpt_end(b.t);
        if (i < 2) ckpt_policy_end(b.t);
        rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
        rw_weight_average_destroy(&average);
        const rw_status status = rw_tape_plan(b.t, loss, "budget:100%", &p);
        char message[400];
        snprintf(message, sizeof message, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_expect_eq(status, i < 2 ? RW_ERR_POLICY : RW_ERR_ARGUMENT, "%d: %s", i, message);
        cr_expect_eq(rw_tape_frontier(b.t, loss, points, &n), status, "%d", i);
        cr_expect_str_eq(rw_error_message(b.ctx), message);
        fixture_close(&b);
    }
}

/* If values may be offloaded, a bound that allows replays only does not hold: a fast store beats it. */
Test(prediction, budgets_with_offload_have_limits_of_their_own)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_prediction replays, moves, none;
    char policy[64];
    net_init(&n, b.ctx, 4, 32, RW_F32, 1);
    cr_assert_eq(rw_context_set_offload(b.ctx, &(rw_offload){ .out_bytes_per_s = 1e15, .in_bytes_per_s = 1e15 }),
                 RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = net_step(&b, &n);
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
    cr_assert_eq(rw_tape_plan(b.t, loss, "budget:70%", &replays), RW_OK);
    cr_assert_eq(rw_tape_plan(b.t, loss, "budget:70%+offload", &moves), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_lt(moves.ms, replays.bound_ms, "or this shows nothing");
    cr_expect_eq(moves.bound_ms, none.ms);
    cr_expect_geq(moves.gap, 0);
    cr_expect_leq(moves.least_bytes, replays.least_bytes);
    snprintf(policy, sizeof policy, "budget:%zuB+offload", moves.least_bytes);
    cr_expect_eq(rw_tape_plan(b.t, loss, policy, &moves), RW_OK, "%s", rw_error_message(b.ctx));
    snprintf(policy, sizeof policy, "budget:%zuB+offload", moves.least_bytes - 1);
    cr_expect_eq(rw_tape_plan(b.t, loss, policy, &moves), RW_ERR_BUDGET);
    fixture_close(&b);
}

/* If the tape's policy allows offload, each point, and a byte less, agrees with the prediction for a budget with
   +offload. */
Test(prediction, the_frontier_follows_the_tapes_policy_in_what_may_move)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_frontier_point replays[256], moves[256];
    rw_prediction p;
    size_t n_replays = 256, n_moves = 256, faster = 0;
    char policy[64];
    net_init(&n, b.ctx, 4, 32, RW_F32, 1);
    cr_assert_eq(rw_context_set_offload(b.ctx, &(rw_offload){ .out_bytes_per_s = 3e9, .in_bytes_per_s = 2e9 }), RW_OK);
    rw_tensor *const loss = net_step(&b, &n);
    cr_assert_eq(ckpt_set_policy(b.t, "budget:75%"), RW_OK);
    cr_assert_eq(rw_tape_frontier(b.t, loss, replays, &n_replays), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(ckpt_set_policy(b.t, "budget:1B+offload"), RW_OK);
    cr_assert_eq(rw_tape_frontier(b.t, loss, moves, &n_moves), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(n_moves > 3 && n_moves < 256);
    const size_t points = (size_t)test_steps((int)n_moves, 12); /* each takes two plans */
    const size_t apart = (n_moves + points - 1) / points;
    for (size_t i = 0; i < n_moves; i += apart) {
        cr_expect(!i || (moves[i].peak_bytes > moves[i - 1].peak_bytes && moves[i].ms < moves[i - 1].ms), "%zu", i);
        snprintf(policy, sizeof policy, "budget:%zuB+offload", moves[i].peak_bytes);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect(p.peak_bytes <= moves[i].peak_bytes && p.ms == moves[i].ms, "%s: %zu, %g", policy, p.peak_bytes,
                  p.ms);
        cr_expect(p.bound_ms == moves[i].bound_ms && p.least_bytes == moves[0].peak_bytes, "%s", policy);
        snprintf(policy, sizeof policy, "budget:%zuB+offload", moves[i].peak_bytes - 1);
        cr_expect_eq(rw_tape_plan(b.t, loss, policy, &p), i ? RW_OK : RW_ERR_BUDGET);
        cr_expect(!i || p.ms == moves[i - 1].ms, "%s: %g", policy, p.ms);
        rw_error_clear(b.ctx);
    }
    /* each point of replays only is matched, and some are beaten */
    for (size_t i = 0; i < n_replays; i++) {
        size_t k = n_moves;
        while (k && moves[k - 1].peak_bytes > replays[i].peak_bytes) k--;
        cr_assert(k && moves[k - 1].ms <= replays[i].ms, "%zu", i);
        faster += moves[k - 1].ms < replays[i].ms;
    }
    cr_expect_gt(faster, n_replays / 4, "%zu of %zu", faster, n_replays);
    fixture_close(&b);
}

/* All memory of the context is at most the total: predicted and measured, also if the optimizer is created later. */
Test(prediction, total_bounds_all_that_the_context_holds)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_optimizer *opt = NULL;
    rw_prediction none, p;
    rw_memory m;
    char policy[64];
    net_init(&n, b.ctx, 4, 32, RW_F32, 1);
    cr_assert_eq(rw_tape_plan(b.t, net_step(&b, &n), "none", &none), RW_OK);
    rw_tape_reset(b.t);
    const size_t fixed = none.total_bytes - none.peak_bytes, states = 2 * none.at_peak.parameters;
    const size_t bound = fixed + states + none.peak_bytes * 3 / 4;
    snprintf(policy, sizeof policy, "total:%zuB", bound);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < 3; step++) {
        if (step == 1) cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
        rw_tensor *const loss = net_step(&b, &n);
        cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_leq(p.total_bytes, bound);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK);
        rw_item(b.t, loss);
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_expect_eq(m.measured_peak, p.peak_bytes);
        cr_expect_leq(m.parameters + m.gradients + m.optimizer + m.inputs + m.results + m.measured_peak, bound);
        cr_expect_eq(p.cost.replayed_nodes > 0, step > 0, "step %d: the optimizer leaves less", step);
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
    }
    snprintf(policy, sizeof policy, "total:%zuB", fixed / 2);
    rw_tensor *const loss = net_step(&b, &n);
    cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_ERR_BUDGET);
    cr_expect(strstr(rw_error_message(b.ctx), "column 7") && strstr(rw_error_message(b.ctx), "is total:"), "%s",
              rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    snprintf(policy, sizeof policy, "total:%zuB", p.least_bytes);
    cr_expect_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_leq(p.total_bytes, p.at_peak.optimizer + fixed + none.peak_bytes);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* The gradient of an input needs no arena, but everything else does not fit either. */
Test(prediction, total_is_refused_where_the_arena_is_empty)
{
    struct fixture b = fixture_open(1, 1);
    rw_prediction p;
    char policy[64];
    rw_param(b.ctx, "other", RW_F32, RW_SHAPE(1 << 12));
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(1), (float[]){ 1 }, sizeof(float)));
    cr_assert_eq(rw_tape_plan(b.t, x, "none", &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(p.peak_bytes, 0);
    const size_t all = p.total_bytes;
    for (int less = 1; less >= 0; less--) {
        snprintf(policy, sizeof policy, "total:%zuB", all - (size_t)less);
        cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
        cr_expect_eq(rw_tape_plan(b.t, x, NULL, &p), less ? RW_ERR_BUDGET : RW_OK, "%s", policy);
        cr_expect_eq(p.least_bytes, all, "%s: %zu", policy, p.least_bytes);
        rw_error_clear(b.ctx);
        cr_expect_eq(rw_backward(b.t, x), less ? RW_ERR_BUDGET : RW_OK, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}

/* To the byte: a plan's own total suffices for it, and one byte less does not. */
Test(prediction, total_counts_every_byte_that_is_there)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    rw_optimizer *opt = NULL;
    rw_prediction some, p;
    char policy[64];
    net_init(&n, b.ctx, 4, 32, RW_F32, 1);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, NULL), RW_OK);
    rw_tensor *const loss = net_step(&b, &n);
    for (int percent = 90; percent > 30; percent -= 20) {
        snprintf(policy, sizeof policy, "budget:%d%%", percent);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &some), RW_OK, "%s", rw_error_message(b.ctx));
        const rw_memory_breakdown *const at = &some.at_peak;
        cr_assert(at->parameters && at->gradients && at->optimizer && at->inputs && at->results);
        snprintf(policy, sizeof policy, "total:%zuB", some.total_bytes);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect(p.total_bytes == some.total_bytes && p.ms == some.ms, "%s: %zu", policy, p.total_bytes);
        cr_expect_eq(p.least_bytes, some.least_bytes + some.total_bytes - some.peak_bytes);
        snprintf(policy, sizeof policy, "total:%zuB", some.total_bytes - 1);
        cr_assert_eq(rw_tape_plan(b.t, loss, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_lt(p.total_bytes, some.total_bytes, "%s: %zu", policy, p.total_bytes);
    }
    /* memory of another tape is added to it, also for a step that is already planned */
    rw_tape *other = NULL;
    snprintf(policy, sizeof policy, "total:%zuB", some.total_bytes);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tape_reset(b.t);
    rw_zero_grad(b.ctx);
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_input(other, RW_F32, RW_SHAPE(64), (float[64]){ 0 }, 64 * sizeof(float));
    rw_tensor *const again = net_step(&b, &n);
    rw_memory m;
    cr_assert_eq(rw_backward(b.t, again), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
    cr_expect_leq(m.parameters + m.gradients + m.optimizer + m.inputs + m.results + m.measured_peak, some.total_bytes);
    rw_tape_destroy(&other);
    rw_tape_reset(b.t);
    rw_tensor *const last = net_step(&b, &n);
    cr_assert_eq(rw_tape_plan(b.t, last, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
    const size_t least = p.least_bytes;
    snprintf(policy, sizeof policy, "total:%zuB", least - 1);
    cr_expect_eq(rw_tape_plan(b.t, last, policy, &p), RW_ERR_BUDGET);
    cr_expect_eq(p.least_bytes, least);
    rw_error_clear(b.ctx);
    snprintf(policy, sizeof policy, "total:%zuB", least);
    cr_expect_eq(rw_tape_plan(b.t, last, policy, &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(p.total_bytes, least);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* A loss computed from a gradient: x <- sin(tanh(x^2)), ten times, and the mean square of its rw_grad(). */
static rw_tensor *penalty(struct fixture *b, rw_tensor *w)
{
    rw_tensor *x = w, *g = NULL;
    for (int i = 0; i < 10; i++) x = rw_sin(b->t, rw_tanh(b->t, rw_mul(b->t, x, x)));
    rw_tensor *const y = rw_mean(b->t, rw_mul(b->t, x, x), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b->t, y, &w, 1, &g), RW_OK);
    return rw_add(b->t, y, rw_mean(b->t, rw_mul(b->t, g, g), RW_ALL_AXES, false));
}

/* If the loss is read before its backward, the step is a different one: rw_tape_plan() then predicts what backward
   does, down to the minimum that it names. If it is read afterwards, nothing changes. */
Test(prediction, a_loss_with_gradients_in_it)
{
    for (int before = 0; before < 2; before++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1024));
        rw_prediction p = { .least_bytes = 0 };
        rw_memory m;
        char policy[64];
        rw_init_normal(w, 0, 1);
        rw_tensor *const loss = penalty(&b, w);
        cr_assert_eq(rw_tape_plan(b.t, loss, "budget:1B", &p), RW_ERR_BUDGET);
        rw_error_clear(b.ctx);
        const size_t recorded = p.least_bytes;
        if (before) rw_item(b.t, loss);
        cr_assert_eq(rw_tape_plan(b.t, loss, "budget:1B", &p), RW_ERR_BUDGET);
        rw_error_clear(b.ctx);
        cr_expect(before || p.least_bytes == recorded);
        snprintf(policy, sizeof policy, "budget:%zuB", p.least_bytes - 1);
        cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
        cr_expect_eq(rw_backward(b.t, loss), RW_ERR_BUDGET);
        rw_error_clear(b.ctx);
        snprintf(policy, sizeof policy, "budget:%zuB", p.least_bytes);
        cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
        cr_assert_eq(rw_tape_plan(b.t, loss, NULL, &p), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        rw_item(b.t, loss);
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_expect_eq(m.measured_peak, p.peak_bytes);
        cr_expect_leq(m.predicted_peak, p.least_bytes);
        fixture_close(&b);
    }
}
