/*
 * Extensions: the state that one feature keeps with a context or with a tape. The feature describes it once, in a
 * static descriptor of its own file; struct rw_context and struct rw_tape do not name it. The same scheme as
 * net_generic() in Linux and CRYPTO_get_ex_data() in OpenSSL.
 *
 *     feature.c                             context or tape
 *     static struct rw_extension e = {      extensions
 *         .name, .size, ...                   state   [ -  3:*  -  5:*  1:* ]  by slot: memory of `size` bytes, or NULL
 *         .slot = 3 }                         created [ 5, 3, ... ]            slots in order of creation
 *
 * Life of a state:
 *   make     zeroed memory, when the feature first needs it. All zero must mean "nothing yet": the feature fills it
 *            after that. Without memory nothing has changed.
 *   open     a tape of the context was created, which may need a state of its own; in order of creation
 *   cut      values of the tape were rolled back; in order of creation
 *   reset    once per reset of the tape, first of the context's states, then of the tape's, each in order of creation:
 *            a feature that uses another is reset after it
 *   destroy  with its owner, in reverse order of creation, before the owner's own memory. A feature that uses another
 *            makes the other's state first, and so is destroyed before it
 *
 *     rw_tape_destroy()      reset, as by rw_tape_reset()
 *       last graph released  the tape's extensions, newest first; then nodes, values, leaves
 *     rw_context_destroy()   when its tapes and optimizers are gone: the context's extensions, newest first (..., runs,
 *                            plans); then parameters and states, tables, the device
 *
 * So destroy of a tape's extension may use the context, and destroy of either may use the device, parameters and
 * states. No state survives its owner.
 *
 * Threads: a state is used like its owner, by one thread at a time. Descriptors are shared by all contexts of the
 * process; only their slots change, once, and without a lock.
 *
 * fork(): a child has a copy of each state, like of its owner. A state with a file, a lock or a thread registers that
 * with base/fork_handlers.h.
 */
#ifndef RW_RECORD_EXTENSION_H
#define RW_RECORD_EXTENSION_H

#include <rewind/memory.h>

#include <stdatomic.h>

/* Maximum number of descriptors in a process; states of more are refused as if there were no memory. */
#define RW_EXTENSIONS_MAX 64

/* A member may be NULL. */
struct rw_extension {
    const char *name; /* for a debugger */
    size_t size;      /* bytes of a state; 0: only its presence matters */
    bool (*open)(rw_tape *t, void *state); /* of a context's state: t was created; false without memory */
    void (*cut)(rw_tape *t, void *state); /* values from t->n_values on are gone */
    void (*reset)(rw_tape *t, void *state); /* t still has what was recorded */
    void (*destroy)(rw_context *ctx, void *state); /* frees what the state refers to, not its memory; makes none */
    void (*report)(const rw_context *ctx, const void *state, rw_memory *memory); /* adds to rw_memory_stats() */
    atomic_uchar slot; /* 0: no state of it was made yet */
};

/* The states of a context or a tape. */
struct rw_extensions {
    void *state[RW_EXTENSIONS_MAX]; /* state[0] stays NULL */
    unsigned char created[RW_EXTENSIONS_MAX]; /* slots in order of creation */
    unsigned char resets[RW_EXTENSIONS_MAX];  /* those with a reset, likewise: each step calls them */
    unsigned n, n_resets;
};

/* The state, NULL if it was not made. As cheap as a member: two loads, without a branch or a call. */
static inline void *rw_extension_find(const struct rw_extensions *x, const struct rw_extension *e)
{
    return x->state[atomic_load_explicit(&e->slot, memory_order_relaxed)];
}

/* Makes the state, of which there is none. NULL without memory. */
void *rw_extension_add(struct rw_extensions *x, struct rw_extension *e);

/* The state, which is made if there is none; NULL without memory. */
static inline void *rw_extension_make(struct rw_extensions *x, struct rw_extension *e)
{
    void *const found = rw_extension_find(x, e);
    return found ? found : rw_extension_add(x, e);
}

bool rw_extensions_open(const struct rw_extensions *x, rw_tape *t);
void rw_extensions_cut(const struct rw_extensions *x, rw_tape *t);
void rw_extensions_reset(const struct rw_extensions *x, rw_tape *t);
void rw_extensions_report(const struct rw_extensions *x, const rw_context *ctx, rw_memory *memory);
void rw_extensions_destroy(struct rw_extensions *x, rw_context *ctx);

#endif
