/* A monitor, and a step that it evaluates. */
#ifndef RW_IO_MONITOR_STATE_H
#define RW_IO_MONITOR_STATE_H

#include <rewind/monitor.h>

#include "base/fork_handlers.h"
#include "io/monitor_fp8_stats.h"
#include "io/monitor_judge.h"
#include "io/monitor_optimizer_stats.h"
#include "io/monitor_tensorboard_prometheus.h"

/* A step with its alerts and statistics. */
struct rw_shown_step {
    const rw_monitor_values *v;
    unsigned alerts;
    double norm, seconds;
    bool has_norm;
    double model_flops, hardware_flops; /* in a second; 0: not known */
    struct rw_health all, group[RW_WATCHED_GROUPS];
    unsigned group_alerts[RW_WATCHED_GROUPS];
    double group_usual[RW_WATCHED_GROUPS]; /* median norm before this step */
    bool norm_is_judged, group_is_judged[RW_WATCHED_GROUPS];
};

struct rw_monitor {
    rw_context *ctx;
    char *path;
    struct rw_records lines;
    struct rw_forked forked;
    struct rw_judge judge;
    struct rw_window group_norm[RW_WATCHED_GROUPS];
    struct rw_watched watched;
    struct rw_watched_sites sites; /* ctx NULL: none */
    double peak_flops; /* 0: not known */
    rw_monitor_values given; /* those of the step that is evaluated; RW_ZERO: a rate or a count that is known to be 0 */
    rw_cost work;      /* the context's totals at the last call */
    uint64_t n_alerts[RW_ALERTS];
    rw_recovery policy[RW_ALERTS];
    char *text;                  /* of a line */
    size_t room;
    struct rw_readings readings; /* of a step */
    struct rw_event_file events; /* no path: none */
    char *prometheus;            /* from the root on; NULL: none */
    struct rw_shown_step now;            /* the step that was evaluated last */
    bool is_checked;             /* rw_monitor_check() has evaluated it, and its line is not written yet */
    uint64_t checked_step;
    bool is_parents; /* a child of fork() does not write to the files */
    double replaced;             /* when; 0: it was not yet */
    struct rw_shown_step held;           /* the last step for that file; v: NULL before the first one */
    rw_monitor_values held_values;
    bool waits;                  /* a step that the file does not have yet */
    double validation;           /* loss; NaN: not known */
    double last; /* time of the last call; 0: there was none */
    rw_monitor_numbers numbers; /* of the last step */
    rw_monitor_group_numbers group[RW_WATCHED_GROUPS];
    size_t n_groups; /* of them; 0 before the first step */
};

/* Did the last update, or its clipping, report numbers? */
static inline bool rw_health_is_known(const struct rw_health *h)
{
    return h->elements > 0 || h->clipped;
}

#endif
