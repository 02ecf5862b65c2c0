/* Included by .cu files: the runtime calls and, in C++, the simulator's versions of the device's built-ins. */
#ifndef CUDASIM_CUDA_RUNTIME_H
#define CUDASIM_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include "cudasim_device.h"
#include "cudasim_warp.h"
#include "cudasim_atomic.h"
#include "cudasim_math.h"
#include "cudasim_runtime_templates.h"
#endif

#endif
