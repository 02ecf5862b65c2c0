/**
 * rewind/compare.h - truth values: comparing, and choosing by what a comparison says.
 *
 * A comparison gives RW_BOOL, one byte an element, and carries no gradient; what is chosen by it does. Everything said
 * in rewind/ops.h of mistakes, ownership, call sites and threads holds here too. Operands broadcast as in NumPy.
 * rw_cast() turns truth values into 1 and 0 of any type, and any type into truth values: not equal to 0.
 */
#ifndef REWIND_COMPARE_H
#define REWIND_COMPARE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ----------------------------------------------------------------------------------------------------------------
 * Comparisons, element by element. Both operands have the same type, any; the result is RW_BOOL. NaN equals nothing and
 * is neither less nor greater.
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
 * The same against a number, which is rounded to x's type first, as PyTorch does: a bfloat16 0.1 equals 0.1. For RW_I32
 * that is towards zero, and to the nearest that there is; for RW_BOOL it is whether the number is other than 0.
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

/** False where x is infinite or NaN. x of a floating-point type. */
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

/* ----------------------------------------------------------------------------------------------------------------
 * Choices. What is not taken gets a gradient of 0, whatever it is: NaN and infinity too.
 */

/** a where the condition (RW_BOOL) holds, else b. a and b of one type, any; all three broadcast. */
RW_API rw_tensor *rw_where_at(rw_site at, rw_tape *t, rw_tensor *condition, rw_tensor *a, rw_tensor *b);
#define rw_where(...) rw_where_at(RW_HERE, __VA_ARGS__)

/** x, and `value` rounded to x's type where the mask (RW_BOOL) holds. The mask broadcasts to x. */
RW_API rw_tensor *rw_masked_fill_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *mask, double value);
#define rw_masked_fill(...) rw_masked_fill_at(RW_HERE, __VA_ARGS__)

/**
 * x within bounds: low below low, high above high, NaN where x is NaN. The gradient passes where low < x < high; at a
 * bound, and where x is NaN, it is 0, as in PyTorch from 2.15 on. -INFINITY and INFINITY leave a side open: PyTorch's
 * clamp_max, clamp_min. low above high gives high everywhere; a bound that is NaN is an error.
 */
RW_API rw_tensor *rw_clamp_at(rw_site at, rw_tape *t, rw_tensor *x, double low, double high);
#define rw_clamp(...) rw_clamp_at(RW_HERE, __VA_ARGS__)

/**
 * The same by bounds that are tensors of x's type, which broadcast with it, PyTorch's clamp of tensors; one of them may
 * be RW_NONE. Recorded as rw_minimum() of rw_maximum(x, low) and high: NaN of any of the three is NaN; the gradient
 * goes to what was taken, of equals to x, where PyTorch shares it.
 */
RW_API rw_tensor *rw_clamp_tensor_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *low, rw_tensor *high);
#define rw_clamp_tensor(...) rw_clamp_tensor_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
