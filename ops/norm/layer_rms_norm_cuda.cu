/*
 * CUDA kernels of layernorm and rmsnorm. A row is held in the registers of a warp, or if it is wide in those of a
 * block, and read once. Rows that are too wide for that, or that do not divide into packs, are read again for every
 * sum.
 *
 * Backward recomputes the statistics. A block has a run of rows; it sums dweight and dbias column by column in
 * registers and the columns of dx in shared memory, and stores the sums to the workspace. A second kernel adds the
 * blocks. Their number depends on the shape alone.
 */
/* machine_code.py: stream forward_kernel<{FLOATS}, \d, \d+> */
/* machine_code.py: stream backward_kernel<{FLOATS}, \d, \d+, (true|false), (true|false)>: share=2/3 */
#include "ops/common/partial_sums.cuh"
#include "ops/common/rows_in_registers.cuh"

extern "C" {
#include "ops/norm/layer_rms_norm.h"
}

namespace {

constexpr int THREADS = 128; /* of a block in which each warp has its own rows */

/* The arguments of all kernels. */
struct norm_rows {
    int64_t rows, n;
    double eps;
    bool rms, bias;
    int vectors, columns; /* a block's sums in the workspace: number of vectors, and index of dx's columns, or 0 */
};

norm_rows norm_of(const rw_kernel *k)
{
    const rw_norm_attrs *const a = static_cast<const rw_norm_attrs *>(k->attrs);
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1];
    const bool columns = rw_norm_has_columns(a, k->n_outputs);
    return { rw_norm_rows(l), n, a->eps, a->rms != 0, a->vectors == 2, static_cast<int>(rw_norm_vectors(k->n_outputs)),
             columns ? k->n_outputs - 2 : 0 };
}

/* See RW_NORM_STATISTICS in layer_rms_norm.h. */
__device__ __forceinline__ rw_norm_float statistics_of(float mean, float rest, float mean_square, double eps)
{
    return rw_norm_float_of(mean, rest, mean_square, static_cast<float>(eps));
}

__device__ __forceinline__ rw_norm_double statistics_of(double mean, double rest, double mean_square, double eps)
{
    return rw_norm_double_of(mean, rest, mean_square, eps);
}

template <typename W> using norm_statistics = decltype(statistics_of(W(), W(), W(), 0.0));

/* ---- forward, with the row in registers ---- */

template <typename T, int PACKS, int G>
__device__ __forceinline__ float mean_of(const held_row<T, PACKS, G> &x, float n, float *shared, int &round)
{
    float sum = 0;
#pragma unroll
    for (int p = 0; p < PACKS; p++)
#pragma unroll
        for (int e = 0; e < pack<T>::size; e++) sum += widen(x.v[p].x[e]);
    return group_sum<G>(sum, shared, round) / n;
}

/* Normalizes rows that are held in registers, one group of threads per row. */
template <typename T, int PACKS, int G>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G)
    forward_kernel(const T *x, const T *weight, const T *bias, T *y, norm_rows a)
{
    using row = held_row<T, PACKS, G>;
    __shared__ float shared[2 * ROW_SUMS * (ROW_BLOCK / 32)];
    const int t = threadIdx.x % G, n = static_cast<int>(a.n);
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
    int round = 0;
    if (i >= a.rows) return; /* the same for a whole group */
    row r;
    r.load(x + i * n, t, n);
    const float count = static_cast<float>(n), mean = a.rms ? 0 : mean_of(r, count, shared, round);
    float sums[2] = { 0, 0 }; /* of differences from that mean, and of their squares */
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (row::place(p, t) >= n) continue;
#pragma unroll
        for (int e = 0; e < row::size; e++) {
            const float d = widen(r.v[p].x[e]) - mean;
            sums[0] += d;
            sums[1] = fmaf(d, d, sums[1]);
        }
    }
    group_sums<G>(sums, shared, round);
    const rw_norm_float of = statistics_of(mean, a.rms ? 0 : sums[0] / count, sums[1] / count, a.eps);
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int at = row::place(p, t);
        if (at >= n) continue;
        const pack<T> w = load_pack_anywhere(weight + at), b = a.bias ? load_pack_anywhere(bias + at) : pack<T>{};
        pack<T> out;
#pragma unroll
        for (int e = 0; e < row::size; e++)
            out.x[e] = narrow<T>(fmaf(fmaf(widen(r.v[p].x[e]) - of.mean, of.scale, of.shift), widen(w.x[e]),
                                      widen(b.x[e])));
        store_pack(y + i * n + at, out);
    }
}

/* ---- forward, any row ---- */

/* Statistics of a row that is read from memory for each sum. */
template <typename T, int G>
__device__ __forceinline__ norm_statistics<wide<T>> statistics(const T *x, const norm_rows &a, int t, wide<T> *shared,
                                                               int &round)
{
    using W = wide<T>;
    W sum = 0, mean = 0, sums[2] = { 0, 0 };
    if (!a.rms) {
        for (int64_t c = t; c < a.n; c += G) sum += widen(x[c]);
        mean = group_sum<G>(sum, shared, round) / W(a.n);
    }
    for (int64_t c = t; c < a.n; c += G) {
        const W d = widen(x[c]) - mean;
        sums[0] += d;
        sums[1] += d * d;
    }
    group_sums<G>(sums, shared, round);
    return statistics_of(mean, a.rms ? W(0) : sums[0] / W(a.n), sums[1] / W(a.n), a.eps);
}

template <typename T, int G>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G)
    forward_any_kernel(const T *x, const T *weight, const T *bias, T *y, norm_rows a)
{
    using W = wide<T>;
    __shared__ W shared[2 * ROW_SUMS * (ROW_BLOCK / 32)];
    const int t = threadIdx.x % G;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
    int round = 0;
    if (i >= a.rows) return;
    const norm_statistics<W> of = statistics<T, G>(x + i * a.n, a, t, shared, round);
    for (int64_t c = t; c < a.n; c += G) {
        const W v = ((widen(x[i * a.n + c]) - of.mean) * of.scale + of.shift) * widen(weight[c]);
        y[i * a.n + c] = narrow<T>(a.bias ? v + widen(bias[c]) : v);
    }
}

/* Launches forward: with rows in registers if they divide into packs, else from memory. */
template <typename T, int G> void launch_forward(const rw_kernel *k, const norm_rows &a, bool packs)
{
    const T *const x = static_cast<const T *>(k->in[0].data), *const w = static_cast<const T *>(k->in[1].data);
    const T *const b = a.bias ? static_cast<const T *>(k->in[2].data) : nullptr;
    T *const y = static_cast<T *>(k->out[0].data);
    const int threads = G == ROW_WARP ? THREADS : G;
    const unsigned grid = blocks_for(a.rows, threads / G);
    if constexpr (sizeof(wide<T>) == sizeof(float)) {
        if (packs && a.n <= ROW_BLOCK_MAX) {
            with_packs<T>(a.n, G, [&](auto n) {
                RW_LAUNCH((forward_kernel<T, decltype(n)::value, G>), grid, threads, 0, k, x, w, b, y, a);
            });
            return;
        }
    }
    RW_LAUNCH((forward_any_kernel<T, G>), grid, threads, 0, k, x, w, b, y, a);
}

/* ---- backward, with rows in registers ---- */

/* Sums of a thread's columns: of dweight alone, or of dbias as well. */
template <int N, bool ONE> struct columns {
    float dw[N], db[ONE ? 1 : N];
};

/*
 * The sums of dx's columns are in shared memory, because registers are full. For the widest rows of a warp, dbias is
 * there, too.
 */
template <typename T, int PACKS, int G, bool RMS, bool OF_DX> constexpr bool shares_db()
{
    return OF_DX && !RMS && G == ROW_WARP && PACKS * pack<T>::size == 32;
}

/* Address of a thread's four columns q of a sum in shared memory; those of dx come first. Adjacent threads are
   adjacent. */
template <int QUADS, int G> __device__ __forceinline__ pack<float> *shared_quad(pack<float> *sums, int which, int q)
{
    constexpr int groups = G == ROW_WARP ? THREADS / G : 1;
    return sums + ((which * groups + threadIdx.x / G) * QUADS + q) * G + threadIdx.x % G;
}

template <typename F> __device__ __forceinline__ void add_quad(pack<float> *to, F element)
{
    pack<float> v = *to;
#pragma unroll
    for (int e = 0; e < 4; e++) v.x[e] += element(e);
    *to = v;
}

/*
 * Number of packs of dx's addend that are loaded in advance. If rows and column sums leave few registers, only the
 * first packs; the others are loaded when they are used.
 */
template <typename T, int PACKS, int G, bool RMS> constexpr int ahead_of_sum()
{
    if (RMS || G != ROW_WARP || PACKS * pack<T>::size < (sizeof(T) == 4 ? 24 : 32)) return PACKS;
    return sizeof(T) == 4 ? 1 : PACKS / 4;
}

/*
 * With d = x - mean, h = dy weight, s = 1 / sqrt(var + eps): dx = s h - s mean(h) - d s^3 mean(h d). The sums of d, d
 * d, h and h d are computed in one round, around an approximate mean, and then corrected for its error. sum, if not
 * NULL, is the addend of dx; it is loaded before that round. shared_sums: with OF_DX, the sums of dx's columns.
 */
template <typename T, int PACKS, int G, bool RMS, bool OF_DX, bool ONE>
__device__ __forceinline__ void backward_row(const held_row<T, PACKS, G> &x, const held_row<T, PACKS, G> &dy,
                                             const T *weight, const T *sum, T *dx, double eps, int t, int n,
                                             float *shared, int &round, columns<PACKS * pack<T>::size, ONE> &to,
                                             pack<float> *shared_sums)
{
    using row = held_row<T, PACKS, G>;
    constexpr bool db_shared = shares_db<T, PACKS, G, RMS, OF_DX>();
    constexpr int quads = PACKS * row::size / 4;
    const float count = static_cast<float>(n), mean = RMS ? 0 : mean_of(x, count, shared, round);
    float sums[RMS ? 2 : 4] = {};
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        if (row::place(p, t) >= n) continue;
        const pack<T> w = load_pack_anywhere(weight + row::place(p, t));
#pragma unroll
        for (int e = 0; e < row::size; e++) {
            const float d = widen(x.v[p].x[e]) - mean, h = widen(dy.v[p].x[e]) * widen(w.x[e]);
            sums[0] = fmaf(d, d, sums[0]);
            sums[1] = fmaf(h, d, sums[1]);
            if constexpr (!RMS) sums[2] += h, sums[3] += d;
        }
    }
    constexpr int AHEAD = ahead_of_sum<T, PACKS, G, RMS>();
    raw<pack<T>> before[AHEAD] = {};
    const auto fetch = [&](int p) {
        if (sum && p < PACKS && row::place(p, t) < n) before[p % AHEAD] = load_raw_anywhere(sum + row::place(p, t));
    };
#pragma unroll
    for (int p = 0; p < AHEAD; p++) fetch(p);
    group_sums<G>(sums, shared, round);
    float mean_h = 0, rest = 0;
    if constexpr (!RMS) mean_h = sums[2] / count, rest = sums[3] / count;
    const rw_norm_float of = statistics_of(mean, rest, sums[0] / count, eps);
    const float by_x = of.scale * (of.scale * (sums[1] / count - rest * mean_h)), by_one = of.scale * mean_h;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        const int at = row::place(p, t);
        if (at >= n) continue;
        const pack<T> w = load_pack_anywhere(weight + at);
        const pack<T> b = before[p % AHEAD].elements();
        fetch(p + AHEAD);
        float result[row::size];
#pragma unroll
        for (int e = 0; e < row::size; e++) {
            const float xh = fmaf(widen(x.v[p].x[e]) - of.mean, of.scale, of.shift), g = widen(dy.v[p].x[e]);
            const int c = p * row::size + e;
            to.dw[c] = fmaf(g, xh, to.dw[c]);
            if (!ONE) to.db[c] += g;
            const float d_x = fmaf(g * widen(w.x[e]), of.scale, fmaf(-xh, by_x, -by_one));
            result[e] = sum ? widen(b.x[e]) + d_x : d_x;
        }
        const raw<pack<T>> words = narrow_pack<T>(result);
        store_global(dx + at, words);
        const pack<T> out = words.elements();
#pragma unroll
        for (int q = 0; OF_DX && q < row::size; q += 4) {
            const int i = (p * row::size + q) / 4;
            add_quad(shared_quad<quads, G>(shared_sums, 0, i), [&](int e) { return widen(out.x[q + e]); });
            if (db_shared)
                add_quad(shared_quad<quads, G>(shared_sums, 1, i), [&](int e) { return widen(dy.v[p].x[q + e]); });
        }
    }
}

/* Adds the sums in shared memory of a block's groups of threads, in order, and stores the block's sums. */
template <typename T, int PACKS, int G>
__device__ void store_shared(pack<float> *shared_sums, int which, float *out, int n)
{
    using row = held_row<T, PACKS, G>;
    constexpr int quads = PACKS * row::size / 4, groups = G == ROW_WARP ? THREADS / G : 1;
    const int t = threadIdx.x % G;
    for (int q = 0; q < quads; q++) {
        const int at = row::place(q * 4 / row::size, t) + q * 4 % row::size;
        if (at >= n) continue;
        const pack<float> *const first = shared_sums + (which * groups * quads + q) * G + t;
        pack<float> v = *first;
        for (int w = 1; w < groups; w++)
#pragma unroll
            for (int e = 0; e < 4; e++) v.x[e] += first[w * quads * G].x[e];
        store_global(out + at, v);
    }
}

/* In order of warps: each adds its columns to those of the warps before it; the last one has the block's sums. */
template <typename T, int PACKS, bool ONE>
__device__ void add_warps(columns<PACKS * pack<T>::size, ONE> &to, float *shared, int n)
{
    using row = held_row<T, PACKS, ROW_WARP>;
    const int t = threadIdx.x & 31;
    for (int warp = 0; warp < THREADS / 32; warp++) {
        if (static_cast<int>(threadIdx.x >> 5) == warp) {
#pragma unroll
            for (int c = 0; c < PACKS * row::size; c++) {
                const int at = c * ROW_WARP + t; /* adjacent lanes use different banks */
                if (row::place(c / row::size, t) >= n) continue;
                shared[at] = to.dw[c] = warp ? shared[at] + to.dw[c] : to.dw[c];
                if (!ONE)
                    shared[ROW_WARP_MAX + at] = to.db[c] = warp ? shared[ROW_WARP_MAX + at] + to.db[c] : to.db[c];
            }
        }
        __syncthreads();
    }
}

/* Number of blocks per multiprocessor. A block loads its next row early, so one is enough for wide rows. */
template <typename T, int PACKS, int G, bool RMS>
constexpr int BLOCKS = G == ROW_WARP ? 3 : PACKS * pack<T>::size * (sizeof(T) == 4 && !RMS ? 2 : 1) >= 32 ? 1 : 2;

/*
 * Is the next row loaded before the current one is processed? A block would wait at barriers for its row. Warps hide
 * each other's latency, but not if there are only a few with wide rows. For the widest rows in float32 there are not
 * enough registers for a second row with three sums.
 */
template <typename T, int PACKS, int G, bool RMS, bool OF_DX> constexpr bool loads_early()
{
    if (G != ROW_WARP && OF_DX && !RMS && sizeof(T) == 4 && PACKS * pack<T>::size == 32) return false;
    return G != ROW_WARP || (sizeof(T) == 2 && PACKS * pack<T>::size == 24);
}

/* Backward for rows that are held in registers: dx, and the block's column sums. */
template <typename T, int PACKS, int G, bool RMS, bool OF_DX>
__global__ void __launch_bounds__(G == ROW_WARP ? THREADS : G, (BLOCKS<T, PACKS, G, RMS>))
    backward_kernel(const T *x, const T *weight, const T *dy, const T *addend, T *dx, float *part, norm_rows a)
{
    using row = held_row<T, PACKS, G>;
    __shared__ float shared[G == ROW_WARP ? 2 * ROW_WARP_MAX : 2 * ROW_SUMS * (G / 32)];
    const int t = threadIdx.x % G, n = static_cast<int>(a.n), groups = blockDim.x / G;
    const int64_t from = a.rows * blockIdx.x / gridDim.x, to = a.rows * (blockIdx.x + 1) / gridDim.x;
    constexpr bool db_shared = shares_db<T, PACKS, G, RMS, OF_DX>(), one = RMS || db_shared;
    constexpr int quads = PACKS * row::size / 4;
    columns<PACKS * row::size, one> sum = {};
    RW_SHARED_DYNAMIC(pack<float>, shared_sums);
    for (int i = 0; i < OF_DX + db_shared; i++)
        for (int q = 0; q < quads; q++) *shared_quad<quads, G>(shared_sums, i, q) = pack<float>{};
    int round = 0;
    row rx, rdy, next_x, next_dy;
    int64_t i = from + threadIdx.x / G;
    constexpr bool early = loads_early<T, PACKS, G, RMS, OF_DX>();
    if (i < to) rx.load(x + i * n, t, n), rdy.load(dy + i * n, t, n);
    for (; i < to; i += groups) {
        if (early && i + groups < to)
            next_x.load(x + (i + groups) * n, t, n), next_dy.load(dy + (i + groups) * n, t, n);
        backward_row<T, PACKS, G, RMS, OF_DX>(rx, rdy, weight, addend ? addend + i * n : nullptr, dx + i * n,
                                              a.eps, t, n, shared, round, sum, shared_sums);
        if (early) rx = next_x, rdy = next_dy;
        else if (i + groups < to) rx.load(x + (i + groups) * n, t, n), rdy.load(dy + (i + groups) * n, t, n);
    }
    if (G == ROW_WARP) add_warps<T, PACKS, one>(sum, shared, n);
    if (G == ROW_WARP && threadIdx.x < THREADS - 32) return;
    float *const out = part + static_cast<int64_t>(blockIdx.x) * a.vectors * n;
    if (OF_DX) store_shared<T, PACKS, G>(shared_sums, 0, out + a.columns * n, n);
    if (db_shared) store_shared<T, PACKS, G>(shared_sums, 1, out + n, n);
    constexpr int each = G == ROW_WARP ? 4 : 1; /* the threads of a block have no registers left for it */
#pragma unroll
    for (int c = 0; c < PACKS * row::size; c += each) {
        const int at = row::place(c / row::size, t) + c % row::size;
        if (at >= n) continue;
        if (each == 1) {
            out[at] = sum.dw[c];
            if (!one) out[n + at] = sum.db[c];
            continue;
        }
        store_global(out + at, pack<float>{ sum.dw[c], sum.dw[c + 1], sum.dw[c + 2], sum.dw[c + 3] });
        if (!one) store_global(out + n + at, pack<float>{ sum.db[c], sum.db[c + 1], sum.db[c + 2], sum.db[c + 3] });
    }
}

/* ---- backward, any row: one block of rows at a time, columns summed in the workspace ---- */

/* Backward for rows that are read from memory for each sum. */
template <typename T>
__global__ void __launch_bounds__(ROW_BLOCK, 2)
    backward_any_kernel(const T *x, const T *weight, const T *dy, const T *addend, T *dx, wide<T> *part, norm_rows a)
{
    using W = wide<T>;
    constexpr int G = ROW_BLOCK;
    __shared__ W shared[2 * ROW_SUMS * (G / 32)];
    const int64_t from = a.rows * blockIdx.x / gridDim.x, to = a.rows * (blockIdx.x + 1) / gridDim.x;
    W *const dw = part + static_cast<int64_t>(blockIdx.x) * a.vectors * a.n, *const db = dw + a.n;
    W *const of_dx = a.columns ? dw + a.columns * a.n : nullptr;
    const W count = W(a.n);
    int round = 0;
    for (int64_t c = threadIdx.x; c < a.n; c += G)
        for (int v = 0; v < a.vectors; v++) dw[v * a.n + c] = 0;
    for (int64_t i = from; i < to; i++) {
        const T *const xi = x + i * a.n, *const dyi = dy + i * a.n;
        const norm_statistics<W> of = statistics<T, G>(xi, a, threadIdx.x, shared, round);
        W sums[2] = { 0, 0 };
        for (int64_t c = threadIdx.x; c < a.n; c += G) {
            const W h = widen(dyi[c]) * widen(weight[c]);
            sums[0] += h;
            sums[1] += h * ((widen(xi[c]) - of.mean) * of.scale + of.shift);
        }
        group_sums<G>(sums, shared, round);
        const W mean_h = a.rms ? 0 : sums[0] / count, mean_hx = sums[1] / count;
        for (int64_t c = threadIdx.x; c < a.n; c += G) {
            const W g = widen(dyi[c]), xh = (widen(xi[c]) - of.mean) * of.scale + of.shift;
            dw[c] += g * xh;
            if (!a.rms) db[c] += g;
            W d = of.scale * (g * widen(weight[c]) - mean_h - xh * mean_hx);
            if (addend) d += widen(addend[i * a.n + c]);
            dx[i * a.n + c] = narrow<T>(d);
            if (of_dx) of_dx[c] += widen(narrow<T>(d));
        }
    }
}

template <typename T> const T *addend_of(const rw_kernel *k)
{
    const int i = rw_norm_addend(static_cast<const rw_norm_attrs *>(k->attrs), k->n_outputs);
    return rw_kernel_has(k, i) ? static_cast<const T *>(k->in[i].data) : nullptr;
}

/* The addend of output o, a vector's gradient. */
const void *sum_of(const rw_kernel *k, int o)
{
    const bool has = static_cast<const rw_norm_attrs *>(k->attrs)->sums && rw_kernel_has(k, 2 + o);
    return has ? k->in[2 + o].data : nullptr;
}

/* Merges the blocks' sums into outputs from `o` up to `end`, at most three, of type Out. */
template <typename Out, typename W>
void merge_vectors(const rw_kernel *k, const W *part, int64_t blocks, const norm_rows &a, int o, int end)
{
    const auto vector = [=](int i) {
        if (i >= end) return merged<sum_state<W>, Out>{};
        return merged<sum_state<W>, Out>{ reinterpret_cast<const sum_state<W> *>(part + (i - 1) * a.n),
                                          static_cast<Out *>(k->out[i].data), sum_of(k, i) };
    };
    merge_parts<summed, Out>(k, vector(o), blocks, a.vectors * a.n, a.n, 1, vector(o + 1), vector(o + 2));
}

/* Launches backward with rows in registers, with the variant for the outputs of the node. */
template <typename T, int G, bool RMS> void launch_held(const rw_kernel *k, const norm_rows &a, unsigned blocks)
{
    const T *const x = static_cast<const T *>(k->in[0].data), *const w = static_cast<const T *>(k->in[1].data);
    const T *const dy = static_cast<const T *>(k->in[2].data), *const addend = addend_of<T>(k);
    T *const dx = static_cast<T *>(k->out[0].data);
    float *const part = static_cast<float *>(k->workspace);
    const auto launch = [&](auto n) {
        constexpr int threads = G == ROW_WARP ? THREADS : G;
        constexpr size_t vectors = 1 + shares_db<T, decltype(n)::value, G, RMS, true>();
        constexpr size_t shared = vectors * decltype(n)::value * pack<T>::size * threads * sizeof(float);
        if (a.columns)
            RW_LAUNCH((backward_kernel<T, decltype(n)::value, G, RMS, true>), blocks, threads, shared, k, x, w, dy,
                      addend, dx, part, a);
        else
            RW_LAUNCH((backward_kernel<T, decltype(n)::value, G, RMS, false>), blocks, threads, 0, k, x, w, dy, addend,
                      dx, part, a);
    };
    if constexpr (G == ROW_WARP)
        if (a.n > G * 16 && a.n <= G * 24) return launch(row_packs<24 / pack<T>::size>());
    with_packs<T>(a.n, G, launch);
}

template <typename T> bool launch_backward_held(const rw_kernel *k, const norm_rows &a, unsigned blocks)
{
    if constexpr (sizeof(wide<T>) == sizeof(float)) {
        const int of_dx = rw_norm_addend(static_cast<const rw_norm_attrs *>(k->attrs), k->n_outputs);
        for (int i = 0; i < k->n_inputs; i++)
            if ((i < 3 || i == of_dx) && !has_packs(&k->in[i], a.n)) return false;
        if (a.n > ROW_BLOCK_MAX) return false;
        if (a.n <= ROW_WARP_MAX)
            a.rms ? launch_held<T, ROW_WARP, true>(k, a, blocks) : launch_held<T, ROW_WARP, false>(k, a, blocks);
        else a.rms ? launch_held<T, ROW_BLOCK, true>(k, a, blocks) : launch_held<T, ROW_BLOCK, false>(k, a, blocks);
        return true;
    }
    return false;
}

} // namespace

extern "C" rw_status rw_norm_cuda(const rw_kernel *k)
{
    const norm_rows a = norm_of(k);
    bool packs = has_packs(&k->in[0], a.n);
    for (int i = 1; i < k->n_inputs; i++) packs &= has_packs(&k->in[i], a.n);
    if (!a.rows) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        if (a.n <= ROW_WARP_MAX) launch_forward<T, ROW_WARP>(k, a, packs);
        else launch_forward<T, ROW_BLOCK>(k, a, packs);
        return rw_cuda_launched(k);
    });
}

extern "C" size_t rw_norm_backward_workspace_cuda(const rw_op_call *call)
{
    const rw_layout *const x = call->in[0].layout;
    const int64_t width = x->dim[x->rank - 1], blocks = rw_norm_cuda_blocks(rw_norm_rows(x), width);
    return static_cast<size_t>(blocks * rw_norm_vectors(call->n_outputs) * width) *
           (call->in[0].dtype == RW_F64 ? sizeof(double) : sizeof(float));
}

/* Runs backward for the type of its operands, then merges the blocks' sums. */
extern "C" rw_status rw_norm_backward_cuda(const rw_kernel *k)
{
    const norm_rows a = norm_of(k);
    const int64_t blocks = rw_norm_cuda_blocks(a.rows, a.n);
    if (!a.n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        using W = wide<T>;
        W *const part = static_cast<W *>(k->workspace);
        const unsigned grid = static_cast<unsigned>(blocks);
        if (!launch_backward_held<T>(k, a, grid))
            RW_LAUNCH(backward_any_kernel<T>, grid, ROW_BLOCK, 0, k, static_cast<const T *>(k->in[0].data),
                      static_cast<const T *>(k->in[1].data), static_cast<const T *>(k->in[2].data),
                      addend_of<T>(k), static_cast<T *>(k->out[0].data), part, a);
        for (int o = 1, end; o < k->n_outputs; o = end) {
            for (end = o + 1; end < k->n_outputs && k->out[end].dtype == k->out[o].dtype;) end++;
            if (k->out[o].dtype == k->in[0].dtype) merge_vectors<T>(k, part, blocks, a, o, end);
            else merge_vectors<W>(k, part, blocks, a, o, end);
        }
        return rw_cuda_launched(k);
    });
}
