/**
 * rewind/status.h - error codes and messages.
 *
 * Functions that can fail return an rw_status. Functions that record an op return NULL on failure. The first error is
 * sticky: the context keeps it until rw_error_clear(). An op given NULL returns NULL, so a model needs no check per
 * line. The library never exits, aborts or prints.
 *
 * Thread-safety: as for the context, except rw_status_name(), which any thread may call.
 */
#ifndef REWIND_STATUS_H
#define REWIND_STATUS_H

#include <rewind/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Error codes. Their values do not change between versions. */
typedef enum rw_status {
    RW_OK = 0,
    RW_ERR_ARGUMENT = 1,     ///< NULL, a value out of range, a wrong size
    RW_ERR_SHAPE = 2,        ///< shapes or axes do not fit
    RW_ERR_DTYPE = 3,        ///< the op does not accept this element type
    RW_ERR_REGION = 4,       ///< ckpt_begin() and ckpt_end() do not match, or backward inside an open region
    RW_ERR_POLICY = 5,       ///< a policy string is invalid
    RW_ERR_MEMORY = 6,       ///< an allocation failed
    RW_ERR_MODIFIED = 7,      ///< a captured tensor changed between record and replay
    RW_ERR_MISMATCH = 8,     ///< verification found a byte that differs
    RW_ERR_NO_GRADIENT = 9,  ///< there is an op without a gradient rule between loss and parameter
    RW_ERR_DEVICE = 10,      ///< the device or one of its libraries failed
    RW_ERR_IO = 11,          ///< a file could not be read or written
    RW_ERR_UNSUPPORTED = 12, ///< valid, but this build, device or context cannot do it
    RW_ERR_BUDGET = 13       ///< a byte budget is below the minimum that the planner can reach
} rw_status;

/** Returns a short constant text for a status, such as "shape mismatch". Any thread. */
RW_API const char *rw_status_name(rw_status status);

/**
 * Returns the message of the first error since the last rw_error_clear(): op, shapes or values, and the caller's file
 * and line; "" if there is none, never NULL. Owned by the context and valid until the next call on it. The end of this
 * header explains a NULL context.
 */
RW_API const char *rw_error_message(const rw_context *ctx);

/** Returns the status of that first error; RW_OK if there is none. */
RW_API rw_status rw_error_status(const rw_context *ctx);

/** Clears the error. Results of ops that failed stay NULL; reset the tape to record the step again. */
RW_API void rw_error_clear(rw_context *ctx);

#ifdef __cplusplus
}
#endif

/*
 * Errors without a context
 *
 * With a NULL context, the three functions above refer to the calling thread's last failed call without a context:
 * rw_context_create(), or a function that was given NULL. So every status other than RW_OK has a message.
 *
 * Floating-point mode
 *
 * Results do not depend on the floating-point mode of the calling thread: its rounding mode, flushing of subnormal
 * numbers, or trapped exceptions. Every function that computes switches to the default mode and then restores the
 * caller's mode exactly: rounding, flushing, masks and raised exceptions. fetestexcept() does not report exceptions of
 * the library's own arithmetic.
 */

#endif
