/**
 * rewind/create.h - tensors without an input: constants, sequences and one-hot rows.
 *
 * They are recorded ops, so they need no memory of the caller, and are recomputed rather than kept. They have no
 * gradient. Conventions of rewind/ops.h on errors, ownership, call sites and threads apply.
 * @param dtype element type of the result
 * @param shape shape of the result
 */
#ifndef REWIND_CREATE_H
#define REWIND_CREATE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Zeros. Any type except FP8; RW_BOOL: false. */
RW_API rw_tensor *rw_zeros_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_zeros(...) rw_zeros_at(RW_HERE, __VA_ARGS__)

/** Ones. Any type except FP8; RW_BOOL: true. */
RW_API rw_tensor *rw_ones_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_ones(...) rw_ones_at(RW_HERE, __VA_ARGS__)

/**
 * A constant tensor of any type except FP8. The value is rounded once to the type: RW_I32 truncates it toward zero and
 * clamps it to the range, RW_BOOL takes whether it is not 0.
 */
RW_API rw_tensor *rw_full_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value);
#define rw_full(...) rw_full_at(RW_HERE, __VA_ARGS__)

/**
 * The sequence start, start + step, start + 2 step ... below `end` (above, for a negative step): [ceil((end - start) /
 * step)]. Element i is start + i * step in float64, rounded once to the type. Any type except RW_BOOL and FP8; for
 * RW_I32 start and step must be integers and all elements in range. A step of 0, a step away from `end`, and a number
 * or an end - start that is not finite are RW_ERR_ARGUMENT.
 */
RW_API rw_tensor *rw_arange_at(rw_site at, rw_tape *t, rw_dtype dtype, double start, double end, double step);
#define rw_arange(...) rw_arange_at(RW_HERE, __VA_ARGS__)

/**
 * One-hot rows: index [...] of RW_I32 -> [..., classes] of any type except FP8: 1 where the last axis equals the index,
 * else 0. An index outside 0..classes-1 is RW_ERR_ARGUMENT when the op executes.
 */
RW_API rw_tensor *rw_one_hot_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t classes, rw_dtype dtype);
#define rw_one_hot(...) rw_one_hot_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
