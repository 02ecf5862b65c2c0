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

/* y = x; its kernel fails in the run that fuzz_fail_in counts down to. */
extern const rw_op_def fuzz_breaks;
/* Writes its first input into its second, a buffer, when the step ends; fails as fuzz_breaks does. */
extern const rw_op_def fuzz_store;
/* Draws numbers as fuzz_jitter does, and records which blocks. Its attribute, an int64_t, says which op it is. */
extern const rw_op_def fuzz_draw;

/* Runs of fuzz_breaks and fuzz_store until one fails with RW_ERR_DEVICE; 0: none does. */
extern int fuzz_fail_in;

/* What fuzz_draw drew: every op of every step its own blocks. */
struct fuzz_ledger {
    bool closed; /* what is drawn is not recorded: a step that is rolled back */
    int epoch[4]; /* by the program's number, the step: an op draws the same blocks in all its runs of one */
    int n;       /* of entry */
    int clashes; /* blocks that two ops, or two steps of one, have drawn */
    struct {
        rw_ticket ticket;
        uint64_t blocks;
        int64_t id;
        int epoch;
    } entry[256];
};
extern struct fuzz_ledger fuzz_ledger;

#define FUZZ_COUNTERS 256
/* Runs of noise, tally and pair since the last clearing. */
extern int fuzz_noise_runs[FUZZ_COUNTERS], fuzz_tally_runs[FUZZ_COUNTERS], fuzz_pair_runs[FUZZ_COUNTERS];
void fuzz_clear_runs(void);

/* Planted misbehaviour. The first two, for the tests of the shrinker, of pair from its second run on; the others of the
   op that is named, in whatever it does first with its first input and output. */
enum fuzz_plant {
    FUZZ_HONEST,
    FUZZ_LIES,
    FUZZ_CRASHES,
    FUZZ_LEAVES_LAST,  /* its last element unwritten */
    FUZZ_ADDRESS,      /* depends on its output's address */
    FUZZ_SERIAL,       /* on its place in the plan */
    FUZZ_NEXT_BUFFER,  /* writes into what begins behind its output */
    FUZZ_ONE_PAST,     /* writes one element too many */
    FUZZ_READS_PAST,   /* reads one element too many */
    FUZZ_MUTATES,      /* writes to its input */
    FUZZ_REMEMBERS,    /* what it was given last time */
    FUZZ_BEFORE,       /* writes one element before its output */
    FUZZ_ONCE,         /* is wrong in one of its runs */
    FUZZ_THREADS,      /* depends on how many threads it has */
    FUZZ_PLANTS
};
extern enum fuzz_plant fuzz_plant;
extern const rw_op_def *fuzz_plant_op;
/* Nothing is remembered; in which of its runs FUZZ_ONCE is wrong, and which bit of the address matters. */
void fuzz_plant_begin(enum fuzz_plant plant, const rw_op_def *op, uint64_t variant);

#endif
