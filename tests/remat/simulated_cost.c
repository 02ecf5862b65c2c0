/*
 * The cost that rw_simulate() predicts for a choice is the cost of its plan: compared with the plan's own numbers, and
 * with the oracle, which uses no buffers. Simulations after the first allocate nothing.
 */
#include "remat/manual_choice_fixture.h"
#include "remat/plan_cost_oracle.h"

#include "base/alloc.h"
#include "models/model.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static const char *const policies[] = { "none", "full", "selective:block,outer", "selective:core_attn,middle",
                                        "selective:mlp,inner", "uniform:1", "uniform:2", "block:1", "block:2",
                                        "ops:matmul,linear", "ops:attention,gelu_tanh", "names:keep=up" };
#define POLICIES (sizeof policies / sizeof *policies)

/* ---- the programs ---- */

#define SEQ 24

enum { NET, DEEP_NET, GPT, GPT_SCORES, LLAMA, PROGRAMS };

static rw_tensor *model_step(struct fixture *b, enum model_kind kind, bool scores)
{
    static struct model m;
    static const int32_t tokens[2 * SEQ] = { 5, 3, 200, 17, 90 }, targets[2 * SEQ] = { 3, 200, 17, 90, 41 };
    struct model_config config = { 0 };
    cr_assert(model_preset(&config, "tiny"));
    config.kind = kind;
    config.scores = scores;
    config.layers = 3;
    config.dropout = 0.1f;
    config.max_seq = SEQ;
    cr_assert_eq(model_create(&m, b->ctx, &config), RW_OK, "%s", rw_error_message(b->ctx));
    return model_loss(&m, b->t, 2, SEQ, tokens, targets);
}

static rw_tensor *record(struct fixture *b, int program)
{
    static struct net net;
    switch (program) {
    case NET:
    case DEEP_NET:
        net_init(&net, b->ctx, 4, 32, program == NET ? RW_F32 : RW_BF16, program == NET ? 1 : 3);
        return net_loss(&net, b->t, 11, 0);
    case GPT: return model_step(b, MODEL_GPT, false);
    case GPT_SCORES: return model_step(b, MODEL_GPT, true);
    default: return model_step(b, MODEL_LLAMA, false);
    }
}

static bool same_cost(const struct rw_cost_of_schedule *a, const struct rw_cost_of_schedule *b)
{
    return a->peak == b->peak && a->peak_action == b->peak_action && a->kept == b->kept && a->replayed == b->replayed &&
           a->workspace == b->workspace && a->n_replays == b->n_replays && a->seconds == b->seconds;
}

static void check_plan(const struct rw_planning *g, const rw_plan *plan, const char *policy)
{
    const struct oracle o = oracle_of(g->problem.t, plan);
    cr_assert_null(o.fault, "%s: action %u %s", policy, o.action, o.fault);
    cr_expect_eq(o.peak, g->cost.peak, "%s: %llu and %llu", policy, (unsigned long long)o.peak,
                 (unsigned long long)g->cost.peak);
    cr_expect_eq(o.kept, g->cost.kept);
    cr_expect_eq(o.n_replays, g->cost.n_replays);
    cr_expect_eq(plan->largest_live, g->cost.peak);
    cr_expect_eq(plan->kept_bytes, g->cost.kept);
    cr_expect_eq(plan->replayed_bytes, g->cost.replayed);
    cr_expect_eq(plan->workspace_bytes, g->cost.workspace);
    cr_expect_eq(plan->cost.replayed_nodes, g->cost.n_replays);
    cr_expect_leq(g->cost.peak, plan->arena_bytes);
}

/* Compares the simulated cost of a policy with its plan and with the oracle. */
static void check_policy(struct fixture *b, uint32_t loss, const char *policy, struct rw_simulation *sim)
{
    struct rw_planning g;
    struct rw_cost_of_schedule cost, brief;
    rw_plan *plan = NULL;
    cr_assert_eq(ckpt_set_policy(b->t, policy), RW_OK);
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss, .n_values = 1, .policy = &b->t->policy };
    cr_assert_eq(rw_planning_open(&g, b->t, &request), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_planning_place(&g, &plan), RW_OK);
    check_plan(&g, plan, policy);
    cr_assert_eq(rw_simulate(&g.problem, &g.choice, sim, &cost), RW_OK);
    cr_expect(same_cost(&cost, &g.cost), "%s", policy);
    const uint64_t allocations = rw_alloc_count();
    cr_assert_eq(rw_simulate(&g.problem, &g.choice, sim, &cost), RW_OK);
    cr_expect_eq(rw_alloc_count(), allocations, "%s", policy);
    cr_expect(same_cost(&cost, &g.cost), "%s, again", policy);
    cr_assert_eq(rw_simulate_briefly(&g.problem, &g.choice, sim, &brief), RW_OK);
    cr_expect(brief.peak == cost.peak && brief.moved == cost.moved && brief.seconds == cost.seconds, "%s", policy);
    rw_plan_release(plan);
    rw_planning_close(&g);
}

/* The state that one program leaves in the memory of a simulation does not affect the next. */
Test(simulated_cost, is_what_the_plan_of_every_policy_and_model_costs)
{
    struct rw_simulation sim = { 0 };
    for (int program = 0; program < PROGRAMS; program++) {
        struct fixture b = fixture_open(3, 2);
        const uint32_t loss = record(&b, program)->id;
        cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
        for (size_t i = 0; i < POLICIES; i++) check_policy(&b, loss, policies[i], &sim);
        fixture_close(&b);
    }
    rw_simulation_finish(&sim);
}

/* Offloaded values: they do not count for the arena, and a copy that reads is waited for. */
Test(simulated_cost, is_what_a_plan_with_moves_costs)
{
    for (uint32_t k = 1; k <= 4; k++) {
        struct fixture b = fixture_open(3, 2);
        struct by_hand h;
        struct rw_cost_of_schedule kept;
        by_hand_open(&h, &b, record(&b, NET));
        cr_assert_eq(rw_simulate(&h.g.problem, &h.g.choice, &h.sim, &kept), RW_OK);
        for (uint32_t v = 0; v < h.g.problem.mark.values; v++)
            if (rw_problem_makes(&h.g.problem, v) && !h.g.problem.wanted[v] && v % k == 0)
                h.g.choice.fate[v].what = RW_MOVE;
        const rw_plan *const plan = by_hand_plan(&h);
        check_plan(&h.g, plan, "moves");
        cr_expect_gt(plan->n_slots, 0);
        cr_expect_lt(h.g.cost.kept, kept.kept);
        by_hand_close(&h);
        fixture_close(&b);
    }
}

/* The oracle must detect plans with one wrong word. */
Test(simulated_cost, the_oracle_sees_a_wrong_word)
{
    struct fixture b = fixture_open(3, 2);
    struct by_hand h;
    size_t tried = 0;
    by_hand_open(&h, &b, record(&b, NET));
    rw_plan *const plan = (rw_plan *)(uintptr_t)by_hand_plan(&h);
    for (size_t i = 0; i < plan->n_actions; i++)
        for (uint32_t k = 0; k < b.t->nodes[plan->actions[i].node].n_inputs; k++) {
            uint32_t *const word = &plan->words[plan->actions[i].word + k], was = *word;
            if (rw_word_is_source(was) || !was) continue;
            *word = was - 1;
            tried++;
            cr_expect_not_null(oracle_of(h.g.problem.t, plan).fault, "input %u of action %zu", k, i);
            *word = was;
        }
    cr_expect_gt(tried, 30);
    by_hand_close(&h);
    fixture_close(&b);
}
