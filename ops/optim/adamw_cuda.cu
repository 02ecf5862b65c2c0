/*
 * AdamW on CUDA. A launch updates as many parameters as its arguments hold, so there is no table of addresses in device
 * memory, and it can be captured and repeated. What changes from step to step is in the rows.
 */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/optim/adamw.h"
}

namespace {

constexpr int THREADS = 256;
constexpr int CHUNK = 8192; /* elements of a block */
constexpr int BATCH = 64;   /* parameters that the arguments of a launch hold */

struct update_batch {
    int32_t n;
    uint32_t chunks;
    rw_adamw_tensor tensor[BATCH];
    uint32_t end[BATCH]; /* chunks up to and with this one's */
    uint16_t row[BATCH];
};
static_assert(sizeof(update_batch) + sizeof(void *) <= 4096, "arguments of a launch");

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

/* P elements of a float32 or 16-bit parameter, whose gradient is of type G; the arithmetic is that of the CPU. Buffers
 * are of their own: aligned. */
template <typename T, typename G, int P>
__device__ __forceinline__ void update_floats(const rw_adamw_tensor &t, const rw_adamw_row &s, int64_t i)
{
    void *const to = sizeof(T) == 2 ? t.master : t.param;
    const few<G, P> g = get<G, P>(t.grad, i);
    few<float, P> m = get<float, P>(t.m, i), v = get<float, P>(t.v, i), x;
    few<T, P> narrowed;
    if (sizeof(T) == 2 && s.fresh) {
        narrowed = get<T, P>(t.param, i);
#pragma unroll
        for (int l = 0; l < P; l++) x.x[l] = widen(narrowed.x[l]);
    } else {
        x = get<float, P>(to, i);
    }
#pragma unroll
    for (int l = 0; l < P; l++) {
        const float d = widen(g.x[l]);
        m.x[l] = s.b1 * m.x[l] + s.c1 * d;
        v.x[l] = s.b2 * v.x[l] + s.c2 * d * d;
        x.x[l] = x.x[l] * s.decay - s.rate * m.x[l] / (sqrtf(v.x[l]) * s.root + s.eps32);
        narrowed.x[l] = narrow<T>(x.x[l]);
    }
    put(t.m, i, m);
    put(t.v, i, v);
    put(to, i, x);
    if (sizeof(T) == 2) put(t.param, i, narrowed);
}

template <typename T, typename G>
__device__ __forceinline__ void update_chunk(const rw_adamw_tensor &t, const rw_adamw_row &s, int64_t from, int n)
{
    constexpr int P = 4;
    const int whole = n / P * P;
#pragma unroll 2
    for (int i = threadIdx.x * P; i < whole; i += THREADS * P) update_floats<T, G, P>(t, s, from + i);
    if (whole + static_cast<int>(threadIdx.x) < n) update_floats<T, G, 1>(t, s, from + whole + threadIdx.x);
}

__device__ __forceinline__ void update_doubles(const rw_adamw_tensor &t, const rw_adamw_row &s, int64_t from, int n)
{
    double *const p = static_cast<double *>(t.param) + from, *const m = static_cast<double *>(t.m) + from;
    double *const v = static_cast<double *>(t.v) + from;
    const double *const grad = static_cast<const double *>(t.grad) + from;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        const double g = grad[i], first = s.beta1 * m[i] + (1 - s.beta1) * g;
        const double second = s.beta2 * v[i] + (1 - s.beta2) * g * g, x = p[i] * (1 - s.lr * s.weight_decay);
        m[i] = first;
        v[i] = second;
        p[i] = x - s.lr * (first / s.correction1) / (sqrt(second / s.correction2) + s.eps);
    }
}

__global__ void __launch_bounds__(THREADS)
    update_kernel(const rw_adamw_row *rows, const __grid_constant__ update_batch b)
{
    int low = 0, high = b.n - 1; /* the first whose chunks end behind this one */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (b.end[middle] <= blockIdx.x) low = middle + 1;
        else high = middle;
    }
    const rw_adamw_tensor t = b.tensor[low];
    const rw_adamw_row s = rows[b.row[low]];
    const int64_t from = static_cast<int64_t>(blockIdx.x - (low ? b.end[low - 1] : 0)) * CHUNK, rest = t.n - from;
    const int n = rest < CHUNK ? static_cast<int>(rest) : CHUNK;
    switch (t.dtype) {
    case RW_F64: update_doubles(t, s, from, n); break;
    case RW_BF16:
        if (t.grad_dtype == RW_F32) update_chunk<bf16, float>(t, s, from, n);
        else update_chunk<bf16, bf16>(t, s, from, n);
        break;
    case RW_F16:
        if (t.grad_dtype == RW_F32) update_chunk<f16, float>(t, s, from, n);
        else update_chunk<f16, f16>(t, s, from, n);
        break;
    default: update_chunk<float, float>(t, s, from, n);
    }
}

void update(const rw_kernel *k, const update_batch &b)
{
    const rw_adamw_row *const rows = static_cast<const rw_adamw_row *>(k->in[0].data);
    if (b.chunks) RW_LAUNCH(update_kernel, b.chunks, THREADS, 0, k, rows, b);
}

} // namespace

extern "C" rw_status rw_adamw_cuda(const rw_kernel *k)
{
    const int n = static_cast<int>(k->in[0].layout->dim[0]);
    int masters = 0;
    update_batch b = {};
    for (int i = 0; i < n; i++) {
        const rw_adamw_tensor t = rw_adamw_tensor_of(k, n, i, &masters);
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
