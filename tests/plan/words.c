/* Operand words: how far they reach, what they name, and that a plan too large for them is refused. Nothing runs. */
#include "support/support.h"

#include "plan/cache.h"
#include "run/touch.h"

#include <criterion/criterion.h>

#define GIB ((int64_t)1 << 30)

/* d/dx sum(exp(x) * tanh(x)): three values of `elements` are alive when backward begins. */
static rw_status plan_of(struct fixture *b, int64_t elements, rw_plan **ret_plan)
{
    rw_tensor *const x = rw_require_grad(b->t, rw_rand(b->t, RW_F32, RW_SHAPE(elements)));
    rw_tensor *const loss = rw_sum(b->t, rw_mul(b->t, rw_exp(b->t, x), rw_tanh(b->t, x)), RW_ALL_AXES, false);
    cr_assert_not_null(loss, "%s", rw_error_message(b->ctx));
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1,
                                        .policy = &b->t->policy };
    return rw_plan_get(b->t, &request, ret_plan);
}

Test(words, reach_beyond_256_gib)
{
    struct fixture b = fixture_open(1, 0);
    rw_plan *plan = NULL;
    cr_assert_eq(plan_of(&b, 25 * GIB, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_gt(plan->arena_bytes, (uint64_t)256 * GIB);
    uint64_t highest = 0;
    for (size_t i = 0; i < plan->n_words; i++)
        if (!rw_word_is_source(plan->words[i]) && rw_word_offset(plan, plan->words[i]) > highest)
            highest = rw_word_offset(plan, plan->words[i]);
    cr_assert_gt(highest, (uint64_t)100 * GIB);
    cr_assert(rw_plan_is_valid(b.t, plan));
    fixture_close(&b);
}

/* All of the arena is used by somebody first, and once. */
Test(words, memory_is_used_first_by_one_action)
{
    struct fixture b = fixture_open(1, 0);
    rw_plan *plan = NULL;
    struct rw_touches touches = { 0 };
    const uint64_t page = 4096;
    cr_assert_eq(plan_of(&b, 100000, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_gt(plan->arena_bytes, 1000000);
    for (int i = 0; i < 2; i++) {
        uint64_t sum = 0;
        cr_assert_eq(rw_touches_count(&touches, b.t, plan), RW_OK);
        for (size_t k = 0; k < plan->n_actions; k++) sum += touches.bytes[k];
        cr_expect_eq(touches.sum, sum);
        cr_expect(sum + page > plan->largest_live && sum < plan->arena_bytes + page);
    }
    rw_touches_finish(&touches);
    fixture_close(&b);
}

Test(words, a_plan_beyond_their_reach_is_refused)
{
    struct fixture b = fixture_open(1, 0);
    rw_plan *plan = NULL;
    cr_assert_eq(plan_of(&b, 400 * GIB, &plan), RW_ERR_MEMORY);
    cr_assert_null(plan);
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    cr_assert_eq(plan_of(&b, 1000, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(words, every_source_is_named_and_every_workspace_belongs_to_an_action)
{
    struct fixture b = fixture_open(1, 0);
    struct net net = { 0 };
    net.dropout = 0.1f;
    net_init(&net, b.ctx, 3, 32, RW_F32, 2);
    rw_tensor *const loss = net_loss(&net, b.t, 12, 0);
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1,
                                        .policy = &b.t->policy };
    rw_plan *plan = NULL;
    cr_assert_eq(rw_plan_get(b.t, &request, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    size_t named[RW_SOURCE_NOWHERE + 1] = { 0 };
    for (size_t i = 0; i < plan->n_words; i++)
        if (rw_word_is_source(plan->words[i])) named[plan->sources[rw_word_source(plan->words[i])].kind]++;
    cr_assert(named[RW_SOURCE_PARAM] && named[RW_SOURCE_GRADIENT] && named[RW_SOURCE_INPUT] && named[RW_SOURCE_RESULT]);
    for (size_t i = 0; i < plan->n_workspaces; i++) {
        const struct rw_action *const a = &plan->actions[plan->workspaces[i].action];
        const struct rw_node *const node = a->node < plan->mark_nodes ? &b.t->nodes[a->node]
                                                                      : &plan->nodes[a->node - plan->mark_nodes];
        cr_assert_eq(a->n_words, node->n_inputs + node->n_outputs + 1);
        cr_assert_gt(plan->workspaces[i].bytes, 0);
    }
    fixture_close(&b);
}
