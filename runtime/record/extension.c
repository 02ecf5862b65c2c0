/* The table of descriptors of the process, and the states of one owner. */
#include "record/extension.h"

#include "base/alloc.h"

/* By slot. An entry is written once, so every thread that searches from the start finds a descriptor at the same slot,
   or the same free one. */
static _Atomic(struct rw_extension *) descriptors[RW_EXTENSIONS_MAX];

/* The slot of a descriptor, assigned at first; 0 if all are taken. */
static unsigned slot_of(struct rw_extension *e)
{
    unsigned slot = atomic_load_explicit(&e->slot, memory_order_relaxed);
    for (unsigned i = 1; !slot && i < RW_EXTENSIONS_MAX; i++) {
        struct rw_extension *present = NULL;
        if (atomic_compare_exchange_strong(&descriptors[i], &present, e) || present == e) slot = i;
    }
    atomic_store_explicit(&e->slot, (unsigned char)slot, memory_order_relaxed);
    return slot;
}

static const struct rw_extension *descriptor_of(const struct rw_extensions *x, unsigned i)
{
    return atomic_load_explicit(&descriptors[x->created[i]], memory_order_acquire);
}

static void *state_of(const struct rw_extensions *x, unsigned i)
{
    return x->state[x->created[i]];
}

void *rw_extension_make(struct rw_extensions *x, struct rw_extension *e)
{
    void *const found = rw_extension_find(x, e);
    const unsigned slot = found ? 0 : slot_of(e);
    if (!slot) return found;
    x->state[slot] = rw_calloc(1, e->size ? e->size : 1);
    if (x->state[slot]) x->created[x->n++] = (unsigned char)slot;
    return x->state[slot];
}

bool rw_extensions_open(const struct rw_extensions *x, rw_tape *t)
{
    bool is_open = true;
    for (unsigned i = 0; is_open && i < x->n; i++) {
        const struct rw_extension *const e = descriptor_of(x, i);
        if (e->open) is_open = e->open(t, state_of(x, i));
    }
    return is_open;
}

void rw_extensions_cut(const struct rw_extensions *x, rw_tape *t)
{
    for (unsigned i = 0; i < x->n; i++) {
        const struct rw_extension *const e = descriptor_of(x, i);
        if (e->cut) e->cut(t, state_of(x, i));
    }
}

void rw_extensions_reset(const struct rw_extensions *x, rw_tape *t)
{
    for (unsigned i = 0; i < x->n; i++) {
        const struct rw_extension *const e = descriptor_of(x, i);
        if (e->reset) e->reset(t, state_of(x, i));
    }
}

void rw_extensions_report(const struct rw_extensions *x, const rw_context *ctx, rw_memory *memory)
{
    for (unsigned i = 0; i < x->n; i++) {
        const struct rw_extension *const e = descriptor_of(x, i);
        if (e->report) e->report(ctx, state_of(x, i), memory);
    }
}

/* A state is found until its destroy has returned. */
void rw_extensions_destroy(struct rw_extensions *x, rw_context *ctx)
{
    for (; x->n; x->n--) {
        const struct rw_extension *const e = descriptor_of(x, x->n - 1);
        void **const state = &x->state[x->created[x->n - 1]];
        if (e->destroy) e->destroy(ctx, *state);
        rw_free(*state);
        *state = NULL;
    }
}
