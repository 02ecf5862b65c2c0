/* Products of matrices. */
#ifndef RW_OPS_MATMUL_MATMUL_H
#define RW_OPS_MATMUL_MATMUL_H

#include <rewind/op.h>

extern const rw_op_def rw_op_matmul;
extern const rw_op_def rw_op_linear;

/* [..., c] as a matrix of rows of c; x itself when it is one. */
rw_tensor *rw_matrix_of_rows(rw_tape *t, rw_tensor *x);

#endif
