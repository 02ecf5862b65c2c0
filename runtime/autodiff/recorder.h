/*
 * Recorders: the parts of the library that add nodes to a step - a loss scale, clipping, an optimizer, the scales of
 * delayed scaling, and what a caller adds (rewind/recorders.h). Planning, graphs and backward walk a list of them and
 * know no feature: each one implements these functions in a file of its own. An absent function (NULL) means that there
 * is nothing to do.
 *
 *     check                        the caller's list is valid; nothing exists yet
 *     open                         what the recorder needs as long as it is used; close() ends it
 *       begin                      a plan is made
 *         gradient, end_of_pass    backward completes gradients
 *         record, finish           after backward: commits, in the order of the list; then in the reverse order
 *       end                        the plan is made, or that failed
 *       attend                     a run of the plan was made
 *       check_launch, before, prepare, launched or failed      each time that the run executes
 *     close
 *
 * A graph has them in the plan of its step. rw_backward_with() runs backward as rw_backward() does, and then a plan of
 * the recorders alone, so a forward that a read has begun goes on, and plans of steps are shared.
 *
 * A plan with recorders is not cached, because nothing else can use it. Recorders count the effects of their commits
 * themselves: the run counts only those with RW_OP_OWN_COUNTED (ops/common/pass_ops.h).
 */
#ifndef RW_AUTODIFF_RECORDER_H
#define RW_AUTODIFF_RECORDER_H

#include "base/weak_refs.h"
#include "record/tape.h"

#include <rewind/recorders.h>

struct rw_run;
struct rw_step_recorder;

/* The order of a list: a recorder of one stage comes after those of earlier stages, because it uses their results. */
enum rw_recorder_stage {
    RW_STAGE_GRADIENT, /* changes each gradient when backward has completed it */
    RW_STAGE_UNSCALE,  /* divides gradients by the loss scale */
    RW_STAGE_CLIP,
    RW_STAGE_UPDATE, /* changes parameters */
    RW_STAGE_AFTER   /* the state of the next step */
};

/* What the recorders of one plan share while it is made. */
struct rw_recording {
    rw_tape *t;
    /*
     * By parameter ID, the value that nodes after the commits so far read as its gradient. NULL, in a step: the step
     * computes none, and gradients were clear. A commit replaces the entry of what it writes by its output. NULL before
     * record().
     */
    rw_tensor **gradient;
    rw_tensor *skip; /* one RW_I32, above zero if the updates of this step are skipped; NULL: they never are */
    /*
     * Fused updates that need all gradients first: backward is recorded twice. In the first pass each gradient is shown
     * to gradient() and then dropped; the second recomputes it from the same tickets, and what gradient() returns is
     * used in its place. The loss is computed once, and amaxes of the second pass are recorded.
     */
    bool in_two_passes, is_first_pass;
};

/* A list that is checked, and one of its entries. The place is named in messages. */
struct rw_recorder_check {
    const char *call; /* the public function that got the list */
    const rw_tape *t;
    const rw_tensor *loss;
    const rw_recorder *list; /* entries before `index` were checked already */
    size_t index;
    bool is_graph; /* the plan is part of a captured step */
};

/* What a recorder is opened for. */
struct rw_recorder_use {
    const char *call;
    rw_context *ctx;
    bool skips; /* another recorder of the list sets rw_recording.skip */
    bool is_graph; /* of a graph, which holds the objects. False: of rw_backward_with(); see depend() */
};

/* Errors of all functions are recorded. */
struct rw_recorder_kind {
    const char *name;  /* the function that makes an entry of a list */
    uint8_t stage;     /* enum rw_recorder_stage */
    bool is_single;    /* a list has at most one */
    bool skips;        /* it sets rw_recording.skip */
    bool reads_all;    /* it needs every gradient before the first update: gradient() is called in two passes only */
    bool updates_inside; /* its updates run inside backward */
    bool needs_graph;    /* it works only if it is part of the step's plan */

    rw_status (*check)(const rw_recorder *given, const struct rw_recorder_check *at);
    rw_status (*open)(const rw_recorder *given, const struct rw_recorder_use *use, struct rw_step_recorder **ret);
    /* never_ran: open() or what followed it failed, so that changes of open() to other objects are taken back. */
    void (*close)(struct rw_step_recorder *r, bool never_ran);

    /* Calls gone() before the object is freed, which a list that is not a graph's does not hold. Otherwise d is
       untouched. */
    void (*depend)(struct rw_step_recorder *r, struct rw_dependent *d, void (*gone)(struct rw_dependent *d));
    /* Does a list that was opened for this entry, apart from its number, serve it now? It takes over the number. */
    bool (*is_current)(const struct rw_step_recorder *r);
    rw_status (*renumber)(struct rw_step_recorder *r, double number);

    /* The address of the number with which backward begins in place of 1. */
    const void *(*seed)(const struct rw_step_recorder *r);
    /* Around a backward that is not a graph's: gradients are added to those that exist. */
    rw_status (*before_backward)(const struct rw_step_recorder *r, const char *call);
    void (*after_backward)(struct rw_step_recorder *r);
    /* Marks the parameters, by ID, whose gradients its updates inside backward consume. */
    void (*consume)(const struct rw_step_recorder *r, bool *used_up);

    rw_status (*begin)(struct rw_step_recorder *r, const struct rw_recording *now);
    /* Returns what is used in place of a gradient that is complete; NULL is an error. */
    rw_tensor *(*gradient)(struct rw_step_recorder *r, struct rw_recording *now, uint32_t param, rw_tensor *gradient);
    rw_status (*end_of_pass)(struct rw_step_recorder *r, struct rw_recording *now); /* of the first of two */
    rw_status (*record)(struct rw_step_recorder *r, struct rw_recording *now);
    /* Commits at the end of the step also where updates run inside backward. */
    rw_status (*finish)(struct rw_step_recorder *r, struct rw_recording *now);
    void (*end)(struct rw_step_recorder *r); /* may follow a begin() that failed, or none */

    rw_status (*attend)(struct rw_step_recorder *r, struct rw_run *run);
    rw_status (*check_launch)(const struct rw_step_recorder *r, const struct rw_run *run, const char *call);
    rw_status (*check_update)(const struct rw_step_recorder *r, const char *call); /* the same after a backward */
    rw_status (*before)(struct rw_step_recorder *r); /* of a graph: the run is not prepared yet */
    rw_status (*prepare)(struct rw_step_recorder *r); /* uploads numbers; gradients of the step count as written */
    /* The address that a captured run has from the recorder, and that may change between launches. */
    const void *(*address)(const struct rw_step_recorder *r);
    void (*captured)(struct rw_step_recorder *r); /* it was captured and not queued */
    void (*failed)(struct rw_step_recorder *r);
    void (*launched)(struct rw_step_recorder *r); /* it was queued: counts it */
};

/* A recorder in use. The functions get this, the first member of what open() makes; the list sets its kind. */
struct rw_step_recorder {
    const struct rw_recorder_kind *kind;
    const void *captured_address;
};

#endif
