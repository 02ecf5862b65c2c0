/* Ops of tests that return their input, and tell how often they were executed and what they read. */
#ifndef RW_TESTS_RUN_TELLING_H
#define RW_TESTS_RUN_TELLING_H

#include <rewind/rewind.h>

#define TELLING_OPS 32
#define TELLING_ELEMENTS 96 /* maximum; so many float32 take more than the 256 bytes that are expected of a next step */

extern const rw_op_def telling_tell;  /* RW_OP_STATEFUL */
extern const rw_op_def telling_noise; /* RW_OP_NONDETERMINISTIC */

/* By the number that was given to telling_apply(): executions, and the elements that the last one read. */
extern int telling_runs[TELLING_OPS];
extern float telling_read[TELLING_OPS][TELLING_ELEMENTS];

rw_tensor *telling_apply(rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t number);

#endif
