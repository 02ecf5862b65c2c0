/**
 * rewind/create.h - values without an input: numbers, sequences and rows with a 1.
 *
 * They are recorded ops, so they take no memory of the caller's and are made again rather than kept. They carry no
 * gradient. Everything said in rewind/ops.h of mistakes, ownership, call sites and threads holds here too.
 */
#ifndef REWIND_CREATE_H
#define REWIND_CREATE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Zeros. Any type; RW_BOOL: false. */
RW_API rw_tensor *rw_zeros_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_zeros(...) rw_zeros_at(RW_HERE, __VA_ARGS__)

/** Ones. Any type; RW_BOOL: true. */
RW_API rw_tensor *rw_ones_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape);
#define rw_ones(...) rw_ones_at(RW_HERE, __VA_ARGS__)

/**
 * One number everywhere, rounded once to the type: RW_I32 towards zero and to the nearest that there is, RW_BOOL to
 * whether it is other than 0.
 */
RW_API rw_tensor *rw_full_at(rw_site at, rw_tape *t, rw_dtype dtype, rw_shape shape, double value);
#define rw_full(...) rw_full_at(RW_HERE, __VA_ARGS__)

/**
 * start, start + step, start + 2 step ... up to and without `end`: [ceil((end - start) / step)]. Element i is
 * start + i * step in float64, rounded once to the type. Any type but RW_BOOL; of RW_I32 start and step are whole
 * numbers and all elements fit in. A step of 0, one that leads away from `end` and a number that is not finite are
 * RW_ERR_ARGUMENT.
 */
RW_API rw_tensor *rw_arange_at(rw_site at, rw_tape *t, rw_dtype dtype, double start, double end, double step);
#define rw_arange(...) rw_arange_at(RW_HERE, __VA_ARGS__)

/**
 * index [...] of RW_I32 -> [..., classes] of the type, any: 1 where the last axis is the index, else 0. An index
 * outside 0..classes-1 is RW_ERR_ARGUMENT when it runs.
 */
RW_API rw_tensor *rw_one_hot_at(rw_site at, rw_tape *t, rw_tensor *index, int64_t classes, rw_dtype dtype);
#define rw_one_hot(...) rw_one_hot_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
