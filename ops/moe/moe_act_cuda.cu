/*
 * CUDA kernels of the fused activation and weighting of rows (moe_act.c): forward one thread per element, backward one
 * warp per row.
 */
#include "ops/moe/moe_dots_by_slot.cuh"
#include "ops/pointwise/pointwise_functions.cuh"

#include <type_traits>

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

/* The operands of the activation, of any strides, followed by dy in backward. */
template <typename T, int N> struct act_args {
    const T *in[N];
    int64_t stride[N][2];
    const wide<T> *weights;
    const int32_t *order;
    int64_t rows, width, slots;

    __device__ __forceinline__ wide<T> weight(int64_t row) const { return weights[rw_moe_within(order[row], slots)]; }
    __device__ __forceinline__ void take(int64_t row, int64_t column, wide<T> *x) const
    {
#pragma unroll
        for (int j = 0; j < N; j++) x[j] = widen(in[j][row * stride[j][0] + column * stride[j][1]]);
    }
};

template <typename T, int N> act_args<T, N> args_of(const rw_kernel *k)
{
    act_args<T, N> a = {};
    for (int j = 0; j < N; j++) {
        a.in[j] = static_cast<const T *>(k->in[j].data);
        for (int axis = 0; axis < 2; axis++) a.stride[j][axis] = k->in[j].layout->stride[axis];
    }
    a.weights = static_cast<const wide<T> *>(k->in[N].data);
    a.order = static_cast<const int32_t *>(k->in[N + 1].data);
    a.rows = k->in[0].layout->dim[0], a.width = k->in[0].layout->dim[1], a.slots = k->in[N].layout->numel;
    return a;
}

/* ACT_OF() generates the function object of an op: the activation has `inputs` operands. */
#define ACT_OF(name, n)                                                                                  \
    struct name##_act {                                                                                  \
        static constexpr int inputs = n;                                                                 \
        template <typename W> static __device__ __forceinline__ W value(const W *x)                      \
        {                                                                                                \
            W y;                                                                                         \
            if constexpr (std::is_same<W, double>::value) d_op_##name(x, &y, 0);                         \
            else f_op_##name(x, &y, 0);                                                                  \
            return y;                                                                                    \
        }                                                                                                \
        template <typename W> static __device__ __forceinline__ void slopes(const W *x, W *y)            \
        {                                                                                                \
            if constexpr (std::is_same<W, double>::value) d_op_##name##_backward(x, y, 0);               \
            else f_op_##name##_backward(x, y, 0);                                                        \
        }                                                                                                \
    };
ACT_OF(silu, 1)
ACT_OF(swiglu, 2)

template <typename Act, typename T>
__global__ void __launch_bounds__(THREADS) weigh_act_kernel(const act_args<T, Act::inputs> a, T *y)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.rows * a.width) return;
    const int64_t row = i / a.width;
    wide<T> x[Act::inputs];
    a.take(row, i - row * a.width, x);
    y[i] = narrow<T>(a.weight(row) * Act::value(x));
}

template <typename T, int N> struct act_results {
    T *dx[N];
    wide<T> *dots; /* by row */
};

/* Lane l adds elements l, l + 32, ...; a tree then adds the lanes: the order of moe_dot. */
template <typename Act, typename T>
__global__ void __launch_bounds__(THREADS)
    weigh_act_backward_kernel(const act_args<T, Act::inputs + 1> a, const act_results<T, Act::inputs> to)
{
    constexpr int N = Act::inputs;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= a.rows) return; /* the same for a whole warp */
    const wide<T> w = a.weight(row);
    wide<T> sum = 0;
    for (int64_t i = threadIdx.x % 32; i < a.width; i += 32) {
        wide<T> x[N + 1], y[N];
        a.take(row, i, x);
        sum += Act::value(x) * x[N];
        x[N] *= w;
        Act::slopes(x, y);
        for (int j = 0; j < N; j++) to.dx[j][row * a.width + i] = narrow<T>(y[j]);
    }
    const wide<T> all = warp_sum(sum);
    if (threadIdx.x % 32 == 0) to.dots[row] = all;
}

template <typename Act> rw_status weigh_act(const rw_kernel *k)
{
    if (!k->out[0].layout->numel) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH((weigh_act_kernel<Act, T>), blocks_for(k->out[0].layout->numel, THREADS), THREADS, 0, k,
                  (args_of<T, Act::inputs>(k)), static_cast<T *>(k->out[0].data));
        return rw_cuda_launched(k);
    });
}

template <typename Act> rw_status weigh_act_backward(const rw_kernel *k)
{
    constexpr int N = Act::inputs;
    const int64_t rows = k->in[0].layout->dim[0];
    if (!rows) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        act_results<T, N> to = {};
        for (int j = 0; j < N; j++) to.dx[j] = static_cast<T *>(k->out[j].data);
        to.dots = static_cast<wide<T> *>(k->workspace);
        RW_LAUNCH((weigh_act_backward_kernel<Act, T>), blocks_for(rows, WARPS), THREADS, 0, k,
                  (args_of<T, N + 1>(k)), to);
        return dots_by_slot<wide<T>>(k, N, N + 3);
    });
}

} // namespace

extern "C" rw_status rw_moe_silu_weigh_cuda(const rw_kernel *k) { return weigh_act<silu_act>(k); }
extern "C" rw_status rw_moe_swiglu_weigh_cuda(const rw_kernel *k) { return weigh_act<swiglu_act>(k); }
extern "C" rw_status rw_moe_silu_weigh_backward_cuda(const rw_kernel *k) { return weigh_act_backward<silu_act>(k); }
extern "C" rw_status rw_moe_swiglu_weigh_backward_cuda(const rw_kernel *k) { return weigh_act_backward<swiglu_act>(k); }
