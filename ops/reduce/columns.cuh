/*
 * Reductions over rows on CUDA, column by column: a block has adjacent columns and adds rows to them. The elements come
 * from a source object, so a kernel that computes elements can sum them in the same pass, in the order and with the
 * result of a reduction of what it stores. A second stage merges the parts (partial_sums.cuh).
 */
#ifndef RW_OPS_REDUCE_COLUMNS_CUH
#define RW_OPS_REDUCE_COLUMNS_CUH

#include "ops/common/partial_sums.cuh"

#include <type_traits>

extern "C" {
#include "ops/reduce/reduce.h"
}

namespace {

constexpr int LOADS = 4; /* in flight per thread */

/* Offset of item i of the axes. */
__device__ __forceinline__ int64_t start_of(const rw_reduce_axes &a, int64_t i)
{
    if (a.rank == 0) return 0;
    if (a.rank == 1) return i * a.stride[0];
    int64_t at = 0;
#pragma unroll 1
    for (int axis = a.rank - 1; axis >= 0; axis--) {
        at += i % a.dim[axis] * a.stride[axis];
        i /= a.dim[axis];
    }
    return at;
}

/* The arguments of a kernel other than its operands. */
struct job {
    rw_reduce_axes groups, rows;
    int64_t run, chunks, parts, part;
    double divisor;
    const void *sum; /* the addend of the results, with the layout of the output; NULL for none */
    bool wide;       /* the output is float32, the elements have 16 bits */
};

/* Stores a result, or the state of a part for the second stage. */
template <template <typename> class R, typename T>
__device__ __forceinline__ void put(const job &j, const typename R<wide<T>>::state &s, int64_t part, int64_t o,
                                    int64_t outputs, void *to)
{
    using W = wide<T>;
    if (j.parts > 1) {
        static_cast<typename R<W>::state *>(to)[part * outputs + o] = s;
        return;
    }
    const W y = static_cast<W>(static_cast<double>(R<W>::result(s)) / j.divisor);
    if (j.wide) static_cast<W *>(to)[o] = added(y, j.sum, o);
    else static_cast<T *>(to)[o] = added(narrow<T>(y), j.sum, o);
}

template <typename T, int N> struct alignas(sizeof(T) * N) bundle { T x[N]; };

/* A single element, which needs no packing. */
template <typename T> struct single {
    T x;

    __device__ __forceinline__ bundle<T, 1> elements() const { return { { x } }; }
};

template <typename T, int N> using loaded = std::conditional_t<N == 1, single<T>, raw<bundle<T, N>>>;

/* Keeps packed words packed up to this point: otherwise each 16-bit element would occupy a register. */
template <typename T> __device__ __forceinline__ void keep_whole(single<T> &) {}
template <typename V> __device__ __forceinline__ void keep_whole(raw<V> &v)
{
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(V) / 4); i++) asm volatile("" : "+r"(v.word[i]));
}

/* Loads N elements, those from `stop` on as R's nothing(). An incomplete or unaligned bundle is read element by
   element, so the order of additions does not depend on the operand's address. */
template <typename R, typename T, int N>
__device__ __forceinline__ auto load(const T *x, int64_t at, int64_t e, int64_t stop)
{
    const bool together = !(reinterpret_cast<uintptr_t>(x + at) % sizeof(bundle<T, N>));
    const auto element = [=](int i) { return e + i < stop ? x[at + i] : narrow<T>(R::nothing()); };
    if constexpr (N == 1) return single<T>{ element(0) };
    else return together && e + N <= stop ? load_raw<bundle<T, N>>(x + at) : gather_raw<bundle<T, N>, T>(element);
}

/* A source of elements that are in memory. */
template <typename R, typename T, int N> struct stored {
    using held = loaded<T, N>;
    static constexpr int ahead = LOADS; /* rows loaded before the first is used; divides LOADS */
    static constexpr int blocks = 4;    /* per multiprocessor, at most */
    const T *x;

    __device__ __forceinline__ held fetch(int64_t at) const
    {
        return load<R, T, N>(x, at < 0 ? 0 : at, 0, at < 0 ? 0 : N);
    }

    __device__ __forceinline__ held take(const held &v, int64_t) const { return v; }
};

/* ---- kept runs: blockDim.x columns, or packs of columns, and blockDim.y rows at a time ---- */

/* Blocks per multiprocessor: fewer if the states of N columns, or a source that computes elements, need registers. */
template <typename State, int N> constexpr int columns_blocks(int most)
{
    return sizeof(State) * N > 32 ? 3 : most;
}

/* S: the source of elements: stored<>, or one that computes them. */
template <template <typename> class R, typename T, int N, template <typename, typename, int> class S>
__global__ void __launch_bounds__(RW_REDUCE_CUDA_THREADS,
                                  columns_blocks<typename R<wide<T>>::state, N>(S<R<wide<T>>, T, N>::blocks))
    columns_kernel(S<R<wide<T>>, T, N> x, void *to, job j)
{
    using W = wide<T>;
    using state = typename R<W>::state;
    using source = S<R<W>, T, N>;
    __shared__ state shared[N][RW_REDUCE_CUDA_THREADS / 2];
    const uint32_t chunks = static_cast<uint32_t>(j.chunks), parts = static_cast<uint32_t>(j.parts);
    const uint32_t part = blockIdx.x / chunks % parts, g = blockIdx.x / chunks / parts, step = blockDim.y;
    const int64_t column = (static_cast<int64_t>(blockIdx.x % chunks) * blockDim.x + threadIdx.x) * N;
    const int64_t end = j.rows.numel * (part + 1) / j.parts;
    const int64_t from = start_of(j.groups, g) + column;
    state s[N];
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = R<W>::empty();
    for (int64_t r = j.rows.numel * part / j.parts + threadIdx.y; r < end && column < j.run; r += step * LOADS) {
        loaded<T, N> taken[LOADS];
#pragma unroll
        for (int first = 0; first < LOADS; first += source::ahead) {
            typename source::held v[source::ahead];
            int64_t at[source::ahead]; /* -1 for a missing row */
#pragma unroll
            for (int l = 0; l < source::ahead; l++) {
                const int64_t row = r + (first + l) * step;
                at[l] = row < end ? from + start_of(j.rows, row) : -1;
                v[l] = x.fetch(at[l]);
            }
#pragma unroll
            for (int l = 0; l < source::ahead; l++) taken[first + l] = x.take(v[l], at[l]);
        }
        bundle<T, N> b[LOADS];
#pragma unroll
        for (int l = 0; l < LOADS; l++) keep_whole(taken[l]);
#pragma unroll
        for (int l = 0; l < LOADS; l++) b[l] = taken[l].elements();
#pragma unroll
        for (int i = 0; i < N; i++) {
            W of_column[LOADS];
            for (int l = 0; l < LOADS; l++) of_column[l] = widen(b[l].x[i]);
            R<W>::add(s[i], of_column);
        }
    }
    for (unsigned d = blockDim.y / 2; d > 0; d /= 2) {
        const unsigned at = threadIdx.y % d * blockDim.x + threadIdx.x;
        if (threadIdx.y >= d && threadIdx.y < 2 * d)
            for (int i = 0; i < N; i++) shared[i][at] = s[i];
        __syncthreads();
        if (threadIdx.y < d)
            for (int i = 0; i < N; i++) R<W>::merge(s[i], shared[i][at]);
        __syncthreads();
    }
    if (threadIdx.y || column >= j.run) return;
    for (int i = 0; i < N; i++) put<R, T>(j, s[i], part, g * j.run + column + i, j.groups.numel * j.run, to);
}

template <template <typename> class R, typename T, int N, template <typename, typename, int> class S>
void launch_columns(const rw_kernel *k, const struct rw_reduce_cut &cut, const job &j, const S<R<wide<T>>, T, N> &x,
                    void *to)
{
    const unsigned lanes = static_cast<unsigned>(cut.lanes);
    RW_LAUNCH((columns_kernel<R, T, N, S>), static_cast<unsigned>(j.groups.numel * j.parts * j.chunks),
              dim3(lanes, RW_REDUCE_CUDA_THREADS / lanes), 0, k, x, to, j);
}

/*
 * Output 1 of a kernel: sums of output 0 over all axes but the last, added to input `addend` if there is one. Elements
 * are computed while they are summed, by the source that launch(type, n, cut, job, to) passes to launch_columns(). The
 * order is that of sum_to on the stored elements.
 */
template <typename F> rw_status sum_computed_columns(const rw_kernel *k, int addend, const F &launch)
{
    const rw_layout *const l = k->out[0].layout;
    const struct rw_reduce_plan plan = rw_reduce_plan(l, rw_reduce_rows(l->rank));
    const struct rw_reduce_cut cut = rw_reduce_cut(&plan, l, k->out[0].dtype);
    const void *const sum = rw_kernel_has(k, addend) ? k->in[addend].data : nullptr;
    const job j = { plan.groups, plan.rows, plan.run, cut.chunks, cut.parts, cut.part, 1, sum,
                    k->out[1].dtype != k->out[0].dtype };
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        void *const to = k->out[1].data, *const first = cut.parts > 1 ? k->workspace : to;
        if (cut.pack == 1) launch(type, std::integral_constant<int, 1>{}, cut, j, first);
        else if constexpr (sizeof(T) < sizeof(double))
            launch(type, std::integral_constant<int, pack<T>::size>{}, cut, j, first);
        const auto *const part = static_cast<const sum_state<wide<T>> *>(k->workspace);
        if (cut.parts > 1 && j.wide) merge_parts<summed, wide<T>>(k, part, cut.parts, plan.run, to, plan.run, 1, sum);
        else if (cut.parts > 1) merge_parts<summed, T>(k, part, cut.parts, plan.run, to, plan.run, 1, sum);
        return rw_cuda_launched(k);
    });
}

/* Bytes of workspace for that, if the computed elements have the layout of input 0. */
inline size_t computed_columns_workspace(const rw_op_call *call)
{
    const rw_layout *const l = call->in[0].layout;
    const struct rw_reduce_plan plan = rw_reduce_plan(l, rw_reduce_rows(l->rank));
    return rw_reduce_cuda_workspace(&plan, l, call->in[0].dtype, RW_REDUCE_SUM);
}

/* Stores elements that such a source has computed, at an address of any alignment. */
template <typename T, int N> __device__ __forceinline__ void store_result(T *to, const loaded<T, N> &result)
{
    if (!(reinterpret_cast<uintptr_t>(to) % sizeof result)) *reinterpret_cast<loaded<T, N> *>(to) = result;
    else for (int i = 0; i < N; i++) to[i] = result.elements().x[i];
}

/* N numbers rounded to their type. */
template <typename T, int N> __device__ __forceinline__ loaded<T, N> rounded(const wide<T> (&x)[N])
{
    loaded<T, N> y;
    if constexpr (N == 1) y.x = narrow<T>(x[0]);
    else memcpy(y.word, narrow_pack<T>(x).word, sizeof y);
    return y;
}

} // namespace

#endif
