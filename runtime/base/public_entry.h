/*
 * The public edge. Each function of include/rewind begins with one of these lines; tests/tools/public_entry_macros.py
 * fails for one that does not:
 *
 *     RW_ENTER(context, failure);         runs, plans, creates or changes something (record/api_entry.h)
 *     RW_ENTER_RECORDING(tape, failure);  records: a gradient rule may call it as well
 *     RW_ENTER_OP(tape);                  the same for a function that returns a tensor
 *     RW_ENTER_ANYWHERE;                  computes with floating-point numbers and has no context to disturb
 *     RW_LOOKS_ONLY;                      neither computes nor changes anything
 *
 * All but the last set the library's floating-point mode until the function returns (caller_float_mode.h), so the line
 * is the first one: no number is computed before it. The first three refuse a call from a custom function that the
 * library itself is executing, a kernel or another member of an rw_op_def. They then return `failure`, and the error,
 * which is sticky, names caller and callee. The context and the tape may be NULL. rewind/op.h lists the calls that such
 * functions may make.
 *
 * The cost is two reads of registers and one of memory.
 */
#ifndef RW_BASE_PUBLIC_ENTRY_H
#define RW_BASE_PUBLIC_ENTRY_H

#include "base/caller_float_mode.h"

#include <rewind/composite.h>

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

/* Is a custom function running that may not record? Then the call is refused. */
static inline bool rw_edge_refuses_recording(const rw_tape *t, const char *function)
{
    if (__builtin_expect(rw_edge_callback(rw_edge_context(t)) <= RW_CALLBACK_RULE, 1)) return false;
    return rw_recording_refused(t, function);
}

#define RW_PUT_MODE_ASIDE_(prints)                                                       \
    struct rw_caller_mode caller_mode_ __attribute__((cleanup(rw_caller_mode_leave)));   \
    rw_caller_mode_enter(&caller_mode_, prints)

#define RW_ENTER_ANYWHERE RW_PUT_MODE_ASIDE_(true)
#define RW_ENTER_RECORDING(tape, failure) \
    RW_PUT_MODE_ASIDE_(false);            \
    if (rw_edge_refuses_recording(tape, __func__)) return failure
#define RW_ENTER_OP(tape) RW_ENTER_RECORDING(tape, NULL)
#define RW_LOOKS_ONLY (void)0

#endif
