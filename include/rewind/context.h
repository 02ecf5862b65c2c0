/**
 * rewind/context.h - a device with its memory, parameters and random generator.
 *
 * Thread-safety: a context, its tapes and its tensors may be used by one thread at a time. Different contexts are
 * independent of each other.
 *
 * System resources. If one of them is exhausted, the call returns RW_ERR_MEMORY before it computes anything.
 *   threads        Each thread that calls the library has its own team of worker threads, with 2 MiB of stack each. All
 *                  its contexts share the team, which ends with the thread. rw_context_set_threads(), a step, an
 *                  optimizer's step and an initialization start missing workers; planning works with fewer. Lowering
 *                  the number leaves the surplus workers asleep, except in graphs and begun steps, which were planned
 *                  for more: these need no more than the new number. An idle worker sleeps after 5 ms, or earlier if
 *                  its core is wanted or is shared by several. Workers block all signals except those of faults.
 *                  OpenMP settings have no effect.
 *   stack          A thread that calls the library needs 128 KiB of stack, musl's default.
 *   address space  oneDNN generates code while a step is planned, and crashes without address space. Planning therefore
 *                  requires 16 MiB of free address space. It cannot detect another thread that takes them meanwhile.
 *   fork()         In the child, the calling thread starts new workers when it computes; results are the same bytes.
 *                  Locks, traces, monitor files and values in files stay with the parent. Call fork() while no other
 *                  thread is inside the library. CUDA does not work in a child: create CUDA contexts after fork().
 *   signals        A thread blocks signals while oneDNN computes in it, because its x86-64 code uses the stack pointer
 *                  as a register; they arrive afterwards. The C library's own two cannot be blocked: while another
 *                  thread computes, do not change the process's user or groups (setuid() and related calls), and do
 *                  not cancel that thread (pthread_cancel()). The process may crash.
 *   sigaltstack()  Where the library uses AMX (REWIND_ISA=v4 prevents that), Linux refuses signal stacks too small for
 *                  the unit's 8 KiB of registers: allocate at least sysconf(_SC_MINSIGSTKSZ) bytes.
 *   CUDA errors    A program that shares the CUDA runtime with the library shares one last error per thread. A call
 *                  clears an error that cudaGetLastError() has not returned yet: check your own launches first.
 */
#ifndef REWIND_CONTEXT_H
#define REWIND_CONTEXT_H

#include <rewind/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_MAX_THREADS 1024 ///< maximum number of CPU threads of a context

/** Parameters of rw_context_create(). All zero: the fastest device, seed 0, one thread per core of the process. */
typedef struct rw_context_params {
    rw_device device; ///< [RW_DEVICE_AUTO]
    uint64_t seed;   ///< key of the context's Philox generator
    /** CPU threads, at most RW_MAX_THREADS. 0: the environment variable REWIND_THREADS, else the number of cores in the
     *  process's affinity mask, lowered to the control group's CPU quota (rounded up). No bit of any result depends on
     *  it. Small nodes run in one thread: the shortest always, others while that is faster, for example on busy cores.
     */
    int32_t threads;
    /** CUDA: float32 products may round their factors to TF32, which has 10 bits of mantissa instead of 23, for the
        tensor cores. Sums are float32, and replays give the same bytes. The CPU ignores it. */
    bool tf32;
    /** Maximum bytes that suspended steps, which have run forward and not yet backward, may hold in addition to the
        latest one [half of the memory that the process may use]. Beyond it the oldest free their memory and are
        recomputed later, to the same bytes. */
    size_t waiting_bytes;
    /** Plan only, like PyTorch's meta device: nothing is executed, and nothing is allocated on the device, neither
     *  parameters and gradients nor optimizer states and inputs. So a step of any size can be planned on any machine,
     *  with the exact bytes that it would use. Recording, planning and explaining work as usual, and rw_memory_stats()
     *  counts what would be held. Calls that write contents, such as rw_write(), rw_init_normal() and rw_input() with
     *  data, check their arguments and discard the data. Calls that compute, read, save or load contents return
     *  RW_ERR_UNSUPPORTED, except rw_costs_calibrate(), which measures in contexts of its own. Planning for CUDA still
     *  needs CUDA. REWIND_EAGER and REWIND_VERIFY are ignored. */
    bool plan_only;
    /** A policy that names a region or tag which the tape does not have is RW_ERR_POLICY when a step of the tape is
        planned, also by rw_tape_plan() under another policy. The policies of parts (ckpt_policy_begin()) are checked
        with each. If false, such a name is ignored; see ckpt_unmatched_names(). */
    bool strict_policy;
} rw_context_params;

/**
 * Creates a context. On CUDA it uses the calling thread's current GPU. Later calls may come from other threads with
 * other current devices, which they leave unchanged.
 * @param ret_ctx receives the context, owned by the caller; untouched on failure.
 * @param params  may be NULL for the defaults; read during the call.
 * @return RW_OK; RW_ERR_ARGUMENT, also if REWIND_THREADS is not a number from 1 to RW_MAX_THREADS; RW_ERR_MEMORY;
 *         RW_ERR_UNSUPPORTED if the device is not in this build or not available: rw_device_check() says why.
 */
RW_API rw_status rw_context_create(rw_context **ret_ctx, const rw_context_params *params);

/**
 * Checks whether a device is usable, and says why not: no driver, an unknown device, one that is too old. Any thread.
 * @param why receives a text of at most size - 1 characters, "" if the device is usable. May be NULL with size 0; NULL
 *            with another size is RW_ERR_ARGUMENT.
 * @return the status that rw_context_create() would return for this device.
 */
RW_API rw_status rw_device_check(rw_device device, char *why, size_t size);

/**
 * Frees the context, its parameters, arena and cached plans, and sets *ctx to NULL. If tapes or optimizers of the
 * context still exist, that happens when the last of them is destroyed; until then another call does nothing.
 * NULL-safe.
 */
RW_API void rw_context_destroy(rw_context **ctx);

/** Returns the device in use, never RW_DEVICE_AUTO. */
RW_API rw_device rw_context_device(const rw_context *ctx);

/**
 * Returns the cudaStream_t on which the context queues all its work, to queue more work after it or to wait for it;
 * NULL on a CPU. Owned by the context.
 */
RW_API void *rw_context_stream(const rw_context *ctx);

/** Where a policy or ckpt_offload() offloads values to (docs/offload.md). */
typedef struct rw_offload {
    /** An existing folder on a disk (not tmpfs) for files. NULL or "": host memory, which on a CPU makes the arena
        smaller but saves no memory in total. */
    const char *path;
    /** Transfer rates to plan with, at least 1; 0, and RW_ZERO: measured once, in less than a second, before the first
        plan that offloads something. */
    double out_bytes_per_s, in_bytes_per_s;
} rw_offload;

/**
 * Sets the offload store for later steps; suspended steps keep the one they use. The initial store is the folder named
 * by the environment variable REWIND_OFFLOAD, else host memory. If that folder cannot be used, the context has a sticky
 * error from its creation.
 *
 * Files have no name and vanish with the process. On CUDA, host memory is pinned, and transfers to a file pass through
 * 16 MiB of it. A step that offloads to a file cannot be captured: rw_graph_create() and rw_graph_launch() refuse it.
 *
 * At run time, a full disk, a disk error, or a file that another process truncates or changes (docs/offload.md) is
 * RW_ERR_IO. Failed writes are detected before any gradient is touched. After a failed read, gradients that were clear
 * are clear, and all others return RW_ERR_MODIFIED until rw_zero_grad(). The step can be repeated.
 * @param offload may be NULL for the defaults; read during the call.
 * @return RW_OK; RW_ERR_ARGUMENT for a rate that is neither 0 nor a number of at least 1; RW_ERR_IO (no such folder,
 *         not writable); RW_ERR_MEMORY, also if the copy thread cannot be started or memory cannot be pinned;
 *         RW_ERR_DEVICE. On failure nothing has changed.
 */
RW_API rw_status rw_context_set_offload(rw_context *ctx, const rw_offload *offload);

/** Returns the number of CPU threads in use. */
RW_API int rw_context_threads(const rw_context *ctx);

/**
 * Sets the number of CPU threads to n, 1 to RW_MAX_THREADS, and starts missing workers of the calling thread. No bit of
 * any result depends on it.
 * @return RW_OK; RW_ERR_ARGUMENT; RW_ERR_MEMORY if the threads cannot be started. On failure the number is unchanged.
 */
RW_API rw_status rw_context_set_threads(rw_context *ctx, int n);

/**
 * State of the context's random generator: Philox4x32-10 with the seed as its key. An op over n elements draws
 * ceil(n / 4) blocks when it is recorded, so the state after a step is the same under every policy.
 * Source: Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC'11.
 */
typedef struct rw_generator_state {
    uint64_t seed;   ///< the Philox key
    uint64_t offset; ///< blocks of four 32-bit words drawn so far
} rw_generator_state;

/** Returns the current state. Save it with the weights to resume a run bit for bit. */
RW_API rw_generator_state rw_generator_get(const rw_context *ctx);

/** Restores a saved state. Ops that are already recorded keep the numbers that they drew. */
RW_API void rw_generator_set(rw_context *ctx, rw_generator_state state);

#ifdef __cplusplus
}
#endif

#endif
