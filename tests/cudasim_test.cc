#include <cudasim.h>
#include <cuda_runtime.h>

#include <criterion/criterion.h>

/* The same spelling as the library's launch.cuh, without its headers. */
template <typename... P, typename... A>
static void launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream, A... args)
{
    cudasim::launch(name, reinterpret_cast<const void *>(kernel), grid, block, shared, stream,
                    [=] { kernel(static_cast<P>(args)...); });
}
#define LAUNCH(kernel, grid, block, shared, stream, ...) launch_kernel(#kernel, kernel, grid, block, shared, stream, __VA_ARGS__)

__global__ void reverse_kernel(const int *x, int *y)
{
    __shared__ int tile[256];
    const int i = threadIdx.x;
    tile[i] = x[blockIdx.x * blockDim.x + i];
    __syncthreads();
    y[blockIdx.x * blockDim.x + i] = tile[blockDim.x - 1 - i];
}

__global__ void warp_sum_kernel(const float *x, float *y)
{
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    for (int d = 16; d; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 == 0) y[(blockIdx.x * blockDim.x + threadIdx.x) / 32] = v;
}

Test(cudasim, smoke)
{
    int *x, *y, h[512];
    for (int i = 0; i < 512; i++) h[i] = i;
    cr_assert_eq(cudaMalloc(&x, sizeof h), cudaSuccess);
    cr_assert_eq(cudaMalloc(&y, sizeof h), cudaSuccess);
    cr_assert_eq(cudaMemcpy(x, h, sizeof h, cudaMemcpyHostToDevice), cudaSuccess);
    LAUNCH(reverse_kernel, 2, 256, 0, 0, x, y);
    cr_assert_eq(cudaGetLastError(), cudaSuccess);
    cr_assert_eq(cudaMemcpy(h, y, sizeof h, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 512; i++) cr_assert_eq(h[i], i / 256 * 256 + 255 - i % 256);
    float f[128], *fx, *fy;
    for (int i = 0; i < 128; i++) f[i] = i;
    cudaMalloc(&fx, sizeof f);
    cudaMalloc(&fy, 16);
    cudaMemcpy(fx, f, sizeof f, cudaMemcpyHostToDevice);
    LAUNCH(warp_sum_kernel, 1, 128, 0, 0, fx, fy);
    cr_assert_eq(cudaMemcpy(f, fy, 16, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < 4; i++) cr_assert_eq(f[i], 32 * 32 * i + 496);
    cudaFree(x), cudaFree(y), cudaFree(fx), cudaFree(fy);
    cr_assert_eq(cudasim_live_allocations(), 0);
}
