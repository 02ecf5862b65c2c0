/* What the cases and the golden rows of attention with options share: see attention_options.c. */
#ifndef RW_TESTS_ATTENTION_OPTIONS_H
#define RW_TESTS_ATTENTION_OPTIONS_H

#include "support/op_cases.h"

/* Bits of c->axes. */
#define WITH_CAP 1u
#define WITH_SLOPES 2u
#define WITH_DOCUMENTS 4u
#define WITH_SETS 8u /* documents of their own for each row of the batch */
#define WITH_MASK 16u
#define WITH_WIDE_MASK 32u /* of the type of sums */
#define WITH_SINKS 64u
#define WITH_LSE 128u /* the log-sum-exp is added to the result */
#define WITH_TRUTHS 256u /* a mask [batch, 1, seq, kv_seq] of truth values, which leaves a row without keys */

rw_tensor *op_build_attention_with(rw_tape *t, rw_tensor **x, const struct op_case *c);
rw_tensor *op_build_attention_merge(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_attention_with(struct op_case *c);
void op_count_attention_merge(struct op_case *c);

#endif
