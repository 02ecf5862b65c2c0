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
    /* A thread that reads the slot finds the descriptor there. */
    atomic_store_explicit(&e->slot, (unsigned char)slot, memory_order_release);
    return slot;
}

static const struct rw_extension *descriptor_at(unsigned slot)
{
    return atomic_load_explicit(&descriptors[slot], memory_order_acquire);
}

void *rw_extension_add(struct rw_extensions *x, struct rw_extension *e)
{
    const unsigned slot = slot_of(e);
    void *const state = slot ? rw_calloc(1, e->size ? e->size : 1) : NULL;
    if (!state) return NULL;
    x->state[slot] = state;
    x->created[x->n++] = (unsigned char)slot;
    if (e->reset) x->resets[x->n_resets++] = (unsigned char)slot;
    return state;
}

bool rw_extensions_open(const struct rw_extensions *x, rw_tape *t)
{
    bool is_open = true;
    for (unsigned i = 0; is_open && i < x->n; i++) {
        const unsigned slot = x->created[i];
        if (descriptor_at(slot)->open) is_open = descriptor_at(slot)->open(t, x->state[slot]);
    }
    return is_open;
}

void rw_extensions_cut(const struct rw_extensions *x, rw_tape *t)
{
    for (unsigned i = 0; i < x->n; i++) {
        const unsigned slot = x->created[i];
        if (descriptor_at(slot)->cut) descriptor_at(slot)->cut(t, x->state[slot]);
    }
}

void rw_extensions_reset(const struct rw_extensions *x, rw_tape *t)
{
    for (unsigned i = 0; i < x->n_resets; i++) descriptor_at(x->resets[i])->reset(t, x->state[x->resets[i]]);
}

void rw_extensions_report(const struct rw_extensions *x, const rw_context *ctx, rw_memory *memory)
{
    for (unsigned i = 0; i < x->n; i++) {
        const unsigned slot = x->created[i];
        if (descriptor_at(slot)->report) descriptor_at(slot)->report(ctx, x->state[slot], memory);
    }
}

/* A state is found until its destroy has returned. */
void rw_extensions_destroy(struct rw_extensions *x, rw_context *ctx)
{
    for (; x->n; x->n--) {
        const unsigned slot = x->created[x->n - 1];
        if (descriptor_at(slot)->destroy) descriptor_at(slot)->destroy(ctx, x->state[slot]);
        rw_free(x->state[slot]);
        x->state[slot] = NULL;
    }
    x->n_resets = 0;
}
