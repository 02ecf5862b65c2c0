/* Random tapes of an op of any size and cost (bench/models/synthetic_op.h), which are planned, but not run. */
#ifndef RW_TESTS_RANDOM_TAPE_H
#define RW_TESTS_RANDOM_TAPE_H

#include "models/synthetic_op.h"

struct dice {
    uint64_t state;
};
int64_t below(struct dice *d, int64_t n);

/* The loss of a tape of so many nodes (at most 63): each reads the one before and possibly another of the last four. */
rw_tensor *random_tape(rw_tape *t, rw_tensor *p, int nodes, uint64_t seed);
rw_tensor *random_tape_of(rw_tape *t, rw_tensor *p, int nodes, uint64_t seed, int64_t times); /* factor on the sizes */

#endif
