/* Pieces that threads share: each is taken once, by whom it was dealt to as long as that one is not late. */
#include "ops/common/shares.h"

#include <criterion/criterion.h>

#include <stdbool.h>

enum { MOST = 100 };

/* A thread alone takes its own ones in order, then those of the next threads. */
Test(shares, ones_own_come_first)
{
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 0; n <= MOST; n++)
            for (int thread = 0; thread < threads; thread++) {
                struct rw_shares s;
                rw_shares_deal(&s, n, threads);
                const int64_t first = n * thread / threads;
                for (int64_t i = 0; i < n; i++) cr_assert_eq(rw_shares_take(&s, thread), (first + i) % n);
                cr_assert_eq(rw_shares_take(&s, thread), -1);
            }
}

/* Threads that come in some order, over and over: their shares differ by one piece at most. */
Test(shares, each_is_taken_once)
{
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 0; n <= MOST; n++) {
            struct rw_shares s;
            int64_t of[8] = { 0 };
            bool taken[MOST] = { false };
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

/* Some at a time: those that follow one another, each once, and fewer when few are left. */
Test(shares, some_are_taken_at_a_time)
{
    for (int threads = 1; threads <= 7; threads++)
        for (int64_t n = 1; n <= MOST; n++) {
            struct rw_shares s;
            bool taken[MOST] = { false };
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

/* Of as many pieces that no product overflows. */
Test(shares, there_may_be_many)
{
    const int64_t n = INT64_MAX / 2;
    struct rw_shares s;
    rw_shares_deal(&s, n, RW_MAX_THREADS);
    cr_expect_eq(rw_shares_first(&s, RW_MAX_THREADS), n);
    for (int t = 0; t < RW_MAX_THREADS; t++) cr_assert_lt(rw_shares_first(&s, t), rw_shares_first(&s, t + 1));
}

/* Late ones lose theirs to who has done his own. All threads at one time, over and over. */
Test(shares, threads_at_one_time_take_each_once)
{
    for (int round = 0; round < 200; round++) {
        const int64_t n = 1 + round % MOST;
        struct rw_shares s;
        int times[MOST] = { 0 };
        rw_shares_deal(&s, n, 4);
#pragma omp parallel for num_threads(4) schedule(static, 1)
        for (int thread = 0; thread < 4; thread++) {
            int64_t some;
            for (int64_t at; (at = rw_shares_take_some(&s, thread, 1 + round % 2 * 3, &some)) >= 0;)
                while (some--) __atomic_fetch_add(&times[at + some], 1, __ATOMIC_RELAXED);
        }
        for (int64_t i = 0; i < n; i++) cr_assert_eq(times[i], 1, "piece %lld of %lld", (long long)i, (long long)n);
    }
}
