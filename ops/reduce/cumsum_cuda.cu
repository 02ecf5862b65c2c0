/*
 * CUDA kernels of cumsum, in double. For adjacent columns, one thread per column runs along the axis. For a last axis,
 * one block per row: its threads process tiles of the row and exchange their sums in a fixed tree.
 */
/* machine_code.py: (columns|runs)_sum_kernel<.*>: limited by the sums before, in double */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/reduce/cumsum.h"
}

namespace {

constexpr int THREADS = 256, EACH = 4; /* elements of a thread in a tile */

/* x and y may be the same: an element is read before it is written, by the same thread. */
template <typename T>
__global__ void __launch_bounds__(THREADS) columns_sum_kernel(const T *x, T *y, struct rw_cumsum_cut c, bool backwards)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= c.outer * c.inner) return;
    const int64_t start = i / c.inner * c.n * c.inner + i % c.inner;
    double sum = 0;
    for (int64_t k = 0; k < c.n; k++) {
        const int64_t at = start + (backwards ? c.n - 1 - k : k) * c.inner;
        sum += static_cast<double>(widen(x[at]));
        y[at] = narrow<T>(static_cast<wide<T>>(sum));
    }
}

/* The prefix sums of one row per block, tile by tile. */
template <typename T>
__global__ void __launch_bounds__(THREADS) runs_sum_kernel(const T *x, T *y, int64_t n, bool backwards)
{
    __shared__ double warps[THREADS / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int64_t start = static_cast<int64_t>(blockIdx.x) * n;
    double before = 0; /* of the previous tiles */
    for (int64_t tile = 0; tile < n; tile += THREADS * EACH) {
        double own[EACH], sum = 0;
        const int64_t first = tile + threadIdx.x * EACH;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int64_t i = first + e, at = start + (backwards ? n - 1 - i : i);
            own[e] = sum += i < n ? static_cast<double>(widen(x[at])) : 0;
        }
        double up = sum; /* of the threads of the warp up to this one */
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, up, d);
            if (lane >= d) up += other;
        }
        if (lane == 31) warps[warp] = up;
        __syncthreads();
        double here = before, all = before;
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) here += warps[w];
            all += warps[w];
        }
        here += up - sum;
#pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int64_t i = first + e, at = start + (backwards ? n - 1 - i : i);
            if (i < n) y[at] = narrow<T>(static_cast<wide<T>>(here + own[e]));
        }
        before = all;
        __syncthreads();
    }
}

} // namespace

/* Launches the kernel for the position of the axis and the type. */
extern "C" rw_status rw_cumsum_cuda(const rw_kernel *k)
{
    const rw_cumsum_attrs *const a = static_cast<const rw_cumsum_attrs *>(k->attrs);
    const rw_layout *const l = k->in[0].layout;
    if (!l->numel) return RW_OK;
    const struct rw_cumsum_cut c = rw_cumsum_cut(l, a->axis);
    const bool backwards = a->backwards != 0;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const T *const x = static_cast<const T *>(k->in[0].data);
        T *const y = static_cast<T *>(k->out[0].data);
        if (c.inner == 1)
            RW_LAUNCH(runs_sum_kernel<T>, static_cast<unsigned>(c.outer), THREADS, 0, k, x, y, c.n, backwards);
        else
            RW_LAUNCH(columns_sum_kernel<T>, blocks_for(c.outer * c.inner, THREADS), THREADS, 0, k, x, y, c, backwards);
        return rw_cuda_launched(k);
    });
}
