/* What a monitor is alerted by: a step beside the last hundred of its kind. The rules stand in rewind/monitor.h. */
#ifndef RW_IO_MONITOR_JUDGE_H
#define RW_IO_MONITOR_JUDGE_H

#include "io/monitor_watched.h"

#define RW_WINDOW 100
#define RW_SKIPS_WINDOW 200

/* The last numbers of a kind. */
struct rw_window {
    double x[RW_WINDOW];
    size_t n; /* taken in so far */
};

/* What it remembers; all zero at first. */
struct rw_judge {
    struct rw_window loss, norm, seconds, scale, zeros;
    struct {
        bool x[RW_SKIPS_WINDOW];
        size_t n; /* taken in so far */
    } skipped;
    double most;   /* magnitude of the first losses, as many as a window has */
    bool far, low; /* the loss was far above those at the last step; the scale was below one */
    struct {
        double loss, norm;
    } before;                  /* medians of the hundred steps in front of the windows, once there are any */
    int in_a_row;              /* updates left out */
    int beside;                /* updates in a row that were too small or too large for their weights */
    uint64_t steps, n_skipped; /* in all */
};

/* A step. A time, or a scale, of 0 is not known. */
struct rw_judged {
    double loss, norm, seconds, loss_scale;
    bool has_norm, skipped;
    struct rw_health health;
};

/* Is a norm far above the last ones? It is taken in unless it is no number. */
bool rw_judge_spikes(struct rw_window *w, double norm);

/* Takes the step in: RW_ALERT_... */
unsigned rw_judge(struct rw_judge *j, const struct rw_judged *s);

#endif
