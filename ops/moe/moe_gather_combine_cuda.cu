/* Ops on rows of tokens on CUDA: one thread per element, one warp per dot product of a slot. */
#include "ops/moe/moe_dots_by_slot.cuh"

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

struct row_args {
    const int32_t *routes; /* order, or inverse */
    int64_t n, width, each, rows; /* n: elements of the result; each: slots of a token; rows: of the operand */
};

template <typename T> __global__ void __launch_bounds__(THREADS) gather_kernel(const T *x, T *y, const row_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.n) return;
    y[i] = x[rw_moe_within(a.routes[i / a.width] / a.each, a.rows) * a.width + i % a.width];
}

template <typename T> __global__ void __launch_bounds__(THREADS) combine_kernel(const T *x, T *y, const row_args a)
{
    using W = wide<T>;
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.n) return;
    const int32_t *const inverse = a.routes + i / a.width * a.each;
    W sum = 0;
    for (int64_t s = 0; s < a.each; s++) sum += widen(x[rw_moe_within(inverse[s], a.rows) * a.width + i % a.width]);
    y[i] = narrow<T>(sum);
}

template <typename T>
__global__ void __launch_bounds__(THREADS) weigh_kernel(const T *x, const wide<T> *weights, T *y, const row_args a)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= a.n) return;
    y[i] = narrow<T>(weights[rw_moe_within(a.routes[i / a.width], a.rows)] * widen(x[i]));
}

/* Lane l adds elements l, l + 32, ...; a tree then adds the lanes. */
template <typename T>
__global__ void __launch_bounds__(THREADS) dot_kernel(const T *x, const T *y, wide<T> *to, const row_args a)
{
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (slot >= a.n) return; /* the same for a whole warp */
    const int64_t at = rw_moe_within(a.routes[slot], a.rows) * a.width;
    wide<T> sum = 0;
    for (int64_t i = threadIdx.x % 32; i < a.width; i += 32) sum += widen(x[at + i]) * widen(y[at + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) to[slot] = sum;
}

/* One warp per row: the weighted row, and its dot product as above, by row. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    weigh_backward_kernel(const T *x, const T *dy, const wide<T> *weights, T *dx, wide<T> *dots, const row_args a)
{
    const int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= a.n) return;
    const wide<T> w = weights[rw_moe_within(a.routes[row], a.rows)];
    wide<T> sum = 0;
    for (int64_t i = row * a.width + threadIdx.x % 32; i < (row + 1) * a.width; i += 32) {
        const wide<T> u = widen(dy[i]);
        sum += widen(x[i]) * u;
        dx[i] = narrow<T>(w * u);
    }
    const wide<T> all = warp_sum(sum);
    if (threadIdx.x % 32 == 0) dots[row] = all;
}

row_args args_of(const rw_kernel *k, int routes, int64_t each, int64_t rows)
{
    row_args a = {};
    a.routes = static_cast<const int32_t *>(k->in[routes].data);
    a.n = k->out[0].layout->numel;
    a.width = k->in[0].layout->dim[1];
    a.each = each;
    a.rows = rows;
    return a;
}

} // namespace

extern "C" rw_status rw_moe_gather_cuda(const rw_kernel *k)
{
    const int64_t each = static_cast<const rw_moe_gather_attrs *>(k->attrs)->k;
    const row_args a = args_of(k, 1, each, k->in[0].layout->dim[0]);
    if (!a.n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(gather_kernel<T>, blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<T *>(k->out[0].data), a);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_moe_combine_cuda(const rw_kernel *k)
{
    const row_args a = args_of(k, 1, k->in[1].layout->dim[1], k->in[0].layout->dim[0]);
    if (!a.n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(combine_kernel<T>, blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<T *>(k->out[0].data), a);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_moe_weigh_cuda(const rw_kernel *k)
{
    const row_args a = args_of(k, 2, 1, k->in[1].layout->numel);
    if (!a.n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(weigh_kernel<T>, blocks_for(a.n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const wide<T> *>(k->in[1].data), static_cast<T *>(k->out[0].data), a);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_moe_dot_cuda(const rw_kernel *k)
{
    const row_args a = args_of(k, 2, 1, k->in[0].layout->dim[0]);
    if (!a.n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(dot_kernel<T>, blocks_for(a.n, WARPS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const T *>(k->in[1].data), static_cast<wide<T> *>(k->out[0].data), a);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_moe_weigh_backward_cuda(const rw_kernel *k)
{
    row_args a = args_of(k, 3, 1, k->in[2].layout->numel);
    a.n = k->in[0].layout->dim[0];
    if (!a.n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(weigh_backward_kernel<T>, blocks_for(a.n, WARPS), THREADS, 0, k,
                  static_cast<const T *>(k->in[0].data), static_cast<const T *>(k->in[1].data),
                  static_cast<const wide<T> *>(k->in[2].data), static_cast<T *>(k->out[0].data),
                  static_cast<wide<T> *>(k->workspace), a);
        return dots_by_slot<wide<T>>(k, 1, 4);
    });
}
