/**
 * rewind/average.h - a moving average of the weights.
 *
 * After each step average += (1 - decay) * (parameter - average), in float32 (float64 for float64 parameters): the
 * average of a parameter that does not change is that parameter, to the last bit (but -0 may become 0, and on a CPU a
 * number below the least normal one becomes 0). For a decay of at most 1/2 it is the same from the other end,
 * parameter - decay * (parameter - average). As PyTorch's lerp(), and so NaN where the average and the parameter are
 * infinite of one sign; a decay of 0 copies. It begins with the parameters as they are when it is made. A model that is
 * to use the averages takes rw_average_of(p) where it takes p; of 16-bit parameters cast them.
 *
 *     rw_optimizer_step(opt);                    // or rw_graph_launch(g)
 *     rw_average_step(average);
 * Thread-safety: as for the context.
 */
#ifndef REWIND_AVERAGE_H
#define REWIND_AVERAGE_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rw_average rw_average;

/**
 * Creates averages of all parameters that the context has now; not of buffers.
 * @param ret_average receives the averages, owned by the caller; untouched on failure.
 * @param decay       from 0 up to below 1; 0.999 is usual.
 * @return RW_ERR_ARGUMENT for another decay, RW_ERR_MEMORY, or an error that is stuck in the context.
 */
RW_API rw_status rw_average_create(rw_average **ret_average, rw_context *ctx, double decay);

/** Takes the parameters as they are into the averages. On CUDA it is only queued. The bytes do not depend on the number
    of threads. @return RW_ERR_MEMORY or an error that is stuck in the context; then nothing has changed. */
RW_API rw_status rw_average_step(rw_average *average);

/** The average of a parameter: to read, or as an operand. NULL for what is none of its parameters. Owned by `average`:
    reset the tapes that use it before that goes. Of a tape that was not, nothing is run any more until its reset:
    RW_ERR_ARGUMENT. */
RW_API rw_tensor *rw_average_of(const rw_average *average, const rw_tensor *param);

/** Frees the averages and sets *average to NULL. A checkpoint that saves them refuses to from then on. NULL-safe. */
RW_API void rw_average_destroy(rw_average **average);

#ifdef __cplusplus
}
#endif

#endif
