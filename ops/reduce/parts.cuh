/* The second stage of sums by column: partial results of blocks of rows, added in a fixed order. */
#ifndef RW_OPS_REDUCE_PARTS_CUH
#define RW_OPS_REDUCE_PARTS_CUH

#include "device/cuda/kernel.cuh"

constexpr int PARTS_COLUMNS = 32, PARTS_ROWS = 32;

/* to[c] = sum over p of part[p * stride + c]: every 32nd part by one thread, then the threads in order. In double. */
template <typename W, typename T>
__global__ void __launch_bounds__(PARTS_COLUMNS * PARTS_ROWS)
    add_parts_kernel(const W *part, int64_t parts, int64_t stride, T *to, int64_t n, double divisor)
{
    __shared__ double sums[PARTS_ROWS][PARTS_COLUMNS + 1];
    const int64_t c = static_cast<int64_t>(blockIdx.x) * PARTS_COLUMNS + threadIdx.x;
    double sum = 0;
    if (c < n) {
#pragma unroll 4
        for (int64_t p = threadIdx.y; p < parts; p += PARTS_ROWS) sum += static_cast<double>(part[p * stride + c]);
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= n) return;
    for (int i = 1; i < PARTS_ROWS; i++) sum += sums[i][threadIdx.x];
    to[c] = narrow<T>(static_cast<wide<T>>(sum / divisor));
}

template <typename W, typename T>
static inline void add_parts(const rw_kernel *k, const W *part, int64_t parts, int64_t stride, void *to, int64_t n, double divisor)
{
    if (!n) return;
    RW_LAUNCH((add_parts_kernel<W, T>), blocks_for(n, PARTS_COLUMNS), dim3(PARTS_COLUMNS, PARTS_ROWS), 0, k, part, parts, stride,
              static_cast<T *>(to), n, divisor);
}

#endif
