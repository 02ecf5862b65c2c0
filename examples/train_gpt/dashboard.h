/*
 * A page about a run, for a browser: charts of loss, norm of the gradients, rate and speed, memory, alerts and what was
 * done about them, what became of 8-bit codes, and the same of a run that is known to be good, laid under. It needs
 * nothing but itself, is written aside and put in its place, and reloads itself while the run goes on.
 */
#ifndef REWIND_EXAMPLES_DASHBOARD_H
#define REWIND_EXAMPLES_DASHBOARD_H

#include <rewind/rewind.h>

/* What is not known is NaN. */
struct dashboard_point {
    double step, loss, norm, lr, tokens_per_s;
    double weights, change, scale; /* their norm, the update over it; of the loss */
};

struct dashboard_points {
    struct dashboard_point *p;
    size_t n, cap;
};

struct dashboard_event {
    double step;
    char text[200];
};

struct dashboard {
    const char *path, *title;
    struct dashboard_points run, good, validation;
    struct dashboard_event *event;
    size_t n_events, cap_events;
    double steps, written; /* how many there will be; when it was written, by the clock */
};

/* Takes in what a monitor has written before, of this run or of the good one; lines that are none are passed over.
   False when the file cannot be read. */
bool dashboard_read(struct dashboard *d, struct dashboard_points *to, const char *log);

bool dashboard_add(struct dashboard_points *to, struct dashboard_point p);
bool dashboard_note(struct dashboard *d, double step, const char *text);

/* Steps from this one on are not part of the run any more: it went back. */
void dashboard_cut(struct dashboard *d, double step);

/* Writes the page, at most every two seconds unless it is the last time. False with errno. */
bool dashboard_write(struct dashboard *d, const rw_context *ctx, const rw_monitor *monitor, bool last);
void dashboard_finish(struct dashboard *d);

#endif
