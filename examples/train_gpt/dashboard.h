/*
 * An HTML page about a run: charts of loss, gradient norm, learning rate and speed, memory, alerts and the actions
 * taken, statistics of FP8 data, and the same of a reference run in the background. It is self-contained, is written to
 * a temporary file and renamed, and reloads itself while the run continues.
 */
#ifndef REWIND_EXAMPLES_DASHBOARD_H
#define REWIND_EXAMPLES_DASHBOARD_H

#include <rewind/rewind.h>

/* Unknown numbers are NaN; numbers known to be not finite are infinite. */
struct dashboard_point {
    double step, loss, norm, lr, tokens_per_s;
    double weights, change, scale; /* norms of the weights, and of the update relative to it; loss scale */
};

struct dashboard_points {
    struct dashboard_point *p;
    size_t n, cap;
};

struct dashboard_event {
    double step;
    char alert[24]; /* its name; "": an action that was taken */
    char text[400];
};

struct dashboard {
    const char *path, *title;
    const char *command, *model, *device; /* for the heading */
    const char *loss_unit;
    struct dashboard_points run, good, validation;
    struct dashboard_event *event;
    size_t n_events, cap_events;
    rw_memory memory;      /* of the last step, because an evaluation after it takes less */
    double steps, tried;   /* total number of steps; time of the last attempt to write the page */
};

/* Reads the earlier output of a monitor, of this run or of the reference run; other lines are skipped. False if the
   file cannot be read. */
bool dashboard_read(struct dashboard *d, struct dashboard_points *to, const char *log);

bool dashboard_add(struct dashboard_points *to, struct dashboard_point p);

/* Adds an action that was taken. */
bool dashboard_note(struct dashboard *d, double step, const char *text);

/* Adds an alert: its name, then " of GROUPS", the first site of FP8 data, and its numbers; "": none. */
bool dashboard_alert(struct dashboard *d, double step, const char *name, const char *groups, const char *site,
                     const char *numbers);

/* The numbers of an alert in words, "412 ms, median 118"; "" if it has none. */
void dashboard_describe(char *text, size_t size, const char *alert, double value, double usual);

/* The command line in a string, quoted for a shell where needed; cut off if it does not fit. */
void dashboard_command(char *text, size_t size, int argc, char **argv);

/* Removes steps from this one on, because the run was rolled back. Their alerts, and the roll-back, remain. */
void dashboard_cut(struct dashboard *d, double step);

/* Removes alerts and recoveries from this step on, because the run begins there. */
void dashboard_cut_events(struct dashboard *d, double step);

/* Writes the page, at most every two seconds unless it is the last time. False with errno. */
bool dashboard_write(struct dashboard *d, const rw_monitor *monitor, bool last);
void dashboard_finish(struct dashboard *d);

#endif
