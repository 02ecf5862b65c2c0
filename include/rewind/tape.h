/**
 * rewind/tape.h - a recorded step: record ops, ask for values, run backward, reset, again.
 *
 * Calling an op records a node; nothing runs until a value is asked for. Shapes, types and arguments are checked at
 * the call. A tape keeps its memory, and its context the plans made for it, so a loop that records the same step
 * again pays for planning once.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_TAPE_H
#define REWIND_TAPE_H

#include <rewind/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Creates an empty tape. Its policy is "none", or what REWIND_POLICY says.
 * @param ret_tape receives the tape, owned by the caller; untouched on failure.
 */
RW_API rw_status rw_tape_create(rw_tape **ret_tape, rw_context *ctx);

/**
 * Frees the tape and its tensors and sets *tape to NULL. NULL, or a pointer to NULL, is fine. While a graph of the tape
 * is there, its memory stays until that goes.
 */
RW_API void rw_tape_destroy(rw_tape **tape);

/** Forgets the recorded ops and their tensors, gradients of tape values too: see rewind/tensor.h. Parameters, their
    gradients, plans and memory stay. Always resets; with REWIND_DEBUG=effects it records an error where effects have
    not happened (rw_context_dropped_effects()). */
RW_API void rw_tape_reset(rw_tape *tape);

/** The context a tape was created for. */
RW_API rw_context *rw_tape_context(const rw_tape *tape);

/**
 * An input of the step.
 * @param data dense, row-major, rw_shape_numel(shape) elements of dtype; copied, so it may change after the call. Host
 * memory, on CUDA also device memory whose contents are complete. NULL makes a zero-filled input to be filled with
 * rw_input_write().
 */
RW_API rw_tensor *rw_input_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, const void *data);
#define rw_input(...) rw_input_at(RW_HERE, __VA_ARGS__)

/**
 * Replaces an input's elements; data as for rw_input(). Results that ran before and would be replayed from it report
 * RW_ERR_CHANGED. On CUDA it does not wait for a graph that is still running: the elements travel meanwhile.
 */
RW_API rw_status rw_input_write(rw_tensor *x, const void *data, size_t bytes);

/** Asks for the gradient of an input or result x; after rw_backward() rw_gradient(x) gives it. Returns x. */
RW_API rw_tensor *rw_require_grad(rw_tape *t, rw_tensor *x);

/**
 * What is recorded between the two requires no gradient: backward does not go into it, it keeps nothing for a backward,
 * and on a tape on which nothing else requires one, effects happen when a value is read. For evaluation and logging, as
 * PyTorch's no_grad. Calls nest. rw_tape_reset() ends an open one.
 * @return RW_OK; RW_ERR_REGION for an end without a begin; RW_ERR_ARGUMENT for NULL and in a kernel.
 */
RW_API rw_status rw_no_grad_begin(rw_tape *t);
RW_API rw_status rw_no_grad_end(rw_tape *t);

/**
 * Runs what is needed for x, if it did not run, and copies its elements out: dense, row-major, in x's type.
 * A value that a region discarded is replayed. A parameter may be read with t = NULL.
 * Memory: that of inference. Each value is freed after its last use, and nothing is kept for a backward: one that
 * follows runs forward again, unless rw_item() or rw_forward() has begun it.
 * @param out   host memory, on CUDA also device memory.
 * @param bytes must be rw_tensor_bytes(x).
 * @return RW_OK or the first error; out is untouched on failure.
 */
RW_API rw_status rw_read(rw_tape *t, rw_tensor *x, void *out, size_t bytes);

/**
 * The value of a tensor with one element, as a double; NaN on an error (see rw_error_message). A scalar that requires a
 * gradient is assumed to be the loss: reading it runs the forward part of its step and keeps what backward needs, and
 * rw_backward() goes on from there. A wrong assumption costs time: the step that was begun is given up when another one
 * begins on the tape. Where the step cannot be planned - its budget is too small, an op has no gradient rule - the
 * value is computed as rw_read() does. rw_read() and rw_eval() assume nothing. Not so one that is computed from
 * gradients of rw_grad(): they belong to no step's forward part, so the loss is evaluated by itself, and
 * rw_backward() begins anew, planned for a step whose loss is there. Under a budget its least may be higher than that
 * of the step as it was recorded; rw_tape_plan() says which when it is asked after the loss was read. To read such a
 * loss behind rw_backward() costs nothing.
 */
RW_API double rw_item(rw_tape *t, rw_tensor *x);

/**
 * Runs what the n tensors need; a later rw_read() of them costs a copy. n may be 0. Memory: as for rw_read().
 *
 * Effects - rw_assign(), running statistics, an op with RW_OP_STATEFUL - happen once per recorded step. On a tape where
 * some recorded value requires a gradient they happen with rw_backward(). On any other tape they happen here, and in
 * rw_read() and rw_item(), also where every requested value has been computed before or is a buffer. A value that was
 * not computed by then and depends on what they write is RW_ERR_CHANGED afterwards: request all values in one call.
 * rw_eval_effects() runs them at once.
 */
RW_API rw_status rw_eval(rw_tape *t, rw_tensor *const *x, size_t n);

/**
 * Runs the effects that have not happened, on any tape: for a forward pass without backward, such as one that only
 * updates running statistics. A backward afterwards that replays from what they wrote is RW_ERR_CHANGED.
 * @return RW_OK, also where there is none, or the first error: then no buffer has changed.
 */
RW_API rw_status rw_eval_effects(rw_tape *t);

/**
 * The number of effects recorded on the tape that have not happened. rw_tape_reset() and rw_tape_destroy() drop them.
 * @param ret_first receives where the first of them was recorded, untouched when there is none; may be NULL.
 */
RW_API size_t rw_tape_pending_effects(const rw_tape *t, rw_site *ret_first);

/**
 * The number of effects that resets of the context's tapes have dropped so far. With REWIND_DEBUG=effects in the
 * environment such a reset is an error, RW_ERR_CHANGED, that names the first of them.
 * @param ret_first receives where the first of them was recorded, untouched when there is none; may be NULL.
 */
RW_API size_t rw_context_dropped_effects(const rw_context *ctx, rw_site *ret_first);

/**
 * Adds d loss / d p to the gradient of every parameter p that loss depends on. A value marked by rw_require_grad() gets
 * the gradient of this loss alone: rw_gradient() gives that of the last backward whose loss depends on it. What an
 * earlier one has given to a value that this loss does not depend on stays.
 * Runs the forward ops that did not run yet, replays what the policy discarded. May be called more than once.
 * @param loss a floating-point tensor with one element.
 * @return RW_OK or the first error. On failure no gradient has changed, with one exception: sums are taken in place,
 *         so a gradient that was not zero and to which this call had begun to add is lost. To read it, to add to it or
 *         to step with it is RW_ERR_CHANGED, until rw_zero_grad(). RW_ERR_CHANGED as well when it would add to a
 *         gradient that a scaler has unscaled (rewind/precision.h), and when it would replay from a parameter, an input
 *         or a gradient that has changed after the tape had read it. That includes a gradient that this tape has read
 *         in an op and an earlier rw_backward() has added to.
 */
RW_API rw_status rw_backward(rw_tape *t, rw_tensor *loss);

/**
 * The forward half of a step whose backward begins at y[0..n), kept for rw_backward_from(): the stage of a pipeline
 * that has its outputs and waits for their gradients. The values can be read at no cost. What comes in between - halves
 * of other tapes, values of this tape that are read, rw_zero_grad() - makes nothing of it run again; a change of what
 * its backward reads is RW_ERR_CHANGED there. To read a loss by rw_item() before rw_backward() is the same for a loss.
 *
 * Each half that waits keeps its activations. When memory ends, or when more than 32 wait on a context, the one that
 * waited longest is given up: it is computed again, to the same bytes.
 * @param y floating-point values of the tape, of any shape, that require a gradient.
 * @return RW_OK or the first error.
 */
RW_API rw_status rw_forward(rw_tape *t, size_t n, rw_tensor *const *y);

/**
 * rw_backward() of the sum of all elements of y[0..n), each times its gradient in dy: goes on where rw_forward() of
 * the same tensors stopped, or runs forward too.
 *
 *     rw_forward(first, 1, &y);                                    // F of stage one
 *     rw_tensor *x = rw_require_grad(second, rw_input(second, RW_F32, shape, bytes_of_y));
 *     rw_backward(second, loss(second, x));                        // F and B of stage two
 *     rw_backward_from(first, 1, &y, (rw_tensor *[]){ rw_gradient(x) });
 *
 * @param dy by tensor its gradient, of the same shape and type: NULL for ones; an input of t; or rw_gradient() of a
 *           value of any tape of the context, read where it lies, until the call returns. NULL for all: ones.
 * @return as rw_backward(). RW_ERR_CHANGED when a parameter, buffer or input that this half still reads has changed:
 *         two tapes that rw_assign() to the same buffer can't be interleaved.
 */
RW_API rw_status rw_backward_from(rw_tape *t, size_t n, rw_tensor *const *y, rw_tensor *const *dy);

/**
 * Records the gradient of a sum of y's elements with respect to x[0..n) as ops on the tape, so that they can be used
 * like any result and differentiated again. Only what lies between is differentiated: what was recorded before all of
 * x, or depends on none of them, has no part in it, and no rule of it is called.
 * @param ret_grads receives n tensors, owned by the tape; untouched on failure. NULL entries: y does not depend on x.
 */
RW_API rw_status rw_grad_at(rw_site at, rw_tape *t, rw_tensor *y, rw_tensor *const *x, size_t n, rw_tensor **ret_grads);
#define rw_grad(...) rw_grad_at(RW_HERE, __VA_ARGS__)

/** Number of nodes recorded since the last reset. */
RW_API size_t rw_tape_nodes(const rw_tape *t);

#ifdef __cplusplus
}
#endif

#endif
