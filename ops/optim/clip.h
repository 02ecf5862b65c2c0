/* The rule of clipping, which the kernels of the CPU and of CUDA share. C11 and C++17. */
#ifndef RW_OPS_OPTIM_CLIP_H
#define RW_OPS_OPTIM_CLIP_H

#include "base/host_device.h"
#include "record/own_ops.h"

#include <math.h>

/* What gradients of that norm are multiplied by, 1 where they stay as they are. A norm that is no number or infinite
   makes all of them NaN: a factor of 0 would hide it in the finite ones. No norm is above an infinite limit. */
RW_HOST_DEVICE double rw_clip_factor(double norm, double limit, bool keeps_nonfinite)
{
    if (norm - norm == 0) return norm > limit ? limit / norm : 1;
    return keeps_nonfinite || limit - limit != 0 ? 1 : (double)NAN;
}

#endif
