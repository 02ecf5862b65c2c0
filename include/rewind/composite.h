/**
 * rewind/composite.h - functions that record several ops, and behave as one op when they fail.
 *
 *     rw_tensor *geglu_at(rw_site at, rw_tape *t, rw_tensor *gate, rw_tensor *up)
 *     {
 *         if (rw_recording_refused(t, __func__)) return NULL;
 *         if (!rw_operand_check(at, t, gate, "geglu", "gate") || !rw_operand_check(at, t, up, "geglu", "up"))
 *             return NULL;
 *         const rw_composite c = rw_composite_begin(t, "geglu");
 *         return rw_composite_end(&c, rw_mul_at(at, t, rw_gelu_at(at, t, gate), up));
 *     }
 *     #define geglu(...) geglu_at(RW_HERE, __VA_ARGS__)
 *
 * Messages of the ops name the function and the caller's line. If one of them fails, the tape is as before the call.
 * Composite functions nest; messages name the outermost one.
 * @param at the caller's line: RW_HERE in the macro by which the function is called
 * Thread-safety: as for the context.
 */
#ifndef REWIND_COMPOSITE_H
#define REWIND_COMPOSITE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Refuses a call by a function that may not record: a kernel, or a check, cost, draws or workspace function (the end of
 * rewind/op.h). rw_apply() does the same, so this is for the name in the message, and before work without ops.
 * @param t        may be NULL
 * @param function name of the refused function; the message leaves out _at. NULL: this function's name
 * @return true if such a function of the tape's context is running: the error is reported, and the step fails
 */
RW_API bool rw_recording_refused(const rw_tape *t, const char *function);

/**
 * Checks that x can be an operand on the tape, and records nothing: x is a value of the tape, or a parameter, buffer or
 * gradient of its context.
 * @param x        the tensor
 * @param what     name of the calling function; inside a composite function the message has that one's name
 * @param argument name of the parameter
 * @return true if it can. Otherwise false, with a sticky RW_ERR_ARGUMENT whose message names the argument and the
 *         reason; in a gradient rule NULL is not an error.
 */
RW_API bool rw_operand_check(rw_site at, const rw_tape *t, const rw_tensor *x, const char *what, const char *argument);

/** A composite function that is recording. On the stack of the function; it owns nothing. */
typedef struct rw_composite {
    rw_tape *tape;       ///< the tape; NULL after a call that was refused
    const char *within;  ///< name of the surrounding composite function, or NULL
    uint64_t state_[28]; ///< private: what was recorded before
} rw_composite;

/**
 * Begins a composite function. Until rw_composite_end(), messages about ops have its name.
 * @param t    may be NULL: rw_composite_end() then returns its argument
 * @param name valid until rw_composite_end(); NULL: that of the surrounding function, if any
 * @return the state to pass to rw_composite_end()
 */
RW_API rw_composite rw_composite_begin(rw_tape *t, const char *name);

/**
 * Ends a composite function. Everything recorded since rw_composite_begin() is removed if the result is NULL: ops,
 * regions, policies, recipes and no-grad scopes; the generator is set back, too. Only recording belongs between the
 * two.
 * @param c      from rw_composite_begin(), on the same tape, before its reset; inner functions end first
 * @param result of the function, or NULL if one of its ops failed
 * @return result; NULL, with RW_ERR_ARGUMENT, if the tape was reset, or if c is not the innermost function that has
 *         begun and not ended. Then nothing is removed.
 */
RW_API rw_tensor *rw_composite_end(const rw_composite *c, rw_tensor *result);

#ifdef __cplusplus
}
#endif

#endif
