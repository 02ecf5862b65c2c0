/*
 * Delayed scaling: the rule by which amax histories advance, shared by CPU and CUDA. C11 and C++17.
 *
 *     note_amax       (amax ..., noted) -> noted                               the largest of each row, in any order
 *     delayed_update  ([found,] amax, scale, history) -> amax, scale, history  the scales of the next step
 *
 * An amax is a magnitude whose bits are compared as an integer. NaN is larger than all other values, so a value that is
 * not finite is detected whatever follows it.
 */
#ifndef RW_OPS_FLOAT8_DELAYED_UPDATE_H
#define RW_OPS_FLOAT8_DELAYED_UPDATE_H

#include "ops/float8/f8.h"
#include "ops/float8/fp8_scaling_ops.h"

#include <rewind/precision.h>

/* Does a history advance by this amax? */
RW_HOST_DEVICE bool rw_delayed_takes(float amax, bool left_out)
{
    const uint32_t m = rw_f8_magnitude(amax);
    return !left_out && m > 0 && m < RW_F8_INFINITY;
}

/* The scale of row i, from the largest amax of its history. A power of two: dividing by it is exact. */
RW_HOST_DEVICE float rw_delayed_scale(const struct rw_delayed_attrs *a, int64_t i, uint32_t magnitude)
{
    const bool e5m2 = i % RW_DELAYED_OPERANDS == RW_DELAYED_GRADIENT && a->gradient_dtype == RW_F8_E5M2;
    return rw_f8_scale_of_amax(magnitude, e5m2, true) / (float)(1 << a->margin);
}

#endif
