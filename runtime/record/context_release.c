/* Frees a context when its last user has released it. */
#include "base/alloc.h"
#include "record/context.h"
#include "record/param.h"

static void free_params(rw_context *ctx)
{
    for (size_t i = 0; i < ctx->n_ids; i++) {
        struct rw_param *const p = ctx->by_id[i];
        if (!p) continue;
        ctx->device->free(ctx->device_state, p->data);
        ctx->device->free(ctx->device_state, p->gradient.data);
        rw_free(p->name);
        rw_free(p);
    }
    rw_free(ctx->params);
    rw_free(ctx->param_hash);
    rw_free(ctx->by_id);
}

/* The extensions are first, because they refer to everything else; the device is last. */
void rw_context_release(rw_context *ctx)
{
    if (--ctx->n_users) return;
    rw_extensions_destroy(&ctx->extensions, ctx);
    free_params(ctx);
    rw_tables_finish(ctx);
    rw_free(ctx->store.path);
    ctx->device->close(ctx->device_state);
    rw_free(ctx);
}
