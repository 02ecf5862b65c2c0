/*
 * Checks of tensor handles that callers pass. A caller keeps addresses; the memory there says who owns the tensor. A
 * value belongs to its tape exactly if the tape has it at its number:
 *
 *     from before rw_tape_reset()  the tape starts its next step in the memory that was unused for longest, so at the
 *                                  handle's number there is another value, or none
 *     of a node that was undone    its number is past the tape's last value
 *     of a destroyed tape          RW_VALUE_GONE; the context keeps the memory for a while
 *     of a destroyed average       the same, with the number RW_NONE_ID; a tape that has used it is marked (bereft)
 *
 * Memory is reused eventually: a handle that is older than that is mistaken for the tensor that is there now.
 */
#ifndef RW_RECORD_HANDLE_CHECK_H
#define RW_RECORD_HANDLE_CHECK_H

#include "record/tape.h"

/* Why x is no operand of a node on t, as in "got one that belongs to another context"; NULL when it is one. */
const char *rw_operand_fault(const rw_tape *t, const rw_tensor *x);

/* The same for a call that needs a value of the tape itself, not a parameter or gradient. */
const char *rw_value_fault(const rw_tape *t, const rw_tensor *x);

/* The same for reading on t, or with t NULL on the tensor's own tape. */
const char *rw_readable_fault(const rw_tape *t, const rw_tensor *x);

/* "x \"weight\": expected a tensor of this tape, got one that ...", with the name where x has one. Returns text. */
#define RW_FAULT_TEXT 640
const char *rw_fault_text(char *text, const rw_tensor *x, const char *argument, const char *expected,
                          const char *fault);

#endif
