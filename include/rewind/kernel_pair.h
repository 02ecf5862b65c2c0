/**
 * rewind/kernel_pair.h - hand-written kernels, a forward and its backward, as a C trainer has them, in one call.
 *
 *     static rw_status forward(void *const *out, void *const *in, const void *data, const rw_kernel *k)
 *     {
 *         const struct sizes *s = data;
 *         return layernorm_forward(out[0], out[1], out[2], in[0], in[1], in[2], s->rows, s->width), RW_OK;
 *     }
 *
 *     y = rw_call(t, &(rw_call_params){ .name = "layernorm", .forward = forward, .backward = backward,
 *                                       .outputs = { { RW_F32, RW_SHAPE(rows, width) },
 *                                                    { RW_F32, RW_SHAPE(rows), .no_gradient = true },
 *                                                    { RW_F32, RW_SHAPE(rows), .no_gradient = true } },
 *                                       .n_outputs = 3, .data = &sizes, .data_size = sizeof sizes },
 *                 (rw_tensor *[]){ x, weight, bias }, 3);
 *
 * The library allocates the outputs and the gradients, zeroes what kernels add to, runs backward where gradients are
 * needed, and recomputes, plans, offloads and verifies the call as any op. Statistics that backward reads are further
 * outputs. docs/drop_in.md ports a trainer in this way.
 *
 * Call the name without _at: rw_call(t, p, in, n) is rw_call_at(RW_HERE, t, p, in, n).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_KERNEL_PAIR_H
#define REWIND_KERNEL_PAIR_H

#include <rewind/op.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RW_CALL_MAX_INPUTS 31  ///< the maximum number of inputs of a call
#define RW_CALL_MAX_OUTPUTS 8  ///< the maximum number of outputs of a call
#define RW_CALL_MAX_DATA 4096  ///< the maximum bytes of a call's data

/**
 * Computes all elements of all outputs from the inputs. Operands are dense and row-major. On CUDA they are in device
 * memory, and the function queues its work on k->stream, without waiting. Every byte of an output may depend only on
 * the inputs, on data, and on the ticket if the call draws numbers.
 * @param out  addresses of the outputs; contents are undefined, or zero with rw_call_params.zeroed_outputs
 * @param in   addresses of the inputs, which it may not write; NULL beyond the last one
 * @param data a copy of rw_call_params.data, aligned to 8 bytes; NULL if there is none
 * @param k    threads (rw_kernel_parallel()), stream and workspace. Types and shapes of in[i] and out[i] are in
 *             k->in[i] and k->out[i]. Random numbers begin at k->ticket; on CUDA *k->ticket_base, read on the device,
 *             is added to its offset, so that each launch of a graph has other numbers (rw_ticket). Other members are
 *             for the library.
 * @return RW_OK, or an error as that of a kernel in rewind/op.h, with which the step fails
 */
typedef rw_status (*rw_call_forward_fn)(void *const *out, void *const *in, const void *data, const rw_kernel *k);

/**
 * Adds to the gradients of the inputs, which are zero when it begins. It may run more than once in a step, as forward
 * may, so it has no effects beside its outputs.
 * @param d_in  addresses of the inputs' gradients, with the type and shape of the input. NULL for an input whose
 *              gradient is not needed, and for an integer or boolean one.
 * @param d_out addresses of the outputs' gradients, which it may not write. NULL for an output into which no gradient
 *              flows; at least one is not NULL.
 * @param in, out addresses of the inputs and outputs of forward, which it may not write. NULL for those in
 *              rw_call_params.unread_inputs and unread_outputs.
 * @param data, k as for forward, but k->in and k->out are for the library; the ticket is the forward's, for the same
 *              random numbers
 * @return as forward
 */
typedef rw_status (*rw_call_backward_fn)(void *const *d_in, void *const *d_out, void *const *in, void *const *out,
                                         const void *data, const rw_kernel *k);

/** One output of a call. */
typedef struct rw_call_output {
    rw_dtype dtype;   ///< element type
    rw_shape shape;   ///< shape
    bool no_gradient; ///< backward does not read its gradient; if one flows into it, backward is RW_ERR_NO_GRADIENT
} rw_call_output;

/** A pair of kernels and one call of it. Unset members mean "none". */
typedef struct rw_call_params {
    /** [a-z0-9_], 1 to 48 characters. In ops: policies, costs, traces and messages the op of a pair "gelu" is
        "call_gelu", that of its gradient "call_gelu_backward". */
    const char *name;
    rw_call_forward_fn forward;   ///< required
    rw_call_backward_fn backward; ///< NULL: backward through the call is RW_ERR_NO_GRADIENT
    rw_call_output outputs[RW_CALL_MAX_OUTPUTS]; ///< the first n_outputs
    size_t n_outputs;             ///< 1 to RW_CALL_MAX_OUTPUTS
    /** data_size bytes, copied by the call: sizes, constants. No padding, because plans are found by these bytes, and
        no pointers to memory that is freed before the tape is reset. NULL with a size of 0. */
    const void *data;
    size_t data_size;         ///< at most RW_CALL_MAX_DATA
    uint32_t unread_inputs;   ///< inputs that backward does not read, RW_OP_INPUT(i); they are not kept for it
    uint32_t unread_outputs;  ///< the same for outputs
    uint32_t overwritten_gradients; ///< inputs whose gradient backward writes, rather than adds to: it is not zeroed
    bool zeroed_outputs;      ///< forward adds to its outputs: they are zeroed before
    bool nondeterministic;    ///< forward or backward may give other bytes from equal inputs: outputs are kept, not
                              ///< recomputed, and the verifier does not execute the kernels in isolation
    bool mixed_dtypes;        ///< floating-point inputs may have other types than output 0; else that is RW_ERR_DTYPE
    int64_t draws;            ///< random words that forward may draw; 0: none, and there is no ticket
    size_t workspace;         ///< bytes of k->workspace in forward
    size_t backward_workspace; ///< bytes of k->workspace in backward
    /** Arithmetic of a call, for plans, rw_monitor, and the number of threads: k->threads is 1 for little work. bytes
        0: each operand is read or written once. Without flops a matrix product counts as little work. */
    rw_op_cost cost;
    rw_op_cost backward_cost; ///< the same for backward
    rw_tensor **ret_outputs;  ///< receives all n_outputs outputs, NULL after an error, but is not written by a call
                              ///< that is refused inside of an op's own function; may be NULL
} rw_call_params;

/**
 * Records a call of a pair of kernels.
 * @param p   the pair; copied, but for the functions, which must stay at their addresses for the life of the context
 * @param in  n inputs, 0 to RW_CALL_MAX_INPUTS. Floating-point ones have the type of output 0, if that is one, or
 *            p->mixed_dtypes is set: precision recipes do not cast them. A strided one is copied to a dense buffer
 *            first.
 * @return output 0, owned by the tape until rw_tape_reset(); NULL on an error, which is sticky and names the member,
 *         and then nothing is recorded. RW_ERR_ARGUMENT, RW_ERR_DTYPE or RW_ERR_SHAPE for an invalid member,
 *         RW_ERR_MEMORY.
 */
RW_API rw_tensor *rw_call_at(rw_site at, rw_tape *t, const rw_call_params *p, rw_tensor *const *in, size_t n);
#define rw_call(...) rw_call_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
