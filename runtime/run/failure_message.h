/* Error messages for failed actions. */
#ifndef RW_RUN_FAILURE_MESSAGE_H
#define RW_RUN_FAILURE_MESSAGE_H

#include "run/run_state.h"

/* Records the error of an action. in: the n_in inputs of its node if the host can read them, else NULL; for an index
   out of range the message has the range of the integer inputs. Returns status, or RW_ERR_ARGUMENT for a number that
   a kernel must not return. */
rw_status rw_action_failed(const struct rw_run *r, size_t action, const rw_view *in, int n_in, rw_status status);

#endif
