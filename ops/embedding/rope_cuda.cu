/*
 * CUDA kernels of rope: a table of cosines and sines, computed in double once per position, then one pass over the
 * pairs.
 */
/* machine_code.py: stream rotate_kernel<(float, 4|__half, 8|__nv_bfloat16, 8|double, 2)>: stores=2 */
/* machine_code.py: (table|rotate)_kernel<.*>: a table per call; heads that do not divide into packs */
#include "ops/common/elementwise_map.cuh"

#include "ops/embedding/rope.h"

namespace {

constexpr int THREADS = 256;

/* For each position `half` cosines, then `half` sines. frequencies: NULL if they follow from base. */
template <typename W>
__global__ void __launch_bounds__(THREADS)
    table_kernel(W *table, const int32_t *positions, const W *frequencies, int64_t seq, int64_t half, rw_rope_attrs a)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= seq * half) return;
    const int64_t s = n / half, i = n % half;
    const double position = positions ? static_cast<double>(positions[s]) : static_cast<double>(s);
    const double frequency = frequencies ? static_cast<double>(frequencies[i])
                                         : pow(a.base, -static_cast<double>(i) / static_cast<double>(half));
    const double angle = position * frequency, scale = a.scale;
    table[s * 2 * half + i] = static_cast<W>(scale * cos(angle));
    table[s * 2 * half + half + i] = static_cast<W>((a.inverse ? -scale : scale) * sin(angle));
}

struct rope_args {
    int64_t n; /* threads: P pairs each */
    int64_t half;
    rw_rope_pairs pairs; /* with P > 1, halves */
    map_divider per_row, seq, heads;
    int64_t stride[4];
};

template <typename T, int P> struct alignas(sizeof(T) * P) pairs {
    T x[P];
};

template <typename W, int P> __device__ __forceinline__ void load_table(const W *table, W (&to)[P])
{
    constexpr int size = P < pack<W>::size ? 1 : pack<W>::size;
#pragma unroll
    for (int from = 0; from < P; from += size) {
        const pairs<W, size> part = *reinterpret_cast<const pairs<W, size> *>(table + from);
#pragma unroll
        for (int l = 0; l < size; l++) to[from + l] = part.x[l];
    }
}

/* P > 1: the last axis is dense, and rows and addresses are multiples of a pack. May overwrite its input if both are
   dense. */
template <typename T, int P>
__global__ void __launch_bounds__(THREADS)
    rotate_kernel(const T *x, T *y, const wide<T> *table, const __grid_constant__ rope_args a)
{
    using W = wide<T>;
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= a.n) return;
    const int64_t row = static_cast<int64_t>(a.per_row.quotient(static_cast<uint64_t>(n)));
    const int64_t plane = static_cast<int64_t>(a.seq.quotient(static_cast<uint64_t>(row)));
    const int64_t batch = static_cast<int64_t>(a.heads.quotient(static_cast<uint64_t>(plane)));
    const int64_t i = (n - row * static_cast<int64_t>(a.per_row.d)) * P;
    const int64_t s = row - plane * static_cast<int64_t>(a.seq.d);
    const int64_t h = plane - batch * static_cast<int64_t>(a.heads.d);
    const T *const from = x + batch * a.stride[0] + h * a.stride[1] + s * a.stride[2] + i * a.pairs.step * a.stride[3];
    T *const to = y + row * 2 * a.half + i * a.pairs.step;
    const pairs<T, P> p = *reinterpret_cast<const pairs<T, P> *>(from);
    const pairs<T, P> q = *reinterpret_cast<const pairs<T, P> *>(from + a.pairs.apart * a.stride[3]);
    W c[P], z[P];
    load_table<W, P>(table + s * 2 * a.half + i, c);
    load_table<W, P>(table + (s * 2 + 1) * a.half + i, z);
    pairs<T, P> first, second;
#pragma unroll
    for (int l = 0; l < P; l++) {
        const W u = widen(p.x[l]), v = widen(q.x[l]);
        first.x[l] = narrow<T>(u * c[l] - v * z[l]);
        second.x[l] = narrow<T>(v * c[l] + u * z[l]);
    }
    store_global(to, first);
    store_global(to + a.pairs.apart, second);
}

template <typename T, int P> rw_status rotate(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    rope_args a = {};
    a.half = l->dim[3] / 2;
    a.pairs = rw_rope_pairs_of(static_cast<const rw_rope_attrs *>(k->attrs), a.half);
    a.n = l->numel / 2 / P;
    a.per_row.set(a.half / P);
    a.seq.set(l->dim[2]);
    a.heads.set(l->dim[1]);
    for (int axis = 0; axis < 4; axis++) a.stride[axis] = l->stride[axis];
    RW_LAUNCH((rotate_kernel<T, P>), blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
              static_cast<T *>(k->out[0].data), static_cast<const wide<T> *>(k->workspace), a);
    return rw_cuda_launched(k);
}

/* Fills the table and launches the rotation. */
template <typename T> rw_status run(const rw_kernel *k)
{
    constexpr int P = pack<T>::size;
    const rw_rope_attrs *const attrs = static_cast<const rw_rope_attrs *>(k->attrs);
    const rw_layout *const l = k->in[0].layout;
    const int64_t seq = l->dim[2], half = l->dim[3] / 2;
    if (k->workspace_bytes < rw_rope_table_bytes(seq, half, k->in[0].dtype)) return RW_ERR_MEMORY;
    const void *const positions = k->n_inputs > 1 ? k->in[1].data : nullptr;
    const void *const frequencies = attrs->given ? k->in[2].data : nullptr;
    RW_LAUNCH(table_kernel<wide<T>>, blocks_for(seq * half, THREADS), THREADS, 0, k,
              static_cast<wide<T> *>(k->workspace), static_cast<const int32_t *>(positions),
              static_cast<const wide<T> *>(frequencies), seq, half, *attrs);
    bool packs = !attrs->interleaved && half % P == 0 && l->stride[3] == 1 && is_aligned_16(k->in[0].data) &&
                 is_aligned_16(k->out[0].data);
    for (int axis = 0; axis < 3; axis++) packs &= l->dim[axis] == 1 || l->stride[axis] % P == 0;
    return packs ? rotate<T, P>(k) : rotate<T, 1>(k);
}

} // namespace

extern "C" rw_status rw_rope_cuda(const rw_kernel *k)
{
    if (!k->in[0].layout->numel) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) { return run<decltype(type)>(k); });
}
