/* Allocates memory of the device, and frees what runs no longer need if there is none left. */
#include "record/context.h"

void *rw_context_alloc(rw_context *ctx, size_t bytes, bool zeros)
{
    const struct rw_device_fns *const device = ctx->device;
    for (;;) {
        void *const data = (zeros ? device->alloc_zero : device->alloc)(ctx->device_state, bytes);
        if (data || !ctx->up->release(ctx)) return data;
    }
}
