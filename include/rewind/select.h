/**
 * rewind/select.h - parts of tensors, padding and stacking, beyond reshape, slice, split and concat of rewind/ops.h.
 *
 * Negative axes count from the end. Any element type unless stated otherwise, but of FP8 only views: not rw_stack(),
 * rw_pad(), rw_roll() and rw_flip(). Floating-point types have gradients.
 * @param x the operand, or the n operands
 * Conventions of rewind/ops.h on errors, ownership, call sites and threads apply.
 */
#ifndef REWIND_SELECT_H
#define REWIND_SELECT_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Views, which cost nothing.
 */

/** Selects element `index` of an axis and removes the axis; a negative index counts from the end. A view. */
RW_API rw_tensor *rw_select_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t index);
#define rw_select(...) rw_select_at(RW_HERE, __VA_ARGS__)

/** Inserts an axis of extent 1 before axis `axis`; -1: after the last. A view of any x. */
RW_API rw_tensor *rw_unsqueeze_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_unsqueeze(...) rw_unsqueeze_at(RW_HERE, __VA_ARGS__)

/**
 * Splits x into the elements of an axis, each without that axis. Views; their gradients are joined as those of
 * rw_split().
 * @param n the extent of the axis, 1 to 8189
 * @param ret_parts receives the n parts; set to NULL on an error, unless n itself is wrong
 * @return RW_OK or the error, which is sticky
 */
RW_API rw_status rw_unbind_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, rw_tensor **ret_parts, size_t n);
#define rw_unbind(...) rw_unbind_at(RW_HERE, __VA_ARGS__)

/**
 * Windows of `size` elements along an axis, `step` apart: [..., n, ...] -> [..., (n - size) / step + 1, ..., size], as
 * Tensor.unfold; size may be 0. A view, even if windows overlap; an op that needs a dense operand copies all windows.
 * The gradient sums the windows of each element from the first on, rounded once.
 */
RW_API rw_tensor *rw_unfold_at(rw_site at, rw_tape *t, rw_tensor *x, int axis, int64_t size, int64_t step);
#define rw_unfold(...) rw_unfold_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Copies.
 */

/** Stacks n tensors, 1 to 65533, of equal type and shape along a new axis. Always a new tensor. */
RW_API rw_tensor *rw_stack_at(rw_site at, rw_tape *t, rw_tensor *const *x, size_t n, int axis);
#define rw_stack(...) rw_stack_at(RW_HERE, __VA_ARGS__)

/** Values that rw_pad() adds around a tensor. */
typedef enum rw_pad_mode {
    RW_PAD_CONSTANT,  ///< a number, rounded to x's type
    RW_PAD_REFLECT,   ///< the inside, mirrored at the first and last element, which are not repeated
    RW_PAD_REPLICATE, ///< the first and the last element
    RW_PAD_CIRCULAR,  ///< elements of the other end
    RW_PAD_MODE_COUNT
} rw_pad_mode;

/**
 * Pads x, as F.pad. pad holds n numbers, two per axis: (before, after) of the last axis, then of the axis before it,
 * and so on. With RW_PAD_CONSTANT a negative number removes elements. Other modes take numbers of at least 0: reflect
 * less than the extent, circular at most the extent, and all of them 0 for an empty axis. One copy per axis; returns x
 * itself if all numbers are 0. The gradient sums the copies of an element in order, rounded once per axis.
 * @param mode values that are added
 * @param value for RW_PAD_CONSTANT; ignored otherwise
 */
RW_API rw_tensor *rw_pad_at(rw_site at, rw_tape *t, rw_tensor *x, const int64_t *pad, size_t n, rw_pad_mode mode,
                            double value);
#define rw_pad(...) rw_pad_at(RW_HERE, __VA_ARGS__)

/** Rotates elements along an axis by `shift` positions, cyclically: y[i + shift] = x[i]. */
RW_API rw_tensor *rw_roll_at(rw_site at, rw_tape *t, rw_tensor *x, int64_t shift, int axis);
#define rw_roll(...) rw_roll_at(RW_HERE, __VA_ARGS__)

/** Reverses the order of elements along an axis. */
RW_API rw_tensor *rw_flip_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_flip(...) rw_flip_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
