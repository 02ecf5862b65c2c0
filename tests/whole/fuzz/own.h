/* Ops of a caller's own, one of each kind that op.h allows. What the shrinker prints may use them by these names. */
#ifndef FUZZ_OWN_H
#define FUZZ_OWN_H

#include <rewind/op.h>

/* Two outputs: x^2 and x / 2. */
extern const rw_op_def fuzz_pair;
/* A float and an integer output: the sum of each row, and the place of its largest element. */
extern const rw_op_def fuzz_top;
/* Draws numbers: x or x / 2, by a coin of its ticket. */
extern const rw_op_def fuzz_jitter;
/* Says that it is non-deterministic, and is: x (1 + runs / 64). Its attribute, an int64_t, picks the counter. */
extern const rw_op_def fuzz_noise;
/* Has an effect: counts its runs. y = x. */
extern const rw_op_def fuzz_tally;

#define FUZZ_COUNTERS 256
/* Runs of noise, tally and pair since the last clearing. */
extern int fuzz_noise_runs[FUZZ_COUNTERS], fuzz_tally_runs[FUZZ_COUNTERS], fuzz_pair_runs[FUZZ_COUNTERS];
void fuzz_clear_runs(void);

/* Planted misbehaviour of pair, for the tests of the shrinker: from its second run on. */
enum fuzz_plant { FUZZ_HONEST, FUZZ_LIES, FUZZ_CRASHES };
extern enum fuzz_plant fuzz_plant;

#endif
