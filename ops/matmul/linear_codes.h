/* linear in 8-bit codes, as a recipe says. See linear_codes.c. */
#ifndef RW_OPS_MATMUL_LINEAR_CODES_H
#define RW_OPS_MATMUL_LINEAR_CODES_H

#include <rewind/op.h>
#include <rewind/precision.h>

/* Products whose factors are codes with scales, decoded in the product itself. See codes_product.h. */
extern const rw_op_def rw_op_linear_of_codes; /* a b^T (+ bias), [..., n] in bfloat16 */
extern const rw_op_def rw_op_matmul_of_codes; /* a b (+ sum), a matrix in bfloat16, or in the sum's type */

rw_tensor *rw_linear_of_codes_at(rw_site at, rw_tape *t, const rw_recipe *recipe, rw_tensor *x, rw_tensor *weight,
                                 rw_tensor *bias);

#endif
