/* CUDA kernels of attention_bias and attention_seen (attention_bias_matrix.c), one thread per element. */
/* machine_code.py: \w+_kernel(<.*>)?: only for gradients of gradients */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/attention/attention.h"
}

namespace {

constexpr int THREADS = 256;

struct bias_args {
    const void *mask;
    int64_t mask_stride[4]; /* 0 along broadcast axes */
    const void *slopes;
    int64_t slope_stride;
    att_reach reach;
    int64_t n, heads;
    int64_t documents_batch; /* stride of documents from one row of the batch to the next, in elements */
    double lowest;
    bool seen, truths; /* truths: the mask has type RW_BOOL */
};

/* T: type of the result; M: type of the mask. */
template <typename T, typename M> __global__ void __launch_bounds__(THREADS) bias_kernel(const bias_args a, T *to)
{
    using W = wide<T>;
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= a.n) return;
    const int64_t j = n % a.reach.kv_seq, i = n / a.reach.kv_seq % a.reach.seq;
    const int64_t pair = n / a.reach.kv_seq / a.reach.seq, h = pair % a.heads, b = pair / a.heads;
    att_reach r = a.reach;
    if (r.documents) r.documents += b * a.documents_batch;
    const att_span span = rw_att_span(&r, i);
    const int64_t distance = i + r.kv_seq - r.seq - j;
    W x = 0;
    if (a.slopes)
        x -= static_cast<const W *>(a.slopes)[h * a.slope_stride] * static_cast<W>(distance < 0 ? -distance : distance);
    const int64_t at = b * a.mask_stride[0] + h * a.mask_stride[1] + i * a.mask_stride[2] + j * a.mask_stride[3];
    if (a.truths && !static_cast<const uint8_t *>(a.mask)[at]) x = -static_cast<W>(INFINITY);
    if (a.mask && !a.truths) x += static_cast<W>(widen(static_cast<const M *>(a.mask)[at]));
    const bool seen = j >= span.lo && j < span.hi && x != -static_cast<W>(INFINITY);
    to[n] = narrow<T>(a.seen ? static_cast<W>(seen) : seen ? x : static_cast<W>(a.lowest));
}

/* Reports document boundaries that decrease or are out of range. */
__global__ void __launch_bounds__(THREADS)
    entries_kernel(const att_reach r, int64_t sets, int64_t set, index_guard guard)
{
    const int64_t n = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (n >= sets * r.entries) return;
    att_reach own = r;
    own.documents += n / r.entries * set;
    if (!rw_att_entry_holds(&own, n % r.entries)) guard.report();
}

template <typename T, typename M> rw_status launch(const rw_kernel *k, const bias_args &a)
{
    RW_LAUNCH((bias_kernel<T, M>), blocks_for(a.n, THREADS), THREADS, 0, k, a, static_cast<T *>(k->out[0].data));
    return rw_cuda_launched(k);
}

/* The kernel arguments of a call. */
bias_args args_of(const rw_kernel *k)
{
    const rw_attention_bias_attrs *const p = static_cast<const rw_attention_bias_attrs *>(k->attrs);
    const rw_layout *const l = k->out[0].layout;
    const int mask = rw_att_extra(&p->forward, ATT_MASK, 0), slopes = rw_att_extra(&p->forward, ATT_SLOPES, 0);
    const int documents = rw_att_extra(&p->forward, ATT_DOCUMENTS, 0);
    att_extents e = {};
    bias_args a = {};
    e.seq = p->seq, e.kv_seq = p->kv_seq;
    a.reach = rw_att_reach(&p->forward, &e, documents < 0 ? nullptr : &k->in[documents], 0);
    if (documents >= 0 && k->in[documents].layout->rank == 2) a.documents_batch = k->in[documents].layout->stride[0];
    if (mask >= 0) {
        a.mask = k->in[mask].data;
        a.truths = k->in[mask].dtype == RW_BOOL;
        for (int i = 0; i < 4; i++)
            a.mask_stride[i] = k->in[mask].layout->dim[i] == 1 ? 0 : k->in[mask].layout->stride[i];
    }
    if (slopes >= 0) a.slopes = k->in[slopes].data, a.slope_stride = k->in[slopes].layout->stride[0];
    a.n = l->numel;
    a.heads = l->dim[1];
    a.seen = p->seen != 0;
    a.lowest = p->dtype == RW_F16 ? ATT_LOWEST_F16 : ATT_LOWEST;
    return a;
}

} // namespace

/* Checks the documents, then computes the matrix. */
extern "C" rw_status rw_attention_bias_cuda(const rw_kernel *k)
{
    const rw_attention_bias_attrs *const p = static_cast<const rw_attention_bias_attrs *>(k->attrs);
    const int mask = rw_att_extra(&p->forward, ATT_MASK, 0);
    const bias_args a = args_of(k);
    if (!a.n) return RW_OK;
    if (a.reach.documents) {
        const int64_t sets = a.documents_batch ? k->out[0].layout->dim[0] : 1;
        RW_LAUNCH(entries_kernel, blocks_for(sets * a.reach.entries, THREADS), THREADS, 0, k, a.reach, sets,
                  a.documents_batch, guard_of(k));
    }
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        if (mask < 0 || a.truths) return launch<T, T>(k, a);
        return with_float_type(k->in[mask].dtype, [&](auto of_mask) { return launch<T, decltype(of_mask)>(k, a); });
    });
}
