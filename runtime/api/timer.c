/* rw_timer_begin() and rw_timer_end(): marks in the device's queue, or the host's clock if the device has none. */
#include "base/clock.h"
#include "run/run_advance.h"

enum { BEGIN, END };

/* Of a context. */
struct timer {
    bool runs;
    double begin; /* microseconds of the host's clock */
};

static struct rw_extension timer_extension = { .name = "timer", .size = sizeof(struct timer) };

rw_status rw_timer_begin(rw_context *ctx)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_timer_begin", "ctx");
    struct timer *const timer = rw_extension_make(&ctx->extensions, &timer_extension);
    if (!timer) return rw_fail(ctx, RW_ERR_MEMORY, "rw_timer_begin: out of memory");
    rw_status status = RW_OK;
    if (ctx->device->make_marks) status = ctx->device->make_marks(ctx->device_state, RW_TRACE_MARKS);
    if (!status && ctx->device->mark) status = ctx->device->mark(ctx->device_state, RW_LANE_COMPUTE, BEGIN);
    if (status) return rw_fail(ctx, status, "rw_timer_begin: the device's clock could not be read");
    *timer = (struct timer){ true, 1e6 * rw_now_s() };
    return RW_OK;
}

/* Waits for the device, and returns its own time if it has marks. */
rw_status rw_timer_end(rw_context *ctx, double *ret_ms)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_timer_end", "ctx");
    if (!ret_ms) return rw_fail_null(ctx, "rw_timer_end", "ret_ms");
    struct timer *const timer = rw_extension_find(&ctx->extensions, &timer_extension);
    if (!timer || !timer->runs)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_timer_end: expected rw_timer_begin() before, got none");
    double us = 1e6 * rw_now_s() - timer->begin;
    rw_status status = ctx->device->mark ? ctx->device->mark(ctx->device_state, RW_LANE_COMPUTE, END) : RW_OK;
    if (!status) status = rw_runs_wait(ctx);
    if (!status) status = ctx->device->finish(ctx->device_state);
    if (!status && ctx->device->elapsed) status = ctx->device->elapsed(ctx->device_state, BEGIN, END, &us);
    timer->runs = false;
    if (status) return rw_fail(ctx, status, "rw_timer_end: the device failed");
    *ret_ms = us / 1e3;
    return RW_OK;
}
