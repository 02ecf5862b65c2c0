/* Checks and defaults that ops and recording share. */
#ifndef RW_RECORD_OP_CHECKS_H
#define RW_RECORD_OP_CHECKS_H

#include <rewind/op.h>

/* Bytes of all operands, each read or written once: the default cost of an op. */
double rw_cost_bytes(const rw_op_call *call);

/* Refuses a shape among an op's attributes that no tensor can have. */
rw_status rw_op_shape(rw_op_call *call, rw_shape shape);

/* The shape with zeros after its rank, so that equal attributes have equal bytes. */
static inline rw_shape rw_shape_clean(rw_shape shape)
{
    for (int i = shape.rank < 0 ? 0 : shape.rank; i < RW_MAX_RANK; i++) shape.dim[i] = 0;
    return shape;
}

/* False, with an error that names `what` and the argument, if x cannot be an operand on t. Records nothing. */
bool rw_operand_check(rw_site at, const rw_tape *t, const rw_tensor *x, const char *what, const char *argument);

/* NULL, with the error of a call without a tape: its inputs may lead to a context for it, if their number is valid. */
rw_tensor *rw_refuse_no_tape(rw_site at, const char *what, rw_tensor *const *in, size_t n);

/* What a message expects instead of a NULL argument of that name: "where the result is stored" for ret_*. */
const char *rw_expected_of_null(const char *argument);

#endif
