/* The execution loop over a plan's actions. */
#ifndef RW_RUN_EXECUTE_H
#define RW_RUN_EXECUTE_H

#include "run/run_state.h"

/* Queues the actions [from, to), and records its progress in r->reached and r->ran. Errors are recorded. */
rw_status rw_execute(struct rw_run *r, size_t from, size_t to);

/* For an observer that executes an action's node by itself, on its own memory: the kernel's arguments without a
   workspace. */
rw_kernel rw_execute_kernel(const struct rw_at *at);

#endif
