/* Declarations that the cases and the golden rows of ops along a sequence share. */
#ifndef RW_TESTS_CASES_RECURRENT_H
#define RW_TESTS_CASES_RECURRENT_H

#include "support/op_cases.h"

/* Operands: x [b, l, c], weight [c, taps] and optionally a bias [c]. */
rw_tensor *op_build_causal_conv1d(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_causal_conv1d(struct op_case *c);

/* A step of an LSTM or a GRU if x is [n, in], a sequence if it is [length, n, in]. Operands: x, h, for an LSTM c, and
   the weights [G h, in + h + 2]: those of x, those of h and both biases. The results of a step are concatenated; those
   of an LSTM's sequence are followed by the last states. c->value: a factor of the weights, 0: none. */
rw_tensor *op_build_lstm_layer(rw_tape *t, rw_tensor **x, const struct op_case *c);
rw_tensor *op_build_gru_layer(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_recurrent_layer(struct op_case *c);

/* ssd_scan. Operands: x [b, l, h, p], 16 dt [b, l, h], b and c [b, l, 2, g, n], and for each head a and its states [h,
   1 + b p n]. The result is followed by the last state in one row. c->axis: the chunk. */
rw_tensor *op_build_ssd_scan(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_ssd_scan(struct op_case *c);

#endif
