/*
 * CUDA kernels of batchnorm, group_norm and instance_norm. A block of threads has 32 channels of a block of rows. Its
 * warps take rows in turn and sum runs of them; the runs are added in double, and the warps in order. A second kernel
 * merges the blocks. If x is virtually concatenated, blockIdx.y is the index of the concatenation input, and the grid
 * is as wide as the widest one needs. batch_group_instance_norm.h describes the scheme.
 */
/* machine_code.py: (statistics|sums)_kernel<.*>: columns side by side, rows in turn */
/* machine_code.py: (normalise|slope)_kernel<.*>: elements side by side, each with the numbers of its channel */
/* machine_code.py: (merge|merge_sums|means|update|count)_kernel<.*>: a number for each channel or group */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/norm/batch_group_instance_norm.h"
#include "ops/shape/virtual_concat.h"
}

namespace {

constexpr int WARPS = 8, THREADS = 256, RUN = RW_GROUPS_RUN;

/* Sum over the warps of a block, returned in every thread of a column. */
__device__ double column_sum(double x, double (&shared)[WARPS][32])
{
    shared[threadIdx.y][threadIdx.x] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < WARPS; w++) sum += shared[w][threadIdx.x];
    __syncthreads();
    return sum;
}

/* The concatenation inputs of x: input p has the channels from first[p] to first[p + 1]. */
template <typename T, int N> struct pieces {
    const T *x[N];
    int64_t first[N + 1];
};

/* The concatenation input of this block. */
template <typename T> struct piece {
    const T *x;
    int64_t first, c;
};

template <typename T, int N> __device__ piece<T> piece_of_block(const pieces<T, N> &all)
{
    const unsigned p = N == 1 ? 0 : blockIdx.y;
    return { all.x[p], all.first[p], all.first[p + 1] - all.first[p] };
}

/* A thread's rows, and its channel, within its concatenation input and of all. */
struct rows_of {
    int64_t from, to, own, channel;
    bool there;
};

template <typename T> __device__ rows_of rows_of_block(const rw_groups &g, int64_t across, const piece<T> &p)
{
    const int64_t unit = blockIdx.x / across, s = unit / g.blocks, from = unit % g.blocks * g.block;
    const int64_t to = from + g.block < g.rows ? from + g.block : g.rows;
    const int64_t own = blockIdx.x % across * 32 + threadIdx.x;
    return { s * g.rows + from, s * g.rows + to, own, p.first + own, own < p.c };
}

/* An approximate mean serves as a centre: the mean of the differences from it gives the exact mean. */
template <typename T, int N>
__global__ void __launch_bounds__(32 * WARPS)
    statistics_kernel(pieces<T, N> x, double *part, rw_groups g, int64_t across)
{
    using W = wide<T>;
    __shared__ double shared[WARPS][32];
    const piece<T> p = piece_of_block(x);
    const rows_of b = rows_of_block(g, across, p);
    double sum = 0, rest = 0, square = 0;
    for (int64_t r = b.from + threadIdx.y; r < b.to && b.there; r += RUN * WARPS) {
        W run = 0;
#pragma unroll
        for (int i = 0; i < RUN; i++) run += r + i * WARPS < b.to ? widen(p.x[(r + i * WARPS) * p.c + b.own]) : W(0);
        sum += static_cast<double>(run);
    }
    const double n = static_cast<double>(b.to - b.from);
    const W centre = static_cast<W>(column_sum(sum, shared) / n);
    for (int64_t r = b.from + threadIdx.y; r < b.to && b.there; r += RUN * WARPS) {
        W run = 0, squares = 0;
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            const W d = r + i * WARPS < b.to ? widen(p.x[(r + i * WARPS) * p.c + b.own]) - centre : W(0);
            run += d;
            squares += d * d;
        }
        rest += static_cast<double>(run);
        square += static_cast<double>(squares);
    }
    rest = column_sum(rest, shared) / n;
    square = column_sum(square, shared) - n * rest * rest;
    double *const to = part + blockIdx.x / across * 2 * g.c;
    if (threadIdx.y || !b.there) return;
    to[b.channel] = static_cast<double>(centre) + rest;
    to[g.c + b.channel] = square < 0 ? 0 : square; /* for equal numbers the sum would be rounding errors */
}

/* The mean in two passes, as in statistics_kernel(). */
template <typename W> __global__ void merge_kernel(const double *part, W *mean, W *var, rw_groups g)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= g.segments * g.groups) return;
    const int64_t s = i / g.groups, first = i % g.groups * g.width;
    const double count = static_cast<double>(g.rows * g.width);
    double centre = 0, rest = 0, square = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t b = 0; b < g.blocks; b++) {
            const int64_t left = g.rows - b * g.block;
            const double n = static_cast<double>(left < g.block ? left : g.block);
            const double *const of = part + (s * g.blocks + b) * 2 * g.c;
            for (int64_t c = first; c < first + g.width; c++) {
                const double d = of[c] - centre;
                rest += n * d;
                if (pass) square += of[g.c + c] + n * d * d;
            }
        }
        if (!pass) centre = rest / count, rest = 0;
    }
    rest /= count;
    const double around = square / count - rest * rest;
    mean[i] = count > 0 ? static_cast<W>(centre + rest) : W(0);
    const W mean_square = count > 0 ? static_cast<W>(around < 0 ? 0 : around) : W(0);
    var[i] = mean_square < W(INFINITY) ? mean_square : W(NAN); /* not infinity: results would be the bias */
}

template <typename W> __device__ W scale_of(W var, double eps)
{
    return 1 / static_cast<W>(sqrt(static_cast<double>(var) + eps));
}

/* An element's channel, the index of its statistics, and its index in tensors that are whole. */
struct place {
    int64_t channel, statistic, at;
};

__device__ place place_of(const rw_groups &g, int64_t row, int64_t channel)
{
    return { channel, row / g.rows * g.groups + channel / g.width, row * g.c + channel };
}

/* The place of element i of a concatenation input; false beyond the last one. */
template <typename T> __device__ bool find_place(const rw_groups &g, const piece<T> &p, int64_t i, place *ret)
{
    if (i >= g.segments * g.rows * p.c) return false;
    *ret = place_of(g, i / p.c, p.first + i % p.c);
    return true;
}

/* The result before the addend, rounded to its type. */
template <typename T>
__device__ wide<T> result_of(T x, T weight, T bias, wide<T> mean, wide<T> var, const rw_groups &g)
{
    return widen(narrow<T>((widen(x) - mean) * (widen(weight) * scale_of(var, g.eps)) + widen(bias)));
}

/* dy, but 0 where a relu follows and the result is at most 0. */
template <typename T>
__device__ wide<T> upstream_of(T dy, T x, T weight, const T *bias, wide<T> mean, wide<T> var, const rw_groups &g)
{
    return g.relu && result_of<T>(x, weight, *bias, mean, var, g) <= 0 ? wide<T>(0) : widen(dy);
}

/* The result is rounded before the addend is added, as by a separate op. It may be written over either operand. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    normalise_kernel(pieces<T, N> x, const T *weight, const T *bias, const wide<T> *mean, const wide<T> *var,
                     const T *added, T *y, rw_groups g)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const piece<T> of = piece_of_block(x);
    place p;
    if (!find_place(g, of, i, &p)) return;
    wide<T> z = result_of<T>(of.x[i], weight[p.channel], bias[p.channel], mean[p.statistic], var[p.statistic], g);
    if (added) z += widen(added[p.at]);
    y[p.at] = narrow<T>(!g.relu || z > 0 || z != z ? z : wide<T>(0));
}

/* The sums over each channel of dy, and of dy times the normalized x. */
template <typename T, int N>
__global__ void __launch_bounds__(32 * WARPS)
    sums_kernel(pieces<T, N> x, const T *weight, const T *bias, const T *dy, const wide<T> *mean, const wide<T> *var,
                double *part, rw_groups g, int64_t across)
{
    using W = wide<T>;
    __shared__ double shared[WARPS][32];
    const piece<T> own = piece_of_block(x);
    const rows_of b = rows_of_block(g, across, own);
    double sum = 0, product = 0;
    if (b.there) {
        const place p = place_of(g, b.from, b.channel);
        const W centre = mean[p.statistic], scale = scale_of(var[p.statistic], g.eps);
        for (int64_t from = b.from + threadIdx.y; from < b.to; from += RUN * WARPS) {
            W run = 0, run_product = 0;
#pragma unroll
            for (int i = 0; i < RUN; i++) {
                const int64_t r = from + i * WARPS;
                if (r >= b.to) break;
                const T of = own.x[r * own.c + b.own];
                const W d = upstream_of<T>(dy[r * g.c + b.channel], of, weight[b.channel], bias + b.channel, centre,
                                           var[p.statistic], g);
                run += d;
                run_product += d * ((widen(of) - centre) * scale);
            }
            sum += static_cast<double>(run);
            product += static_cast<double>(run_product);
        }
    }
    sum = column_sum(sum, shared);
    product = column_sum(product, shared);
    double *const to = part + blockIdx.x / across * 2 * g.c;
    if (threadIdx.y || !b.there) return;
    to[b.channel] = sum;
    to[g.c + b.channel] = product;
}

/* Adds the blocks in order: for each segment and for all. */
template <typename T>
__global__ void merge_sums_kernel(const double *part, wide<T> *of_segment, T *dweight, T *dbias, rw_groups g)
{
    using W = wide<T>;
    const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (c >= g.c) return;
    double bias = 0, weight = 0;
    for (int64_t s = 0; s < g.segments; s++) {
        double sum = 0, product = 0;
        for (int64_t b = 0; b < g.blocks; b++) {
            const double *const of = part + (s * g.blocks + b) * 2 * g.c;
            sum += of[c];
            product += of[g.c + c];
        }
        of_segment[s * 2 * g.c + c] = static_cast<W>(sum);
        of_segment[(s * 2 + 1) * g.c + c] = static_cast<W>(product);
        bias += sum;
        weight += product;
    }
    dweight[c] = narrow<T>(static_cast<W>(weight));
    dbias[c] = narrow<T>(static_cast<W>(bias));
}

/* Means over a group of h = dy weight, and of h times the normalized x. */
template <typename T>
__global__ void means_kernel(const wide<T> *of_segment, const T *weight, wide<T> *means, rw_groups g)
{
    using W = wide<T>;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= g.segments * g.groups) return;
    const int64_t s = i / g.groups, first = i % g.groups * g.width;
    const double count = static_cast<double>(g.rows * g.width);
    double h = 0, hx = 0;
    for (int64_t c = first; c < first + g.width; c++) {
        const double w = static_cast<double>(widen(weight[c]));
        h += w * static_cast<double>(of_segment[s * 2 * g.c + c]);
        hx += w * static_cast<double>(of_segment[(s * 2 + 1) * g.c + c]);
    }
    means[2 * i] = static_cast<W>(h / count);
    means[2 * i + 1] = static_cast<W>(hx / count);
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    slope_kernel(pieces<T, N> x, const T *weight, const T *bias, const T *dy, const wide<T> *mean, const wide<T> *var,
                 const wide<T> *means, T *dx, rw_groups g)
{
    using W = wide<T>;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const piece<T> own = piece_of_block(x);
    place p;
    if (!find_place(g, own, i, &p)) return;
    const T of = own.x[i];
    const W r = scale_of(var[p.statistic], g.eps), xh = (widen(of) - mean[p.statistic]) * r;
    const T *const at = bias + p.channel;
    const W d = upstream_of<T>(dy[p.at], of, weight[p.channel], at, mean[p.statistic], var[p.statistic], g);
    const W h = d * widen(weight[p.channel]);
    dx[p.at] = narrow<T>(r * (g.given ? h : h - means[2 * p.statistic] - xh * means[2 * p.statistic + 1]));
}

template <typename W>
__global__ void update_kernel(const W *mean, const W *var, W *to_mean, W *to_var, const W *batches, rw_running_attrs a,
                              int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const W m = batches ? 1 / (*batches + 1) : static_cast<W>(a.momentum), unbiased = static_cast<W>(a.unbiased);
    to_mean[i] = (1 - m) * to_mean[i] + m * mean[i];
    to_var[i] = (1 - m) * to_var[i] + m * (unbiased * var[i]);
}

/* A kernel of its own, after all blocks that read the number. */
template <typename W> __global__ void count_kernel(W *batches)
{
    *batches += 1;
}

rw_groups groups_of(const rw_kernel *k) /* y, or dx */
{
    const rw_layout *const whole = k->out[0].layout;
    return rw_groups_of(static_cast<const rw_groups_attrs *>(k->attrs), whole, rw_groups_channels(whole));
}

template <typename T> const T *of(const rw_view &v)
{
    return static_cast<const T *>(v.data);
}

template <typename T> T *to(const rw_kernel *k, int i)
{
    return static_cast<T *>(k->out[i].data);
}

/* The concatenation inputs, and the maximum number of their channels. */
template <typename T, int N> pieces<T, N> pieces_at(const rw_groups &g, const rw_view *x, int64_t *ret_widest)
{
    pieces<T, N> all;
    int n = 0;
    *ret_widest = 0;
    for (rw_groups_piece p = rw_groups_begin(&g, x); p.left; rw_groups_next(&p)) {
        all.x[n] = of<T>(*p.x);
        all.first[n++] = p.first;
        if (p.c > *ret_widest) *ret_widest = p.c;
    }
    for (; n <= N; n++) all.first[n] = g.c;
    return all;
}

/* Launches the forward kernels: statistics unless they are given, then the results. */
template <typename T, int N> void forward(const rw_kernel *k, const rw_groups &g)
{
    using W = wide<T>;
    const int weight = rw_groups_weight(&g), added = rw_groups_added(&g);
    const int64_t units = g.segments * g.blocks, n = k->out[0].layout->numel;
    const unsigned more = static_cast<unsigned>(g.more + 1);
    int64_t widest;
    const pieces<T, N> x = pieces_at<T, N>(g, k->in, &widest);
    const int64_t across = (widest + 31) / 32;
    double *const part = static_cast<double *>(k->workspace);
    const W *const mean = g.given ? of<W>(k->in[weight + 2]) : to<W>(k, 1);
    const W *const var = g.given ? of<W>(k->in[weight + 3]) : to<W>(k, 2);
    if (!g.given && n)
        RW_LAUNCH((statistics_kernel<T, N>), dim3(static_cast<unsigned>(across * units), more), dim3(32, WARPS), 0, k,
                  x, part, g, across);
    if (!g.given && g.segments > 0 && g.groups > 0)
        RW_LAUNCH(merge_kernel<W>, blocks_for(g.segments * g.groups, THREADS), THREADS, 0, k, part, to<W>(k, 1),
                  to<W>(k, 2), g);
    if (n)
        RW_LAUNCH((normalise_kernel<T, N>), dim3(blocks_for(g.segments * g.rows * widest, THREADS), more), THREADS, 0,
                  k, x, of<T>(k->in[weight]), of<T>(k->in[weight + 1]), mean, var,
                  rw_kernel_has(k, added) ? of<T>(k->in[added]) : nullptr, to<T>(k, 0), g);
}

/* Launches the backward kernels: sums of blocks, their merge, means of groups, then dx. */
template <typename T, int N> void backward(const rw_kernel *k, const rw_groups &g)
{
    using W = wide<T>;
    const int64_t units = g.segments * g.blocks, n = k->out[0].layout->numel;
    const unsigned more = static_cast<unsigned>(g.more + 1);
    int64_t widest;
    const pieces<T, N> x = pieces_at<T, N>(g, k->in + rw_groups_backward_x(g.relu), &widest);
    const int64_t across = (widest + 31) / 32;
    double *const part = static_cast<double *>(k->workspace);
    W *const of_segment = reinterpret_cast<W *>(part + units * 2 * g.c);
    W *const means = of_segment + g.segments * 2 * g.c;
    const T *const dy = of<T>(k->in[0]), *const weight = of<T>(k->in[1]);
    const T *const bias = g.relu ? of<T>(k->in[4]) : weight;
    const W *const mean = of<W>(k->in[2]), *const var = of<W>(k->in[3]);
    if (n)
        RW_LAUNCH((sums_kernel<T, N>), dim3(static_cast<unsigned>(across * units), more), dim3(32, WARPS), 0, k, x,
                  weight, bias, dy, mean, var, part, g, across);
    if (g.c)
        RW_LAUNCH(merge_sums_kernel<T>, blocks_for(g.c, THREADS), THREADS, 0, k, part, of_segment, to<T>(k, 1),
                  to<T>(k, 2), g);
    if (!n) return;
    RW_LAUNCH(means_kernel<T>, blocks_for(g.segments * g.groups, THREADS), THREADS, 0, k, of_segment, weight, means, g);
    RW_LAUNCH((slope_kernel<T, N>), dim3(blocks_for(g.segments * g.rows * widest, THREADS), more), THREADS, 0, k, x,
              weight, bias, dy, mean, var, means, to<T>(k, 0), g);
}

} // namespace

extern "C" rw_status rw_groups_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        const rw_groups g = groups_of(k);
        if (g.more) forward<decltype(type), RW_PIECES_MAX>(k, g);
        else forward<decltype(type), 1>(k, g);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_groups_backward_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        const rw_groups g = groups_of(k);
        if (g.more) backward<decltype(type), RW_PIECES_MAX>(k, g);
        else backward<decltype(type), 1>(k, g);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_groups_update_cuda(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel;
    const rw_running_attrs a = *static_cast<const rw_running_attrs *>(k->attrs);
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using W = wide<decltype(type)>;
        W *const batches = k->n_outputs > 2 ? to<W>(k, 2) : nullptr;
        if (n) RW_LAUNCH(update_kernel<W>, blocks_for(n, THREADS), THREADS, 0, k, of<W>(k->in[0]), of<W>(k->in[1]),
                         to<W>(k, 0), to<W>(k, 1), batches, a, n);
        if (batches) RW_LAUNCH(count_kernel<W>, 1, 1, 0, k, batches);
        return rw_cuda_launched(k);
    });
}
