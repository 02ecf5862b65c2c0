/*
 * CUDA kernels of ssd_scan, in stages that are parallel over batches, chunks and heads; only the states pass from chunk
 * to chunk, with one thread for each of their elements. All products are tiles of 64 by 64 without tensor cores: a
 * struct defines the operands and the epilogue of each product. Scores and their gradient belong to a group's chunk; m
 * is never stored. Sums with contributions of several blocks are stored in parts, cut by the shape, which one thread
 * adds in order. ssd_scan.h has the algorithm.
 */
/* machine_code.py: product_kernel<.*>: limited by arithmetic; what is multiplied is gathered element by element */
/* machine_code.py: pairs_kernel<.*>: limited by arithmetic, beside an exponential for each pair */
/* machine_code.py: (pass|sums|steps|whole|rates)_kernel<.*>: one after the other along a sequence */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/recurrent/ssd_scan.h"
}

namespace {

constexpr int TILE = 64, DEPTH = 16, THREADS = 256, SIDE = 4; /* SIDE: rows and columns of a thread */

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

/* An operand of any layout; zeros if it is absent. */
template <typename T> struct operand {
    const T *p;
    int64_t stride[4];

    __device__ __forceinline__ wide<T> at(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const
    {
        return p ? widen(p[i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3]]) : wide<T>(0);
    }
};

/* The workspace: arrays [batch, chunk, head, ...], or with groups instead of heads. */
template <typename W> struct room {
    W *sum, *low;                  /* [place]: of dt a; and its rounding error */
    W *share, *rest;               /* [place]: exp of the sum, and of the remaining steps */
    W *scores, *before;            /* [place, place] of groups; states before the chunks [n, p] */
    W *dscores, *after;            /* their gradients; for states of those after the chunks */
    W *rows, *columns;             /* [tile, place]: of dm m below the diagonal */
    W *of_dt, *of_rest, *of_share; /* [tile, place]: x dx', and gradients of the exponentials outside of m */
    W *whole, *da;                 /* one number each */
    int64_t elements;
};

static inline int64_t tiles_of(int64_t n)
{
    return (n + TILE - 1) / TILE;
}

/* Divides the workspace into its arrays. */
template <typename W> room<W> room_of(const rw_ssd &s, W *at, bool backward)
{
    const int64_t heads = s.b * s.chunks * s.h, groups = s.b * s.chunks * s.g, wide_tiles = tiles_of(s.p);
    int64_t used = 0;
    const auto cut = [&](int64_t n) {
        W *const p = at ? at + used : nullptr;
        used += n;
        return p;
    };
    room<W> r = {};
    r.sum = cut(heads * s.q), r.low = cut(heads * s.q), r.share = cut(heads * s.q), r.rest = cut(heads * s.q);
    r.scores = cut(groups * s.q * s.q), r.before = cut(heads * s.n * s.p);
    if (backward) {
        r.dscores = cut(groups * s.q * s.q), r.after = cut(heads * s.n * s.p);
        r.rows = cut(heads * tiles_of(s.q) * s.q), r.columns = cut(heads * tiles_of(s.q) * s.q);
        r.of_dt = cut(heads * wide_tiles * s.q), r.of_rest = cut(heads * wide_tiles * s.q);
        r.of_share = cut(heads * wide_tiles * s.q), r.whole = cut(heads), r.da = cut(heads);
    }
    r.elements = used;
    return r;
}

template <typename T> struct scan {
    using W = wide<T>;
    rw_ssd s;
    operand<T> x, dt, a, b, c, state, dy, dstate;
    room<W> r;
    T *out[SSD_OPERANDS + 1];
};

/* One head of a chunk, or one group of it. */
struct place_of {
    int64_t unit, b, first; /* unit: its number; first: the chunk's first place */
    int which, places;      /* index of the head or group */
};

__device__ __forceinline__ place_of place(const rw_ssd &s, int64_t unit, int64_t each)
{
    const int64_t chunk = unit / each % s.chunks, rest = s.l - chunk * s.q;
    return { unit, unit / each / s.chunks, chunk * s.q, static_cast<int>(unit % each),
             static_cast<int>(rest < s.q ? rest : s.q) };
}

/* The number of head h among the heads of all chunks, for the chunk of a group. */
__device__ __forceinline__ int64_t head_of(const rw_ssd &s, const place_of &at, int64_t h)
{
    return at.unit / s.g * s.h + h;
}

/* The sum of the steps after place j and up to place i, for places from `from` on. */
template <typename W> __device__ __forceinline__ W between(const room<W> &r, int64_t from, int i, int j)
{
    return r.sum[from + i] - r.sum[from + j] + (r.low[from + i] - r.low[from + j]);
}

/* ---- products ---- */

/* The tile of a product that a block computes. A thread has rows `row` + i and columns `col` + j. */
struct corner {
    int row0, col0, row, col, col_tile;
};

/* Elements of a tile; consecutive threads have consecutive rows if a matrix is stored transposed, else consecutive
   terms. */
template <bool TRANSPOSED> __device__ __forceinline__ void element_of(int i, int *side, int *term)
{
    *side = TRANSPOSED ? i % TILE : i / DEPTH;
    *term = TRANSPOSED ? i / TILE : i % DEPTH;
}

/*
 * sum += left right for terms from `from` up to `to`: left(row, term) and right(term, col), which are called only
 * within range. Ends with a barrier.
 */
template <bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, typename W, typename L, typename R>
__device__ __forceinline__ void multiply(W (&sum)[SIDE][SIDE], const corner &at, int rows, int cols, int from, int to,
                                         L left, R right)
{
    __shared__ W staged_left[DEPTH][TILE + SIDE];
    __shared__ W staged_right[DEPTH][TILE + SIDE];
    for (int k0 = from; k0 < to; k0 += DEPTH) {
        for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
            int side, term;
            element_of<LEFT_TRANSPOSED>(i, &side, &term);
            staged_left[term][side] = at.row0 + side < rows && k0 + term < to ? left(at.row0 + side, k0 + term) : W(0);
            element_of<RIGHT_TRANSPOSED>(i, &side, &term);
            staged_right[term][side] =
                at.col0 + side < cols && k0 + term < to ? right(k0 + term, at.col0 + side) : W(0);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < DEPTH; k++) {
            W x[SIDE], y[SIDE];
#pragma unroll
            for (int i = 0; i < SIDE; i++) {
                x[i] = staged_left[k][at.row - at.row0 + i];
                y[i] = staged_right[k][at.col - at.col0 + i];
            }
#pragma unroll
            for (int i = 0; i < SIDE; i++)
#pragma unroll
                for (int j = 0; j < SIDE; j++) sum[i][j] = fused(x[i], y[j], sum[i][j]);
        }
        __syncthreads();
    }
}

/* to[row] = the sum of sum[i][j] factor(row, col) over the tile's columns; 16 adjacent threads have the columns of a
   row. */
template <typename W, typename F>
__device__ __forceinline__ void row_sums(const W (&sum)[SIDE][SIDE], const corner &at, int rows, int cols, W *to,
                                         F factor)
{
#pragma unroll
    for (int i = 0; i < SIDE; i++) {
        W all = 0;
        for (int j = 0; j < SIDE; j++)
            if (at.row + i < rows && at.col + j < cols) all += sum[i][j] * factor(at.row + i, at.col + j);
        for (int d = 1; d < 16; d *= 2) all += __shfl_xor_sync(0xffffffffu, all, d);
        if (threadIdx.x % 16 == 0 && at.row + i < rows) to[at.row + i] = all;
    }
}

template <typename W, typename F>
__device__ __forceinline__ void each_of(W (&sum)[SIDE][SIDE], const corner &at, int rows, int cols, F f)
{
#pragma unroll
    for (int i = 0; i < SIDE; i++)
#pragma unroll
        for (int j = 0; j < SIDE; j++)
            if (at.row + i < rows && at.col + j < cols) f(at.row + i, at.col + j, sum[i][j]);
}

/* One block per tile of each unit's product. P has the struct scan as a, and rows(), cols(), each() and run(). */
template <typename P> __global__ void __launch_bounds__(THREADS) product_kernel(const P product)
{
    const int rows = product.rows(), cols = product.cols(), across = (cols + TILE - 1) / TILE;
    const int down = (rows + TILE - 1) / TILE, tile = blockIdx.x % (across * down);
    corner at;
    at.col_tile = tile % across, at.row0 = tile / across * TILE, at.col0 = at.col_tile * TILE;
    at.row = at.row0 + static_cast<int>(threadIdx.x) / 16 * SIDE, at.col = at.col0 + threadIdx.x % 16 * SIDE;
    product.run(place(product.a.s, blockIdx.x / (across * down), product.each()), at);
}

template <typename P> void run_product(const rw_kernel *k, const P &product)
{
    const rw_ssd &s = product.a.s;
    const int64_t tiles = tiles_of(product.rows()) * tiles_of(product.cols());
    const int64_t blocks = s.b * s.chunks * product.each() * tiles;
    if (blocks) RW_LAUNCH(product_kernel<P>, static_cast<unsigned>(blocks), THREADS, 0, k, product);
}

/* The size of a product: rows, columns, and units of a chunk. */
#define PRODUCT(ROWS, COLS, EACH)                                                  \
    using W = wide<T>;                                                             \
    scan<T> a;                                                                     \
    __host__ __device__ int rows() const { return static_cast<int>(a.s.ROWS); }    \
    __host__ __device__ int cols() const { return static_cast<int>(a.s.COLS); }    \
    __host__ __device__ int64_t each() const { return a.s.EACH; }

/* The term that a chunk adds to the state, or to the state's gradient: [n, p]. */
template <typename T, bool GRADIENT> struct into_state {
    PRODUCT(n, p, h)

    __device__ __forceinline__ void run(const place_of &u, const corner &at) const
    {
        const int64_t g = u.which / a.s.r, from = u.unit * a.s.q;
        const scan<T> &s = a;
        W sum[SIDE][SIDE] = {}, *const to = (GRADIENT ? a.r.after : a.r.before) + u.unit * a.s.n * a.s.p;
        multiply<true, true>(
            sum, at, rows(), cols(), 0, u.places,
            [&](int n, int i) { return (GRADIENT ? s.c : s.b).at(u.b, u.first + i, g, n); },
            [&](int i, int p) {
                if (GRADIENT) return s.r.share[from + i] * s.dy.at(u.b, u.first + i, u.which, p);
                return s.r.rest[from + i] * (s.dt.at(u.b, u.first + i, u.which) * s.x.at(u.b, u.first + i, u.which, p));
            });
        each_of(sum, at, rows(), cols(), [&](int n, int p, W x) { to[static_cast<int64_t>(n) * s.s.p + p] = x; });
    }
};

/* c b^T of a group, for tiles up to the diagonal: [place, place]. */
template <typename T> struct scores_of {
    PRODUCT(q, q, g)

    __device__ __forceinline__ void run(const place_of &u, const corner &at) const
    {
        const scan<T> &s = a;
        W sum[SIDE][SIDE] = {}, *const to = a.r.scores + u.unit * a.s.q * a.s.q;
        if (at.col0 > at.row0) return;
        multiply<false, false>(
            sum, at, u.places, u.places, 0, static_cast<int>(a.s.n),
            [&](int i, int n) { return s.c.at(u.b, u.first + i, u.which, n); },
            [&](int n, int j) { return s.b.at(u.b, u.first + j, u.which, n); });
        each_of(sum, at, u.places, u.places, [&](int i, int j, W x) { to[i * s.s.q + j] = x; });
    }
};

/* y; or the contribution of the state to each place, times dy: [place, p]. */
template <typename T, bool SHARES_ALONE> struct results_of {
    PRODUCT(q, p, h)

    __device__ __forceinline__ void run(const place_of &u, const corner &at) const
    {
        const scan<T> &s = a;
        const int64_t g = u.which / a.s.r, from = u.unit * a.s.q, q = a.s.q;
        const W *const before = a.r.before + u.unit * a.s.n * a.s.p;
        const W *const scores = a.r.scores + (u.unit / a.s.h * a.s.g + g) * q * q;
        W sum[SIDE][SIDE] = {};
        multiply<false, true>(
            sum, at, u.places, cols(), 0, static_cast<int>(a.s.n),
            [&](int i, int n) { return s.c.at(u.b, u.first + i, g, n); },
            [&](int n, int p) { return before[static_cast<int64_t>(n) * s.s.p + p]; });
        each_of(sum, at, u.places, cols(), [&](int i, int, W &x) { x *= s.r.share[from + i]; });
        if (SHARES_ALONE) {
            row_sums(sum, at, u.places, cols(), a.r.of_share + (u.unit * tiles(cols()) + at.col_tile) * q,
                     [&](int i, int p) { return s.dy.at(u.b, u.first + i, u.which, p); });
            return;
        }
        const int end = at.row0 + TILE < u.places ? at.row0 + TILE : u.places;
        multiply<false, true>(
            sum, at, u.places, cols(), 0, end,
            [&](int i, int j) { return j <= i ? scores[i * q + j] * exp(between(s.r, from, i, j)) : W(0); },
            [&](int j, int p) { return s.dt.at(u.b, u.first + j, u.which) * s.x.at(u.b, u.first + j, u.which, p); });
        each_of(sum, at, u.places, cols(), [&](int i, int p, W y) {
            s.out[0][((u.b * s.s.l + u.first + i) * s.s.h + u.which) * s.s.p + p] = narrow<T>(y);
        });
    }

    static __device__ __forceinline__ int64_t tiles(int n) { return (n + TILE - 1) / TILE; }
};

/* dx, and the gradient of dt as a factor of x: [place, p]. */
template <typename T> struct inputs_of {
    PRODUCT(q, p, h)

    __device__ __forceinline__ void run(const place_of &u, const corner &at) const
    {
        const scan<T> &s = a;
        const int64_t g = u.which / a.s.r, from = u.unit * a.s.q, q = a.s.q;
        const int64_t part = (u.unit * ((cols() + TILE - 1) / TILE) + at.col_tile) * q;
        const W *const after = a.r.after + u.unit * a.s.n * a.s.p;
        const W *const scores = a.r.scores + (u.unit / a.s.h * a.s.g + g) * q * q;
        W sum[SIDE][SIDE] = {};
        multiply<false, true>(
            sum, at, u.places, cols(), 0, static_cast<int>(a.s.n),
            [&](int j, int n) { return s.b.at(u.b, u.first + j, g, n); },
            [&](int n, int p) { return after[static_cast<int64_t>(n) * s.s.p + p]; });
        each_of(sum, at, u.places, cols(), [&](int j, int, W &x) { x *= s.r.rest[from + j]; });
        row_sums(sum, at, u.places, cols(), a.r.of_rest + part, [&](int j, int p) {
            return s.dt.at(u.b, u.first + j, u.which) * s.x.at(u.b, u.first + j, u.which, p);
        });
        multiply<true, true>(
            sum, at, u.places, cols(), at.row0, u.places,
            [&](int j, int i) { return i >= j ? scores[i * q + j] * exp(between(s.r, from, i, j)) : W(0); },
            [&](int i, int p) { return s.dy.at(u.b, u.first + i, u.which, p); });
        row_sums(sum, at, u.places, cols(), a.r.of_dt + part,
                 [&](int j, int p) { return s.x.at(u.b, u.first + j, u.which, p); });
        each_of(sum, at, u.places, cols(), [&](int j, int p, W x) {
            s.out[SSD_X][((u.b * s.s.l + u.first + j) * s.s.h + u.which) * s.s.p + p] =
                narrow<T>(s.dt.at(u.b, u.first + j, u.which) * x);
        });
    }
};

/* dc, or db: [place, n]. The terms from outside of the chunk are summed over all heads of the group. */
template <typename T, bool OF_C> struct group_of {
    PRODUCT(q, n, g)

    __device__ __forceinline__ void run(const place_of &u, const corner &at) const
    {
        const scan<T> &s = a;
        const int64_t q = a.s.q, h = u.which * a.s.r;
        const int width = static_cast<int>(a.s.p);
        const W *const dscores = a.r.dscores + u.unit * q * q;
        W sum[SIDE][SIDE] = {};
        const int end = OF_C && at.row0 + TILE < u.places ? at.row0 + TILE : u.places;
        multiply<!OF_C, true>(
            sum, at, u.places, cols(), OF_C ? 0 : at.row0, end,
            [&](int i, int j) {
                if (OF_C) return j <= i ? dscores[i * q + j] : W(0);
                return j >= i ? dscores[j * q + i] : W(0);
            },
            [&](int j, int n) { return (OF_C ? s.b : s.c).at(u.b, u.first + j, u.which, n); });
        multiply<false, false>(
            sum, at, u.places, cols(), 0, static_cast<int>(a.s.r) * width,
            [&](int i, int k) {
                const int64_t head = h + k / width, unit = head_of(s.s, u, head) * q + i;
                if (OF_C) return s.r.share[unit] * s.dy.at(u.b, u.first + i, head, k % width);
                return s.r.rest[unit] *
                       (s.dt.at(u.b, u.first + i, head) * s.x.at(u.b, u.first + i, head, k % width));
            },
            [&](int k, int n) {
                const int64_t unit = head_of(s.s, u, h + k / width);
                return (OF_C ? s.r.before : s.r.after)[(unit * s.s.n + n) * width + k % width];
            });
        each_of(sum, at, u.places, cols(), [&](int i, int n, W x) {
            s.out[OF_C ? SSD_C : SSD_B][((u.b * s.s.l + u.first + i) * s.s.g + u.which) * s.s.n + n] = narrow<T>(x);
        });
    }
};

/* ---- pairs ---- */

/*
 * For a group, a tile of its scores' gradient, summed head by head; for each head the sums of dm m along the tile's
 * rows and columns, without the diagonal, where they cancel.
 */
template <typename T> __global__ void __launch_bounds__(THREADS) pairs_kernel(const scan<T> s, int across)
{
    using W = wide<T>;
    __shared__ W partial[TILE / SIDE][TILE];
    const place_of u = place(s.s, blockIdx.x / (across * across), s.s.g);
    const int tile = blockIdx.x % (across * across), below = tile / across, beside = tile % across;
    const int64_t q = s.s.q, group = u.unit * q * q;
    const corner at = { below * TILE, beside * TILE, below * TILE + static_cast<int>(threadIdx.x) / 16 * SIDE,
                        beside * TILE + static_cast<int>(threadIdx.x) % 16 * SIDE, beside };
    W all[SIDE][SIDE] = {};
    if (beside > below) return;
    for (int64_t h = u.which * s.s.r; h < (u.which + 1) * s.s.r; h++) {
        const int64_t unit = head_of(s.s, u, h), part = unit * across * q;
        W dm[SIDE][SIDE] = {}, columns[SIDE] = {};
        multiply<false, false>(
            dm, at, u.places, u.places, 0, static_cast<int>(s.s.p),
            [&](int i, int p) { return s.dy.at(u.b, u.first + i, h, p); },
            [&](int p, int j) { return s.dt.at(u.b, u.first + j, h) * s.x.at(u.b, u.first + j, h, p); });
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                const int row = at.row + i, col = at.col + j;
                const bool is_there = row < u.places && col <= row;
                const W dscore = is_there ? dm[i][j] * exp(between(s.r, unit * q, row, col)) : W(0);
                all[i][j] += dscore;
                dm[i][j] = is_there && col < row ? dscore * s.r.scores[group + row * q + col] : W(0);
                columns[j] += dm[i][j];
            }
        row_sums(dm, at, u.places, u.places, s.r.rows + part + beside * q, [](int, int) { return W(1); });
        for (int j = 0; j < SIDE; j++) partial[threadIdx.x / 16][threadIdx.x % 16 * SIDE + j] = columns[j];
        __syncthreads();
        if (threadIdx.x < TILE && at.col0 + static_cast<int>(threadIdx.x) < u.places) {
            W sum = 0;
            for (int i = 0; i < TILE / SIDE; i++) sum += partial[i][threadIdx.x];
            s.r.columns[part + below * q + at.col0 + threadIdx.x] = sum;
        }
        __syncthreads();
    }
    each_of(all, at, u.places, u.places, [&](int i, int j, W x) { s.r.dscores[group + i * q + j] = x; });
}

/* ---- along the sequence ---- */

/* One thread per head of a chunk: its sums, and their exponentials. */
template <typename T> __global__ void __launch_bounds__(THREADS) sums_kernel(const scan<T> s, int64_t heads)
{
    using W = wide<T>;
    const int64_t unit = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, from = unit * s.s.q;
    if (unit >= heads) return;
    const place_of u = place(s.s, unit, s.s.h);
    const double rate = static_cast<double>(s.a.at(u.which)), most = rw_ssd_most(s.s.q);
    rw_ssd_sum sum = { 0, 0 };
    for (int i = 0; i < u.places; i++) {
        sum = rw_ssd_add(sum, static_cast<double>(s.dt.at(u.b, u.first + i, u.which)) * rate, most);
        const W all = static_cast<W>(sum.all);
        s.r.sum[from + i] = all;
        s.r.low[from + i] = static_cast<W>(sum.all - static_cast<double>(all) + sum.rest);
        s.r.share[from + i] = exp(all);
    }
    for (int i = 0; i < u.places; i++) s.r.rest[from + i] = exp(between(s.r, from, u.places - 1, i));
}

/* One thread per element of a state. Replaces the term that a chunk adds by the state before the chunk, or for the
   gradient by the one after it. to: the final state [batch, heads, p, n]; NULL: not requested. */
template <typename T, bool GRADIENT>
__global__ void __launch_bounds__(THREADS) pass_kernel(const scan<T> s, T *to, int64_t numbers)
{
    using W = wide<T>;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= numbers) return;
    const int64_t p = i % s.s.p, n = i / s.s.p % s.s.n, h = i / s.s.p / s.s.n % s.s.h, b = i / s.s.p / s.s.n / s.s.h;
    W state = (GRADIENT ? s.dstate : s.state).at(b, h, p, n);
    for (int64_t k = 0; k < s.s.chunks; k++) {
        const int64_t chunk = GRADIENT ? s.s.chunks - 1 - k : k, unit = (b * s.s.chunks + chunk) * s.s.h + h;
        const int64_t last = chunk + 1 < s.s.chunks ? s.s.q - 1 : s.s.l - 1 - chunk * s.s.q;
        W *const at = (GRADIENT ? s.r.after : s.r.before) + (unit * s.s.n + n) * s.s.p + p;
        const W added = *at;
        *at = state;
        state = fused(state, s.r.share[unit * s.s.q + last], added);
    }
    if (to) to[((b * s.s.h + h) * s.s.p + p) * s.s.n + n] = narrow<T>(state);
}

/* One block per head of a chunk: the gradient of exp(s[last]), the factor of the state that passes through the
   chunk. */
template <typename T> __global__ void __launch_bounds__(THREADS) whole_kernel(const scan<T> s)
{
    using W = wide<T>;
    __shared__ W shared[32];
    const place_of u = place(s.s, blockIdx.x, s.s.h);
    const int64_t each = s.s.n * s.s.p;
    const W share = s.r.share[u.unit * s.s.q + u.places - 1];
    W sum = 0;
    for (int64_t i = threadIdx.x; i < each; i += THREADS) /* first: a product with a state that decays to 0 may
                                                             overflow */
        sum = fused(s.r.before[u.unit * each + i], share * s.r.after[u.unit * each + i], sum);
    sum = block_sum(sum, shared);
    if (!threadIdx.x) s.r.whole[u.unit] = sum;
}

/* The sum over tiles [from, to) of a place. */
template <typename W> __device__ __forceinline__ W tiles_sum(const W *part, int64_t q, int64_t from, int64_t to)
{
    W sum = 0;
    for (int64_t i = from; i < to; i++) sum += part[i * q];
    return sum;
}

/* One thread per head of a chunk: ddt, and the chunk's contribution to da. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    steps_kernel(const scan<T> s, int64_t heads, int64_t across, int64_t wide_tiles)
{
    using W = wide<T>;
    const int64_t unit = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, q = s.s.q;
    if (unit >= heads) return;
    const place_of u = place(s.s, unit, s.s.h);
    const double rate = static_cast<double>(s.a.at(u.which)), most = rw_ssd_most(q);
    double sum = static_cast<double>(s.r.whole[unit]), da = 0;
    for (int i = 0; i < u.places; i++)
        sum += static_cast<double>(tiles_sum(s.r.of_rest + unit * wide_tiles * q + i, q, 0, wide_tiles));
    for (int i = u.places - 1; i >= 0; i--) {
        const int64_t tile = i / TILE, part = unit * across * q + i, wide_part = unit * wide_tiles * q + i;
        const W ds = tiles_sum(s.r.rows + part, q, 0, tile + 1) -
                     tiles_sum(s.r.columns + part, q, tile, (u.places + TILE - 1) / TILE) +
                     tiles_sum(s.r.of_share + wide_part, q, 0, wide_tiles) -
                     tiles_sum(s.r.of_rest + wide_part, q, 0, wide_tiles);
        const W dt = s.dt.at(u.b, u.first + i, u.which), of_dt = tiles_sum(s.r.of_dt + wide_part, q, 0, wide_tiles);
        sum += static_cast<double>(ds);
        if (rw_ssd_forgets(static_cast<double>(dt) * rate, most)) sum *= 0;
        da += static_cast<double>(dt) * sum;
        s.out[SSD_DT][(u.b * s.s.l + u.first + i) * s.s.h + u.which] =
            narrow<T>(static_cast<W>(rate * sum + static_cast<double>(of_dt)));
    }
    s.r.da[unit] = static_cast<W>(da);
}

/* One thread per head: da, over the chunks in order, in double. */
template <typename T> __global__ void __launch_bounds__(THREADS) rates_kernel(const scan<T> s)
{
    const int64_t h = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (h >= s.s.h) return;
    double sum = 0;
    for (int64_t i = 0; i < s.s.b * s.s.chunks; i++) sum += static_cast<double>(s.r.da[i * s.s.h + h]);
    s.out[SSD_A][h] = narrow<T>(static_cast<wide<T>>(sum));
}

/* ---- host functions ---- */

template <typename T> operand<T> operand_of(const rw_kernel *k, int i)
{
    operand<T> o = {};
    if (i < 0) return o;
    o.p = static_cast<const T *>(k->in[i].data);
    for (int axis = 0; axis < k->in[i].layout->rank; axis++) o.stride[axis] = k->in[i].layout->stride[axis];
    return o;
}

template <typename T> scan<T> scan_of(const rw_kernel *k, bool backward)
{
    scan<T> s = {};
    s.s = rw_ssd_of(k->in[SSD_X].layout, k->in[SSD_B].layout, static_cast<const rw_ssd_attrs *>(k->attrs));
    s.x = operand_of<T>(k, SSD_X), s.dt = operand_of<T>(k, SSD_DT), s.a = operand_of<T>(k, SSD_A);
    s.b = operand_of<T>(k, SSD_B), s.c = operand_of<T>(k, SSD_C), s.state = operand_of<T>(k, s.s.state);
    s.dy = operand_of<T>(k, s.s.dy), s.dstate = operand_of<T>(k, s.s.dstate);
    s.r = room_of<wide<T>>(s.s, static_cast<wide<T> *>(k->workspace), backward);
    for (int i = 0; i < k->n_outputs; i++) s.out[i] = static_cast<T *>(k->out[i].data);
    return s;
}

template <typename T, bool GRADIENT> void run_pass(const rw_kernel *k, const scan<T> &s, T *to)
{
    const int64_t numbers = s.s.b * s.s.h * s.s.n * s.s.p;
    if (numbers)
        RW_LAUNCH((pass_kernel<T, GRADIENT>), blocks_for(numbers, THREADS), THREADS, 0, k, s, to, numbers);
}

/* Sums, states before the chunks and scores. last: the state after the last place; NULL: not requested. */
template <typename T> void run_states(const rw_kernel *k, const scan<T> &s, T *last)
{
    const int64_t heads = s.s.b * s.s.chunks * s.s.h;
    if (heads) RW_LAUNCH(sums_kernel<T>, blocks_for(heads, THREADS), THREADS, 0, k, s, heads);
    run_product(k, into_state<T, false>{ s });
    run_pass<T, false>(k, s, last);
    run_product(k, scores_of<T>{ s });
}

/* Launches the stages of backward after the states. */
template <typename T> void run_gradients(const rw_kernel *k, const scan<T> &s)
{
    const int64_t heads = s.s.b * s.s.chunks * s.s.h, groups = s.s.b * s.s.chunks * s.s.g, across = tiles_of(s.s.q);
    run_product(k, into_state<T, true>{ s });
    run_pass<T, true>(k, s, s.s.state >= 0 ? s.out[SSD_OPERANDS] : nullptr);
    if (groups)
        RW_LAUNCH(pairs_kernel<T>, static_cast<unsigned>(groups * across * across), THREADS, 0, k, s,
                  static_cast<int>(across));
    run_product(k, results_of<T, true>{ s });
    run_product(k, inputs_of<T>{ s });
    run_product(k, group_of<T, false>{ s });
    run_product(k, group_of<T, true>{ s });
    if (heads) {
        RW_LAUNCH(whole_kernel<T>, static_cast<unsigned>(heads), THREADS, 0, k, s);
        RW_LAUNCH(steps_kernel<T>, blocks_for(heads, THREADS), THREADS, 0, k, s, heads, across, tiles_of(s.s.p));
    }
    if (s.s.h) RW_LAUNCH(rates_kernel<T>, blocks_for(s.s.h, THREADS), THREADS, 0, k, s);
}

size_t workspace_of(const rw_op_call *call, bool backward)
{
    const rw_ssd s = rw_ssd_of(call->in[SSD_X].layout, call->in[SSD_B].layout,
                               static_cast<const rw_ssd_attrs *>(call->attrs));
    const size_t each = call->in[SSD_X].dtype == RW_F64 ? sizeof(double) : sizeof(float);
    return static_cast<size_t>(room_of<float>(s, nullptr, backward).elements) * each;
}

} // namespace

extern "C" size_t rw_ssd_scan_workspace_cuda(const rw_op_call *call)
{
    return workspace_of(call, false);
}

extern "C" size_t rw_ssd_scan_grad_workspace_cuda(const rw_op_call *call)
{
    return workspace_of(call, true);
}

extern "C" rw_status rw_ssd_scan_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[SSD_X].dtype, [&](auto type) {
        using T = decltype(type);
        const scan<T> s = scan_of<T>(k, false);
        run_states<T>(k, s, static_cast<T *>(k->out[1].data));
        run_product(k, results_of<T, false>{ s });
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_ssd_scan_grad_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[SSD_X].dtype, [&](auto type) {
        using T = decltype(type);
        const scan<T> s = scan_of<T>(k, true);
        run_states<T>(k, s, nullptr);
        run_gradients<T>(k, s);
        return rw_cuda_launched(k);
    });
}
