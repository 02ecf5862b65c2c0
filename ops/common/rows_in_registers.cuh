/*
 * Rows in registers: a row belongs to a group of G threads, one warp or one block. Thread t holds packs t, t + G, t + 2
 * G ... of it. The row is read once, for any number of sums over it.
 */
#ifndef RW_OPS_REDUCE_ROWS_IN_REGISTERS_CUH
#define RW_OPS_REDUCE_ROWS_IN_REGISTERS_CUH

#include "device/cuda/kernel.cuh"

#include <limits>

constexpr int ROW_WARP = 32, ROW_BLOCK = 256; /* group sizes */
constexpr int ROW_WARP_MAX = 1024;           /* widest row of a warp: 32 elements per thread */
constexpr int ROW_BLOCK_MAX = 8192;          /* widest row of a block */
constexpr int ROW_SUMS = 4;                   /* maximum number of sums per round */

template <typename T, int PACKS, int G> struct held_row {
    static constexpr int size = pack<T>::size;
    pack<T> v[PACKS];

    static __device__ __forceinline__ int place(int p, int t) { return (p * G + t) * size; }

    /* n: a multiple of the pack's size. Elements beyond it are zero. */
    __device__ __forceinline__ void load(const T *row, int t, int n)
    {
        raw<pack<T>> w[PACKS];
#pragma unroll
        for (int p = 0; p < PACKS; p++)
            w[p] = place(p, t) < n ? load_raw_anywhere(row + place(p, t)) : raw<pack<T>>{};
#pragma unroll
        for (int p = 0; p < PACKS; p++) v[p] = w[p].elements();
    }
};

/*
 * Sums over a group, the same in every thread. `shared` has 2 * ROW_SUMS * 8 elements for a block, none for a warp.
 * Rounds alternate between its halves, so one barrier per round is enough.
 */
template <int G, int N, typename W> __device__ __forceinline__ void group_sums(W (&x)[N], W *shared, int &round)
{
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = warp_sum(x[i]);
    if (G == ROW_WARP) return;
    constexpr int warps = G / 32;
    W *const s = shared + (round++ & 1) * ROW_SUMS * warps;
    if ((threadIdx.x & 31) == 0)
        for (int i = 0; i < N; i++) s[i * warps + (threadIdx.x >> 5)] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        x[i] = s[i * warps];
        for (int w = 1; w < warps; w++) x[i] += s[i * warps + w];
    }
}

template <int G, typename W> __device__ __forceinline__ W group_sum(W x, W *shared, int &round)
{
    W one[1] = { x };
    group_sums<G>(one, shared, round);
    return one[0];
}

template <int G, typename W> __device__ __forceinline__ W group_max(W x, W *shared, int &round)
{
    x = warp_max(x);
    if (G == ROW_WARP) return x;
    constexpr int warps = G / 32;
    W *const s = shared + (round++ & 1) * ROW_SUMS * warps;
    if ((threadIdx.x & 31) == 0) s[threadIdx.x >> 5] = x;
    __syncthreads();
    x = s[0];
    for (int w = 1; w < warps; w++) x = s[w] > x || s[w] != s[w] ? s[w] : x;
    return x;
}

/* Does each row divide into packs? */
static inline bool has_packs(const rw_view *v, int64_t width)
{
    return width % (16 / static_cast<int64_t>(rw_dtype_size(v->dtype))) == 0;
}

/* Calls f with std::integral_constant<int, packs>: the minimum of 8, 16 or 32 elements per thread that holds the
   row. */
template <int N> struct row_packs { static constexpr int value = N; };

template <typename T, typename F> static inline void with_packs(int64_t width, int64_t group, F f)
{
    constexpr int size = pack<T>::size;
    if (width <= group * 8) f(row_packs<8 / size>());
    else if (width <= group * 16) f(row_packs<16 / size>());
    else f(row_packs<32 / size>());
}

#endif
