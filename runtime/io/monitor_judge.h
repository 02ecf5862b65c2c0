/* Rules of a monitor's alerts: compares a step with the last hundred of its kind. rewind/monitor.h lists the rules. */
#ifndef RW_IO_MONITOR_JUDGE_H
#define RW_IO_MONITOR_JUDGE_H

#include "io/monitor_optimizer_stats.h"

#define RW_ALERTS 16 /* kinds of alerts */
#define RW_WINDOW 100
#define RW_SKIPS_WINDOW 200

extern const char *const rw_alert_names[RW_ALERTS]; /* by bit */

/* The last numbers of a kind. */
struct rw_window {
    double x[RW_WINDOW];
    size_t n; /* number of values so far */
};

/* The values that an alert compares: that of the step, and the usual one. NaN: none. */
struct rw_compared {
    double value, usual;
};

/* State of the rules; all zero at first. */
struct rw_judge {
    struct rw_window loss, norm, seconds, scale, zeros;
    struct rw_compared compared[RW_ALERTS]; /* of the last alert of each kind, by its bit */
    struct {
        bool x[RW_SKIPS_WINDOW];
        size_t n; /* number of steps so far */
    } skipped;
    double most;   /* largest magnitude of the first losses, as many as a window has */
    bool far, low; /* at the last step the loss was far above those; the scale was below 1 */
    struct {
        double loss, norm;
        bool known;
    } before;                  /* medians of the hundred steps before the windows, if there are any */
    int in_a_row;              /* updates left out */
    bool is_counted;           /* the update of the last step is one of n_skipped */
    bool scale_is_judged;      /* that of the last step */
    int beside;                /* number of successive updates that were too small or too large for their weights */
    uint64_t steps, n_skipped; /* in all */
};

/* A step. A time or scale of 0 is unknown. */
struct rw_judged {
    double loss, seconds, loss_scale;
    bool skipped;
    struct rw_health health;
};

/* Is a norm far above the last ones, whose median is stored in *ret_usual? It is added to the window unless it is NaN
   or infinite. */
bool rw_judge_spikes(struct rw_window *w, double norm, double *ret_usual);

/* Sets the numbers of an alert, and returns the alert. */
unsigned rw_judge_compare(struct rw_judge *j, unsigned alert, double value, double usual);

/* Adds the norm of all gradients, once per step, as soon as it is known. Returns RW_ALERT_GRAD_... */
unsigned rw_judge_norm(struct rw_judge *j, double norm);

/* Adds what is known of a step before its update, and returns its alerts: RW_ALERT_... The norm comes first. */
unsigned rw_judge_step(struct rw_judge *j, const struct rw_judged *s);

/* Adds the rest: the step's time, its update or that it was skipped, and a loss scale that was unknown before. */
unsigned rw_judge_update(struct rw_judge *j, const struct rw_judged *s);

/* The caller leaves out the update of the last step, because of its alerts. Each step counts once. */
void rw_judge_skip(struct rw_judge *j);

#endif
