/* Cutting a product into tiles: a function of its shape alone, so that bits do not depend on the number of threads. */
#ifndef RW_OPS_MATMUL_H
#define RW_OPS_MATMUL_H

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"

#include <rewind/op.h>

/* A product of `batch` pairs of matrices; matrix i of A begins at a + a_at(i) elements. */
struct rw_product {
    struct rw_gemm one; /* of the first pair; a, b, c are moved per pair and tile */
    rw_dtype dtype;
    int64_t batch;
    const rw_layout *a, *b, *c; /* leading axes; NULL when batch is 1 */
    const void *bias;           /* n elements added to every row, or NULL */
};

rw_status rw_product_run(const struct rw_product *p, const rw_kernel *k);

#endif
