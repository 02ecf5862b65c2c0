/* Values and gradients that the caller requests of a tape. */
#ifndef RW_API_EVAL_AND_BACKWARD_H
#define RW_API_EVAL_AND_BACKWARD_H

#include "record/tape.h"

/* REWIND_EAGER=1: runs the node that was just recorded. */
rw_status rw_run_eagerly(rw_tape *t, uint32_t node);

#endif
