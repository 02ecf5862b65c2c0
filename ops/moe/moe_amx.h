/*
 * Products by expert on the CPU with the matrix unit of a processor (Intel AMX, ops/matmul/gemm_amx.h): for bfloat16.
 *
 * The unit accepts any number of rows, so exactly the rows of an expert are multiplied. Rows that belong to tokens are
 * gathered while they are packed.
 *
 *     rows times a matrix:  packed once   [depth, columns] of the expert's matrix    packed in turn   128 rows
 *     outer sums:           packed once   [rows, outs] of dy                         packed in turn   [rows, ins] of x
 *
 * Each element of a row's result is one chain of sums over the depth, independently of the expert's other rows. For a
 * sum of outer products the rows are cut every OUTER_ROWS, and the parts are added in order, in float32.
 */
#ifndef RW_OPS_MOE_AMX_H
#define RW_OPS_MOE_AMX_H

#include "ops/moe/moe_linear_operands.h"

/* Does the unit compute this product? Decided by shapes and the processor alone. */
bool rw_moe_amx_takes(const struct moe_product *m, rw_dtype dtype, bool outer);

/* Bytes of workspace of one thread. */
size_t rw_moe_amx_workspace(const struct moe_product *m, bool outer);

void rw_moe_amx_linear(const rw_kernel *k, const struct moe_product *m);
void rw_moe_amx_outer(const rw_kernel *k, const struct moe_product *m, rw_moe_put_fn put);

#endif
