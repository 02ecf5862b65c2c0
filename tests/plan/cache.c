/* The plan cache: each structure is planned once, and the oldest make room. */
#include "support/support.h"

#include "plan/cache.h"
#include "record/tape.h"

#include <criterion/criterion.h>

/* Structures in turn: each is planned once, however often they alternate. */
Test(cache, one_plan_per_structure)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    for (int step = 0; step < 30; step++) {
        rw_zero_grad(b.ctx);
        cr_assert_eq(ckpt_set_policy(b.t, step % 2 ? "full" : "none"), RW_OK);
        cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, 4 + step % 3, step)), RW_OK);
        cr_assert(rw_plan_is_valid(b.t, b.ctx->plans->entries[0].plan) || step);
        rw_tape_reset(b.t);
    }
    cr_assert_eq(b.ctx->plans->misses, 6);
    cr_assert_eq(b.ctx->plans->hits, 24);
    fixture_close(&b);
}

/* More structures than the cache holds: the oldest make room, nothing leaks and every step is right. */
Test(cache, makes_room)
{
    struct fixture b = fixture_open(1, 1);
    struct net n;
    net_init(&n, b.ctx, 1, 8, RW_F32, 1);
    ckpt_set_policy(b.t, "full");
    for (int step = 0; step < 3 * RW_PLAN_CACHE_SIZE; step++) {
        rw_zero_grad(b.ctx);
        rw_tensor *const loss = net_loss(&n, b.t, 1 + step % (2 * RW_PLAN_CACHE_SIZE), step);
        rw_item(b.t, loss);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        rw_tape_reset(b.t);
    }
    cr_assert_eq(b.ctx->plans->n, RW_PLAN_CACHE_SIZE);
    fixture_close(&b);
}
