/**
 * rewind/quantized.h - frozen weights quantized to four or eight bits, as the base model in QLoRA.
 *
 *     rw_quantized w;
 *     rw_quantized_create(ctx, "h.0.fc", RW_NF4, RW_SHAPE(out, in), &w);
 *     rw_quantized_write(&w, RW_F32, weights, bytes);                  // or rw_load() of saved weights
 *     y = rw_linear_quantized(t, x, &w, RW_NONE);
 *
 * Such a weight has no gradient and no optimizer state: it is a buffer of the context, which rw_save() saves and
 * rw_load() loads, and its bytes count as those of a buffer. Gradients flow through the product to x and bias. The
 * product dequantizes a part of the weight at a time, in forward and again in backward: the whole weight is never in
 * memory.
 *
 * The buffer is of RW_I32, words of four bytes, the first byte the lowest. For [out, in], n = out * in numbers, it
 * holds
 *
 *     RW_NF4   values    4 bits each, row by row, the first of two in the upper half of a byte
 *              scales    one byte for each block of 64, padded to whole words
 *              mean      of the scales before they were quantized, float32
 *              largest   distance of a scale from the mean, float32, for each 256 blocks
 *     RW_INT8  values    one byte each, two's complement, padded to whole words
 *              largest   magnitude, float32, for each row
 *
 * These are n / 2 + 4 ceil(n / 256) + 4 + 4 ceil(n / 16384) bytes, 4.127 bits per weight, and 4 ceil(n / 4) + 4 out
 * bytes. Sources: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA", arXiv 2305.14314; Dettmers, Lewis, Belkada,
 * Zettlemoyer, "LLM.int8()", arXiv 2208.07339. A dequantized number is, in float32, each operation rounded, from the
 * left:
 *
 *     RW_NF4   level(value) * scale,  scale = level8(byte) * largest + mean
 *     RW_INT8  value * largest * (1 / 127)
 *
 * It is then rounded to the type of x.
 * Thread-safety: as for the context.
 */
#ifndef REWIND_QUANTIZED_H
#define REWIND_QUANTIZED_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Format of a quantized weight. */
typedef enum rw_quantized_kind {
    RW_NF4,  ///< four bits, in blocks of 64 with quantized scales; `in` is a multiple of 64
    RW_INT8, ///< eight bits, one scale per row
    RW_QUANTIZED_KIND_COUNT
} rw_quantized_kind;

/** A quantized weight, from rw_quantized_create(); a plain value that may be copied. */
typedef struct rw_quantized {
    rw_quantized_kind kind; ///< format of the numbers
    int64_t out, in;  ///< its shape is [out, in]
    rw_tensor *words; ///< the buffer
} rw_quantized;

/** Returns the bytes of a weight of this kind and shape: the formula above. 0 for arguments that rw_quantized_create()
    refuses. */
RW_API size_t rw_quantized_bytes(rw_quantized_kind kind, rw_shape shape);

/**
 * Creates the buffer of a weight, all zero: it dequantizes to zeros.
 * @param name of the buffer, as for rw_buffer()
 * @param shape [out, in]
 * @param ret_weight receives the weight; its buffer belongs to ctx. Untouched on failure.
 * @return RW_ERR_ARGUMENT for an unknown kind, an invalid name or one that is taken; RW_ERR_SHAPE for another rank or
 *         an `in` that is not a multiple of the block; RW_ERR_MEMORY; or an earlier error of the context.
 */
RW_API rw_status rw_quantized_create_at(rw_site at, rw_context *ctx, const char *name, rw_quantized_kind kind,
                                        rw_shape shape, rw_quantized *ret_weight);
#define rw_quantized_create(...) rw_quantized_create_at(RW_HERE, __VA_ARGS__)

/**
 * Quantizes out * in numbers into a weight's buffer, each to the nearest value; of two equally near ones to the lower
 * (RW_INT8: to the even one). The result equals that of bitsandbytes 0.50.2: values of RW_NF4 always, its scales if the
 * mean, which is computed in float64 here, has the same bits.
 * @param dtype type of the data
 * @param data host memory, dense, row-major, of RW_F32, RW_BF16 or RW_F16; RW_F64 is rounded to float32 first
 * @return RW_ERR_ARGUMENT for a wrong number of bytes, or a number that is not finite: the message gives its index, and
 *         nothing has changed; RW_ERR_DTYPE, RW_ERR_MEMORY, RW_ERR_DEVICE.
 */
RW_API rw_status rw_quantized_write(const rw_quantized *weight, rw_dtype dtype, const void *data, size_t bytes);

/**
 * Dequantizes a weight to float32 [out, in] in host memory, before rounding to the type of an x: for example to merge
 * trained adapters into it.
 * @param bytes must be 4 out in
 * @return RW_ERR_ARGUMENT, RW_ERR_MEMORY, RW_ERR_DEVICE; data is untouched then.
 */
RW_API rw_status rw_quantized_read(const rw_quantized *weight, float *data, size_t bytes);

/**
 * x weight^T + bias, as rw_linear(): x [..., in] -> [..., out]; bias [out] of x's type, or RW_NONE. The weight is
 * dequantized to the type of x; products are summed as in rw_linear() and rounded once. The gradient of x dequantizes
 * the weight again. Workspace on a CPU: at most 4 MiB of x, and per thread one tile of at most 384 rows or columns of
 * the weight. On CUDA: a panel of at most 4 MiB, or of 64 rows or columns if they take more, and the workspace of that
 * panel's product.
 */
RW_API rw_tensor *rw_linear_quantized_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantized *weight,
                                         rw_tensor *bias);
#define rw_linear_quantized(...) rw_linear_quantized_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
