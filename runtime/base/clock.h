/* Seconds by a clock that nobody sets. */
#ifndef RW_BASE_CLOCK_H
#define RW_BASE_CLOCK_H

#include <time.h>

static inline double rw_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
