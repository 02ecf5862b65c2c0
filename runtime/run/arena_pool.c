/* The pool of arenas. See arena_pool.h. */
#include "run/arena_pool.h"

#include "base/alloc.h"

static struct rw_arena *smallest_that_fits(const struct rw_arenas *arenas, size_t bytes)
{
    struct rw_arena *found = NULL;
    for (struct rw_arena *a = arenas->first; a; a = a->next)
        if (!a->lent && a->bytes >= bytes && (!found || a->bytes < found->bytes)) found = a;
    return found;
}

static struct rw_arena *largest_free(const struct rw_arenas *arenas)
{
    struct rw_arena *found = NULL;
    for (struct rw_arena *a = arenas->first; a; a = a->next)
        if (!a->lent && (!found || a->bytes > found->bytes)) found = a;
    return found;
}

static size_t *counter(rw_context *ctx, const struct rw_arenas *arenas)
{
    return arenas->outside ? &ctx->memory.host : &ctx->memory.arenas;
}

static void *take_memory(const rw_context *ctx, const struct rw_arenas *arenas, size_t bytes)
{
    const struct rw_device_fns *const device = ctx->device;
    void *store = NULL;
    if (!arenas->outside) return device->alloc(ctx->device_state, bytes);
    return device->store->open(ctx->device_state, bytes, &store) ? NULL : store;
}

static void free_memory(rw_context *ctx, const struct rw_arenas *arenas, struct rw_arena *a)
{
    const struct rw_device_fns *const device = ctx->device;
    if (!arenas->outside) device->free(ctx->device_state, a->data);
    else if (a->data) device->store->close(ctx->device_state, a->data);
    *counter(ctx, arenas) -= a->bytes;
    a->data = NULL;
    a->bytes = 0;
}

/* What is in free arenas belongs to no run any more: without memory for another one, theirs may be what it lacks. */
static void free_all_free(rw_context *ctx, struct rw_arenas *arenas)
{
    for (struct rw_arena **link = &arenas->first; *link;) {
        struct rw_arena *const a = *link;
        if (a->lent) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        free_memory(ctx, arenas, a);
        rw_free(a);
    }
}

static bool set_memory(rw_context *ctx, const struct rw_arenas *arenas, struct rw_arena *a, size_t bytes)
{
    void *const data = take_memory(ctx, arenas, bytes);
    if (!data) return false;
    free_memory(ctx, arenas, a);
    a->data = data;
    a->bytes = bytes;
    *counter(ctx, arenas) += bytes;
    return true;
}

static struct rw_arena *add(rw_context *ctx, struct rw_arenas *arenas, size_t bytes)
{
    struct rw_arena *const a = rw_calloc(1, sizeof *a);
    if (!a) return NULL;
    if (!set_memory(ctx, arenas, a, bytes)) {
        rw_free(a);
        return NULL;
    }
    a->next = arenas->first;
    arenas->first = a;
    return a;
}

struct rw_arena *rw_arena_borrow(rw_context *ctx, struct rw_arenas *arenas, struct rw_arena *had, size_t bytes)
{
    struct rw_arena *a = had && !had->lent && had->bytes >= bytes ? had : smallest_that_fits(arenas, bytes);
    if (!a) {
        a = largest_free(arenas);
        if (a && !set_memory(ctx, arenas, a, bytes)) a = NULL;
        if (!a) free_all_free(ctx, arenas);
        if (!a) a = add(ctx, arenas, bytes);
    }
    if (a) a->lent = true;
    return a;
}

void rw_arena_give_back(struct rw_arena *arena)
{
    arena->lent = false;
}

void rw_arenas_finish(rw_context *ctx, struct rw_arenas *arenas)
{
    for (struct rw_arena *a = arenas->first; a; a = a->next) a->lent = false;
    free_all_free(ctx, arenas);
}
