/* The walk over a plan's actions. */
#ifndef RW_RUN_WALK_H
#define RW_RUN_WALK_H

#include "run/run.h"

/* Queues the actions [from, to), and notes in r->reached and r->ran how far it came. Errors are recorded. */
rw_status rw_walk(struct rw_run *r, size_t from, size_t to);

/* What an observer calls to run the node of an action by itself, on memory of its own: all but a workspace. */
rw_kernel rw_walk_kernel(const struct rw_at *at);

#endif
