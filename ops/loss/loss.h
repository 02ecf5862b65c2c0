/* Attributes of the losses. */
#ifndef RW_OPS_LOSS_H
#define RW_OPS_LOSS_H

#include <rewind/op.h>

struct rw_cross_entropy_attrs {
    int64_t ignore;
    int64_t classes, dtype; /* of the weights */
};

/*
 * What a row of logits keeps for backward: its largest logit (0 where that is -inf), and the logarithm of the sum of
 * exponentials of the logits less that one. Their sum is the row's log-sum-exp; as one number it would be rounded at
 * the size of what all logits have in common, and exp(logit - it) would be wrong by as much.
 */
#define RW_KEPT_OF_A_ROW 2

/* The shape of that of all rows [..., 2], from the targets' shape [...]. */
rw_shape rw_loss_kept_shape(rw_shape target);

/* Squared differences are summed per block of this many elements, the blocks' sums in order. */
#define RW_MSE_BLOCK 16384

static inline int64_t rw_mse_blocks(int64_t numel)
{
    return (numel + RW_MSE_BLOCK - 1) / RW_MSE_BLOCK;
}

/* (logits [..., classes], target [...] of RW_I32, ...) */
rw_status rw_loss_check_targets(rw_op_call *call);

rw_tensor *rw_cross_entropy_weights_at(rw_site at, rw_tape *t, rw_tensor *target, rw_shape logits, rw_dtype dtype,
                                       const struct rw_cross_entropy_attrs *attrs);

/*
 * For rules composed of a softmax: what a row's is multiplied by [..., 1], and NaN where a row that counts (`counts` is
 * not 0) has nothing but -inf. Its softmax is 0, but its loss is NaN, and so are the gradients of the fused ops.
 */
rw_tensor *rw_loss_factors(rw_tape *t, rw_tensor *x, rw_tensor *factor, rw_tensor *counts);

#endif
