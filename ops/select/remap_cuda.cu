/*
 * CUDA kernels of what moves elements along an axis. A copy moves units as wide as rows and addresses allow; a sum has
 * one thread per element, which adds in the order of the places.
 */
#include "ops/common/units.cuh"

#include "ops/select/remap.h"

namespace {

constexpr int THREADS = 256;
constexpr int UNROLL = 2;

struct move_args {
    int64_t n;              /* units of the result */
    map_divider inner, to;  /* units of a row, rows of the result along the axis */
    rw_remap_attrs a;
    const int32_t *index;   /* of places; NULL: by the rule */
};

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
        const int64_t from = a.index ? a.index[j] : rw_remap_source(&a.a, j);
        if (from >= 0 && from < a.a.from) v[u] = x[(outer * a.a.from + from) * inner + (i - row * inner)];
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
    a->to.set(a->a.to);
    RW_LAUNCH(move_kernel<T>, blocks_for(a->n, THREADS * UNROLL), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
              static_cast<T *>(k->out[0].data), *a, guard_of(k));
    return rw_cuda_launched(k);
}

rw_status move(const rw_kernel *k, move_args *a, int64_t inner)
{
    const int64_t row = inner * static_cast<int64_t>(rw_dtype_size(k->out[0].dtype));
    if (!k->out[0].layout->numel) return RW_OK;
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

/* ---- the sums of what an element was copied to ---- */

struct back_args {
    int64_t n;
    map_divider inner, from;
    rw_remap_attrs a;
};

template <typename T>
__global__ void __launch_bounds__(THREADS) back_kernel(const T *dy, T *dx, const __grid_constant__ back_args b)
{
    const int64_t e = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (e >= b.n) return;
    const int64_t inner = static_cast<int64_t>(b.inner.d);
    const int64_t row = static_cast<int64_t>(b.inner.quotient(static_cast<uint64_t>(e))), c = e - row * inner;
    const int64_t outer = static_cast<int64_t>(b.from.quotient(static_cast<uint64_t>(row)));
    const int64_t i = row - outer * static_cast<int64_t>(b.from.d);
    const bool windows = b.a.mode == RW_REMAP_WINDOWS;
    wide<T> sum = 0;
    for (int64_t j = rw_remap_next(&b.a, i, -1); j >= 0; j = rw_remap_next(&b.a, i, j)) {
        const int64_t at = (outer * b.a.to + j) * inner + c;
        sum += widen(dy[windows ? at * b.a.size + (i - j * b.a.step) : at]);
    }
    dx[e] = narrow<T>(sum);
}

} // namespace

extern "C" rw_status rw_remap_cuda(const rw_kernel *k)
{
    move_args a = {};
    a.a = *static_cast<const rw_remap_attrs *>(k->attrs);
    return move(k, &a, inner_of(k->in[0].layout, axis_of(k, a.a.axis)));
}

extern "C" rw_status rw_remap_back_cuda(const rw_kernel *k)
{
    back_args b = {};
    b.a = *static_cast<const rw_remap_attrs *>(k->attrs);
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
    a.a.from = k->in[0].layout->dim[axis];
    a.a.to = k->in[1].layout->numel;
    return move(k, &a, inner_of(k->in[0].layout, axis));
}
