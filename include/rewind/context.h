/**
 * rewind/context.h - a device with its memory, its parameters and its random generator.
 *
 * Thread-safety: a context, its tapes and its tensors belong to one thread at a time. Different contexts are
 * independent of each other.
 */
#ifndef REWIND_CONTEXT_H
#define REWIND_CONTEXT_H

#include <rewind/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** All zero means: the fastest device, seed 0, as many threads as the machine has cores. */
typedef struct rw_context_params {
    rw_device device;
    uint64_t seed;   ///< key of the context's Philox generator
    int32_t threads; ///< CPU threads; 0: OMP_NUM_THREADS or all cores. No bit of any result depends on it.
    /** CUDA: products of float32 may take their factors rounded to TF32, which keeps 10 bits of the fraction's 23, for
        the tensor cores. Sums stay float32, replays the same bytes. The CPU ignores it. */
    bool tf32;
} rw_context_params;

/**
 * Creates a context. On CUDA it lives on the GPU that is the calling thread's current one; later calls may come from
 * other threads and with other current devices, and leave them as they are.
 * @param ret_ctx receives the context, owned by the caller; untouched on failure.
 * @param params  may be NULL for the defaults; need live only until the call returns.
 * @return RW_OK, RW_ERR_ARGUMENT, RW_ERR_MEMORY, RW_ERR_UNSUPPORTED (the device is not in this build or not there:
 *         rw_device_check() says why).
 */
RW_API rw_status rw_context_create(rw_context **ret_ctx, const rw_context_params *params);

/**
 * Says whether a device can be used here, and why not: no driver, none that this build knows, too old.
 * @param why receives a text of at most size - 1 characters, "" when the device can be used; NULL with size 0 is fine.
 * @return what rw_context_create() would return for it. Any thread.
 */
RW_API rw_status rw_device_check(rw_device device, char *why, size_t size);

/**
 * Frees the context, its parameters, its arena and its cached plans, and sets *ctx to NULL. Tapes and optimizers of
 * the context must be destroyed before. NULL, or a pointer to NULL, is fine.
 */
RW_API void rw_context_destroy(rw_context **ctx);

/** The device in use, never RW_DEVICE_AUTO. */
RW_API rw_device rw_context_device(const rw_context *ctx);

/**
 * On CUDA the cudaStream_t that all of the context's work is queued on, to queue after it, or to wait for it; NULL on a
 * CPU. Owned by the context.
 */
RW_API void *rw_context_stream(const rw_context *ctx);

/** CPU threads in use. */
RW_API int rw_context_threads(const rw_context *ctx);

/** Changes the number of CPU threads (n >= 1). No bit of any result depends on it. RW_ERR_ARGUMENT when n < 1. */
RW_API rw_status rw_context_set_threads(rw_context *ctx, int n);

/**
 * The context's random generator: Philox4x32-10 with the seed as its key. An op over n elements draws ceil(n / 4)
 * blocks when it is recorded, so the state after a step is the same under every policy.
 * Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 */
typedef struct rw_generator_state {
    uint64_t seed;   ///< the Philox key
    uint64_t offset; ///< blocks of four 32-bit words drawn so far
} rw_generator_state;

/** The state now. Save it beside the weights to resume a run to the bit. */
RW_API rw_generator_state rw_generator_get(const rw_context *ctx);

/** Continues from a saved state. Ops already recorded keep the numbers that they drew. */
RW_API void rw_generator_set(rw_context *ctx, rw_generator_state state);

#ifdef __cplusplus
}
#endif

#endif
