/*
 * What a plan is for: the values it has to hold, with differentiation recorded on the way, and where each gradient
 * goes. A gradient is written where it belongs by the node that makes it, or copied there. Where a parameter's gradient
 * is to be added to, its sum begins with what it holds, and the sum's last node writes over that.
 */
#ifndef RW_AUTODIFF_TARGETS_H
#define RW_AUTODIFF_TARGETS_H

#include "autodiff/differentiate.h"
#include "record/policy.h"

enum rw_plan_kind {
    RW_PLAN_EVAL, /* some values */
    RW_PLAN_STEP  /* a loss and its gradients */
};

struct rw_request {
    uint8_t kind;           /* enum rw_plan_kind */
    const uint32_t *values; /* of an eval: what to hold; of a step: the loss alone */
    size_t n_values;
    const struct rw_policy *policy; /* what rematerialization goes by */
    bool effects;                   /* of an eval: those of the step happen too, when there is nothing to train */
    bool private_gradients;         /* parameters' gradients become results of the plan: the verifier's */
};

/* Where the final bytes of a value go. */
struct rw_target {
    uint32_t value; /* any value; its base is what is held */
    uint32_t of;    /* see struct rw_result */
    bool of_param;
    bool into_gradient;  /* write straight into the parameter's gradient */
    bool only_if_needed; /* hold it when something else makes it run */
};

/* A parameter's gradient that a plan writes, or adds to where it was not clear when the plan was made. */
struct rw_plan_gradient {
    uint32_t param;
    bool adds;
};

struct rw_targets {
    struct rw_grad_taker taker;
    rw_tape *t;
    rw_context *ctx;
    const struct rw_request *request;
    struct rw_target *target;
    size_t n, cap;
    struct rw_plan_gradient *params; /* whose gradient is written or added to */
    size_t n_params, cap_params;
    rw_tensor **grads;          /* per recorded value, of a step */
    size_t first_seed, n_seeds; /* leaves that sums of parameters begin with */
};

/* Records on the tape what it takes. On a failure, which is recorded, rw_targets_finish() is still to be called. */
rw_status rw_targets_init(struct rw_targets *s, rw_tape *t, const struct rw_request *request);
void rw_targets_finish(struct rw_targets *s);

#endif
