/* Seconds of clocks that cannot be set. */
#ifndef RW_BASE_CLOCK_H
#define RW_BASE_CLOCK_H

#include <time.h>

static inline double rw_seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline double rw_now_s(void)
{
    return rw_seconds_of(CLOCK_MONOTONIC);
}

/* CPU time of the calling thread. */
static inline double rw_thread_s(void)
{
    return rw_seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

#endif
