/* One line per figure: name, value, bound, met or missed. */
#ifndef REWIND_BENCH_FIGURE_H
#define REWIND_BENCH_FIGURE_H

#include <stdbool.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void figure(const char *name, double value, const char *unit, double bound)
{
    printf("%s, %.4g %s, at most %.4g, %s\n", name, value, unit, bound, value <= bound ? "met" : "missed");
    fflush(stdout);
}

static inline void figure_at_least(const char *name, double value, const char *unit, double bound)
{
    printf("%s, %.4g %s, at least %.4g, %s\n", name, value, unit, bound, value >= bound ? "met" : "missed");
    fflush(stdout);
}

static inline void figure_exactly(const char *name, double value, const char *unit, double wanted)
{
    printf("%s, %.10g %s, exactly %.10g, %s\n", name, value, unit, wanted, value == wanted ? "met" : "missed");
    fflush(stdout);
}

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int figure_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, figure_compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

#endif
