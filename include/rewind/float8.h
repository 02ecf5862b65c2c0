/**
 * rewind/float8.h - quantization to 8-bit floating point (FP8), with a scale per tensor or block.
 *
 * A value is its FP8 number times its scale. Quantization rounds to nearest even; values beyond the range, infinities
 * included, become the largest number, and NaN becomes 0x7f. Quantized values and scales are the same on every device.
 * Neither function has a gradient: use rw_straight_through(t, rw_dequantize(...), x).
 *
 * Quantization changes values, so no policy ever quantizes: the program records it.
 *
 * Call the names without _at: rw_quantize(t, x, ...) is rw_quantize_at(RW_HERE, t, x, ...).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_FLOAT8_H
#define REWIND_FLOAT8_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Which elements of x, as rows of its last axis, share a scale. Blocks at the edges may be smaller. */
typedef enum rw_scaling {
    RW_SCALING_TENSOR,  ///< all of them
    RW_SCALING_1X128,   ///< 128 of a row: activations and gradients in DeepSeek-V3 (arXiv 2412.19437, 3.3.2)
    RW_SCALING_128X128, ///< 128 rows by 128: its weights
    RW_SCALING_MX,      ///< 32 of a row, and scales of RW_F8_E8M0: MXFP8
    RW_SCALING_COUNT
} rw_scaling;

/**
 * How to quantize. All zero: E4M3 with one scale for the tensor.
 *
 * A scale is 1 / s. The quantized value of x is that of the float32 product x s, with s = largest FP8 number / amax,
 * divided in float32. The factor s is 1 if amax is 0 or not finite, and the largest float32 if it would be infinite.
 * amax is the largest absolute value, NaN if there is a NaN.
 *
 * With RW_SCALING_MX the scale is 2^(e - 127), where e is the exponent field of amax times float32(1 / largest FP8
 * number), plus one if its fraction is not zero (TransformerEngine's rule, under which nothing saturates). A product of
 * 2^-127 or less gives 0, an infinite amax 0xfe, NaN 0xff.
 */
typedef struct rw_quantize_params {
    rw_dtype dtype; ///< RW_F8_E4M3 [where it is zero] or RW_F8_E5M2
    rw_scaling scaling; ///< elements that share a scale
    bool power_of_two; ///< round s down to a power of two: dequantization to 16 bits is then exact in their range
} rw_quantize_params;

/**
 * Quantizes x [..., n] of float32, bfloat16 or float16 -> FP8 of x's shape.
 * @param scale s itself, float32 with one element, for RW_SCALING_TENSOR (delayed scaling); RW_NONE: from x's amax
 * @param params NULL: zeros
 * @param ret_scale receives the scales for rw_dequantize(), float32 or RW_F8_E8M0: a scalar; [..., ceil(n / 128)] or
 *         [..., ceil(n / 32)]; or [ceil(rows / 128), ceil(n / 128)]
 * @param ret_amax receives the amax of each scale, float32; may be NULL
 * @return the quantized tensor, owned by the tape; NULL on an error, which the context keeps
 */
RW_API rw_tensor *rw_quantize_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale,
                                 const rw_quantize_params *params, rw_tensor **ret_scale, rw_tensor **ret_amax);
#define rw_quantize(...) rw_quantize_at(RW_HERE, __VA_ARGS__)

/**
 * Dequantizes: FP8 numbers times the scales from rw_quantize(), multiplied in float32 and rounded once to the type:
 * float32, bfloat16 or float16. Every finite FP8 number is exact in all of them.
 * @param codes the FP8 numbers
 * @param scale, scaling the scales, and the scaling by which they were made
 * @param dtype type of the result
 */
RW_API rw_tensor *rw_dequantize_at(rw_site at, rw_tape *t, rw_tensor *codes, rw_tensor *scale, rw_scaling scaling,
                                   rw_dtype dtype);
#define rw_dequantize(...) rw_dequantize_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
