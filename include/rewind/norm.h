/**
 * rewind/norm.h - normalisation of what has channels: by batch, by group of channels, by channel. That of rows
 * (rw_layernorm(), rw_rmsnorm()) is in rewind/ops.h.
 *
 * x is [n, c] or [n, c, ...]: sequences [n, c, l], images [n, c, h, w] in the order of rewind/conv.h, volumes, up to
 * RW_MAX_RANK axes, of any extents, 0 too; weight and bias are [c], all of one floating-point type, or RW_NONE: ones
 * and zeros, PyTorch's affine=False. What has four axes or more and lies channels last comes out so, too.
 * Statistics are computed and kept in float32, of float64 in float64: 2 numbers for each channel or group; beside them
 * backward reads x again. Where the squares of a channel or group sum up to more than that type has numbers for, beyond
 * some 1e19 for an element or 1e154, the variance is NaN, and so are results, gradients and running statistics made of
 * it: never the zeros that a division by infinity would leave, which PyTorch gives of some norms.
 * All functions record on tape t and return a tensor owned by the tape, as those of rewind/ops.h; thread-safety is
 * theirs.
 */
#ifndef REWIND_NORM_H
#define REWIND_NORM_H

#include <rewind/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Zero means the default in brackets; RW_ZERO means zero. */
typedef struct rw_batchnorm_params {
    double eps;      ///< added to the variance, [1e-5]
    double momentum; ///< weight of this batch in the running statistics, up to 1, [0.1]
    bool evaluate;   ///< x is normalised by the running statistics, which stay as they are, [false]
    bool relu;       ///< the result is rw_relu() of that, and of its sum with `add`, [false]
    rw_tensor *add;  ///< of x's shape and type: added to the result; NULL or RW_NONE: nothing
    /** A buffer of one number, of the running statistics' type: how many batches they are of. It is counted up with
        them, and all batches weigh alike: PyTorch's momentum=None. NULL or RW_NONE: by the momentum */
    rw_tensor *batches;
} rw_batchnorm_params;

/**
 * (x - mean) / sqrt(variance + eps) weight + bias for each channel, PyTorch's batch_norm: mean and variance are those
 * of the batch, or in evaluation the running ones.
 *
 * running_mean and running_var are buffers [c] (rw_buffer()) of float32, of a float64 x float64; or both RW_NONE, but
 * not in evaluation, which takes any tensors. A batch changes them when the step ends, once, under every policy, as
 * rw_assign() does: running = (1 - momentum) running + momentum batch, where the batch's variance is over n - 1. What
 * is recorded on the same tape reads the old ones, but for the batches of further uses of the layer: each goes on from
 * what the one before it left. params may be NULL.
 *
 * Of an x that rw_concat() made along the channels the pieces are read, not x: it is neither made nor kept for this.
 * Name x (ckpt_name()) for the other way. The bytes are the same.
 *
 * With `relu` and `add` these are the bytes, and the gradients' bytes, of rw_relu() of rw_add() of the two, in one pass
 * over memory in place of three, when it is made again for backward too. relu's own backward reads the result where
 * something was added; else it reads what there is already, and is a part of batchnorm's.
 * A batch of no elements leaves them as they are.
 * Errors: RW_ERR_SHAPE also for a batch with one element of a channel; RW_ERR_ARGUMENT for running
 * statistics that are missing or no buffers, eps below 0, a momentum outside of 0 to 1 or beside `batches`, and what
 * that is if not what it says; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_batchnorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                  rw_tensor *running_mean, rw_tensor *running_var, const rw_batchnorm_params *params);
#define rw_batchnorm(...) rw_batchnorm_at(RW_HERE, __VA_ARGS__)

/**
 * The same by the mean and variance of each image's groups of c / groups neighbouring channels, PyTorch's group_norm.
 * Errors: RW_ERR_ARGUMENT for groups that do not divide the channels; RW_ERR_SHAPE, RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_group_norm_at(rw_site at, rw_tape *t, rw_tensor *x, int groups, rw_tensor *weight, rw_tensor *bias,
                                   double eps);
#define rw_group_norm(...) rw_group_norm_at(RW_HERE, __VA_ARGS__)

/**
 * The same by the mean and variance of each image's channels, PyTorch's instance_norm. x is [n, c, ...].
 * Errors: RW_ERR_SHAPE also for one element of a channel; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_instance_norm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                      double eps);
#define rw_instance_norm(...) rw_instance_norm_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
