/* Digests of device memory, for the verifier. */
#ifndef RW_DEVICE_CUDA_DIGEST_H
#define RW_DEVICE_CUDA_DIGEST_H

#include "device/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Waits for the digest of bytes in device memory: two words, the same for equal bytes. */
cudaError_t rw_cuda_digest(struct rw_cuda *cuda, const void *data, size_t bytes, uint64_t ret[2]);

#ifdef __cplusplus
}
#endif

#endif
