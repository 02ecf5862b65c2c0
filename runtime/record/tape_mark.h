/*
 * Marks: a point of a tape, and rollback to it. Planning cuts off the nodes that differentiation recorded; a call that
 * records several nodes and fails cuts off what it recorded (law 9).
 */
#ifndef RW_RECORD_TAPE_MARK_H
#define RW_RECORD_TAPE_MARK_H

#include "base/hash.h"

#include <rewind/tape.h>

struct rw_tape_mark {
    size_t nodes, operands, attrs, values, leaves, tickets, effects;
    size_t words; /* of the key, and their hash */
    struct rw_hash hash;
    uint64_t drawn, ticket_end; /* offset of the generator, and of the tape's tickets */
};

struct rw_tape_mark rw_tape_mark(const rw_tape *t);

/* Cuts the tape back to a mark, for planning. The generator's state stays. */
void rw_tape_cut(rw_tape *t, const struct rw_tape_mark *mark);

/* Rolls back as if nothing had been recorded since: the next op draws the same numbers again. */
void rw_tape_rollback(rw_tape *t, const struct rw_tape_mark *mark);

#endif
