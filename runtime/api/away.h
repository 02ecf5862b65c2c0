/*
 * States of an optimizer that wait outside the device's memory: in a store, cut into blocks. An update takes the blocks
 * one after the other through a window of the device's memory, which has room for three: while one is updated, the one
 * before it goes out and the next but one comes in.
 *
 *     lane in      get 0   get 1   get 2      get 3      get 4
 *     compute              update 0   update 1   update 2
 *     lane out                        put 0      put 1   ...
 *
 * A block is a list of pieces, which are parameters, or parts of one that is too large. The states of a piece lie in a
 * slot of the window, so that a plan can name them; those of block i in slot i mod 3. What an update computes of an
 * element depends on that element alone: the bytes are those of states that stay where they are.
 */
#ifndef RW_API_AWAY_H
#define RW_API_AWAY_H

#include "record/own_ops.h"
#include "record/param.h"
#include "run/run.h"

#include <rewind/optim.h>

#define RW_PIECE_STATES (RW_UPDATE_STATES + 1) /* at most: a master copy is one, too */

/* What one row of an update is about. */
struct rw_piece {
    size_t member;   /* of the optimizer's */
    int64_t from, n; /* its elements */
    int n_states;    /* the last one is the master copy, where the parameter has one */
    rw_dtype dtype[RW_PIECE_STATES]; /* of its states */
    struct rw_param *state[RW_PIECE_STATES];
    uint64_t at; /* away: where the first state lies in the store, and behind it the others; whole pages each */
};

struct rw_pieces {
    struct rw_piece *piece;
    size_t n, cap;
    size_t *first; /* by group, which becomes a node: its first piece; behind the last group n */
    size_t n_groups;
};

struct rw_away;

/* Is there anything to be done? RW_ERR_ARGUMENT: recorded, as an error of `call`. */
rw_status rw_away_check(rw_context *ctx, const char *call, const rw_states *where, bool *ret_away);

/*
 * Cuts whole parameters, whose states are not made yet, into pieces of blocks with their states, all zero in the store.
 * most: pieces of a block. The op is that of the updates, and `call` outlives what is made. On an error, which is
 * recorded, the pieces may be cut already, and have no states.
 */
rw_status rw_away_open(struct rw_away **ret, rw_context *ctx, const char *call, const rw_op_def *op,
                       const rw_states *where, size_t most, struct rw_pieces *pieces);
void rw_away_close(struct rw_away *a); /* NULL-safe. The pieces' states have gone */

/* Bytes of the window. */
size_t rw_away_window(const struct rw_away *a);

/* A run whose nodes of the op are one for each block, in their order: blocks come and go around them. A graph's, which
   is no update between two steps, begins behind all that was queued and ends when all has gone out, so that a capture
   holds the copies as well. */
struct rw_observer *rw_away_observer(struct rw_away *a);

/* Before each run of a graph is queued or launched: it comes behind the updates between steps. An error is recorded. */
rw_status rw_away_before_launch(struct rw_away *a);
void rw_away_launched(struct rw_away *a, bool ran); /* it was queued, or captured alone: no block has been touched */
const void *rw_away_store(const struct rw_away *a); /* as a capture holds it */
bool rw_away_is_in_file(const struct rw_away *a);

/* An update that failed on its way has left blocks updated and others not: what is in the store is nobody's states.
   So it is from begin to end of writing all of it anew, to another store if this one has failed. */
bool rw_away_is_torn(const struct rw_away *a);
rw_status rw_away_rewrite_begin(struct rw_away *a); /* an error is recorded */
void rw_away_rewrite_end(struct rw_away *a);

/* State j of a piece from a byte on, to the host's memory, and all of it from there. Nothing is queued, and nothing is
   when they return. Errors are not recorded. */
rw_status rw_away_read(struct rw_away *a, const struct rw_piece *p, int j, size_t at, void *to, size_t bytes);
rw_status rw_away_write(struct rw_away *a, const struct rw_piece *p, int j, const void *from);

#endif
