/*
 * CUDA kernels of the reductions, over the groups, rows and runs of rw_reduce_plan(), cut by rw_reduce_cut(). Reduced
 * runs: a warp or a block reduces a group, or a part of it. Kept runs: columns.cuh. The cut and the order of every sum
 * depend on the layout alone; a second kernel merges the parts.
 */
/* machine_code.py: stream columns_kernel<\w+, (float, 4|__half, 8|__nv_bfloat16, 8), stored>: store=0, share=1 */
/* machine_code.py: stream runs_kernel<\w+, (float, 4|__half, 8|__nv_bfloat16, 8), \d+>: store=0, share=1 */
/* machine_code.py: first_in_\w+_kernel<.*>: the gradient of a maximum */
/* machine_code.py: fill_kernel<.*>: reductions of nothing */
#include "ops/reduce/columns.cuh"

namespace {

constexpr int THREADS = RW_REDUCE_CUDA_THREADS;
constexpr int WARP_THREADS = 128; /* of blocks in which each warp has its own group */

/* Offset of element e of a group, counted through its rows. */
__device__ __forceinline__ int64_t place_of(const rw_reduce_axes &rows, int64_t run, int64_t e)
{
    if (rows.rank == 0) return e;
    if (rows.numel * run <= INT32_MAX) {
        const uint32_t row = static_cast<uint32_t>(e) / static_cast<uint32_t>(run);
        return start_of(rows, row) + (static_cast<uint32_t>(e) - row * static_cast<uint32_t>(run));
    }
    return start_of(rows, e / run) + e % run;
}

/* ---- reduced runs: G threads, a warp or the block, for each part of a group ---- */

/* Reduces one part of a group. */
template <template <typename> class R, typename T, int N, int G>
__global__ void __launch_bounds__(G == 32 ? WARP_THREADS : G) runs_kernel(const T *x, void *to, job j)
{
    using W = wide<T>;
    using state = typename R<W>::state;
    __shared__ state shared[G / 32];
    const int64_t item = static_cast<int64_t>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G;
    const int64_t g = item / j.parts, part = item % j.parts, elements = j.rows.numel * j.run;
    if (g >= j.groups.numel) return;
    const int64_t begin = part * j.part, end = begin + j.part < elements ? begin + j.part : elements;
    const T *const from = x + start_of(j.groups, g);
    state s = R<W>::empty();
    for (int64_t e = begin + threadIdx.x % G * N; e < end; e += G * N * LOADS) {
        loaded<T, N> v[LOADS];
        W wide_v[LOADS * N];
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const int64_t at = e + l * G * N;
            v[l] = load<R<W>, T, N>(from, at < end ? place_of(j.rows, j.run, at) : 0, at, end);
        }
#pragma unroll
        for (int l = 0; l < LOADS; l++) {
            const bundle<T, N> b = v[l].elements();
#pragma unroll
            for (int i = 0; i < N; i++) wide_v[l * N + i] = widen(b.x[i]);
        }
        R<W>::add(s, wide_v);
    }
    for (int d = 16; d > 0; d >>= 1) R<W>::merge(s, R<W>::shuffled(s, d));
    if (G > 32) {
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = s;
        __syncthreads();
        for (int w = 1; w < G / 32 && threadIdx.x == 0; w++) R<W>::merge(s, shared[w]);
    }
    if (threadIdx.x % G == 0) put<R, T>(j, s, part, g, j.groups.numel, to);
}

template <template <typename> class R, typename T, int N>
void launch(const rw_kernel *k, const struct rw_reduce_plan &plan, const struct rw_reduce_cut &cut, const job &j)
{
    const T *const x = static_cast<const T *>(k->in[0].data);
    void *const to = j.parts > 1 ? k->workspace : k->out[0].data;
    const int64_t items = j.groups.numel * j.parts;
    if (!plan.run_reduced) launch_columns<R, T, N, stored>(k, cut, j, stored<R<wide<T>>, T, N>{ x }, to);
    else if (j.rows.numel * j.run <= RW_REDUCE_CUDA_WARP)
        RW_LAUNCH((runs_kernel<R, T, N, 32>), blocks_for(items, WARP_THREADS / 32), WARP_THREADS, 0, k, x, to, j);
    else RW_LAUNCH((runs_kernel<R, T, N, THREADS>), static_cast<unsigned>(items), THREADS, 0, k, x, to, j);
}

/* Reduces an input with reducer R: cuts it, launches the kernel, and merges the parts. */
template <template <typename> class R, typename T> rw_status reduce(const rw_kernel *k, double divisor)
{
    using W = wide<T>;
    const rw_reduce_attrs *const a = static_cast<const rw_reduce_attrs *>(k->attrs);
    const rw_layout *const in = k->in[0].layout;
    const struct rw_reduce_plan plan = rw_reduce_plan(in, rw_reduce_mask(a->axes, in->rank));
    const struct rw_reduce_cut cut = rw_reduce_cut(&plan, in, k->in[0].dtype);
    const void *const sum = rw_kernel_has(k, 1) ? k->in[1].data : nullptr;
    const job j = { plan.groups, plan.rows, plan.run, cut.chunks, cut.parts, cut.part, cut.parts > 1 ? 1 : divisor,
                    sum, k->out[0].dtype != k->in[0].dtype };
    if (cut.pack == 1) launch<R, T, 1>(k, plan, cut, j);
    else if constexpr (sizeof(T) < sizeof(double)) launch<R, T, pack<T>::size>(k, plan, cut, j);
    const int64_t outputs = k->out[0].layout->numel;
    const auto *const part = static_cast<const typename R<W>::state *>(k->workspace);
    void *const to = k->out[0].data;
    if (cut.parts > 1 && j.wide) merge_parts<R, W>(k, part, cut.parts, outputs, to, outputs, divisor, sum);
    else if (cut.parts > 1) merge_parts<R, T>(k, part, cut.parts, outputs, to, outputs, divisor, sum);
    return rw_cuda_launched(k);
}

template <typename T> __global__ void fill_kernel(T *to, int64_t n, double value, const void *sum)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) to[i] = added(narrow<T>(static_cast<wide<T>>(value)), sum, i);
}

/* The result of a reduction of no elements. */
template <typename T> rw_status reduce_nothing(const rw_kernel *k, int kind)
{
    const double nothing = kind == RW_REDUCE_MEAN        ? static_cast<double>(NAN)
                           : kind == RW_REDUCE_LOGSUMEXP ? -static_cast<double>(INFINITY)
                                                         : 0;
    const int64_t n = k->out[0].layout->numel;
    if (n)
        RW_LAUNCH(fill_kernel<T>, blocks_for(n, THREADS), THREADS, 0, k, static_cast<T *>(k->out[0].data), n, nothing,
                  rw_kernel_has(k, 1) ? k->in[1].data : nullptr);
    return rw_cuda_launched(k);
}

/* ---- the first of the largest elements ---- */

template <typename T> __device__ __forceinline__ bool is_hit(T x, T most)
{
    const wide<T> a = widen(x), b = widen(most);
    return a == b || (a != a && b != b);
}

/* One block per group of reduced runs. */
template <typename T>
__global__ void __launch_bounds__(THREADS) first_in_runs_kernel(const T *x, const T *most, T *to, job j)
{
    __shared__ int64_t shared[THREADS];
    const int64_t g = blockIdx.x, elements = j.rows.numel * j.run, start = start_of(j.groups, g);
    int64_t first = elements;
    for (int64_t e = threadIdx.x; e < elements && first == elements; e += THREADS)
        if (is_hit(x[start + place_of(j.rows, j.run, e)], most[g])) first = e;
    shared[threadIdx.x] = first;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < THREADS; i++) first = shared[i] < first ? shared[i] : first;
    if (first < elements) to[start + place_of(j.rows, j.run, first)] = narrow<T>(1);
}

/* One thread per column of kept runs. */
template <typename T>
__global__ void __launch_bounds__(THREADS) first_in_columns_kernel(const T *x, const T *most, T *to, job j)
{
    const int64_t o = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (o >= j.groups.numel * j.run) return;
    const int64_t start = start_of(j.groups, o / j.run) + o % j.run;
    for (int64_t r = 0; r < j.rows.numel; r++) {
        const int64_t at = start + start_of(j.rows, r);
        if (!is_hit(x[at], most[o])) continue;
        to[at] = narrow<T>(1);
        return;
    }
}

} // namespace

extern "C" size_t rw_reduce_workspace_cuda(const rw_op_call *call)
{
    const rw_reduce_attrs *const a = static_cast<const rw_reduce_attrs *>(call->attrs);
    const rw_layout *const in = call->in[0].layout;
    const struct rw_reduce_plan plan = rw_reduce_plan(in, rw_reduce_mask(a->axes, in->rank));
    return rw_reduce_cuda_workspace(&plan, in, call->in[0].dtype, a->kind);
}

extern "C" rw_status rw_reduce_cuda(const rw_kernel *k)
{
    const int kind = static_cast<const rw_reduce_attrs *>(k->attrs)->kind;
    const int64_t in = k->in[0].layout->numel, out = k->out[0].layout->numel;
    if (!in)
        return with_float_type(k->out[0].dtype, [&](auto type) { return reduce_nothing<decltype(type)>(k, kind); });
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        if (kind == RW_REDUCE_MAX) return reduce<largest, T>(k, 1);
        if (kind == RW_REDUCE_LOGSUMEXP) return reduce<exponentials, T>(k, 1);
        return reduce<summed, T>(k, kind == RW_REDUCE_MEAN ? static_cast<double>(in / out) : 1);
    });
}

/* Marks the first maximum of each group, for the type of the elements. */
extern "C" rw_status rw_first_max_cuda(const rw_kernel *k)
{
    const rw_reduce_attrs *const a = static_cast<const rw_reduce_attrs *>(k->attrs);
    const rw_layout *const in = k->in[0].layout;
    if (!in->numel) return RW_OK;
    const struct rw_reduce_plan plan = rw_reduce_plan(in, rw_reduce_mask(a->axes, in->rank));
    const job j = { plan.groups, plan.rows, plan.run, 1, 1, 0, 1, nullptr, false };
    rw_cuda *const cuda = static_cast<rw_cuda *>(k->device);
    const cudaError_t cleared = cudaMemsetAsync(
        k->out[0].data, 0, static_cast<size_t>(in->numel) * rw_dtype_size(k->out[0].dtype), cuda->stream);
    if (cleared) return rw_cuda_status(cuda, cleared, "cudaMemsetAsync");
    return with_float_type(k->in[0].dtype, [&](auto type) {
        using T = decltype(type);
        const T *const x = static_cast<const T *>(k->in[0].data), *const most = static_cast<const T *>(k->in[1].data);
        T *const to = static_cast<T *>(k->out[0].data);
        if (plan.run_reduced)
            RW_LAUNCH(first_in_runs_kernel<T>, static_cast<unsigned>(plan.groups.numel), THREADS, 0, k, x, most, to, j);
        else
            RW_LAUNCH(first_in_columns_kernel<T>, blocks_for(plan.groups.numel * plan.run, THREADS), THREADS, 0, k, x,
                      most, to, j);
        return rw_cuda_launched(k);
    });
}
