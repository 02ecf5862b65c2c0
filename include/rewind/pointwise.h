/**
 * rewind/pointwise.h - element-wise ops beyond those of rewind/ops.h.
 *
 * Every function records one node on tape t and returns its result, owned by the tape until rw_tape_reset(). After an
 * error it returns NULL, the context keeps the message, and the tape is unchanged. Constants are doubles, rounded as
 * for any op of that type. Any floating-point type; any strides.
 *
 * Call the names without _at: rw_elu(t, x, 1) is rw_elu_at(RW_HERE, t, x, 1).
 * Thread-safety: as for the context.
 */
#ifndef REWIND_POINTWISE_H
#define REWIND_POINTWISE_H

#include <rewind/tape.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * a to the power of b, which broadcast as in rw_add(). The gradient of a is 0 where b is 0; the gradient of b is 0
 * where a is 0 and b is not negative. NaN for a negative a with a b that is not an integer.
 */
RW_API rw_tensor *rw_pow_at(rw_site at, rw_tape *t, rw_tensor *a, rw_tensor *b);
#define rw_pow(...) rw_pow_at(RW_HERE, __VA_ARGS__)

/** Sign of x: -1, 0 or 1; 0 for NaN, as in PyTorch. No gradient. */
RW_API rw_tensor *rw_sign_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_sign(...) rw_sign_at(RW_HERE, __VA_ARGS__)

/** x if x > 0, else alpha (exp(x) - 1); the gradient at 0 is alpha. Source: Clevert et al., arXiv 1511.07289. */
RW_API rw_tensor *rw_elu_at(rw_site at, rw_tape *t, rw_tensor *x, double alpha);
#define rw_elu(...) rw_elu_at(RW_HERE, __VA_ARGS__)

/**
 * x if x > 0, else alpha (exp(x / alpha) - 1); the gradient at 0 is 1. Source: Barron, arXiv 1704.07483.
 * @param alpha finite and not 0 in the type of x, or RW_ERR_ARGUMENT
 */
RW_API rw_tensor *rw_celu_at(rw_site at, rw_tape *t, rw_tensor *x, double alpha);
#define rw_celu(...) rw_celu_at(RW_HERE, __VA_ARGS__)

/** x if x > 0, else slope x; the gradient at 0 is the slope. */
RW_API rw_tensor *rw_leaky_relu_at(rw_site at, rw_tape *t, rw_tensor *x, double slope);
#define rw_leaky_relu(...) rw_leaky_relu_at(RW_HERE, __VA_ARGS__)

/** min(max(x, 0), 6); the gradient is 0 at 0 and at 6, 1 at NaN. */
RW_API rw_tensor *rw_relu6_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_relu6(...) rw_relu6_at(RW_HERE, __VA_ARGS__)

/**
 * x relu6(x + 3) / 6, 0 at -infinity; the gradient is 0 at -3 and 1 at 3. Source: Howard et al., "Searching for
 * MobileNetV3", arXiv 1905.02244.
 */
RW_API rw_tensor *rw_hardswish_at(rw_site at, rw_tape *t, rw_tensor *x);
#define rw_hardswish(...) rw_hardswish_at(RW_HERE, __VA_ARGS__)

#ifdef __cplusplus
}
#endif

#endif
