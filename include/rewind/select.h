/**
 * rewind/select.h - parts of a tensor, and tensors put together: beside rewind/ops.h's reshape, slice, split, concat.
 *
 * Axes are counted from the end when negative. Any element type, unless it is said; gradients flow where the type is a
 * floating-point one. Everything said in rewind/ops.h of mistakes, ownership, call sites and threads holds here too.
 */
#ifndef REWIND_SELECT_H
#define REWIND_SELECT_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------------------------
 * Views. They cost nothing.
 */

/** Element `index` of an axis, which is then gone; negative: from the end. A view. */
RW_API rw_tensor *rw_select_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t index);
#define rw_select(...) rw_select_at(RW_HERE, __VA_ARGS__)

/** Puts in an axis of extent 1 in front of axis `axis`; -1: behind the last. A view of any x. */
RW_API rw_tensor *rw_unsqueeze_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_unsqueeze(...) rw_unsqueeze_at(RW_HERE, __VA_ARGS__)

/**
 * All elements of an axis, each without it. Views; their gradients are joined as those of rw_split() are.
 * @param n           the extent of the axis.
 * @param ret_parts   receives the n parts; set to NULL on an error, unless n itself is the mistake.
 */
RW_API rw_status rw_unbind_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int n, rw_tensor **ret_parts);
#define rw_unbind(...) rw_unbind_at(RW_HERE, __VA_ARGS__)

/**
 * Windows of `size` elements along an axis, `step` apart: [..., n, ...] -> [..., (n - size) / step + 1, ..., size], as
 * Tensor.unfold, with a size of 0, too. A view, also where windows overlap; what an op that wants its operand dense
 * makes of it is a copy of all windows. The gradient adds up each element's windows from the first on, rounded once.
 */
RW_API rw_tensor *rw_unfold_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t size, int64_t step);
#define rw_unfold(...) rw_unfold_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Copies.
 */

/** Joins n tensors of equal type and shape along a new axis. Always a new tensor. */
RW_API rw_tensor *rw_stack_at(rw_site at, rw_tape *t, rw_tensor *const *x, int n, int axis);
#define rw_stack(...) rw_stack_at(RW_HERE, __VA_ARGS__)

/** What rw_pad() puts around a tensor. */
typedef enum rw_pad_mode {
    RW_PAD_CONSTANT,  ///< a number, rounded to x's type
    RW_PAD_REFLECT,   ///< what lies inside, mirrored at the first and last element, which are not repeated
    RW_PAD_REPLICATE, ///< the first and the last element
    RW_PAD_CIRCULAR,  ///< what lies at the other end
    RW_PAD_MODE_COUNT
} rw_pad_mode;

/**
 * Puts elements around x. As F.pad: pad holds n numbers, (before, after) of the last axis, then of the one in front of
 * it, ... ; a constant pad below 0 cuts elements off. Other modes take numbers from 0 on: reflect less than the extent,
 * circular at most the extent, none more than 0 of an empty axis. One copy per axis; x itself where all numbers are 0.
 * The gradient adds up what an element was copied to, in order, rounded once per axis.
 * @param value of RW_PAD_CONSTANT; else it has no meaning.
 */
RW_API rw_tensor *rw_pad_at(rw_site at, rw_tape *t, rw_tensor *x, const int64_t *pad, int n, rw_pad_mode mode,
                            double value);
#define rw_pad(...) rw_pad_at(RW_HERE, __VA_ARGS__)

/** Moves elements along an axis by `shift` places, those at the end to the other one: y[i + shift] = x[i]. */
RW_API rw_tensor *rw_roll_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t shift, int axis);
#define rw_roll(...) rw_roll_at(RW_HERE, __VA_ARGS__)

/** The elements of an axis in the opposite order. */
RW_API rw_tensor *rw_flip_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_flip(...) rw_flip_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
