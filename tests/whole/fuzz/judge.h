/*
 * Judges a program: it is run with and without recompute in a process of its own, so that a crash is a verdict, too.
 */
#ifndef FUZZ_JUDGE_H
#define FUZZ_JUDGE_H

#include "whole/fuzz/run.h"

#include "verify/faults.h"

struct fz_verdict {
    enum fz_failure failure;
    int detail; /* reason for which a call was refused, or signal of a crash */
    char text[500];
};

/* The features that a series of programs covered. */
struct fz_coverage {
    uint64_t programs, replaying, finite, with_grad, nested, empty, two_tapes, assigns;
    uint64_t nodes, replayed;
    uint64_t statements[256]; /* by op */
};

/* A planted fault, for the tests of the shrinker. All zero: none. */
struct fz_sabotage {
    struct rw_fault fault;
    int plant; /* enum fuzz_plant */
};

/* For a process that the judged program may end: restores default signal handlers, and limits the time. */
void fz_in_child(void);

/* Judges one program. */
struct fz_verdict fz_judge(const struct fz_program *p, const struct fz_sabotage *sabotage);

/* Candidate number k of a list. */
enum fz_candidate { FZ_CANDIDATE, FZ_SKIP, FZ_NO_MORE };
typedef enum fz_candidate (*fz_candidate_fn)(void *context, struct fz_program *p, int k);

/* The number of the first candidate, from `from` on, that fails as *wanted did, with its verdict; -1: none does. */
int fz_judge_first(fz_candidate_fn make, void *context, int from, const struct fz_verdict *wanted,
                   const struct fz_sabotage *sabotage, struct fz_verdict *ret_verdict);

/* Judges programs first, first + 1, ... up to `count`; stops at the first that fails and returns its seed. */
struct fz_verdict fz_judge_seeds(uint64_t first, uint64_t count, int64_t most, uint64_t *ret_seed,
                                 struct fz_coverage *coverage);

/* Runs correct programs in this process, if it is one that looks for leaks when it exits. */
void fz_look_for_leaks(uint64_t first, uint64_t count, int64_t most);

static inline bool fz_same_failure(const struct fz_verdict *a, const struct fz_verdict *b)
{
    return a->failure == b->failure && a->detail == b->detail;
}

/* Whether ops whose kernels run only on the CPU are allowed. */
bool fz_host(void);

#endif
