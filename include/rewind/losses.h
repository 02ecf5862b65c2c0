/**
 * rewind/losses.h - losses beyond those of rewind/ops.h.
 *
 * Every function returns its result, owned by the tape until rw_tape_reset(). After an error it returns NULL, the
 * context keeps the message, and the tape is unchanged. Most functions record several nodes. A loss is float32 (float64
 * for float64), whatever the type of its operands. Constants are doubles, rounded as for any op of that type.
 *
 * Call the names without _at: rw_cross_entropy_with(t, ...) is rw_cross_entropy_with_at(RW_HERE, t, ...).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_LOSSES_H
#define REWIND_LOSSES_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How the losses of rows or elements are reduced. */
typedef enum rw_reduction {
    RW_REDUCTION_MEAN, ///< a scalar: their sum divided by their number, or by the sum of their weights
    RW_REDUCTION_SUM,  ///< a scalar: their sum
    RW_REDUCTION_NONE  ///< all of them, without reduction
} rw_reduction;

/** Zero means the default in brackets; RW_ZERO means zero. */
typedef struct rw_cross_entropy_params {
    rw_reduction reduction; ///< [RW_REDUCTION_MEAN]
    double label_smoothing; ///< share of the target spread equally over all classes, 0 <= e < 1 [0]
    double z_loss;          ///< factor, at least 0, of log(sum(exp(logits)))^2, added to each row [0]
    bool has_ignore_index;  ///< use `ignore_index`; without it that must be 0, and a target of -100 is ignored
    int32_t ignore_index;   ///< rows with this target do not count
    int64_t chunk;          ///< rw_linear_cross_entropy(): rows of logits at a time [by the shapes]
    /**
     * For rw_linear_cross_entropy(): a bias [classes] of x's type, added to the logits; and the class weights that
     * rw_cross_entropy_with() takes as `weight`. NULL or RW_NONE: none. In other losses these two and `chunk` are
     * RW_ERR_ARGUMENT.
     */
    rw_tensor *bias, *class_weight;
} rw_cross_entropy_params;

/**
 * Cross-entropy with options. logits [..., classes], target [...] of RW_I32, weight [classes] or RW_NONE: the weights
 * of classes, without a gradient. With l = log(sum(exp(logits))), w the weights and e the smoothing, the loss of a row
 * is
 *
 *     (1 - e) w[target] (l - logits[target]) + e / classes sum_c w[c] (l - logits[c]) + z_loss l^2
 *
 * Without smoothing, weights of other classes do not enter, even if they are infinite or NaN. The mean divides by the
 * sum of w[target], as in PyTorch; it is 0 if no row counts. A target that is neither ignored nor a class is
 * RW_ERR_ARGUMENT when the op executes. The gradient overwrites the logits at their last use. Without options other
 * than `ignore_index`, and without weights, this is the op of rw_cross_entropy().
 *
 * A floating-point target [..., classes] holds probabilities y, as in PyTorch. Then the loss of a row is
 *
 *     sum_c w[c] ((1 - e) y[c] + e / classes) (l - logits[c]) + z_loss l^2
 *
 * the mean is over the rows, and the gradient flows into the probabilities too. This form is a composite: backward
 * keeps the result of log_softmax, float32 (float64) [..., classes]. If probabilities are smoothed, weighted or of
 * another type, it also keeps its factor, as many bytes. PyTorch keeps the same, also under autocast, but not for
 * 16-bit types without autocast. `has_ignore_index` is RW_ERR_ARGUMENT there.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_cross_entropy_with_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target,
                                           rw_tensor *weight, const rw_cross_entropy_params *params);
#define rw_cross_entropy_with(...) rw_cross_entropy_with_at(RW_HERE, __VA_ARGS__)

/**
 * Cross-entropy of rw_linear(x, weight, params->bias) in chunks of rows: x [..., d], weight [classes, d] of the same
 * type, target [...] of RW_I32. At most one chunk of logits is in memory at a time, in forward and backward, under
 * every policy. Backward recomputes the logits, at the cost of one more product.
 *
 * The gradient of the weight is summed chunk by chunk and rounded each time to the type of the gradient (float32 for a
 * 16-bit parameter). An ignored row adds 0 times x to it: NaN or infinity in x gives NaN there, as in PyTorch, though
 * not in the loss. The gradient of the bias is summed in float32 (float64) and rounded once. Under rw_grad(), whose
 * result can be differentiated again, all logits are kept.
 *
 * A chunk has as many rows as params says, by default the smallest power of two, at least 256, that gives at least as
 * many logits as x has elements. In both cases more if there would be over 1024 chunks. The bits of the result depend
 * on it.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_linear_cross_entropy_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                             rw_tensor *target, const rw_cross_entropy_params *params);
#define rw_linear_cross_entropy(...) rw_linear_cross_entropy_at(RW_HERE, __VA_ARGS__)

/**
 * Negative log-likelihood: x [..., classes] of log-probabilities, target [...] of RW_I32, weight [classes] or RW_NONE:
 * the weights of classes, without a gradient -> -w[target] x[target] per row; the mean divides by the sum of
 * w[target]. Ignored targets and reductions as in rw_cross_entropy_with(); other options are refused. It allocates a
 * tensor of x's shape: from logits, rw_cross_entropy_with() is cheaper.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_nll_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                                 const rw_cross_entropy_params *params);
#define rw_nll_loss(...) rw_nll_loss_at(RW_HERE, __VA_ARGS__)

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Element-wise losses. Operands have one floating-point type and broadcast as in rw_add(). A mean is over all elements.
 * RW_REDUCTION_NONE returns the elements in their type; the other reductions sum elements that were rounded to it.
 * @param reduction mean, sum or none
 */

/**
 * Binary cross-entropy of logits x with target y, without overflow: weight ((1 - y) x + (1 + (p - 1) y) log(1 +
 * exp(-x))). weight and pos_weight (p, the weight of positive targets) broadcast; RW_NONE is 1. Gradients flow into all
 * operands.
 */
RW_API rw_tensor *rw_bce_with_logits_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                                        rw_tensor *pos_weight, rw_reduction reduction);
#define rw_bce_with_logits(...) rw_bce_with_logits_at(RW_HERE, __VA_ARGS__)

/** Huber loss: (x - y)^2 / 2 if |x - y| <= delta, else delta (|x - y| - delta / 2). delta must be positive. */
RW_API rw_tensor *rw_huber_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double delta,
                                   rw_reduction reduction);
#define rw_huber_loss(...) rw_huber_loss_at(RW_HERE, __VA_ARGS__)

/** Squared error (x - y)^2: rw_mse_loss() with any reduction. */
RW_API rw_tensor *rw_mse_loss_with_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, rw_reduction reduction);
#define rw_mse_loss_with(...) rw_mse_loss_with_at(RW_HERE, __VA_ARGS__)

/** rw_huber_loss() with delta = beta, divided by beta; with beta = 0 it is |x - y|, PyTorch's l1_loss. */
RW_API rw_tensor *rw_smooth_l1_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double beta,
                                       rw_reduction reduction);
#define rw_smooth_l1_loss(...) rw_smooth_l1_loss_at(RW_HERE, __VA_ARGS__)

/**
 * Kullback-Leibler divergence y (log(y) - x), 0 where y is 0: x are log-probabilities, the target y probabilities. With
 * log_target the target holds log-probabilities: exp(y) (y - x). The mean is over all elements; PyTorch's "batchmean"
 * is the sum divided by the number of rows. Where y is 0 its gradient is 0.
 */
RW_API rw_tensor *rw_kl_div_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, bool log_target,
                               rw_reduction reduction);
#define rw_kl_div(...) rw_kl_div_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
