/**
 * rewind/tensor.h - values: parameters and buffers of a context, inputs and results of a tape.
 *
 * Ownership: a parameter or buffer belongs to its context and lives as long as it does. Every other tensor belongs to
 * its tape and lives until rw_tape_reset(). The caller never frees a tensor.
 *
 * A tensor where it does not belong is RW_ERR_ARGUMENT, with a message that says which it is: of another tape, of
 * another context, of before rw_tape_reset(), of a tape or of averages that were destroyed, a gradient where a value
 * is needed. One of before a reset is noticed in the next four steps; of a step with more than 4,096 values in the next
 * one until that has recorded 8,192 values more than stood before the tensor; of a destroyed tape for the first 20,480
 * of its values, until a dozen tapes more were destroyed; of averages as long. Behind that it may be taken for another
 * tensor. Not noticed is one of a context that was freed. Functions that only answer (shape, name, ...) take any of
 * these and give what they give for NULL.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_TENSOR_H
#define REWIND_TENSOR_H

#include <rewind/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A trainable parameter: zero-filled, with a gradient of the same shape that rw_backward() adds to. The gradient is
 * float32, also of a parameter of 16 bits, so that sums over uses and micro-batches are; float64 of a float64 one.
 * @param name unique in the context, copied; used in messages and in saved files, for which it must be UTF-8.
 * @return the parameter, owned by ctx; NULL on a bad name, type or shape, or without memory (see rw_error_message).
 */
RW_API rw_tensor *rw_param_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape);
#define rw_param(...) rw_param_at(RW_HERE, __VA_ARGS__)

/** What rw_param() decides; zeroed options are its choice. */
typedef struct rw_param_options {
    /** Type of the gradient: RW_F32 (zero), or the parameter's own, which for 16 bits takes half the memory and rounds
        every sum. That of a float64 parameter is float64 either way. */
    rw_dtype grad_dtype;
} rw_param_options;

/** Like rw_param(), with options; NULL is none. RW_ERR_DTYPE for a type of gradient that it cannot have. */
RW_API rw_tensor *rw_param_with_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape,
                                   const rw_param_options *options);
#define rw_param_with(...) rw_param_with_at(RW_HERE, __VA_ARGS__)

/** Like rw_param(), without a gradient: running statistics, counters, tables. Written by rw_write() and rw_assign(). */
RW_API rw_tensor *rw_buffer_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape);
#define rw_buffer(...) rw_buffer_at(RW_HERE, __VA_ARGS__)

/** The parameters and buffers of a context in order of creation; NULL past the end. */
RW_API rw_tensor *rw_param_get(const rw_context *ctx, size_t index);

/** The parameter or buffer of that name, or NULL. */
RW_API rw_tensor *rw_param_find(const rw_context *ctx, const char *name);

/** The name given to rw_param() or rw_buffer(), or by ckpt_name(); of an average "average of P", of a parameter's
    gradient the parameter's. "" when there is none, for NULL, and for one that no longer is. Never NULL. */
RW_API const char *rw_tensor_name(const rw_tensor *x);

/** Shape, type and size. NULL x, or one that no longer is, gives a scalar, RW_F32 or the type it had, and 0. */
RW_API rw_shape rw_tensor_shape(const rw_tensor *x);
RW_API rw_dtype rw_tensor_dtype(const rw_tensor *x);
RW_API size_t rw_tensor_bytes(const rw_tensor *x);

/** True for a parameter, and for a value through which a gradient flows to one or to a marked value; false for what
    rw_no_grad_begin(), rw_detach() or an op without a gradient (argmax) made, for NULL, and for one that is gone. */
RW_API bool rw_tensor_requires_grad(const rw_tensor *x);

/**
 * Fills a parameter, a buffer or a parameter's gradient: dense, row-major, in the tensor's own type. data is host
 * memory, on CUDA also device memory whose contents are complete; copied, so it may change after the call.
 * @param bytes must be rw_tensor_bytes(x).
 * A tape that has used a parameter, or has read a gradient in an op, and would have to replay from it reports
 * RW_ERR_CHANGED afterwards. A gradient that is written after rw_scaler_unscale() and before rw_scaler_update() counts
 * as unscaled.
 */
RW_API rw_status rw_write(rw_tensor *x, const void *data, size_t bytes);

/**
 * The address of the elements of a parameter, a buffer or a parameter's gradient, dense and row-major: on CUDA in
 * device memory. It is the same for the life of the context. Parameters and buffers are written by rw_write() alone.
 *
 * A gradient may be written through its address, to sum it over processes, say, before an optimizer's step: on CUDA,
 * queue that on rw_context_stream(). The call is needed once: from then on the gradient counts as written in every
 * step, also where no backward has reached the parameter, rw_zero_grad() stores zeros there, and a graph with
 * `update_inside` leaves its memory in place. Optimizers therefore update such a parameter in every step. What is
 * written there between forward and backward of a tape that has read the gradient in an op is not noticed; the call
 * itself counts as a change.
 * @return NULL on an error, which sticks: RW_ERR_CHANGED for a gradient that a failed backward has left half-way,
 *         RW_ERR_MEMORY; owned by the context.
 */
RW_API void *rw_tensor_data(rw_tensor *x);

/** Fills a parameter with normal deviates (Box-Muller over the context's generator), in element order. RW_ERR_ARGUMENT,
    which sticks, for values not finite, in the parameter's type as well, and a std below 0; the parameter is
    unchanged. Deviates beyond the type's range are infinite. */
RW_API rw_status rw_init_normal(rw_tensor *x, double mean, double std);

/**
 * Fills a parameter with uniform deviates in [lo, hi); lo equal to hi is a constant.
 * @return RW_ERR_ARGUMENT, which sticks, for bounds that are not finite, in the parameter's type as well, or fall, and
 *         for a width hi - lo that is no finite double; the parameter is unchanged.
 */
RW_API rw_status rw_init_uniform(rw_tensor *x, double lo, double hi);

/** Fills a parameter with one value, which is finite in the parameter's type: else RW_ERR_ARGUMENT, which sticks. */
RW_API rw_status rw_init_constant(rw_tensor *x, double value);

/**
 * The gradient of a parameter, or of a tape value marked with rw_require_grad(), as a tensor to read or to use. That of
 * a parameter has the type that it was made with, that of a value the value's.
 * @return owned by whoever owns x; NULL when x has no gradient (yet).
 */
RW_API rw_tensor *rw_gradient(rw_tensor *x);

/** Sets every parameter's gradient to zero. Costs nothing, as the next backward writes instead of adding, but for
    gradients whose address rw_tensor_data() has given: there zeros are stored, on CUDA by the stream. A device that
    fails at that is an error that sticks. */
RW_API void rw_zero_grad(rw_context *ctx);

/**
 * Scales all gradients of the context so that their joint 2-norm is at most max_norm. The sum of squares is taken in
 * double, in order of creation, in blocks fixed by the shapes: its bits do not depend on the number of threads.
 * A gradient that is clear is zero and stays clear. On CUDA it is only queued, unless the norm is asked for.
 * Where the norm is NaN or infinite, all elements of all gradients that are not clear become NaN, so that no step from
 * them looks like a good one; rw_clip_grad_norm_with() refuses instead. A squared norm above the range of double is
 * infinite. An infinite max_norm changes no gradient: the call returns the norm alone.
 * @param ret_norm receives the norm before scaling; may be NULL; untouched on failure.
 * @return RW_ERR_ARGUMENT for a max_norm that is not above zero, an error that is stuck in the context, RW_ERR_CHANGED
 *         for a gradient that a failed backward has left half-way, RW_ERR_MEMORY; RW_ERR_ARGUMENT as well for more than
 *         32,764 parameters. Then nothing has changed.
 */
RW_API rw_status rw_clip_grad_norm(rw_context *ctx, double max_norm, double *ret_norm);

/** What rw_clip_grad_norm() decides; zeroed options are its choice. */
typedef struct rw_clip_options {
    /** A norm that is NaN or infinite is RW_ERR_ARGUMENT, and no gradient changes. The call waits for the device. */
    bool error_if_nonfinite;
} rw_clip_options;

/** Like rw_clip_grad_norm(), with options; NULL is none. */
RW_API rw_status rw_clip_grad_norm_with(rw_context *ctx, double max_norm, const rw_clip_options *options,
                                        double *ret_norm);

#ifdef __cplusplus
}
#endif

#endif
