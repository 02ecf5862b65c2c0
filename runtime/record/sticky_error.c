/* The sticky error of a context: the first one, until it is cleared. And the last error of calls without a context,
   per thread. */
#include "base/null_argument_text.h"
#include "record/context.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The calling thread's last failed call without a context. */
static _Thread_local struct {
    rw_status status;
    char message[RW_MESSAGE_MAX];
} without_context;

/* The caller's message says what failed; the device's says why. */
static void append_device_message(rw_context *ctx)
{
    char text[RW_MESSAGE_MAX] = "";
    const size_t length = strlen(ctx->message);
    if (ctx->device->take_message) ctx->device->take_message(ctx->device_state, text, sizeof text);
    if (*text) snprintf(ctx->message + length, sizeof ctx->message - length, ": %s", text);
}

/* Messages contain names from files and callers; whatever these hold, a message is one line. */
static void keep_on_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}

rw_status rw_fail(rw_context *ctx, rw_status status, const char *fmt, ...)
{
    if (ctx && ctx->status) return status;
    char *const message = ctx ? ctx->message : without_context.message;
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, RW_MESSAGE_MAX, fmt, args);
    va_end(args);
    *(ctx ? &ctx->status : &without_context.status) = status;
    if (ctx) append_device_message(ctx);
    keep_on_one_line(message);
    return status;
}

/* The name as callers write it: without the _at of functions that take a call site. */
static int length_of_name(const char *function)
{
    const size_t n = strlen(function);
    return (int)(n > 3 && !strcmp(function + n - 3, "_at") ? n - 3 : n);
}

/* Refuses a call that would change what the library is working on. */
bool rw_refuse_callback(const rw_context *read_only, const char *function)
{
    static const char *const by[] = {
        [RW_CALLBACK_RULE] = "a gradient rule or a recorder, which may only record",
        [RW_CALLBACK_QUERY] = "an op's check, cost, draws or workspace function, which may only describe the call",
        [RW_CALLBACK_KERNEL] = "a kernel while a step of the context runs",
    };
    rw_context *const ctx = (rw_context *)(uintptr_t)read_only;
    ctx->edge.refused = true;
    rw_fail(ctx, RW_ERR_ARGUMENT, "%.*s: expected a call from outside a callback, got one by %s",
            length_of_name(function), function, by[ctx->edge.callback]);
    return true;
}

bool rw_recording_refused(const rw_tape *t, const char *function)
{
    RW_LOOKS_ONLY; /* the caller does the work for which a mode is set */
    return rw_edge_refuses(rw_edge_context(t), RW_CALLBACK_RULE, function ? function : __func__);
}

rw_status rw_check_runs(rw_context *ctx, const char *what)
{
    if (!ctx->plan_only) return RW_OK;
    return rw_fail(ctx, RW_ERR_UNSUPPORTED, "%s: the context plans only (rw_context_params.plan_only): it executes "
                   "nothing, and its tensors have no contents", what);
}

const char *rw_error_message(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    if (!ctx) return without_context.message;
    return ctx->status ? ctx->message : "";
}

rw_status rw_error_status(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    return ctx ? ctx->status : without_context.status;
}

void rw_error_clear(rw_context *ctx)
{
    RW_ENTER(ctx, );
    char *const message = ctx ? ctx->message : without_context.message;
    *(ctx ? &ctx->status : &without_context.status) = RW_OK;
    message[0] = '\0';
    if (ctx) ctx->error_stays = false;
}

bool rw_shape_check(rw_context *ctx, const char *what, rw_site at, rw_dtype dtype, rw_shape shape)
{
    char text[RW_FAULT_MAX];
    const rw_status status = rw_shape_fault(dtype, shape, text, sizeof text);
    if (status) rw_fail(ctx, status, "%s at %s:%d: %s", what, rw_file_of(at), at.line, text);
    return !status;
}

bool rw_count_check(rw_context *ctx, const char *what, size_t n)
{
    if (n <= UINT32_MAX) return true;
    rw_fail(ctx, RW_ERR_ARGUMENT, "%s(n): expected at most %u elements, got %zu%s", what, UINT32_MAX, n,
            n > SIZE_MAX / 2 ? "; it was negative before its conversion to size_t" : "");
    return false;
}

rw_status rw_fail_null(rw_context *ctx, const char *what, const char *argument)
{
    return rw_fail(ctx, RW_ERR_ARGUMENT, "%s: %s is NULL; expected %s", what, argument, rw_expected_of_null(argument));
}
