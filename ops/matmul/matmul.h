/* Products of matrices. */
#ifndef RW_OPS_MATMUL_MATMUL_H
#define RW_OPS_MATMUL_MATMUL_H

#include <rewind/op.h>

extern const rw_op_def rw_op_matmul;
extern const rw_op_def rw_op_linear;

/* sum + a b, rounded once, over the sum when it dies: what differentiation makes of a product that it would add. */
rw_tensor *rw_matmul_add_at(rw_site at, rw_tape *t, rw_tensor *sum, rw_tensor *a, rw_tensor *b);

/* [..., c] as a matrix of rows of c; x itself when it is one. */
rw_tensor *rw_matrix_of_rows(rw_tape *t, rw_tensor *x);

#endif
