/*
 * Launching a kernel, and its dynamic shared memory, with one syntax for nvcc and for the simulator of the tests.
 *
 *     RW_LAUNCH(rows_kernel<float>, grid, block, shared_bytes, k, x, y, n);
 *     RW_LAUNCH((tile_kernel<float, 64>), grid, block, shared_bytes, k, x, y);    // commas need parentheses
 *
 * k is the rw_kernel: its device has the stream. Arguments are evaluated once, at the call. After a refused launch or
 * copy nothing more is launched until rw_cuda_launched() has reported it, because a later stage of a node would read
 * what an earlier one never wrote.
 */
#ifndef RW_DEVICE_CUDA_LAUNCH_CUH
#define RW_DEVICE_CUDA_LAUNCH_CUH

#include "device/cuda/cuda.h"

#include <cuda_runtime.h>

static inline cudaStream_t rw_stream(const rw_kernel *k)
{
    return (cudaStream_t)k->stream;
}

/* Only nvcc compiles <<<>>> and extern __shared__. The launch is host code; kernels with RW_SHARED_DYNAMIC() are
   executed as PTX by ptx_losses and ptx_attention. */
#ifdef RW_CUDASIM

template <typename... P, typename... A>
static inline void rw_launch(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                             cudaStream_t stream, const A &...args)
{
    if (cudaPeekAtLastError()) return;
    /* Passes the kernel's address: more than 48 KiB of dynamic shared memory must be requested, as on a device. */
    cudasim::launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
                    [=] { kernel(static_cast<P>(args)...); }, cudasim::pack_parameters<P...>(args...));
}

#define RW_LAUNCH(kernel, grid, block, shared, k, ...)                                                                 \
    rw_launch(#kernel, kernel, grid, block, shared, rw_stream(k), __VA_ARGS__)
#define RW_SHARED_DYNAMIC(type, name) type *const name = static_cast<type *>(cudasim::dynamic_shared())

#else

#define RW_LAUNCH(kernel, grid, block, shared, k, ...)                      \
    do {                                                                    \
        const auto rw_kernel_ = kernel;                                     \
        if (!cudaPeekAtLastError())                                         \
            rw_kernel_<<<grid, block, shared, rw_stream(k)>>>(__VA_ARGS__); \
    } while (0)
#define RW_SHARED_DYNAMIC(type, name)                                  \
    extern __shared__ __align__(16) unsigned char rw_dynamic_shared[]; \
    type *const name = reinterpret_cast<type *>(rw_dynamic_shared)

#endif

#endif
