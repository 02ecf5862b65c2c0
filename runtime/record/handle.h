/*
 * Which tensors a call may be given. A caller keeps addresses; what lies there says whose it is, and a value is one of
 * its tape exactly when the tape has it at its number:
 *
 *     of before rw_tape_reset()   the tape begins its next step in memory that has rested longest (rw_tape_reset()), so
 *                                 at the number that the handle bears lies another one, or none
 *     of a node that was undone   its number is past the tape's last value
 *     of a destroyed tape         RW_VALUE_GONE; the context keeps the memory for a while
 *     of a destroyed average      the same, and RW_NONE_ID for a number; a tape that has used it is marked (bereft)
 *
 * Memory is used again in the end: a handle that is older than the memory rested is taken for what lies there now.
 */
#ifndef RW_RECORD_HANDLE_H
#define RW_RECORD_HANDLE_H

#include "record/tape.h"

/* What is wrong with x as an operand of a node on t, as in "x is of another tape"; NULL when nothing is. */
const char *rw_operand_fault(const rw_tape *t, const rw_tensor *x);

/* The same where a value of the tape itself is needed: no parameter, no gradient. */
const char *rw_value_fault(const rw_tape *t, const rw_tensor *x);

/* The same for what can be read on t, or with t NULL on the tensor's own tape. */
const char *rw_readable_fault(const rw_tape *t, const rw_tensor *x);

#endif
