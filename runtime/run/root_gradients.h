/* Seeds: the gradients with which backward starts at the roots of a step. They are passed to the run, or are ones. */
#ifndef RW_RUN_ROOT_GRADIENTS_H
#define RW_RUN_ROOT_GRADIENTS_H

#include "run/run_state.h"

/* Fills in ones for roots without a given seed. Errors are recorded. */
rw_status rw_root_gradients_prepare(struct rw_run *r);

/* Address of the seed of a root, after that. */
void *rw_seed_of(const struct rw_run *r, uint32_t root);

#endif
