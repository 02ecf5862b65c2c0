/*
 * Products by expert on the CPU by oneDNN: what the kernels share with the checks.
 *
 * How many rows an expert has is known when it runs, and a primitive's extents when a plan is made. So there are
 * primitives of some numbers of rows, and an expert's rows are cut into these, the last cut filled up. Each
 * element of a row's result is one sum over the depth, in whatever cut the row lies: its bits do not depend on its
 * company, which tests/ops/moe.c holds for every number of rows. A sum of outer products is one of the sums of its
 * cuts, which follow from the number of rows alone.
 *
 * What the processor's matrix unit takes goes to it from here (moe_amx.h). Types of 16 bits that the processor
 * multiplies no faster than float32 are widened: an expert's matrix a tile of columns at a time, rows when they are
 * copied into a cut.
 */
#ifndef RW_OPS_MOE_ONEDNN_H
#define RW_OPS_MOE_ONEDNN_H

#include "ops/matmul/gemm.h"
#include "ops/moe/moe_product.h"

/* For planning: bytes of workspace; 0 where the own loops take it; SIZE_MAX when the library can't be asked. */
size_t rw_moe_library_workspace(const rw_op_call *call, const struct moe_product *m, bool outer);

/* Runs it where the workspace is for it: *ret_ran is false where the own loops have to. Rows of no expert are left. */
rw_status rw_moe_library_linear(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                                bool *ret_ran);

rw_status rw_moe_library_outer(const rw_kernel *k, const struct moe_product *m, const struct gemm_loops *loops,
                               rw_moe_put_fn put, bool *ret_ran);

#endif
