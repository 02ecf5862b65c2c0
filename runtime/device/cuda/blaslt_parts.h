/*
 * A product in parts that fit into cuBLASLt's types.
 *
 * cuBLASLt takes extents and strides in 64 bits and the batch count in 32. It does not document which of its kernels
 * count in 32 bits, so no part has an extent, a stride or a matrix with more elements than an int32 holds. This is the
 * one place that decides: blaslt.c describes nothing to the library but what rw_blaslt_part_product() returns.
 *
 * c is cut along its rows, its columns and the batch. k is never cut, since parts of a sum would be rounded in between:
 * a product whose k or whose strides are too large has no parts, and runs in the caller's own kernels.
 */
#ifndef RW_DEVICE_CUDA_BLASLT_PARTS_H
#define RW_DEVICE_CUDA_BLASLT_PARTS_H

#include "device/cuda/blaslt_product.h"

#include <rewind/types.h>

/* Maximum batch count of a part: some of cuBLASLt's algorithms refuse more. */
#define RW_BLASLT_MAX_BATCH 65535

/* How much of c a call computes: rows and columns of `batch` products. */
struct rw_blaslt_part {
    int64_t batch, rows, cols;
};

/*
 * Returns the parts of a product, as equal as their alignment allows. The last part along an axis may be smaller. A
 * product that fits is one part. Rows and columns are cut at multiples of 16 bytes of all operands.
 * @param max_count maximum of each extent and stride, and of the elements from the first to the last of a part's
 *                  operand.
 * @return false if the product has no parts within max_count.
 */
bool rw_blaslt_part_of(const struct rw_blaslt_product *p, int64_t max_count, struct rw_blaslt_part *ret_part);

/* Returns the product that computes a part. */
struct rw_blaslt_product rw_blaslt_part_product(const struct rw_blaslt_product *p, struct rw_blaslt_part part);

/* Returns the operands of the part that begins at these products of the batch, rows and columns. */
struct rw_blaslt_operands rw_blaslt_part_operands(const struct rw_blaslt_product *p, struct rw_blaslt_part begin,
                                                  const struct rw_blaslt_operands *whole);

#endif
