/* Digests of device memory, for the verifier. */
#ifndef RW_DEVICE_CUDA_DIGEST_H
#define RW_DEVICE_CUDA_DIGEST_H

#include "device/cuda/cuda.h"
#include "base/digest.h"
#include "device/error_flags.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queue a digest of bytes, and a comparison that records its serial in the words if it is the first to fail. All other
   pointers are to device memory. */
cudaError_t rw_cuda_digest(struct rw_cuda *cuda, const void *data, size_t bytes, struct rw_digest *ret);
cudaError_t rw_cuda_compare_digests(struct rw_cuda *cuda, const struct rw_digest *a, const struct rw_digest *b,
                                    uint32_t serial, struct rw_error_flags *words);

#ifdef __cplusplus
}
#endif

#endif
