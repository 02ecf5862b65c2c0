/*
 * How threads share pieces of work that take unlike time: each has as many that follow one another, and who is done
 * takes what is left of another's. So the same core comes back to the same rows in op after op, and the last ones still
 * end together. A core writes five times faster to what no other one has read, twenty times where they have not one
 * last cache.
 *
 * What a piece computes must not depend on the thread that takes it.
 */
#ifndef RW_OPS_COMMON_SHARES_H
#define RW_OPS_COMMON_SHARES_H

#include <rewind/context.h>

struct rw_shares {
    int64_t n;
    int threads;
    int64_t next[RW_MAX_THREADS]; /* of each thread's share: what is not taken */
};

/* Pieces of the shares before this thread's. */
static inline int64_t rw_shares_first(const struct rw_shares *s, int thread)
{
    return s->n / s->threads * thread + s->n % s->threads * thread / s->threads;
}

/* Before the threads begin. */
static inline void rw_shares_deal(struct rw_shares *s, int64_t n, int threads)
{
    s->n = n;
    s->threads = threads;
    for (int i = 0; i < threads; i++) s->next[i] = rw_shares_first(s, i);
}

/* Pieces that nobody has taken and that follow one another, the thread's own ones first: the first of up to `most`, but
   of no more than half of what is left there, so that threads end together. -1: there is none. */
static inline int64_t rw_shares_take_some(struct rw_shares *s, int thread, int64_t most, int64_t *ret_n)
{
    for (int i = 0; i < s->threads; i++) {
        const int of = thread + i < s->threads ? thread + i : thread + i - s->threads;
        const int64_t end = rw_shares_first(s, of + 1);
        int64_t piece = __atomic_load_n(&s->next[of], __ATOMIC_RELAXED);
        while (piece < end) { /* again, of what is left then, where another thread took some first */
            const int64_t half = (end - piece) / 2, n = half < 1 ? 1 : half < most ? half : most;
            *ret_n = n;
            if (__atomic_compare_exchange_n(&s->next[of], &piece, piece + n, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                return piece;
        }
    }
    return -1;
}

/* One of them. */
static inline int64_t rw_shares_take(struct rw_shares *s, int thread)
{
    int64_t n;
    return rw_shares_take_some(s, thread, 1, &n);
}

/* for (each piece that this thread takes) */
#define RW_EACH_SHARED(piece, shares, thread) \
    for (int64_t piece = rw_shares_take(shares, thread); piece >= 0; piece = rw_shares_take(shares, thread))

#endif
