/**
 * rewind/memory.h - memory statistics, costs of a step, timers, and counts of FP8 products.
 *
 * Memory is planned statically, so the peak is known before the step runs: predicted_peak and measured_peak are equal.
 * How measured_peak is determined:
 *   - In an ordinary run: the highest arena offset of any operand or workspace that was passed to an op. It follows
 *     from the plan's own offsets.
 *   - In a step verified under REWIND_VERIFY=1, and after ckpt_verify(): the highest arena offset that a kernel
 *     modified, independent of the plan, or the end of the highest workspace if that is higher. The arena is filled
 *     with a pattern first. A workspace counts as a whole, because a kernel may leave part of it untouched.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MEMORY_H
#define REWIND_MEMORY_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Memory of a context, in bytes. Activation sizes are those of the last step plan that ran on the context. */
typedef struct rw_memory {
    size_t parameters;      ///< parameters and buffers
    size_t gradients;       ///< gradients of parameters
    size_t optimizer;       ///< optimizer states in device memory; of offloaded ones only the window (rw_state_offload)
    size_t inputs;          ///< copies of the inputs of all tapes
    size_t results;         ///< values held for reading: losses, gradients of tape values, requested values
    size_t kept;            ///< activations that are live between forward and backward
    size_t replayed;        ///< maximum of the replayed activations that are live at one time
    size_t workspace;       ///< largest workspace of a node
    size_t largest_live;    ///< maximum over all nodes of the live activation bytes: a lower bound of any placement
    size_t predicted_peak;  ///< size of the arena in the plan
    size_t measured_peak;   ///< highest byte of the arena that the run used, see above
    size_t host;            ///< host memory allocated for offloaded values and optimizer states
    /** Memory allocated for activations: the arena of the largest step so far, and one for each suspended step. Under
        `total:` at most the memory that remains within the limit. */
    size_t arenas;
    size_t runs;            ///< suspended steps: forward has run, backward has not, no reset; at most 32
    size_t waiting;         ///< their share of `arenas` and `host`, see rw_context_params.waiting_bytes
    size_t tape;            ///< internal data of tapes: nodes, operands, values, attributes
    size_t plans;           ///< cached plans: at most 32 and 256 MiB, plus the newest one
    size_t tables;          ///< names, call sites, layouts and op definitions known to the context
    /** Upper bound of the memory that the device's libraries use for plans, or would use in a context that plans only.
        On a CPU: oneDNN's primitives, those of live plans and up to 256 more. oneDNN does not report its memory, so
        this is an estimate by kind and shape: 64 KiB for a matrix product; for a convolution 160 KiB plus an amount per
        output of a row, at most 6 MiB. Not included: oneDNN's own cache of up to 1,024 primitives per process. On CUDA
        it is 0, because `device` includes it. */
    size_t library;
    size_t device;          ///< memory in use on the device by all processes, as its driver reports; 0 on the CPU
    size_t files; ///< size of files for offloaded values and states: rw_context_set_offload(), rw_state_offload
    /** Maximum of the gradients that are live at one time and that fused updates consume
        (rw_record_update_inside()). Part of predicted_peak and of no other member; 0 for other steps. */
    size_t consumed;
} rw_memory;

/** Fills *ret_memory. @return RW_OK; RW_ERR_ARGUMENT for NULL. */
RW_API rw_status rw_memory_stats(const rw_context *ctx, rw_memory *ret_memory);

/** Work of one step under the tape's policy, summed from the ops' cost functions. */
typedef struct rw_cost {
    /** `replayed` counts everything that is executed a second time. With fused updates that need all gradients first
        (rw_record_update_inside() with clipping or a scaler), it includes the first of the two backward passes. */
    double forward_flops, replayed_flops, backward_flops;
    double model_flops; ///< products in forward and backward, each counted once (rw_op_cost.model_flops)
    double forward_bytes, replayed_bytes, backward_bytes; ///< bytes read and written
    size_t forward_nodes, replayed_nodes, backward_nodes; ///< number of executed nodes
} rw_cost;

/**
 * Computes the work of rw_backward(t, loss) without running it. It plans the step if there is no plan yet.
 * @param ret_cost untouched on failure.
 * @return as rw_tape_plan() under the tape's policy (rewind/plan.h).
 */
RW_API rw_status rw_tape_cost(rw_tape *t, rw_tensor *loss, rw_cost *ret_cost);

/**
 * Starts a timer for the calls until rw_timer_end(), on the device's queue: device time, without the time by which the
 * host runs ahead. One timer at a time per context.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; RW_ERR_MEMORY; RW_ERR_DEVICE.
 */
RW_API rw_status rw_timer_begin(rw_context *ctx);

/**
 * Stops the timer and waits for the device.
 * @param ret_ms receives milliseconds; untouched on failure.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL or without rw_timer_begin(); RW_ERR_DEVICE.
 */
RW_API rw_status rw_timer_end(rw_context *ctx, double *ret_ms);

/**
 * FP8 matrix products that a CUDA context has executed since its creation, replays included. Under a precision recipe a
 * product runs on FP8 units only if cuBLASLt has a kernel for it. Otherwise both factors are first decoded to bfloat16,
 * which is slower than bfloat16 alone and uses the same quantized values.
 *
 * FP8 units need compute capability 8.9, RW_SCALING_TENSOR, extents that are multiples of 16, and not two factors of
 * RW_F8_E5M2. A launch of a captured graph adds nothing: its products count when the first launch runs and the next one
 * captures them.
 */
typedef struct rw_float8_products {
    uint64_t fp8;     ///< on FP8 units
    uint64_t decoded; ///< fell back to bfloat16
} rw_float8_products;

/**
 * Fills *ret_products; both are 0 on the CPU, which has no FP8 units. A trace (REWIND_TRACE) shows the same per
 * product: its "product" is "fp8" or "decoded to bfloat16".
 * @return RW_OK; RW_ERR_ARGUMENT for NULL
 */
RW_API rw_status rw_float8_product_stats(const rw_context *ctx, rw_float8_products *ret_products);

#ifdef __cplusplus
}
#endif

#endif
