/*
 * Effects: recorded nodes that write outside of their outputs (rw_assign(), running statistics, a custom RW_OP_STATEFUL
 * op). Whether a value is computed and whether an effect has happened are separate questions, and this file answers the
 * second one: each effect happens once per recorded step, and effects that a reset drops are counted.
 */
#include "record/tape.h"

#include <rewind/tape.h>

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

size_t rw_context_dropped_effects(const rw_context *ctx, rw_site *ret_first)
{
    RW_LOOKS_ONLY;
    if (ctx && ctx->n_dropped_effects && ret_first) *ret_first = ctx->first_dropped_effect;
    return ctx ? ctx->n_dropped_effects : 0;
}

void rw_tape_drop_effects(rw_tape *t)
{
    rw_context *const ctx = t->ctx;
    rw_site first;
    const size_t pending = rw_tape_pending_effects(t, &first);
    if (!pending) return;
    if (!ctx->n_dropped_effects) ctx->first_dropped_effect = first;
    ctx->n_dropped_effects += pending;
    if (ctx->tells_dropped_effects)
        rw_fail(ctx, RW_ERR_MODIFIED, "rw_tape_reset or rw_tape_destroy: expected no pending effect, got %zu, the "
                "first recorded at %s:%d; call rw_backward(), rw_eval() or rw_eval_effects() first", pending,
                first.file, first.line);
}
