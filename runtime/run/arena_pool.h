/*
 * Pools of arenas and offload stores. An arena is the memory in which a plan places its buffers; a store is memory
 * outside of the device. Runs borrow from the pools of their context.
 *
 * A run that is queued to its end returns its arena at once, because the device's queue orders the next user after it.
 * A suspended run keeps its arena. So there are as many arenas as suspended runs, plus one.
 */
#ifndef RW_RUN_ARENA_POOL_H
#define RW_RUN_ARENA_POOL_H

#include "record/context.h"

struct rw_arena {
    struct rw_arena *next;
    void *data;
    size_t bytes;
    bool lent;
    const struct rw_store_fns *fns; /* of a store: the functions of its kind */
    uint64_t place;                 /* and the serial of the rw_context_set_offload() call */
};

struct rw_arenas {
    struct rw_arena *first;
    bool outside; /* a pool of stores */
};

/*
 * Borrows an arena. In this order: `had`, if it still exists, is free and large enough; the smallest free one that
 * fits; the largest free one, reallocated; a new one. A store must also be of the context's current kind and of this
 * process. RW_ERR_MEMORY, or the error of opening a store; then no free one is left in the pool.
 */
rw_status rw_arena_borrow(rw_context *ctx, struct rw_arenas *arenas, struct rw_arena *had, size_t bytes,
                          struct rw_arena **ret_arena);
void rw_arena_give_back(struct rw_arena *arena);

/* Maximum bytes by which borrowing would increase the memory in use; 0 if a free one fits. */
size_t rw_arena_growth(const rw_context *ctx, const struct rw_arenas *arenas, const struct rw_arena *had, size_t bytes);
/* Frees the free ones, except one of exactly so many bytes. */
void rw_arenas_free_others(rw_context *ctx, struct rw_arenas *arenas, const struct rw_arena *had, size_t bytes);

/* Closes a store whose contents are unknown after a failure; the next user opens a new one. The caller still returns
   it. */
void rw_store_close(rw_context *ctx, struct rw_arena *store);
/* Is it a file of the parent process? Then it cannot be used in this one. */
bool rw_store_is_of_parent(const struct rw_arena *store);

/* Frees the arenas, or closes the stores, that no run has borrowed. False if they have no memory. */
bool rw_arenas_free_unused(rw_context *ctx, struct rw_arenas *arenas);

void rw_arenas_finish(rw_context *ctx, struct rw_arenas *arenas);

#endif
