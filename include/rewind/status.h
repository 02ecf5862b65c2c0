/**
 * rewind/status.h - what a call reports.
 *
 * Functions that can fail return an rw_status. Functions that record an op return NULL instead, and the first error
 * sticks to the context until it is read and cleared; every later op on NULL returns NULL, so a model can be written
 * without a check per line. The library never exits, aborts or prints.
 */
#ifndef REWIND_STATUS_H
#define REWIND_STATUS_H

#include <rewind/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One enum for all failures. Values are stable. */
typedef enum rw_status {
    RW_OK = 0,
    RW_ERR_ARGUMENT = 1,     ///< a NULL, a value out of range, a wrong size
    RW_ERR_SHAPE = 2,        ///< shapes or axes that do not fit
    RW_ERR_DTYPE = 3,        ///< an element type that the op does not take
    RW_ERR_REGION = 4,       ///< ckpt_begin / ckpt_end that do not match, backward inside an open region
    RW_ERR_POLICY = 5,       ///< a policy string that cannot be read
    RW_ERR_MEMORY = 6,       ///< an allocation failed
    RW_ERR_CHANGED = 7,      ///< a captured tensor changed between record and replay
    RW_ERR_MISMATCH = 8,     ///< verification found a byte that differs
    RW_ERR_NO_GRADIENT = 9,  ///< an op without a gradient rule lies between loss and parameter
    RW_ERR_DEVICE = 10,      ///< the device or a library of it failed
    RW_ERR_IO = 11,          ///< a file could not be read or written
    RW_ERR_UNSUPPORTED = 12, ///< well-formed, but this build, device or context cannot do it
    RW_ERR_BUDGET = 13       ///< a byte budget below the least possible peak
} rw_status;

/** A short constant text such as "shape mismatch". Any thread. */
RW_API const char *rw_status_name(rw_status status);

/**
 * The message of the first error since the last rw_error_clear(): op, shapes or values, and the caller's file and line.
 * "" when there is none. Owned by the context, valid until the next call on it. Never NULL; NULL ctx gives "".
 */
RW_API const char *rw_error_message(const rw_context *ctx);

/** The status of that first error, RW_OK when there is none. */
RW_API rw_status rw_error_status(const rw_context *ctx);

/** Forgets the error. Tensors that were never recorded stay NULL; reset the tape to start the step again. */
RW_API void rw_error_clear(rw_context *ctx);

#ifdef __cplusplus
}
#endif

#endif
