/**
 * rewind/memory.h - where the bytes are, what a step costs, how long it takes, and which units multiply.
 *
 * Placement is static, so the peak is known before the step runs; predicted and measured are the same number.
 * What measured_peak is: in an ordinary run the end of the highest memory that an op was handed, which follows from the
 * plan's own offsets; in a step that REWIND_VERIFY=1 has verified, and after ckpt_verify(), the end of the highest unit
 * of the arena that a kernel wrote other bytes to than the pattern which it was filled with, whatever the plan says, or
 * of the highest workspace, of which a kernel may leave some untouched.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_MEMORY_H
#define REWIND_MEMORY_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Bytes. Activations are those of the last step plan that ran on the context. */
typedef struct rw_memory {
    size_t parameters;      ///< parameters and buffers
    size_t gradients;       ///< parameters' gradients
    size_t optimizer;       ///< optimizer states; of those that wait elsewhere the window (rw_states)
    size_t inputs;          ///< copies of the tapes' inputs
    size_t results;         ///< values held for reading: losses, gradients of tape values, what was asked for
    size_t kept;            ///< activations alive between forward and backward
    size_t replayed;        ///< most bytes of replayed activations alive at one time
    size_t workspace;       ///< largest workspace of one node
    size_t largest_live;    ///< largest sum of live activation bytes at any node: no placement can be below
    size_t predicted_peak;  ///< the arena's size as the plan says
    size_t measured_peak;   ///< highest byte of the arena that the run used: see above
    size_t host;            ///< room in host memory for values that are moved out, and for optimizer states
    /** Memory of activations: of the largest step, also of an earlier one, and of each that waits for its backward.
        Under `total:` no more than there is room for. */
    size_t arenas;
    size_t runs;            ///< steps that wait for their backward: the loss was read, the tape not reset; 32 at most
    size_t waiting;         ///< what they hold of `arenas` and `host`: see rw_context_params.waiting_bytes
    size_t tape;            ///< the tapes' own bookkeeping: nodes, operands, values, attributes
    size_t plans;           ///< cached plans: 32 at most, and 256 MiB, but for the newest
    size_t tables;          ///< names, call sites, layouts and ops that the context knows
    /** What the device's libraries made for plans: on a CPU oneDNN's primitives, those of live plans and up to 256
        more, at a fixed estimate of 64 KiB each, as oneDNN does not say. 0 on CUDA, where it is part of `device`. */
    size_t library;
    size_t device;          ///< in use on the device by everybody, as its driver counts; 0 on the CPU
    size_t files;           ///< the same in files (rw_context_set_offload(), rw_states)
    /** Of predicted_peak: gradients that an update inside backward uses up (rw_graph_params.update_inside), as many as
        are there at one time. They are in no other number; 0 for steps without. */
    size_t used_up;
} rw_memory;

/** Fills *ret_memory. RW_ERR_ARGUMENT on NULL. */
RW_API rw_status rw_memory_stats(const rw_context *ctx, rw_memory *ret_memory);

/** Work of one step under the tape's policy, from the ops' cost functions. */
typedef struct rw_cost {
    double forward_flops, replayed_flops, backward_flops;
    double forward_bytes, replayed_bytes, backward_bytes; ///< read and written
    size_t forward_nodes, replayed_nodes, backward_nodes;
} rw_cost;

/** What rw_backward(t, loss) would do. Plans it when it has to; runs nothing. ret_cost untouched on failure. */
RW_API rw_status rw_tape_cost(rw_tape *t, rw_tensor *loss, rw_cost *ret_cost);

/**
 * A stopwatch in the device's own queue: begin, any calls, end. What is measured is the device's time, without that of
 * a host that runs ahead. rw_timer_end() waits for the device. One at a time per context.
 * @param ret_ms receives the milliseconds between the two; untouched on failure.
 * @return RW_ERR_ARGUMENT on NULL or without a begin, RW_ERR_DEVICE.
 */
RW_API rw_status rw_timer_begin(rw_context *ctx);
RW_API rw_status rw_timer_end(rw_context *ctx, double *ret_ms);

/**
 * Products of two 8-bit factors that a CUDA context has executed since it was created, replays included. Under a
 * precision recipe a product runs on FP8 units only where cuBLASLt has a kernel for it; otherwise both factors are
 * decoded to bfloat16 first: slower than bfloat16 alone, with the same quantized values.
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
 * Fills *ret_products: 0 and 0 on the CPU, which has no FP8 units. A trace (REWIND_TRACE) says the same of each: its
 * "product" is "fp8" or "decoded to bfloat16".
 * @return RW_OK; RW_ERR_ARGUMENT on NULL
 */
RW_API rw_status rw_float8_product_stats(const rw_context *ctx, rw_float8_products *ret_products);

#ifdef __cplusplus
}
#endif

#endif
