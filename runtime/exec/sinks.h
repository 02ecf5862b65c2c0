/*
 * What a plan is for: the values it has to hold, with differentiation recorded on the way, and where each gradient goes. A
 * gradient is written where it belongs by the node that makes it, or added there by a node recorded for that.
 */
#ifndef RW_EXEC_SINKS_H
#define RW_EXEC_SINKS_H

#include "exec/build.h"

struct rw_sinks {
    rw_tape *t;
    rw_context *ctx;
    const struct rw_request *request;
    struct rw_sink *sink;
    size_t n, cap;
    uint32_t *params; /* whose gradient is written or added to */
    size_t n_params, cap_params;
    uint32_t *early, *next; /* nodes that run right after the one that completes their input; see struct rw_schedule_request */
    size_t n_regular;

    rw_tensor **grads; /* per recorded value, of a step */
    size_t n_recorded;
    uint32_t *reads;   /* per base of the tape: by nodes, and as the gradient of a leaf */
    uint32_t *instead; /* per node recorded for a sink: the product whose place it takes, or RW_NONE_ID */
    size_t n_instead, cap_instead, first_sink_node;
};

/* Records on the tape what it takes. On a failure, which is recorded, rw_sinks_finish() is still to be called. */
rw_status rw_sinks_init(struct rw_sinks *s, rw_tape *t, const struct rw_request *request);
void rw_sinks_finish(struct rw_sinks *s);

#endif
