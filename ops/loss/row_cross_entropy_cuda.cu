/*
 * CUDA kernels of cross-entropy by row (row_cross_entropy.c): one block per row, as for cross_entropy (logits_row.cuh).
 * Smoothing and class weights are handled in the same pass over the logits.
 */
/* machine_code.py: stream rows_kernel<{ANY}, false>: store=0, share=1 */
/* machine_code.py: stream rows_backward_kernel<{ANY}, false> */
/* machine_code.py: rows_(backward_)?kernel<\w+, true>: label smoothing: a class weight for each element, too */
/* machine_code.py: share_kernel<.*>: one block: a number per row */
/* machine_code.py: shares_kernel<.*>: only for gradients of gradients */
#include "ops/loss/logits_row.cuh"

extern "C" {
#include "ops/loss/row_cross_entropy.h"
}

namespace {

constexpr int SUM_THREADS = 1024, THREADS = 256;

/* The arguments of one node. weight: NULL for 1 each; total: of all weights, NULL for the number of classes. */
template <typename T> struct row_job {
    const T *x;
    const int32_t *target;
    const wide<T> *weight, *total;
    int64_t classes, ignore;
    wide<T> smoothing, z;
    index_guard guard;

    __device__ __forceinline__ wide<T> weight_of(int64_t c) const { return weight ? weight[c] : wide<T>(1); }
    __device__ __forceinline__ wide<T> all() const { return total ? *total : static_cast<wide<T>>(classes); }
    __device__ __forceinline__ wide<T> each() const { return smoothing / static_cast<wide<T>>(classes); }
    __device__ __forceinline__ bool counts(int32_t t) const { return t != ignore && t >= 0 && t < classes; }
};

/* SMOOTH: with label smoothing, which needs the sum of a row's weighted logits. The target's logit is subtracted first,
   so that a common offset adds no rounding error. */
template <typename T, bool SMOOTH>
__global__ void __launch_bounds__(ROW_THREADS, (SMOOTH ? 1 : ROW_BLOCKS<T>))
    rows_kernel(row_job<T> j, wide<T> *loss, kept_row<wide<T>> *kept)
{
    using W = wide<T>;
    __shared__ W shared[64];
    __shared__ double sums[32];
    const int64_t row = blockIdx.x;
    const T *const logits = j.x + row * j.classes;
    const row_packs<T> r(logits, logits, row * j.classes, j.classes);
    const T none = narrow<T>(-W(INFINITY));
    const auto first = r.begin(logits, none);
    const int32_t t = j.target[row];
    exponentials<W> e = { -W(INFINITY), W(0) };
    W sum = 0;
    if (!j.counts(t)) {
        if (threadIdx.x == 0) {
            loss[row] = 0, kept[row] = { 0, 0 };
            if (t != j.ignore) j.guard.report();
        }
        return;
    }
    const W own = widen(logits[t]), near = exponentials<W>::base(own);
    r.each(first, logits, none, [&](int64_t i, const pack<T> &v) {
        W most = e.most;
#pragma unroll
        for (int l = 0; l < pack<T>::size; l++) most = more_of(widen(v.x[l]), most);
        e.raise(most);
        const W base = exponentials<W>::base(most);
#pragma unroll
        for (int l = 0; l < pack<T>::size; l++) e.sum += exp_of_logit<T>(widen(v.x[l]) - base);
        if constexpr (SMOOTH) {
#pragma unroll
            for (int l = 0; l < pack<T>::size; l++) {
                const int64_t c = r.first(i) + l;
                if (c >= 0 && c < j.classes) sum += j.weight_of(c) * (widen(v.x[l]) - near);
            }
        }
    });
    e = block_join(e, shared);
    double all = 0;
    if constexpr (SMOOTH) all = block_sum(static_cast<double>(sum), sums);
    if (threadIdx.x) return;
    const kept_row<W> result = kept_of(e);
    const double most = static_cast<double>(result.most), log = static_cast<double>(result.log), l = most + log;
    const double smoothing = static_cast<double>(j.smoothing), missed = most - static_cast<double>(own) + log;
    double y = (1 - smoothing) * static_cast<double>(j.weight_of(t)) * missed + static_cast<double>(j.z) * l * l;
    if (SMOOTH) {
        const double far = most - static_cast<double>(near) + log;
        y += smoothing / static_cast<double>(j.classes) * (static_cast<double>(j.all()) * far - all);
    }
    kept[row] = result;
    loss[row] = static_cast<W>(y);
}

/* y may be the logits: a thread reads exactly the elements that it writes, and reads them first. */
template <typename T, bool SMOOTH>
__global__ void __launch_bounds__(ROW_THREADS, (SMOOTH ? 1 : ROW_BLOCKS<T>))
    rows_backward_kernel(row_job<T> j, T *y, const kept_row<wide<T>> *kept, const wide<T> *dy)
{
    using W = wide<T>;
    const int64_t row = blockIdx.x;
    const T *const logits = j.x + row * j.classes;
    T *const to = y + row * j.classes;
    const row_packs<T> r(logits, to, row * j.classes, j.classes);
    const auto first = r.begin(logits, narrow<T>(W(0)));
    const int32_t t = j.target[row];
    if (!j.counts(t)) {
        if (threadIdx.x == 0 && t != j.ignore) j.guard.report();
        for (int64_t i = threadIdx.x; i < r.count(); i += ROW_THREADS) r.store(to, i, {});
        return;
    }
    const kept_row<W> of_row = kept[row];
    const W l = of_row.most + of_row.log, up = dy[row], each = SMOOTH ? up * j.each() : W(0);
    const W own = up * ((1 - j.smoothing) * j.weight_of(t));
    const W rest = up * ((SMOOTH ? j.each() * j.all() : W(0)) + 2 * j.z * l);
    r.each(first, logits, narrow<T>(W(0)), [&](int64_t i, const pack<T> &v) {
        const int of_target = r.place(i, t);
        W d[pack<T>::size];
#pragma unroll
        for (int l = 0; l < pack<T>::size; l++) {
            const int64_t c = r.first(i) + l;
            const W e = exp_of_logit<T>(of_row.less(widen(v.x[l])));
            d[l] = (l == of_target ? e - 1 : e) * own + e * rest;
            if constexpr (SMOOTH)
                if (c >= 0 && c < j.classes) d[l] -= each * j.weight_of(c);
        }
        r.store(to, i, narrow_pack<T>(d));
    });
}

/* 1 / (total weight of the targets that count), or 0 if the total is 0. One block. */
template <typename W>
__global__ void __launch_bounds__(SUM_THREADS)
    share_kernel(const int32_t *target, int64_t rows, const W *weight, int64_t classes, int64_t ignore, W *ret,
                 index_guard guard)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < rows; i += SUM_THREADS) {
        const int32_t t = target[i];
        if (t == ignore) continue;
        if (weight && (t < 0 || t >= classes)) guard.report();
        else sum += weight ? static_cast<double>(weight[t]) : 1.0;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *ret = static_cast<W>(sum != 0 ? 1 / sum : 0);
}

/* The share of each class in each row, and whether the row counts. */
template <typename W>
__global__ void __launch_bounds__(THREADS)
    shares_kernel(W *y, W *live, const int32_t *target, int64_t n, const W *weight, int64_t classes, int64_t ignore,
                  W smoothing, index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const int64_t row = i / classes, c = i - row * classes, t = target[row];
    const bool counts = t != ignore && t >= 0 && t < classes;
    const W share = smoothing / static_cast<W>(classes) + (c == t ? 1 - smoothing : W(0));
    y[i] = counts && share > 0 ? (weight ? weight[c] : W(1)) * share : W(0); /* a weight may be infinite */
    if (c) return;
    live[row] = counts;
    if (!counts && t != ignore) guard.report();
}

/* weights: the first input of the class weights. */
template <typename T> row_job<T> job_of(const rw_kernel *k, int weights)
{
    const rw_row_loss_attrs *const a = static_cast<const rw_row_loss_attrs *>(k->attrs);
    const rw_layout *const l = k->in[0].layout;
    const bool given = k->n_inputs > weights;
    return { static_cast<const T *>(k->in[0].data),
             static_cast<const int32_t *>(k->in[1].data),
             given ? static_cast<const wide<T> *>(k->in[weights].data) : nullptr,
             given ? static_cast<const wide<T> *>(k->in[weights + 1].data) : nullptr,
             l->dim[l->rank - 1],
             a->ignore,
             static_cast<wide<T>>(a->smoothing),
             static_cast<wide<T>>(a->z),
             guard_of(k) };
}

bool is_smooth(const rw_kernel *k)
{
    return static_cast<const rw_row_loss_attrs *>(k->attrs)->smoothing > 0;
}

/* Calls f for float or double, for ops on targets alone. */
template <typename F> rw_status with_loss_type(const rw_kernel *k, F f)
{
    return k->out[0].dtype == RW_F64 ? f(double()) : f(float());
}

} // namespace

extern "C" rw_status rw_cross_entropy_rows_cuda(const rw_kernel *k)
{
    const unsigned rows = static_cast<unsigned>(k->in[1].layout->numel);
    if (!rows) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const row_job<T> j = job_of<T>(k, 2);
        wide<T> *const loss = static_cast<wide<T> *>(k->out[0].data);
        kept_row<wide<T>> *const kept = static_cast<kept_row<wide<T>> *>(k->out[1].data);
        if (is_smooth(k)) RW_LAUNCH((rows_kernel<T, true>), rows, ROW_THREADS, 0, k, j, loss, kept);
        else RW_LAUNCH((rows_kernel<T, false>), rows, ROW_THREADS, 0, k, j, loss, kept);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_cross_entropy_rows_backward_cuda(const rw_kernel *k)
{
    const unsigned rows = static_cast<unsigned>(k->in[1].layout->numel);
    if (!rows) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const row_job<T> j = job_of<T>(k, 4);
        T *const y = static_cast<T *>(k->out[0].data);
        const kept_row<wide<T>> *const kept = static_cast<const kept_row<wide<T>> *>(k->in[2].data);
        const wide<T> *const dy = static_cast<const wide<T> *>(k->in[3].data);
        if (is_smooth(k)) RW_LAUNCH((rows_backward_kernel<T, true>), rows, ROW_THREADS, 0, k, j, y, kept, dy);
        else RW_LAUNCH((rows_backward_kernel<T, false>), rows, ROW_THREADS, 0, k, j, y, kept, dy);
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_cross_entropy_share_cuda(const rw_kernel *k)
{
    const rw_row_loss_attrs *const a = static_cast<const rw_row_loss_attrs *>(k->attrs);
    return with_loss_type(k, [&](auto type) {
        using W = decltype(type);
        const W *const weight = k->n_inputs > 1 ? static_cast<const W *>(k->in[1].data) : nullptr;
        RW_LAUNCH(share_kernel<W>, 1, SUM_THREADS, 0, k, static_cast<const int32_t *>(k->in[0].data),
                  k->in[0].layout->numel, weight, a->classes, a->ignore, static_cast<W *>(k->out[0].data), guard_of(k));
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_cross_entropy_shares_cuda(const rw_kernel *k)
{
    const rw_row_loss_attrs *const a = static_cast<const rw_row_loss_attrs *>(k->attrs);
    const int64_t n = k->out[0].layout->numel;
    if (!n) return RW_OK;
    return with_loss_type(k, [&](auto type) {
        using W = decltype(type);
        const W *const weight = k->n_inputs > 1 ? static_cast<const W *>(k->in[1].data) : nullptr;
        RW_LAUNCH(shares_kernel<W>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<W *>(k->out[0].data),
                  static_cast<W *>(k->out[1].data), static_cast<const int32_t *>(k->in[0].data), n, weight, a->classes,
                  a->ignore, static_cast<W>(a->smoothing), guard_of(k));
        return rw_cuda_launched(k);
    });
}
