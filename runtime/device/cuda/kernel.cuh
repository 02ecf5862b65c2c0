/*
 * Shared code of the CUDA kernels: element types and their accumulators, 16-byte accesses, sums of a fixed order,
 * tickets.
 *
 * All of it keeps one law: bytes depend only on inputs, attributes and ticket. Grids and the division of reductions
 * follow from shapes, never from the number of multiprocessors; the tree of a sum is fixed; there are no atomics on
 * floats. Everything is compiled without contraction. A fused multiply-add is written as fmaf() where it is wanted, so
 * the simulator computes the same bits.
 */
#ifndef RW_DEVICE_CUDA_KERNEL_CUH
#define RW_DEVICE_CUDA_KERNEL_CUH

#include "device/cuda/launch.cuh"
#include "base/philox.h"
#include "device/error_flags.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <cstring>
#include <type_traits>

using bf16 = __nv_bfloat16;
using f16 = __half;

/* The type in which sums and functions of T are computed. */
template <typename T> struct rw_wide { using type = float; };
template <> struct rw_wide<double> { using type = double; };
template <typename T> using wide = typename rw_wide<T>::type;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float widen(f16 x) { return __half2float(x); }

/* Rounds once, to nearest even. */
template <typename T> __device__ __forceinline__ T narrow(wide<T> x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ double narrow<double>(double x) { return x; }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ f16 narrow<f16>(float x) { return __float2half_rn(x); }

/* Two 16-bit elements in a word, the first in its lower half. */
template <typename T> __device__ __forceinline__ uint32_t narrow_pair(float low, float high)
{
    uint32_t r;
    if constexpr (std::is_same<T, bf16>::value) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
        memcpy(&r, &two, sizeof r);
    } else {
        const __half2 two = __floats2half2_rn(low, high);
        memcpy(&r, &two, sizeof r);
    }
    return r;
}

/* Within 2 units in the last place; subnormal results are 0. Executed as PTX by ptx_attention and ptx_losses. */
__device__ __forceinline__ float power_of_two(float x)
{
#ifdef RW_CUDASIM
    return exp2f(x);
#else
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
#endif
}

/*
 * A vector of elements as loaded from memory, in words of 32 bits. Where a fast path of loading and a slow one merge,
 * words must merge: otherwise the compiler splits 16-bit elements at that place, and waits for each load before it
 * issues the next.
 */
template <typename V> struct alignas(sizeof(V)) raw {
    uint32_t word[sizeof(V) / 4];

    __device__ __forceinline__ V elements() const
    {
        V v;
        uint32_t w[sizeof(V) / 4];
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(V) / 4); i++) {
            w[i] = word[i];
            asm("" : "+r"(w[i])); /* no instruction: keeps the split after the place where the paths merge */
        }
        memcpy(static_cast<void *>(&v), w, sizeof v);
        return v;
    }
};

template <typename V> __device__ __forceinline__ raw<V> load_raw(const void *p)
{
    return *static_cast<const raw<V> *>(p);
}

/* The words of a value of at least four bytes. */
template <typename V> __device__ __forceinline__ raw<V> raw_of(const V &v)
{
    raw<V> r;
    memcpy(r.word, &v, sizeof v);
    return r;
}

/*
 * One store to global memory. Without it the compiler would merge two adjacent structures and split the rest by
 * elements. p is never in shared memory: __stwb() is st.global, which faults there (tests/ptx/address_spaces.py).
 * Executed as PTX by ptx_losses.
 */
template <typename V> __device__ __forceinline__ void store_global(void *p, const V &v)
{
    if constexpr (sizeof(V) < 4) {
        *static_cast<V *>(p) = v;
    } else {
        const raw<V> r = raw_of(v);
#ifndef RW_CUDASIM
        if constexpr (sizeof(V) == 16)
            return __stwb(static_cast<uint4 *>(p), make_uint4(r.word[0], r.word[1], r.word[2], r.word[3]));
#endif
        *static_cast<raw<V> *>(p) = r;
    }
}

/* The words of element(0), element(1) ..., which are of type T. */
template <typename V, typename T, typename F> __device__ __forceinline__ raw<V> gather_raw(F element)
{
    raw<V> r;
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int w = 0; w < static_cast<int>(sizeof(V) / 4); w++) {
            const T low = element(2 * w), high = element(2 * w + 1);
            uint16_t a, b;
            memcpy(&a, &low, sizeof a);
            memcpy(&b, &high, sizeof b);
            r.word[w] = a | static_cast<uint32_t>(b) << 16;
        }
    } else if constexpr (sizeof(T) == 1) {
#pragma unroll
        for (int w = 0; w < static_cast<int>(sizeof(V) / 4); w++) {
            uint32_t word = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const T x = element(4 * w + i);
                uint8_t byte;
                memcpy(&byte, &x, sizeof byte);
                word |= static_cast<uint32_t>(byte) << (8 * i);
            }
            r.word[w] = word;
        }
    } else {
#pragma unroll
        for (int l = 0; l < static_cast<int>(sizeof(V) / sizeof(T)); l++) {
            const T x = element(l);
            memcpy(&r.word[l * (sizeof(T) / 4)], &x, sizeof x);
        }
    }
    return r;
}

/* Sixteen bytes of elements: one load or store instruction if the address is a multiple of 16. */
template <typename T> struct alignas(16) pack {
    static constexpr int size = 16 / sizeof(T);
    T x[size];
};

template <typename T> __device__ __forceinline__ pack<T> load_pack(const T *p)
{
    return load_raw<pack<T>>(p).elements();
}

/* Rounds as narrow() does. Two 16-bit elements take one instruction. */
template <typename T> __device__ __forceinline__ raw<pack<T>> narrow_pack(const wide<T> (&x)[pack<T>::size])
{
    if constexpr (sizeof(T) == 2) {
        raw<pack<T>> r;
#pragma unroll
        for (int w = 0; w < pack<T>::size / 2; w++) r.word[w] = narrow_pair<T>(x[2 * w], x[2 * w + 1]);
        return r;
    } else {
        return gather_raw<pack<T>, T>([&](int i) { return narrow<T>(x[i]); });
    }
}

/*
 * The same for any address. Code that sums packs divides rows by their shape only. So a view that does not begin at a
 * multiple of 16 bytes is summed in the same order, with the same bits, as one that does.
 */
template <typename T> __device__ __forceinline__ raw<pack<T>> load_raw_anywhere(const T *p)
{
    if (!(reinterpret_cast<uintptr_t>(p) & 15)) return load_raw<pack<T>>(p);
    return gather_raw<pack<T>, T>([=](int i) { return p[i]; });
}

template <typename T> __device__ __forceinline__ pack<T> load_pack_anywhere(const T *p)
{
    return load_raw_anywhere(p).elements();
}

template <typename T> __device__ __forceinline__ void store_pack(T *p, const pack<T> &v)
{
    *reinterpret_cast<pack<T> *>(p) = v;
}

static inline bool is_aligned_16(const void *p)
{
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

/* Sums and maxima over a warp, the same in every lane. The tree is that of the lanes' numbers. All lanes take part. */
template <typename W> __device__ __forceinline__ W warp_sum(W x)
{
    for (int d = 16; d > 0; d >>= 1) x += __shfl_xor_sync(0xffffffffu, x, d);
    return x;
}

template <typename W> __device__ __forceinline__ W warp_max(W x)
{
    for (int d = 16; d > 0; d >>= 1) {
        const W other = __shfl_xor_sync(0xffffffffu, x, d);
        x = x > other || x != x ? x : other; /* NaN stays */
    }
    return x;
}

/*
 * Over a block of whole warps, the same in every thread. `shared` has 32 elements and may be reused at once by the next
 * call: both barriers are needed.
 */
template <typename W> __device__ __forceinline__ W block_sum(W x, W *shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_sum(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = warp_sum(lane < warps ? shared[lane] : W(0));
    __syncthreads();
    return x;
}

template <typename W> __device__ __forceinline__ W block_max(W x, W *shared)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    x = warp_max(x);
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    x = warp_max(shared[lane < warps ? lane : 0]);
    __syncthreads();
    return x;
}

/* A ticket on the device: law 3 holds for seed and first_block(). */
struct device_ticket {
    uint64_t seed, offset;
    const uint64_t *base;

    __device__ __forceinline__ uint64_t first_block() const { return offset + *base; }
};

static inline device_ticket ticket_of(const rw_kernel *k)
{
    return { k->ticket.seed, k->ticket.offset, k->ticket_base };
}

/* For kernels that read indexes: the value and the place to write if one is out of range. */
struct index_guard {
    rw_error_flags *words;
    uint32_t serial;

    __device__ __forceinline__ void report() const { if (!words->bad_index) words->bad_index = serial + 1; }
};

static inline index_guard guard_of(const rw_kernel *k)
{
    return { static_cast<rw_error_flags *>(k->words_), k->serial };
}

/* Calls f with a value of the element type: f(float()), f(double()), f(bf16()), f(f16()). RW_ERR_UNSUPPORTED for
   others. */
template <typename F> static inline rw_status with_float_type(rw_dtype dtype, F f)
{
    switch (dtype) {
    case RW_F32: return f(float());
    case RW_F64: return f(double());
    case RW_BF16: return f(bf16());
    case RW_F16: return f(f16());
    default: return RW_ERR_UNSUPPORTED;
    }
}

static inline unsigned blocks_for(int64_t n, int64_t per_block)
{
    return static_cast<unsigned>((n + per_block - 1) / per_block);
}

#endif
