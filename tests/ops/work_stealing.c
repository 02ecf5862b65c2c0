/* Work stealing: each piece of work is executed once, by the thread that it was assigned to unless that thread is
   late. */
#include "ops/common/work_stealing.h"

#include <criterion/criterion.h>

#include <stdbool.h>
#include <string.h>

enum { MAX = 100 };

/* A single thread executes its own pieces in order, then those of the next threads. */
Test(work_stealing, ones_own_come_first)
{
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 0; n <= MAX; n++)
            for (int thread = 0; thread < threads; thread++) {
                struct rw_shares s;
                rw_shares_deal(&s, n, threads);
                const int64_t first = n * thread / threads;
                for (int64_t i = 0; i < n; i++) cr_assert_eq(rw_shares_take(&s, thread), (first + i) % n);
                cr_assert_eq(rw_shares_take(&s, thread), -1);
            }
}

/* Threads that arrive in a random order, repeatedly: their numbers of pieces differ by at most one. */
Test(work_stealing, each_is_taken_once)
{
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 0; n <= MAX; n++) {
            struct rw_shares s;
            int64_t of[8] = { 0 };
            bool taken[MAX] = { false };
            rw_shares_deal(&s, n, threads);
            for (int64_t i = 0; i < n; i++) {
                const int64_t piece = rw_shares_take(&s, (int)(i % threads));
                cr_assert(piece >= 0 && piece < n && !taken[piece], "%lld of %lld", (long long)piece, (long long)n);
                taken[piece] = true;
                of[i % threads]++;
            }
            for (int t = 0; t < threads; t++) cr_assert_eq(rw_shares_take(&s, t), -1);
            for (int t = 0; t < threads; t++) cr_assert_leq(of[0] - of[t], 1);
        }
}

/* Several pieces at a time: consecutive ones, each once, and fewer when few are left. */
Test(work_stealing, some_are_taken_at_a_time)
{
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 1; n <= MAX; n++) {
            struct rw_shares s;
            bool taken[MAX] = { false };
            int64_t all = 0, some = 0, first;
            rw_shares_deal(&s, n, threads);
            for (int i = 0; (first = rw_shares_take_some(&s, i % threads, 4, &some)) >= 0; i++, all += some) {
                cr_assert(some >= 1 && some <= 4 && first + some <= n);
                for (int64_t p = first; p < first + some; p++) {
                    cr_assert(!taken[p], "%lld of %lld", (long long)p, (long long)n);
                    taken[p] = true;
                }
            }
            cr_assert_eq(all, n);
            rw_shares_deal(&s, n, threads);
            const int64_t own = rw_shares_first(&s, 1);
            if (own) cr_assert_eq(rw_shares_take_some(&s, 0, 4, &some), 0);
            if (own) cr_assert_eq(some, own < 4 ? 1 : own < 8 ? own / 2 : 4);
        }
}

/* So many pieces that a product would overflow. */
Test(work_stealing, there_may_be_many)
{
    const int64_t n = INT64_MAX / 2;
    struct rw_shares s;
    rw_shares_deal(&s, n, RW_MAX_THREADS);
    cr_expect_eq(rw_shares_first(&s, RW_MAX_THREADS), n);
    for (int t = 0; t < RW_MAX_THREADS; t++) cr_assert_lt(rw_shares_first(&s, t), rw_shares_first(&s, t + 1));
}

struct contest {
    struct rw_shares shares;
    int64_t most;
    int times[MAX];
};

static void take_all(void *of, int thread, int threads)
{
    struct contest *const c = of;
    int64_t some;
    for (int64_t at; (at = rw_shares_take_some(&c->shares, thread, c->most, &some)) >= 0;)
        while (some--) __atomic_fetch_add(&c->times[at + some], 1, __ATOMIC_RELAXED);
}

/* Threads that have finished take the pieces of late ones. All threads run concurrently, repeatedly. */
Test(work_stealing, threads_at_one_time_take_each_once)
{
    cr_assert_eq(rw_team_ready(4), RW_OK);
    for (int round = 0; round < 200; round++) {
        const int64_t n = 1 + round % MAX;
        struct contest c = { .most = 1 + round % 2 * 3 };
        rw_shares_deal(&c.shares, n, 4);
        rw_team_run(4, take_all, &c);
        for (int64_t i = 0; i < n; i++) cr_assert_eq(c.times[i], 1, "piece %lld of %lld", (long long)i, (long long)n);
    }
}

/* Fails at two pieces: the others are still executed. */
static rw_status run_piece(const void *of, int64_t piece, int thread)
{
    __atomic_fetch_add((int *)(uintptr_t)of + piece, 1, __ATOMIC_RELAXED);
    return piece == 7 || piece == 31 ? RW_ERR_DEVICE : RW_OK;
}

Test(work_stealing, a_piece_that_fails_is_told)
{
    cr_assert_eq(rw_team_ready(4), RW_OK);
    for (int threads = 1; threads <= 6; threads++) {
        int times[MAX] = { 0 };
        cr_expect_eq(rw_shares_run(threads, 7, run_piece, times), RW_OK);
        memset(times, 0, sizeof times);
        cr_expect_eq(rw_shares_run(threads, MAX, run_piece, times), RW_ERR_DEVICE);
        for (int i = 0; i < MAX; i++) cr_assert_eq(times[i], 1, "%d threads, piece %d", threads, i);
    }
}
