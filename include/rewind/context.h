/**
 * rewind/context.h - a device with its memory, its parameters and its random generator.
 *
 * Thread-safety: a context, its tapes and its tensors belong to one thread at a time. Different contexts are
 * independent of each other.
 *
 * Where the machine ends. Nothing below ends the process; the call says RW_ERR_MEMORY before it computes anything.
 *   threads        a step, planning, an optimizer's step and an initialization start the threads that they need, when
 *                  the calling thread has none yet; planning does without. What cannot be caught: OpenMP ends the
 *                  process when it starts threads itself, as it does after a parallel region of the caller's own with
 *                  fewer threads, in the same thread, or where OMP_STACKSIZE asks for more than a thread's usual stack.
 *   stack          128 KiB are enough for a thread that calls the library: as much as musl gives one.
 *   address space  oneDNN makes its code when a step is planned, and only while 16 MiB of address space are free, as it
 *                  crashes without. Another thread that takes them in that moment is not seen.
 *   fork()         in the child one thread computes, whatever was asked for: the parent's threads are not there. The
 *                  bytes are the same. Call fork() while no other thread is inside the library. CUDA does not work in
 *                  a child; create contexts for it after the fork().
 */
#ifndef REWIND_CONTEXT_H
#define REWIND_CONTEXT_H

#include <rewind/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** All zero means: the fastest device, seed 0, as many threads as the machine has cores. */
#define RW_MAX_THREADS 1024 ///< CPU threads that a context can be asked for

typedef struct rw_context_params {
    rw_device device;
    uint64_t seed;   ///< key of the context's Philox generator
    /** CPU threads, at most RW_MAX_THREADS; 0: OMP_NUM_THREADS or all cores. No bit of any result depends on it. Nodes
     *  of little work run in one: the shortest always, others while that is faster, as where cores are busy. */
    int32_t threads;
    /** CUDA: products of float32 may take their factors rounded to TF32, which keeps 10 bits of the fraction's 23, for
        the tensor cores. Sums stay float32, replays the same bytes. The CPU ignores it. */
    bool tf32;
    /** Most bytes that steps hold while they wait for their backward, but for the last one [half of the memory that the
        process may take]. Those that stopped first give theirs back, and are computed again, to the same bytes. */
    size_t waiting_bytes;
    /** Nothing runs, and nothing has memory on the device: neither parameters nor gradients, optimizers' states or
     *  inputs. A step of any size is planned on any machine, to the bytes that it would take where it runs: whatever
     *  records, plans and explains does as ever, and rw_memory_stats() counts what would be held. What writes contents,
     *  as rw_write(), rw_init_normal() and the data of rw_input(), checks its arguments and drops them. What would
     *  compute, read, save or load them is RW_ERR_UNSUPPORTED and says so, but for rw_costs_ceilings(), which measures
     *  in contexts of its own. CUDA is still needed to plan for CUDA.
     *  REWIND_EAGER and REWIND_VERIFY are left aside. */
    bool plan_only;
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
 * @param why receives a text of at most size - 1 characters, "" when the device can be used; NULL with size 0 is fine,
 *            with another size RW_ERR_ARGUMENT.
 * @return what rw_context_create() would return for it. Any thread.
 */
RW_API rw_status rw_device_check(rw_device device, char *why, size_t size);

/**
 * Frees the context, its parameters, its arena and its cached plans, and sets *ctx to NULL. Where tapes or optimizers
 * of the context are still there, that happens when the last of them is destroyed; until then a second call does
 * nothing. NULL, or a pointer to NULL, is fine.
 */
RW_API void rw_context_destroy(rw_context **ctx);

/** The device in use, never RW_DEVICE_AUTO. */
RW_API rw_device rw_context_device(const rw_context *ctx);

/**
 * On CUDA the cudaStream_t that all of the context's work is queued on, to queue after it, or to wait for it; NULL on a
 * CPU. Owned by the context.
 */
RW_API void *rw_context_stream(const rw_context *ctx);

/** Where values wait that a policy or ckpt_offload() moves out of the device's memory (docs/offload.md). */
typedef struct rw_offload {
    /** An existing folder for files, of a disk, not of memory. NULL or "": host memory, which on a CPU saves nothing
        but the arena. */
    const char *path;
    /** What to plan with, from 1 on; 0: measured once, in less than a second, before the first plan that moves
        something. */
    double out_bytes_per_s, in_bytes_per_s;
} rw_offload;

/**
 * Says where they wait from now on; steps that wait for their backward keep what they have. A context begins with the
 * folder that REWIND_OFFLOAD in the environment names, or else with host memory; a folder there that cannot be used is
 * an error of the context's from the beginning.
 *
 * Files have no name and go with the process. On CUDA host memory is pinned, and values pass through 16 MiB of it on
 * their way to a file. A step that moves values to a file is not captured: rw_graph_create() and rw_graph_launch()
 * refuse it.
 *
 * In a run, a full disk, a file that somebody else truncates, or an error of the disk is RW_ERR_IO. What could not be
 * written is found before any gradient is touched; after a value that could not be read, gradients that were clear are
 * clear, others say that they are spoiled. The step can be run again.
 * @param offload may be NULL for the defaults; need live only until the call returns.
 * @return RW_OK; RW_ERR_ARGUMENT for a rate that is neither 0 nor a number from 1 on; RW_ERR_IO (no such folder, not
 *         writable); RW_ERR_MEMORY, also when the thread that copies cannot be started or memory be pinned;
 *         RW_ERR_DEVICE. On failure all stays as it was.
 */
RW_API rw_status rw_context_set_offload(rw_context *ctx, const rw_offload *offload);

/** CPU threads in use. */
RW_API int rw_context_threads(const rw_context *ctx);

/**
 * Changes the number of CPU threads, 1 to RW_MAX_THREADS, and starts them. No bit of any result depends on it.
 * @return RW_OK, RW_ERR_ARGUMENT, RW_ERR_MEMORY (so many cannot be started: the number stays as it was).
 */
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
