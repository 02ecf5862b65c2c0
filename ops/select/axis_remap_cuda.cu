/*
 * CUDA kernels that move elements along an axis. A copy moves units as wide as rows and addresses allow. A sum has one
 * thread per element, which adds in the order of the places.
 */
/* machine_code.py: stream move_kernel<unit16> */
/* machine_code.py: move_kernel<.*>: rows that do not divide into packs */
/* machine_code.py: back_kernel<.*>: a sum per element: few terms, gathered */
#include "ops/common/wide_copies.cuh"

#include "ops/select/axis_remap.h"

namespace {

constexpr int THREADS = 256;
constexpr int UNROLL = 2;

struct move_args {
    int64_t n;              /* units of the result */
    map_divider inner, to;  /* units of a row, rows of the result along the axis */
    int64_t from;           /* rows of x */
    rw_remap_runs by;
    const int32_t *index;   /* list of places; NULL: by the runs */
};

__device__ __forceinline__ int64_t source(const rw_remap_runs &by, int64_t j)
{
    int64_t from = -1;
#pragma unroll
    for (int i = 0; i < RW_REMAP_RUNS; i++) {
        const int64_t k = j - by.run[i].to;
        if (k >= 0 && k < by.run[i].n) from = by.run[i].from + k * by.run[i].slope;
    }
    return from;
}

/* Copies units of the result from the places that the runs or the list give. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    move_kernel(const T *x, T *y, const __grid_constant__ move_args a, index_guard guard)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * UNROLL) + threadIdx.x;
    const int64_t inner = static_cast<int64_t>(a.inner.d);
    T v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int64_t i = first + u * THREADS;
        v[u] = {};
        if (i >= a.n) continue;
        const int64_t row = static_cast<int64_t>(a.inner.quotient(static_cast<uint64_t>(i)));
        const int64_t outer = static_cast<int64_t>(a.to.quotient(static_cast<uint64_t>(row)));
        const int64_t j = row - outer * static_cast<int64_t>(a.to.d);
        const int64_t from = a.index ? a.index[j] : source(a.by, j);
        if (from >= 0 && from < a.from) v[u] = x[(outer * a.from + from) * inner + (i - row * inner)];
        else guard.report();
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * THREADS < a.n) y[first + u * THREADS] = v[u];
}

template <typename T> rw_status launch_move(const rw_kernel *k, move_args *a, int64_t inner)
{
    a->n = k->out[0].layout->numel * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype)) /
           static_cast<int64_t>(sizeof(T));
    a->inner.set(inner);
    RW_LAUNCH(move_kernel<T>, blocks_for(a->n, THREADS * UNROLL), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
              static_cast<T *>(k->out[0].data), *a, guard_of(k));
    return rw_cuda_launched(k);
}

/* [outer, a->from, inner] to [outer, to, inner] */
rw_status move(const rw_kernel *k, move_args *a, int64_t to, int64_t inner)
{
    const int64_t row = inner * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype));
    if (!k->out[0].layout->numel) return RW_OK;
    a->to.set(to);
    const int64_t unit = widest_unit(row, k->in[0].data);
    return with_unit(static_cast<size_t>(unit),
                     [&](auto type) { return launch_move<decltype(type)>(k, a, row / unit); });
}

int64_t inner_of(const rw_layout *l, int64_t axis)
{
    int64_t n = 1;
    for (int i = static_cast<int>(axis) + 1; i < l->rank; i++) n *= l->dim[i];
    return n;
}

int64_t axis_of(const rw_kernel *k, int64_t axis)
{
    return axis < 0 ? axis + k->in[0].layout->rank : axis;
}

/* ---- sums of the places to which an element was copied ---- */

struct back_args {
    int64_t n;
    map_divider inner, from;
    rw_remap_attrs a;
    rw_remap_runs by;
};

/* The sum over the places of element i, `inner` apart, in order; its first place would be at dy. */
template <typename T>
__device__ wide<T> sum_of_places(const T *dy, const rw_remap_runs &by, int64_t i, int64_t inner)
{
    wide<T> sum = 0;
#pragma unroll
    for (int r = 0; r < RW_REMAP_RUNS; r++) {
        const rw_remap_run &run = by.run[r];
        const int64_t k = (i - run.from) * run.slope, n = run.slope ? 1 : i == run.from ? run.n : 0;
        for (int64_t l = k; l < k + n && k >= 0 && l < run.n; l++) sum += widen(dy[(run.to + l) * inner]);
    }
    return sum;
}

/* The same for the windows over the element. */
template <typename T>
__device__ wide<T> sum_of_windows(const T *dy, const rw_remap_attrs &a, int64_t i, int64_t inner)
{
    const rw_remap_windows w = rw_remap_over(&a, i);
    wide<T> sum = 0;
    for (int64_t j = w.from; j < w.to; j++) sum += widen(dy[j * inner * a.size + (i - j * a.step)]);
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) back_kernel(const T *dy, T *dx, const __grid_constant__ back_args b)
{
    const int64_t e = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (e >= b.n) return;
    const int64_t inner = static_cast<int64_t>(b.inner.d);
    const int64_t row = static_cast<int64_t>(b.inner.quotient(static_cast<uint64_t>(e))), c = e - row * inner;
    const int64_t outer = static_cast<int64_t>(b.from.quotient(static_cast<uint64_t>(row)));
    const int64_t i = row - outer * static_cast<int64_t>(b.from.d);
    const int64_t at = outer * b.a.to * inner + c;
    dx[e] = narrow<T>(b.a.mode == RW_REMAP_WINDOWS ? sum_of_windows(dy + at * b.a.size, b.a, i, inner)
                                                   : sum_of_places(dy + at, b.by, i, inner));
}

} // namespace

extern "C" rw_status rw_remap_cuda(const rw_kernel *k)
{
    const rw_remap_attrs *const of = static_cast<const rw_remap_attrs *>(k->attrs);
    move_args a = {};
    a.from = of->from;
    a.by = rw_remap_runs_of(of);
    return move(k, &a, of->to, inner_of(k->in[0].layout, axis_of(k, of->axis)));
}

/* Launches the sums for the type of dy. */
extern "C" rw_status rw_remap_back_cuda(const rw_kernel *k)
{
    back_args b = {};
    b.a = *static_cast<const rw_remap_attrs *>(k->attrs);
    b.by = rw_remap_runs_of(&b.a);
    b.n = k->out[0].layout->numel;
    if (!b.n) return RW_OK;
    b.inner.set(inner_of(k->out[0].layout, b.a.axis));
    b.from.set(b.a.from);
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(back_kernel<T>, blocks_for(b.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<T *>(k->out[0].data), b);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_index_select_cuda(const rw_kernel *k)
{
    const int64_t axis = axis_of(k, *static_cast<const int64_t *>(k->attrs));
    move_args a = {};
    a.index = static_cast<const int32_t *>(k->in[1].data);
    a.from = k->in[0].layout->dim[axis];
    return move(k, &a, k->in[1].layout->numel, inner_of(k->in[0].layout, axis));
}
