/* What an optimizer is made of, for its own files. */
#ifndef RW_API_OPTIMIZER_MEMBERS_H
#define RW_API_OPTIMIZER_MEMBERS_H

#include "api/away.h"
#include "api/update.h"
#include "autodiff/targets.h"
#include "base/dependent.h"

#include <rewind/optimizers.h>

/* The numbers that an optimizer was made with; what a kind has no use for is zero. */
struct rw_optimizer_numbers {
    double lr, beta1, beta2, eps, weight_decay, momentum, dampening;
    bool nesterov, decay_all, stochastic_rounding;
    rw_dtype moments; /* of Adam */
};

struct rw_optimizer_kind {
    const char *name;   /* in files */
    const char *create; /* the call that makes it */
    const rw_op_def *op;
    struct rw_update_attrs attrs;
    const char *state[RW_UPDATE_STATES]; /* as PyTorch calls them */
    /* Fills in all but f and fresh, of a parameter's update number `step`. lr and weight_decay are the parameter's. */
    void (*row)(struct rw_update_row *row, const struct rw_optimizer_numbers *numbers, uint64_t step);
};

/* A node has at most so many parameters: with masters, nine operands of each. */
#define RW_GROUP_MOST 4096

struct rw_member {
    struct rw_param *param;
    size_t piece;            /* its first; the others follow */
    bool has_master;         /* of 16 bits, and not rounded by chance */
    struct rw_param *sums;   /* of an update by itself; NULL: nobody has watched */
    uint64_t step;           /* updates made: the bias correction of a parameter counts its own gradients */
    uint32_t version;        /* of the parameter's contents that the master copy is one of */
    bool due;                /* it takes part in the update that was prepared */
    double lr_factor;        /* rw_optimizer_set() */
    double weight_decay;     /* likewise; below zero: the optimizer's, by the parameter's rank */
};

struct rw_adamw {
    struct rw_recorder recorder; /* first */
    rw_context *ctx;
    const struct rw_optimizer_kind *kind;
    struct rw_optimizer_numbers numbers;
    struct rw_member *members;
    struct rw_pieces pieces;
    struct rw_away *away; /* NULL: the states are in the device's memory */
    struct rw_update_row *rows; /* of the pieces */
    struct rw_param **uploaded; /* the same in the device's memory, by group */
    /* Of one that follows a scaler, by group: what its parameters have left out, and the rows that go by that. */
    struct rw_param **pending, **due;
    struct rw_param **sums; /* by group; NULL: nobody has watched */
    size_t n_watchers;
    uint8_t last_sums; /* enum rw_optimizer_sums, of the last update */
    uint64_t n_updates; /* of this optimizer, since it was made */
    rw_tensor *const *found; /* of what is recorded now */
    size_t n, bytes;
    struct rw_update update;
    bool update_follows; /* it was planned by an optimizer that did */
    bool update_sums;    /* it was planned while somebody watched */
    struct rw_dependent *dependents; /* scalers, monitors, checkpoints: they do not keep it alive */
    size_t n_users; /* itself, until rw_adamw_destroy(), and the graphs that step with it: the last one frees it */
};

/* Pieces of it. */
static inline size_t rw_group_size(const rw_optimizer *opt, size_t group)
{
    return opt->pieces.first[group + 1] - opt->pieces.first[group];
}

#endif
