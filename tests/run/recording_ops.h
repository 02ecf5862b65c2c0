/* Ops of tests that return their input, and record how often they were executed and what they read. */
#ifndef RW_TESTS_RUN_RECORDING_H
#define RW_TESTS_RUN_RECORDING_H

#include <rewind/rewind.h>

#define RECORDING_OPS 32
/* Maximum. So many float32 take more than the 256 bytes that are expected of a next step. */
#define RECORDING_ELEMENTS 96

extern const rw_op_def recording_once;  /* RW_OP_STATEFUL */
extern const rw_op_def recording_noise; /* RW_OP_NONDETERMINISTIC */

/* By the number that was given to recording_apply(): executions, and the elements that the last one read. */
extern int recording_runs[RECORDING_OPS];
extern float recording_read[RECORDING_OPS][RECORDING_ELEMENTS];

rw_tensor *recording_apply(rw_tape *t, const rw_op_def *op, rw_tensor *x, int64_t number);

#endif
