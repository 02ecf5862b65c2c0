/* The current device. See current.h. */
#include "device/cuda/current.h"

/* A failure is left to the call that follows: it fails as well, on a stream of another device, and says which. */
int rw_cuda_enter(const struct rw_cuda *cuda)
{
    int previous = -1;
    cudaGetLastError(); /* the program may share the runtime: an error of its own is not this call's */
    if (cudaGetDevice(&previous) == cudaSuccess && previous == cuda->ordinal) return -1;
    if (cudaSetDevice(cuda->ordinal) != cudaSuccess) cudaGetLastError();
    return previous;
}

void rw_cuda_leave(int previous)
{
    if (previous >= 0 && cudaSetDevice(previous) != cudaSuccess) cudaGetLastError();
}
