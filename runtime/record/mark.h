/*
 * How far a tape has come, and the way back to it. Planning cuts off what differentiation put behind the recorded part;
 * a call that records several nodes and fails cuts off those that it made (law 9).
 */
#ifndef RW_RECORD_MARK_H
#define RW_RECORD_MARK_H

#include "base/hash.h"

#include <rewind/tape.h>

struct rw_tape_mark {
    size_t nodes, operands, attrs, values, leaves, tickets, effects, casts, amaxes;
    size_t words; /* of the key, and their hash */
    struct rw_hash hash;
    uint64_t drawn, ticket_end; /* the generator's offset, and the tape's own */
};

struct rw_tape_mark rw_tape_mark(const rw_tape *t);

/* Cuts the tape back to a mark: to plan. The generator stays where it is. */
void rw_tape_cut(rw_tape *t, const struct rw_tape_mark *mark);

/* As if nothing had been recorded since: numbers that were drawn are drawn again by the next. */
void rw_tape_undo(rw_tape *t, const struct rw_tape_mark *mark);

/*
 * A function that records several nodes, or a leaf and then perhaps no node. Between begin and end the messages of what
 * it records name it; `end` with NULL leaves nothing of them behind. Both take a tape that is NULL.
 */
struct rw_composite {
    rw_tape *t;
    const char *within; /* the function that this one is part of, NULL for none */
    struct rw_tape_mark mark;
};

struct rw_composite rw_composite_begin(rw_tape *t, const char *name);
rw_tensor *rw_composite_end(const struct rw_composite *c, rw_tensor *result);

#endif
