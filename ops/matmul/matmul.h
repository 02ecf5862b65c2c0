/* Matrix products for other ops: internal forms of linear and matmul. */
#ifndef RW_OPS_MATMUL_MATMUL_H
#define RW_OPS_MATMUL_MATMUL_H

#include <rewind/op.h>

extern const rw_op_def rw_op_matmul;
extern const rw_op_def rw_op_linear;

/*
 * rw_linear() of x, weight and an optional bias, into columns of a wider matrix with rows c_row apart: for kernels that
 * have a part of a weight at a time. The call and the kernel need inputs, the output's type and address, workspace,
 * device and threads.
 */
size_t rw_linear_panel_workspace_cuda(const rw_op_call *call, int64_t c_row);
rw_status rw_linear_panel_cuda(const rw_kernel *k, int64_t c_row);

/* sum + a b, rounded once; written over the sum if this is its last use. */
rw_tensor *rw_matmul_add_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *a, rw_tensor *b);

/*
 * Sets a b as the gradient of input i: reduced over the axes along which the input was broadcast, or in the input's
 * shape. In the latter case the node that computes the product also adds it to the gradient's sum so far.
 */
rw_status rw_grad_set_product(rw_grad_call *g, int i, rw_tensor *a, rw_tensor *b);

/* [..., c] as a matrix with rows of c; x itself if it is a matrix. */
rw_tensor *rw_matrix_of_rows(rw_tape *t, rw_tensor *x);

#endif
