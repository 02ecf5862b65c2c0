/**
 * rewind/weight_average.h - exponential moving average (EMA) of the weights.
 *
 * A step of the average computes average += (1 - decay) * (parameter - average), in float32 (float64 for float64
 * parameters). For a decay of at most 1/2 it computes the equal parameter - decay * (parameter - average), as PyTorch's
 * lerp() does. Consequences:
 *   - The average of a parameter that does not change equals that parameter bit for bit. Exceptions: -0 may become 0,
 *     and on a CPU a subnormal number becomes 0.
 *   - A decay of 0 copies the parameters.
 *   - If average and parameter are infinite with the same sign, the average becomes NaN.
 *
 * An average starts as a copy of the parameters at its creation. To evaluate a model with the averages, pass
 * rw_weight_average_of(p) wherever the model uses p. The average of a 16-bit parameter is float32, so cast it.
 *
 *     rw_optimizer_step(opt);                    // or rw_graph_launch(g)
 *     rw_weight_average_step(average);
 * Thread-safety: as for the context.
 */
#ifndef REWIND_WEIGHT_AVERAGE_H
#define REWIND_WEIGHT_AVERAGE_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Averages of a context's parameters. */
typedef struct rw_weight_average rw_weight_average;

/**
 * Creates averages of all parameters that the context has now. Buffers are not averaged.
 * @param ret_average receives the averages, owned by the caller; untouched on failure.
 * @param decay       0 or more and less than 1; 0.999 is usual.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL or another decay; RW_ERR_MEMORY, also as for rw_adamw_create(); or the
 *         context's sticky error.
 */
RW_API rw_status rw_weight_average_create(rw_weight_average **ret_average, rw_context *ctx, double decay);

/**
 * Sets the decay of every later rw_weight_average_step(), for a warm-up of the decay or for a target network with a
 * varying rate. A decay of 0 copies the parameters. Checkpoints do not save the decay: set it again after a load, or
 * compute it from the step number before each step.
 * @param decay 0 or more and less than 1.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL or another decay; RW_ERR_MEMORY; or the context's sticky error. On failure
 *         the decay is unchanged.
 */
RW_API rw_status rw_weight_average_set_decay(rw_weight_average *average, double decay);

/**
 * Updates all averages with the current parameters. On CUDA the update is only queued. The result does not depend on
 * the number of threads.
 * @return RW_OK; RW_ERR_MEMORY or the context's sticky error. On failure nothing has changed.
 */
RW_API rw_status rw_weight_average_step(rw_weight_average *average);

/**
 * Returns the average of a parameter, to read or to use as an operand; NULL if `param` has no average here. The tensor
 * is owned by `average`. Reset every tape that uses it before rw_weight_average_destroy(): a tape that still does
 * refuses to run anything until its reset, with RW_ERR_ARGUMENT.
 */
RW_API rw_tensor *rw_weight_average_of(const rw_weight_average *average, const rw_tensor *param);

/** Frees the averages and sets *average to NULL. A checkpoint that saves them then refuses to save and load.
    NULL-safe. */
RW_API void rw_weight_average_destroy(rw_weight_average **average);

#ifdef __cplusplus
}
#endif

#endif
