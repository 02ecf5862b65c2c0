/*
 * CUDA's calls mean the calling thread's current device. Every way into the library makes that the context's own, and
 * gives the caller's back: a program may use several GPUs, and a context in another thread than the one that made it.
 */
#ifndef RW_DEVICE_CUDA_CURRENT_H
#define RW_DEVICE_CUDA_CURRENT_H

#include "device/cuda/cuda.h"

/* Behind a call that has made a context on the current device, which is cuda's: what rw_cuda_enter() goes back to. */
void rw_cuda_note_context(struct rw_cuda *cuda);

/* Returns what rw_cuda_leave() needs to give the caller's device back. */
int rw_cuda_enter(const struct rw_cuda *cuda);
void rw_cuda_leave(int previous);

static inline void rw_cuda_leave_scope(const int *previous)
{
    rw_cuda_leave(*previous);
}

/* The context's device until the end of the block. */
#define RW_ON_DEVICE(cuda)                                                                                             \
    const int caller_device_ __attribute__((cleanup(rw_cuda_leave_scope), unused)) = rw_cuda_enter(cuda)

#endif
