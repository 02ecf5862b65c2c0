/*
 * Public functions that table.c asks what they record: those that are no op of their name, but made of others, and ops
 * that no case of op_cases.h records.
 */
#ifndef RW_TESTS_TABLE_CALLS_H
#define RW_TESTS_TABLE_CALLS_H

#include <rewind/rewind.h>

/* Records one call on inputs of a type. NULL where it was refused. */
typedef rw_tensor *(*table_call_fn)(rw_tape *t, rw_dtype dtype);

struct table_call {
    const char *function, *torch; /* without rw_; as in torch_names.h, NULL where that says it */
    table_call_fn record;
};

extern const struct table_call table_calls[]; /* in the order of the alphabet; a NULL function behind the last */

#endif
