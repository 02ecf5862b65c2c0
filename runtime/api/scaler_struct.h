/* The structure of a loss scaler, for its own files. */
#ifndef RW_API_SCALER_STRUCT_H
#define RW_API_SCALER_STRUCT_H

#include "api/cached_update_plan.h"
#include "autodiff/recorder.h"
#include "base/weak_refs.h"
#include "ops/optim/loss_scaling_ops.h"

/* A scaler as a recorder: in a list, and in the plans of its calls. */
struct rw_scaler_recorder {
    struct rw_step_recorder recorder; /* must be first */
    rw_scaler *s;
    bool holds; /* it is one of its users */
    rw_tensor **founds; /* while planning two passes, by parameter's id: the result for its gradient; NULL: none */
};

/* The planned update of an optimizer, which is skipped if something was found. It is freed with the optimizer. */
struct rw_stepped {
    struct rw_dependent on_optimizer; /* must be first */
    struct rw_stepped *next, **link; /* in the scaler's list */
    rw_optimizer *opt;
    struct rw_update update;
    bool sums; /* it was planned while a monitor observed the optimizer */
    bool ran; /* in the period ran_in */
    uint32_t ran_in;
};

struct rw_scaler {
    struct rw_scaler_recorder unscaler, updater; /* of the single calls */
    rw_context *ctx;
    struct rw_scaler_rule rule;
    struct rw_param *numbers; /* a buffer of the context: the scale and the counters */
    struct rw_param *found;   /* a state */
    struct rw_update unscaling, updating;
    size_t n_params; /* number of parameters that unscaling was planned for */
    struct rw_stepped *steps;
    struct rw_dependent *dependents;
    /* A period ends when the numbers change, by rw_scaler_update() or by loading them. Their version identifies it. */
    uint64_t unscaled; /* number of its last unscaling (record/gradient_state.h), to which `found` belongs; 0: none */
    uint32_t unscaled_in, stepped_in; /* periods; the second is one in which an optimizer was stepped */
    bool stepped;
    size_t n_users; /* itself, until rw_scaler_destroy(), and the graphs that use it: the last one frees it */
};

#endif
