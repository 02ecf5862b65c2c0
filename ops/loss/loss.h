/* Attributes of the losses, and helpers that their rules share. */
#ifndef RW_OPS_LOSS_H
#define RW_OPS_LOSS_H

#include <rewind/op.h>

struct rw_cross_entropy_attrs {
    int64_t ignore;
    int64_t classes, dtype; /* of the weights */
};

/*
 * The values that a row of logits keeps for backward: its largest logit (0 if that is -inf), and the logarithm of the
 * sum of exp(logit - largest). Their sum is the log-sum-exp of the row. As a single number it would be rounded at the
 * magnitude of the logits' common offset, and exp(logit - it) would have that error.
 */
#define RW_KEPT_OF_A_ROW 2

/* The shape of these values for all rows [..., 2], from the targets' shape [...]. */
rw_shape rw_loss_kept_shape(rw_shape target);

/* Squared differences are summed in blocks of this many elements, and the blocks' sums in order. */
#define RW_MSE_BLOCK 16384

static inline int64_t rw_mse_blocks(int64_t numel)
{
    return (numel + RW_MSE_BLOCK - 1) / RW_MSE_BLOCK;
}

/* rw_cross_entropy() that ignores another target: the mean over rows, by one op. */
rw_tensor *rw_cross_entropy_mean_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target, int64_t ignore);

/* Checks (logits [..., classes], target [...] of RW_I32, ...). */
rw_status rw_loss_check_targets(rw_op_call *call);

rw_tensor *rw_cross_entropy_weights_at(rw_site at, rw_tape *t, rw_tensor *target, rw_shape logits, rw_dtype dtype,
                                       const struct rw_cross_entropy_attrs *attrs);

/*
 * For rules that are composed of a softmax: the factor of each row [..., 1], replaced by NaN for rows that count
 * (`counts` is not 0) and consist of -inf alone. The softmax of such a row is 0, but its loss is NaN, and so are the
 * gradients of the fused ops.
 */
rw_tensor *rw_loss_factors(rw_tape *t, rw_tensor *x, rw_tensor *factor, rw_tensor *counts);

#endif
