/* One line per figure: name, value, bound, met or missed. A failed step, or a line that cannot be written, ends the
   program, so that no figure is from incomplete measurements. */
#ifndef REWIND_BENCH_FIGURE_H
#define REWIND_BENCH_FIGURE_H

#include "answer.h"

#include <rewind/status.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static inline void figure_flush(void)
{
    if (answer_end("figure", 0)) exit(EXIT_FAILURE);
}

/* Ends the program with the reason unless it is RW_OK. ctx may be NULL. */
static inline void figure_must(const rw_context *ctx, rw_status status)
{
    if (!status) return;
    fprintf(stderr, "%s: %s\n", rw_status_name(status), rw_error_message(ctx));
    exit(EXIT_FAILURE);
}

/* An integer of the command line; if invalid, the program ends with status 2. */
static inline int figure_integer(const char *text, int least, int most)
{
    char *end;
    const long x = strtol(text, &end, 10);
    if (end != text && !*end && x >= least && x <= most) return (int)x;
    fprintf(stderr, "expected a whole number from %d to %d, got \"%s\"\n", least, most, text);
    exit(2);
}

/* The larger one; NaN if either is NaN. */
static inline double figure_worst(double a, double b)
{
    return a != a || a > b ? a : b;
}

static inline void figure(const char *name, double value, const char *unit, double bound)
{
    printf("%s, %.4g %s, at most %.4g, %s\n", name, value, unit, bound, value <= bound ? "met" : "missed");
    figure_flush();
}

static inline void figure_at_least(const char *name, double value, const char *unit, double bound)
{
    printf("%s, %.4g %s, at least %.4g, %s\n", name, value, unit, bound, value >= bound ? "met" : "missed");
    figure_flush();
}

static inline void figure_exactly(const char *name, double value, const char *unit, double wanted)
{
    printf("%s, %.10g %s, exactly %.10g, %s\n", name, value, unit, wanted, value == wanted ? "met" : "missed");
    figure_flush();
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
