/**
 * rewind/reductions.h - reductions beyond those of rewind/ops.h, and running sums.
 *
 * Every function returns its result, owned by the tape until rw_tape_reset(). After an error it returns NULL, the
 * context keeps the message, and the tape is unchanged. Most functions record several nodes. 16-bit types are
 * computed in float32 and rounded once, at the end. The order of every sum depends on shapes alone.
 * @param x a tensor of a floating-point type
 * @param axes, keep as for rw_sum()
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

/** Product, in a tree of halves; 1 for no elements. The gradient is exact where factors are 0. Of single elements, such
    as of a scalar, it may be a view of x. */
RW_API rw_tensor *rw_prod_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool keep);
#define rw_prod(...) rw_prod_at(RW_HERE, __VA_ARGS__)

/**
 * Variance: the sum of squared distances from the mean, divided by their number n, or by n - 1 if unbiased. n must be
 * at least 1, or 2 if unbiased.
 */
RW_API rw_tensor *rw_var_at(rw_site at, rw_tape *t, rw_tensor *x, uint32_t axes, bool unbiased, bool keep);
#define rw_var(...) rw_var_at(RW_HERE, __VA_ARGS__)

/**
 * Norm of order p: 1 (sum of |x|), 2 (root of the sum of squares) or INFINITY (the largest |x|; needs an element). The
 * gradient is 0 where the norm of order 2 is 0; for INFINITY it flows to the first largest element.
 */
RW_API rw_tensor *rw_norm_at(rw_site at, rw_tape *t, rw_tensor *x, double p, uint32_t axes, bool keep);
#define rw_norm(...) rw_norm_at(RW_HERE, __VA_ARGS__)

/** x divided by the larger of eps and its norm of order p along an axis. eps must be positive and finite in float32
    (float64: in float64). */
RW_API rw_tensor *rw_normalize_at(rw_site at, rw_tape *t, rw_tensor *x, double p, int axis, double eps);
#define rw_normalize(...) rw_normalize_at(RW_HERE, __VA_ARGS__)

/** Running sums along an axis (negative: from the end), inclusive, added in float64. x's shape and type. */
RW_API rw_tensor *rw_cumsum_at(rw_site at, rw_tape *t, rw_tensor *x, int axis);
#define rw_cumsum(...) rw_cumsum_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
