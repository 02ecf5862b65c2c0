/*
 * Effects: recorded nodes that write outside of their outputs (rw_assign(), running statistics, a custom RW_OP_STATEFUL
 * op). Whether a value is computed and whether an effect has happened are separate questions, and this file answers the
 * second one: each effect happens once per recorded step, and effects that a reset drops are counted.
 */
#include "record/tape.h"

#include <rewind/tape.h>

/* Of a context: made with it, so that a reset needs no memory to count. */
struct dropped {
    size_t n;
    rw_site first;
    bool is_error; /* REWIND_DEBUG=effects */
};

static rw_site site_of(const rw_tape *t, const struct rw_effect *e)
{
    return t->ctx->sites[t->nodes[e->node].site];
}

size_t rw_tape_pending_effects(const rw_tape *t, rw_site *ret_first)
{
    RW_LOOKS_ONLY;
    size_t pending = 0;
    for (size_t i = 0; t && i < t->n_effects; i++) {
        if (t->effects[i].done) continue;
        if (!pending++ && ret_first) *ret_first = site_of(t, &t->effects[i]);
    }
    return pending;
}

/* Counts the effects that have not happened before a reset. */
static void drop_effects(rw_tape *t, void *state)
{
    struct dropped *const d = state;
    rw_site first;
    const size_t pending = rw_tape_pending_effects(t, &first);
    if (!pending) return;
    if (!d->n) d->first = first;
    d->n += pending;
    if (d->is_error)
        rw_fail(t->ctx, RW_ERR_MODIFIED, "rw_tape_reset or rw_tape_destroy: expected no pending effect, got %zu, the "
                "first recorded at %s:%d; call rw_backward(), rw_eval() or rw_eval_effects() first", pending,
                first.file, first.line);
}

static struct rw_extension dropped_extension = { .name = "dropped_effects", .size = sizeof(struct dropped),
                                                 .reset = drop_effects };

rw_status rw_effects_open(rw_context *ctx)
{
    return rw_extension_make(&ctx->extensions, &dropped_extension) ? RW_OK : RW_ERR_MEMORY;
}

void rw_effects_refuse_drops(const rw_context *ctx)
{
    struct dropped *const d = rw_extension_find(&ctx->extensions, &dropped_extension);
    d->is_error = true;
}

size_t rw_context_dropped_effects(const rw_context *ctx, rw_site *ret_first)
{
    RW_LOOKS_ONLY;
    const struct dropped *const d = ctx ? rw_extension_find(&ctx->extensions, &dropped_extension) : NULL;
    if (d && d->n && ret_first) *ret_first = d->first;
    return d ? d->n : 0;
}
