/*
 * The observer of a verification. What it does with the actions of a run is its role:
 *
 *     TRIES     each node runs in a room by itself first (room.h)
 *     NOTES     the same, and digests of all that is made go to its table
 *     COMPARES  all that is made is held against the table of another run; results and gradients once more at the end
 *     CAPTURES  keeps the bytes of one output
 *
 * In every role the arena, with a margin before and behind it, begins as a pattern, and so does each output that takes
 * no input's memory: RW_PATTERN_NAN in a run without recompute, RW_PATTERN_LOW in the one that is held against it; the
 * other patterns a node has met in its room by then. A margin that was written to is found behind each action. In a
 * rehearsal that NOTES a buffer becomes the pattern again when nobody needs it any more: who reads it all the same
 * makes other bytes than in the run that is compared, where it lies as it was. That one finds the highest byte of its
 * arena that is no pattern: rw_memory.measured_peak.
 */
#ifndef RW_VERIFY_WATCH_H
#define RW_VERIFY_WATCH_H

#include "run/tenants.h"
#include "verify/room.h"

enum rw_watch_role { RW_WATCH_TRIES, RW_WATCH_NOTES, RW_WATCH_COMPARES, RW_WATCH_CAPTURES };

/* The last that was written to a source of the run. */
struct rw_written {
    struct rw_digest digest;
    const void *data;
    size_t bytes, action;
};

struct rw_watch {
    struct rw_observer observer; /* first: the run hands it back */
    enum rw_watch_role role;
    enum rw_pattern pattern;
    const struct rw_probe *probe;
    struct rw_room *room;   /* of TRIES and NOTES */
    bool says;              /* what is found in a room is recorded as the context's error: nobody else will */
    struct rw_table *table; /* written by NOTES, read by COMPARES; NULL for TRIES */
    struct rw_table own;
    struct rw_tenants tenants; /* of a rehearsal that NOTES: of its plan */
    uint64_t tenants_of;       /* which one, by its serial; 0: none */
    ckpt_report found; /* of a room or a margin: mismatches are 0 while all is well */
    /* COMPARES */
    size_t mismatches, replayed;
    size_t action; /* the first that differs */
    int output;
    bool any, ticket_differs, input_differs, moved;
    struct rw_written *written; /* by source */
    size_t cap_written, last; /* last: action of the part that runs */
    /* CAPTURES: the output of an action, or of the first computation of a node. Of COMPARES: of the first mismatch. */
    uint32_t node;
    size_t at_action;
    void *bytes;
    size_t n_bytes;
    struct rw_digest digest;
};

void rw_watch_init(struct rw_watch *w, enum rw_watch_role role, enum rw_pattern pattern,
                   const struct rw_probe *probe);
void rw_watch_finish(struct rw_watch *w);

/* Bytes before and behind the arena of its run: the arenas of a verification's two runs lie differently by one unit. */
uint64_t rw_watch_margin(const struct rw_watch *w);

/* The watch among a run's observers, NULL when there is none. */
struct rw_watch *rw_watch_of_run(const struct rw_run *r);

/* A run that was compared has come to its end: what it would hand out must still be what was compared. */
rw_status rw_watch_check_results(struct rw_watch *w, const struct rw_run *r);

#endif
