/*
 * Sites of a monitor: for each operand of a linear layer under an FP8 recipe its amax, its scale, and the fractions of
 * elements that were saturated or flushed to zero, from counts of the quantization passes
 * (record/quantization_counts.h).
 */
#ifndef RW_IO_MONITOR_FP8_STATS_H
#define RW_IO_MONITOR_FP8_STATS_H

#include "io/monitor_tensorboard_prometheus.h"
#include "record/context.h"

#include <rewind/monitor.h>

#define RW_SITE_WINDOW 50
#define RW_SITE_NAME 264
#define RW_SITE_READINGS 5 /* numbers of a site */

struct rw_site_state {
    char name[RW_SITE_NAME];    /* weight and operand; without characters that files would escape */
    float scale[RW_SITE_WINDOW]; /* the last ones */
    uint64_t n;                 /* of them, so far */
    unsigned told;              /* alerts that still hold: they are reported when they begin */
    double usual;               /* median of the scales before the step that was read last */
    rw_monitor_site last;       /* the step that was read last */
};

struct rw_watched_sites {
    rw_context *ctx;
    struct rw_counts *pending; /* until it begins */
    struct rw_param *noted;
    uint64_t *words;
    struct rw_site_state *site;
    size_t n;
};

/* For all weights that the context has. On an error, which is recorded, nothing is left open. */
rw_status rw_sites_open(struct rw_watched_sites *s, rw_context *ctx, const void *watcher);

/* From now on the context counts for this monitor. */
void rw_sites_begin(struct rw_watched_sites *s);

/* Frees the sites. If counting has begun, the context continues to count: rw_counts_close(). */
void rw_sites_free(struct rw_watched_sites *s);

void rw_sites_readings(const struct rw_watched_sites *s, struct rw_readings *r);

/* Reads the counts of all steps since the last call; ret_alerts receives RW_ALERT_SITE_... An error is recorded. */
rw_status rw_sites_read(struct rw_watched_sites *s, unsigned *ret_alerts);

/* The numbers of the first site that has this alert in the step that was read last; false: none has. */
bool rw_sites_compared(const struct rw_watched_sites *s, unsigned alert, double *ret_value, double *ret_usual);

#endif
