/*
 * Reductions on CUDA: reducers, and the second stage, which merges partial results in a fixed order.
 *
 * A reducer R<W> has a state. It adds elements (several per call), merges two states and returns a result. Missing
 * elements count as R<W>::nothing().
 */
#ifndef RW_OPS_PARTIAL_SUMS_CUH
#define RW_OPS_PARTIAL_SUMS_CUH

#include "device/cuda/kernel.cuh"

/* x; or with `sum`, element i of it plus x. Each is rounded, so the bytes equal those of storing x and adding it with
   the op accumulate. */
template <typename T> __device__ __forceinline__ T added(T x, const void *sum, int64_t i)
{
    return sum ? narrow<T>(widen(static_cast<const T *>(sum)[i]) + widen(x)) : x;
}

template <typename W> struct sum_state { W sum; };
template <typename W> struct most_state { W most; };
template <typename W> struct exponentials_state { W most, sum; };

template <typename W> struct summed {
    using state = sum_state<W>;
    static __device__ __forceinline__ state empty() { return { 0 }; }
    static __device__ __forceinline__ W nothing() { return 0; }
    static __device__ __forceinline__ void merge(state &s, const state &o) { s.sum += o.sum; }
    static __device__ __forceinline__ state shuffled(const state &s, int d)
    {
        return { __shfl_xor_sync(0xffffffffu, s.sum, d) };
    }
    static __device__ __forceinline__ sum_state<double> doubled(const state &s)
    {
        return { static_cast<double>(s.sum) };
    }
    static __device__ __forceinline__ W result(const state &s) { return s.sum; }

    template <int N> static __device__ __forceinline__ void add(state &s, const W (&x)[N])
    {
        W tree[N];
#pragma unroll
        for (int i = 0; i < N; i++) tree[i] = x[i];
#pragma unroll
        for (int d = 1; d < N; d *= 2)
#pragma unroll
            for (int i = 0; i + d < N; i += 2 * d) tree[i] += tree[i + d];
        s.sum += tree[0];
    }
};

/* The maximum; NaN if either is NaN. */
template <typename W> __device__ __forceinline__ W most_of(W m, W x)
{
    return x > m || x != x ? x : m;
}

template <typename W> struct largest {
    using state = most_state<W>;
    static __device__ __forceinline__ W nothing() { return -static_cast<W>(INFINITY); }
    static __device__ __forceinline__ state empty() { return { nothing() }; }
    static __device__ __forceinline__ void merge(state &s, const state &o) { s.most = most_of(s.most, o.most); }
    static __device__ __forceinline__ state shuffled(const state &s, int d)
    {
        return { __shfl_xor_sync(0xffffffffu, s.most, d) };
    }
    static __device__ __forceinline__ most_state<double> doubled(const state &s)
    {
        return { static_cast<double>(s.most) };
    }
    static __device__ __forceinline__ W result(const state &s) { return s.most; }

    template <int N> static __device__ __forceinline__ void add(state &s, const W (&x)[N])
    {
#pragma unroll
        for (int i = 0; i < N; i++) s.most = most_of(s.most, x[i]);
    }
};

/*
 * log(sum(exp(x))) as a maximum and a sum of exp(x - maximum). A NaN never becomes the maximum; it is part of the sum.
 * The difference of two equal infinities is defined as 0.
 */
template <typename W> struct exponentials {
    using state = exponentials_state<W>;
    static __device__ __forceinline__ W nothing() { return -static_cast<W>(INFINITY); }
    static __device__ __forceinline__ state empty() { return { nothing(), 0 }; }
    static __device__ __forceinline__ W below(W x, W most) { return x == most ? W(1) : static_cast<W>(exp(x - most)); }
    static __device__ __forceinline__ W result(const state &s) { return s.most + static_cast<W>(log(s.sum)); }

    static __device__ __forceinline__ void merge(state &s, const state &o)
    {
        const W most = s.most > o.most ? s.most : o.most;
        s.sum = s.sum * below(s.most, most) + o.sum * below(o.most, most);
        s.most = most;
    }

    static __device__ __forceinline__ state shuffled(const state &s, int d)
    {
        return { __shfl_xor_sync(0xffffffffu, s.most, d), __shfl_xor_sync(0xffffffffu, s.sum, d) };
    }

    static __device__ __forceinline__ exponentials_state<double> doubled(const state &s)
    {
        return { static_cast<double>(s.most), static_cast<double>(s.sum) };
    }

    template <int N> static __device__ __forceinline__ void add(state &s, const W (&x)[N])
    {
        W most = s.most;
#pragma unroll
        for (int i = 0; i < N; i++) most = x[i] > most ? x[i] : most;
        s.sum *= below(s.most, most);
        s.most = most;
#pragma unroll
        for (int i = 0; i < N; i++) s.sum += below(x[i], most);
    }
};

constexpr int PARTS_THREADS = 512;
/* Columns of a block; fewer for a short result, so that there are more blocks. */
constexpr int PARTS_COLUMNS = 32, PARTS_FEW = 8;
constexpr int PARTS_SHORT = 16384;
constexpr int PARTS_AHEAD = 4; /* loads in flight per thread */

/* One of the results of a launch: its partial results, its destination, and the sum to add it to, if any. */
template <typename State, typename T> struct merged {
    const State *part;
    T *to;
    const void *sum;
};

/*
 * to[c] = part[c] + part[stride + c] + ..., divided by `divisor`, and added to sum[c] if there is a sum. In double.
 * blockDim is columns x rows, powers of two. A thread adds the parts whose index modulo the number of rows is its row;
 * then the rows are merged pairwise. gridDim.y: index of the result.
 */
template <template <typename> class R, typename W, typename T>
__global__ void __launch_bounds__(PARTS_THREADS) merge_parts_kernel(merged<typename R<W>::state, T> first,
                                                                    merged<typename R<W>::state, T> second,
                                                                    merged<typename R<W>::state, T> third,
                                                                    int64_t parts, int64_t stride, int64_t n,
                                                                    double divisor)
{
    using D = R<double>;
    __shared__ typename D::state shared[PARTS_THREADS];
    const merged<typename R<W>::state, T> m = blockIdx.y == 0 ? first : blockIdx.y == 1 ? second : third;
    const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    typename D::state s = D::empty();
    for (int64_t p = threadIdx.y; p < parts && c < n; p += PARTS_AHEAD * blockDim.y) {
        typename R<W>::state ahead[PARTS_AHEAD];
#pragma unroll
        for (int a = 0; a < PARTS_AHEAD; a++) {
            const int64_t at = p + a * blockDim.y; /* beyond the end: reads p again, which avoids a branch */
            ahead[a] = m.part[(at < parts ? at : p) * stride + c];
        }
#pragma unroll
        for (int a = 0; a < PARTS_AHEAD; a++)
            if (p + a * blockDim.y < parts) D::merge(s, R<W>::doubled(ahead[a]));
    }
    for (unsigned d = blockDim.y / 2; d > 0; d /= 2) {
        if (threadIdx.y >= d && threadIdx.y < 2 * d) shared[(threadIdx.y - d) * blockDim.x + threadIdx.x] = s;
        __syncthreads();
        if (threadIdx.y < d) D::merge(s, shared[threadIdx.y * blockDim.x + threadIdx.x]);
        __syncthreads();
    }
    if (threadIdx.y == 0 && c < n)
        m.to[c] = added(narrow<T>(static_cast<wide<T>>(D::result(s) / divisor)), m.sum, c);
}

/* Launches the merge. `to` and `sum` have type T or, if T has 16 bits, float32. second, third: further results with the
   same number of parts, or none. */
template <template <typename> class R, typename T>
static inline void merge_parts(const rw_kernel *k, merged<typename R<wide<T>>::state, T> first, int64_t parts,
                               int64_t stride, int64_t n, double divisor,
                               merged<typename R<wide<T>>::state, T> second = {},
                               merged<typename R<wide<T>>::state, T> third = {})
{
    const unsigned most = n <= PARTS_SHORT ? PARTS_FEW : PARTS_COLUMNS;
    unsigned columns = 1, rows = 1;
    while (columns < most && columns < n) columns *= 2;
    /* A row of threads without a part contributes nothing. So with fewer rows the same parts are merged in the same
       order, and the result does not change. */
    while (rows < PARTS_THREADS / columns && (rows < parts || rows * columns < 32)) rows *= 2;
    if (!n) return;
    RW_LAUNCH((merge_parts_kernel<R, wide<T>, T>), dim3(blocks_for(n, columns), third.to ? 3 : second.to ? 2 : 1),
              dim3(columns, rows), 0, k, first, second, third, parts, stride, n, divisor);
}

/* The same for a single result whose type is known only at run time. */
template <template <typename> class R, typename T>
static inline void merge_parts(const rw_kernel *k, const typename R<wide<T>>::state *part, int64_t parts,
                               int64_t stride, void *to, int64_t n, double divisor, const void *sum)
{
    merge_parts<R, T>(k, { part, static_cast<T *>(to), sum }, parts, stride, n, divisor);
}

#endif
