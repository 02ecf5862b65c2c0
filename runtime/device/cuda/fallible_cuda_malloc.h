/* Allocations of CUDA memory, which fault-injection builds can make fail. */
#ifndef RW_DEVICE_CUDA_FALLIBLE_CUDA_MALLOC_H
#define RW_DEVICE_CUDA_FALLIBLE_CUDA_MALLOC_H

#include "base/alloc.h"

#include <cuda_runtime_api.h>

static inline cudaError_t rw_cuda_take(void **ret, size_t bytes)
{
    return rw_alloc_refused() ? cudaErrorMemoryAllocation : cudaMalloc(ret, bytes);
}

static inline cudaError_t rw_cuda_take_host(void **ret, size_t bytes)
{
    return rw_alloc_refused() ? cudaErrorMemoryAllocation : cudaMallocHost(ret, bytes);
}

#endif
