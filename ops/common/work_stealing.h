/*
 * Work stealing: distributes items of unequal duration over threads. Each thread starts with an equal share of
 * consecutive items. A thread that finishes takes items from another thread's share. So the same core processes the
 * same rows in op after op, and all threads still end at about the same time. Locality matters: a core writes five
 * times faster to lines that no other core has read, twenty times if the cores do not share a last-level cache.
 *
 * The result of an item must not depend on the thread that computes it.
 */
#ifndef RW_OPS_WORK_STEALING_H
#define RW_OPS_WORK_STEALING_H

#include "base/thread_team.h"

#include <rewind/context.h>

struct rw_shares {
    int64_t n;
    int threads;
    int64_t next[RW_MAX_THREADS]; /* the range of each thread's share that is not yet taken */
};

/* First item of this thread's share. */
static inline int64_t rw_shares_first(const struct rw_shares *s, int thread)
{
    return rw_team_first(s->n, thread, s->threads);
}

/* Assigns the shares. Call it before the threads start. */
static inline void rw_shares_deal(struct rw_shares *s, int64_t n, int threads)
{
    s->n = n;
    s->threads = threads;
    for (int i = 0; i < threads; i++) s->next[i] = rw_shares_first(s, i);
}

/* Takes consecutive items, from the thread's own share first. Returns the first of *ret_n items: up to `most`, but at
   most half of what the share still has, so that threads end at the same time. Returns -1 if no item is left. */
static inline int64_t rw_shares_take_some(struct rw_shares *s, int thread, int64_t most, int64_t *ret_n)
{
    for (int i = 0; i < s->threads; i++) {
        const int of = thread + i < s->threads ? thread + i : thread + i - s->threads;
        const int64_t end = rw_shares_first(s, of + 1);
        int64_t piece = __atomic_load_n(&s->next[of], __ATOMIC_RELAXED);
        while (piece < end) { /* repeated with what is left if another thread took some first */
            const int64_t half = (end - piece) / 2, n = half < 1 ? 1 : half < most ? half : most;
            *ret_n = n;
            if (__atomic_compare_exchange_n(&s->next[of], &piece, piece + n, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                return piece;
        }
    }
    return -1;
}

/* Takes one item. */
static inline int64_t rw_shares_take(struct rw_shares *s, int thread)
{
    int64_t n;
    return rw_shares_take_some(s, thread, 1, &n);
}

/* for (each item that this thread takes) */
#define RW_EACH_SHARED(piece, shares, thread) \
    for (int64_t piece = rw_shares_take(shares, thread); piece >= 0; piece = rw_shares_take(shares, thread))

/* Processes one item; `of` is the argument of rw_shares_run(). */
typedef rw_status rw_shares_piece(const void *of, int64_t piece, int thread);

struct rw_shares_job {
    struct rw_shares shares;
    rw_shares_piece *run;
    const void *of;
    int failed;
};

static inline void rw_shares_serve(void *job, int thread, int threads)
{
    struct rw_shares_job *const j = job;
    RW_EACH_SHARED(piece, &j->shares, thread) {
        const rw_status status = j->run(j->of, piece, thread);
        if (status) __atomic_store_n(&j->failed, (int)status, __ATOMIC_RELAXED);
    }
}

/* Processes all n items on so many threads of the team. Returns the status of an item that failed; the others are
   processed nevertheless. */
static inline rw_status rw_shares_run(int threads, int64_t n, rw_shares_piece *run, const void *of)
{
    struct rw_shares_job j = { .run = run, .of = of, .failed = RW_OK };
    rw_shares_deal(&j.shares, n, threads);
    rw_team_run(threads, rw_shares_serve, &j);
    return (rw_status)j.failed;
}

#endif
