/* Ops of a caller's own, one of each kind that op.h allows. Programs printed by the shrinker use them by these
   names. */
#ifndef FUZZ_CUSTOM_OPS_H
#define FUZZ_CUSTOM_OPS_H

#include <rewind/op.h>

/* Two outputs: x^2 and x / 2. */
extern const rw_op_def fuzz_pair;
/* A float and an integer output: the sum of each row, and the index of its largest element. */
extern const rw_op_def fuzz_top;
/* Random: x or x / 2, by a coin of its ticket. */
extern const rw_op_def fuzz_jitter;
/* Declared as non-deterministic, and is: x (1 + runs / 64). Its attribute, an int64_t, selects the counter. */
extern const rw_op_def fuzz_noise;
/* Has an effect: counts its executions. y = x. */
extern const rw_op_def fuzz_tally;

/* y = x; its kernel fails in the execution that fuzz_fail_in counts down to. */
extern const rw_op_def fuzz_breaks;
/* Writes its first input to its second, a buffer, when the step ends; fails as fuzz_breaks does. */
extern const rw_op_def fuzz_store;
/* Random as fuzz_jitter, and records the blocks that it draws. Its attribute, an int64_t, identifies the op. */
extern const rw_op_def fuzz_draw;

/* Executions of fuzz_breaks and fuzz_store until one fails with RW_ERR_DEVICE; 0: none does. */
extern int fuzz_fail_in;

/* The blocks that fuzz_draw drew: every op of every step draws its own. */
#define FUZZ_LAUNCH 1000
struct fuzz_ledger {
    bool closed; /* draws are not recorded: a step that is rolled back */
    int epoch[4]; /* by the program's number: the step, or FUZZ_LAUNCH + the launch. An op draws the same blocks in all
                     its executions in one of them */
    int n;       /* of entry */
    int clashes; /* blocks that two ops, or two steps of one op, have drawn */
    struct {
        rw_ticket ticket;
        uint64_t blocks;
        int64_t id;
        int epoch;
    } entry[256];
};
extern struct fuzz_ledger fuzz_ledger;

#define FUZZ_COUNTERS 256
/* Executions of noise, tally and pair after the last reset. */
extern int fuzz_noise_runs[FUZZ_COUNTERS], fuzz_tally_runs[FUZZ_COUNTERS], fuzz_pair_runs[FUZZ_COUNTERS];
void fuzz_clear_runs(void);

/* Planted faults. The first two, for the tests of the shrinker, are in pair from its second execution on; the others in
   the named op, in its first input and output. */
enum fuzz_plant {
    FUZZ_HONEST,
    FUZZ_LIES,
    FUZZ_CRASHES,
    FUZZ_LEAVES_LAST,  /* leaves its last element unwritten */
    FUZZ_ADDRESS,      /* depends on its output's address */
    FUZZ_SERIAL,       /* depends on its position in the plan */
    FUZZ_NEXT_BUFFER,  /* writes to the buffer that follows its output */
    FUZZ_ONE_PAST,     /* writes one element too many */
    FUZZ_READS_PAST,   /* reads one element too many */
    FUZZ_MUTATES,      /* writes to its input */
    FUZZ_REMEMBERS,    /* depends on its last inputs */
    FUZZ_BEFORE,       /* writes one element before its output */
    FUZZ_ONCE,         /* is wrong in one of its executions */
    FUZZ_THREADS,      /* depends on its number of threads */
    FUZZ_PLANTS
};
extern enum fuzz_plant fuzz_plant;
extern const rw_op_def *fuzz_plant_op;
/* Clears all memory of the plants. Sets in which execution FUZZ_ONCE is wrong, and which bit of the address matters. */
void fuzz_plant_begin(enum fuzz_plant plant, const rw_op_def *op, uint64_t variant);

#endif
