/*
 * The public edge of functions that execute, plan, create or change something, and the calls of custom functions that
 * it guards against. base/public_entry.h describes the edge.
 */
#ifndef RW_RECORD_API_ENTRY_H
#define RW_RECORD_API_ENTRY_H

#include "base/public_entry.h"

#include <rewind/op.h>

/* The file of a call site, for messages; callers may omit it. */
#define RW_NO_FILE "(unknown file)"
static inline const char *rw_file_of(rw_site at)
{
    return at.file ? at.file : RW_NO_FILE;
}

/* Records the error of a refused call; function as the source names it. Always true. */
bool rw_refuse_callback(const rw_context *ctx, const char *function);

/* Is a custom function running that may make fewer calls than this? */
static inline bool rw_edge_refuses(const rw_context *ctx, enum rw_callback allowed, const char *function)
{
    if (__builtin_expect(rw_edge_callback(ctx) <= allowed, 1)) return false;
    return rw_refuse_callback(ctx, function);
}

#define RW_ENTER(context, failure) \
    RW_PUT_MODE_ASIDE_(true);      \
    if (rw_edge_refuses(context, RW_CALLBACK_NONE, __func__)) return failure

/* The context of an object with a member ctx, NULL for NULL. */
#define RW_CONTEXT_OF(object) ((object) ? (object)->ctx : NULL)

/* Around calls of custom functions: pass the result of enter to leave. leave returns whether an illegal call was
   made, and restores the library's floating-point mode if the function has changed it. rw_callback_end() does not
   restore the mode: for a public function that computes nothing afterwards. */
static inline enum rw_callback rw_callback_enter(rw_context *ctx, enum rw_callback callback)
{
    struct rw_edge *const edge = (struct rw_edge *)(void *)ctx;
    const enum rw_callback before = (enum rw_callback)edge->callback;
    edge->callback = (unsigned char)callback;
    return before;
}

static inline bool rw_callback_end(rw_context *ctx, enum rw_callback before)
{
    struct rw_edge *const edge = (struct rw_edge *)(void *)ctx;
    const bool refused = edge->refused;
    edge->callback = (unsigned char)before;
    if (before == RW_CALLBACK_NONE) edge->refused = false;
    return refused;
}

static inline bool rw_callback_leave(rw_context *ctx, enum rw_callback before)
{
    rw_library_mode_keep();
    return rw_callback_end(ctx, before);
}

/* Runs a kernel. After a refused call the result is RW_ERR_ARGUMENT, whatever the kernel returns. */
static inline rw_status rw_call_kernel(rw_context *ctx, rw_kernel_fn kernel, const rw_kernel *k)
{
    const enum rw_callback before = rw_callback_enter(ctx, RW_CALLBACK_KERNEL);
    const rw_status status = kernel(k);
    return rw_callback_leave(ctx, before) ? RW_ERR_ARGUMENT : status;
}

#endif
