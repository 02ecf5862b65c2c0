/* The plan cache: each structure is planned once, and the least recently used plans are evicted. */
#include "support/support.h"

#include "base/alloc.h"
#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* Alternating structures: each is planned once, however often they alternate. */
Test(cache, one_plan_per_structure)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    for (int step = 0; step < 30; step++) {
        rw_zero_grad(b.ctx);
        cr_assert_eq(ckpt_set_policy(b.t, step % 2 ? "full" : "none"), RW_OK);
        cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, 4 + step % 3, step)), RW_OK);
        cr_assert(rw_plan_is_valid(b.t, rw_plan_cache_of(b.ctx)->entries[0].plan) || step);
        rw_tape_reset(b.t);
    }
    cr_assert_eq(rw_plan_cache_of(b.ctx)->misses, 6);
    cr_assert_eq(rw_plan_cache_of(b.ctx)->hits, 24);
    fixture_close(&b);
}

/* The same ops on the same shapes, with exchanged operands: another plan. */
Test(cache, operands_are_part_of_the_structure)
{
    struct fixture b = fixture_open(1, 1);
    for (int turn = 0; turn < 4; turn++) {
        const float x[] = { 1, 2, 3 }, y[] = { 10, 20, 30 };
        float got[3];
        rw_tensor *const in[] = { rw_input(b.t, RW_F32, RW_SHAPE(3), x, sizeof x),
                                  rw_input(b.t, RW_F32, RW_SHAPE(3), y, sizeof y) };
        rw_tensor *const d = rw_sub(b.t, in[turn % 2], in[!(turn % 2)]);
        cr_assert_eq(rw_read(b.t, d, got, sizeof got), RW_OK);
        for (int i = 0; i < 3; i++) cr_assert_eq(got[i], (turn % 2 ? 9 : -9) * (float)(i + 1));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(rw_plan_cache_of(b.ctx)->misses, 2);
    cr_assert_eq(rw_plan_cache_of(b.ctx)->hits, 2);
    fixture_close(&b);
}

/* ---- messages ---- */

static bool fails;

static rw_status check_own(rw_op_call *c)
{
    return rw_op_output_like(c, 0, 0);
}

static rw_status run_own(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

static rw_status run_own_backward(const rw_kernel *k)
{
    return fails ? RW_ERR_DEVICE : run_own(k);
}

static const rw_op_def own_backward = { .name = "own_backward", .n_inputs = 1, .n_outputs = 1, .check = check_own,
                                        .kernel = { [RW_DEVICE_CPU] = run_own_backward } };

static rw_status grad_own(rw_grad_call *g)
{
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, rw_apply(rw_grad_tape(g), &own_backward, &dy, 1, NULL, 0, NULL));
}

static const rw_op_def own = { .name = "own", .n_inputs = 1, .n_outputs = 1, .check = check_own,
                               .kernel = { [RW_DEVICE_CPU] = run_own }, .grad = grad_own };

/* The nodes of backward were recorded when the plan was made, for another tape: a message names the present call. */
Test(cache, a_failure_in_backward_names_the_line_of_the_present_step)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_init_constant(w, 1), RW_OK);
    for (int i = 0; i < 3; i++) {
        rw_tensor *const y = rw_apply_at((rw_site){ "model.c", 100 * (i + 1) }, b.t, &own, &w, 1, NULL, 0, NULL);
        fails = i == 2;
        cr_expect_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), fails ? RW_ERR_DEVICE : RW_OK);
        rw_tape_reset(b.t);
    }
    cr_expect_eq(rw_plan_cache_of(b.ctx)->misses, 1);
    cr_expect(strstr(rw_error_message(b.ctx), "own_backward recorded at model.c:300"), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* One plan; its structure is its number of tokens. */
static unsigned char *step(struct fixture *b, const struct net *n, int tokens, size_t *ret_bytes)
{
    rw_zero_grad(b->ctx);
    rw_generator_set(b->ctx, (rw_generator_state){ 3, 1000 });
    cr_assert_eq(rw_backward(b->t, net_loss(n, b->t, tokens, tokens)), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return all_gradients(b->ctx, ret_bytes);
}

/* The least recently used plan is evicted, not the oldest. */
Test(cache, evicts_for_the_newest)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    size_t bytes;
    net_init(&n, b.ctx, 1, 8, RW_F32, 1);
    for (int s = 1; s <= RW_PLAN_CACHE_SIZE; s++) free(step(&b, &n, s, &bytes));
    free(step(&b, &n, 1, &bytes));
    cr_assert_eq(rw_plan_cache_of(b.ctx)->misses, RW_PLAN_CACHE_SIZE);
    free(step(&b, &n, RW_PLAN_CACHE_SIZE + 1, &bytes));
    cr_assert_eq(rw_plan_cache_of(b.ctx)->misses, RW_PLAN_CACHE_SIZE + 1);
    free(step(&b, &n, 1, &bytes));
    cr_assert_eq(rw_plan_cache_of(b.ctx)->misses, RW_PLAN_CACHE_SIZE + 1, "used just now, yet planned again");
    free(step(&b, &n, 2, &bytes));
    cr_assert_eq(rw_plan_cache_of(b.ctx)->misses, RW_PLAN_CACHE_SIZE + 2, "the oldest should have made room");
    cr_assert_eq(rw_plan_cache_of(b.ctx)->n, RW_PLAN_CACHE_SIZE);
    fixture_close(&b);
}

/* More structures than the cache holds, repeatedly: no step differs, and nothing stays allocated. */
Test(cache, evicted_plans_are_freed)
{
    enum { STRUCTURES = RW_PLAN_CACHE_SIZE + 8 };
    struct fixture b = fixture_open(1, 1);
    struct net n;
    unsigned char *first[STRUCTURES];
    size_t bytes = 0;
    int64_t live = 0;
    net_init(&n, b.ctx, 1, 8, RW_F32, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
    for (int s = 0; s < STRUCTURES; s++) first[s] = step(&b, &n, s + 1, &bytes);
    for (int round = 0; round < 3; round++) {
        for (int s = 0; s < STRUCTURES; s++) {
            unsigned char *const again = step(&b, &n, s + 1, &bytes);
            cr_assert_eq(first_difference(first[s], again, bytes), -1, "structure %d, round %d", s, round);
            free(again);
        }
        if (!round) live = rw_alloc_live();
        cr_assert_eq(rw_alloc_live(), live, "round %d: %ld more allocations", round, (long)(rw_alloc_live() - live));
    }
    cr_assert_eq(rw_plan_cache_of(b.ctx)->hits, 0);
    for (int s = 0; s < STRUCTURES; s++) free(first[s]);
    fixture_close(&b);
}

/* The same by bytes: as many plans as fit, always including the newest, and the count equals the allocated bytes. */
Test(cache, is_bounded_in_bytes)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    size_t bytes, most = 0;
    rw_memory m;
    net_init(&n, b.ctx, 1, 8, RW_F32, 1);
    for (int s = 1; s <= 3; s++) {
        free(step(&b, &n, s, &bytes));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_assert_gt(m.plans, most);
        most = m.plans;
    }
    rw_plan_cache_of(b.ctx)->most_bytes = most;
    for (int s = 1; s <= 12; s++) {
        free(step(&b, &n, s, &bytes));
        cr_assert_eq(rw_memory_stats(b.ctx, &m), RW_OK);
        cr_assert(m.plans <= most && rw_plan_cache_of(b.ctx)->n <= 3, "%zu bytes of %zu, %zu plans", m.plans, most,
                  rw_plan_cache_of(b.ctx)->n);
    }
    cr_assert_geq(rw_plan_cache_of(b.ctx)->n, 2);
    rw_plan_cache_of(b.ctx)->most_bytes = 1;
    free(step(&b, &n, 20, &bytes));
    cr_assert_eq(rw_plan_cache_of(b.ctx)->n, 1, "none but the newest");
    fixture_close(&b);
}
