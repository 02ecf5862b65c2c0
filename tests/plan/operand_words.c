/* Operand words: their range, what they refer to, and that a plan too large for them is refused. Nothing is
   executed. */
#include "support/support.h"

#include "plan/cache.h"
#include "run/modelled_cache_misses.h"

#include <criterion/criterion.h>

#define GIB ((int64_t)1 << 30)

/* d/dx sum(exp(x) * tanh(x)): three values of `elements` are live when backward begins. */
static rw_status plan_of(struct fixture *b, int64_t elements, rw_plan **ret_plan)
{
    rw_tensor *const x = rw_require_grad(b->t, rw_rand(b->t, RW_F32, RW_SHAPE(elements)));
    rw_tensor *const loss = rw_sum(b->t, rw_mul(b->t, rw_exp(b->t, x), rw_tanh(b->t, x)), RW_ALL_AXES, false);
    cr_assert_not_null(loss, "%s", rw_error_message(b->ctx));
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1,
                                        .policy = &b->t->policy };
    return rw_plan_get(b->t, &request, ret_plan);
}

Test(operand_words, reach_beyond_256_gib)
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

/* ---- cache misses of ops that overwrite nothing ---- */

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

/* A row of n ops with caches that hold so many pages; the last one's result is not in the arena. */
static void expect_far(int n, const rw_op_def *op, uint64_t near_pages, const uint64_t *want_pages)
{
    struct fixture b = fixture_open(1, 0);
    rw_plan *plan = NULL;
    struct rw_cache_misses far = { 0 };
    rw_tensor *x = rw_input(b.t, RW_F32, RW_SHAPE(PAGES * PAGE / sizeof(float)), NULL, 0);
    for (int i = 0; i < n; i++) x = rw_apply(b.t, i ? &plain_op : op, &x, 1, NULL, 0, NULL);
    const struct rw_request request = { .kind = RW_PLAN_EVAL, .values = &x->id, .n_values = 1,
                                        .policy = &b.t->policy };
    cr_assert_eq(rw_plan_get(b.t, &request, &plan), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(plan->n_actions, (size_t)n);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(rw_cache_misses_count(&far, b.t, plan, i == 1 ? UINT64_MAX : near_pages * PAGE), RW_OK);
        for (int k = 0; k < n; k++)
            cr_expect_eq(far.fetched[k].far, i == 1 ? 0 : want_pages[k] * PAGE, "%s, %d: %llu bytes", op->name, k,
                         (unsigned long long)far.fetched[k].far);
    }
    rw_cache_misses_finish(&far);
    fixture_close(&b);
}

/* If the cache holds nothing, everything that an op reads, writes and uses as workspace misses. If it holds two values,
   the input and the first result hit, from the step before; a dead value's memory is reused by the next. */
Test(operand_words, cache_misses_are_what_caches_do_not_hold)
{
    enum { P = PAGES, WORK = 3 };
    expect_far(4, &plain_op, 0, (uint64_t[]){ 2 * P, 2 * P, 2 * P, 2 * P });
    expect_far(2, &working_op, 0, (uint64_t[]){ 2 * P + WORK, 2 * P });
    expect_far(4, &plain_op, 2 * P, (uint64_t[]){ 0, P, 0, P });
    expect_far(4, &plain_op, 3 * P, (uint64_t[]){ 0, 0, 0, P });
    expect_far(2, &working_op, 2 * P, (uint64_t[]){ WORK, P - WORK + WORK });
}
