/*
 * Uploads of the caller's bytes to the device: on a copy stream into a ring of staging buffers, also while a step runs,
 * and from there on the compute stream to their destination.
 */
#ifndef RW_DEVICE_CUDA_STAGING_H
#define RW_DEVICE_CUDA_STAGING_H

#include "device/cuda/cuda.h"

rw_status rw_staging_create(struct rw_staging **ret, struct rw_cuda *cuda);
void rw_staging_destroy(struct rw_staging **staging);

/*
 * Queues a copy to `to`, after all work of the compute stream. `from` may be pageable or pinned host memory or device
 * memory, and may change when the call returns. Waits for the compute stream only if more is in flight than the ring
 * holds.
 */
rw_status rw_staging_upload(struct rw_staging *staging, void *to, const void *from, size_t bytes);

#endif
