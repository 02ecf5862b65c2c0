/*
 * CUDA kernels of causal_conv1d: one thread per element of the result, with adjacent threads on adjacent channels. For
 * a weight's gradient a block has 32 channels, one tap and a part of the rows, and the parts are added in order.
 */
/* machine_code.py: (rows|weight)_kernel<.*>: taps of a place, each read from the cache by its neighbours */
#include "ops/common/partial_sums.cuh"

extern "C" {
#include "ops/recurrent/causal_conv1d.h"
}

namespace {

constexpr int THREADS = 256, LANES = 32, WARPS = 8;

/* The element of x at tap `tap` of place t; 0 outside of the sequence. */
template <typename T>
__device__ __forceinline__ wide<T> tap_of(const rw_causal_conv1d &j, const T *x, int64_t batch, int64_t t, int64_t c,
                                          int64_t tap)
{
    const int64_t at = t + j.step * (j.taps - 1 - tap);
    if (at < 0 || at >= j.l) return 0;
    return widen(x[batch * j.x[0] + at * j.x[1] + c * j.x[2]]);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    rows_kernel(const T *x, const T *weight, const T *bias, T *to, rw_causal_conv1d j, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const int64_t c = i % j.c, row = i / j.c, t = row % j.l, batch = row / j.l;
    wide<T> sum = bias ? widen(bias[c]) : wide<T>(0);
    for (int64_t tap = 0; tap < j.taps; tap++)
        sum += widen(weight[c * j.taps + tap]) * tap_of(j, x, batch, t, c, tap);
    to[i] = narrow<T>(sum);
}

/* Warps take rows in turn; their sums are added in order. */
template <typename T>
__global__ void __launch_bounds__(LANES *WARPS)
    weight_kernel(const T *x, const T *dy, sum_state<wide<T>> *to, rw_causal_conv1d j, int64_t across)
{
    using W = wide<T>;
    __shared__ W shared[WARPS][LANES];
    const int64_t c = blockIdx.x % across * LANES + threadIdx.x, tap = blockIdx.x / across % j.taps;
    const int64_t part = blockIdx.x / across / j.taps, first = part * RW_CAUSAL_CONV1D_PART, rows = j.b * j.l;
    const int64_t end = first + RW_CAUSAL_CONV1D_PART < rows ? first + RW_CAUSAL_CONV1D_PART : rows;
    W sum = 0;
    for (int64_t row = first + threadIdx.y; row < end && c < j.c; row += WARPS)
        sum += tap_of(j, x, row / j.l, row % j.l, c, tap) * widen(dy[row * j.c + c]);
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || c >= j.c) return;
    for (int w = 1; w < WARPS; w++) sum += shared[w][threadIdx.x];
    to[(part * j.c + c) * j.taps + tap] = { sum };
}

} // namespace

extern "C" size_t rw_causal_conv1d_weight_workspace_cuda(const rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout;
    const size_t each = call->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    return static_cast<size_t>(rw_causal_conv1d_parts(x->dim[0] * x->dim[1]) * call->out[0].layout->numel) * each;
}

extern "C" rw_status rw_causal_conv1d_cuda(const rw_kernel *k)
{
    const rw_causal_conv1d j = rw_causal_conv1d_of(k, false);
    const int64_t n = k->out[0].layout->numel;
    if (!n) return RW_OK;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        const T *const bias = rw_kernel_has(k, 2) ? static_cast<const T *>(k->in[2].data) : nullptr;
        RW_LAUNCH(rows_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const T *>(k->in[1].data), bias, static_cast<T *>(k->out[0].data), j, n);
        return rw_cuda_launched(k);
    });
}

/* Sums the parts of a weight's gradient, then adds them in order. */
extern "C" rw_status rw_causal_conv1d_weight_cuda(const rw_kernel *k)
{
    const rw_causal_conv1d j = rw_causal_conv1d_of(k, true);
    const int64_t n = k->out[0].layout->numel, across = (j.c + LANES - 1) / LANES;
    const int64_t parts = rw_causal_conv1d_parts(j.b * j.l);
    if (!n) return RW_OK;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        sum_state<wide<T>> *const part = static_cast<sum_state<wide<T>> *>(k->workspace);
        if (parts)
            RW_LAUNCH(weight_kernel<T>, static_cast<unsigned>(across * j.taps * parts), dim3(LANES, WARPS), 0, k,
                      static_cast<const T *>(k->in[0].data), static_cast<const T *>(k->in[1].data), part, j, across);
        merge_parts<summed, T>(k, part, parts, n, k->out[0].data, n, 1,
                               rw_kernel_has(k, 2) ? k->in[2].data : nullptr);
        return rw_cuda_launched(k);
    });
}
