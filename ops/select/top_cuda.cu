/*
 * CUDA kernels of argmax, argmin and topk. A row belongs to a warp or a block. Each round finds the element that
 * follows the previous one in the order of top.h, so no elements are marked and no memory is needed. The order is
 * total, so results do not depend on the assignment of elements to threads.
 */
/* machine_code.py: (top|column)_kernel<.*>: a search through rows: limited by comparisons */
#include "ops/common/elementwise_map.cuh"

#include "ops/select/top.h"

namespace {

constexpr int THREADS = 256;

template <typename W> struct found {
    W value;
    int32_t place; /* -1: none yet */
};

template <typename W> __device__ __forceinline__ bool is_before(const found<W> &a, const found<W> &b)
{
    if (a.place < 0 || b.place < 0) return a.place >= 0;
    return rw_comes_before(static_cast<double>(a.value), a.place, static_cast<double>(b.value), b.place);
}

template <typename W> __device__ __forceinline__ found<W> best_of_warp(found<W> x)
{
    for (int d = 16; d > 0; d >>= 1) {
        const found<W> other = { __shfl_xor_sync(0xffffffffu, x.value, d), __shfl_xor_sync(0xffffffffu, x.place, d) };
        if (is_before(other, x)) x = other;
    }
    return x;
}

/* The same in every thread of the group; `shared` has one element per warp and may be reused immediately. */
template <int G, typename W> __device__ __forceinline__ found<W> best_of(found<W> x, found<W> *shared)
{
    x = best_of_warp(x);
    if (G == 32) return x;
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
    __syncthreads();
    x = shared[0];
    for (int w = 1; w < G / 32; w++)
        if (is_before(shared[w], x)) x = shared[w];
    __syncthreads();
    return x;
}

struct top_args {
    int64_t rows, n, inner, k; /* element i of row (outer, c) is at (outer * n + i) * inner + c */
    bool smallest;
};

/* The k largest elements of a row, one per round. */
template <typename T, int G>
__global__ void __launch_bounds__(THREADS)
    top_kernel(const T *x, T *values, int32_t *places, const __grid_constant__ top_args a)
{
    using W = wide<T>;
    __shared__ found<W> shared[THREADS / 32];
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (THREADS / G) + threadIdx.x / G;
    if (row >= a.rows) return; /* the same for a whole warp */
    const int64_t base = row / a.inner * a.n * a.inner + row % a.inner;
    found<W> last = { 0, -1 };
    for (int64_t round = 0; round < a.k; round++) {
        found<W> best = { 0, -1 };
        for (int64_t i = threadIdx.x % G; i < a.n; i += G) {
            const W v = widen(x[base + i * a.inner]);
            const found<W> here = { a.smallest ? -v : v, static_cast<int32_t>(i) };
            if ((last.place < 0 || is_before(last, here)) && is_before(here, best)) best = here;
        }
        last = best_of<G>(best, shared);
        if (threadIdx.x % G) continue;
        places[row * a.k + round] = last.place;
        if (values) values[row * a.k + round] = x[base + last.place * a.inner];
    }
}

/* One thread per column: adjacent threads read adjacent elements. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    column_kernel(const T *x, int32_t *places, const __grid_constant__ top_args a)
{
    using W = wide<T>;
    const int64_t row = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (row >= a.rows) return;
    const int64_t base = row / a.inner * a.n * a.inner + row % a.inner;
    found<W> best = { 0, -1 };
    for (int64_t i = 0; i < a.n; i++) {
        const W v = widen(x[base + i * a.inner]);
        const found<W> here = { a.smallest ? -v : v, static_cast<int32_t>(i) };
        if (is_before(here, best)) best = here;
    }
    places[row] = best.place;
}

template <typename T> rw_status launch_rows(const rw_kernel *k, const top_args &a, T *values, int32_t *places)
{
    const T *const x = static_cast<const T *>(k->in[0].data);
    if (a.n <= 1024)
        RW_LAUNCH((top_kernel<T, 32>), blocks_for(a.rows, THREADS / 32), THREADS, 0, k, x, values, places, a);
    else RW_LAUNCH((top_kernel<T, THREADS>), static_cast<unsigned>(a.rows), THREADS, 0, k, x, values, places, a);
    return rw_cuda_launched(k);
}

/* Launches argmax or argmin for the type and the position of the axis. */
rw_status place(const rw_kernel *k, bool smallest)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t given = static_cast<const rw_place_attrs *>(k->attrs)->axis;
    const int axis = static_cast<int>(given < 0 ? given + l->rank : given);
    top_args a = {};
    if (!l->numel) return RW_OK;
    a.n = l->dim[axis], a.inner = a.k = 1, a.smallest = smallest;
    for (int i = axis + 1; i < l->rank; i++) a.inner *= l->dim[i];
    a.rows = l->numel / a.n;
    int32_t *const places = static_cast<int32_t *>(k->out[0].data);
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        if (a.inner == 1) return launch_rows<T>(k, a, nullptr, places);
        RW_LAUNCH(column_kernel<T>, blocks_for(a.rows, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  places, a);
        return rw_cuda_launched(k);
    });
}

} // namespace

extern "C" rw_status rw_argmax_cuda(const rw_kernel *k)
{
    return place(k, false);
}

extern "C" rw_status rw_argmin_cuda(const rw_kernel *k)
{
    return place(k, true);
}

extern "C" rw_status rw_topk_cuda(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    top_args a = {};
    if (!k->out[0].layout->numel) return RW_OK;
    a.n = l->dim[l->rank - 1], a.inner = 1, a.k = static_cast<const rw_topk_attrs *>(k->attrs)->k;
    a.rows = l->numel / a.n;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        return launch_rows<T>(k, a, static_cast<T *>(k->out[0].data), static_cast<int32_t *>(k->out[1].data));
    });
}
