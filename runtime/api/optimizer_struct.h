/* The structure of an optimizer, for its own files. */
#ifndef RW_API_OPTIMIZER_STRUCT_H
#define RW_API_OPTIMIZER_STRUCT_H

#include "api/optimizer_offload.h"
#include "api/cached_update_plan.h"
#include "autodiff/requested_outputs.h"
#include "base/weak_refs.h"

#include <rewind/optimizers.h>

/* The numbers that an optimizer was created with; numbers that a kind does not use are zero. */
struct rw_optimizer_numbers {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
    bool nesterov, decay_all, stochastic_rounding;
    rw_dtype moments; /* of Adam */
};

struct rw_optimizer_kind {
    const char *name;   /* in files */
    const char *create; /* the function that creates it */
    const rw_op_def *op;
    struct rw_update_attrs attrs;
    const char *state[RW_UPDATE_STATES]; /* the names that PyTorch uses */
    /* Fills in all members except f and fresh, for a parameter's update number `step`. lr and weight_decay are the
       parameter's. */
    void (*row)(struct rw_update_row *row, const struct rw_optimizer_numbers *numbers, uint64_t step);
};

/* Maximum number of parameters of a node: with master copies, nine operands each. */
#define RW_GROUP_MAX 4096

struct rw_member {
    struct rw_param *param;
    size_t piece;            /* index of its first one; the others follow */
    bool has_master;         /* for parameters of 16 bits without stochastic rounding */
    struct rw_param *sums;   /* of a separate update; NULL: there was no observer */
    uint64_t step;           /* number of updates: the bias correction of a parameter counts its own gradients */
    uint32_t version;        /* version of the parameter's contents that the master copy equals */
    bool due;                /* the prepared update includes it */
    bool updated;            /* the last update that was counted did */
    double lr_factor;        /* rw_optimizer_set() */
    double weight_decay;     /* likewise; below zero: the optimizer's, by the parameter's rank */
};

struct rw_optimizer {
    struct rw_step_recorder own; /* must be first; of the single calls */
    rw_context *ctx;
    const struct rw_optimizer_kind *kind;
    struct rw_optimizer_numbers numbers;
    struct rw_member *members;
    struct rw_pieces pieces;
    struct rw_optimizer_offload *offload; /* NULL: the states are in device memory */
    struct rw_update_row *rows; /* of the pieces */
    struct rw_param **uploaded; /* the same in device memory, by group */
    /* If it follows a scaler, by group: the skipped updates of its parameters, and the corrected rows. */
    struct rw_param **pending, **due;
    struct rw_param **sums; /* by group; NULL: there was no observer */
    size_t n_watchers;
    uint8_t prepared_sums, last_sums; /* enum rw_optimizer_sums: of the prepared update, and the last one counted */
    uint64_t n_updates; /* total of this optimizer */
    size_t n, bytes;
    struct rw_update update;
    bool update_follows; /* it was planned for an optimizer that follows a scaler */
    bool update_sums;    /* it was planned with an observer */
    struct rw_dependent *dependents; /* scalers, monitors, checkpoints: they do not keep it alive */
    size_t n_users; /* itself, until rw_optimizer_destroy(), and the graphs that step with it: the last one frees it */
};

/* The number of pieces of a group. */
static inline size_t rw_group_size(const rw_optimizer *opt, size_t group)
{
    return opt->pieces.first[group + 1] - opt->pieces.first[group];
}

#endif
