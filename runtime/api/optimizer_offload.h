/*
 * Offloaded states of an optimizer: they are in a store, divided into blocks. An update streams the blocks through a
 * window in device memory with room for three. While one block is updated, the one before it is copied out and the next
 * but one is copied in.
 *
 *     lane in      get 0   get 1   get 2      get 3      get 4
 *     compute              update 0   update 1   update 2
 *     lane out                        put 0      put 1   ...
 *
 * A block is a list of pieces. A piece is a parameter, or a part of one that is too large. The states of a piece are in
 * a slot of the window, so that a plan can name them; those of block i are in slot i mod 3. The update of an element
 * depends only on that element, so the results are bit-identical to those with states in device memory.
 */
#ifndef RW_API_OPTIMIZER_OFFLOAD_H
#define RW_API_OPTIMIZER_OFFLOAD_H

#include "ops/optim/update_ops.h"
#include "record/param.h"
#include "run/run_state.h"

#include <rewind/optimizers.h>

#define RW_PIECE_STATES (RW_UPDATE_STATES + 1) /* maximum: a master copy is one, too */

/* What one row of an update applies to. */
struct rw_piece {
    size_t member;   /* index of the optimizer's member */
    int64_t from, n; /* its elements */
    int n_states;    /* the last one is the master copy, if the parameter has one */
    rw_dtype dtype[RW_PIECE_STATES]; /* of its states */
    struct rw_param *state[RW_PIECE_STATES];
    uint64_t at; /* offloaded: place of the first state in the store; the others follow, in whole pages each */
};

struct rw_pieces {
    struct rw_piece *piece;
    size_t n, cap;
    size_t *first; /* by group, which becomes a node: its first piece; n after the last group */
    size_t n_groups;
};

struct rw_optimizer_offload;

/* Does the request need offloading? RW_ERR_ARGUMENT: recorded, as an error of `call`. */
rw_status rw_optimizer_offload_check(rw_context *ctx, const char *call, const rw_state_offload *where,
                                     bool *ret_offloaded);

/*
 * Divides whole parameters, which have no states yet, into pieces of blocks, with states that are zero in the store.
 * most: maximum number of pieces of a block. The op is that of the updates; `call` must remain valid. On an error,
 * which is recorded, the pieces may be divided already, and have no states.
 */
rw_status rw_optimizer_offload_open(struct rw_optimizer_offload **ret, rw_context *ctx, const char *call,
                                    const rw_op_def *op,
                                    const rw_state_offload *where, size_t most, struct rw_pieces *pieces);
void rw_optimizer_offload_close(struct rw_optimizer_offload *a); /* NULL-safe. The pieces' states must be gone before */

/* Bytes of the window. */
size_t rw_optimizer_offload_window(const struct rw_optimizer_offload *a);

/* The observer of a run with one node of the op for each block, in their order: it copies blocks in and out. A graph's
   run begins after everything that was queued and ends when all blocks are copied out, so that a capture contains the
   copies. */
struct rw_observer *rw_optimizer_offload_observer(struct rw_optimizer_offload *a);

/*
 * Call it before each run of a graph is queued or launched: the run follows the updates between steps. An error is
 * recorded.
 */
rw_status rw_optimizer_offload_before_launch(struct rw_optimizer_offload *a);
void rw_optimizer_offload_launched(struct rw_optimizer_offload *a,
                                   bool ran); /* it was queued; false: it was only captured, and no block was changed */
const void *rw_optimizer_offload_store(const struct rw_optimizer_offload *a); /* as a capture refers to it */
bool rw_optimizer_offload_is_in_file(const struct rw_optimizer_offload *a);

/* Is the store inconsistent? After an update that failed halfway some blocks are updated and others are not. The same
   holds between begin and end of a rewrite, which uses a new store if the old one has failed, or is closed in a
   child of fork(). */
bool rw_optimizer_offload_is_torn(const struct rw_optimizer_offload *a);
rw_status rw_optimizer_offload_rewrite_begin(struct rw_optimizer_offload *a); /* an error is recorded */
void rw_optimizer_offload_rewrite_end(struct rw_optimizer_offload *a);

/* Read copies state j of a piece, from a byte on, to host memory; write sets all of it from there. Nothing may be
   queued before, and nothing is queued when they return. Errors are not recorded. */
rw_status rw_optimizer_offload_read(struct rw_optimizer_offload *a, const struct rw_piece *p, int j, size_t at,
                                    void *to, size_t bytes);
rw_status rw_optimizer_offload_write(struct rw_optimizer_offload *a, const struct rw_piece *p, int j, const void *from);

#endif
