/*
 * Checks that ops make of their inputs and attributes. Every message names the argument and prints both sides: "weight:
 * expected shape [5, 3], got [5, 4]". Text is formatted only after a failure.
 *
 * `name` is the argument's name in the public header. NULL selects the name that rw_op_input_name() has for that input,
 * which suits ops whose inputs have fixed positions.
 */
#ifndef RW_OPS_COMMON_EXPECT_H
#define RW_OPS_COMMON_EXPECT_H

#include "base/shape_text.h"

#include <rewind/op.h>

/* "NAME: expected FORM, got ...": prints the input's shape for RW_ERR_SHAPE and its type for RW_ERR_DTYPE. Returns the
   status. */
rw_status rw_unexpected(rw_op_call *call, rw_status status, int i, const char *name, const char *form, ...)
    RW_PRINTF(5, 6);

/* "NAME: expected FORM, got 3": for an integer attribute. */
rw_status rw_unexpected_int(rw_op_call *call, rw_status status, const char *name, int64_t got, const char *form, ...)
    RW_PRINTF(5, 6);
rw_status rw_unexpected_real(rw_op_call *call, const char *name, double got, const char *form, ...) RW_PRINTF(4, 5);

/* "NAME: expected dtype f32 or bf16, got i32": for an attribute that is a type. */
rw_status rw_unexpected_dtype(rw_op_call *call, const char *name, int64_t got, const char *form);

rw_status rw_unexpected_shape(rw_op_call *call, int i, const char *name, rw_shape want);
rw_status rw_unexpected_shape_of(rw_op_call *call, int i, const char *name, int like, const char *like_name);

static inline rw_status rw_expect_shape(rw_op_call *call, int i, const char *name, rw_shape want)
{
    const bool equal = rw_shape_equal(rw_layout_shape(call->in[i].layout), want);
    return equal ? RW_OK : rw_unexpected_shape(call, i, name, want);
}

/* Checks that input i has the shape of input `like`. */
static inline rw_status rw_expect_shape_of(rw_op_call *call, int i, const char *name, int like, const char *like_name)
{
    const bool equal = rw_shape_equal(rw_layout_shape(call->in[i].layout), rw_layout_shape(call->in[like].layout));
    return equal ? RW_OK : rw_unexpected_shape_of(call, i, name, like, like_name);
}

/* Checks the rank of input i; the form names the axes: "[batch, heads, seq, d]". */
static inline rw_status rw_expect_rank(rw_op_call *call, int i, const char *name, int rank, const char *form)
{
    return call->in[i].layout->rank == rank ? RW_OK : rw_unexpected(call, RW_ERR_SHAPE, i, name, "%s", form);
}

/* Checks that there are min to max inputs: "expected x, weight and optionally bias, got 4 inputs". */
rw_status rw_expect_inputs(rw_op_call *call, int min, int max, const char *form);

rw_status rw_expect_float(rw_op_call *call, int i, const char *name);
rw_status rw_expect_dtype(rw_op_call *call, int i, const char *name, rw_dtype dtype);

/* Checks that input i has the type of input `like`. */
rw_status rw_expect_dtype_of(rw_op_call *call, int i, const char *name, int like, const char *like_name);

/*
 * For functions that record several ops: reports a wrong operand before the first op is recorded: "nll_loss(target):
 * expected i32, got f32". x has passed rw_operand_check(). rw_refuse_operand_at() returns false.
 */
bool rw_refuse_operand_at(rw_site at, rw_tape *t, rw_status status, const char *what, const char *name,
                          const rw_tensor *x, const char *form, ...) RW_PRINTF(7, 8);
bool rw_operand_has_shape_at(rw_site at, rw_tape *t, const char *what, const char *name, const rw_tensor *x,
                             rw_shape want);

#endif
