/* What a monitor takes from an optimizer's own pass over the parameters: norms, shares and ratios, by group. */
#ifndef RW_IO_MONITOR_WATCHED_H
#define RW_IO_MONITOR_WATCHED_H

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
    uint64_t seen;                   /* the update whose sums were read */
    rw_context *ctx;
    uint64_t *serials; /* of the optimizer's parameters, which rise */
    size_t n;
    uint64_t seen_clip; /* the clipping whose sums were read */
};

struct rw_health {
    double elements; /* 0: nothing was updated, and nothing else is known but the last */
    double grad_norm, param_norm, update_ratio, zeros;
    bool clipped; /* the gradients went through a clipping, before which their norm was this */
    double unclipped_norm;
};

/* The optimizer is watched. An error, recorded, leaves nothing behind. */
rw_status rw_watched_open(struct rw_watched *w, rw_context *ctx, const rw_monitor_sources *sources);
/* Once *w has the address that it keeps: an optimizer that is destroyed from now on is watched no more. */
void rw_watched_begin(struct rw_watched *w);
void rw_watched_close(struct rw_watched *w);

/* Of the updates since the last call the last one, and of the clippings: of all parameters, and of each group. Where
   there was none, all is unknown. An error is recorded. */
rw_status rw_watched_read(struct rw_watched *w, struct rw_health *all, struct rw_health *groups);

#endif
