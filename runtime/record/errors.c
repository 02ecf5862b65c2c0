/* The error that sticks to a context: the first one, until it is read and cleared. */
#include "record/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* What failed is said by who called the device, why by the device. */
static void append_device_message(rw_context *ctx)
{
    char text[RW_MESSAGE_MAX] = "";
    const size_t length = strlen(ctx->message);
    if (ctx->device->take_message) ctx->device->take_message(ctx->device_state, text, sizeof text);
    if (*text) snprintf(ctx->message + length, sizeof ctx->message - length, ": %s", text);
}

/* Names out of files and from callers stand in messages: whatever they hold, a message is one line. */
static void keep_on_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}

rw_status rw_fail(rw_context *ctx, rw_status status, const char *fmt, ...)
{
    if (!ctx || ctx->status) return status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(ctx->message, sizeof ctx->message, fmt, args);
    va_end(args);
    ctx->status = status;
    append_device_message(ctx);
    keep_on_one_line(ctx->message);
    return status;
}

/* What it would change is what the walk stands on. */
bool rw_is_called_by_a_kernel(rw_context *ctx, const char *what)
{
    if (!ctx->running) return false;
    ctx->disturbed = true;
    rw_fail(ctx, RW_ERR_ARGUMENT, "%s: called by a kernel while a step of the context runs", what);
    return true;
}

rw_status rw_check_runs(rw_context *ctx, const char *what)
{
    if (!ctx->plan_only) return RW_OK;
    return rw_fail(ctx, RW_ERR_UNSUPPORTED, "%s: the context plans only (rw_context_params.plan_only): nothing runs in "
                   "it, and nothing has contents", what);
}

const char *rw_error_message(const rw_context *ctx)
{
    return ctx && ctx->status ? ctx->message : "";
}

rw_status rw_error_status(const rw_context *ctx)
{
    return ctx ? ctx->status : RW_OK;
}

void rw_error_clear(rw_context *ctx)
{
    if (!ctx) return;
    ctx->status = RW_OK;
    ctx->message[0] = '\0';
}

bool rw_shape_check(rw_context *ctx, const char *what, rw_site at, rw_dtype dtype, rw_shape shape)
{
    char text[RW_FAULT_MAX];
    const rw_status status = rw_shape_fault(dtype, shape, text, sizeof text);
    if (status) rw_fail(ctx, status, "%s at %s:%d: %s", what, at.file, at.line, text);
    return !status;
}

rw_status rw_fail_null(rw_context *ctx, const char *what, const char *argument)
{
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: %s is NULL", what, argument);
}
