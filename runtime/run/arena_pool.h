/*
 * Arenas: the memory that plans place their buffers in. A context has a pool of them; a run borrows one. Another pool
 * has stores: memory outside the device.
 *
 * A run that is queued to its end gives its arena back at once: the device's queue protects it from the next user. A
 * run that stops on its way keeps it, so as many arenas exist as runs stand between forward and backward, and one more.
 */
#ifndef RW_RUN_ARENA_POOL_H
#define RW_RUN_ARENA_POOL_H

#include "record/context.h"

struct rw_arena {
    struct rw_arena *next;
    void *data;
    size_t bytes;
    bool lent;
    const struct rw_store_fns *fns; /* of a store: who opened it */
    uint64_t place;                 /* and by which call of rw_context_set_offload() */
};

struct rw_arenas {
    struct rw_arena *first;
    bool outside; /* they are stores: memory outside the device, for values that are moved out */
};

/*
 * The arena `had` when it is still there, free and large enough, else the smallest free one that fits, else the largest
 * free one, made larger, else a new one. A store is one of where the context's values wait now, and of this process.
 * RW_ERR_MEMORY or what opening a store came to; then no free one is left in the pool.
 */
rw_status rw_arena_borrow(rw_context *ctx, struct rw_arenas *arenas, struct rw_arena *had, size_t bytes,
                          struct rw_arena **ret_arena);
void rw_arena_give_back(struct rw_arena *arena);

/* Bytes that borrowing one would come on top of what there is, at most: none when a free one fits. */
size_t rw_arena_growth(const rw_context *ctx, const struct rw_arenas *arenas, const struct rw_arena *had, size_t bytes);
/* The free ones go, but for one of exactly so many bytes. */
void rw_arenas_free_others(rw_context *ctx, struct rw_arenas *arenas, const struct rw_arena *had, size_t bytes);

/* The next one is opened anew: nobody knows what is in this one. The caller still gives it back. */
void rw_store_close(rw_context *ctx, struct rw_arena *store);
/* Those that nobody has. */
void rw_stores_close_free(rw_context *ctx, struct rw_arenas *stores);

void rw_arenas_finish(rw_context *ctx, struct rw_arenas *arenas);

#endif
