/*
 * What a monitor takes from the passes that make 8-bit codes: of each operand of a linear layer the amax, the scale,
 * and which shares were saturated or flushed to zero.
 */
#ifndef RW_IO_MONITOR_SITES_H
#define RW_IO_MONITOR_SITES_H

#include "io/monitor_files.h"
#include "record/context.h"

#include <rewind/monitor.h>

#define RW_SITE_WINDOW 50
#define RW_SITE_NAME 264
#define RW_SITE_READINGS 5 /* numbers of a site */

struct rw_site_state {
    char name[RW_SITE_NAME];    /* of its weight and operand; nothing in it that files would escape */
    float scale[RW_SITE_WINDOW]; /* the last ones */
    uint64_t n;                 /* of them, so far */
    unsigned told;              /* alerts that still hold: they are told when they begin */
    rw_monitor_site last;       /* the step that was read last */
};

struct rw_watched_sites {
    rw_context *ctx;
    struct rw_counts *made; /* until it begins */
    struct rw_param *noted;
    uint64_t *words;
    struct rw_site_state *site;
    size_t n;
};

/* Of all weights that the context has. An error is recorded and leaves nothing behind. */
rw_status rw_sites_open(struct rw_watched_sites *s, rw_context *ctx, const void *watcher);

/* The context counts from now on for the watcher. */
void rw_sites_begin(struct rw_watched_sites *s);

/* Where it has begun, the context goes on counting: rw_counts_close(). */
void rw_sites_free(struct rw_watched_sites *s);

/* Adds to n readings. */
void rw_sites_readings(const struct rw_watched_sites *s, struct rw_reading *r, size_t *n);

/* Of all steps since the last call, together; ret_alerts receives RW_ALERT_SITE_... An error is recorded. */
rw_status rw_sites_read(struct rw_watched_sites *s, unsigned *ret_alerts);

#endif
