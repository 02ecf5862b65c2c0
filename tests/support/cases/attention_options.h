/* Declarations that the cases and the golden rows of attention with options share. */
#ifndef RW_TESTS_ATTENTION_OPTIONS_H
#define RW_TESTS_ATTENTION_OPTIONS_H

#include "support/op_cases.h"

/* Bits of c->axes. */
#define WITH_CAP 1u
#define WITH_SLOPES 2u
#define WITH_DOCUMENTS 4u
#define WITH_SETS 8u /* own documents for each row of the batch */
#define WITH_MASK 16u
#define WITH_WIDE_MASK 32u /* a mask of the accumulation type */
#define WITH_SINKS 64u
#define WITH_LSE 128u /* the log-sum-exp is added to the result */
#define WITH_TRUTHS 256u /* a boolean mask [batch, 1, seq, kv_seq], in which a row has no keys */

rw_tensor *op_build_attention_options(rw_tape *t, rw_tensor **x, const struct op_case *c);
rw_tensor *op_build_attention_merge(rw_tape *t, rw_tensor **x, const struct op_case *c);
void op_count_attention_options(struct op_case *c);
void op_count_attention_merge(struct op_case *c);

#endif
