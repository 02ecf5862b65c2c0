/*
 * Convolutions on CUDA: the three products of conv.h as tiles of our own. What a tile multiplies is gathered where the
 * kernel lies over the image, so nothing is unfolded in memory; each element of a result is one sum in a fixed order.
 */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/conv/conv.h"
}

namespace {

constexpr int TILE = 32, TILE_ROWS = 8;     /* a block of 32 x 8 threads computes 32 x 32 elements */
constexpr int64_t MOST_BLOCKS = 0x7fffffff; /* of a grid's first axis */

/* Rows, columns and the length of the sums of one group's product. */
struct extents {
    int64_t m, n, k, across, down, all;
};

__device__ int64_t under(const rw_conv &c, int i, int64_t out, int64_t tap)
{
    const int64_t at = out * c.stride[i] - c.padding[i] + tap * c.dilation[i];
    return at < (i ? c.w : c.h) ? at : -1;
}

__device__ int64_t over(const rw_conv &c, int i, int64_t in, int64_t tap)
{
    const int64_t at = in + c.padding[i] - tap * c.dilation[i];
    return at < 0 || at % c.stride[i] || at / c.stride[i] >= (i ? c.ow : c.oh) ? -1 : at / c.stride[i];
}

/* x under output pixel p, at tap and channel of a group; 0 outside of the image. */
template <typename T>
__device__ wide<T> x_under(const rw_conv &c, const T *x, int64_t group, int64_t p, int64_t tap, int64_t channel)
{
    const int64_t y = under(c, 0, p / c.ow % c.oh, tap / c.kw), z = under(c, 1, p % c.ow, tap % c.kw);
    if (y < 0 || z < 0) return 0;
    return widen(x[((p / c.ow / c.oh * c.h + y) * c.w + z) * c.c + group * c.cg + channel]);
}

/* dy over input pixel p, at tap and filter of a group; 0 where there is none. */
template <typename T>
__device__ wide<T> dy_over(const rw_conv &c, const T *dy, int64_t group, int64_t p, int64_t tap, int64_t filter)
{
    const int64_t y = over(c, 0, p / c.w % c.h, tap / c.kw), z = over(c, 1, p % c.w, tap % c.kw);
    if (y < 0 || z < 0) return 0;
    return widen(dy[((p / c.w / c.h * c.oh + y) * c.ow + z) * c.oc + group * c.ocg + filter]);
}

template <typename T>
__device__ wide<T> weight_of(const rw_conv &c, const T *weight, int64_t group, int64_t filter, int64_t channel,
                             int64_t tap)
{
    return widen(weight[((group * c.ocg + filter) * c.cg + channel) * c.kh * c.kw + tap]);
}

/* Element (row, l) of the left factor and (l, col) of the right one. Of a weight's gradient, dy and x. */
template <typename T, int KIND>
__device__ wide<T> left(const rw_conv &c, const T *a, int64_t group, int64_t row, int64_t l)
{
    if (KIND == RW_CONV_FORWARD) return x_under(c, a, group, row, l / c.cg, l % c.cg);
    if (KIND == RW_CONV_DATA) return dy_over(c, a, group, row, l / c.ocg, l % c.ocg);
    return widen(a[l * c.oc + group * c.ocg + row]);
}

template <typename T, int KIND>
__device__ wide<T> right(const rw_conv &c, const T *b, int64_t group, int64_t l, int64_t col)
{
    if (KIND == RW_CONV_FORWARD) return weight_of(c, b, group, col, l % c.cg, l / c.cg);
    if (KIND == RW_CONV_DATA) return weight_of(c, b, group, l % c.ocg, col, l / c.ocg);
    return x_under(c, b, group, l, col / c.cg, col % c.cg);
}

template <int KIND> __device__ int64_t place(const rw_conv &c, int64_t group, int64_t row, int64_t col)
{
    if (KIND == RW_CONV_FORWARD) return row * c.oc + group * c.ocg + col;
    if (KIND == RW_CONV_DATA) return row * c.c + group * c.cg + col;
    return ((group * c.ocg + row) * c.cg + col % c.cg) * c.kh * c.kw + col / c.cg;
}

/* add: a bias by column, or of a weight's gradient the sum that it is added to. */
template <typename T, int KIND>
__global__ void __launch_bounds__(TILE *TILE_ROWS)
    tile_kernel(const T *a, const T *b, const T *add, T *to, rw_conv c, extents e)
{
    using W = wide<T>;
    __shared__ W as[TILE][TILE + 1];
    __shared__ W bs[TILE][TILE + 1];
    for (int64_t tile = blockIdx.x; tile < e.all; tile += gridDim.x) {
        const int64_t group = tile / (e.across * e.down), row = tile / e.across % e.down * TILE;
        const int64_t first = tile % e.across * TILE, col = first + threadIdx.x;
        W acc[TILE / TILE_ROWS] = {};
        for (int64_t from = 0; from < e.k; from += TILE) {
            for (int r = threadIdx.y; r < TILE; r += TILE_ROWS) {
                /* Neighbouring threads read neighbouring channels on either side. */
                const int64_t i = KIND == RW_CONV_WEIGHT ? row + threadIdx.x : row + r;
                const int64_t l = KIND == RW_CONV_WEIGHT ? from + r : from + threadIdx.x;
                const W x = i < e.m && l < e.k ? left<T, KIND>(c, a, group, i, l) : W(0);
                (KIND == RW_CONV_WEIGHT ? as[threadIdx.x][r] : as[r][threadIdx.x]) = x;
                bs[r][threadIdx.x] = from + r < e.k && col < e.n ? right<T, KIND>(c, b, group, from + r, col) : W(0);
            }
            __syncthreads();
            for (int l = 0; l < TILE; l++)
                for (int r = 0; r < TILE / TILE_ROWS; r++)
                    acc[r] += as[threadIdx.y + r * TILE_ROWS][l] * bs[l][threadIdx.x];
            __syncthreads();
        }
        for (int r = 0; r < TILE / TILE_ROWS; r++) {
            const int64_t i = row + threadIdx.y + r * TILE_ROWS;
            if (i >= e.m || col >= e.n) continue;
            const int64_t at = place<KIND>(c, group, i, col);
            const W y = add ? acc[r] + widen(add[KIND == RW_CONV_WEIGHT ? at : group * c.ocg + col]) : acc[r];
            to[at] = narrow<T>(y);
        }
    }
}

/* ---- a filter for each channel: threads side by side take channels side by side ---- */

template <typename T, bool DATA>
__global__ void depthwise_kernel(const T *x, const T *weight, const T *bias, T *to, rw_conv c, int64_t n)
{
    using W = wide<T>;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t channel = i % c.c, p = i / c.c;
    W sum = 0;
    for (int64_t tap = 0; tap < c.kh * c.kw; tap++) {
        const W value = DATA ? dy_over(c, x, channel, p, tap, 0) : x_under(c, x, channel, p, tap, 0);
        sum += value * widen(weight[channel * c.kh * c.kw + tap]);
    }
    to[i] = narrow<T>(bias ? sum + widen(bias[channel]) : sum);
}

/* A block for 32 channels and one tap: warps take pixels in turn, then are added in order. */
constexpr int WARPS = 8;
template <typename T>
__global__ void __launch_bounds__(32 * WARPS)
    depthwise_weight_kernel(const T *x, const T *dy, const T *sum, T *to, rw_conv c, int64_t across)
{
    using W = wide<T>;
    __shared__ W shared[WARPS][32];
    const int64_t channel = blockIdx.x % across * 32 + threadIdx.x, tap = blockIdx.x / across;
    W part = 0;
    for (int64_t p = threadIdx.y; p < c.n * c.oh * c.ow && channel < c.c; p += WARPS)
        part += x_under(c, x, channel, p, tap, 0) * widen(dy[p * c.c + channel]);
    shared[threadIdx.y][threadIdx.x] = part;
    __syncthreads();
    if (threadIdx.y || channel >= c.c) return;
    for (int w = 1; w < WARPS; w++) part += shared[w][threadIdx.x];
    const int64_t at = channel * c.kh * c.kw + tap;
    to[at] = narrow<T>(sum ? part + widen(sum[at]) : part);
}

/* ---- the run ---- */

extents extents_of(const rw_conv &c, rw_conv_kind kind)
{
    extents e = {};
    e.m = kind == RW_CONV_WEIGHT ? c.ocg : kind == RW_CONV_DATA ? c.n * c.h * c.w : c.n * c.oh * c.ow;
    e.n = kind == RW_CONV_WEIGHT ? c.cg * c.kh * c.kw : kind == RW_CONV_DATA ? c.cg : c.ocg;
    e.k = kind == RW_CONV_WEIGHT ? c.n * c.oh * c.ow : c.kh * c.kw * (kind == RW_CONV_DATA ? c.ocg : c.cg);
    e.across = (e.n + TILE - 1) / TILE;
    e.down = (e.m + TILE - 1) / TILE;
    e.all = e.across * e.down * c.groups;
    return e;
}

template <typename T, int KIND> void launch(const rw_kernel *k, const rw_conv &c, const T *add)
{
    const T *const a = static_cast<const T *>(k->in[0].data), *const b = static_cast<const T *>(k->in[1].data);
    T *const to = static_cast<T *>(k->out[0].data);
    if (rw_conv_is_depthwise(&c)) {
        const int64_t n = k->out[0].layout->numel, across = (c.c + 31) / 32;
        if (KIND == RW_CONV_WEIGHT)
            RW_LAUNCH(depthwise_weight_kernel<T>, static_cast<unsigned>(across * c.kh * c.kw), dim3(32, WARPS), 0, k, a,
                      b, add, to, c, across);
        else
            RW_LAUNCH((depthwise_kernel<T, KIND == RW_CONV_DATA>), blocks_for(n, 256), 256, 0, k, a, b, add, to, c, n);
        return;
    }
    const extents e = extents_of(c, static_cast<rw_conv_kind>(KIND));
    const unsigned blocks = static_cast<unsigned>(e.all < MOST_BLOCKS ? e.all : MOST_BLOCKS);
    const bool swaps = KIND == RW_CONV_WEIGHT;
    RW_LAUNCH((tile_kernel<T, KIND>), blocks, dim3(TILE, TILE_ROWS), 0, k, swaps ? b : a, swaps ? a : b, add, to, c, e);
}

template <int KIND> rw_status run(const rw_kernel *k)
{
    const rw_conv c = rw_conv_of_kernel(k, static_cast<rw_conv_kind>(KIND));
    if (!k->out[0].layout->numel) return RW_OK;
    return with_float_type(c.dtype, [&](auto type) {
        using T = decltype(type);
        launch<T, KIND>(k, c, rw_kernel_has(k, 2) ? static_cast<const T *>(k->in[2].data) : nullptr);
        return rw_cuda_launched(k);
    });
}

} // namespace

extern "C" rw_status rw_conv2d_cuda(const rw_kernel *k)
{
    return run<RW_CONV_FORWARD>(k);
}

extern "C" rw_status rw_conv2d_data_cuda(const rw_kernel *k)
{
    return run<RW_CONV_DATA>(k);
}

extern "C" rw_status rw_conv2d_weight_cuda(const rw_kernel *k)
{
    return run<RW_CONV_WEIGHT>(k);
}
