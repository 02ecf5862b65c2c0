/*
 * The choice of experts and the order of rows on CUDA. A warp chooses for one token. Rows are placed by counting:
 * chunks of slots are counted, the counts are added up in order, then each slot computes its row. No atomics.
 */
/* machine_code.py: \w+_kernel(<.*>)?: a few numbers a token */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/moe/moe.h"
}

namespace {

constexpr int THREADS = 256, WARPS = THREADS / 32;

/* ---- topk ---- */

template <typename T> struct topk_args {
    const T *scores, *bias; /* bias: NULL if there is none */
    int32_t *index;
    int64_t tokens;
    int experts, k, groups, best_groups, group_sum;
};

template <typename W> struct candidate {
    W score;
    int at; /* -1: none */
};

/* The better of two: the higher score, then the lower index. */
template <typename W> __device__ __forceinline__ candidate<W> better(candidate<W> a, candidate<W> b)
{
    if (b.at < 0) return a;
    if (a.at < 0) return b;
    return b.score > a.score || (b.score == a.score && b.at < a.at) ? b : a;
}

template <typename W> __device__ __forceinline__ candidate<W> best_of_warp(candidate<W> x)
{
    for (int d = 16; d > 0; d >>= 1) {
        const candidate<W> y = { __shfl_xor_sync(0xffffffffu, x.score, d), __shfl_xor_sync(0xffffffffu, x.at, d) };
        x = better(x, y);
    }
    return x;
}

/* A lane has experts lane, lane + 32, ...; bit i of `gone` belongs to expert lane + 32 i. */
template <typename T> struct row_of_scores {
    using W = wide<T>;
    const topk_args<T> *a;
    int64_t token;
    int lane;

    __device__ __forceinline__ W at(int e, bool *sound) const
    {
        W x = widen(a->scores[token * a->experts + e]);
        if (a->bias) x += widen(a->bias[e]);
        if (x == x) return x;
        *sound = false;
        return -static_cast<W>(INFINITY);
    }

    __device__ __forceinline__ candidate<W> best(uint32_t gone, int from, int to, bool *sound) const
    {
        candidate<W> x = { 0, -1 };
        for (int e = lane; e < to; e += 32)
            if (e >= from && !(gone >> (e / 32) & 1)) x = better(x, { at(e, sound), e });
        return best_of_warp(x);
    }

    /* The sum of a group's best scores, the best first. */
    __device__ __forceinline__ W worth(int group, bool *sound) const
    {
        const int each = a->experts / a->groups;
        uint32_t gone = 0;
        W sum = 0;
        for (int i = 0; i < a->group_sum; i++) {
            const candidate<W> x = best(gone, group * each, (group + 1) * each, sound);
            sum += x.score;
            if (x.at % 32 == lane) gone |= 1u << (x.at / 32);
        }
        return sum;
    }

    /* The experts of this lane that are in no chosen group. */
    __device__ __forceinline__ uint32_t closed(bool *sound) const
    {
        if (a->best_groups == a->groups) return 0;
        const int each = a->experts / a->groups;
        uint32_t open = 0, gone = 0;
        candidate<W> own = { 0, -1 };
        for (int g = 0; g < a->groups; g++) {
            const W w = worth(g, sound);
            if (g == lane) own = { w, g };
        }
        for (int i = 0; i < a->best_groups; i++) {
            const candidate<W> x = best_of_warp(own);
            open |= 1u << x.at;
            if (x.at == lane) own.at = -1;
        }
        for (int i = 0, e = lane; e < a->experts; i++, e += 32)
            if (!(open >> (e / each) & 1)) gone |= 1u << i;
        return gone;
    }
};

template <typename T> __global__ void __launch_bounds__(THREADS) topk_kernel(const topk_args<T> a, index_guard guard)
{
    const int64_t token = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (token >= a.tokens) return; /* the same for a whole warp */
    const row_of_scores<T> row = { &a, token, static_cast<int>(threadIdx.x % 32) };
    bool sound = true;
    uint32_t gone = row.closed(&sound);
    for (int i = 0; i < a.k; i++) {
        const candidate<wide<T>> x = row.best(gone, 0, a.experts, &sound);
        if (x.at % 32 == row.lane) gone |= 1u << (x.at / 32);
        if (row.lane == 0) a.index[token * a.k + i] = x.at;
    }
    if (!sound) guard.report();
}

/* ---- select and scatter ---- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    select_kernel(const T *scores, const int32_t *index, T *to, int64_t n, int64_t each, int64_t experts,
                  index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    if (index[i] < 0 || index[i] >= experts) guard.report();
    to[i] = scores[i / each * experts + rw_moe_within(index[i], experts)];
}

/* One thread per element of the result, which searches its token's slots. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    scatter_kernel(const T *weights, const int32_t *index, T *to, int64_t n, int64_t each, int64_t experts,
                   index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i >= n) return;
    const int64_t first = i / experts * each;
    T x = narrow<T>(static_cast<wide<T>>(0));
    for (int64_t s = 0; s < each; s++) {
        if (index[first + s] < 0 || index[first + s] >= experts) guard.report();
        if (index[first + s] == i % experts) x = weights[first + s];
    }
    to[i] = x;
}

/* ---- routes ---- */

__device__ __forceinline__ int key_of(const int32_t *index, int64_t i, int experts, index_guard guard)
{
    if (index[i] < RW_MOE_DROPPED || index[i] >= experts) guard.report();
    return static_cast<int>(rw_moe_key(index[i], experts));
}

__global__ void __launch_bounds__(MOE_CHUNK)
    count_kernel(const int32_t *index, int32_t *counts, int64_t n, int experts, index_guard guard)
{
    __shared__ int keys[MOE_CHUNK];
    const int64_t first = static_cast<int64_t>(blockIdx.x) * MOE_CHUNK, i = first + threadIdx.x;
    keys[threadIdx.x] = i < n ? key_of(index, i, experts, guard) : -1;
    __syncthreads();
    for (int e = threadIdx.x; e <= experts; e += MOE_CHUNK) {
        int count = 0;
        for (int s = 0; s < MOE_CHUNK; s++) count += keys[s] == e;
        counts[static_cast<int64_t>(blockIdx.x) * (experts + 1) + e] = count;
    }
}

/* Converts the counts of one expert, or of dropped slots, to the first row of each chunk. */
__device__ __forceinline__ void place_chunks(int32_t *counts, int64_t chunks, int step, int e, int next)
{
    for (int64_t c = 0; c < chunks; c++) {
        const int count = counts[c * step + e];
        counts[c * step + e] = next;
        next += count;
    }
}

/* Runs in one block. */
__global__ void __launch_bounds__(RW_MOE_EXPERTS_MAX)
    scan_kernel(int32_t *counts, int32_t *offsets, float *load, int64_t chunks, int experts)
{
    __shared__ int first[RW_MOE_EXPERTS_MAX];
    const int e = threadIdx.x;
    int total = 0;
    for (int64_t c = 0; e < experts && c < chunks; c++) total += counts[c * (experts + 1) + e];
    if (e < experts) first[e] = total;
    __syncthreads();
    if (e == 0) {
        int sum = 0;
        for (int i = 0; i < experts; i++) {
            const int count = first[i];
            offsets[i] = first[i] = sum;
            sum += count;
        }
        offsets[experts] = sum;
        place_chunks(counts, chunks, experts + 1, experts, sum);
    }
    __syncthreads();
    if (e >= experts) return;
    load[e] = static_cast<float>(total);
    place_chunks(counts, chunks, experts + 1, e, first[e]);
}

__global__ void __launch_bounds__(MOE_CHUNK)
    place_kernel(const int32_t *index, const int32_t *counts, int32_t *order, int32_t *inverse, int64_t n, int experts)
{
    __shared__ int keys[MOE_CHUNK];
    const int64_t i = static_cast<int64_t>(blockIdx.x) * MOE_CHUNK + threadIdx.x;
    const int key = i < n ? static_cast<int>(rw_moe_key(index[i], experts)) : -1;
    keys[threadIdx.x] = key;
    __syncthreads();
    if (i >= n) return;
    int before = 0;
    for (int s = 0; s < static_cast<int>(threadIdx.x); s++) before += keys[s] == key;
    const int row = counts[static_cast<int64_t>(blockIdx.x) * (experts + 1) + key] + before;
    order[row] = static_cast<int32_t>(i);
    inverse[i] = row;
}

} // namespace

/* Launches the choice for the type of the scores. */
extern "C" rw_status rw_moe_topk_cuda(const rw_kernel *k)
{
    const rw_moe_topk_attrs *const p = static_cast<const rw_moe_topk_attrs *>(k->attrs);
    const rw_layout *const l = k->in[0].layout;
    if (!l->dim[0]) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        topk_args<T> a = {};
        a.scores = static_cast<const T *>(k->in[0].data);
        a.bias = k->n_inputs == 2 ? static_cast<const T *>(k->in[1].data) : nullptr;
        a.index = static_cast<int32_t *>(k->out[0].data);
        a.tokens = l->dim[0], a.experts = static_cast<int>(l->dim[1]), a.k = static_cast<int>(p->k);
        a.groups = static_cast<int>(p->groups), a.best_groups = static_cast<int>(p->best_groups);
        a.group_sum = static_cast<int>(p->group_sum);
        RW_LAUNCH(topk_kernel<T>, blocks_for(a.tokens, WARPS), THREADS, 0, k, a, guard_of(k));
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_moe_select_cuda(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel, each = k->in[1].layout->dim[1], experts = k->in[0].layout->dim[1];
    if (!n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(select_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const int32_t *>(k->in[1].data), static_cast<T *>(k->out[0].data), n, each, experts,
                  guard_of(k));
        return rw_cuda_launched(k);
    });
}

extern "C" rw_status rw_moe_scatter_cuda(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel, each = k->in[1].layout->dim[1], experts = k->out[0].layout->dim[1];
    if (!n) return RW_OK;
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        RW_LAUNCH(scatter_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const T *>(k->in[0].data),
                  static_cast<const int32_t *>(k->in[1].data), static_cast<T *>(k->out[0].data), n, each, experts,
                  guard_of(k));
        return rw_cuda_launched(k);
    });
}

/* Counts, scans and places the slots. */
extern "C" rw_status rw_moe_route_cuda(const rw_kernel *k)
{
    const rw_moe_route_attrs *const a = static_cast<const rw_moe_route_attrs *>(k->attrs);
    const int32_t *const index = static_cast<const int32_t *>(k->in[0].data);
    int32_t *const counts = static_cast<int32_t *>(k->workspace);
    const int64_t n = k->in[0].layout->numel, chunks = (n + MOE_CHUNK - 1) / MOE_CHUNK;
    const int experts = static_cast<int>(a->experts);
    if (n) {
        RW_LAUNCH(count_kernel, static_cast<unsigned>(chunks), MOE_CHUNK, 0, k, index, counts, n, experts, guard_of(k));
    }
    RW_LAUNCH(scan_kernel, 1, RW_MOE_EXPERTS_MAX, 0, k, counts, static_cast<int32_t *>(k->out[2].data),
              static_cast<float *>(k->out[3].data), chunks, experts);
    if (n) {
        RW_LAUNCH(place_kernel, static_cast<unsigned>(chunks), MOE_CHUNK, 0, k, index, counts,
                  static_cast<int32_t *>(k->out[0].data), static_cast<int32_t *>(k->out[1].data), n, experts);
    }
    return rw_cuda_launched(k);
}
