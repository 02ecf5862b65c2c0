/* Helpers of the simulator's own tests: launches in the library's notation, without the library. */
#ifndef CUDASIM_TEST_H
#define CUDASIM_TEST_H

#include <cudasim.h>
#include <cuda_runtime.h>

#include <criterion/criterion.h>

#include <algorithm>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#define UNDER_ASAN 1
#else
#define UNDER_ASAN 0
#endif

template <typename... P, typename... A>
static inline void launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared,
                                 cudaStream_t stream, A... args)
{
    cudasim::launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
                    [=] { kernel(static_cast<P>(args)...); });
}
#define LAUNCH(kernel, grid, block, shared, stream, ...) \
    launch_kernel(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)

#define OK(call) cr_assert_eq((call), 0, #call " gave %d", (int)cudaPeekAtLastError())
#define GIVES(call, code) cr_assert_eq((int)(call), (int)(code), #call)

template <typename T> static inline T *device_array(const std::vector<T> &from)
{
    T *p = nullptr;
    OK(cudaMalloc(&p, from.size() * sizeof(T)));
    OK(cudaMemcpy(p, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}

template <typename T> static inline std::vector<T> from_device(const T *p, size_t n)
{
    std::vector<T> to(n);
    OK(cudaMemcpy(to.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

static inline bool reported(const char *part)
{
    return strstr(cudasim_last_report(), part) != nullptr;
}

#endif
