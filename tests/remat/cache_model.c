/*
 * The cache model: compared with the definition of LRU, by hand for buffers whose memory is reused, for data shared
 * between threads, and with the assumption of the lower bound.
 */
#include "remat/schedule/cache_model.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>

enum { MAX = 24, LONG = 400 };

static uint32_t random_below(uint32_t n)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 33) % n;
}

static uint64_t far_of(struct rw_cache_model *x, uint32_t memory, uint64_t bytes, enum rw_use use)
{
    const struct rw_fetched f = rw_cache_model_use(x, memory, bytes, use);
    cr_assert_eq(f.shared, 0, "no thread reads another's data here");
    return f.far;
}

static struct rw_cache_model begin(size_t n, uint64_t near)
{
    struct rw_cache_model x = { 0 };
    cr_assert_eq(rw_cache_model_begin(&x, n, near), RW_OK);
    return x;
}

/* Number of distinct objects used since the last use of `it`, or since the beginning. */
static int distance(const uint32_t *used, int n, uint32_t it)
{
    bool seen[MAX] = { false };
    int distinct = 0;
    for (int i = n; i-- > 0 && used[i] != it;)
        if (!seen[used[i]]) seen[used[i]] = true, distinct++;
    return distinct;
}

/* With objects of equal size, a use is a hit if fewer others than the caches hold were used since; a first use if fewer
   were used at all. */
Test(cache_model, least_recently_used_goes_first)
{
    for (int near = 0; near < MAX + 2; near++) {
        struct rw_cache_model x = begin(MAX, (uint64_t)near * 7);
        uint32_t used[LONG];
        for (int i = 0; i < LONG; i++) {
            used[i] = random_below(random_below(2) ? MAX : MAX / 3);
            const bool is_far = distance(used, i, used[i]) >= near;
            cr_assert_eq(far_of(&x, used[i], 7, RW_USE_BESIDE), is_far ? 7 : 0, "%d near, use %d", near, i);
        }
        rw_cache_model_finish(&x);
    }
}

/* The model is reused without clearing: the second step must not find the contents of the first. */
Test(cache_model, each_step_begins_with_empty_caches)
{
    struct rw_cache_model x = begin(3, 10);
    cr_expect_eq(far_of(&x, 0, 12, RW_USE_WRITE), 2);
    cr_expect_eq(far_of(&x, 0, 12, RW_USE_READ), 2, "as many as caches hold");
    rw_cache_model_die(&x, 0);
    cr_assert_eq(rw_cache_model_begin(&x, 2, 10), RW_OK);
    cr_expect_eq(far_of(&x, 0, 10, RW_USE_WRITE), 0);
    cr_expect_eq(far_of(&x, 1, 1, RW_USE_WRITE), 1);
    cr_expect_eq(far_of(&x, 0, 10, RW_USE_READ), 1, "which pushed a byte out");
    rw_cache_model_finish(&x);
}

Test(cache_model, writes_reuse_memory_after_its_last_use)
{
    enum { A, B, C, D, W, N };
    struct rw_cache_model x = begin(N, 100);
    cr_expect_eq(far_of(&x, A, 40, RW_USE_WRITE), 0);
    cr_expect_eq(far_of(&x, B, 60, RW_USE_WRITE), 0);
    rw_cache_model_die(&x, A);
    rw_cache_model_die(&x, A); /* an operand that occurs twice */
    rw_cache_model_die(&x, B);
    cr_expect_eq(far_of(&x, W, 10, RW_USE_BESIDE), 10, "a parameter is where no other value was");
    cr_expect_eq(far_of(&x, C, 70, RW_USE_WRITE), 0, "all of b, which died last, and some of a");
    cr_expect_eq(far_of(&x, D, 30, RW_USE_WRITE), 10, "what the parameter has left of a");
    cr_expect_eq(far_of(&x, C, 70, RW_USE_READ), 0, "which pushed the parameter out, not c");
    cr_expect_eq(far_of(&x, W, 10, RW_USE_BESIDE), 10);
    rw_cache_model_finish(&x);
}

static void expect_fetched(struct rw_cache_model *x, uint32_t memory, uint64_t bytes, enum rw_use use, uint64_t far,
                           uint64_t shared)
{
    const struct rw_fetched f = rw_cache_model_use(x, memory, bytes, use);
    cr_expect(f.far == far && f.shared == shared, "%u: %llu far, %llu shared", memory, (unsigned long long)f.far,
              (unsigned long long)f.shared);
}

/* A thread that writes where several have read invalidates the data in the others' caches, once. */
Test(cache_model, what_was_read_across_is_shared_until_it_is_written)
{
    enum { A, B, C, D, E, W, N };
    struct rw_cache_model x = begin(N, 100);
    expect_fetched(&x, A, 40, RW_USE_WRITE, 0, 0);
    expect_fetched(&x, A, 40, RW_USE_ACROSS, 0, 0);
    expect_fetched(&x, A, 40, RW_USE_READ, 0, 0);
    expect_fetched(&x, A, 40, RW_USE_WRITE, 0, 40); /* over itself */
    expect_fetched(&x, A, 40, RW_USE_WRITE, 0, 0);
    expect_fetched(&x, B, 30, RW_USE_WRITE, 0, 0);
    expect_fetched(&x, A, 40, RW_USE_ACROSS, 0, 0);
    expect_fetched(&x, B, 30, RW_USE_READ, 0, 0);
    rw_cache_model_die(&x, A);
    rw_cache_model_die(&x, B);
    expect_fetched(&x, C, 50, RW_USE_WRITE, 0, 20); /* all of b, which is not shared, and a part of a */
    expect_fetched(&x, W, 30, RW_USE_BESIDE, 0, 0);
    expect_fetched(&x, W, 30, RW_USE_BESIDE, 0, 0);
    expect_fetched(&x, D, 30, RW_USE_WRITE, 10, 20); /* what is left of a */
    expect_fetched(&x, D, 30, RW_USE_ACROSS, 0, 0);
    expect_fetched(&x, E, 80, RW_USE_READ, 80, 0);
    expect_fetched(&x, D, 30, RW_USE_WRITE, 10, 20); /* a part of it has meanwhile been evicted from all caches */
    rw_cache_model_finish(&x);
}

/* A value that is copied back was not written by any thread. */
Test(cache_model, a_first_read_is_a_cache_miss)
{
    struct rw_cache_model x = begin(2, 1000);
    cr_expect_eq(far_of(&x, 0, 10, RW_USE_READ), 10);
    cr_expect_eq(far_of(&x, 0, 10, RW_USE_READ), 0);
    cr_expect_eq(far_of(&x, 1, 990, RW_USE_WRITE), 0);
    rw_cache_model_finish(&x);
}

/* Live bytes that are used after some moment, beyond those that the caches hold, miss after it, and as many missed
   before. */
Test(cache_model, no_op_avoids_its_cache_misses)
{
    static struct use { uint32_t m; uint64_t far; bool dies; } use[LONG];
    for (int round = 0; round < 300; round++) {
        const uint64_t near = random_below(60), size = 1 + random_below(9);
        struct rw_cache_model x = begin(LONG, near);
        uint32_t alive[LONG], n_alive = 0, n = 0;
        for (int i = 0; i < LONG; i++) {
            const bool begins = !n_alive || (n < LONG && random_below(3) == 0);
            const uint32_t k = begins ? n_alive : random_below(n_alive);
            if (begins) alive[n_alive++] = n++;
            use[i] = (struct use){ .m = alive[k], .dies = !begins && random_below(4) == 0 };
            use[i].far = far_of(&x, alive[k], size, begins ? RW_USE_WRITE : RW_USE_READ);
            if (!use[i].dies) continue;
            rw_cache_model_die(&x, alive[k]);
            alive[k] = alive[--n_alive];
        }
        uint64_t before = 0, all = 0;
        for (int i = 0; i < LONG; i++) all += use[i].far;
        for (int i = 0; i < LONG; i++) {
            bool begun[LONG] = { false }, again[LONG] = { false };
            uint64_t both = 0;
            for (int k = 0; k < i; k++) begun[use[k].m] = true;
            for (int k = i; k < LONG; k++) again[use[k].m] = true;
            for (int k = 0; k < LONG; k++) both += begun[k] && again[k] ? size : 0;
            const uint64_t least = both > near ? both - near : 0;
            cr_assert(before >= least && all - before >= least, "%llu near, %d: %llu, %llu of %llu",
                      (unsigned long long)near, i, (unsigned long long)least, (unsigned long long)before,
                      (unsigned long long)all);
            before += use[i].far;
        }
        rw_cache_model_finish(&x);
    }
}
