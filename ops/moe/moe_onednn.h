/*
 * Products by expert on the CPU with oneDNN: what the kernels share with the checks.
 *
 * The number of rows of an expert is known only at run time, but a primitive's extents are fixed when a plan is made.
 * So there are primitives for several numbers of rows. An expert's rows are cut into these sizes, and the last cut is
 * padded. Each element of a row's result is one sum over the depth, whatever cut contains the row, so it does not
 * depend on other rows; tests/ops/moe.c checks this for every number of rows. A sum of outer products is the sum over
 * its cuts, which depend on the number of rows alone.
 *
 * Products that the processor's matrix unit supports are passed to it from here (moe_amx.h). 16-bit types that the
 * processor does not multiply faster than float32 are widened: an expert's matrix one tile of columns at a time, rows
 * when they are copied into a cut.
 */
#ifndef RW_OPS_MOE_ONEDNN_H
#define RW_OPS_MOE_ONEDNN_H

#include "ops/matmul/gemm_descriptor.h"
#include "ops/moe/moe_linear_operands.h"

/* For planning: bytes of workspace; 0 if the plain loops compute the product; SIZE_MAX if the library cannot be
   queried. */
size_t rw_moe_library_workspace(const rw_op_call *call, const struct moe_product *m, bool outer);

/* Runs the product if the workspace was planned for the library; otherwise *ret_ran is false, and the plain loops must
   run. Rows of no expert are not written. */
rw_status rw_moe_library_linear(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                                bool *ret_ran);

rw_status rw_moe_library_outer(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                               rw_moe_put_fn put, bool *ret_ran);

#endif
