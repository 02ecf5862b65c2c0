/**
 * rewind/norm.h - normalization over channels: by batch, by group of channels, by channel. Normalization of rows
 * (rw_layernorm(), rw_rmsnorm()) is in rewind/ops.h.
 *
 * x is [n, c] or [n, c, ...], up to RW_MAX_RANK axes, with any extents, including 0: sequences [n, c, l], images [n, c,
 * h, w] in the order of rewind/conv.h, volumes. x, weight and bias have one floating-point type. If x has four axes or
 * more and is stored channels-last, so is the result.
 *
 * Statistics are computed and kept in float32 (float64 for float64): 2 numbers per channel or group. Backward also
 * reads x. If the squares of a channel or group overflow that type (elements above about 1e19, or 1e154), the variance
 * is NaN, and so are the results, gradients and running statistics computed from it. They are never the zeros that a
 * division by infinity would give, as in some of PyTorch's norms.
 *
 * @param x [n, c, ...]
 * @param weight, bias [c], or RW_NONE for ones and zeros (PyTorch's affine=False)
 * @param eps added to the variance
 *
 * All functions record on tape t and return a tensor that the tape owns, as those of rewind/ops.h, with the same
 * thread-safety.
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
    bool evaluate;   ///< normalize x by the running statistics, which do not change, [false]
    bool relu;       ///< apply rw_relu() to the result, after `add`, [false]
    rw_tensor *add;  ///< of x's shape and type: added to the result; NULL or RW_NONE: nothing
    /**
     * A buffer with one element, of the running statistics' type: the number of batches that they include. Each batch
     * increments it, and all batches have the same weight: PyTorch's momentum=None. NULL or RW_NONE: use the momentum.
     */
    rw_tensor *batches;
} rw_batchnorm_params;

/**
 * (x - mean) / sqrt(variance + eps) weight + bias for each channel, PyTorch's batch_norm. Mean and variance are those
 * of the batch, or in evaluation the running ones. params may be NULL.
 *
 * running_mean and running_var are buffers [c] (rw_buffer()) of float32, or float64 for a float64 x. Both may be
 * RW_NONE, except in evaluation, which accepts any tensors and has gradients for those that require one; then backward
 * is composed of ops, which takes more time and memory. Each batch updates them once, when the step ends, under every
 * policy, as rw_assign() does: running = (1 - momentum) running + momentum batch, where the variance of the batch is
 * over n - 1. Ops on the same tape read the old values. But if the layer is used several times, each use continues from
 * the values that the use before it left. A batch without elements does not change them.
 *
 * If rw_concat() made x along the channels, its inputs are read in place of x, and x is neither computed nor kept for
 * this op. To avoid that, name x (ckpt_name()). The bits are the same.
 *
 * With `relu` and `add`, results and gradients are bit-identical to rw_relu() of rw_add() of the two, in one pass over
 * memory instead of three, also when it is recomputed. The backward of relu reads the result if something was added.
 * Otherwise it is part of the backward of batchnorm and reads no further value.
 * Errors: RW_ERR_SHAPE also for a batch with one element per channel; RW_ERR_ARGUMENT for running statistics that are
 *         missing or are no buffers, a negative eps, a momentum outside of 0 to 1 or together with `batches`, and a
 *         `batches` that is not as described; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_batchnorm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                  rw_tensor *running_mean, rw_tensor *running_var, const rw_batchnorm_params *params);
#define rw_batchnorm(...) rw_batchnorm_at(RW_HERE, __VA_ARGS__)

/**
 * The same with the mean and variance of each image's groups of c / groups adjacent channels, PyTorch's group_norm.
 * Errors: RW_ERR_ARGUMENT for groups that do not divide the channels; RW_ERR_SHAPE, RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_group_norm_at(rw_site at, rw_tape *t, rw_tensor *x, int groups, rw_tensor *weight, rw_tensor *bias,
                                   double eps);
#define rw_group_norm(...) rw_group_norm_at(RW_HERE, __VA_ARGS__)

/**
 * The same with the mean and variance of each channel of each image, PyTorch's instance_norm. x is [n, c, ...].
 * Errors: RW_ERR_SHAPE also for one element per channel; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_instance_norm_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                      double eps);
#define rw_instance_norm(...) rw_instance_norm_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
