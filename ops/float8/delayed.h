/*
 * Delayed scaling: the rule by which histories move on, shared by CPU and CUDA. C11 and C++17.
 *
 *     note_amax       (amax ..., noted) -> noted                               the largest of each row, in any order
 *     delayed_update  ([found,] amax, scale, history) -> amax, scale, history  the scales of the next step
 *
 * An amax is a magnitude: no number is above all others, so what is not finite is found whatever came after it.
 */
#ifndef RW_OPS_FLOAT8_DELAYED_H
#define RW_OPS_FLOAT8_DELAYED_H

#include "ops/float8/f8.h"
#include "record/own_ops.h"

/* Does a history of this amax move on? */
RW_HOST_DEVICE bool rw_delayed_takes(float amax, bool left_out)
{
    const uint32_t m = rw_f8_magnitude(amax);
    return !left_out && m > 0 && m < RW_F8_INFINITY;
}

/* Of row i, by the amax that counts. A power of two: dividing it is exact. */
RW_HOST_DEVICE float rw_delayed_scale(const struct rw_delayed_attrs *a, int64_t i, uint32_t magnitude)
{
    const bool e5m2 = i % RW_DELAYED_OPERANDS == RW_DELAYED_GRADIENT && a->gradient_dtype == RW_F8_E5M2;
    return rw_f8_scale_of_amax(magnitude, e5m2, true) / (float)(1 << a->margin);
}

#endif
