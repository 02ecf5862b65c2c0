/* Rules of a monitor's alerts: compares a step with the last hundred of its kind. rewind/monitor.h lists the rules. */
#ifndef RW_IO_MONITOR_JUDGE_H
#define RW_IO_MONITOR_JUDGE_H

#include "io/monitor_optimizer_stats.h"

#define RW_WINDOW 100
#define RW_SKIPS_WINDOW 200

/* The last numbers of a kind. */
struct rw_window {
    double x[RW_WINDOW];
    size_t n; /* number of values so far */
};

/* State of the rules; all zero at first. */
struct rw_judge {
    struct rw_window loss, norm, seconds, scale, zeros;
    struct {
        bool x[RW_SKIPS_WINDOW];
        size_t n; /* number of steps so far */
    } skipped;
    double most;   /* largest magnitude of the first losses, as many as a window has */
    bool far, low; /* at the last step the loss was far above those; the scale was below 1 */
    struct {
        double loss, norm;
    } before;                  /* medians of the hundred steps before the windows, if there are any */
    int in_a_row;              /* updates left out */
    bool is_counted;           /* the update of the last step is one of n_skipped */
    int beside;                /* number of successive updates that were too small or too large for their weights */
    uint64_t steps, n_skipped; /* in all */
};

/* A step. A time or scale of 0 is unknown. */
struct rw_judged {
    double loss, norm, seconds, loss_scale;
    bool has_norm, skipped;
    struct rw_health health;
};

/* Is a norm far above the last ones? It is added to the window unless it is NaN or infinite. */
bool rw_judge_spikes(struct rw_window *w, double norm);

/* Adds the step and returns its alerts: RW_ALERT_... */
unsigned rw_judge(struct rw_judge *j, const struct rw_judged *s);

/* The caller leaves out the update of the last step, because of its alerts. Each step counts once. */
void rw_judge_skip(struct rw_judge *j);

#endif
