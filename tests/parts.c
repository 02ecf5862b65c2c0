/* The small parts that others stand on: digests and the plan cache. */
#include "support.h"

#include "record/tape.h"
#include "base/digest.h"

#include <criterion/criterion.h>
#include <stdlib.h>

Test(digest, does_not_depend_on_threads_and_sees_every_bit)
{
    const size_t n = ((size_t)3 << 20) + 17;
    unsigned char *const data = malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i * 131 >> 3);
    const struct rw_digest d = rw_digest_bytes(data, n, 1);
    for (int threads = 2; threads < 6; threads++) cr_assert(rw_digest_equal(d, rw_digest_bytes(data, n, threads)));
    for (size_t at = 0; at < n; at += n / 37) {
        data[at] ^= 4;
        cr_assert_not(rw_digest_equal(d, rw_digest_bytes(data, n, 2)), "byte %zu", at);
        data[at] ^= 4;
    }
    free(data);
}

/* Structures in turn: each is planned once, however often they alternate. */
Test(cache, one_plan_per_structure)
{
    struct bench b = bench_open(1, 1);
    struct net n;
    net_init(&n, b.ctx, 2, 8, RW_F32, 1);
    for (int step = 0; step < 30; step++) {
        rw_zero_grad(b.ctx);
        cr_assert_eq(ckpt_set_policy(b.t, step % 2 ? "full" : "none"), RW_OK);
        cr_assert_eq(rw_backward(b.t, net_loss(&n, b.t, 4 + step % 3, step)), RW_OK);
        cr_assert(rw_plan_is_valid(b.t, b.ctx->cache.entries[0].plan) || step);
        rw_tape_reset(b.t);
    }
    cr_assert_eq(b.ctx->cache.misses, 6);
    cr_assert_eq(b.ctx->cache.hits, 24);
    bench_close(&b);
}

/* More structures than the cache holds: the oldest make room, nothing leaks and every step is right. */
Test(cache, makes_room)
{
    struct bench b = bench_open(1, 1);
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
    cr_assert_eq(b.ctx->cache.n, RW_PLAN_CACHE_SIZE);
    bench_close(&b);
}
