/*
 * Public functions for which docs_ops_table.c determines the ops that they record: those composed of other ops, and ops
 * that no case of op_cases.h records.
 */
#ifndef RW_TESTS_DOCS_OPS_TABLE_CALLS_H
#define RW_TESTS_DOCS_OPS_TABLE_CALLS_H

#include <rewind/rewind.h>

/* Records one call on inputs of a type. NULL if it was refused. */
typedef rw_tensor *(*table_call_fn)(rw_tape *t, rw_dtype dtype);

struct table_call {
    const char *function, *torch; /* without rw_; torch: PyTorch's name, NULL for an op, which has it in its source */
    table_call_fn record;
};

extern const struct table_call table_calls[]; /* in alphabetical order; terminated by a NULL function */

#endif
