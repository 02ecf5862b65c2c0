/**
 * rewind/quantized.h - frozen weights in four and eight bits, as QLoRA keeps those of a base model.
 *
 *     rw_quantized w;
 *     rw_quantized_create(ctx, "h.0.fc", RW_NF4, RW_SHAPE(out, in), &w);
 *     rw_quantized_write(&w, RW_F32, weights, bytes);                  // or rw_load() what was saved
 *     y = rw_linear_quantized(t, x, &w, RW_NONE);
 *
 * Such a weight takes no gradient and no optimizer: it is a buffer of the context, which rw_save() saves and rw_load()
 * loads, and which counts as any buffer's bytes do. Gradients flow through the product to x and bias. The product
 * decodes a panel of the weight at a time, forward and again backward: the whole is never in memory.
 *
 * The buffer is of RW_I32, words of four bytes, the first byte the lowest. Of [out, in], n = out * in numbers, it holds
 *
 *     RW_NF4   codes     4 bits each, row by row, the first of two in the upper half of a byte
 *              scales    one byte for each block of 64, padded to whole words
 *              mean      of the scales before they were bytes, float32
 *              largest   distance of a scale from the mean, float32, for each 256 blocks
 *     RW_INT8  codes     one byte each, two's complement, padded to whole words
 *              largest   magnitude, float32, for each row
 *
 * that is n / 2 + 4 ceil(n / 256) + 4 + 4 ceil(n / 16384) bytes, 4.127 bits a weight, and 4 ceil(n / 4) + 4 out bytes.
 * Sources: Dettmers, Pagnoni, Holtzman, Zettlemoyer, "QLoRA", arXiv 2305.14314; Dettmers, Lewis, Belkada, Zettlemoyer,
 * "LLM.int8()", arXiv 2208.07339. A number that is decoded is, in float32, each operation rounded, from the left:
 *
 *     RW_NF4   level(code) * scale,  scale = level8(byte) * largest + mean
 *     RW_INT8  code * largest * (1 / 127)
 *
 * It is then rounded to the type of x. Thread-safety: as for the context.
 */
#ifndef REWIND_QUANTIZED_H
#define REWIND_QUANTIZED_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** How a weight is kept. */
typedef enum rw_quantized_kind {
    RW_NF4,  ///< four bits, by blocks of 64 with scales that are quantized themselves; `in` is a multiple of 64
    RW_INT8, ///< eight bits, by rows
    RW_QUANTIZED_KIND_COUNT
} rw_quantized_kind;

/** A weight in codes. Made by rw_quantized_create(); a plain value that may be copied. */
typedef struct rw_quantized {
    rw_quantized_kind kind;
    int64_t out, in;  ///< its shape is [out, in]
    rw_tensor *words; ///< the buffer
} rw_quantized;

/** Bytes that a weight takes: the formula above. 0 for what rw_quantized_create() refuses. */
RW_API size_t rw_quantized_bytes(rw_quantized_kind kind, rw_shape shape);

/**
 * Makes the buffer of a weight, all zero: it decodes to zeros.
 * @param name  of the buffer, as for rw_buffer().
 * @param shape [out, in]
 * @param ret_weight receives it; the buffer belongs to ctx. Untouched on failure.
 * @return RW_ERR_ARGUMENT for an unknown kind or a name that is none or taken, RW_ERR_SHAPE for another rank or for an
 *         `in` that blocks do not divide, RW_ERR_MEMORY, or an error that is stuck in the context.
 */
RW_API rw_status rw_quantized_create_at(rw_site at, rw_context *ctx, const char *name, rw_quantized_kind kind,
                                        rw_shape shape, rw_quantized *ret_weight);
#define rw_quantized_create(...) rw_quantized_create_at(RW_HERE, __VA_ARGS__)

/**
 * Fills a weight's buffer with the codes of out * in numbers, to the nearest, of two that are as near to the lower
 * (RW_INT8: to the even). Codes are those of bitsandbytes 0.50.2: of RW_NF4 always, of its scales where the mean, which
 * is taken in float64 here, has the same bits.
 * @param data host memory, dense, row-major, of RW_F32, RW_BF16 or RW_F16; RW_F64 is rounded to float32 first.
 * @return RW_ERR_ARGUMENT for a wrong number of bytes, or a number that is not finite: its place is named, and nothing
 *         has changed; RW_ERR_DTYPE, RW_ERR_MEMORY, RW_ERR_DEVICE.
 */
RW_API rw_status rw_quantized_write(const rw_quantized *weight, rw_dtype dtype, const void *data, size_t bytes);

/**
 * The numbers that the codes stand for, before they are rounded to the type of an x, as float32 [out, in] in host
 * memory: to merge what was trained beside a weight into it, say.
 * @param bytes must be 4 out in.
 * @return RW_ERR_ARGUMENT, RW_ERR_MEMORY, RW_ERR_DEVICE; data is untouched then.
 */
RW_API rw_status rw_quantized_read(const rw_quantized *weight, float *data, size_t bytes);

/**
 * x weight^T + bias, as rw_linear(): x [..., in] -> [..., out]; bias [out] of x's type, or RW_NONE. The weight is
 * rounded to the type of x, products are summed as rw_linear()'s are and rounded once. The gradient of x decodes the
 * weight again. Workspace: a panel of at most 1 MiB (4 MiB on CUDA), or of 64 of the weight's rows or columns where
 * they take more, beside what the product of that panel takes.
 */
RW_API rw_tensor *rw_linear_quantized_at(rw_site at, rw_tape *t, rw_tensor *x, const rw_quantized *weight,
                                         rw_tensor *bias);
#define rw_linear_quantized(...) rw_linear_quantized_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
