/* What is said of an action that failed. */
#ifndef RW_RUN_FAILURE_H
#define RW_RUN_FAILURE_H

#include "run/run.h"

/* Records why. in: the n_in inputs of its node where the host can look at them, else NULL: where a value is out of
   range it says what those of integers hold. Returns status, but for one that no kernel may return. */
rw_status rw_action_failed(const struct rw_run *r, size_t action, const rw_view *in, int n_in, rw_status status);

#endif
