/*
 * Records what steps requested: which small values they read, and where their backwards began.
 *
 * Before rw_backward() the program has not said which value is the loss, and after it a step has computed only what it
 * was requested to. So a step is planned for the requests of the last step with the same structure. The context keeps
 * an entry for each structure, by the words of its tape (record/tape_key.h), and each tape a log of its current step. A
 * wrong expectation costs time, and nothing else.
 *
 *     first step        rw_item(ce)  rw_item(aux)  rw_backward(loss)      log: reads ce, aux; backward of loss
 *     rw_tape_reset()                                                     entry: the same, at the structure's points
 *     any later step    rw_item(ce)   finds the entry and begins the step of `loss` that computes ce and aux, too
 *                       rw_item(aux)  copies
 *                       rw_backward(loss) continues
 *
 * A log fails with RW_ERR_MEMORY, like the call that is logged. An entry never fails: without memory, something is not
 * expected.
 */
#ifndef RW_API_REQUEST_HISTORY_H
#define RW_API_REQUEST_HISTORY_H

#include "plan/cache.h"

#define RW_HISTORY_STEPS 32 /* maximum number of entries; the least recently used one is evicted */
#define RW_HISTORY_MAX 16384 /* maximum number of reads, points and backwards of one entry */
#define RW_HISTORY_AGE 16   /* a value that was not read for this many steps is not expected */

struct rw_expected {
    struct rw_ahead ahead; /* at the first backward; of a step without one, at its last read */
    uint32_t *roots;       /* of each backward, in order; none: the step was an evaluation */
    size_t n_roots, cap_roots;
    struct rw_expected_read {
        uint32_t value; /* a base */
        uint64_t step;  /* the last step of the entry that read it */
    } *reads;           /* in the order of first reads */
    size_t n_reads, cap_reads;
    struct rw_tape_point *points; /* where rw_item() was called before the first backward */
    size_t n_points, cap_points;
    bool seeded; /* backward begins with gradients that are given when it runs */
    uint64_t steps, used;
};

/* The log of a tape's current step. */
struct rw_log {
    uint32_t *reads; /* small values that the program has seen: bases */
    size_t n_reads, cap_reads;
    bool *is_read; /* base value -> it is in reads */
    size_t cap_is_read;
    struct rw_tape_point *points, last; /* of rw_item() before the first backward; of the last read */
    size_t n_points, cap_points;
    uint32_t *roots;
    size_t n_roots, cap_roots;
    struct rw_ahead ahead; /* at the first backward */
    uint32_t n_values;     /* at that time */
    bool seeded;
};

struct rw_history {
    struct rw_expected entries[RW_HISTORY_STEPS];
    size_t n;
    uint64_t clock;
    size_t n_unused; /* consecutive plans made ahead for new structures that no step has used */
};

/* What earlier steps of the context requested; NULL: none has ended yet. */
struct rw_history *rw_history_of(const rw_context *ctx);

/* Has the tape's current step begun a backward? */
bool rw_log_has_backward(const rw_tape *t);

/* Logs that the program has seen a small value, RW_NONE_ID: one that is not small. at_point: rw_item() read it, and a
   step may begin there. RW_ERR_MEMORY, recorded. */
rw_status rw_log_read(rw_tape *t, uint32_t base, bool at_point);
/* Logs that backward begins at a value. RW_ERR_MEMORY, recorded. */
rw_status rw_log_backward(rw_tape *t, uint32_t root, bool seeded);

/* Ends a step: its log becomes the entry of its structure, and is cleared. The tape must still be as recorded. */
void rw_history_end_step(rw_tape *t, struct rw_expected **ret_entry);

/*
 * The entry of the step that the tape seems to be in: its backward or one of its reads was at the same point. NULL:
 * none.
 */
struct rw_expected *rw_history_find(rw_tape *t);

/* Lists the values that a step of the entry is expected to read, with `all` also those that were not read for long.
   `values` must have room for n_reads. */
size_t rw_expected_values(const struct rw_expected *e, bool all, uint32_t *values);
bool rw_expected_has(const struct rw_expected *e, uint32_t base, bool all);

#endif
