/* What the cases and the golden rows of ops along a sequence share: see recurrent.c. */
#ifndef RW_TESTS_CASES_RECURRENT_H
#define RW_TESTS_CASES_RECURRENT_H

#include "support/op_cases.h"

/* Operands: x [b, l, c], weight [c, taps] and perhaps a bias [c]. */
rw_tensor *op_build_causal_conv1d(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_causal_conv1d(struct op_case *c);

#endif
