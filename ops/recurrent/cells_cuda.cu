/*
 * CUDA kernels of recurrent cells (cells.h): one thread per element of a state; adjacent threads on adjacent elements.
 */
/* machine_code.py: (lstm|gru)(_backward)?_kernel<.*>: elements side by side, each with its gates; functions limit it */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/recurrent/cells.h"
}

namespace {

constexpr int THREADS = 256;

template <typename W> __device__ __forceinline__ W sigmoid(W x)
{
    return 1 / (1 + exp(-x));
}

/* Results may overwrite operands: a thread reads all of its operands before it writes. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    lstm_kernel(const T *gates, const T *c, T *to_h, T *to_c, int64_t h, int64_t numel)
{
    using W = wide<T>;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= numel) return;
    const T *const from = gates + at / h * h * RW_LSTM_GATES + at % h;
    const W i = sigmoid(widen(from[0])), f = sigmoid(widen(from[h]));
    const W a = tanh(widen(from[2 * h])), o = sigmoid(widen(from[3 * h])), next = f * widen(c[at]) + i * a;
    to_h[at] = narrow<T>(o * tanh(next));
    to_c[at] = narrow<T>(next);
}

/* dh, dc: NULL if there is no gradient. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    lstm_backward_kernel(const T *gates, const T *c, const T *dh_of, const T *dc_of, T *to_gates, T *to_c, int64_t h,
                         int64_t numel)
{
    using W = wide<T>;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= numel) return;
    const int64_t first = at / h * h * RW_LSTM_GATES + at % h;
    const T *const from = gates + first;
    T *const to = to_gates + first;
    const W i = sigmoid(widen(from[0])), f = sigmoid(widen(from[h]));
    const W a = tanh(widen(from[2 * h])), o = sigmoid(widen(from[3 * h])), before = widen(c[at]);
    const W dh = dh_of ? widen(dh_of[at]) : W(0), y = tanh(f * before + i * a), of_h = dh * o * (1 - y * y);
    const W dc = dc_of ? widen(dc_of[at]) + of_h : of_h;
    to[0] = narrow<T>(dc * a * i * (1 - i));
    to[h] = narrow<T>(dc * before * f * (1 - f));
    to[2 * h] = narrow<T>(dc * i * (1 - a * a));
    to[3 * h] = narrow<T>(dh * y * o * (1 - o));
    to_c[at] = narrow<T>(dc * f);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gru_kernel(const T *gates_x, const T *gates_y, const T *state, T *to, int64_t h, int64_t numel)
{
    using W = wide<T>;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= numel) return;
    const int64_t first = at / h * h * RW_GRU_GATES + at % h;
    const T *const x = gates_x + first, *const y = gates_y + first;
    const W r = sigmoid(widen(x[0]) + widen(y[0])), z = sigmoid(widen(x[h]) + widen(y[h]));
    const W a = tanh(widen(x[2 * h]) + r * widen(y[2 * h]));
    to[at] = narrow<T>(a + z * (widen(state[at]) - a));
}

/* The gradients of one element of a GRU cell. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    gru_backward_kernel(const T *gates_x, const T *gates_y, const T *state, const T *dh_of, T *to_x, T *to_y, T *to_h,
                        int64_t h, int64_t numel)
{
    using W = wide<T>;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= numel) return;
    const int64_t first = at / h * h * RW_GRU_GATES + at % h;
    const T *const x = gates_x + first, *const y = gates_y + first;
    const W r = sigmoid(widen(x[0]) + widen(y[0])), z = sigmoid(widen(x[h]) + widen(y[h])), of_h = widen(y[2 * h]);
    const W a = tanh(widen(x[2 * h]) + r * of_h), dh = widen(dh_of[at]), da = dh * (1 - z) * (1 - a * a);
    const W dr = da * of_h * r * (1 - r), dz = dh * (widen(state[at]) - a) * z * (1 - z);
    to_x[first] = to_y[first] = narrow<T>(dr);
    to_x[first + h] = to_y[first + h] = narrow<T>(dz);
    to_x[first + 2 * h] = narrow<T>(da);
    to_y[first + 2 * h] = narrow<T>(da * r);
    to_h[at] = narrow<T>(dh * z);
}

/* Calls launch(type, width of a state, elements, blocks), unless there are no elements. */
template <typename F> rw_status run(const rw_kernel *k, int state, F launch)
{
    const rw_cell size = rw_cell_of(k->in[state].layout);
    const int64_t n = size.n * size.h;
    if (!n) return RW_OK;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        launch(type, size.h, n, blocks_for(n, THREADS));
        return rw_cuda_launched(k);
    });
}

} // namespace

#define IN(i) static_cast<const T *>(k->in[i].data)
#define OUT(i) static_cast<T *>(k->out[i].data)

extern "C" rw_status rw_lstm_cell_cuda(const rw_kernel *k)
{
    return run(k, 1, [=](auto type, int64_t h, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(lstm_kernel<T>, blocks, THREADS, 0, k, IN(0), IN(1), OUT(0), OUT(1), h, n);
    });
}

extern "C" rw_status rw_lstm_cell_backward_cuda(const rw_kernel *k)
{
    const rw_lstm_attrs a = *static_cast<const rw_lstm_attrs *>(k->attrs);
    return run(k, 1, [=](auto type, int64_t h, int64_t n, unsigned blocks) {
        using T = decltype(type);
        const T *const dh = a.has_dh ? IN(2) : nullptr, *const dc = a.has_dc ? IN(a.has_dh ? 3 : 2) : nullptr;
        RW_LAUNCH(lstm_backward_kernel<T>, blocks, THREADS, 0, k, IN(0), IN(1), dh, dc, OUT(0), OUT(1), h, n);
    });
}

extern "C" rw_status rw_gru_cell_cuda(const rw_kernel *k)
{
    return run(k, 2, [=](auto type, int64_t h, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(gru_kernel<T>, blocks, THREADS, 0, k, IN(0), IN(1), IN(2), OUT(0), h, n);
    });
}

extern "C" rw_status rw_gru_cell_backward_cuda(const rw_kernel *k)
{
    return run(k, 2, [=](auto type, int64_t h, int64_t n, unsigned blocks) {
        using T = decltype(type);
        RW_LAUNCH(gru_backward_kernel<T>, blocks, THREADS, 0, k, IN(0), IN(1), IN(2), IN(3), OUT(0), OUT(1), OUT(2), h,
                  n);
    });
}
