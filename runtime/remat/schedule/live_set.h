/*
 * The contents of the arena at one action of a schedule, by kind. Predictions, ckpt_explain() and advice read memory
 * through this. The sum over all kinds equals what the sweep counts at that action (lifetimes.h).
 */
#ifndef RW_REMAT_SCHEDULE_LIVE_SET_H
#define RW_REMAT_SCHEDULE_LIVE_SET_H

#include "base/round_up.h"
#include "remat/schedule/schedule.h"

enum rw_live_kind {
    RW_LIVE_TRANSIENT,  /* computed by forward, freed before backward begins */
    RW_LIVE_KEPT,     /* computed by a node's first execution, live during backward: kept, copied back from the
                         store, or deferred */
    RW_LIVE_REPLAYED, /* recomputed */
    RW_LIVE_ADJOINT,  /* computed by backward */
    RW_LIVE_WORKSPACE,
    RW_LIVE_KINDS
};

/* Bytes that a buffer takes in the arena. */
static inline uint64_t rw_buffer_room(const struct rw_problem *p, const struct rw_buffer *b)
{
    return rw_round_up(b->bytes, p->t->ctx->device->alignment);
}

/*
 * Finds the holder of each buffer with its own memory: of the values that share the memory one after the other, the one
 * whose contents are there after the action. `holder` has an entry per buffer. Entries of buffers with their own memory
 * are filled in, with RW_NONE_ID before the first value. Buffers that reuse memory are numbered in the order in which
 * they do so. The first owner may have a higher number, as that of a value that is copied back has.
 */
void rw_find_holders(const struct rw_schedule *s, uint32_t action, uint32_t *holder);

/* Is buffer b, which has its own memory, live at that action? */
static inline bool rw_buffer_lives(const struct rw_buffer *b, uint32_t action)
{
    return b->first <= action && b->last >= action;
}

/* The kind of the contents of a buffer with its own memory, by its holder. */
enum rw_live_kind rw_live_kind_of(const struct rw_problem *p, const struct rw_schedule *s, uint32_t root,
                                  uint32_t holder);

#endif
