/* The charts of the dashboard, as SVG. */
#ifndef REWIND_EXAMPLES_CHART_H
#define REWIND_EXAMPLES_CHART_H

#include "dashboard.h"

#include <stdbool.h>
#include <stdio.h>

struct chart_kind {
    const char *name, *unit; /* "": none */
    size_t offset;           /* of the number in a point */
    bool is_noisy;           /* also draws a moving average */
};

/*
 * Draws the numbers of the points of both runs. More than 500 points are drawn in buckets of equal size: the mean as
 * the line, and a band from the minimum to the maximum. A bucket with a number that is not finite is a gap in the line,
 * with a cross at the top. Alerts about these numbers are ticks on the axis, actions are lines. Draws nothing if no
 * number is known.
 *
 * The numbers are also in the attributes data-run and data-good, as "step:number ...", for chart_script().
 */
void chart_draw(FILE *f, const struct dashboard *d, const struct chart_kind *kind);

/* Writes the script that shows the numbers under the pointer, in all charts. */
void chart_script(FILE *f);

/* Number of steps over which a moving average is taken, about; 0: too few points. */
size_t chart_average(const struct dashboard_points *points);

/* Number of points per bucket; 1: each point is drawn. */
size_t chart_bucket(const struct dashboard_points *points);

/* Whether a loss or a norm is not finite. */
bool chart_has_gaps(const struct dashboard_points *points);

#endif
