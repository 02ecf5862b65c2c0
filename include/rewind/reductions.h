/**
 * rewind/reductions.h - more reductions, beside those of ops.h, and running sums.
 *
 * Every function returns its result, owned by the tape until rw_tape_reset(); on a mistake it returns NULL, with a
 * message, and leaves the tape as it was. Most record several nodes. axes and keep are as in rw_sum(). Tensors of 16
 * bits are computed in float32 and rounded once, at the end. Orders are fixed by the shape alone.
 *
 * Call the names without _at: rw_var(t, ...) is rw_var_at(RW_HERE, t, ...).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_REDUCTIONS_H
#define REWIND_REDUCTIONS_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Product, by halves; 1 of nothing. The gradient is exact where factors are 0. */
RW_API rw_tensor *rw_prod_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_prod(...) rw_prod_at(RW_HERE, __VA_ARGS__)

/**
 * Variance: the sum of squared distances from the mean over their number n, or with unbiased over n - 1. n of 1 at
 * least, and of 2 with unbiased.
 */
RW_API rw_tensor *rw_var_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool unbiased, bool keep);
#define rw_var(...) rw_var_at(RW_HERE, __VA_ARGS__)

/**
 * Norm of order p: 1 (sum of |x|), 2 (root of the sum of squares) or INFINITY (the largest |x|, of one element at
 * least). The gradient is 0 where the norm of order 2 is 0; that of INFINITY goes to the first largest element.
 */
RW_API rw_tensor *rw_norm_at(rw_site at, rw_tape *t, rw_tensor *x, double p, uint32_t axes, bool keep);
#define rw_norm(...) rw_norm_at(RW_HERE, __VA_ARGS__)

/** x over the larger of its norm of order p along an axis and eps, which is above 0 in float32. */
RW_API rw_tensor *rw_normalize_at(rw_site at, rw_tape *t, rw_tensor *x, double p, int axis, double eps);
#define rw_normalize(...) rw_normalize_at(RW_HERE, __VA_ARGS__)

/** Sums of the elements up to each, along one axis (negative: from the end), added in float64. x's shape and type. */
RW_API rw_tensor *rw_cumsum_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_cumsum(...) rw_cumsum_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
