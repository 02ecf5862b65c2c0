/* CUDA kernels of the element-wise ops: the arithmetic of pointwise_functions.cuh in the loop of elementwise_map.cuh,
   once per type. */
/* machine_code.py: stream map_packs<swiglu_backward_of<.*>: stores=2 */
/* machine_code.py: stream columns_kernel<summed, (float, 4|__half, 8|__nv_bfloat16, 8), gelu_slopes>: share=2/3 */
/* A 16-bit term and a float32 sum are read, a float32 sum is written. */
/* machine_code.py: stream add_wide_kernel<.*>: share=3/5, stores=2 */
/* machine_code.py: add_wide_any_kernel<.*>: terms that begin off an aligned address */
#include "ops/common/elementwise_map.cuh"
#include "ops/pointwise/pointwise_functions.cuh"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/columns.cuh"

#include <cstring>
#include <type_traits>

namespace {

double constant_of(const rw_kernel *k, bool given)
{
    return given ? static_cast<const rw_pointwise_attrs *>(k->attrs)->constant : 0;
}

} // namespace

#define POINTWISE_OF(name, n_in, n_out, given)                                        \
    namespace {                                                                       \
    template <typename T> struct name##_of {                                          \
        using In = T;                                                                 \
        using Out = T;                                                                \
        static constexpr int inputs = n_in, outputs = n_out;                          \
        double a;                                                                     \
        __device__ __forceinline__ void operator()(const T *from, T *to) const        \
        {                                                                             \
            wide<T> x[n_in], y[n_out];                                                \
            for (int i = 0; i < n_in; i++) x[i] = widen(from[i]);                     \
            if constexpr (std::is_same<wide<T>, double>::value) d_op_##name(x, y, a); \
            else f_op_##name(x, y, a);                                                \
            for (int i = 0; i < n_out; i++) to[i] = narrow<T>(y[i]);                  \
        }                                                                             \
    };                                                                                \
    }                                                                                 \
    extern "C" rw_status rw_##name##_cuda(const rw_kernel *k)                         \
    {                                                                                 \
        return with_float_type(k->out[0].dtype, [=](auto type) {                      \
            return map_run(k, name##_of<decltype(type)>{ constant_of(k, given) });      \
        });                                                                           \
    }
#include "ops/pointwise/kernel_list_tmpl.h"

/* Without a sum so far, the result is the term. */
extern "C" rw_status rw_copy_cuda(const rw_kernel *k);
extern "C" rw_status rw_accumulate_cuda(const rw_kernel *k)
{
    if (rw_kernel_has(k, 0)) return rw_add_cuda(k);
    rw_kernel copy = *k;
    copy.in = &k->in[1];
    copy.n_inputs = 1;
    return k->in[1].data == k->out[0].data ? RW_OK : rw_copy_cuda(&copy);
}

/* ---- a float32 sum and a 16-bit term ---- */

namespace {

constexpr int WIDE_THREADS = 256, WIDE_AHEAD = 2; /* packs per thread */

template <typename T> __device__ __forceinline__ void add_pack(const float *sum, const T *term, float *to)
{
    const pack<T> x = load_pack(term);
    pack<float> y[2] = {};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (sum) y[h] = load_pack(sum + 4 * h);
#pragma unroll
        for (int l = 0; l < 4; l++) y[h].x[l] = sum ? y[h].x[l] + widen(x.x[4 * h + l]) : widen(x.x[4 * h + l]);
        store_pack(to + 4 * h, y[h]);
    }
}

template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS) add_wide_kernel(const float *sum, const T *term, float *to, int64_t n)
{
    constexpr int P = pack<T>::size;
    const int64_t from = static_cast<int64_t>(blockIdx.x) * WIDE_THREADS * WIDE_AHEAD * P;
#pragma unroll
    for (int u = 0; u < WIDE_AHEAD; u++) {
        const int64_t i = from + (u * WIDE_THREADS + threadIdx.x) * P;
        if (i + P <= n) add_pack(sum ? sum + i : nullptr, term + i, to + i);
        else for (int64_t l = i; l < n; l++) to[l] = sum ? sum[l] + widen(term[l]) : widen(term[l]);
    }
}

template <typename T>
__global__ void __launch_bounds__(WIDE_THREADS)
    add_wide_any_kernel(const float *sum, const T *term, float *to, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * WIDE_THREADS + threadIdx.x;
    if (i < n) to[i] = sum ? sum[i] + widen(term[i]) : widen(term[i]);
}

template <typename T> rw_status add_wide(const rw_kernel *k)
{
    const float *const sum = rw_kernel_has(k, 0) ? static_cast<const float *>(k->in[0].data) : nullptr;
    const T *const term = static_cast<const T *>(k->in[1].data);
    float *const to = static_cast<float *>(k->out[0].data);
    const int64_t n = k->out[0].layout->numel;
    if (!n) return RW_OK;
    if (is_aligned_16(sum) && is_aligned_16(term))
        RW_LAUNCH(add_wide_kernel<T>, blocks_for(n, WIDE_THREADS * WIDE_AHEAD * pack<T>::size), WIDE_THREADS, 0, k, sum,
                  term, to, n);
    else RW_LAUNCH(add_wide_any_kernel<T>, blocks_for(n, WIDE_THREADS), WIDE_THREADS, 0, k, sum, term, to, n);
    return rw_cuda_launched(k);
}

} // namespace

extern "C" rw_status rw_accumulate_wide_cuda(const rw_kernel *k)
{
    return k->in[1].dtype == RW_BF16 ? add_wide<bf16>(k) : add_wide<f16>(k);
}

/* ---- gelu_tanh_backward and the sums of its columns ---- */

namespace {

/* Elements of dz, computed and stored while they are summed. For a missing row, 0 times a slope is added. */
template <typename R, typename T, int N> struct gelu_slopes {
    struct held { loaded<T, N> z, dy; };
    static constexpr int ahead = LOADS / 2, blocks = 3; /* two inputs, and the slope needs registers */
    const T *z, *dy;
    T *dz;

    __device__ __forceinline__ held fetch(int64_t at) const
    {
        const int n = at < 0 ? 0 : N;
        return { load<R, T, N>(z, at < 0 ? 0 : at, 0, n), load<R, T, N>(dy, at < 0 ? 0 : at, 0, n) };
    }

    __device__ __forceinline__ loaded<T, N> take(const held &v, int64_t at) const
    {
        const bundle<T, N> a = v.z.elements(), b = v.dy.elements();
        wide<T> slope[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const wide<T> x[2] = { widen(a.x[i]), widen(b.x[i]) };
            if constexpr (std::is_same<wide<T>, double>::value) d_op_gelu_tanh_backward(x, &slope[i], 0);
            else f_op_gelu_tanh_backward(x, &slope[i], 0);
        }
        const loaded<T, N> result = rounded<T, N>(slope);
        if (at >= 0) store_result<T, N>(dz + at, result);
        return result;
    }
};

} // namespace

extern "C" size_t rw_gelu_tanh_backward_sum_workspace_cuda(const rw_op_call *call)
{
    return computed_columns_workspace(call);
}

extern "C" rw_status rw_gelu_tanh_backward_sum_cuda(const rw_kernel *k)
{
    return sum_computed_columns(k, 2, [k](auto type, auto n, const struct rw_reduce_cut &cut, const job &j, void *to) {
        using T = decltype(type);
        constexpr int N = decltype(n)::value;
        const gelu_slopes<summed<wide<T>>, T, N> x = { static_cast<const T *>(k->in[0].data),
                                                       static_cast<const T *>(k->in[1].data),
                                                       static_cast<T *>(k->out[0].data) };
        launch_columns<summed, T, N, gelu_slopes>(k, cut, j, x, to);
    });
}
