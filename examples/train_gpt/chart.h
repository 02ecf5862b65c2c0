/* The charts of the dashboard, as SVG. */
#ifndef REWIND_EXAMPLES_CHART_H
#define REWIND_EXAMPLES_CHART_H

#include "dashboard.h"

#include <stdio.h>

/*
 * Draws the numbers at `offset` of the points of both runs. More than 500 points are drawn in buckets of equal size:
 * the mean as the line, and a band from the minimum to the maximum. A bucket with a number that is not finite is a gap
 * in the line, with a cross at the top. Draws nothing if no number is known.
 */
void chart_draw(FILE *f, const struct dashboard *d, const char *name, size_t offset);

/* Number of points per bucket; 1: each point is drawn. */
size_t chart_bucket(const struct dashboard_points *points);

/* Whether a loss or a norm is not finite. */
bool chart_has_gaps(const struct dashboard_points *points);

#endif
