/* Random ops. */
#ifndef RW_OPS_RANDOM_H
#define RW_OPS_RANDOM_H

#include <rewind/op.h>

extern const rw_op_def rw_op_dropout;

#endif
