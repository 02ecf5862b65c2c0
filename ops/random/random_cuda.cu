/*
 * CUDA kernels of dropout, dropout_add, rand and randn. The random words are those of the CPU (philox.h), so masks and
 * uniform numbers are bit-identical to the CPU's. Normal numbers are evaluated in double with CUDA's logarithm (1 ulp)
 * and sines (2 ulp), where the CPU uses SLEEF's (1 and 0.5). Including the roundings of root and product, the two
 * differ by less than 6 ulp of double before they are rounded to the type.
 */
/* machine_code.py: stream dropout_kernel<{ANY}, false> */
/* machine_code.py: stream dropout_kernel<{ANY}, true>: share=2/3 */
/* machine_code.py: stream deviates_kernel<{ANY}, (true|false)>: load=0, share=0 */
/* machine_code.py: stream columns_kernel<summed, (float, 4|__half, 8|__nv_bfloat16, 8), dropped> */
#include "ops/random/random.h"
#include "ops/reduce/columns.cuh"

namespace {

constexpr int THREADS = 256;
constexpr int WORDS = 4; /* of one block */

/* Philox blocks that a thread processes together, so that their elements are 16 bytes or more. */
template <typename T> constexpr int blocks_of()
{
    return sizeof(T) == 2 ? 2 : 1;
}

template <typename T> struct alignas(16) group {
    static constexpr int size = WORDS * blocks_of<T>();
    T x[size];
};

template <typename T> __device__ __forceinline__ group<T> load_group(const T *p, int64_t n, bool whole)
{
    constexpr int size = group<T>::size, P = pack<T>::size;
    group<T> v;
#pragma unroll
    for (int from = 0; from < size; from += P) {
        const pack<T> part = (whole && n >= size ? load_raw<pack<T>>(p + from) : gather_raw<pack<T>, T>([=](int l) {
            return from + l < n ? p[from + l] : T{};
        })).elements();
#pragma unroll
        for (int l = 0; l < P; l++) v.x[from + l] = part.x[l];
    }
    return v;
}

template <typename T> __device__ __forceinline__ void store_group(T *p, int64_t n, const group<T> &v, bool whole)
{
    if (whole && n >= group<T>::size) {
        *reinterpret_cast<group<T> *>(p) = v;
        return;
    }
#pragma unroll
    for (int l = 0; l < group<T>::size; l++)
        if (l < n) p[l] = v.x[l];
}

/* Element l uses word l % WORDS of block l / WORDS, counted from `block`. */
template <typename T>
__device__ __forceinline__ void words_of(uint64_t seed, uint64_t block, uint32_t *word)
{
#pragma unroll
    for (int b = 0; b < blocks_of<T>(); b++) rw_philox(seed, block + static_cast<uint64_t>(b), word + b * WORDS);
}

/* Groups per thread. The result may overwrite the inputs. */
constexpr int GROUPS = 2;

/* residual: with ADDS only. */
template <typename T, bool ADDS>
__global__ void __launch_bounds__(THREADS)
    dropout_kernel(const T *x, const T *residual, T *y, int64_t numel, device_ticket ticket, uint32_t threshold,
                   double factor, bool whole)
{
    const int64_t first = static_cast<int64_t>(blockIdx.x) * (THREADS * GROUPS) + threadIdx.x;
    const uint64_t base = ticket.first_block();
    const wide<T> f = static_cast<wide<T>>(factor);
    group<T> v[GROUPS], r[ADDS ? GROUPS : 1];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int64_t i = (first + g * THREADS) * group<T>::size;
        v[g] = load_group(x + i, numel - i, whole);
        if (ADDS) r[g] = load_group(residual + i, numel - i, whole);
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int64_t at = first + g * THREADS, i = at * group<T>::size;
        uint32_t word[group<T>::size];
        words_of<T>(ticket.seed, base + static_cast<uint64_t>(at) * blocks_of<T>(), word);
#pragma unroll
        for (int l = 0; l < group<T>::size; l++) {
            const wide<T> kept = word[l] >= threshold ? widen(v[g].x[l]) * f : wide<T>(0);
            v[g].x[l] = narrow<T>(ADDS ? widen(r[g].x[l]) + kept : kept);
        }
        store_group(y + i, numel - i, v[g], whole);
    }
}

__device__ __forceinline__ void round_to(double z, double *to) { *to = z; }
__device__ __forceinline__ void round_to(double z, float *to) { *to = static_cast<float>(z); }
__device__ __forceinline__ void round_to(double z, bf16 *to) { *to = __float2bfloat16_rn(static_cast<float>(z)); }

__device__ __forceinline__ void round_to(double z, f16 *to) { *to = __float2half_rn(static_cast<float>(z)); }

/* Rounding to the type may give 1, which is outside of the interval: replaces it by the next number below. */
__device__ __forceinline__ void round_below_one(double z, double *to) { *to = z; }

__device__ __forceinline__ void round_below_one(double z, float *to)
{
    const float x = static_cast<float>(z);
    *to = x < 1 ? x : 0x1.fffffep-1f;
}

__device__ __forceinline__ void round_below_one(double z, bf16 *to)
{
    const float x = __bfloat162float(__float2bfloat16_rn(static_cast<float>(z)));
    *to = __float2bfloat16_rn(x < 1 ? x : 0x1.fep-1f);
}

__device__ __forceinline__ void round_below_one(double z, f16 *to)
{
    const float x = __half2float(__float2half_rn(static_cast<float>(z)));
    *to = __float2half_rn(x < 1 ? x : 0x1.ffcp-1f);
}

/* Box-Muller transform: words 2i and 2i + 1 give elements 2i (cosine) and 2i + 1 (sine). */
template <typename T> __device__ __forceinline__ void normal(const uint32_t *word, T *to)
{
#pragma unroll
    for (int l = 0; l < group<T>::size; l += 2) {
        const double u = (static_cast<double>(word[l]) + 1) * 0x1p-32; /* never 0 */
        const double v = static_cast<double>(word[l + 1]) * 0x1p-31;   /* in units of pi */
        const double r = sqrt(-2.0 * log(u));
        double s, c;
        sincospi(v, &s, &c);
        round_to(r * c, &to[l]);
        round_to(r * s, &to[l + 1]);
    }
}

template <typename T> __device__ __forceinline__ void uniform(const uint32_t *word, T *to)
{
#pragma unroll
    for (int l = 0; l < group<T>::size; l++) round_below_one(static_cast<double>(word[l]) * 0x1p-32, &to[l]);
}

template <typename T, bool NORMAL>
__global__ void __launch_bounds__(THREADS) deviates_kernel(T *y, int64_t numel, device_ticket ticket, bool whole)
{
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x, i = at * group<T>::size;
    if (i >= numel) return;
    uint32_t word[group<T>::size];
    group<T> v;
    words_of<T>(ticket.seed, ticket.first_block() + static_cast<uint64_t>(at) * blocks_of<T>(), word);
    if (NORMAL) normal(word, v.x);
    else uniform(word, v.x);
    store_group(y + i, numel - i, v, whole);
}

template <bool NORMAL> rw_status deviates(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    if (!numel) return RW_OK;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        T *const y = static_cast<T *>(k->out[0].data);
        RW_LAUNCH((deviates_kernel<T, NORMAL>), blocks_for(numel, group<T>::size * THREADS), THREADS, 0, k, y, numel,
                  ticket_of(k), is_aligned_16(y));
        return rw_cuda_launched(k);
    });
}

/* Launches dropout for the type of its input. */
template <bool ADDS> rw_status dropout(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    const double p = static_cast<const rw_dropout_attrs *>(k->attrs)->p;
    if (!numel) return RW_OK;
    return with_float_type(k->out[0].dtype, [&](auto type) {
        using T = decltype(type);
        const T *const x = static_cast<const T *>(k->in[0].data);
        const T *const residual = ADDS ? static_cast<const T *>(k->in[1].data) : x;
        T *const y = static_cast<T *>(k->out[0].data);
        const bool whole = is_aligned_16(x) && is_aligned_16(residual) && is_aligned_16(y);
        RW_LAUNCH((dropout_kernel<T, ADDS>), blocks_for(numel, group<T>::size * GROUPS * THREADS), THREADS, 0, k, x,
                  residual, y, numel, ticket_of(k), philox_threshold(p), 1 / (1 - p), whole);
        return rw_cuda_launched(k);
    });
}

} // namespace

extern "C" rw_status rw_dropout_cuda(const rw_kernel *k)
{
    return dropout<false>(k);
}

extern "C" rw_status rw_dropout_add_cuda(const rw_kernel *k)
{
    return dropout<true>(k);
}

/* ---- dropout of a gradient, and the sums of its columns ---- */

namespace {

/* Word i, selected without a computed address, so that the words stay in registers. */
__device__ __forceinline__ uint32_t one_of(const uint32_t *word, uint64_t i)
{
    return i < 2 ? (i ? word[1] : word[0]) : i == 2 ? word[2] : word[3];
}

/* Elements of dx, computed and stored while they are summed; the words are those of dropout_kernel. */
template <typename R, typename T, int N> struct dropped {
    using held = loaded<T, N>;
    static constexpr int ahead = LOADS, blocks = 3; /* the words need registers */
    const T *dy;
    T *dx;
    device_ticket ticket;
    uint32_t threshold;
    wide<T> factor;

    __device__ __forceinline__ held fetch(int64_t at) const
    {
        return load<R, T, N>(dy, at < 0 ? 0 : at, 0, at < 0 ? 0 : N);
    }

    __device__ __forceinline__ held take(const held &v, int64_t at) const
    {
        if (at < 0) return v;
        constexpr int BLOCKS = (N + WORDS - 1) / WORDS;
        const bundle<T, N> x = v.elements();
        const uint64_t element = static_cast<uint64_t>(at), block = ticket.first_block() + element / WORDS;
        uint32_t word[BLOCKS * WORDS];
        wide<T> kept[N];
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) rw_philox(ticket.seed, block + static_cast<uint64_t>(b), word + b * WORDS);
        if (N == 1) word[0] = one_of(word, element % WORDS); /* a pack begins with a block */
#pragma unroll
        for (int i = 0; i < N; i++) kept[i] = word[i] >= threshold ? widen(x.x[i]) * factor : wide<T>(0);
        const held result = rounded<T, N>(kept);
        store_result<T, N>(dx + at, result);
        return result;
    }
};

} // namespace

extern "C" size_t rw_dropout_columns_workspace_cuda(const rw_op_call *call)
{
    return computed_columns_workspace(call);
}

extern "C" rw_status rw_dropout_columns_cuda(const rw_kernel *k)
{
    const double p = static_cast<const rw_dropout_attrs *>(k->attrs)->p;
    return sum_computed_columns(k, 1, [=](auto type, auto n, const struct rw_reduce_cut &cut, const job &j, void *to) {
        using T = decltype(type);
        constexpr int N = decltype(n)::value;
        const dropped<summed<wide<T>>, T, N> x = { static_cast<const T *>(k->in[0].data),
                                                   static_cast<T *>(k->out[0].data), ticket_of(k),
                                                   philox_threshold(p), static_cast<wide<T>>(1 / (1 - p)) };
        launch_columns<summed, T, N, dropped>(k, cut, j, x, to);
    });
}

extern "C" rw_status rw_rand_cuda(const rw_kernel *k)
{
    return deviates<false>(k);
}

extern "C" rw_status rw_randn_cuda(const rw_kernel *k)
{
    return deviates<true>(k);
}
