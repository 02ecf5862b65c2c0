/* Opt-in for kernels with more than 48 KiB of dynamic shared memory. */
#include "device/cuda/cuda.h"

#include "base/alloc.h"

#define TRY(call)                                                           \
    do {                                                                    \
        const rw_status try_ = rw_cuda_status(cuda, (call), #call);         \
        if (try_) return try_;                                              \
    } while (0)

rw_status rw_cuda_allow_shared(struct rw_cuda *cuda, const void *kernel)
{
    struct cudaFuncAttributes attributes;
    for (size_t i = 0; i < cuda->n_large; i++)
        if (cuda->large[i] == kernel) return RW_OK;
    TRY(cudaFuncGetAttributes(&attributes, kernel));
    const int limit = cuda->shared_per_block - (int)attributes.sharedSizeBytes;
    TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, limit));
    /* Without memory for the record the next call sets the same number again. */
    if (rw_grow(&cuda->large, &cuda->cap_large, cuda->n_large, 1, sizeof *cuda->large))
        cuda->large[cuda->n_large++] = kernel;
    return RW_OK;
}
