/*
 * How a convolution is computed on the CPU. It is a matrix product if that is faster (conv_im2col.c), else oneDNN's
 * convolution if it has fast code (conv_onednn.c). 16-bit types that the processor does not multiply faster are
 * computed in float32. All other convolutions use the plain loops of this library (conv_plain_loops_tmpl.h). A dx may
 * be computed as a forward convolution (conv_rotated.c). The work is cut into units by its shape alone and one thread
 * computes a unit, so results do not depend on the number of threads.
 *
 * In a build without oneDNN all convolutions of one group are products, except float64 and a dx with a stride above 1
 * of more than one tap. These, and all with several groups, use the plain loops.
 */
#ifndef RW_OPS_CONV_RUN_H
#define RW_OPS_CONV_RUN_H

#include "ops/conv/conv.h"
#include "ops/matmul/gemm_descriptor.h"

/* The operands x, y: x and weight of conv2d, dy and weight of conv2d_data, x and dy of conv2d_weight. */
struct conv_operands {
    const void *x, *y;
    const rw_view *piece; /* the concatenation inputs, if x is NULL and not yet concatenated */
    int64_t pieces;       /* number of concatenation inputs; 0: x is whole */
    const void *bias; /* [oc], or NULL */
    const void *sum;  /* conv2d_weight: the addend, or NULL */
    void *to;
};

/* Runs it with oneDNN. *ret_done is false, and nothing has happened, if the plain loops must compute it. */
rw_status rw_conv_run_library(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, const struct gemm_loops *loops, bool *ret_done);

/* Is it a gradient for which oneDNN (2.6.3) gives wrong results, or reads beyond its operands? */
bool rw_conv_library_errs(const struct rw_conv *c, enum rw_conv_kind kind);

/* Is it computed as a matrix product? And the run; loops: of this instruction set. */
bool rw_conv_is_product(const struct rw_conv *c, enum rw_conv_kind kind);
size_t rw_conv_product_workspace(const rw_op_call *call, const struct rw_conv *c, enum rw_conv_kind kind, bool third);
rw_status rw_conv_run_product(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, const struct gemm_loops *loops);

/* Is it a product that generates x' in strips? Test this first. The inputs of a virtually concatenated x are read in
   place. */
bool rw_conv_is_in_strips(const struct rw_conv *c, enum rw_conv_kind kind);
size_t rw_conv_strips_workspace(const rw_op_call *call, const struct rw_conv *c);
rw_status rw_conv_run_strips(const rw_kernel *k, const struct rw_conv *c, const struct conv_operands *o,
                             const struct gemm_loops *loops);

/* Does a row of this number of pixels, in float32, exceed the sets of the L1 cache that its addresses map to? */
bool rw_conv_row_is_too_long(int64_t pixels, int64_t channels);

/* Is dx computed as a forward convolution of dy with the rotated weight? And that convolution; and its weight. */
bool rw_conv_rotates(const struct rw_conv *c, enum rw_conv_kind kind);
struct rw_conv rw_conv_rotated(const struct rw_conv *c);
size_t rw_conv_rotated_bytes(const struct rw_conv *c);
void rw_conv_rotate(const struct rw_conv *c, const void *weight, int threads, void *to);

/* Concatenates the inputs of x: some pixels, in memory order, or all; and the number of bytes of the result. */
size_t rw_conv_packed_bytes(const struct rw_conv *c, int64_t pixels);
void rw_conv_pack(const struct rw_conv *c, const struct conv_operands *o, int64_t first, int64_t pixels, void *to);
void rw_conv_pack_all(const struct rw_conv *c, const struct conv_operands *o, int threads, void *to);

/* The same, widened to float32; and for any n elements. */
void rw_conv_widen(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                   int64_t first, int64_t pixels, float *to);
void rw_conv_widen_whole(const struct rw_conv *c, const struct conv_operands *o, const struct gemm_loops *loops,
                         int threads, float *to);
void rw_conv_widen_all(const struct gemm_loops *loops, rw_dtype dtype, const void *from, int64_t n, int threads,
                       float *to);

/* From this number of multiplications on, starting threads pays. */
#define RW_CONV_PARALLEL_FROM 524288.0

#endif
