/**
 * rewind/tape.h - a recorded step: record ops, request values, run backward, reset, repeat.
 *
 * Calling an op records a node, after checks of shapes, types and arguments; nothing is executed until a value is
 * requested. A tape keeps its memory, and its context keeps the plans, so a loop that records the same step again is
 * planned once.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_TAPE_H
#define REWIND_TAPE_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Creates an empty tape. Its policy is that of the environment variable REWIND_POLICY, else "none".
 * @param ret_tape receives the tape, owned by the caller; untouched on failure.
 * @return RW_OK; RW_ERR_ARGUMENT for NULL; RW_ERR_POLICY for an invalid REWIND_POLICY; RW_ERR_MEMORY.
 */
RW_API rw_status rw_tape_create(rw_tape **ret_tape, rw_context *ctx);

/**
 * Frees the tape and its tensors and sets *tape to NULL. While a graph of the tape exists, its memory is freed with the
 * graph. NULL-safe.
 */
RW_API void rw_tape_destroy(rw_tape **tape);

/**
 * Discards the recorded ops and their tensors, including gradients of tape values; their handles become stale
 * (rewind/tensor.h). Parameters, their gradients, plans and memory stay.
 *
 * It never fails to reset. After the first step in which rw_item() was called before recording was complete, the call
 * also plans the next step (see rw_item()). With REWIND_DEBUG=effects it sets a sticky error if it drops effects that
 * have not happened (rw_context_dropped_effects()).
 */
RW_API void rw_tape_reset(rw_tape *tape);

/** Returns the context that the tape was created for. */
RW_API rw_context *rw_tape_context(const rw_tape *tape);

/**
 * Creates an input of the step.
 * @param data  rw_shape_numel(shape) elements of dtype, dense and row-major: host memory, or on CUDA device memory
 *              whose contents are complete. It may change after the call. NULL: zeros, to be filled by
 *              rw_input_write().
 * @param bytes the size of data: rw_shape_numel(shape) * rw_dtype_size(dtype). 0 if data is NULL.
 * @return the input, owned by the tape. NULL on an error, which is sticky: RW_ERR_ARGUMENT for a wrong size,
 *         RW_ERR_DTYPE or RW_ERR_SHAPE for an invalid type or shape, RW_ERR_MEMORY, also if inputs of the context would
 *         take more than 2^60 bytes, RW_ERR_DEVICE.
 */
RW_API rw_tensor *rw_input_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, const void *data, size_t bytes);
#define rw_input(...) rw_input_at(RW_HERE, __VA_ARGS__)

/**
 * Replaces the elements of x, an input; data and bytes as for rw_input(). On CUDA the call does not wait for a running
 * graph: the transfer overlaps with it.
 *
 * Requests before the call read the old elements: a value that was read or evaluated, a backward, the forward half of
 * rw_forward(), an effect that has happened. Their results do not change, and a later request that would read the input
 * again, such as a backward that replays from it, returns RW_ERR_MODIFIED. If no request has depended on the input,
 * later ones read the new elements; also those of values that the library has computed ahead (see rw_item()).
 * @return RW_OK; RW_ERR_ARGUMENT for a tensor that is no input of a tape, and for a wrong size; RW_ERR_MEMORY;
 *         RW_ERR_DEVICE; with REWIND_EAGER=1 also RW_ERR_MODIFIED, if an op with RW_OP_STATEFUL has already read the
 *         input, but no request. Then the input is unchanged.
 */
RW_API rw_status rw_input_write(rw_tensor *x, const void *data, size_t bytes);

/** Requests the gradient of an input or result x: after rw_backward(), rw_gradient(x) returns it. Returns x. */
RW_API rw_tensor *rw_require_grad(rw_tape *t, rw_tensor *x);

/**
 * Begin and end of a scope without gradients, as PyTorch's no_grad: for evaluation and logging. Ops recorded between
 * the two require no gradient, and nothing of them is kept for backward. If nothing else on the tape requires a
 * gradient, effects happen when a value is read. Scopes nest. rw_tape_reset() ends open ones.
 * @return RW_OK; RW_ERR_REGION for an end without a begin; RW_ERR_ARGUMENT for NULL and inside a kernel.
 */
RW_API rw_status rw_no_grad_begin(rw_tape *t);
RW_API rw_status rw_no_grad_end(rw_tape *t);

/**
 * Copies the elements of x out: dense, row-major, in x's type. Computes x first if necessary, replaying values that a
 * region discarded. A parameter may be read with t = NULL.
 *
 * Cost. A copy, if x has been computed: by rw_eval(), as a scalar of a step that has run, or, for at most 256 bytes,
 * because the last step of the same structure also read it (see rw_item()). Otherwise a forward pass to x with the
 * memory of inference: each value is freed after its last use, and nothing is kept for a backward. The call never
 * starts a step. A view counts with the bytes of the value that it is a view of: to log a part of a value of more than
 * 256 bytes, read a copy such as rw_scale(t, x, 1).
 *
 * Between rw_item() and rw_backward(), under a budget: if the evaluation and the step that rw_item() began do not fit
 * into the budget together, the step ends, and rw_backward() executes its forward part again.
 * @param out   host memory, on CUDA also device memory; untouched on failure.
 * @param bytes must be rw_tensor_bytes(x).
 * @return RW_OK or the first error. RW_ERR_MODIFIED if x has not been computed, and a parameter that it depends on has
 *         changed since it was recorded, for example by an optimizer's step. Also if x is a view of such a parameter,
 *         or of an input that rw_input_write() has written after a request read it; reading or evaluating a view is
 *         such a request. If the call itself executes an effect that writes the parameter, the view has the contents
 *         before. A view of a gradient is read with the gradient's present contents.
 */
RW_API rw_status rw_read(rw_tape *t, rw_tensor *x, void *out, size_t bytes);

/**
 * Returns the value of x, a tensor with one element, as a double; NaN on an error, which is sticky. Of an FP8 tensor it
 * is the byte, not the number that the byte stands for.
 *
 * Cost. A copy, if the value has been computed. Every tensor of one element that a step's loss depends on is held once
 * the step has run, until rw_tape_reset(). A view of one element is held if the value that it is a view of has at most
 * 256 bytes. Otherwise the value is computed. How depends on the last step of the same structure, that is the same ops,
 * shapes and policy in the same order:
 *   - If it called rw_backward(): the forward part of that step is executed as far as it is recorded, including every
 *     value of at most 256 bytes that was read then. It keeps what backward needs, and rw_backward() continues it. So
 *     in a loop of equal steps no op is executed twice, however many scalars are read before backward, after it, or
 *     while the tape is being recorded. Each scalar takes its own bytes, 4 in float32, and a view those of the whole
 *     value. Exceptions: an op with RW_OP_STATEFUL that the value does not need is not executed ahead; if it
 *     was recorded before the value, the value is evaluated. And a view of a value of more than 256 bytes is evaluated:
 *     read a copy, such as rw_scale(t, x, 1).
 *   - If it did not: the value is evaluated as by rw_read(), together with all values that were read then, in one
 *     forward pass.
 *   - If there was none: a scalar that requires a gradient is assumed to be the loss, whose step starts; any other
 *     value is evaluated. After an rw_backward() in the step every value is evaluated.
 * A tape with a graph has no last step: see rw_graph_launch().
 *
 * A wrong assumption costs one more forward pass. It never causes an error or changes a byte of a result, and budgets
 * hold: if the step cannot be planned or run, the value is evaluated. A value that the last step did not read, or that
 * was recorded after rw_backward(), is also evaluated. The context remembers the last 32 structures, each with up to
 * 16,384 values; a value that 16 steps did not read is forgotten.
 */
RW_API double rw_item(rw_tape *t, rw_tensor *x);

/**
 * Computes x, n tensors, so that a later rw_read() or rw_item() of them costs a copy. n may be 0. Cost and memory are
 * as for rw_read(), with one forward pass for all of them. The call never starts a step.
 *
 * Effects (rw_assign(), running statistics, ops with RW_OP_STATEFUL) happen once per recorded step. If a recorded value
 * requires a gradient, they happen in rw_backward(). On any other tape they happen here, and in rw_read() and
 * rw_item(), even if every requested value is a buffer or has been computed before. A value that has not been computed
 * by then, and depends on what they write, is RW_ERR_MODIFIED afterwards: request all values in one call.
 * rw_eval_effects() executes effects at any time.
 * @return RW_OK or the first error
 */
RW_API rw_status rw_eval(rw_tape *t, rw_tensor *const *x, size_t n);

/**
 * Executes the effects that have not happened, on any tape: for a forward pass without backward, such as one that only
 * updates running statistics. A later backward that would replay from what they wrote is RW_ERR_MODIFIED.
 * @return RW_OK, also if there is none, or the first error; on failure no buffer has changed.
 */
RW_API rw_status rw_eval_effects(rw_tape *t);

/**
 * Returns the number of recorded effects that have not happened. rw_tape_reset() and rw_tape_destroy() drop them.
 * @param ret_first receives the call site of the first of them, untouched if there is none; may be NULL.
 */
RW_API size_t rw_tape_pending_effects(const rw_tape *t, rw_site *ret_first);

/**
 * Returns the number of effects that rw_tape_reset() and rw_tape_destroy() have dropped in the context so far. With
 * REWIND_DEBUG=effects in the environment such a reset is a sticky error, RW_ERR_MODIFIED, that names the first of
 * them.
 * @param ret_first receives the call site of the first of them, untouched if there is none; may be NULL.
 */
RW_API size_t rw_context_dropped_effects(const rw_context *ctx, rw_site *ret_first);

/**
 * Adds d loss / d p to the gradient of every parameter p that loss depends on. Executes the forward ops that have not
 * run yet, and replays what the policy discarded.
 *
 * For a value marked by rw_require_grad(), rw_gradient() returns the gradient of the last backward whose loss depends
 * on the value. Such gradients are not summed over calls.
 *
 * The call may be repeated, for the same or another loss of the tape. If the policy keeps everything, and the last step
 * of the same structure called it for the same losses, in any order, the first call keeps what the others read of the
 * forward part, and no op is executed twice. It does not keep values marked by ckpt_recompute() or ckpt_offload(): the
 * later calls recompute them. Otherwise each call executes forward again, within its budget: under any other policy,
 * and in the first such step. rw_item() before the first call expects that to be for the same loss as in the last step.
 * @param loss a floating-point tensor with one element.
 * @return RW_OK or the first error. On failure no gradient has changed, with one exception: sums are computed in place,
 *         so a non-zero gradient to which this call had begun to add is lost. Reading it, adding to it or an optimizer
 *         step with it is RW_ERR_MODIFIED until rw_zero_grad(). RW_ERR_MODIFIED also if the call would add to a
 *         gradient that a scaler has unscaled (rewind/precision.h), or replay from a parameter, input or gradient that
 *         has changed after the tape read it. That includes a gradient that an op of this tape has read and an earlier
 *         rw_backward() has added to.
 */
RW_API rw_status rw_backward(rw_tape *t, rw_tensor *loss);

/**
 * Executes the forward half of a step whose backward starts at y[0..n), and keeps it for rw_backward_from(): a pipeline
 * stage that has computed its outputs and waits for their gradients. The values can be read at the cost of a copy.
 * rw_item() of a loss before rw_backward() suspends a step in the same way.
 *
 * Other work in between does not cause recomputation: steps of other tapes, reads of values of this tape,
 * rw_zero_grad(). One exception: a step that rw_item() began ends if it and a read do not fit into its budget together
 * (see rw_read()). If something that backward reads is changed, rw_backward_from() returns RW_ERR_MODIFIED.
 *
 * A suspended step keeps its activations. If memory runs out, or more than 32 steps of a context are suspended, the
 * oldest one is discarded and recomputed later, to the same bytes.
 * @param y n floating-point values of the tape, of any shape, that require a gradient.
 * @return RW_OK or the first error.
 */
RW_API rw_status rw_forward(rw_tape *t, rw_tensor *const *y, size_t n);

/**
 * Runs backward from y[0..n) with the gradients dy, that is rw_backward() of the sum over all elements of y * dy. It
 * continues the step that rw_forward() of the same tensors suspended, or executes forward, too.
 *
 *     rw_forward(first, &y, 1);                                    // F of stage one
 *     rw_tensor *x = rw_require_grad(second, rw_input(second, RW_F32, shape, data_of_y, bytes));
 *     rw_backward(second, loss(second, x));                        // F and B of stage two
 *     rw_backward_from(first, &y, (rw_tensor *[]){ rw_gradient(x) }, 1);
 *
 * @param dy n gradients, each of the shape and type of its tensor: NULL for ones; an input of t; or rw_gradient() of a
 *           value of any tape of the context, which is read in place during the call. dy itself NULL: ones for all.
 * @return as rw_backward(). RW_ERR_MODIFIED if a parameter, buffer or input that backward still reads has changed, so
 *         two tapes that rw_assign() to the same buffer cannot be interleaved.
 */
RW_API rw_status rw_backward_from(rw_tape *t, rw_tensor *const *y, rw_tensor *const *dy, size_t n);

/**
 * Records the gradients of the sum of y's elements with respect to x[0..n) as ops on the tape. The results can be used
 * like any others and differentiated again. Only ops between x and y are differentiated: gradient rules of ops that
 * were recorded before all of x, or depend on none of x, are not called.
 * @param x values of the tape that require a gradient: parameters, values that depend on them, and inputs and results
 *          marked by rw_require_grad() before their use. Others are RW_ERR_ARGUMENT.
 * @param ret_grads receives n tensors, owned by the tape; untouched on failure. Entry i is NULL if y does not depend on
 *          x[i].
 * @return RW_OK or the first error
 */
RW_API rw_status rw_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n, rw_tensor **ret_grads);
#define rw_grad(...) rw_grad_at(RW_HERE, __VA_ARGS__)

/** Returns the number of nodes recorded since the last reset. */
RW_API size_t rw_tape_nodes(const rw_tape *t);

#ifdef __cplusplus
}
#endif

#endif
