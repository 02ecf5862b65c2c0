/* Poisons and unpoisons arena memory as buffers become live and dead, by the lifetimes of tenants.h. */
#include "run/poison.h"

#ifndef __SANITIZE_ADDRESS__
rw_status rw_poison_attach(rw_context *ctx)
{
    return RW_OK;
}
#else
#include "base/alloc.h"
#include "plan/arena_buffers.h"
#include "run/run_state.h"

#include <sanitizer/asan_interface.h>

/* Of one run. */
struct poison {
    struct rw_observer observer; /* first: the run hands it back */
    struct rw_arena_buffers buffers;
    size_t next; /* next buffer to become live */
    void *arena; /* poisoned; NULL: none is */
    size_t bytes;
};

static void let_go(struct poison *p)
{
    if (p->arena) __asan_unpoison_memory_region(p->arena, p->bytes);
    p->arena = NULL;
}

static rw_status begin(struct rw_observer *o, struct rw_run *r, size_t from, size_t to)
{
    struct poison *const p = (struct poison *)o;
    if (from || !r->arena) return RW_OK;
    p->next = 0;
    p->arena = r->arena->data;
    p->bytes = r->arena->bytes;
    __asan_poison_memory_region(p->arena, p->bytes);
    return RW_OK;
}

static rw_status before(struct rw_observer *o, struct rw_at *at)
{
    struct poison *const p = (struct poison *)o;
    for (; p->arena && p->next < p->buffers.n && p->buffers.buffer[p->next].first <= at->action; p->next++) {
        const struct rw_arena_buffer *const b = &p->buffers.buffer[p->next];
        __asan_unpoison_memory_region(rw_run_arena(at->run) + b->offset, b->bytes);
    }
    return RW_OK;
}

static rw_status after(struct rw_observer *o, const struct rw_at *at)
{
    struct poison *const p = (struct poison *)o;
    if (at->action + 1 == at->run->plan->n_actions) let_go(p);
    for (uint32_t i = p->buffers.ends[at->action]; p->arena && i < p->buffers.ends[at->action + 1]; i++) {
        const struct rw_arena_buffer *const b = &p->buffers.buffer[p->buffers.ending[i]];
        __asan_poison_memory_region(rw_run_arena(at->run) + b->offset, b->bytes);
    }
    return RW_OK;
}

static void end(struct rw_observer *o, struct rw_run *r, rw_status status, size_t action)
{
    if (status) let_go((struct poison *)o);
}

static void detach(struct rw_observer *o, struct rw_run *r)
{
    struct poison *const p = (struct poison *)o;
    let_go(p);
    rw_arena_buffers_free(&p->buffers);
    rw_free(p);
}

static rw_status attach(struct rw_attach *self, struct rw_run *r, struct rw_observer **ret_observer)
{
    const rw_context *const ctx = r->tape->ctx;
    const bool is_other = r->flags & (RW_RUN_REHEARSAL | RW_RUN_AHEAD);
    if (is_other || ctx->verify == RW_VERIFY_FULL || !r->plan->arena_bytes) return RW_OK;
    struct poison *const p = rw_calloc(1, sizeof *p);
    if (!p) return RW_ERR_MEMORY;
    p->observer = (struct rw_observer){ .begin = begin, .before = before, .after = after, .end = end,
                                        .detach = detach };
    if (!rw_arena_buffers_find(&p->buffers, r->tape, r->plan)) {
        rw_free(p);
        return RW_ERR_MEMORY;
    }
    *ret_observer = &p->observer;
    return RW_OK;
}

static void destroy(struct rw_attach *self)
{
    rw_free(self);
}

rw_status rw_poison_attach(rw_context *ctx)
{
    if (ctx->kind != RW_DEVICE_CPU) return RW_OK;
    struct rw_attach *const a = rw_calloc(1, sizeof *a);
    if (!a) return RW_ERR_MEMORY;
    *a = (struct rw_attach){ .attach = attach, .destroy = destroy };
    rw_runs_attach(ctx, a);
    return RW_OK;
}
#endif
