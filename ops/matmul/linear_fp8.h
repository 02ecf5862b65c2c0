/* linear with FP8 operands, under a precision recipe. */
#ifndef RW_OPS_MATMUL_LINEAR_FP8_H
#define RW_OPS_MATMUL_LINEAR_FP8_H

#include <rewind/op.h>
#include <rewind/precision.h>

rw_tensor *rw_linear_of_codes_at(rw_site at, rw_tape *t, const rw_recipe *recipe, rw_tensor *x, rw_tensor *weight,
                                 rw_tensor *bias);

#endif
