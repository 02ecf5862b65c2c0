/* Products of matrices. */
#ifndef RW_OPS_MATMUL_MATMUL_H
#define RW_OPS_MATMUL_MATMUL_H

#include <rewind/op.h>

extern const rw_op_def rw_op_matmul;
extern const rw_op_def rw_op_linear;

/*
 * What rw_linear() computes of x, weight and perhaps a bias, into columns of a wider matrix whose rows are c_row apart:
 * for kernels that have a part of a weight at a time. The call and the kernel need inputs, an output's type and
 * address, workspace, device and threads.
 */
size_t rw_linear_panel_workspace_cuda(const rw_op_call *call, int64_t c_row);
rw_status rw_linear_panel_cuda(const rw_kernel *k, int64_t c_row);

/* sum + a b, rounded once, over the sum when it dies. */
rw_tensor *rw_matmul_add_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *a, rw_tensor *b);

/*
 * Hands over a b as the gradient of input i: summed over what the input was broadcast along, or in the input's shape,
 * and then added to its sum so far by the node that makes it.
 */
rw_status rw_grad_set_product(rw_grad_call *g, int i, rw_tensor *a, rw_tensor *b);

/* [..., c] as a matrix of rows of c; x itself when it is one. */
rw_tensor *rw_matrix_of_rows(rw_tape *t, rw_tensor *x);

#endif
