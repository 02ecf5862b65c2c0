/**
 * rewind/compare.h - comparisons, logic, and selection by a condition.
 *
 * A comparison returns RW_BOOL, one byte per element, without a gradient; selections have gradients. Conventions of
 * rewind/ops.h on errors, ownership, call sites and threads apply. Operands broadcast as in NumPy. rw_cast() converts
 * RW_BOOL to 1 and 0 of any type, and any type to RW_BOOL: not equal to 0.
 */
#ifndef REWIND_COMPARE_H
#define REWIND_COMPARE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Element-wise comparisons. Both operands have one type, any; the result is RW_BOOL. NaN equals nothing, and is neither
 * less nor greater than a number.
 */

/** a == b. */
RW_API rw_tensor *rw_eq_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_eq(...) rw_eq_at(RW_HERE, __VA_ARGS__)

/** a != b. */
RW_API rw_tensor *rw_ne_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_ne(...) rw_ne_at(RW_HERE, __VA_ARGS__)

/** a < b. */
RW_API rw_tensor *rw_lt_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_lt(...) rw_lt_at(RW_HERE, __VA_ARGS__)

/** a <= b. */
RW_API rw_tensor *rw_le_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_le(...) rw_le_at(RW_HERE, __VA_ARGS__)

/** a > b. */
RW_API rw_tensor *rw_gt_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_gt(...) rw_gt_at(RW_HERE, __VA_ARGS__)

/** a >= b. */
RW_API rw_tensor *rw_ge_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_ge(...) rw_ge_at(RW_HERE, __VA_ARGS__)

/**
 * The same with a number `value`, which is first rounded to x's type, as in PyTorch: a bfloat16 0.1 equals 0.1. RW_I32
 * truncates it toward zero and clamps it to the range; RW_BOOL takes whether it is not 0.
 */
RW_API rw_tensor *rw_eq_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value);
#define rw_eq_scalar(...) rw_eq_scalar_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_ne_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value);
#define rw_ne_scalar(...) rw_ne_scalar_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_lt_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value);
#define rw_lt_scalar(...) rw_lt_scalar_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_le_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value);
#define rw_le_scalar(...) rw_le_scalar_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_gt_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value);
#define rw_gt_scalar(...) rw_gt_scalar_at(RW_HERE, __VA_ARGS__)
RW_API rw_tensor *rw_ge_scalar_at(rw_site at, rw_tape *t, rw_tensor *x, double value);
#define rw_ge_scalar(...) rw_ge_scalar_at(RW_HERE, __VA_ARGS__)

/** Whether each element is finite: false for infinities and NaN. x of a floating-point type. */
RW_API rw_tensor *rw_isfinite_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_isfinite(...) rw_isfinite_at(RW_HERE, __VA_ARGS__)

/* ----------------------------------------------------------------------------------------------------------------
 * Logic. Operands and results are RW_BOOL.
 */

/** not x. */
RW_API rw_tensor *rw_logical_not_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_logical_not(...) rw_logical_not_at(RW_HERE, __VA_ARGS__)

/** a and b. */
RW_API rw_tensor *rw_logical_and_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_logical_and(...) rw_logical_and_at(RW_HERE, __VA_ARGS__)

/** a or b. */
RW_API rw_tensor *rw_logical_or_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_logical_or(...) rw_logical_or_at(RW_HERE, __VA_ARGS__)

/*
 * ----------------------------------------------------------------------------------------------------------------
 * Selections. An element that is not selected gets a gradient of 0, even if it is NaN or infinite.
 */

/**
 * Selects a where the condition (RW_BOOL) is true, else b. a and b have one type, any; all three broadcast.
 *
 * The gradient of a branch is 0 where it is not selected. An op before that branch multiplies this 0 by its derivative,
 * which gives NaN where the derivative is infinite: where(x > 0, sqrt(x), 0) has a NaN gradient at x = 0. Select a safe
 * operand first, then the result: sqrt(where(x > 0, x, 1)) (docs/patterns.md, "double where").
 */
RW_API rw_tensor *rw_where_at(rw_site at, rw_tape *t, rw_tensor *condition, rw_tensor *a, rw_tensor *b);
#define rw_where(...) rw_where_at(RW_HERE, __VA_ARGS__)

/** x with `value`, rounded to x's type, where the mask (RW_BOOL) is true. The mask broadcasts to x. */
RW_API rw_tensor *rw_masked_fill_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *mask, double value);
#define rw_masked_fill(...) rw_masked_fill_at(RW_HERE, __VA_ARGS__)

/**
 * Clamps x to bounds: low for smaller values, high for larger ones, NaN where x is NaN. The gradient passes where low <
 * x < high; at a bound, and where x is NaN, it is 0, as in PyTorch from 2.15 on. -INFINITY or INFINITY leaves a side
 * open (PyTorch's clamp_max, clamp_min). If low is above high, all elements are high. A NaN bound is an error.
 */
RW_API rw_tensor *rw_clamp_at(rw_site at, rw_tape *t, rw_tensor *x, double low, double high);
#define rw_clamp(...) rw_clamp_at(RW_HERE, __VA_ARGS__)

/**
 * Clamps x to tensors of x's type that broadcast with it, PyTorch's clamp with tensors; one of them may be RW_NONE.
 * Recorded as rw_minimum() of rw_maximum(x, low) and high: NaN in any of the three gives NaN. The gradient goes to the
 * selected operand, and to x if they are equal, where PyTorch splits it.
 */
RW_API rw_tensor *rw_clamp_tensor_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *low, rw_tensor *high);
#define rw_clamp_tensor(...) rw_clamp_tensor_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
