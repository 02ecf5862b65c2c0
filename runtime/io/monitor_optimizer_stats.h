/* Statistics of an optimizer for a monitor, from the optimizer's own pass over the parameters: norms, fractions and
   ratios, by group. */
#ifndef RW_IO_MONITOR_OPTIMIZER_STATS_H
#define RW_IO_MONITOR_OPTIMIZER_STATS_H

#include "api/optimizer.h"

#include <rewind/monitor.h>

#define RW_WATCHED_GROUPS 16
#define RW_WATCHED_NAME 61 /* with its end */

struct rw_watched {
    rw_optimizer *opt; /* NULL: none, or it was destroyed */
    struct rw_dependent on_optimizer;
    char name[RW_WATCHED_GROUPS][RW_WATCHED_NAME];
    size_t n_groups;
    uint8_t *group_of;               /* by the optimizer's parameter; n_groups: none */
    double (*sums)[RW_UPDATE_SUMS];  /* likewise */
    uint64_t seen;                   /* the update whose sums were read last */
    rw_context *ctx;
    uint64_t *serials; /* IDs of the optimizer's parameters, ascending */
    size_t n;
    uint64_t seen_clip; /* the clipping whose sums were read last */
};

struct rw_health {
    double elements; /* 0: nothing was updated, and only the last member is known */
    double grad_norm, param_norm, update_ratio, zeros;
    bool clipped; /* the gradients were clipped, and this was their norm before */
    double unclipped_norm;
};

/* Starts to watch the optimizer. On an error, which is recorded, nothing is left open. */
rw_status rw_watched_open(struct rw_watched *w, rw_context *ctx, const rw_monitor_sources *sources);
/* Call once *w has its final address: from now on an optimizer that is destroyed is no longer watched. */
void rw_watched_begin(struct rw_watched *w);
void rw_watched_close(struct rw_watched *w);

/* Add the norms of the last clipping, or the statistics of the last update, since the last call: of all parameters, and
   of each group. If there was none, nothing is added. An error is recorded. */
rw_status rw_watched_read_clipping(struct rw_watched *w, struct rw_health *all, struct rw_health *groups);
rw_status rw_watched_read_update(struct rw_watched *w, struct rw_health *all, struct rw_health *groups);

#endif
