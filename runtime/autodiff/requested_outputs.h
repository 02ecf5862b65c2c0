/*
 * Requested outputs of a plan: the values that it must hold, recorded with differentiation, and the destination of each
 * gradient. A gradient is written to its destination by the node that computes it, or copied there.
 *
 * The sum of a parameter's gradient starts with the present contents of the gradient (its seed), and the last node of
 * the sum overwrites them. Whether the gradient is clear is only known when backward runs. The seed is then an absent
 * operand, and an op that takes it as an optional input computes without it. So one plan serves the first micro-batch,
 * later ones, graphs and the verifier. If an op that requires the operand reads a clear gradient, it is filled with
 * zeros first.
 */
#ifndef RW_AUTODIFF_REQUESTED_OUTPUTS_H
#define RW_AUTODIFF_REQUESTED_OUTPUTS_H

#include "autodiff/differentiate.h"
#include "autodiff/recorder.h"
#include "record/policy.h"

enum rw_plan_kind {
    RW_PLAN_EVAL, /* some values */
    RW_PLAN_STEP  /* a loss and its gradients */
};

struct rw_request {
    uint8_t kind;           /* enum rw_plan_kind */
    const uint32_t *values; /* of an eval: the values to hold; of a step: the roots of backward */
    size_t n_values;
    const struct rw_policy *policy; /* the policy of rematerialization */
    bool effects;                   /* of an eval: it also executes the effects that have not happened */
    bool seeded;                    /* of a step: seeds are passed when it runs; false: they are ones */
    const uint32_t *reads; /* of a step: small values that it also computes and holds for reading */
    size_t n_reads;
    const uint32_t *later; /* of a step: losses whose backward follows; it holds what their backward reads of the
                              forward part */
    size_t n_later;
    struct rw_step_recorder *const *recorders; /* in order */
    size_t n_recorders;
    rw_tensor *skip; /* of an eval: rw_recording.skip, a state */
    /* Of a step, by parameter: recorders consume its gradient inside the step (fused update), so it is not written
       to memory, and their nodes run as soon as possible. NULL: none. */
    const bool *used_up;
};

/* A step with the tape's policy. */
static inline struct rw_request rw_step_request(const rw_tape *t, const uint32_t *roots, size_t n_roots)
{
    return (struct rw_request){ .kind = RW_PLAN_STEP, .values = roots, .n_values = n_roots, .policy = &t->policy };
}

/* A requested value and the destination of its bytes. */
struct rw_target {
    uint32_t value; /* any value; its base is held */
    uint32_t of;    /* see struct rw_result */
    bool into_gradient;  /* it is written directly to the gradient of parameter `of` */
    bool only_if_needed; /* hold it if it is computed for another reason */
    uint32_t view; /* a requested view: the value is a copy of it, held in its place. 0: none, as no view comes first */
};

struct rw_outputs {
    struct rw_grad_taker taker;
    rw_tape *t;
    rw_context *ctx;
    const struct rw_request *request;
    struct rw_target *target;
    size_t n, cap;
    bool *taken; /* base value -> it is requested */
    size_t cap_taken;
    uint32_t *params; /* parameters whose gradients are written or added to */
    size_t n_params, cap_params;
    struct rw_used_up {
        uint32_t param, value;
    } *used_up; /* gradients that fused updates consume */
    size_t n_used_up, cap_used_up;
    uint32_t first_update, end_update; /* nodes of fused updates: the first, and one past the last; RW_NONE_ID: none */
    rw_tensor **grads, **seeds; /* of a step, per recorded value: its gradient so far; the initial value of that sum */
    struct rw_recording now;
    uint32_t first_pass, end_first_pass; /* nodes of the first pass; both 0: there is none */
    size_t first_seed, n_seeds; /* the leaves of the seeds */
    uint32_t n_recorded; /* nodes before planning; later ones are recorded by differentiation and planning */
    uint32_t *instead;   /* leaf, of the first n_instead -> the copy that commits read instead, or RW_NONE_ID */
    size_t n_instead, cap_instead;
};

/* A value of at most so many bytes is small: holding it for reading costs next to nothing. */
#define RW_SMALL_BYTES 256u

/* Can a step hold the base value for reading, in addition to its loss? */
bool rw_value_is_small(const rw_tape *t, uint32_t base);

/* Does a recorded value require a gradient? Then effects happen in the step's backward. */
bool rw_has_gradient(const rw_tape *t);

/* Records on the tape what the request needs. After a failure, which is recorded, rw_outputs_finish() must still be
   called. */
rw_status rw_outputs_init(struct rw_outputs *s, rw_tape *t, const struct rw_request *request);
void rw_outputs_finish(struct rw_outputs *s);

#endif
