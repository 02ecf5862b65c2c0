/* The cells' definitions, for what records them along a sequence. */
#ifndef RW_OPS_RECURRENT_SEQUENCE_H
#define RW_OPS_RECURRENT_SEQUENCE_H

#include <rewind/op.h>
#include <rewind/recurrent.h>

extern const rw_op_def rw_op_lstm_cell, rw_op_gru_cell;

#endif
