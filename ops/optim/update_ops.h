/* Ops of optimizers and averages: updates, their rows, and clipping. ops/optim implements them. */
#ifndef RW_OPS_OPTIM_UPDATE_OPS_H
#define RW_OPS_OPTIM_UPDATE_OPS_H

#include <rewind/op.h>

/*
 * Updates of parameters, which are commits: (rows, gradients, parameters, first states, second states, masters) ->
 * (parameters, first states, second states, masters).
 *
 * n rows for n parameters, and as many kinds of states as the attributes say. Master copies exist only for 16-bit
 * parameters, in their order, or only for float16 ones; bfloat16 ones are then stochastically rounded, with the noise
 * that their rows name. States and masters are float32 (float64 for float64 parameters). Moments may be bfloat16: the
 * first is rounded to nearest, the second stochastically, because the change by beta2 is below what nearest rounding
 * represents. A gradient has the parameter's type or float32. A parameter whose gradient is absent is unchanged, and so
 * are its states. The op `average` averages the operands in the place of gradients into those in the place of
 * parameters, float32 or float64. If requested by the attributes, the last input and output are sums of what the update
 * computes, [n, RW_UPDATE_SUMS] of RW_F64: enum rw_update_sum. No other byte depends on them.
 *
 * With windows, states and masters have rank 1 and hold a part of the parameter's elements, starting at the one that
 * the row names. Only these are updated, to the same bytes as otherwise. Without states and master: all elements.
 */
extern const rw_op_def rw_op_adamw, rw_op_adam, rw_op_sgd, rw_op_lion, rw_op_average;

enum rw_update_rule {
    RW_UPDATE_ADAM, /* decoupled or not, as the row says. States: the two moments */
    RW_UPDATE_LION, /* the moment */
    RW_UPDATE_SGD,  /* the momentum buffer, or none */
    RW_UPDATE_AVERAGE
};
#define RW_UPDATE_STATES 2 /* at most */

struct rw_update_attrs {
    int32_t rule, states;
    int32_t sums;    /* 1: requested */
    int32_t windows; /* 1: states and masters hold a part of the parameter */
    int32_t moments; /* of RW_UPDATE_ADAM, of parameters that are not float64: RW_F32, or RW_BF16 */
};

/* Sums over the elements of a parameter; all zero if it was not updated. Squares of the gradient as the update used
   it, of the weight after it, and of the change of the weight; of the master copy if there is one. */
enum rw_update_sum {
    RW_SUM_GRADIENT, /* of squares */
    RW_SUM_WEIGHT,   /* of squares */
    RW_SUM_CHANGE,   /* of squares */
    RW_SUM_ZEROS,    /* how many gradients are zero */
    RW_SUM_ELEMENTS,
    RW_UPDATE_SUMS
};

/* Coefficients of an update of one parameter: in double, and in float32 for parameters that are not float64. */
struct rw_update_row {
    double lr;
    /* A state times b plus the gradient times c; for averages and Adam's first moment c is 1 - b. For SGD b2 is
       Nesterov's momentum. */
    double b1, c1, b2, c2;
    double eps;
    double decay, l2;                /* the parameter times decay; the gradient plus l2 times the parameter */
    double correction1, correction2; /* of Adam: 1 - beta^step; else 1 */
    struct {
        float b1, c1, b2, c2, eps, decay, l2;
        float rate, root; /* lr / correction1, 1 / sqrt(correction2) */
    } f;
    uint32_t fresh; /* the parameter was written since the last update: the master copy starts from its present value */
    uint32_t nesterov;
    uint32_t step;   /* number of the update, counted by the host; 0: the parameter is not updated */
    uint32_t skips;  /* the update is left out */
    uint32_t stream; /* seed of stochastic rounding, above zero; see stochastic_rounding.h */
    uint64_t seed;   /* likewise */
    uint64_t from;   /* in windows, the first element to update: a multiple of 4; else 0 */
};
/* Rows are a tensor of RW_I32. */
#define RW_UPDATE_ROW_WORDS ((int64_t)(sizeof(struct rw_update_row) / sizeof(int32_t)))

/* Fills in f. */
void rw_update_row_finish(struct rw_update_row *row);

/*
 * Rows of updates that may be skipped, a commit: ([found,] rows, pending, due) -> (pending, due). found is one RW_I32,
 * above zero if the update is skipped. pending, [n, 2] of RW_I32, has the number of skipped updates per parameter, and
 * whether its master copy must still be reset. due are the rows for the updates that were really applied. Attributes:
 * those of the update.
 */
extern const rw_op_def rw_op_update_rows;

/*
 * Clipping, a commit: (limit, norm, sums, gradients) -> (norm, sums, gradients). Limit and norm are float64, of one
 * element. The sums, as many as there is room for, become the sums of squares of each gradient before clipping. An
 * absent gradient is zero, and not written.
 */
struct rw_clip_attrs {
    int32_t keeps_nonfinite; /* not 0: gradients whose norm is not finite are unchanged */
};
extern const rw_op_def rw_op_clip_grad_norm;

/*
 * Clipping in four ops, for gradients that are computed one after the other, and recomputed: (gradient) -> its sum of
 * squares, one RW_F64; (limit, sums ...) -> the factor and the norm, one RW_F64 each; (factor, gradient) -> gradient;
 * and, a commit, (the norm's value, sums ..., norm, sums) -> (norm, sums). Bit-identical to clip_grad_norm if the sums
 * are in the order of its gradients.
 */
extern const rw_op_def rw_op_grad_squares, rw_op_clip_factor, rw_op_clip_scale, rw_op_clip_note;

#endif
