/*
 * cuBLASLt for the CUDA kernels: matrix products, pinned.
 *
 * The library is opened when the first context is made: a program that never asks for CUDA does not load it, and starts
 * where it is not installed. An algorithm is asked for once per signature and kept for the life of the context (law 6):
 * parts of k are added up in their order or not cut, alignments follow from layouts and never from addresses, and the
 * workspace is ours.
 */
#ifndef RW_DEVICE_CUDA_BLASLT_H
#define RW_DEVICE_CUDA_BLASLT_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * c[i] [m, n] = a[i] [m, k] b[i] [k, n] + bias [n] (+ sum[i], which lies like c and may be c). One stride of a and of b
 * is 1; the rows of c are c_row apart, n in a batch. With gelu, c is gelu's tanh form of that, taken before it is
 * rounded, and aux, which lies like c, is that itself. All bytes count: no padding. It is rounded once; but not with a
 * bias and a sum in 16 bits where a row of a, b or c is no multiple of 16 bytes: who asks takes one of them apart.
 *
 * Of codes of 8 bits the library asks for more (cuBLAS, cublasLtMatmul(), FP8): compute capability 8.9, k contiguous in
 * both, all extents, rows and addresses in whole 16 bytes, not two of E5M2. It has no algorithm for others.
 */
struct rw_blaslt_product {
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, c_row;
    int64_t batch, a_batch, b_batch; /* strides between elements of the batch, 0: the same for all */
    int32_t a_align, b_align, c_align, bias_align; /* of all the addresses, in bytes; that of the workspace is 256 */
    int32_t dtype; /* of a, b and bias */
    int32_t bias;  /* 0 or 1 */
    int32_t tf32;  /* float32 through the tensor cores' 10-bit mantissas */
    int32_t adds;  /* 0 or 1: there is a sum */
    int32_t gelu;  /* 0 or 1 */
    int32_t to;    /* of c and the sum: dtype, or RW_F32; of codes RW_BF16 or RW_F32 */
    int32_t b_codes; /* 0, or: a and b are 8-bit codes with a scale each, a of dtype, b of this; bias is of RW_BF16 */
    int32_t unused;
};

/* Where they are. NULL for what the product does not have. */
struct rw_blaslt_operands {
    const void *a, *b, *bias, *sum;
    const float *a_scale, *b_scale; /* of codes, on the device: what they are multiplied by */
    void *c, *aux;
};

rw_status rw_blaslt_create(struct rw_blaslt **ret, struct rw_cuda *cuda);
void rw_blaslt_destroy(struct rw_blaslt **lt);

/*
 * Pins the algorithm of a product. *ret_has is false when the library has none for it: then it never will.
 * @param ret_workspace bytes that a run takes, aligned to 256.
 */
rw_status rw_blaslt_query(struct rw_blaslt *lt, const struct rw_blaslt_product *p, bool *ret_has,
                          size_t *ret_workspace);

/* Queues the product on the context's stream. RW_ERR_DEVICE when the algorithm is refused: none else is tried. */
rw_status rw_blaslt_run(struct rw_blaslt *lt, const struct rw_blaslt_product *p, const struct rw_blaslt_operands *x,
                        void *workspace, size_t workspace_bytes);

#ifdef __cplusplus
}
#endif

#endif
