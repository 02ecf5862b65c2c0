/**
 * rewind/tensor.h - tensors: parameters and buffers of a context, inputs and results of a tape.
 *
 * Ownership. A parameter or buffer is owned by its context and valid as long as the context. Every other tensor is
 * owned by its tape and valid until rw_tape_reset(). The caller never frees a tensor.
 *
 * Stale and misplaced tensors. A call that is given a wrong tensor returns RW_ERR_ARGUMENT. The message says what it
 * is: a tensor of another tape or context, from before rw_tape_reset(), of a destroyed tape or average, or a gradient
 * where a value is needed. Detection of stale tensors is limited, because their memory is reused:
 *   - From before a reset: detected in the next four steps. In a step with more than 4,096 values: detected in the
 *     next step, until that has recorded 8,192 values more than preceded the tensor.
 *   - Of a destroyed tape: detected for its first 20,480 values, until a dozen more tapes have been destroyed. Of
 *     destroyed averages: detected until a dozen more tapes have been destroyed.
 *   - After that, the tensor may be mistaken for another one. A tensor of a freed context is never detected.
 * Query functions (shape, name, ...) accept stale tensors and return what they return for NULL.
 *
 * @param x the tensor
 * @param name, dtype, shape as for rw_param()
 * Thread-safety: as for the context.
 */
#ifndef REWIND_TENSOR_H
#define REWIND_TENSOR_H

#include <rewind/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Creates a trainable parameter, filled with zeros, with a gradient of the same shape that rw_backward() adds to. The
 * gradient is float64 for a float64 parameter and float32 for any other type, so sums over uses and micro-batches are
 * float32 even if the parameter has 16 bits.
 * @param name unique in the context, copied; used in messages and in saved files, for which it must be UTF-8.
 * @param dtype a floating-point type
 * @param shape any shape
 * @return the parameter, owned by ctx; NULL for an invalid name, type or shape, or if memory is exhausted
 *         (rw_error_message()). RW_ERR_MEMORY also if parameters and buffers of the context would take more than 2^60
 *         bytes, with at least four per element.
 */
RW_API rw_tensor *rw_param_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape);
#define rw_param(...) rw_param_at(RW_HERE, __VA_ARGS__)

/** Options of rw_param_with(). All zero: as rw_param(). */
typedef struct rw_param_options {
    /** Type of the gradient: RW_F32 (zero) or the parameter's own type. A 16-bit gradient takes half the memory and
        rounds every sum. A float64 parameter always has a float64 gradient. */
    rw_dtype grad_dtype;
} rw_param_options;

/** As rw_param(), with options, which may be NULL. @return as rw_param(); NULL, with RW_ERR_DTYPE, also for a gradient
    type that is not allowed. */
RW_API rw_tensor *rw_param_with_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape,
                                   const rw_param_options *options);
#define rw_param_with(...) rw_param_with_at(RW_HERE, __VA_ARGS__)

/**
 * Creates a buffer: as rw_param(), but without a gradient. For running statistics, counters and tables; rw_write() and
 * rw_assign() write it.
 * @param dtype any type
 * @return as rw_param()
 */
RW_API rw_tensor *rw_buffer_at(rw_site at, rw_context *ctx, const char *name, rw_dtype dtype, rw_shape shape);
#define rw_buffer(...) rw_buffer_at(RW_HERE, __VA_ARGS__)

/** Returns parameter or buffer `index` of the context, in order of creation; NULL past the end. */
RW_API rw_tensor *rw_param_get(const rw_context *ctx, size_t index);

/** Returns the parameter or buffer of that name, or NULL. */
RW_API rw_tensor *rw_param_find(const rw_context *ctx, const char *name);

/** Returns the name given to rw_param(), rw_buffer() or ckpt_name(). The average of parameter P is "average of P"; the
    gradient of a parameter has the parameter's name. "" if there is none, for NULL and for a stale tensor; never NULL.
 */
RW_API const char *rw_tensor_name(const rw_tensor *x);

/** Returns the shape; a scalar for NULL and for a stale tensor. */
RW_API rw_shape rw_tensor_shape(const rw_tensor *x);

/** Returns the element type; RW_F32 for NULL, the type it had for a stale tensor. */
RW_API rw_dtype rw_tensor_dtype(const rw_tensor *x);

/** Returns the size in bytes; 0 for NULL and for a stale tensor. */
RW_API size_t rw_tensor_bytes(const rw_tensor *x);

/** True for a parameter, and for a value through which a gradient flows to a parameter or to a value marked by
    rw_require_grad(). False for results of rw_detach(), of ops without a gradient (argmax) and of ops recorded under
    rw_no_grad_begin(), for NULL, and for a stale tensor. */
RW_API bool rw_tensor_requires_grad(const rw_tensor *x);

/**
 * Copies data into a parameter, a buffer or the gradient of a parameter.
 *
 * A tape that has read x in an op, and would have to replay from it, returns RW_ERR_MODIFIED afterwards. A gradient
 * that is written between rw_scaler_unscale() and rw_scaler_update() counts as unscaled.
 * @param data  dense, row-major, in the tensor's type: host memory, or on CUDA device memory whose contents are
 *              complete. It may change after the call.
 * @param bytes must be rw_tensor_bytes(x).
 * @return RW_OK; RW_ERR_ARGUMENT for another kind of tensor, NULL or a wrong size; RW_ERR_DEVICE.
 */
RW_API rw_status rw_write(rw_tensor *x, const void *data, size_t bytes);

/**
 * Returns the address of the elements of a parameter, a buffer or the gradient of a parameter, dense and row-major; on
 * CUDA in device memory. The address is constant for the lifetime of the context. Only gradients may be written through
 * it; write parameters and buffers with rw_write().
 *
 * A gradient may be written through its address before an optimizer's step, for example to all-reduce it. On CUDA,
 * queue that work on rw_context_stream(). One call is enough: from then on
 *   - the gradient counts as written in every step, even if no backward reaches the parameter, so optimizers update
 *     the parameter in every step;
 *   - rw_zero_grad() stores zeros there;
 *   - a graph with rw_record_update_inside() keeps the gradient's memory, and its step has to reach the parameter.
 * The call itself counts as a change of the gradient. Later writes through the address, between forward and backward of
 * a tape that has read the gradient in an op, are not detected.
 * @return the address, owned by the context. NULL on an error, which is sticky: RW_ERR_MODIFIED for a gradient that a
 *         failed backward left incomplete; RW_ERR_MEMORY.
 */
RW_API void *rw_tensor_data(rw_tensor *x);

/**
 * Fills a parameter with normal deviates (Box-Muller, from the context's generator), in element order. Deviates beyond
 * the type's range become infinite.
 * @return RW_OK; RW_ERR_ARGUMENT, which is sticky, for a negative std, and for a mean or std that is not finite, also
 *         after rounding to the parameter's type. Then the parameter is unchanged.
 */
RW_API rw_status rw_init_normal(rw_tensor *x, double mean, double std);

/**
 * Fills a parameter with uniform deviates in [lo, hi), each rounded to its type: so the lowest may be lo rounded down,
 * and none is hi. lo equal to hi gives a constant.
 * @return RW_OK; RW_ERR_ARGUMENT, which is sticky, for lo above hi, for bounds that are not finite, also after rounding
 *         to the parameter's type, and if hi - lo overflows double. Then the parameter is unchanged.
 */
RW_API rw_status rw_init_uniform(rw_tensor *x, double lo, double hi);

/** Fills a parameter with one value. @return RW_OK; RW_ERR_ARGUMENT, which is sticky, if it is above the largest number
    of the parameter's type, before rounding, or not finite. */
RW_API rw_status rw_init_constant(rw_tensor *x, double value);

/**
 * Returns the gradient of a parameter, or of a tape value marked with rw_require_grad(), as a tensor to read or to use
 * as an operand. The gradient of a parameter has the type chosen at its creation, that of a value the value's type.
 * @return owned by the owner of x; NULL if x has no gradient (yet).
 */
RW_API rw_tensor *rw_gradient(rw_tensor *x);

/** Clears the gradients of all parameters, which then count as zero. It costs nothing: the next backward writes instead
    of adding. Exception: if rw_tensor_data() has returned a gradient's address, zeros are stored there, on CUDA queued
    on the stream. A device failure is a sticky error. */
RW_API void rw_zero_grad(rw_context *ctx);

/**
 * Clips gradients by norm: scales all gradients of the context so that their joint 2-norm is at most max_norm. On CUDA
 * this is only queued, unless ret_norm is given.
 *
 * The sum of squares is computed in double, in order of creation, in blocks fixed by the shapes, so its bits do not
 * depend on the number of threads. A clear gradient counts as zero and stays clear. If the norm is NaN or infinite, all
 * elements of all gradients that are not clear become NaN, so that an update with them cannot look valid;
 * rw_clip_grad_norm_with() can refuse instead. A squared norm beyond double is infinite. An infinite max_norm changes
 * no gradient and returns the norm only.
 * @param ret_norm receives the norm before scaling; may be NULL; untouched on failure.
 * @return RW_OK; RW_ERR_ARGUMENT for a max_norm that is not above zero and for more than 32,764 parameters;
 *         RW_ERR_MODIFIED for a gradient that a failed backward left incomplete, and for gradients of
 *         rw_scaler_backward() before rw_scaler_unscale(); RW_ERR_MEMORY; or the context's sticky error. On failure
 *         nothing has changed.
 */
RW_API rw_status rw_clip_grad_norm(rw_context *ctx, double max_norm, double *ret_norm);

/** Options of rw_clip_grad_norm_with(). All zero: as rw_clip_grad_norm(). */
typedef struct rw_clip_grad_norm_params {
    /** If the norm is NaN or infinite, return RW_ERR_ARGUMENT and change no gradient. The call waits for the device. */
    bool error_if_nonfinite;
} rw_clip_grad_norm_params;

/**
 * As rw_clip_grad_norm(), with options.
 * @param max_norm, ret_norm as for rw_clip_grad_norm()
 * @param params may be NULL
 * @return as rw_clip_grad_norm()
 */
RW_API rw_status rw_clip_grad_norm_with(rw_context *ctx, double max_norm, const rw_clip_grad_norm_params *params,
                                        double *ret_norm);

#ifdef __cplusplus
}
#endif

#endif
