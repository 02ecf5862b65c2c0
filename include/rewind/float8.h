/**
 * rewind/float8.h - floating-point codes of 8 bits, with a scale for each tensor or block.
 *
 * A value is a code times its scale. What is quantised is rounded to nearest even; what is too large becomes the
 * largest code, infinities too, and what is no number the code 0x7f. Codes and scales are the same on every device.
 * Neither function has a gradient: rw_straight_through(t, rw_dequantize(...), x) is one.
 *
 * Codes change values, so no policy ever makes them: what a program keeps in 8 bits it records.
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

/** Which elements of x, as rows of its last axis, share a scale. Blocks at the edges are what is left. */
typedef enum rw_scaling {
    RW_SCALING_TENSOR,  ///< all of them
    RW_SCALING_1X128,   ///< 128 of a row: activations and gradients in DeepSeek-V3 (arXiv 2412.19437, 3.3.2)
    RW_SCALING_128X128, ///< 128 rows of 128: its weights
    RW_SCALING_MX,      ///< 32 of a row, and scales of RW_F8_E8M0: MXFP8
    RW_SCALING_COUNT
} rw_scaling;

/**
 * How to quantise. Zeros are E4M3 with one scale for the tensor.
 *
 * A scale is 1 / s, and the code of x is that of the float32 product x s. s = largest code / amax, divided in float32;
 * 1 where amax is 0 or not finite, the largest float32 where it would be infinite. amax: the largest absolute value; no
 * number where there is one that is none. Of RW_SCALING_MX the scale is 2^(e - 127), where e is the exponent field of
 * amax times float32(1 / largest code), and one more where its fraction is not zero (TransformerEngine's rule, which
 * saturates nothing); amax 0 gives 0, infinite 0xfe, no number 0xff.
 */
typedef struct rw_quantize_params {
    rw_dtype dtype; ///< RW_F8_E4M3 [where it is zero] or RW_F8_E5M2
    rw_scaling scaling;
    bool power_of_two; ///< s rounded down to a power of two: decoding to 16 bits then rounds nothing that 16 bits hold
} rw_quantize_params;

/**
 * x [..., n] of float32, bfloat16 or float16 as codes of x's shape.
 * @param scale      s itself, float32 of one element, for RW_SCALING_TENSOR (delayed scaling); RW_NONE: from x's amax
 * @param params     NULL: zeros
 * @param ret_scale  receives the scales that rw_dequantize() takes, float32 or RW_F8_E8M0: a scalar;
 *                   [..., ceil(n / 128)] or [..., ceil(n / 32)]; or [ceil(rows / 128), ceil(n / 128)]
 * @param ret_amax   receives the amax of each, float32; may be NULL
 * @return the codes, owned by the tape; NULL on an error, which sticks
 */
RW_API rw_tensor *rw_quantize_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *scale,
                                 const rw_quantize_params *params, rw_tensor **ret_scale, rw_tensor **ret_amax);
#define rw_quantize(...) rw_quantize_at(RW_HERE, __VA_ARGS__)

/**
 * Codes times scales as rw_quantize() gave them, multiplied in float32 and rounded once to the type: float32, bfloat16
 * or float16. Every finite code is exact in all of them.
 */
RW_API rw_tensor *rw_dequantize_at(rw_site at, rw_tape *t, rw_tensor *codes, rw_tensor *scale, rw_scaling scaling,
                                   rw_dtype dtype);
#define rw_dequantize(...) rw_dequantize_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
