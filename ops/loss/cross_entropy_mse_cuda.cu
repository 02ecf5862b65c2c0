/*
 * CUDA kernels of the losses. Cross-entropy: one block per row reads the logits once and keeps the values that loss.h
 * describes; its backward writes the gradient over the logits. The elements that a thread adds depend on the row's
 * index, not on addresses. One block adds the losses of the rows, and the sums of squared differences, in double.
 */
/* machine_code.py: stream lse_kernel<{ANY}>: store=0, share=1 */
/* machine_code.py: stream backward_kernel<{ANY}> */
/* machine_code.py: stream joint_kernel<{ANY}> */
/* machine_code.py: stream square_kernel<{ANY}>: store=0, share=1 */
/* machine_code.py: (mean|factor|mse_mean)_kernel<.*>: one block: a number per row */
/* machine_code.py: weights_kernel<.*>: writes rows of zeros and one number; only for gradients of gradients */
#include "ops/common/elementwise_map.cuh"
#include "ops/loss/logits_row.cuh"

#include "ops/loss/loss.h"

namespace {

constexpr int SUM_THREADS = 1024, THREADS = 256;

/* Adds a pack to a row's sum of exponentials. */
template <typename T> __device__ __forceinline__ void add_pack(exponentials<wide<T>> *e, const pack<T> &v)
{
    using W = wide<T>;
    W most = e->most;
#pragma unroll
    for (int l = 0; l < pack<T>::size; l++) most = more_of(widen(v.x[l]), most);
    e->raise(most);
    const W base = exponentials<W>::base(most);
#pragma unroll
    for (int l = 0; l < pack<T>::size; l++) e->sum += exp_of_logit<T>(widen(v.x[l]) - base);
}

/* The gradient of a pack; `own` is the target's index in it, if it is in it. */
template <typename T>
__device__ __forceinline__ raw<pack<T>> slope_of(const pack<T> &v, int own, kept_row<wide<T>> kept, wide<T> factor)
{
    wide<T> d[pack<T>::size];
#pragma unroll
    for (int l = 0; l < pack<T>::size; l++) {
        const wide<T> e = exp_of_logit<T>(kept.less(widen(v.x[l])));
        d[l] = (l == own ? e - 1 : e) * factor;
    }
    return narrow_pack<T>(d);
}

template <typename W> __device__ __forceinline__ double loss_of(kept_row<W> kept, W own)
{
    return static_cast<double>(kept.most) - static_cast<double>(own) + static_cast<double>(kept.log);
}

/* The kept values and the loss of one row per block. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS<T>)
    lse_kernel(const T *x, const int32_t *target, kept_row<wide<T>> *kept, double *loss, int64_t classes,
               int64_t ignore, index_guard guard)
{
    using W = wide<T>;
    __shared__ W shared[64];
    const int64_t row = blockIdx.x;
    const T *const logits = x + row * classes;
    const row_packs<T> r(logits, logits, row * classes, classes);
    exponentials<W> e = { -W(INFINITY), W(0) };
    const T none = narrow<T>(-W(INFINITY));
    const auto first = r.begin(logits, none);
    const int32_t t = target[row];
    const bool exists = t >= 0 && t < classes;
    const T own = exists ? logits[t] : none;
    r.each(first, logits, none, [&](int64_t, const pack<T> &v) { add_pack<T>(&e, v); });
    e = block_join(e, shared);
    if (threadIdx.x) return;
    const kept_row<W> result = kept_of(e);
    const bool counts = t != ignore && exists;
    kept[row] = result;
    loss[row] = counts ? loss_of(result, widen(own)) : 0;
    if (t != ignore && !exists) guard.report();
}

/* The number of rows that count, in every thread of one block. */
__device__ __forceinline__ double count_rows(const int32_t *target, int64_t rows, int64_t ignore, double *shared)
{
    double n = 0;
    for (int64_t i = threadIdx.x; i < rows; i += SUM_THREADS) n += target[i] != ignore;
    return block_sum(n, shared);
}

template <typename W>
__global__ void __launch_bounds__(SUM_THREADS)
    mean_kernel(const double *loss, const int32_t *target, int64_t rows, int64_t ignore, W *ret)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < rows; i += SUM_THREADS) sum += loss[i];
    sum = block_sum(sum, shared);
    const double n = count_rows(target, rows, ignore, shared);
    if (threadIdx.x == 0) *ret = static_cast<W>(n > 0 ? sum / n : 0);
}

/* The factor of the rows' gradients: dy / n; a dy of NULL is 1. */
template <typename W>
__global__ void __launch_bounds__(SUM_THREADS)
    factor_kernel(const int32_t *target, int64_t rows, int64_t ignore, const W *dy, double *ret)
{
    __shared__ double shared[32];
    const double n = count_rows(target, rows, ignore, shared);
    if (threadIdx.x == 0) *ret = n > 0 ? (dy ? static_cast<double>(*dy) : 1.0) / n : 0;
}

/* y may be x: a thread reads exactly the elements that it writes, and reads them first. */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS, ROW_BLOCKS<T>)
    backward_kernel(const T *x, T *y, const int32_t *target, const kept_row<wide<T>> *kept, const double *factor,
                    int64_t classes, int64_t ignore, index_guard guard)
{
    using W = wide<T>;
    const int64_t row = blockIdx.x;
    const T *const logits = x + row * classes;
    T *const to = y + row * classes;
    const row_packs<T> r(logits, to, row * classes, classes);
    const auto first = r.begin(logits, narrow<T>(W(0)));
    const int32_t t = target[row];
    const W f = static_cast<W>(*factor);
    const kept_row<W> of_row = kept[row];
    const bool counts = t != ignore && t >= 0 && t < classes;
    if (threadIdx.x == 0 && !counts && t != ignore) guard.report();
    if (!counts) {
        for (int64_t i = threadIdx.x; i < r.count(); i += ROW_THREADS) r.store(to, i, {});
        return;
    }
    r.each(first, logits, narrow<T>(W(0)), [&](int64_t i, const pack<T> &v) {
        r.store(to, i, slope_of<T>(v, r.place(i, t), of_row, f));
    });
}

/*
 * lse_kernel and backward_kernel in one, writing over the logits: shared memory holds the row, and each thread reads
 * back the packs that it stored there.
 */
template <typename T>
__global__ void __launch_bounds__(ROW_THREADS, sizeof(T) == 8 ? 1 : 2)
    joint_kernel(T *x, const int32_t *target, kept_row<wide<T>> *kept, double *loss, const double *factor,
                 int64_t classes, int64_t ignore, index_guard guard)
{
    using W = wide<T>;
    RW_SHARED_DYNAMIC(unsigned char, memory);
    __shared__ W shared[64];
    __shared__ kept_row<W> of_row;
    raw<pack<T>> *const held = reinterpret_cast<raw<pack<T>> *>(memory);
    const int64_t row = blockIdx.x;
    T *const logits = x + row * classes;
    const row_packs<T> r(logits, logits, row * classes, classes);
    exponentials<W> e = { -W(INFINITY), W(0) };
    const T none = narrow<T>(-W(INFINITY));
    const auto first = r.begin(logits, none);
    const int32_t t = target[row];
    const bool exists = t >= 0 && t < classes, counts = t != ignore && exists;
    const T own = exists ? logits[t] : none;
    const W f = static_cast<W>(*factor);
    r.each(first, logits, none, [&](int64_t i, const pack<T> &v) {
        held[i] = raw_of(v);
        add_pack<T>(&e, v);
    });
    e = block_join(e, shared);
    if (threadIdx.x == 0) {
        of_row = kept[row] = kept_of(e);
        loss[row] = counts ? loss_of(of_row, widen(own)) : 0;
        if (t != ignore && !exists) guard.report();
    }
    __syncthreads();
    for (int64_t i = threadIdx.x; i < r.count(); i += ROW_THREADS)
        r.store(logits, i, counts ? slope_of<T>(held[i].elements(), r.place(i, t), of_row, f) : raw<pack<T>>{});
}

/* -1 / n at each counted target, else 0. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    weights_kernel(T *y, const int32_t *target, int64_t n, int64_t classes, int64_t ignore, const double *factor,
                   index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const int64_t row = i / classes, column = i - row * classes, t = target[row];
    y[i] = narrow<T>(t != ignore && t == column ? -static_cast<wide<T>>(*factor) : wide<T>(0));
    if (column == 0 && t != ignore && (t < 0 || t >= classes)) guard.report();
}

/* ---- mean squared error ---- */

/* Blocks of RW_MSE_BLOCK elements. A thread adds 64 of them in the type of arithmetic; the rest is in double. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    square_kernel(const T *x, const T *y, int64_t numel, double *part, bool whole)
{
    constexpr int P = pack<T>::size;
    __shared__ double shared[32];
    const int64_t from = static_cast<int64_t>(blockIdx.x) * RW_MSE_BLOCK;
    wide<T> sum = 0;
    for (int j = threadIdx.x * P; j < RW_MSE_BLOCK; j += THREADS * P) {
        const int64_t at = from + j;
        if (at >= numel) break;
        pack<T> a = {}, b = {};
        if (whole && at + P <= numel) {
            a = load_pack(x + at);
            b = load_pack(y + at);
        } else {
#pragma unroll
            for (int l = 0; l < P; l++)
                if (at + l < numel) a.x[l] = x[at + l], b.x[l] = y[at + l];
        }
#pragma unroll
        for (int l = 0; l < P; l++) {
            const wide<T> d = widen(a.x[l]) - widen(b.x[l]);
            sum += d * d;
        }
    }
    const double total = block_sum(static_cast<double>(sum), shared);
    if (threadIdx.x == 0) part[blockIdx.x] = total;
}

template <typename W>
__global__ void __launch_bounds__(SUM_THREADS)
    mse_mean_kernel(const double *part, int64_t blocks, int64_t numel, W *ret)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < blocks; i += SUM_THREADS) sum += part[i];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *ret = static_cast<W>(sum / static_cast<double>(numel));
}

template <typename T> struct mse_backward_of {
    using In = T;
    using Out = T;
    static constexpr int inputs = 2, outputs = 1;
    const wide<T> *dy;
    double numel;
    __device__ __forceinline__ void operator()(const T *x, T *y) const
    {
        const wide<T> factor = static_cast<wide<T>>(2 * static_cast<double>(*dy) / numel);
        *y = narrow<T>((widen(x[0]) - widen(x[1])) * factor);
    }
};

const rw_cross_entropy_attrs *attrs_of(const rw_kernel *k)
{
    return static_cast<const rw_cross_entropy_attrs *>(k->attrs);
}

} // namespace

/* One double per row. */
extern "C" size_t rw_cross_entropy_workspace_cuda(const rw_op_call *call)
{
    return static_cast<size_t>(call->in[1].layout->numel) * sizeof(double);
}

/* The factor of the rows' gradients; and the workspace of the loss if it is computed by the same kernel. */
extern "C" size_t rw_cross_entropy_backward_workspace_cuda(const rw_op_call *call)
{
    return static_cast<size_t>(call->in[1].layout->numel + 1) * sizeof(double);
}

/* The factor of the rows' gradients. */
extern "C" size_t rw_cross_entropy_factor_workspace_cuda(const rw_op_call *)
{
    return sizeof(double);
}

/* Runs the loss: rows, then the sum over rows. */
extern "C" rw_status rw_cross_entropy_cuda(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t classes = l->dim[l->rank - 1], rows = l->numel / classes, ignore = attrs_of(k)->ignore;
    const int32_t *const target = static_cast<const int32_t *>(k->in[1].data);
    double *const loss = static_cast<double *>(k->workspace);
    if (k->workspace_bytes < static_cast<size_t>(rows) * sizeof *loss) return RW_ERR_MEMORY;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const T *const x = static_cast<const T *>(k->in[0].data);
        if (rows)
            RW_LAUNCH(lse_kernel<T>, static_cast<unsigned>(rows), ROW_THREADS, 0, k, x, target,
                      static_cast<kept_row<wide<T>> *>(k->out[1].data), loss, classes, ignore, guard_of(k));
        RW_LAUNCH(mean_kernel<wide<T>>, 1, SUM_THREADS, 0, k, loss, target, rows, ignore,
                  static_cast<wide<T> *>(k->out[0].data));
        return rw_cuda_launched(k);
    });
}

/* Computes the factor, then the gradient of the rows. */
extern "C" rw_status rw_cross_entropy_backward_cuda(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t classes = l->dim[l->rank - 1], rows = l->numel / classes, ignore = attrs_of(k)->ignore;
    const int32_t *const target = static_cast<const int32_t *>(k->in[1].data);
    double *const factor = static_cast<double *>(k->workspace);
    if (!rows) return RW_OK;
    if (k->workspace_bytes < sizeof *factor) return RW_ERR_MEMORY;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(factor_kernel<wide<T>>, 1, SUM_THREADS, 0, k, target, rows, ignore,
                  static_cast<const wide<T> *>(k->in[3].data), factor);
        RW_LAUNCH(backward_kernel<T>, static_cast<unsigned>(rows), ROW_THREADS, 0, k,
                  static_cast<const T *>(k->in[0].data), static_cast<T *>(k->out[0].data), target,
                  static_cast<const kept_row<wide<T>> *>(k->in[2].data), factor, classes, ignore, guard_of(k));
        return rw_cuda_launched(k);
    });
}

/* Do two blocks of joint_kernel fit on a multiprocessor? A single one would wait for each of its loads. */
static bool fits_twice(const rw_cuda *cuda, size_t shared)
{
    return 2 * (shared + 2048) <= static_cast<size_t>(cuda->shared_per_multiprocessor);
}

/* Runs the two kernels separately. */
static rw_status one_after_the_other(const rw_kernel *k)
{
    rw_kernel first = *k, second = *k;
    const rw_view in[] = { k->in[0], k->in[1], k->out[1], k->in[2] };
    first.n_inputs = first.n_outputs = 2;
    second.in = in, second.n_inputs = 4;
    second.out = &k->out[2], second.n_outputs = 1;
    const rw_status status = rw_cross_entropy_cuda(&first);
    return status ? status : rw_cross_entropy_backward_cuda(&second);
}

/* Rows that do not fit in shared memory are read twice; the results are the same. */
extern "C" rw_status rw_cross_entropy_joint_cuda(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t classes = l->dim[l->rank - 1], rows = l->numel / classes, ignore = attrs_of(k)->ignore;
    const int32_t *const target = static_cast<const int32_t *>(k->in[1].data);
    double *const loss = static_cast<double *>(k->workspace), *const factor = loss + rows;
    const size_t shared = (static_cast<size_t>(classes) * rw_dtype_size(k->in[0].dtype) + 31) / 16 * 16;
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    if (!rows || !fits_twice(cuda, shared)) return one_after_the_other(k);
    if (k->workspace_bytes < static_cast<size_t>(rows + 1) * sizeof *loss) return RW_ERR_MEMORY;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const rw_status allowed = rw_cuda_allow_shared(cuda, reinterpret_cast<const void *>(joint_kernel<T>));
        if (allowed) return allowed;
        RW_LAUNCH(factor_kernel<wide<T>>, 1, SUM_THREADS, 0, k, target, rows, ignore,
                  static_cast<const wide<T> *>(k->in[2].data), factor);
        RW_LAUNCH(joint_kernel<T>, static_cast<unsigned>(rows), ROW_THREADS, shared, k,
                  static_cast<T *>(k->out[2].data), target, static_cast<kept_row<wide<T>> *>(k->out[1].data), loss,
                  factor, classes, ignore, guard_of(k));
        RW_LAUNCH(mean_kernel<wide<T>>, 1, SUM_THREADS, 0, k, loss, target, rows, ignore,
                  static_cast<wide<T> *>(k->out[0].data));
        return rw_cuda_launched(k);
    });
}

/* Runs the weights for the type of the logits. */
extern "C" rw_status rw_cross_entropy_weights_cuda(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel, rows = k->in[0].layout->numel;
    const int64_t classes = attrs_of(k)->classes, ignore = attrs_of(k)->ignore;
    const int32_t *const target = static_cast<const int32_t *>(k->in[0].data);
    double *const factor = static_cast<double *>(k->workspace);
    if (!n) return RW_OK;
    if (k->workspace_bytes < sizeof *factor) return RW_ERR_MEMORY;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(factor_kernel<wide<T>>, 1, SUM_THREADS, 0, k, target, rows, ignore, nullptr, factor);
        RW_LAUNCH(weights_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<T *>(k->out[0].data), target, n,
                  classes, ignore, factor, guard_of(k));
        return rw_cuda_launched(k);
    });
}

/* Sums blocks of squared differences, then the blocks. */
extern "C" rw_status rw_mse_loss_cuda(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel, blocks = rw_mse_blocks(n);
    double *const part = static_cast<double *>(k->workspace);
    if (k->workspace_bytes < static_cast<size_t>(blocks) * sizeof *part) return RW_ERR_MEMORY;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const T *const x = static_cast<const T *>(k->in[0].data), *const y = static_cast<const T *>(k->in[1].data);
        if (blocks)
            RW_LAUNCH(square_kernel<T>, static_cast<unsigned>(blocks), THREADS, 0, k, x, y, n, part,
                      is_aligned_16(x) && is_aligned_16(y));
        RW_LAUNCH(mse_mean_kernel<wide<T>>, 1, SUM_THREADS, 0, k, part, blocks, n,
                  static_cast<wide<T> *>(k->out[0].data));
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_mse_loss_backward_cuda(const rw_kernel *k)
{
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const wide<T> *const dy = static_cast<const wide<T> *>(k->in[2].data);
        return map_run(k, mse_backward_of<T>{ dy, static_cast<double>(k->in[0].layout->numel) });
    });
}
