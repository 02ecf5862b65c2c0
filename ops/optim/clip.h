/* The rule of gradient clipping, shared by the CPU and CUDA kernels. C11 and C++17. */
#ifndef RW_OPS_OPTIM_CLIP_H
#define RW_OPS_OPTIM_CLIP_H

#include "base/host_device.h"

#include <math.h>

/* The factor of gradients with that norm; 1 leaves them unchanged. A norm that is NaN or infinite makes all of them
   NaN: a factor of 0 would hide it in the finite ones. No norm exceeds an infinite limit. */
RW_HOST_DEVICE double rw_clip_factor(double norm, double limit, bool keeps_nonfinite)
{
    if (norm - norm == 0) return norm > limit ? limit / norm : 1;
    return keeps_nonfinite || limit - limit != 0 ? 1 : (double)NAN;
}

#endif
