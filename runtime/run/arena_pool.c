/* The pools of arenas and stores: best fit, reuse of the same address for the same run, and release of free memory
   when an allocation fails. */
#include "run/arena_pool.h"

#include "base/alloc.h"

bool rw_store_is_of_parent(const struct rw_arena *store)
{
    return store->data && store->fns->is_closed && store->fns->is_closed(store->data);
}

/* True if it can be borrowed. A store must also be of the context's current kind, and not a file of the parent
   process. */
static bool is_fit(const rw_context *ctx, const struct rw_arena *a)
{
    if (a->lent) return false;
    if (!a->fns || !a->data) return true;
    return a->place == ctx->store.serial && !rw_store_is_of_parent(a);
}

static struct rw_arena *smallest_that_fits(const rw_context *ctx, const struct rw_arenas *arenas, size_t bytes)
{
    struct rw_arena *found = NULL;
    for (struct rw_arena *a = arenas->first; a; a = a->next)
        if (is_fit(ctx, a) && a->bytes >= bytes && (!found || a->bytes < found->bytes)) found = a;
    return found;
}

/* `had` may have been freed meanwhile. */
static struct rw_arena *that_fits(const rw_context *ctx, const struct rw_arenas *arenas, const struct rw_arena *had,
                                  size_t bytes)
{
    for (struct rw_arena *a = arenas->first; had && a; a = a->next)
        if (a == had && !a->lent && a->bytes >= bytes) return a;
    return smallest_that_fits(ctx, arenas, bytes);
}

static struct rw_arena *largest_free(const struct rw_arenas *arenas)
{
    struct rw_arena *found = NULL;
    for (struct rw_arena *a = arenas->first; a; a = a->next)
        if (!a->lent && (!found || a->bytes > found->bytes)) found = a;
    return found;
}

static size_t *counter(rw_context *ctx, const struct rw_arena *a)
{
    return !a->fns ? &ctx->memory.arenas : a->fns->in_file ? &ctx->memory.files : &ctx->memory.host;
}

static rw_status take_memory(const rw_context *ctx, const struct rw_arenas *arenas, size_t bytes, void **ret)
{
    const struct rw_device_fns *const device = ctx->device;
    if (arenas->outside) return ctx->store.fns->open(ctx->device_state, ctx->store.path, bytes, ret);
    *ret = device->alloc(ctx->device_state, bytes);
    return *ret ? RW_OK : RW_ERR_MEMORY;
}

static void free_memory(rw_context *ctx, struct rw_arena *a)
{
    const struct rw_device_fns *const device = ctx->device;
    if (!a->fns) device->free(ctx->device_state, a->data);
    else if (a->data) a->fns->close(ctx->device_state, a->data);
    *counter(ctx, a) -= a->bytes;
    a->data = NULL;
    a->bytes = 0;
}

/* Frees all free arenas: no run needs their contents, and their memory may be what the new one lacks. */
bool rw_arenas_free_unused(rw_context *ctx, struct rw_arenas *arenas)
{
    bool freed = false;
    for (struct rw_arena **link = &arenas->first; *link;) {
        struct rw_arena *const a = *link;
        if (a->lent) {
            link = &a->next;
            continue;
        }
        *link = a->next;
        freed |= a->bytes > 0;
        free_memory(ctx, a);
        rw_free(a);
    }
    return freed;
}

static rw_status set_memory(rw_context *ctx, const struct rw_arenas *arenas, struct rw_arena *a, size_t bytes)
{
    void *data;
    const rw_status status = take_memory(ctx, arenas, bytes, &data);
    if (status) return status;
    free_memory(ctx, a);
    a->data = data;
    a->bytes = bytes;
    a->fns = arenas->outside ? ctx->store.fns : NULL;
    a->place = ctx->store.serial;
    *counter(ctx, a) += bytes;
    return RW_OK;
}

static rw_status add(rw_context *ctx, struct rw_arenas *arenas, size_t bytes, struct rw_arena **ret)
{
    struct rw_arena *const a = rw_calloc(1, sizeof *a);
    const rw_status status = a ? set_memory(ctx, arenas, a, bytes) : RW_ERR_MEMORY;
    if (status) {
        rw_free(a);
        return status;
    }
    a->next = arenas->first;
    arenas->first = a;
    *ret = a;
    return RW_OK;
}

size_t rw_arena_growth(const rw_context *ctx, const struct rw_arenas *arenas, const struct rw_arena *had, size_t bytes)
{
    return that_fits(ctx, arenas, had, bytes) ? 0 : bytes;
}

void rw_arenas_free_others(rw_context *ctx, struct rw_arenas *arenas, const struct rw_arena *had, size_t bytes)
{
    struct rw_arena *a = that_fits(ctx, arenas, had, bytes);
    if (!a || a->bytes > bytes) a = smallest_that_fits(ctx, arenas, bytes);
    const bool stays = a && a->bytes == bytes;
    if (stays) a->lent = true;
    rw_arenas_free_unused(ctx, arenas);
    if (stays) a->lent = false;
}

rw_status rw_arena_borrow(rw_context *ctx, struct rw_arenas *arenas, struct rw_arena *had, size_t bytes,
                          struct rw_arena **ret_arena)
{
    struct rw_arena *a = that_fits(ctx, arenas, had, bytes);
    if (!a) {
        a = largest_free(arenas);
        if (a && set_memory(ctx, arenas, a, bytes)) a = NULL;
        if (!a) {
            rw_arenas_free_unused(ctx, arenas);
            const rw_status status = add(ctx, arenas, bytes, &a);
            if (status) return status;
        }
    }
    a->lent = true;
    *ret_arena = a;
    return RW_OK;
}

void rw_arena_give_back(struct rw_arena *arena)
{
    arena->lent = false;
}

void rw_store_close(rw_context *ctx, struct rw_arena *store)
{
    free_memory(ctx, store);
}

void rw_arenas_finish(rw_context *ctx, struct rw_arenas *arenas)
{
    for (struct rw_arena *a = arenas->first; a; a = a->next) a->lent = false;
    rw_arenas_free_unused(ctx, arenas);
}
