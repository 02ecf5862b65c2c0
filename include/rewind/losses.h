/**
 * rewind/losses.h - more losses, beside those of ops.h.
 *
 * Every function returns its result, owned by the tape until rw_tape_reset(); on a mistake it returns NULL, with a
 * message, and leaves the tape as it was. Most record several nodes. Losses are of float32 (float64 of float64),
 * whatever type the loss is taken of. Constants are doubles, taken as an op on the type takes them.
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

/** What becomes of the losses of single rows or elements. */
typedef enum rw_reduction {
    RW_REDUCTION_MEAN, ///< a scalar: their sum over the number of them, or over what they weigh
    RW_REDUCTION_SUM,  ///< a scalar
    RW_REDUCTION_NONE  ///< each for itself
} rw_reduction;

/** Zero means the default in brackets. */
typedef struct rw_cross_entropy_params {
    rw_reduction reduction; ///< [RW_REDUCTION_MEAN]
    double label_smoothing; ///< share of the target that goes to all classes alike, 0 <= e < 1 [0]
    double z_loss;          ///< factor, 0 or more, of the square of log(sum(exp(logits))), added to each row [0]
    bool ignores;           ///< `ignored` holds; else a target of -100 is ignored
    int32_t ignored;        ///< rows of this target count nothing
    int64_t chunk;          ///< of rw_linear_cross_entropy(): rows of logits at a time [by the shapes]
    /** Of rw_linear_cross_entropy(): [classes] of x's type, added to the logits; and what rw_cross_entropy_with() is
        given as `weight`. NULL or RW_NONE: none. Of another loss these two and `chunk` are RW_ERR_ARGUMENT. */
    rw_tensor *bias, *class_weight;
} rw_cross_entropy_params;

/**
 * Cross-entropy with its options. logits [..., classes], target [...] of RW_I32, weight [classes] or RW_NONE: what the
 * rows of a class count; no gradient flows into it. A row's loss, with l = log(sum(exp(logits))) and w the weights, is
 *     (1 - e) w[target] (l - logits[target]) + e / classes sum_c w[c] (l - logits[c]) + z_loss l^2
 * and the mean is over the sum of w[target], as in PyTorch; 0 where no row counts. A target that is neither ignored nor
 * a class is RW_ERR_ARGUMENT when it runs. The gradient overwrites the logits when nobody else needs them.
 *
 * A target [..., classes] of a floating-point type is one of probabilities y, as in PyTorch: a row's loss is
 *     sum_c w[c] ((1 - e) y[c] + e / classes) (l - logits[c]) + z_loss l^2
 * the mean is over the rows, and the gradient flows into the probabilities too. Composed: backward keeps what
 * log_softmax makes, float32 (float64) [..., classes], and where probabilities are smoothed, weighted or of another
 * type as many bytes of what multiplies it: what PyTorch keeps, also under autocast, but for 16 bits without that.
 * `ignores` is RW_ERR_ARGUMENT there.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_cross_entropy_with_at(rw_site at, rw_tape *t, rw_tensor *logits, rw_tensor *target,
                                           rw_tensor *weight, const rw_cross_entropy_params *params);
#define rw_cross_entropy_with(...) rw_cross_entropy_with_at(RW_HERE, __VA_ARGS__)

/**
 * Cross-entropy of rw_linear(x, weight, bias), the bias being that of params, by chunks of rows: x [..., d], weight
 * [classes, d] of the same type, target [...] of RW_I32. No more than one chunk's logits are in memory at a time,
 * forward or backward, under every policy; backward makes them again, which is one product more. The gradient of the
 * weight is added up chunk by chunk, rounded to the type of the gradient each time: float32 of a parameter of 16 bits;
 * that of the bias in float32
 * (float64), rounded once. Under rw_grad(), whose result may be differentiated again, all logits are kept.
 *
 * A chunk has as many rows as params says, or the least power of two from 256 on whose logits are as many as the
 * elements of x; more where there would be over 1024 chunks. The bytes of the result depend on it.
 * @param params may be NULL
 */
RW_API rw_tensor *rw_linear_cross_entropy_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight,
                                             rw_tensor *target, const rw_cross_entropy_params *params);
#define rw_linear_cross_entropy(...) rw_linear_cross_entropy_at(RW_HERE, __VA_ARGS__)

/**
 * Negative log-likelihood: x [..., classes] of logarithms of probabilities, target [...] of RW_I32, weight [classes] or
 * RW_NONE -> -w[target] x[target] of each row; the mean is over the sum of w[target]. Targets that count nothing and
 * reductions as in rw_cross_entropy_with(); other options are refused. Makes a tensor of x's shape: of logits,
 * rw_cross_entropy_with() is the cheaper.
 */
RW_API rw_tensor *rw_nll_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                                 const rw_cross_entropy_params *params);
#define rw_nll_loss(...) rw_nll_loss_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Losses of elements. Operands have one floating-point type and broadcast as in rw_add(). A mean is over all elements;
 * RW_REDUCTION_NONE gives the elements in their own type, the others are taken of elements that were rounded to it.
 */

/**
 * Binary cross-entropy of logits, (1 - y) x + (1 + (p - 1) y) log(1 + exp(-x)), without overflow, y being the target,
 * times the weight. weight and pos_weight (p, what a positive target counts) broadcast, or are RW_NONE for 1. Gradients
 * flow into all of them.
 */
RW_API rw_tensor *rw_bce_with_logits_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, rw_tensor *weight,
                                        rw_tensor *pos_weight, rw_reduction reduction);
#define rw_bce_with_logits(...) rw_bce_with_logits_at(RW_HERE, __VA_ARGS__)

/** (x - y)^2 / 2 where |x - y| is at most delta, else delta (|x - y| - delta / 2). delta above 0. */
RW_API rw_tensor *rw_huber_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double delta,
                                   rw_reduction reduction);
#define rw_huber_loss(...) rw_huber_loss_at(RW_HERE, __VA_ARGS__)

/** (x - y)^2: rw_mse_loss() with any reduction. */
RW_API rw_tensor *rw_mse_loss_with_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, rw_reduction reduction);
#define rw_mse_loss_with(...) rw_mse_loss_with_at(RW_HERE, __VA_ARGS__)

/** rw_huber_loss() with a delta of beta, over beta; with a beta of 0 |x - y|, PyTorch's l1_loss. */
RW_API rw_tensor *rw_smooth_l1_loss_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y, double beta,
                                       rw_reduction reduction);
#define rw_smooth_l1_loss(...) rw_smooth_l1_loss_at(RW_HERE, __VA_ARGS__)

/**
 * Kullback-Leibler divergence, y (log(y) - x), 0 where y is 0: x are logarithms of probabilities, the target y is of
 * probabilities, or with log_target of their logarithms: exp(y) (y - x). The mean is over all elements; PyTorch's
 * "batchmean" is the sum over the number of rows. Where y is 0 its gradient is 0.
 */
RW_API rw_tensor *rw_kl_div_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *target, bool log_target,
                               rw_reduction reduction);
#define rw_kl_div(...) rw_kl_div_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
