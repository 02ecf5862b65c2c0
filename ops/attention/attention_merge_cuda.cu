/* CUDA kernels that merge two attentions: one warp per row of d elements. */
/* machine_code.py: \w+_kernel<.*>: operands of any layout, a warp for each row */
#include "device/cuda/kernel.cuh"

#include <rewind/op.h>

namespace {

constexpr int THREADS = 256, ROWS = THREADS / 32;

/* One operand as rows: over all axes but the last, or over all axes of a log-sum-exp. */
struct rows {
    const void *p;
    int rank;
    int64_t dim[RW_MAX_RANK], stride[RW_MAX_RANK], step;

    __device__ __forceinline__ int64_t of(int64_t row) const
    {
        int64_t at = 0;
        for (int axis = rank - 1; axis >= 0; axis--) {
            at += row % dim[axis] * stride[axis];
            row /= dim[axis];
        }
        return at;
    }
};

rows rows_of(const rw_view &x, bool last)
{
    rows r = {};
    r.p = x.data;
    r.rank = x.layout->rank - last;
    for (int i = 0; i < r.rank; i++) r.dim[i] = x.layout->dim[i], r.stride[i] = x.layout->stride[i];
    if (last) r.step = x.layout->stride[r.rank];
    return r;
}

__device__ __forceinline__ float exponential(float x) { return expf(x); }
__device__ __forceinline__ double exponential(double x) { return exp(x); }
__device__ __forceinline__ float logarithm(float x) { return logf(x); }
__device__ __forceinline__ double logarithm(double x) { return log(x); }

template <typename W> struct weights {
    W a, b, lse;
};

template <typename W> __device__ __forceinline__ weights<W> weigh(W a, W b)
{
    const W most = a > b ? a : b, x = exponential(a - most), y = exponential(b - most), sum = x + y;
    if (most == -static_cast<W>(INFINITY)) return { 0, 0, most };
    return { x / sum, y / sum, most + logarithm(sum) };
}

template <typename T> struct merge_args {
    rows a, b, a_lse, b_lse, dy, dlse; /* dlse.p: NULL if absent */
    T *to_a, *to_b;                    /* out, or da and db */
    wide<T> *lse, *to_a_lse, *to_b_lse;
    int64_t n, d;
};

template <typename T> __device__ __forceinline__ weights<wide<T>> weights_of(const merge_args<T> &x, int64_t row)
{
    using W = wide<T>;
    const W a = static_cast<const W *>(x.a_lse.p)[x.a_lse.of(row)];
    return weigh(a, static_cast<const W *>(x.b_lse.p)[x.b_lse.of(row)]);
}

/* An element of a set with a weight, or 0: a set of weight 0 may hold NaN or infinity, and 0 times those is NaN. */
template <typename T> __device__ __forceinline__ wide<T> read(const T *x, int64_t i, wide<T> weight)
{
    return weight == 0 ? wide<T>(0) : widen(x[i]);
}

template <typename T> __global__ void __launch_bounds__(THREADS) merge_kernel(const merge_args<T> x)
{
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROWS + threadIdx.x / 32;
    if (row >= x.n) return;
    const weights<wide<T>> w = weights_of(x, row);
    const T *const a = static_cast<const T *>(x.a.p) + x.a.of(row);
    const T *const b = static_cast<const T *>(x.b.p) + x.b.of(row);
    for (int64_t i = threadIdx.x % 32; i < x.d; i += 32)
        x.to_a[row * x.d + i] = narrow<T>(w.a * read(a, i * x.a.step, w.a) + w.b * read(b, i * x.b.step, w.b));
    if (threadIdx.x % 32 == 0) x.lse[row] = w.lse;
}

/* Lane i adds elements i, i + 32, ...; a tree then adds the lanes. */
template <typename T> __global__ void __launch_bounds__(THREADS) backward_kernel(const merge_args<T> x)
{
    using W = wide<T>;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROWS + threadIdx.x / 32;
    if (row >= x.n) return; /* the same for a whole warp */
    const weights<W> w = weights_of(x, row);
    const T *const a = static_cast<const T *>(x.a.p) + x.a.of(row);
    const T *const b = static_cast<const T *>(x.b.p) + x.b.of(row);
    const T *const dy = static_cast<const T *>(x.dy.p) + x.dy.of(row);
    W of_a = 0, of_b = 0;
    for (int64_t i = threadIdx.x % 32; i < x.d; i += 32) {
        const W up = widen(dy[i * x.dy.step]);
        of_a += up * read(a, i * x.a.step, w.a);
        of_b += up * read(b, i * x.b.step, w.b);
        x.to_a[row * x.d + i] = narrow<T>(w.a * up);
        x.to_b[row * x.d + i] = narrow<T>(w.b * up);
    }
    of_a = warp_sum(of_a);
    of_b = warp_sum(of_b);
    if (threadIdx.x % 32) return;
    const W flow = x.dlse.p ? static_cast<const W *>(x.dlse.p)[x.dlse.of(row)] : static_cast<W>(0);
    x.to_a_lse[row] = w.a * (w.b * (of_a - of_b) + flow);
    x.to_b_lse[row] = w.b * (w.a * (of_b - of_a) + flow);
}

template <typename T> merge_args<T> args_of(const rw_kernel *k)
{
    merge_args<T> x = {};
    x.a = rows_of(k->in[0], true), x.b = rows_of(k->in[1], true);
    x.a_lse = rows_of(k->in[2], false), x.b_lse = rows_of(k->in[3], false);
    x.n = k->in[2].layout->numel;
    x.d = k->in[0].layout->dim[k->in[0].layout->rank - 1];
    x.to_a = static_cast<T *>(k->out[0].data);
    return x;
}

} // namespace

extern "C" rw_status rw_attention_merge_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        merge_args<T> x = args_of<T>(k);
        x.lse = static_cast<wide<T> *>(k->out[1].data);
        if (!x.n) return RW_OK;
        RW_LAUNCH(merge_kernel<T>, blocks_for(x.n, ROWS), THREADS, 0, k, x);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_attention_merge_backward_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        merge_args<T> x = args_of<T>(k);
        x.dy = rows_of(k->in[4], true);
        if (k->n_inputs == 6) x.dlse = rows_of(k->in[5], false);
        x.to_b = static_cast<T *>(k->out[1].data);
        x.to_a_lse = static_cast<wide<T> *>(k->out[2].data), x.to_b_lse = static_cast<wide<T> *>(k->out[3].data);
        if (!x.n) return RW_OK;
        RW_LAUNCH(backward_kernel<T>, blocks_for(x.n, ROWS), THREADS, 0, k, x);
        return rw_cuda_launched(k);
    });
}
