/*
 * CUDA calls apply to the calling thread's current device. Every entry into the library makes that the context's own,
 * and restores the caller's. So a program may use several GPUs, and a context in another thread than the one that
 * created it.
 */
#ifndef RW_DEVICE_CUDA_CURRENT_DEVICE_H
#define RW_DEVICE_CUDA_CURRENT_DEVICE_H

#include "device/cuda/cuda.h"

/*
 * Records the driver's context of the current device, which is cuda's, for rw_cuda_enter(). Call it after a call that
 * has created the context.
 */
void rw_cuda_note_context(struct rw_cuda *cuda);

/* Returns what rw_cuda_leave() needs to restore the caller's device. */
int rw_cuda_enter(const struct rw_cuda *cuda);
void rw_cuda_leave(int previous);

static inline void rw_cuda_leave_scope(const int *previous)
{
    rw_cuda_leave(*previous);
}

/* Makes the context's device current until the end of the block. */
#define RW_ON_DEVICE(cuda)                                                                                             \
    const int caller_device_ __attribute__((cleanup(rw_cuda_leave_scope), unused)) = rw_cuda_enter(cuda)

#endif
