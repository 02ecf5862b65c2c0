/*
 * How a convolution is carried out on the CPU: by oneDNN where it has fast code, as a matrix product where that is
 * faster (conv_product.c), as its convolution else (conv_onednn.c), types of 16 bits in float32 where the processor
 * multiplies them no faster; all others by the library's own loops (conv_own_tmpl.h). A dx may be made as forward is
 * (conv_rotated.c). Always the work is cut into units by its shape alone and one thread computes a unit, so the bits do
 * not depend on the number of threads.
 */
#ifndef RW_OPS_CONV_RUN_H
#define RW_OPS_CONV_RUN_H

#include "ops/conv/conv.h"
#include "ops/matmul/gemm.h"

/* x and weight of conv2d, dy and weight of conv2d_data, x and dy of conv2d_weight: x, y. */
struct conv_operands {
    const void *x, *y;
    const rw_view *piece; /* of x, where that is not whole yet and NULL */
    int64_t pieces;       /* how many; 0: x is whole */
    const void *bias; /* [oc], or NULL */
    const void *sum;  /* of conv2d_weight: what is added, or NULL */
    void *to;
};

/* Carries it out by the library. *ret_done is false, and nothing has happened, where the own loops are to do it. */
rw_status rw_conv_run_library(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, const struct gemm_loops *loops, bool *ret_done);

/* Is it a gradient that the library (2.6.3) gets wrong, or reads beyond its operands for? */
bool rw_conv_library_errs(const struct rw_conv *c, enum rw_conv_kind kind);

/* Is it carried out as a matrix product? And that; loops: of this instruction set. */
bool rw_conv_is_product(const struct rw_conv *c, enum rw_conv_kind kind);
size_t rw_conv_product_workspace(const rw_op_call *call, const struct rw_conv *c, enum rw_conv_kind kind, bool third);
rw_status rw_conv_run_product(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, const struct gemm_loops *loops);

/* Is it one whose x is taken in strips? That is asked first. An x in pieces is taken as they lie. */
bool rw_conv_is_in_strips(const struct rw_conv *c, enum rw_conv_kind kind);
size_t rw_conv_strips_workspace(const rw_op_call *call, const struct rw_conv *c);
rw_status rw_conv_run_strips(const rw_kernel *k, const struct rw_conv *c, const struct conv_operands *o,
                             const struct gemm_loops *loops);

/* Do the places that a row of so many pixels, in float32, may take in the first cache hold less than the row? */
bool rw_conv_row_is_too_long(int64_t pixels, int64_t channels);

/* Is dx made as forward is, of dy by the weight turned half round? That convolution; and its weight. */
bool rw_conv_rotates(const struct rw_conv *c, enum rw_conv_kind kind);
struct rw_conv rw_conv_rotated(const struct rw_conv *c);
size_t rw_conv_rotated_bytes(const struct rw_conv *c);
void rw_conv_rotate(const struct rw_conv *c, const void *weight, int threads, void *to);

/* The pieces of x side by side: some pixels of it, in the order of memory, or all; and the bytes that these take. */
size_t rw_conv_packed_bytes(const struct rw_conv *c, int64_t pixels);
void rw_conv_pack(const struct rw_conv *c, const struct conv_operands *o, int64_t first, int64_t pixels, void *to);
void rw_conv_pack_all(const struct rw_conv *c, const struct conv_operands *o, int threads, void *to);

/* The same, widened; and any n numbers. */
void rw_conv_widen(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                   int64_t first, int64_t pixels, float *to);
void rw_conv_widen_whole(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                         int threads, float *to);
void rw_conv_widen_all(const struct gemm_loops *loops, rw_dtype dtype, const void *from, int64_t n, int threads,
                       float *to);

/* From this many multiplications on, starting threads pays. */
#define RW_CONV_PARALLEL_FROM 524288.0

#endif
