/*
 * CUDA kernels of the softmax family. Over the last axis a row is held in the registers of a warp or a block and read
 * once. Rows that are too wide or do not divide into packs, and all rows in float64, are read twice, the first time for
 * the maximum and the sum of exponentials together. Over another axis a block has adjacent columns. The result may
 * overwrite the input.
 */
/* machine_code.py: stream forward_kernel<{FLOATS}, \d, \d+> */
/* machine_code.py: stream backward_kernel<{FLOATS}, \d, \d+>: share=2/3 */
/* machine_code.py: columns_kernel<.*>: another axis than the last: columns side by side */
#include "ops/common/partial_sums.cuh"
#include "ops/common/rows_in_registers.cuh"

extern "C" {
#include "ops/reduce/softmax.h"
}

namespace {

constexpr int THREADS = 128; /* of a block in which each warp has its own rows */

struct job {
    int64_t rows, n, inner; /* inner: stride of the axis */
    int64_t queries;        /* for a causal mask, 0 if there is none */
    double scale;
    bool logarithm;

    /* Number of elements of a row before the mask begins. */
    __device__ __forceinline__ int64_t seen(int64_t row) const
    {
        if (!queries) return n;
        const int64_t s = row % queries + 1 + (n - queries);
        return s < 0 ? 0 : s < n ? s : n;
    }
};

/* Converts the sum of exponentials relative to `most` to the scale and shift of elements. `most` is subtracted first,
   so elements near it lose no precision. */
template <typename W> struct normal {
    W most, inverse, log_sum;
};

template <typename W> __device__ __forceinline__ normal<W> normal_of(W most, W sum)
{
    return { most, sum > 0 || sum != sum ? 1 / sum : 0, static_cast<W>(log(sum)) };
}

/* The same for a reducer's state. It treats the difference of equal infinities as 0; here +inf must give NaN, and a row
   of only -inf 0. */
template <typename W> __device__ __forceinline__ normal<W> normal_of(const exponentials_state<W> &s)
{
    const W inf = static_cast<W>(INFINITY);
    if (s.most == -inf) return normal_of<W>(0, s.sum != s.sum ? s.sum : 0);
    return normal_of<W>(s.most, s.most == inf ? inf - inf : s.sum);
}

template <typename W> __device__ __forceinline__ W normalised(W x, const normal<W> &a, bool logarithm)
{
    return logarithm ? x - a.most - a.log_sum : static_cast<W>(exp(x - a.most)) * a.inverse;
}

/* ---- rows in registers ---- */

/* The softmax of rows that are held in registers, one group of threads per row. */
template <typename T, int PACKS, int G>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G) forward_kernel(const T *x, T *y, job j)
{
    using row = held_row<T, PACKS, G>;
    __shared__ float shared[2 * ROW_SUMS * (ROW_BLOCK / 32)];
    const int t = threadIdx.x % G, n = static_cast<int>(j.n);
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
    if (i >= j.rows) return; /* the same for a whole group */
    const int seen = static_cast<int>(j.seen(i));
    const float scale = static_cast<float>(j.scale);
    float s[PACKS * row::size], most = -INFINITY, sum = 0;
    int round = 0;
    row r;
    r.load(x + i * n, t, seen + row::size - 1 < n ? (seen + row::size - 1) / row::size * row::size : n);
#pragma unroll
    for (int c = 0; c < PACKS * row::size; c++) {
        s[c] = row::place(c / row::size, t) + c % row::size < seen ? widen(r.v[c / row::size].x[c % row::size]) * scale
                                                                   : -INFINITY;
        most = s[c] > most ? s[c] : most; /* a NaN reappears in the sum */
    }
    most = group_max<G>(most, shared, round);
    if (most == -INFINITY) most = 0;
#pragma unroll
    for (int c = 0; c < PACKS * row::size; c++) {
        const float e = expf(s[c] - most);
        if (!j.logarithm) s[c] = e;
        sum += e;
    }
    const normal<float> a = normal_of(most, group_sum<G>(sum, shared, round));
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        pack<T> out;
        if (row::place(p, t) >= n) continue;
#pragma unroll
        for (int e = 0; e < row::size; e++) {
            const float v = s[p * row::size + e];
            const float normalised = j.logarithm ? v - a.most - a.log_sum : v * a.inverse;
            out.x[e] = narrow<T>(row::place(p, t) + e < seen ? normalised : 0);
        }
        store_pack(y + i * n + row::place(p, t), out);
    }
}

/* One element of a gradient from y, dy and the row's sum. */
template <typename W> __device__ __forceinline__ W slope(W y, W dy, W sum, W scale, bool logarithm)
{
    return logarithm ? dy - static_cast<W>(exp(y)) * sum : y * (dy - sum) * scale;
}

/* The gradient of rows that are held in registers. Masked elements of dy do not count: 0 times NaN is NaN. */
template <typename T, int PACKS, int G>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G) backward_kernel(const T *y, const T *dy, T *dx, job j)
{
    using row = held_row<T, PACKS, G>;
    __shared__ float shared[2 * ROW_SUMS * (ROW_BLOCK / 32)];
    const int t = threadIdx.x % G, n = static_cast<int>(j.n);
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
    if (i >= j.rows) return;
    const int seen = static_cast<int>(j.seen(i));
    float sum = 0;
    int round = 0;
    row ry, rdy;
    ry.load(y + i * n, t, n), rdy.load(dy + i * n, t, n);
#pragma unroll
    for (int c = 0; c < PACKS * row::size; c++) {
        if (row::place(c / row::size, t) + c % row::size >= seen) continue;
        const float g = widen(rdy.v[c / row::size].x[c % row::size]);
        if (j.logarithm) sum += g;
        else sum = fmaf(widen(ry.v[c / row::size].x[c % row::size]), g, sum);
    }
    sum = group_sum<G>(sum, shared, round);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        pack<T> out;
        if (row::place(p, t) >= n) continue;
#pragma unroll
        for (int e = 0; e < row::size; e++) {
            const float v =
                slope(widen(ry.v[p].x[e]), widen(rdy.v[p].x[e]), sum, static_cast<float>(j.scale), j.logarithm);
            out.x[e] = narrow<T>(row::place(p, t) + e < seen ? v : 0);
        }
        store_pack(dx + i * n + row::place(p, t), out);
    }
}

/* ---- any row ---- */

/* The softmax of rows that are read twice. */
template <typename T, int G>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G) forward_any_kernel(const T *x, T *y, job j)
{
    using W = wide<T>;
    using E = exponentials<W>;
    __shared__ typename E::state shared[ROW_BLOCK / 32];
    const int t = threadIdx.x % G;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
    if (i >= j.rows) return;
    const int64_t seen = j.seen(i), start = i * j.n;
    const W scale = static_cast<W>(j.scale);
    typename E::state s = E::empty();
    for (int64_t c = t; c < seen; c += G * 4) {
        W v[4];
#pragma unroll
        for (int l = 0; l < 4; l++) v[l] = c + l * G < seen ? widen(x[start + c + l * G]) * scale : E::nothing();
        E::add(s, v);
    }
    for (int d = 16; d > 0; d >>= 1) E::merge(s, E::shuffled(s, d));
    if (G > 32) {
        if (t % 32 == 0) shared[t / 32] = s;
        __syncthreads();
        s = shared[0];
        for (int w = 1; w < G / 32; w++) E::merge(s, shared[w]);
    }
    const normal<W> a = normal_of(s);
    for (int64_t c = t; c < j.n; c += G) {
        const W v = c < seen ? normalised(widen(x[start + c]) * scale, a, j.logarithm) : W(0);
        y[start + c] = narrow<T>(v);
    }
}

/* The gradient of rows that are read twice. */
template <typename T, int G>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G)
    backward_any_kernel(const T *y, const T *dy, T *dx, job j)
{
    using W = wide<T>;
    __shared__ W shared[2 * ROW_SUMS * (ROW_BLOCK / 32)];
    const int t = threadIdx.x % G;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G, start = i * j.n;
    if (i >= j.rows) return;
    const int64_t seen = j.seen(i);
    W sum = 0;
    int round = 0;
    for (int64_t c = t; c < seen; c += G)
        sum += j.logarithm ? widen(dy[start + c]) : widen(y[start + c]) * widen(dy[start + c]);
    sum = group_sum<G>(sum, shared, round);
    for (int64_t c = t; c < j.n; c += G)
        dx[start + c] = c < seen ? narrow<T>(slope(widen(y[start + c]), widen(dy[start + c]), sum,
                                                   static_cast<W>(j.scale), j.logarithm))
                                 : narrow<T>(W(0));
}

/* ---- an axis other than the last: blockDim.x columns of a slab of n x inner, blockDim.y rows at a time ---- */

/* Merges the states of a column's threads; every thread gets the result. */
template <typename R>
__device__ __forceinline__ typename R::state merge_rows(typename R::state s, typename R::state *shared)
{
    for (unsigned d = blockDim.y / 2; d > 0; d /= 2) {
        const unsigned at = threadIdx.y % d * blockDim.x + threadIdx.x;
        if (threadIdx.y >= d && threadIdx.y < 2 * d) shared[at] = s;
        __syncthreads();
        if (threadIdx.y < d) R::merge(s, shared[at]);
        __syncthreads();
    }
    if (threadIdx.y == 0) shared[threadIdx.x] = s;
    __syncthreads();
    return shared[threadIdx.x];
}

/* Forward or gradient of adjacent columns. */
template <typename T, bool BACKWARD>
__global__ void __launch_bounds__(ROW_BLOCK) columns_kernel(const T *x, const T *dy, T *to, job j, int64_t chunks)
{
    using W = wide<T>;
    using E = exponentials<W>;
    using S = summed<W>;
    __shared__ typename E::state of_forward[ROW_BLOCK];
    __shared__ typename S::state of_backward[ROW_BLOCK];
    const int64_t column = blockIdx.x % chunks * blockDim.x + threadIdx.x,
                  start = blockIdx.x / chunks * j.n * j.inner + column;
    const bool mine = column < j.inner;
    if (BACKWARD) {
        typename S::state s = S::empty();
        for (int64_t r = threadIdx.y; r < j.n && mine; r += blockDim.y) {
            const W g = widen(dy[start + r * j.inner]);
            s.sum += j.logarithm ? g : widen(x[start + r * j.inner]) * g;
        }
        s = merge_rows<S>(s, of_backward);
        for (int64_t r = threadIdx.y; r < j.n && mine; r += blockDim.y) {
            const int64_t at = start + r * j.inner;
            to[at] = narrow<T>(slope(widen(x[at]), widen(dy[at]), s.sum, static_cast<W>(j.scale), j.logarithm));
        }
    } else {
        typename E::state s = E::empty();
        for (int64_t r = threadIdx.y; r < j.n && mine; r += blockDim.y) {
            const W v[1] = { widen(x[start + r * j.inner]) * static_cast<W>(j.scale) };
            E::add(s, v);
        }
        const normal<W> a = normal_of(merge_rows<E>(s, of_forward));
        for (int64_t r = threadIdx.y; r < j.n && mine; r += blockDim.y) {
            const int64_t at = start + r * j.inner;
            to[at] = narrow<T>(normalised(widen(x[at]) * static_cast<W>(j.scale), a, j.logarithm));
        }
    }
}

/* ---- launches ---- */

template <typename T, bool BACKWARD> void launch_columns(const rw_kernel *k, const job &j)
{
    unsigned lanes = 1;
    while (lanes < 32 && lanes < j.inner) lanes *= 2;
    const int64_t chunks = (j.inner + lanes - 1) / lanes;
    RW_LAUNCH((columns_kernel<T, BACKWARD>), static_cast<unsigned>(j.rows / j.inner * chunks),
              dim3(lanes, ROW_BLOCK / lanes), 0, k, static_cast<const T *>(k->in[0].data),
              static_cast<const T *>(BACKWARD ? k->in[1].data : nullptr), static_cast<T *>(k->out[0].data), j, chunks);
}

/* Launches the kernel for the width of a row: in registers, or read twice. */
template <typename T, int G, bool BACKWARD> void launch_rows(const rw_kernel *k, const job &j)
{
    const T *const x = static_cast<const T *>(k->in[0].data), *const dy = static_cast<const T *>(
                                                                  BACKWARD ? k->in[1].data : nullptr);
    T *const to = static_cast<T *>(k->out[0].data);
    const int threads = G == ROW_WARP ? THREADS : G;
    const unsigned grid = blocks_for(j.rows, threads / G);
    if constexpr (sizeof(T) < sizeof(double)) {
        if (j.n <= ROW_BLOCK_MAX && has_packs(&k->in[0], j.n) && (!BACKWARD || has_packs(&k->in[1], j.n))) {
            with_packs<T>(j.n, G, [&](auto n) {
                if constexpr (BACKWARD)
                    RW_LAUNCH((backward_kernel<T, decltype(n)::value, G>), grid, threads, 0, k, x, dy, to, j);
                else RW_LAUNCH((forward_kernel<T, decltype(n)::value, G>), grid, threads, 0, k, x, to, j);
            });
            return;
        }
    }
    if constexpr (BACKWARD) RW_LAUNCH((backward_any_kernel<T, G>), grid, threads, 0, k, x, dy, to, j);
    else RW_LAUNCH((forward_any_kernel<T, G>), grid, threads, 0, k, x, to, j);
}

/* Runs forward or backward for the type and the position of the axis. */
template <bool BACKWARD> rw_status run(const rw_kernel *k, bool logarithm)
{
    const rw_softmax_attrs *const a = static_cast<const rw_softmax_attrs *>(k->attrs);
    const rw_layout *const l = k->in[0].layout;
    const int axis = static_cast<int>(a->axis < 0 ? a->axis + l->rank : a->axis);
    if (!l->numel) return RW_OK;
    job j = { l->numel / l->dim[axis], l->dim[axis], 1, a->causal ? l->dim[l->rank - 2] : 0, a->scale, logarithm };
    for (int i = axis + 1; i < l->rank; i++) j.inner *= l->dim[i];
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        if (j.inner > 1) launch_columns<T, BACKWARD>(k, j);
        else if (j.n <= ROW_WARP_MAX) launch_rows<T, ROW_WARP, BACKWARD>(k, j);
        else launch_rows<T, ROW_BLOCK, BACKWARD>(k, j);
        return rw_cuda_launched(k);
    });
}

} // namespace

extern "C" rw_status rw_softmax_cuda(const rw_kernel *k)
{
    return run<false>(k, false);
}

extern "C" rw_status rw_log_softmax_cuda(const rw_kernel *k)
{
    return run<false>(k, true);
}

extern "C" rw_status rw_softmax_backward_cuda(const rw_kernel *k)
{
    return run<true>(k, false);
}

extern "C" rw_status rw_log_softmax_backward_cuda(const rw_kernel *k)
{
    return run<true>(k, true);
}
