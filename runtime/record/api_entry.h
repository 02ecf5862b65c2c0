/*
 * The public edge. Each function of include/rewind begins with one of these lines; tests/tools/public_entry_macros.py
 * fails for one that does not:
 *
 *     RW_ENTER(context, failure);            runs, plans, creates or changes something
 *     RW_ENTER_RECORDING(context, failure);  records: a gradient rule may call it as well
 *     RW_ENTER_OP(t);                        the same for a function that returns a tensor
 *     RW_ENTER_ANYWHERE;                     computes with floating-point numbers and has no context to disturb
 *     RW_LOOKS_ONLY;                         neither computes nor changes anything
 *
 * All but the last set the library's floating-point mode until the function returns (base/caller_float_mode.h), so the
 * line is the first one: no number is computed before it. The first three refuse a call from a custom function that the
 * library itself is executing, a kernel or another member of an rw_op_def. They then return `failure`, and the error,
 * which is sticky, names caller and callee. The context may be NULL. rewind/op.h lists the calls that such functions
 * may make.
 *
 * The cost is two reads of registers and one of memory.
 */
#ifndef RW_RECORD_API_ENTRY_H
#define RW_RECORD_API_ENTRY_H

#include "base/caller_float_mode.h"

#include <rewind/op.h>

/* The file of a call site, for messages; callers may omit it. */
#define RW_NO_FILE "(unknown file)"
static inline const char *rw_file_of(rw_site at)
{
    return at.file ? at.file : RW_NO_FILE;
}

/* Which function of a custom op the library is calling; later ones may make fewer calls. */
enum rw_callback {
    RW_CALLBACK_NONE,
    RW_CALLBACK_RULE,  /* grad, recompute_output: records */
    RW_CALLBACK_QUERY, /* check, cost, draws, workspace: may only describe their call */
    RW_CALLBACK_KERNEL
};

/* First in rw_context. */
struct rw_edge {
    unsigned char callback; /* enum rw_callback: the function that is running */
    unsigned char refused;  /* it has made an illegal call */
};

/* A tape begins with its context, a context with its rw_edge. */
static inline rw_context *rw_edge_context(const rw_tape *t)
{
    return t ? *(rw_context *const *)(const void *)t : NULL;
}

static inline enum rw_callback rw_edge_callback(const rw_context *ctx)
{
    return ctx ? (enum rw_callback) * (const unsigned char *)(const void *)ctx : RW_CALLBACK_NONE;
}

/* Records the error of a refused call; function as the source names it. Always true. */
bool rw_refuse_callback(const rw_context *ctx, const char *function);

/* Is a custom function running that may make fewer calls than this? */
static inline bool rw_edge_refuses(const rw_context *ctx, enum rw_callback allowed, const char *function)
{
    if (__builtin_expect(rw_edge_callback(ctx) <= allowed, 1)) return false;
    return rw_refuse_callback(ctx, function);
}

#define RW_PUT_MODE_ASIDE_(prints)                                                       \
    struct rw_caller_mode caller_mode_ __attribute__((cleanup(rw_caller_mode_leave)));   \
    rw_caller_mode_enter(&caller_mode_, prints)

#define RW_ENTER_ANYWHERE RW_PUT_MODE_ASIDE_(true)
#define RW_ENTER(context, failure) \
    RW_PUT_MODE_ASIDE_(true);      \
    if (rw_edge_refuses(context, RW_CALLBACK_NONE, __func__)) return failure
#define RW_ENTER_RECORDING(context, failure) \
    RW_PUT_MODE_ASIDE_(false);               \
    if (rw_edge_refuses(context, RW_CALLBACK_RULE, __func__)) return failure
#define RW_ENTER_OP(t) RW_ENTER_RECORDING(rw_edge_context(t), NULL)
#define RW_LOOKS_ONLY (void)0

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
