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

rw_status rw_states_check_bytes(rw_context *ctx, size_t bytes, const char *call)
{
    if (rw_bytes_fit(ctx->memory.optimizer, bytes, 1)) return RW_OK;
    return rw_fail(ctx, RW_ERR_MEMORY, "%s: with %zu bytes more, optimizer states and weight averages would take more "
                   "than 2^60 bytes in all", call, bytes);
}
