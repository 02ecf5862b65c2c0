/*
 * What lies in the arena at one action of a schedule, piece by piece. Predictions, ckpt_explain() and advice read
 * memory through this; the sum over the pieces is what the sweep counts at that action (lives.h).
 */
#ifndef RW_REMAT_LIVE_H
#define RW_REMAT_LIVE_H

#include "base/round.h"
#include "remat/schedule.h"

enum rw_live_kind {
    RW_LIVE_PASSING,  /* made by forward, gone before backward begins */
    RW_LIVE_KEPT,     /* made by forward, still there when backward begins */
    RW_LIVE_REPLAYED, /* made again */
    RW_LIVE_ADJOINT,  /* made by backward */
    RW_LIVE_WORKSPACE,
    RW_LIVE_KINDS
};

/* Bytes that a buffer takes in the arena. */
static inline uint64_t rw_buffer_room(const struct rw_problem *p, const struct rw_buffer *b)
{
    return rw_round_up(b->bytes, p->t->ctx->device->alignment);
}

/*
 * Of several values that share memory one after the other: the one that lies there behind the action. holder has an
 * entry for each buffer and is filled in for those that have memory of their own, with RW_NONE_ID before the first.
 * Those that take memory over are numbered in the order in which they do; who has it first may have a later number, as
 * what comes back from outside has.
 */
void rw_find_holders(const struct rw_schedule *s, uint32_t action, uint32_t *holder);

/* Does buffer b, which has memory of its own, take it at that action? */
static inline bool rw_buffer_lives(const struct rw_buffer *b, uint32_t action)
{
    return b->first <= action && b->last >= action;
}

/* Of what lies in a buffer with memory of its own, by its holder. */
enum rw_live_kind rw_live_kind_of(const struct rw_problem *p, const struct rw_schedule *s, uint32_t root,
                                  uint32_t holder);

#endif
