/* Limits arenas to what a plan can address. A larger one is usually due to a mistake in a shape, so the message names
   the largest value. */
#include "plan/addressable_arena.h"

#include "plan/plan.h"

uint64_t rw_arena_size_max(const rw_context *ctx)
{
    return RW_WORD_SOURCE * (uint64_t)ctx->device->alignment - 1;
}

/* The first of the largest values that nodes compute. It exists if the arena is not empty. */
static const rw_tensor *largest_result(const rw_tape *t)
{
    const rw_tensor *most = NULL;
    for (size_t v = 0; v < t->n_values; v++) {
        const rw_tensor *const x = rw_tape_value(t, (uint32_t)v);
        if (x->producer == RW_NONE_ID || x->base != x->id) continue;
        if (!most || rw_tensor_bytes(x) > rw_tensor_bytes(most)) most = x;
    }
    return most;
}

rw_status rw_arena_check_size(const rw_tape *t, uint64_t bytes)
{
    rw_context *const ctx = t->ctx;
    if (bytes <= rw_arena_size_max(ctx)) return RW_OK;
    const rw_tensor *const x = largest_result(t);
    const struct rw_node *const node = &t->nodes[x->producer];
    const rw_site at = ctx->sites[node->site];
    return rw_fail(ctx, RW_ERR_MEMORY, "planning: the step needs an arena of %llu bytes, more than a plan can address; "
                   "the result of %s at %s:%d has %zu", (unsigned long long)bytes, ctx->ops[node->op]->name,
                   rw_file_of(at), at.line, rw_tensor_bytes(x));
}
