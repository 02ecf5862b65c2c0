/**
 * rewind/conv.h - convolutions and pooling.
 *
 * Arguments and results have the shape [n, c, h, w], with any strides. Internally images are stored channels-last: a
 * result is a permuted view of a dense [n, h, w, c], and element-wise ops keep that order. An image with another layout
 * is copied once for each op of this header that reads it. Error messages of these ops print shapes as stored: [n, h,
 * w, c].
 *
 * All functions record on tape t and return a tensor that the tape owns, as those of rewind/ops.h, with the same
 * thread-safety.
 */
#ifndef REWIND_CONV_H
#define REWIND_CONV_H

#include <rewind/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Members with two elements are for h and w. Zero means the default in brackets. */
typedef struct rw_conv2d_params {
    int stride[2];         ///< [1]
    int padding[2];        ///< zeros on either side, [0]
    int dilation[2];       ///< distance between elements of the kernel, [1]
    int output_padding[2]; ///< transposed only, not used by rw_conv2d(): added to the result's extent; less than stride
                           ///< or dilation, [0]
    int groups;            ///< number of parts of the channels, each with its own filters, [1]
} rw_conv2d_params;

/**
 * Cross-correlation, PyTorch's conv2d. x [n, c, h, w], weight [oc, c / groups, kh, kw], bias [oc] or RW_NONE, all of
 * one floating-point type -> [n, oc, oh, ow] with oh = (h + 2 padding - dilation (kh - 1) - 1) / stride + 1, rounded
 * down. params may be NULL. float32 and 16-bit types are summed in float32; each element is rounded once. Backward
 * keeps only x, for the gradient of the weight. Differentiable any number of times.
 * Errors: RW_ERR_SHAPE for ranks, channels and kernels that do not fit, RW_ERR_ARGUMENT for a negative number in
 *         params, RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_conv2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                               const rw_conv2d_params *params);
#define rw_conv2d(...) rw_conv2d_at(RW_HERE, __VA_ARGS__)

/**
 * The transpose of rw_conv2d() as a linear map, PyTorch's conv_transpose2d. x [n, c, h, w], weight [c, oc / groups, kh,
 * kw], bias [oc] or RW_NONE -> [n, oc, oh, ow] with oh = (h - 1) stride - 2 padding + dilation (kh - 1) +
 * output_padding + 1. The bias is added to the rounded sum. Otherwise as rw_conv2d().
 * @param params may be NULL
 */
RW_API rw_tensor *rw_conv_transpose2d_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *weight, rw_tensor *bias,
                                         const rw_conv2d_params *params);
#define rw_conv_transpose2d(...) rw_conv_transpose2d_at(RW_HERE, __VA_ARGS__)

/** Members with two elements are for h and w. Zero means the default in brackets. */
typedef struct rw_pool2d_params {
    int kernel[2];        ///< extents of a window, at least 1; no default
    int stride[2];        ///< [the kernel]
    int padding[2];       ///< on either side, at most half of the kernel, [0]
    bool exclude_padding; ///< average over elements of the image only: count_include_pad=False, [false]
    int dilation[2];      ///< max pooling only: distance between elements of a window, [1]
    bool ceil_mode;       ///< round extents up: count a window that extends beyond the image, [false]
    int divisor_override; ///< average pooling only: divisor of each window's sum, [its number of elements]
} rw_pool2d_params;

/**
 * Maximum of each window, PyTorch's max_pool2d: x [n, c, h, w] -> [n, c, oh, ow] with oh = (h + 2 padding - dilation
 * (kernel - 1) - 1) / stride + 1, rounded down, or up with ceil_mode.
 *
 * ceil_mode adds no window that starts after the image; if the first window would, it may be larger than the padded
 * image. Padding is never the maximum, NaN always is, and of equal elements the first one is. A dilated window that
 * contains only padding gives minus infinity, without a gradient. Backward keeps one byte per element of the result,
 * the position within the window, and neither x nor the result. The gradient of an input element is summed in the order
 * of the windows.
 * Errors: RW_ERR_SHAPE, also for an image without elements; RW_ERR_DTYPE; RW_ERR_ARGUMENT also for a window of more
 *         than 256 elements, for a divisor, and without params.
 */
RW_API rw_tensor *rw_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params);
#define rw_max_pool2d(...) rw_max_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * Mean of each window, PyTorch's avg_pool2d. Padding counts as zeros; the part of a last window that ceil_mode adds
 * beyond the padding does not count. Shapes and errors as rw_max_pool2d(), and RW_ERR_ARGUMENT for a dilation. Backward
 * keeps no value.
 * @param x, params as for rw_max_pool2d()
 */
RW_API rw_tensor *rw_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_pool2d_params *params);
#define rw_avg_pool2d(...) rw_avg_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * Mean of each channel, PyTorch's adaptive_avg_pool2d to 1: x [n, c, h, w] -> [n, c, 1, 1]. Backward keeps no value.
 * Errors: RW_ERR_SHAPE, also for an image without elements; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_global_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_global_avg_pool2d(...) rw_global_avg_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * Mean over a grid of nearly equal windows, PyTorch's adaptive_avg_pool2d: x [n, c, h, w] -> [n, c, height, width].
 * Window i of `height` goes from row i h / height, rounded down, to (i + 1) h / height, rounded up, so neighboring
 * windows may share rows. An extent of 0 means x's own (PyTorch's None). For 1 x 1 it is rw_global_avg_pool2d().
 * Backward keeps no value.
 * Errors: RW_ERR_ARGUMENT for a negative extent; RW_ERR_SHAPE for an image without elements; RW_ERR_DTYPE.
 */
RW_API rw_tensor *rw_adaptive_avg_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width);
#define rw_adaptive_avg_pool2d(...) rw_adaptive_avg_pool2d_at(RW_HERE, __VA_ARGS__)

/**
 * Maximum of the same windows, PyTorch's adaptive_max_pool2d, otherwise as rw_max_pool2d(). If a window may have more
 * than 256 elements, it computes maxima along w, then along h, and backward keeps one byte per element of both results.
 * @param x, height, width as for rw_adaptive_avg_pool2d()
 * Errors: as above; RW_ERR_ARGUMENT also for a window that spans more than 256 elements of an axis.
 */
RW_API rw_tensor *rw_adaptive_max_pool2d_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t height, int64_t width);
#define rw_adaptive_max_pool2d(...) rw_adaptive_max_pool2d_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
