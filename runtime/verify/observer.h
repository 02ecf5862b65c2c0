/*
 * The observer of a verification. Its role determines what it does with the actions of a run:
 *
 *     TRIES     executes each node in isolation first (isolated_rerun.h)
 *     NOTES     the same, and stores digests of all computed values in its table
 *     COMPARES  compares all computed values with the table of another run; results and gradients once more at the end
 *     CAPTURES  copies the bytes of one output
 *
 * In every role the arena, with a margin before and after it, is first filled with a pattern, and so is each output
 * that is not computed in place: RW_PATTERN_NAN in a run without recompute, RW_PATTERN_LOW in the one that is compared
 * with it. A node has met the other patterns in isolation by then. A write to a margin is detected after each action.
 *
 * In a rehearsal with NOTES, a buffer is filled with the pattern again after its last use. A kernel that reads it
 * nevertheless gives other bytes than in the compared run, where the contents remain. The compared run finds the
 * highest byte of its arena that is not the pattern: rw_memory.measured_peak.
 */
#ifndef RW_VERIFY_OBSERVER_H
#define RW_VERIFY_OBSERVER_H

#include "plan/arena_buffers.h"
#include "verify/isolated_rerun.h"

enum rw_verifier_role { RW_WATCH_TRIES, RW_WATCH_RECORDS, RW_WATCH_COMPARES, RW_WATCH_CAPTURES };

/* The last write to a source of the run. */
struct rw_written {
    struct rw_digest digest;
    const void *data;
    size_t bytes, action;
};

struct rw_verifier {
    struct rw_observer observer; /* first: the run hands it back */
    enum rw_verifier_role role;
    enum rw_pattern pattern;
    const struct rw_patterns *probe;
    struct rw_isolation *iso;   /* of TRIES and NOTES */
    bool says;              /* findings of isolated execution become the context's error, because no caller records
                               them */
    struct rw_table *table; /* filled by NOTES, compared by COMPARES; NULL for TRIES */
    struct rw_table own;
    struct rw_arena_buffers buffers; /* buffer lifetimes of the plan, in a rehearsal with NOTES */
    uint64_t buffers_of;             /* serial of that plan; 0: none */
    ckpt_report found; /* findings of isolated execution and margins: mismatches are 0 if there are none */
    /* COMPARES */
    size_t mismatches, replayed;
    size_t action; /* the first that differs */
    int output;
    bool any, ticket_differs, input_differs, moved;
    struct rw_written *written; /* by source */
    size_t cap_written, last; /* the last action of the part that runs */
    /* CAPTURES: the output of an action, or of the first execution of a node. COMPARES: of the first mismatch. */
    uint32_t node;
    size_t at_action;
    void *bytes;
    size_t n_bytes;
    struct rw_digest digest;
};

void rw_verifier_init(struct rw_verifier *w, enum rw_verifier_role role, enum rw_pattern pattern,
                      const struct rw_patterns *probe);
void rw_verifier_finish(struct rw_verifier *w);

/* Bytes before and after the arena of its run: the arenas of the two runs differ by one unit in their alignment. */
uint64_t rw_verifier_margin(const struct rw_verifier *w);

/* The verification's observer among those of a run, NULL if there is none. */
struct rw_verifier *rw_verifier_of_run(const struct rw_run *r);

/* A compared run has ended: the results that it publishes must still be those that were compared. */
rw_status rw_verifier_check_results(struct rw_verifier *w, const struct rw_run *r);

#endif
