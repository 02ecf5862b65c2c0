/* The names of the ops that come with the library, as ops: policies know them. */
#ifndef RW_OPS_COMMON_NAMES_H
#define RW_OPS_COMMON_NAMES_H

#include <stdbool.h>

/* True for an op that a function of rewind/ops.h records; not for what only gradient rules record. */
bool rw_op_is_builtin(const char *name);

#endif
