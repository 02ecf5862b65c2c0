/**
 * rewind/conv.h - convolutions and pooling.
 *
 * Images are [n, c, h, w] outside, whatever their strides. Inside they lie channels last: a result is the permuted view
 * of a dense [n, h, w, c], element-wise ops on such an image keep that order, and an image that lies otherwise is
 * copied once for each op of this header that takes it. Messages of these ops show shapes as they lie: [n, h, w, c].
 *
 * All functions record on tape t and return a tensor owned by the tape, as those of rewind/ops.h; thread-safety is
 * theirs.
 */
#ifndef REWIND_CONV_H
#define REWIND_CONV_H

#include <rewind/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Of the two axes h and w. Zero means the default in brackets. */
typedef struct rw_conv2d_params {
    int stride[2];         ///< [1]
    int padding[2];        ///< zeros on either side, [0]
    int dilation[2];       ///< distance of the kernel's elements, [1]
    int output_padding[2]; ///< of a transposed one: how much larger its result is, less than stride or dilation, [0]
    int groups;            ///< channels are cut into so many parts, each with filters of its own, [1]
} rw_conv2d_params;

/**
 * Cross-correlation, PyTorch's conv2d: x [n, c, h, w], weight [oc, c / groups, kh, kw], bias [oc] or RW_NONE, all of
 * one floating-point type -> [n, oc, oh, ow] with oh = (h + 2 padding - dilation (kh - 1) - 1) / stride + 1, rounded
 * down. One rounding for each element; float32 and 16 bits are summed in float32. params may be NULL. Keeps x for the
 * weight's gradient, nothing else. Twice differentiable and more.
 * Errors: RW_ERR_SHAPE for ranks, channels and kernels that do not fit, RW_ERR_ARGUMENT for a negative number among
 * params, RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_conv2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                               const rw_conv2d_params *params);
#define rw_conv2d(...) rw_conv2d_at(RW_HERE, __VA_ARGS__)

/**
 * The transpose of rw_conv2d() as a linear map, PyTorch's conv_transpose2d: x [n, c, h, w], weight [c, oc / groups, kh,
 * kw], bias [oc] or RW_NONE -> [n, oc, oh, ow] with oh = (h - 1) stride - 2 padding + dilation (kh - 1) +
 * output_padding + 1. The bias is added to the rounded sum. Else as rw_conv2d().
 */
RW_API rw_tensor *rw_conv_transpose2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                         const rw_conv2d_params *params);
#define rw_conv_transpose2d(...) rw_conv_transpose2d_at(RW_HERE, __VA_ARGS__)

/** Of the two axes h and w. Zero means the default in brackets. */
typedef struct rw_pool2d_params {
    int kernel[2];        ///< extents of a window, 1 or more; there is no default
    int stride[2];        ///< [the kernel]
    int padding[2];       ///< on either side, at most half of the kernel, [0]
    bool exclude_padding; ///< an average is over the elements of the image alone: not count_include_pad, [false]
    int dilation[2];      ///< of a maximum: distance of a window's elements, [1]
    bool ceil_mode;       ///< extents are rounded up: a window that reaches behind the image counts, [false]
    int divisor_override; ///< of an average: what each window's sum is divided by, [its elements]
} rw_pool2d_params;

/**
 * The largest of each window, PyTorch's max_pool2d: x [n, c, h, w] -> [n, c, oh, ow] with oh = (h + 2 padding -
 * dilation (kernel - 1) - 1) / stride + 1, rounded down, or up with ceil_mode, but to no window that begins behind the
 * image; where that is the first, it may be larger than the image with its padding. Padding is never the largest, NaN
 * always is; of equal ones the first. Minus infinity, without a gradient, where a dilated window has nothing but
 * padding. Keeps one byte for each element of the result, its place within the window, and neither x nor the result. A
 * gradient is added up by input element, in the order of the windows.
 * Errors: RW_ERR_SHAPE, also for an image without elements; RW_ERR_DTYPE; RW_ERR_ARGUMENT also for a window of more
 * than 256 elements, a divisor, and without params.
 */
RW_API rw_tensor *rw_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params);
#define rw_max_pool2d(...) rw_max_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * The mean of each window, PyTorch's avg_pool2d; padding counts as zeros, what a last window of ceil_mode reaches
 * behind that does not count. Shapes and errors as rw_max_pool2d(), and RW_ERR_ARGUMENT for a dilation. Keeps nothing.
 */
RW_API rw_tensor *rw_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params);
#define rw_avg_pool2d(...) rw_avg_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * The mean of each channel, PyTorch's adaptive_avg_pool2d to 1: x [n, c, h, w] -> [n, c, 1, 1]. Keeps nothing.
 * Errors: RW_ERR_SHAPE, also for an image without elements; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_global_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_global_avg_pool2d(...) rw_global_avg_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * Means of windows that cut an image as evenly as they can, PyTorch's adaptive_avg_pool2d: x [n, c, h, w] ->
 * [n, c, height, width]; window i of `height` goes from row i h / height, rounded down, to (i + 1) h / height, rounded
 * up, so neighbours may share rows. An extent of 0 stands for x's own (PyTorch's None). To 1 x 1 it is
 * rw_global_avg_pool2d(). Keeps nothing.
 * Errors: RW_ERR_ARGUMENT for an extent below 0; RW_ERR_SHAPE for an image without elements; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_adaptive_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width);
#define rw_adaptive_avg_pool2d(...) rw_adaptive_avg_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * The largest of the same windows, PyTorch's adaptive_max_pool2d, else as rw_max_pool2d(). Where a window may have more
 * than 256 elements, first along w, then along h: a byte for each of those too.
 * Errors: as above; RW_ERR_ARGUMENT also where a window reaches over more than 256 elements of an axis.
 */
RW_API rw_tensor *rw_adaptive_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width);
#define rw_adaptive_max_pool2d(...) rw_adaptive_max_pool2d_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
