/* A row of logits on CUDA: its division into packs, and its kept values. One block per row; shared by the losses. */
#ifndef RW_OPS_LOSS_LOGITS_ROW_CUH
#define RW_OPS_LOSS_LOGITS_ROW_CUH

#include "device/cuda/kernel.cuh"

#include <cmath>

namespace {

constexpr int ROW_THREADS = 512;
constexpr int AHEAD = 2; /* packs of a row that a thread loads in advance */
template <typename T> constexpr int ROW_BLOCKS = sizeof(T) == 2 ? 3 : 1; /* per multiprocessor */

/*
 * A row divided into packs at multiples of a pack's size in the tensor: the first and the last pack may be incomplete.
 * If the tensor itself is not aligned, the division is the same, and packs are read element by element.
 */
template <typename T> struct row_packs {
    static constexpr int P = pack<T>::size;
    int64_t n;
    int shift;  /* elements before the row in its first pack */
    bool whole; /* addresses are aligned like the indices */

    /* x: the row; y: destination of a row of the same length, or x again */
    __device__ __forceinline__ row_packs(const T *x, const T *y, int64_t place, int64_t length)
        : n(length), shift(static_cast<int>(place % P)), whole(agrees(x) && agrees(y))
    {
    }

    __device__ __forceinline__ bool agrees(const T *p) const
    {
        return reinterpret_cast<uintptr_t>(p) / sizeof(T) % P == static_cast<uintptr_t>(shift);
    }

    __device__ __forceinline__ int64_t count() const { return (shift + n + P - 1) / P; }

    /* Index of element e of the row within pack i; a number out of range if the pack does not contain it. */
    __device__ __forceinline__ int place(int64_t i, int64_t e) const
    {
        const int64_t l = e - first(i);
        return l >= 0 && l < P ? static_cast<int>(l) : -1;
    }

    /* The first element of pack i: negative if the first pack is incomplete. */
    __device__ __forceinline__ int64_t first(int64_t i) const { return i * P - shift; }
    __device__ __forceinline__ bool is_full(int64_t i) const { return whole && first(i) >= 0 && first(i) + P <= n; }

    __device__ __forceinline__ raw<pack<T>> load(const T *x, int64_t i, T fill) const
    {
        const int64_t at = first(i);
        if (is_full(i)) return load_raw<pack<T>>(x + at);
        return gather_raw<pack<T>, T>([=](int l) { return at + l >= 0 && at + l < n ? x[at + l] : fill; });
    }

    /* Loads the first packs of this thread. Issued before a kernel reads the other data of its row, which takes as
       long. */
    struct ahead { raw<pack<T>> next[AHEAD]; };

    __device__ __forceinline__ ahead begin(const T *x, T fill) const
    {
        ahead first;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) first.next[a] = load(x, threadIdx.x + a * ROW_THREADS, fill);
        return first;
    }

    /* Calls f(i, pack i) for the packs of this thread, in order, while the next ones are loaded. */
    template <typename F> __device__ __forceinline__ void each(const ahead &first, const T *x, T fill, F f) const
    {
        raw<pack<T>> next[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) next[a] = first.next[a];
        for (int64_t from = threadIdx.x; from < count(); from += AHEAD * ROW_THREADS) {
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                const int64_t i = from + a * ROW_THREADS;
                pack<T> v = next[a].elements();
                next[a] = load(x, i + AHEAD * ROW_THREADS, fill);
                if (i < count()) f(i, v);
            }
        }
    }

    __device__ __forceinline__ void store(T *y, int64_t i, const raw<pack<T>> &words) const
    {
        const int64_t at = first(i);
        if (is_full(i)) {
            store_global(y + at, words);
            return;
        }
        const pack<T> v = words.elements();
#pragma unroll
        for (int l = 0; l < P; l++)
            if (at + l >= 0 && at + l < n) y[at + l] = v.x[l];
    }
};

__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

/* exp of a difference of logits. For 16-bit types the accuracy of one multiplication and ex2 is sufficient. */
template <typename T> __device__ __forceinline__ wide<T> exp_of_logit(wide<T> x)
{
    if constexpr (sizeof(T) == 2) return power_of_two(x * 1.44269504088896340736f);
    else return exp_of(x);
}

__device__ __forceinline__ float more_of(float x, float most) { return fmaxf(x, most); } /* the maximum ignores NaN */
__device__ __forceinline__ double more_of(double x, double most) { return fmax(x, most); }
__device__ __forceinline__ float log_of(float x) { return logf(x); }
__device__ __forceinline__ double log_of(double x) { return log(x); }

/* A sum of exponentials relative to its largest exponent. A NaN is never the largest, but it is in the sum. */
template <typename W> struct exponentials {
    W most, sum;

    static __device__ __forceinline__ W base(W m) { return m == -W(INFINITY) ? W(0) : m; }

    __device__ __forceinline__ void raise(W m)
    {
        if (!(m > most)) return;
        sum *= exp_of(most - base(m));
        most = m;
    }

    __device__ __forceinline__ void join(W other_most, W other_sum)
    {
        const W m = other_most > most ? other_most : most;
        sum = sum * exp_of(most - base(m)) + other_sum * exp_of(other_most - base(m));
        most = m;
    }
};

/* As RW_KEPT_OF_A_ROW in loss.h. */
template <typename W> struct kept_row {
    W most, log;

    __device__ __forceinline__ W less(W x) const { return x - most - log; }
};

template <typename W> __device__ __forceinline__ kept_row<W> kept_of(exponentials<W> e)
{
    return { exponentials<W>::base(e.most), log_of(e.sum) };
}

/* Merges pairs over the whole block in a fixed tree; the result is in thread 0. `shared` has 64 elements. */
template <typename W> __device__ __forceinline__ exponentials<W> block_join(exponentials<W> e, W *shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int step = 0; step < 2; step++) {
        for (int d = 1; d < 32; d <<= 1) {
            const W most = __shfl_down_sync(0xffffffffu, e.most, d), sum = __shfl_down_sync(0xffffffffu, e.sum, d);
            if (lane + d < 32) e.join(most, sum);
        }
        if (step) break;
        if (lane == 0) shared[warp] = e.most, shared[32 + warp] = e.sum;
        __syncthreads();
        const bool some = lane < static_cast<int>(blockDim.x >> 5);
        e = { some ? shared[lane] : -W(INFINITY), some ? shared[32 + lane] : W(0) };
    }
    return e;
}

} // namespace

#endif
