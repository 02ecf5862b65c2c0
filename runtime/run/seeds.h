/* What backward begins with at the roots of a step: gradients that are given to the run, or ones. */
#ifndef RW_RUN_SEEDS_H
#define RW_RUN_SEEDS_H

#include "run/run.h"

/* Ones for the roots that are given nothing. Errors are recorded. */
rw_status rw_seeds_prepare(struct rw_run *r);

/* Where the seed of a root lies, after that. */
void *rw_seed_of(const struct rw_run *r, uint32_t root);

#endif
