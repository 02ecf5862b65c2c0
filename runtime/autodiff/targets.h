/*
 * What a plan is for: the values it has to hold, with differentiation recorded on the way, and where each gradient
 * goes. A gradient is written where it belongs by the node that makes it, or copied there.
 *
 * The sum of a parameter's gradient always begins with what the gradient holds (its seed), and the sum's last node
 * writes over that. Whether the gradient is clear is found out when backward begins to run: the seed is then an operand
 * that is absent, and an op that takes it as an optional input computes what it computes without. So one plan serves
 * the first micro-batch, the later ones, graphs and the verifier. Where an op that cannot do without reads what a
 * gradient holds, a clear one is filled with zeros before.
 */
#ifndef RW_AUTODIFF_TARGETS_H
#define RW_AUTODIFF_TARGETS_H

#include "autodiff/differentiate.h"
#include "record/policy.h"

enum rw_plan_kind {
    RW_PLAN_EVAL, /* some values */
    RW_PLAN_STEP  /* a loss and its gradients */
};

/*
 * What is done with gradients once they are there - clipping, an optimizer - recorded by planning behind them: commits,
 * in the order of the list. A plan with recorders is of nobody else's use and not in the cache; what its commits write
 * is counted by who asked for it.
 */
struct rw_recorder {
    struct rw_recorder *next;
    /*
     * gradient: by parameter's id, what a node behind those recorded so far reads as its gradient. A commit puts its
     * output in the place of what it writes. NULL, in a step: the step makes none, and it began with clear ones.
     * Errors are recorded.
     */
    rw_status (*record)(struct rw_recorder *r, rw_tape *t, rw_tensor **gradient);
    bool late; /* of a request with used_up: it stays behind all else, and those behind it in the list are late */
};

/*
 * Of a step whose gradients are used up as they are complete, where what is done with them depends on all of them:
 * backward is recorded twice. In the first pass each gradient is shown to those who asked, one after the other, who
 * record what they need of it, and what it is for the next one; no more is done with it. The second makes it again,
 * from the same tickets, and what `change` of all of them records of it stands for it. The loss is computed once, and
 * the amaxes of the second pass are noted. Errors are recorded; NULL is one.
 */
struct rw_first_pass {
    struct rw_first_pass *next;
    rw_tensor *(*show)(struct rw_first_pass *f, rw_tape *t, uint32_t param, rw_tensor *gradient);
    rw_status (*end)(struct rw_first_pass *f, rw_tape *t); /* all have been shown */
    rw_tensor *(*change)(struct rw_first_pass *f, rw_tape *t, rw_tensor *gradient);
};

struct rw_request {
    uint8_t kind;           /* enum rw_plan_kind */
    const uint32_t *values; /* of an eval: what to hold; of a step: where backward begins */
    size_t n_values;
    const struct rw_policy *policy; /* what rematerialization goes by */
    bool effects;                   /* of an eval: the effects that have not happened run too */
    bool seeded;                    /* of a step: what backward begins with is given when it runs; false: ones */
    struct rw_recorder *recorders;  /* a list */
    /* Of a step, by parameter: its gradient is used up by recorders, inside the step: it is written nowhere, and what
       recorders put on the tape runs as soon as it can. NULL: none. */
    const bool *used_up;
    struct rw_first_pass *first; /* of one with used_up, a list; NULL: one pass */
};

/* A step under the tape's policy. */
static inline struct rw_request rw_step_request(const rw_tape *t, const uint32_t *roots, size_t n_roots)
{
    return (struct rw_request){ .kind = RW_PLAN_STEP, .values = roots, .n_values = n_roots, .policy = &t->policy };
}

/* Where the final bytes of a value go. */
struct rw_target {
    uint32_t value; /* any value; its base is what is held */
    uint32_t of;    /* see struct rw_result */
    bool into_gradient;  /* it is written straight into the gradient of parameter `of` */
    bool only_if_needed; /* hold it when something else makes it run */
};

struct rw_targets {
    struct rw_grad_taker taker;
    rw_tape *t;
    rw_context *ctx;
    const struct rw_request *request;
    struct rw_target *target;
    size_t n, cap;
    bool *taken; /* base value -> it is a target */
    size_t cap_taken;
    uint32_t *params; /* whose gradient is written or added to */
    size_t n_params, cap_params;
    struct rw_used_up {
        uint32_t param, value;
    } *used_up; /* gradients that the step's own updates use up */
    size_t n_used_up, cap_used_up;
    uint32_t first_update, end_update; /* the first node of those updates, and that behind them; RW_NONE_ID: none */
    rw_tensor **grads, **seeds; /* per recorded value, of a step: its gradient so far; what that begins with */
    bool in_first_pass;
    size_t first_seed, n_seeds; /* the leaves of the seeds */
    uint32_t n_recorded; /* nodes before planning: those from here on are differentiation's and planning's */
    uint32_t *instead;   /* leaf, of the first n_instead -> the copy that commits read in its place, or RW_NONE_ID */
    size_t n_instead, cap_instead;
};

/* Does a recorded value depend on what requires a gradient? Then effects wait for the step's backward. */
bool rw_has_gradient(const rw_tape *t);

/* Records on the tape what it takes. On a failure, which is recorded, rw_targets_finish() is still to be called. */
rw_status rw_targets_init(struct rw_targets *s, rw_tape *t, const struct rw_request *request);
void rw_targets_finish(struct rw_targets *s);

#endif
