/* The matrix products that cuBLASLt computes: what a product is, and the operands of one call. */
#ifndef RW_DEVICE_CUDA_BLASLT_PRODUCT_H
#define RW_DEVICE_CUDA_BLASLT_PRODUCT_H

#include <stdint.h>

/*
 * c[i] [m, n] = a[i] [m, k] b[i] [k, n] + bias [n] (+ sum[i], which has the layout of c and may be c). One stride of a
 * and one of b is 1; the rows of c are c_row apart, n in a batch. With gelu, c is the tanh form of gelu of that,
 * computed before rounding, and aux, with the layout of c, is that itself. Keys are compared by bytes: there is no
 * padding. The result is rounded once, except with both a bias and a sum in 16 bits if a row of a, b or c is not a
 * multiple of 16 bytes; the caller then adds one of the two separately.
 *
 * For 8-bit data the library has more requirements (cuBLAS, cublasLtMatmul(), FP8): compute capability 8.9, k
 * contiguous in both, all extents, rows and addresses in multiples of 16 bytes, not two factors of E5M2. It has no
 * algorithm for other products.
 */
struct rw_blaslt_product {
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t batch, a_batch, b_batch; /* strides between elements of the batch, 0: the same for all */
    int32_t a_align, b_align, c_align, bias_align; /* of all addresses, in bytes; that of the workspace is 256 */
    int32_t dtype; /* of a, b and bias */
    int32_t bias;  /* 0 or 1 */
    int32_t tf32;  /* float32 by tensor cores, with mantissas of 10 bits */
    int32_t adds;  /* 0 or 1: there is a sum */
    int32_t gelu;  /* 0 or 1 */
    int32_t to;    /* of c and the sum: dtype, or RW_F32; for 8-bit data RW_BF16 or RW_F32 */
    int32_t b_codes; /* 0, or: a and b are 8-bit data with a scale each, a of dtype, b of this type; bias is RW_BF16 */
    int32_t unused;
};

/* Addresses of the operands. NULL for those that the product does not have. */
struct rw_blaslt_operands {
    const void *a, *b, *bias, *sum;
    const float *a_scale, *b_scale; /* of 8-bit data, on the device: factors of a and b */
    void *c, *aux;
};

#endif
