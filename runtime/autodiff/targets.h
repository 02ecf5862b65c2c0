/*
 * What a plan is for: the values it has to hold, with differentiation recorded on the way, and where each gradient goes.
 * A gradient is written where it belongs by the node that makes it, or copied there. Where a parameter's gradient is to
 * be added to, its sum begins with what it holds, and the sum's last node writes over that.
 */
#ifndef RW_AUTODIFF_TARGETS_H
#define RW_AUTODIFF_TARGETS_H

#include "autodiff/differentiate.h"
#include "plan/build.h"

struct rw_sinks {
    struct rw_grad_taker taker;
    rw_tape *t;
    rw_context *ctx;
    const struct rw_request *request;
    struct rw_sink *sink;
    size_t n, cap;
    struct rw_plan_gradient *params; /* whose gradient is written or added to */
    size_t n_params, cap_params;
    rw_tensor **grads; /* per recorded value, of a step */
    size_t first_seed, n_seeds; /* leaves that sums of parameters begin with */
};

/* Records on the tape what it takes. On a failure, which is recorded, rw_sinks_finish() is still to be called. */
rw_status rw_sinks_init(struct rw_sinks *s, rw_tape *t, const struct rw_request *request);
void rw_sinks_finish(struct rw_sinks *s);

#endif
