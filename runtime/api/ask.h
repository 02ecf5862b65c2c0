/* What the caller asks of a tape: values and gradients. */
#ifndef RW_API_ASK_H
#define RW_API_ASK_H

#include "plan/build.h"

/* REWIND_EAGER=1: runs the node that was just recorded. */
rw_status rw_run_eagerly(rw_tape *t, uint32_t node);

/* The loss as a value of the tape, when it is fit for backward; RW_NONE_ID after an error, which is recorded. */
uint32_t rw_loss_check(rw_tape *t, rw_tensor *loss, const char *what);

#endif
