/* Passes 2 to 4 for one tape: from what the caller asked for to a plan. */
#ifndef RW_PLAN_BUILD_H
#define RW_PLAN_BUILD_H

#include "plan/plan.h"
#include "record/tape.h"
#include "remat/schedule.h"

struct rw_request {
    uint8_t kind;                  /* enum rw_plan_kind */
    const uint32_t *values;        /* of an eval: what to hold; of a step: the loss alone */
    size_t n_values;
    const struct rw_policy *policy;
    bool effects;                  /* of an eval: those of the step happen too, when there is nothing to train */
    bool private_gradients;        /* parameters' gradients become results of the plan: the verifier's */
};

/* What a plan forgets and ckpt_explain() wants to know. */
struct rw_build_details {
    struct rw_schedule schedule;
    struct rw_scopes scopes;
};

/*
 * Builds a plan; the tape is as before afterwards. The caller gets one reference.
 * details may be NULL; otherwise it is filled and the tape still holds the adjoint nodes: the caller reads, then calls
 * rw_build_details_finish(), which cuts them off. Errors are recorded in the context.
 */
rw_status rw_plan_build(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);
rw_status rw_plan_build_details(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan,
                                struct rw_build_details *details, struct rw_tape_mark *ret_mark);
void rw_build_details_finish(rw_tape *t, struct rw_build_details *details, const struct rw_tape_mark *mark);

struct rw_plan_key {
    uint64_t a, b;
};

/* The same for two requests that would give the same plan. */
struct rw_plan_key rw_request_key(const rw_tape *t, const struct rw_request *request);

/* The plan from the cache, or a new one put there. The cache keeps the reference. */
rw_status rw_plan_get(rw_tape *t, const struct rw_request *request, rw_plan **ret_plan);

#endif
