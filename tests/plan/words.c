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

/* ---- who is the first to use which memory, of ops that write over nothing ---- */

enum { PAGE = 4096, PAGES = 5 };

static size_t work_of(const rw_op_call *call)
{
    return call->op->name[0] == 'w' ? 3 * PAGE : 0;
}

static rw_status page_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status page_kernel(const rw_kernel *k)
{
    return RW_OK;
}

#define PAGE_OP(text) { .name = text, .n_inputs = 1, .n_outputs = 1, .check = page_check,              \
                        .workspace = { [RW_DEVICE_CPU] = work_of, [RW_DEVICE_CUDA] = work_of },        \
                        .kernel = { [RW_DEVICE_CPU] = page_kernel, [RW_DEVICE_CUDA] = page_kernel } }
static const rw_op_def plain_op = PAGE_OP("plain"), working_op = PAGE_OP("working");

/* A row of n ops; the last one's result is not in the arena. */
static void expect_touches(int n, const rw_op_def *op, const uint64_t *want, uint64_t sum)
{
    struct fixture b = fixture_open(1, 0);
    rw_plan *plan = NULL;
    struct rw_touches touches = { 0 };
    rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(PAGES * PAGE / sizeof(float)), NULL);
    for (int i = 0; i < n; i++) x = rw_apply(b.t, i ? &plain_op : op, &x, 1, NULL, 0, NULL);
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .values = &x->id, .n_values = 1,
                                        .policy = &b.t->policy };
    cr_assert_eq(rw_plan_get(b.t, &request, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert(plan->n_actions == (size_t)n && plan->arena_bytes == sum);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rw_touches_count(&touches, b.t, plan), RW_OK);
        for (int k = 0; k < n; k++)
            cr_expect_eq(touches.bytes[k], want[k], "%s, %d: %llu bytes", op->name, k,
                         (unsigned long long)touches.bytes[k]);
        cr_expect_eq(touches.sum, sum);
    }
    rw_touches_finish(&touches);
    fixture_close(&b);
}

/* Of values in a row two are alive at a time: the third has the first one's memory. What an op works in is its own. */
Test(words, memory_belongs_to_the_action_that_is_the_first_to_use_it)
{
    enum { ALL = PAGES * PAGE, WORK = 3 * PAGE };
    expect_touches(6, &plain_op, (uint64_t[]){ ALL, ALL, 0, 0, 0, 0 }, 2 * ALL);
    expect_touches(2, &working_op, (uint64_t[]){ ALL + WORK, 0 }, ALL + WORK);
    expect_touches(1, &working_op, (uint64_t[]){ WORK }, WORK);
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
