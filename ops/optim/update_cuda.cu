/*
 * CUDA kernels of optimizer updates. A launch updates as many parameters as its arguments hold, so there is no table of
 * addresses in device memory, and the launch can be captured in a graph. Values that change from step to step are in
 * the rows.
 */
/* AdamW: four reads, three writes, some of half the bytes; Lion and SGD: three and two; averages: two and one. */
/* machine_code.py: stream update_kernel<0, float>: share=4/7 */
/* machine_code.py: stream update_kernel<0, __nv_bfloat16>: share=3/5 */
/* machine_code.py: stream update_kernel<[12], float>: share=3/5 */
/* machine_code.py: stream update_kernel<3, float>: share=2/3 */
/* machine_code.py: stream update_seen_kernel<0, float>: share=4/7 */
/* machine_code.py: stream update_seen_kernel<0, __nv_bfloat16>: share=3/5 */
/* machine_code.py: stream update_seen_kernel<[12], float>: share=3/5 */
/* machine_code.py: add_sums_kernel: four numbers for each chunk of 8192 elements */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/optim/stochastic_rounding.h"
#include "ops/optim/update.h"
}
#define DOUBLES_INLINE __device__ __forceinline__
#include "ops/optim/update_doubles.h"

#include <cstring>
#include <type_traits>

namespace
{

constexpr int THREADS = 256;
constexpr int CHUNK = 8192; /* elements of a block */
constexpr int BATCH = 64;   /* parameters per launch, limited by the size of kernel arguments */

struct update_batch {
    int32_t n;
    uint32_t chunks;
    rw_update_tensor tensor[BATCH];
    uint32_t end[BATCH]; /* number of chunks up to and including this parameter's */
    uint16_t row[BATCH];
};
static_assert(sizeof(update_batch) + 3 * sizeof(void *) <= 4096, "arguments of a launch");

template <typename T, int P> struct alignas(sizeof(T) * P) few {
    T x[P];
};

template <typename T, int P> __device__ __forceinline__ few<T, P> get(const void *p, int64_t i)
{
    return *reinterpret_cast<const few<T, P> *>(static_cast<const T *>(p) + i);
}

template <typename T, int P> __device__ __forceinline__ void put(void *p, int64_t i, const few<T, P> &v)
{
    *reinterpret_cast<few<T, P> *>(static_cast<T *>(p) + i) = v;
}

__device__ __forceinline__ float sign_of(float x)
{
    return x > 0 ? 1.0f : x < 0 ? -1.0f : x;
}

#define V float
#define INLINE __device__ __forceinline__
#define SQRT(x) sqrtf(x)
#define SIGN(x) sign_of(x)
#include "ops/optim/update_tmpl.h"

/* Rounds x to bfloat16 stochastically, with 16 bits of noise; returned as float. */
__device__ __forceinline__ float rounded_by_chance(float x, uint32_t noise)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits += noise;
    if (x != x || (bits & RW_NOISE_EXPONENT) == RW_NOISE_EXPONENT) return x;
    bits &= RW_NOISE_KEPT;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* The random words of P elements from i on. */
template <int P> __device__ __forceinline__ few<uint32_t, P> words_of(const rw_update_row &s, int64_t i)
{
    uint32_t words[4];
    few<uint32_t, P> w;
    rw_noise_of(&s, (s.from + static_cast<uint64_t>(i)) / 4, words);
#pragma unroll
    for (int l = 0; l < P; l++) {
        const int at = P == 4 ? l : static_cast<int>(i % 4);
        w.x[l] = at == 0 ? words[0] : at == 1 ? words[1] : at == 2 ? words[2] : words[3];
    }
    return w;
}

template <typename M> constexpr bool are_narrow = std::is_same<M, bf16>::value;

/* A second moment as it is stored. */
template <typename M> __device__ __forceinline__ M stored_moment(float b, uint32_t word)
{
    if constexpr (are_narrow<M>) return narrow<M>(rounded_by_chance(b, word & RW_NOISE_OF_MOMENT));
    else return b;
}

/* The sums of a thread over its elements (enum rw_update_sum), or none. */
struct unseen {
    __device__ __forceinline__ void see(double, double, double)
    {
    }
};

struct seen {
    double x[RW_SUM_ELEMENTS] = {};
    __device__ __forceinline__ void see(double g, double before, double after)
    {
        x[RW_SUM_GRADIENT] += g * g;
        x[RW_SUM_WEIGHT] += after * after;
        x[RW_SUM_CHANGE] += (after - before) * (after - before);
        x[RW_SUM_ZEROS] += g == 0;
    }
};

/* P elements of a bfloat16 parameter without a master copy. */
template <int R, typename M, typename T, typename G, int P, typename S>
__device__ __forceinline__ void update_noisy(const rw_update_tensor &t, const rw_update_row &s, int64_t i, S &sums)
{
    const bool with_a = R != RW_UPDATE_SGD || t.state[0];
    constexpr bool with_b = R == RW_UPDATE_ADAM;
    const few<G, P> g = get<G, P>(t.grad, i);
    few<T, P> x = get<T, P>(t.param, i);
    few<M, P> a = {}, b = {};
    if (with_a) a = get<M, P>(t.state[0], i);
    if (with_b) b = get<M, P>(t.state[1], i);
    const few<uint32_t, P> words = words_of<P>(s, i);
#pragma unroll
    for (int l = 0; l < P; l++) {
        float m = widen(a.x[l]), v = widen(b.x[l]);
        const float y = rw_update_floats(R, &s, widen(x.x[l]), widen(g.x[l]), &m, &v, with_a);
        const T to = narrow<T>(rounded_by_chance(y, words.x[l] >> 16));
        a.x[l] = narrow<M>(m), b.x[l] = stored_moment<M>(v, words.x[l]);
        sums.see(widen(g.x[l]), widen(x.x[l]), widen(to));
        x.x[l] = to;
    }
    if (with_a) put(t.state[0], i, a);
    if (with_b) put(t.state[1], i, b);
    put(t.param, i, x);
}

/* P elements of a float32 or 16-bit parameter with a gradient of type G and states of type M; the same arithmetic as on
   the CPU. Every buffer is a separate allocation, and so aligned. */
template <int R, typename M, typename T, typename G, int P, typename S>
__device__ __forceinline__ void update_floats(const rw_update_tensor &t, const rw_update_row &s, int64_t i, S &sums)
{
    const bool with_a = R != RW_UPDATE_AVERAGE && (R != RW_UPDATE_SGD || t.state[0]);
    constexpr bool with_b = R == RW_UPDATE_ADAM;
    void *const to = sizeof(T) == 2 ? t.master : t.param;
    const few<G, P> g = get<G, P>(t.grad, i);
    few<float, P> x;
    few<M, P> a = {}, b = {};
    few<T, P> narrowed;
    few<uint32_t, P> words = {};
    if (with_a) a = get<M, P>(t.state[0], i);
    if (with_b) b = get<M, P>(t.state[1], i);
    if (sizeof(T) == 2 && s.fresh) {
        narrowed = get<T, P>(t.param, i);
#pragma unroll
        for (int l = 0; l < P; l++) x.x[l] = widen(narrowed.x[l]);
    } else {
        x = get<float, P>(to, i);
    }
    if (are_narrow<M>) words = words_of<P>(s, i);
#pragma unroll
    for (int l = 0; l < P; l++) {
        const float before = x.x[l];
        float m = widen(a.x[l]), v = widen(b.x[l]);
        x.x[l] = rw_update_floats(R, &s, before, widen(g.x[l]), &m, &v, with_a);
        a.x[l] = narrow<M>(m), b.x[l] = stored_moment<M>(v, words.x[l]);
        sums.see(widen(g.x[l]), before, x.x[l]);
        narrowed.x[l] = narrow<T>(x.x[l]);
    }
    if (with_a) put(t.state[0], i, a);
    if (with_b) put(t.state[1], i, b);
    put(to, i, x);
    if (sizeof(T) == 2) put(t.param, i, narrowed);
}

/* Updates a chunk of a parameter. */
template <int R, typename M, typename T, typename G, typename S>
__device__ __forceinline__ void update_chunk(const rw_update_tensor &t, const rw_update_row &s, int64_t from, int n,
                                             S &sums)
{
    constexpr int P = 4;
    const int whole = n / P * P;
    if constexpr (R != RW_UPDATE_AVERAGE && std::is_same<T, bf16>::value) {
        if (!t.master) {
            for (int i = threadIdx.x * P; i < whole; i += THREADS * P)
                update_noisy<R, M, T, G, P>(t, s, from + i, sums);
            const int rest = whole + static_cast<int>(threadIdx.x);
            if (rest < n) update_noisy<R, M, T, G, 1>(t, s, from + rest, sums);
            return;
        }
    }
#pragma unroll 2
    for (int i = threadIdx.x * P; i < whole; i += THREADS * P) update_floats<R, M, T, G, P>(t, s, from + i, sums);
    if (whole + static_cast<int>(threadIdx.x) < n) update_floats<R, M, T, G, 1>(t, s, from + whole + threadIdx.x, sums);
}

template <int R, typename S>
__device__ __forceinline__ void update_doubles(const rw_update_tensor &t, const rw_update_row &s, int64_t from, int n,
                                               S &sums)
{
    double *const p = static_cast<double *>(t.param), *const a = static_cast<double *>(t.state[0]);
    double *const b = static_cast<double *>(t.state[1]);
    const double *const grad = static_cast<const double *>(t.grad);
    for (int64_t i = from + threadIdx.x; i < from + n; i += THREADS) {
        const double before = p[i];
        p[i] = rw_update_doubles(R, &s, before, grad[i], a ? a + i : nullptr, b ? b + i : nullptr);
        sums.see(grad[i], before, p[i]);
    }
}

/* A 16-bit parameter, by the types of gradients that it can have. */
template <int R, typename M, typename T, typename S>
__device__ __forceinline__ void update_half(const rw_update_tensor &t, const rw_update_row &s, int64_t from, int n,
                                            S &sums)
{
    if (t.grad_dtype == RW_F32) update_chunk<R, M, T, float>(t, s, from, n, sums);
    else update_chunk<R, M, T, T>(t, s, from, n, sums);
}

template <int R, typename M, typename S>
__device__ __forceinline__ void update_typed(const rw_update_tensor &t, const rw_update_row &s, int64_t from, int n,
                                             S &sums)
{
    if (t.dtype == RW_F64) update_doubles<R>(t, s, from, n, sums);
    else if (t.dtype == RW_BF16) update_half<R, M, bf16>(t, s, from, n, sums);
    else if (t.dtype == RW_F16) update_half<R, M, f16>(t, s, from, n, sums);
    else if (R == RW_UPDATE_AVERAGE && t.grad_dtype == RW_BF16) update_chunk<R, M, float, bf16>(t, s, from, n, sums);
    else if (R == RW_UPDATE_AVERAGE && t.grad_dtype == RW_F16) update_chunk<R, M, float, f16>(t, s, from, n, sums);
    else update_chunk<R, M, float, float>(t, s, from, n, sums);
}

__device__ __forceinline__ int size_of(rw_dtype dtype)
{
    return dtype == RW_F64 ? 8 : dtype == RW_F32 ? 4 : 2;
}

/* Updates the chunk of this block. */
template <int R, typename M, typename S>
__device__ __forceinline__ void update_own(const rw_update_row *rows, const update_batch &b, S &sums)
{
    int low = 0, high = b.n - 1; /* the first whose chunks end after this one */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (b.end[middle] <= blockIdx.x) low = middle + 1;
        else high = middle;
    }
    rw_update_tensor t = b.tensor[low];
    const rw_update_row s = rows[b.row[low]];
    if (s.skips) return;
    t.param = static_cast<char *>(t.param) + s.from * size_of(t.dtype);
    t.grad = static_cast<const char *>(t.grad) + s.from * size_of(t.grad_dtype);
    const int64_t from = static_cast<int64_t>(blockIdx.x - (low ? b.end[low - 1] : 0)) * CHUNK, rest = t.n - from;
    const int n = rest < CHUNK ? static_cast<int>(rest) : CHUNK;
    update_typed<R, M>(t, s, from, n, sums);
}

template <int R, typename M>
__global__ void __launch_bounds__(THREADS)
    update_kernel(const rw_update_row *rows, const __grid_constant__ update_batch b)
{
    unseen none;
    update_own<R, M>(rows, b, none);
}

/* Stores the sums of each chunk, in the order of the launch. */
template <int R, typename M>
__global__ void __launch_bounds__(THREADS)
    update_seen_kernel(double *parts, const rw_update_row *rows, const __grid_constant__ update_batch b)
{
    __shared__ double shared[32];
    seen sums;
    update_own<R, M>(rows, b, sums);
#pragma unroll
    for (int j = 0; j < RW_SUM_ELEMENTS; j++) {
        const double sum = block_sum(sums.x[j], shared);
        if (threadIdx.x == 0) parts[blockIdx.x * RW_SUM_ELEMENTS + j] = sum;
    }
}

/* One block adds the sums of a parameter. */
__global__ void __launch_bounds__(THREADS) add_sums_kernel(double *sums, const double *parts, const rw_update_row *rows,
                                                           const __grid_constant__ update_batch b)
{
    __shared__ double shared[32];
    const uint32_t first = blockIdx.x ? b.end[blockIdx.x - 1] : 0, end = b.end[blockIdx.x], row = b.row[blockIdx.x];
    double *const to = sums + static_cast<int64_t>(row) * RW_UPDATE_SUMS;
    for (int j = 0; j < RW_SUM_ELEMENTS; j++) {
        double sum = 0;
        for (uint32_t c = first + threadIdx.x; c < end; c += THREADS) sum += parts[c * RW_SUM_ELEMENTS + j];
        sum = block_sum(sum, shared);
        if (threadIdx.x == 0) to[j] = sum;
    }
    if (threadIdx.x == 0) to[RW_SUM_ELEMENTS] = rows[row].skips ? 0 : static_cast<double>(b.tensor[blockIdx.x].n);
}

template <int R, typename M> void launch(const rw_kernel *k, const update_batch &b, double *sums)
{
    const rw_update_row *const rows = static_cast<const rw_update_row *>(k->in[0].data);
    if constexpr (R != RW_UPDATE_AVERAGE) {
        if (sums) {
            double *const parts = static_cast<double *>(k->workspace);
            RW_LAUNCH((update_seen_kernel<R, M>), b.chunks, THREADS, 0, k, parts, rows, b);
            RW_LAUNCH(add_sums_kernel, b.n, THREADS, 0, k, sums, parts, rows, b);
            return;
        }
    }
    RW_LAUNCH((update_kernel<R, M>), b.chunks, THREADS, 0, k, rows, b);
}

void update(const rw_kernel *k, const update_batch &b)
{
    const rw_update_attrs a = rw_update_attrs_of(k);
    double *const sums = rw_update_sums_of(k);
    if (!b.chunks) return;
    switch (a.rule) {
    case RW_UPDATE_ADAM:
        if (a.moments == RW_BF16) launch<RW_UPDATE_ADAM, bf16>(k, b, sums);
        else launch<RW_UPDATE_ADAM, float>(k, b, sums);
        break;
    case RW_UPDATE_LION: launch<RW_UPDATE_LION, float>(k, b, sums); break;
    case RW_UPDATE_SGD: launch<RW_UPDATE_SGD, float>(k, b, sums); break;
    default: launch<RW_UPDATE_AVERAGE, float>(k, b, sums);
    }
}

} // namespace

/* The sums of all chunks of a launch, at most as many as in one launch for all parameters. */
extern "C" size_t rw_update_workspace_cuda(const rw_op_call *call)
{
    const rw_update_attrs *const a = static_cast<const rw_update_attrs *>(call->attrs);
    const int n = static_cast<int>(call->in[0].layout->dim[0]);
    size_t chunks = 0;
    for (int i = 0; a->sums && i < n; i++)
        chunks += static_cast<size_t>((call->in[rw_update_param(n, i)].layout->numel + CHUNK - 1) / CHUNK);
    return chunks * RW_SUM_ELEMENTS * sizeof(double);
}

/* Launches the updates of all parameters in batches, and their sums if requested. */
extern "C" rw_status rw_update_cuda(const rw_kernel *k)
{
    const int n = rw_update_n(k);
    double *const sums = rw_update_sums_of(k);
    if (sums) {
        const size_t bytes = static_cast<size_t>(n) * RW_UPDATE_SUMS * sizeof *sums;
        const cudaError_t cleared = cudaMemsetAsync(sums, 0, bytes, rw_stream(k));
        if (cleared) return rw_cuda_status(static_cast<rw_cuda *>(k->device), cleared, "cudaMemsetAsync");
    }
    const bool all = rw_update_all_have_masters(k, n);
    int masters = 0;
    update_batch b = {};
    for (int i = 0; i < n; i++) {
        const rw_update_tensor t = rw_update_tensor_of(k, n, i, all, &masters);
        if (!t.grad || !t.n) continue;
        b.chunks += static_cast<uint32_t>((t.n + CHUNK - 1) / CHUNK);
        b.tensor[b.n] = t;
        b.end[b.n] = b.chunks;
        b.row[b.n++] = static_cast<uint16_t>(i);
        if (b.n < BATCH) continue;
        update(k, b);
        b.n = 0;
        b.chunks = 0;
    }
    update(k, b);
    return rw_cuda_launched(k);
}
