/*
 * Products by expert on CUDA, without tensor cores. A block of 16 x 16 threads computes a tile of 64 rows by 64
 * columns. The grid has as many blocks as any routes may need; each block finds its expert from the offsets, and
 * surplus blocks exit. Every element is one chain over the depth, so a row's result does not depend on the expert's
 * other rows.
 */
/* machine_code.py: \w+_kernel<.*>: limited by arithmetic */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/moe/moe.h"
}

namespace {

constexpr int TILE = 64, DEPTH = 16, THREADS = 256;

__device__ __forceinline__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return fma(a, b, c); }

struct product_args {
    const void *x, *other, *sum; /* other: the weight, or dy; sum: addend of an outer product, or NULL */
    void *y;
    const int32_t *offsets, *order;
    int64_t rows, tokens, k, experts, in, out, depth, width, blocks;
    bool gathers, gathers_dy, transposed;

    __device__ __forceinline__ int64_t of_token(int64_t row) const { return rw_moe_within(order[row] / k, tokens); }
    __device__ __forceinline__ int64_t source(int64_t row) const { return gathers ? of_token(row) : row; }
    __device__ __forceinline__ int64_t source_of_dy(int64_t row) const { return gathers_dy ? of_token(row) : row; }
};

/* sum[i][j] += a[p][ty * 4 + i] b[p][tx * 4 + j], over DEPTH values of p. */
template <typename W>
__device__ __forceinline__ void step(W (&sum)[4][4], const W (*a)[TILE], const W (*b)[TILE])
{
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
#pragma unroll
    for (int p = 0; p < DEPTH; p++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) sum[i][j] = fused(a[p][ty * 4 + i], b[p][tx * 4 + j], sum[i][j]);
}

/* The rows of a block: number `tile` of the tiles of all experts in order, then of the dropped rows, whose expert is
   number a.experts. */
struct tile_of_rows {
    int64_t expert, from, to;
};

__device__ __forceinline__ tile_of_rows find_tile(const product_args &a, int64_t tile)
{
    for (int64_t e = 0; e < a.experts; e++) {
        const moe_range r = rw_moe_rows_of(a.offsets, e, a.rows);
        const int64_t tiles = (r.to - r.from + TILE - 1) / TILE;
        if (tile < tiles) return { e, r.from + tile * TILE, r.to };
        tile -= tiles;
    }
    const int64_t first = a.experts ? rw_moe_rows_of(a.offsets, a.experts - 1, a.rows).to : 0;
    return { a.experts, first + tile * TILE, a.rows };
}

/* Computes a tile of moe_linear: 64 rows of one expert by 64 columns. */
template <typename T> __global__ void __launch_bounds__(THREADS) linear_kernel(const product_args a)
{
    using W = wide<T>;
    __shared__ W rows[DEPTH][TILE], columns[DEPTH][TILE];
    const tile_of_rows t = find_tile(a, blockIdx.x / a.blocks);
    const int64_t col = blockIdx.x % a.blocks * TILE;
    if (t.from >= t.to) return;
    const T *const x = static_cast<const T *>(a.x);
    const T *const w = static_cast<const T *>(a.other) + t.expert * a.out * a.in;
    const int64_t depth = t.expert < a.experts ? a.depth : 0; /* zeros for dropped rows */
    const int lane = threadIdx.x % TILE, first = threadIdx.x / TILE; /* the elements that this thread loads */
    const int64_t row = t.from + lane, source = row < t.to ? a.source(row) : 0;
    W sum[4][4] = {};
    for (int64_t p = 0; p < depth; p += DEPTH) {
        for (int i = first; i < DEPTH; i += THREADS / TILE) {
            const bool in = p + i < a.depth;
            rows[i][lane] = in && row < t.to ? widen(x[source * a.depth + p + i]) : static_cast<W>(0);
            const int64_t at = a.transposed ? (p + i) * a.in + col + lane : (col + lane) * a.in + p + i;
            columns[i][lane] = in && col + lane < a.width ? widen(w[at]) : static_cast<W>(0);
        }
        __syncthreads();
        step(sum, rows, columns);
        __syncthreads();
    }
    T *const y = static_cast<T *>(a.y);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int64_t r = t.from + threadIdx.x / 16 * 4 + i, c = col + threadIdx.x % 16 * 4 + j;
            if (r < t.to && c < a.width) y[r * a.width + c] = narrow<T>(sum[i][j]);
        }
}

/* A tile of the sum for one expert's matrix, over the expert's rows in order; zeros, or the sum so far, if it has no
   rows. */
/* S: type of the result and of the addend. */
template <typename T, typename S> __global__ void __launch_bounds__(THREADS) outer_kernel(const product_args a)
{
    using W = wide<T>;
    __shared__ W outs[DEPTH][TILE], ins[DEPTH][TILE];
    const int64_t down = (a.out + TILE - 1) / TILE, tile = blockIdx.x / a.blocks, expert = tile / down;
    const int64_t first = tile % down * TILE, col = blockIdx.x % a.blocks * TILE;
    const moe_range r = rw_moe_rows_of(a.offsets, expert, a.rows);
    const T *const x = static_cast<const T *>(a.x), *const dy = static_cast<const T *>(a.other);
    const int lane = threadIdx.x % TILE;
    W sum[4][4] = {};
    for (int64_t row = r.from; row < r.to; row += DEPTH) {
        for (int i = threadIdx.x / TILE; i < DEPTH; i += THREADS / TILE) {
            const bool in = row + i < r.to;
            const bool has_out = in && first + lane < a.out, has_in = in && col + lane < a.in;
            outs[i][lane] = has_out ? widen(dy[a.source_of_dy(row + i) * a.out + first + lane]) : static_cast<W>(0);
            ins[i][lane] = has_in ? widen(x[a.source(row + i) * a.in + col + lane]) : static_cast<W>(0);
        }
        __syncthreads();
        step(sum, outs, ins);
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int64_t o = first + threadIdx.x / 16 * 4 + i, c = col + threadIdx.x % 16 * 4 + j;
            const int64_t at = (expert * a.out + o) * a.in + c;
            if (o >= a.out || c >= a.in) continue;
            const W before = a.sum ? widen(static_cast<const S *>(a.sum)[at]) : static_cast<W>(0);
            static_cast<S *>(a.y)[at] = narrow<S>(a.sum ? before + sum[i][j] : sum[i][j]);
        }
}

template <typename K> rw_status launch(const rw_kernel *k, K kernel, const product_args &a, int64_t blocks)
{
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    if (!blocks) return RW_OK;
    if (blocks > INT32_MAX) return rw_cuda_fail(cuda, RW_ERR_UNSUPPORTED, "%s: too many blocks", k->op->name);
    RW_LAUNCH(kernel, static_cast<unsigned>(blocks), THREADS, 0, k, a);
    return rw_cuda_launched(k);
}

} // namespace

/* Launches moe_linear for the type of its operands. */
extern "C" rw_status rw_moe_linear_cuda(const rw_kernel *k)
{
    const rw_moe_linear_attrs *const p = static_cast<const rw_moe_linear_attrs *>(k->attrs);
    const rw_layout *const w = k->in[1].layout, *const y = k->out[0].layout;
    product_args a = {};
    a.x = k->in[0].data, a.other = k->in[1].data, a.y = k->out[0].data;
    a.offsets = static_cast<const int32_t *>(k->in[2].data), a.order = static_cast<const int32_t *>(k->in[3].data);
    a.rows = y->dim[0], a.tokens = k->in[0].layout->dim[0], a.k = p->k;
    a.experts = w->dim[0], a.out = w->dim[1], a.in = w->dim[2];
    a.depth = k->in[0].layout->dim[1], a.width = y->dim[1];
    a.gathers = p->gathers != 0, a.transposed = p->transposed != 0;
    a.blocks = (a.width + TILE - 1) / TILE;
    const int64_t tiles = a.rows ? (a.rows + TILE - 1) / TILE + a.experts : 0;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        return launch(k, linear_kernel<decltype(type)>, a, tiles * a.blocks);
    });
}

/* Launches moe_outer for the types of its operands and result. */
extern "C" rw_status rw_moe_outer_cuda(const rw_kernel *k)
{
    const rw_moe_outer_attrs *const p = static_cast<const rw_moe_outer_attrs *>(k->attrs);
    const rw_layout *const y = k->out[0].layout;
    product_args a = {};
    a.x = k->in[1].data, a.other = k->in[0].data, a.y = k->out[0].data;
    a.sum = rw_kernel_has(k, 5) ? k->in[5].data : nullptr;
    a.offsets = static_cast<const int32_t *>(k->in[2].data), a.order = static_cast<const int32_t *>(k->in[3].data);
    a.rows = k->in[3].layout->dim[0], a.tokens = k->in[p->gathers_dy ? 0 : 1].layout->dim[0], a.k = p->k;
    a.experts = p->experts, a.out = y->dim[1], a.in = y->dim[2];
    a.gathers = p->gathers != 0, a.gathers_dy = p->gathers_dy != 0;
    a.blocks = (a.in + TILE - 1) / TILE;
    const int64_t down = (a.out + TILE - 1) / TILE;
    const bool widened = k->out[0].dtype != k->in[0].dtype;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        if (widened) return launch(k, outer_kernel<T, wide<T>>, a, a.experts * down * a.blocks);
        return launch(k, outer_kernel<T, T>, a, a.experts * down * a.blocks);
    });
}
