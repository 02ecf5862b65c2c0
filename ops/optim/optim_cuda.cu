/*
 * The optimizer on CUDA. All parameters are updated by one launch: a table of tensors and a map of chunks lie in device
 * memory for as long as the optimizer lives, and so does what changes from step to step, which prepare() uploads from
 * pinned memory. The launch can be captured and repeated.
 *
 * Clipping adds squares in double: a fixed number of blocks takes the chunks of all gradients in turn, and one block
 * adds their sums. Norm and factor stay on the device.
 */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "base/alloc.h"
#include "ops/optim/optim.h"
}

#include <cstring>

namespace {

constexpr int THREADS = 256;
constexpr int CHUNK = 8192; /* elements of a block's turn */

#define TRY(call)                                                   \
    do {                                                            \
        const rw_status try_ = rw_cuda_status(cuda, (call), #call); \
        if (try_) return try_;                                      \
    } while (0)

/* What RW_LAUNCH() asks for: only the stream counts. */
rw_kernel on_stream(void *device)
{
    rw_kernel k = {};
    k.device = device;
    k.stream = static_cast<const struct rw_cuda *>(device)->stream;
    return k;
}

/* ---- AdamW ---- */

struct step_entry {
    rw_optim_step d;
    rw_adamw_floats f;
};

struct chunk_entry {
    uint32_t tensor, index;
};

constexpr int RING = 4; /* steps that the host may be ahead of the device */

struct optimizer {
    rw_cuda *cuda;
    size_t n, chunks;
    rw_optim_tensor *tensors; /* these three: of the device */
    step_entry *steps;
    chunk_entry *map;
    step_entry *pinned; /* RING times n */
    cudaEvent_t taken[RING];
    uint64_t turn;
};

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

/* P elements of a float32 or 16-bit parameter; the arithmetic is that of the CPU. Buffers are of their own: aligned. */
template <typename T, int P>
__device__ __forceinline__ void update_floats(const rw_optim_tensor &t, const rw_adamw_floats &s, int64_t i)
{
    void *const to = t.master ? t.master : t.param;
    const few<T, P> g = get<T, P>(t.grad, i);
    few<float, P> m = get<float, P>(t.m, i), v = get<float, P>(t.v, i), x = get<float, P>(to, i);
    few<T, P> narrowed;
#pragma unroll
    for (int l = 0; l < P; l++) {
        const float d = widen(g.x[l]);
        m.x[l] = s.b1 * m.x[l] + s.c1 * d;
        v.x[l] = s.b2 * v.x[l] + s.c2 * d * d;
        x.x[l] = x.x[l] * s.decay - s.rate * m.x[l] / (sqrtf(v.x[l]) * s.root + s.eps);
        narrowed.x[l] = narrow<T>(x.x[l]);
    }
    put(t.m, i, m);
    put(t.v, i, v);
    put(to, i, x);
    if (t.master) put(t.param, i, narrowed);
}

template <typename T>
__device__ __forceinline__ void update_chunk(const rw_optim_tensor &t, const rw_adamw_floats &s, int64_t from, int n)
{
    constexpr int P = 4;
    const int whole = n / P * P;
#pragma unroll 2
    for (int i = threadIdx.x * P; i < whole; i += THREADS * P) update_floats<T, P>(t, s, from + i);
    if (whole + static_cast<int>(threadIdx.x) < n) update_floats<T, 1>(t, s, from + whole + threadIdx.x);
}

__device__ __forceinline__ void update_doubles(const rw_optim_tensor &t, const rw_optim_step &s, int64_t from, int n)
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
    update_kernel(const rw_optim_tensor *tensors, const step_entry *steps, const chunk_entry *map)
{
    const chunk_entry chunk = map[blockIdx.x];
    const rw_optim_tensor t = tensors[chunk.tensor];
    const step_entry s = steps[chunk.tensor];
    if (!s.d.due) return;
    const int64_t from = static_cast<int64_t>(chunk.index) * CHUNK, rest = t.n - from;
    const int n = rest < CHUNK ? static_cast<int>(rest) : CHUNK;
    switch (t.dtype) {
    case RW_F64: update_doubles(t, s.d, from, n); break;
    case RW_BF16: update_chunk<bf16>(t, s.f, from, n); break;
    case RW_F16: update_chunk<f16>(t, s.f, from, n); break;
    default: update_chunk<float>(t, s.f, from, n);
    }
}

size_t chunks_of(int64_t n)
{
    return static_cast<size_t>((n + CHUNK - 1) / CHUNK);
}

void close_optimizer(void *state)
{
    optimizer *const opt = static_cast<optimizer *>(state);
    cudaStreamSynchronize(opt->cuda->stream);
    for (int i = 0; i < RING; i++)
        if (opt->taken[i]) cudaEventDestroy(opt->taken[i]);
    cudaFreeHost(opt->pinned);
    cudaFree(opt->tensors);
    cudaFree(opt->steps);
    cudaFree(opt->map);
    cudaGetLastError();
    rw_free(opt);
}

template <typename T> cudaError_t allocate(T **ret, size_t n, size_t *bytes)
{
    void *p = nullptr;
    const cudaError_t error = cudaMalloc(&p, n * sizeof(T) + 1);
    if (!error) *ret = static_cast<T *>(p), *bytes += n * sizeof(T);
    return error;
}

rw_status upload_map(optimizer *opt, const rw_optim_tensor *tensors)
{
    rw_cuda *const cuda = opt->cuda;
    chunk_entry *const map = static_cast<chunk_entry *>(rw_malloc(opt->chunks * sizeof *map + 1));
    if (!map) return RW_ERR_MEMORY;
    size_t at = 0;
    for (size_t i = 0; i < opt->n; i++)
        for (size_t c = 0; c < chunks_of(tensors[i].n); c++)
            map[at++] = { static_cast<uint32_t>(i), static_cast<uint32_t>(c) };
    cudaError_t error = cudaSuccess;
    if (at) error = cudaMemcpyAsync(opt->map, map, at * sizeof *map, cudaMemcpyHostToDevice, cuda->stream);
    if (!error && opt->n)
        error = cudaMemcpyAsync(opt->tensors, tensors, opt->n * sizeof *tensors, cudaMemcpyHostToDevice, cuda->stream);
    if (!error) error = cudaStreamSynchronize(cuda->stream);
    rw_free(map);
    return rw_cuda_status(cuda, error, "upload of the optimizer's tables");
}

rw_status fill_optimizer(optimizer *opt, const rw_optim_tensor *tensors, size_t *bytes)
{
    rw_cuda *const cuda = opt->cuda;
    void *p = nullptr;
    for (size_t i = 0; i < opt->n; i++) opt->chunks += chunks_of(tensors[i].n);
    TRY(allocate(&opt->tensors, opt->n, bytes));
    TRY(allocate(&opt->steps, opt->n, bytes));
    TRY(allocate(&opt->map, opt->chunks, bytes));
    TRY(cudaMallocHost(&p, RING * opt->n * sizeof(step_entry) + 1));
    opt->pinned = static_cast<step_entry *>(p);
    for (int i = 0; i < RING; i++) TRY(cudaEventCreateWithFlags(&opt->taken[i], cudaEventDisableTiming));
    return upload_map(opt, tensors);
}

rw_status open_optimizer(void **ret_state, void *device, const rw_optim_tensor *tensors, size_t n, size_t *ret_bytes)
{
    optimizer *const opt = static_cast<optimizer *>(rw_calloc(1, sizeof *opt));
    size_t bytes = 0;
    if (!opt) return RW_ERR_MEMORY;
    opt->cuda = static_cast<rw_cuda *>(device);
    opt->n = n;
    const rw_status status = fill_optimizer(opt, tensors, &bytes);
    if (status) {
        close_optimizer(opt);
        return status;
    }
    *ret_bytes = bytes;
    *ret_state = opt;
    return RW_OK;
}

rw_status prepare_step(void *state, const rw_optim_step *steps)
{
    optimizer *const opt = static_cast<optimizer *>(state);
    rw_cuda *const cuda = opt->cuda;
    const uint64_t turn = opt->turn++ % RING;
    step_entry *const pinned = opt->pinned + turn * opt->n;
    if (!opt->n) return RW_OK;
    TRY(cudaEventSynchronize(opt->taken[turn])); /* its last contents have been copied */
    for (size_t i = 0; i < opt->n; i++) {
        pinned[i].d = steps[i];
        if (steps[i].due) pinned[i].f = rw_adamw_floats_of(&steps[i]);
    }
    TRY(cudaMemcpyAsync(opt->steps, pinned, opt->n * sizeof *pinned, cudaMemcpyHostToDevice, cuda->stream));
    TRY(cudaEventRecord(opt->taken[turn], cuda->stream));
    return RW_OK;
}

rw_status update_all(void *state, const rw_optim_tensor *, const rw_optim_step *, size_t, int)
{
    optimizer *const opt = static_cast<optimizer *>(state);
    const rw_kernel k = on_stream(opt->cuda);
    if (!opt->chunks) return RW_OK;
    RW_LAUNCH(update_kernel, static_cast<unsigned>(opt->chunks), THREADS, 0, &k, opt->tensors, opt->steps, opt->map);
    return rw_cuda_launched(&k);
}

template <typename T> __global__ void __launch_bounds__(THREADS) widen_kernel(float *to, const T *from, int64_t n)
{
    constexpr int P = 4;
    const int64_t i = (static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x) * P;
    for (int64_t l = i; l < i + P && l < n; l++) to[l] = ::widen(from[l]);
}

rw_status widen_all(void *device, float *to, const void *from, rw_dtype dtype, int64_t n)
{
    const rw_kernel k = on_stream(device);
    if (!n) return RW_OK;
    if (dtype == RW_F16)
        RW_LAUNCH(widen_kernel<f16>, blocks_for(n, 4 * THREADS), THREADS, 0, &k, to, static_cast<const f16 *>(from), n);
    else
        RW_LAUNCH(widen_kernel<bf16>, blocks_for(n, 4 * THREADS), THREADS, 0, &k, to, static_cast<const bf16 *>(from),
                  n);
    return rw_cuda_launched(&k);
}

/* ---- clipping ---- */

constexpr int NORM_BLOCKS = RW_CUDA_NORM_SUMS; /* whatever the device: they are the cut of the sum */
constexpr int BATCH = 64;                      /* gradients that the arguments of a launch hold */

struct gradient_batch {
    int32_t n;
    bool first;
    int64_t chunks;
    void *data[BATCH];
    int64_t numel[BATCH], end[BATCH]; /* end: chunks up to and with this one's */
    uint8_t dtype[BATCH];
};

/* Calls f(data, dtype, first element, elements) for each chunk of this block, in order. */
template <typename F> __device__ __forceinline__ void for_chunks(const gradient_batch &b, F f)
{
    int i = 0;
    for (int64_t c = blockIdx.x; c < b.chunks; c += gridDim.x) {
        while (b.end[i] <= c) i++;
        const int64_t from = (c - (i ? b.end[i - 1] : 0)) * CHUNK, rest = b.numel[i] - from;
        f(b.data[i], b.dtype[i], from, rest < CHUNK ? static_cast<int>(rest) : CHUNK);
    }
}

template <typename T> __device__ __forceinline__ double squares(const void *data, int64_t from, int n)
{
    constexpr int P = pack<T>::size;
    const T *const x = static_cast<const T *>(data) + from;
    const int whole = n / P * P;
    double sum = 0;
#pragma unroll 4
    for (int i = threadIdx.x * P; i < whole; i += THREADS * P) {
        const pack<T> v = load_pack(x + i);
#pragma unroll
        for (int l = 0; l < P; l++) sum += static_cast<double>(widen(v.x[l])) * static_cast<double>(widen(v.x[l]));
    }
    const int last = whole + static_cast<int>(threadIdx.x);
    if (last < n) sum += static_cast<double>(widen(x[last])) * static_cast<double>(widen(x[last]));
    return sum;
}

__global__ void __launch_bounds__(THREADS) squares_kernel(double *sums, const __grid_constant__ gradient_batch b)
{
    __shared__ double shared[32];
    double sum = 0;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        switch (dtype) {
        case RW_F64: sum += squares<double>(data, from, n); break;
        case RW_BF16: sum += squares<bf16>(data, from, n); break;
        case RW_F16: sum += squares<f16>(data, from, n); break;
        default: sum += squares<float>(data, from, n);
        }
    });
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) sums[blockIdx.x] = b.first ? sum : sums[blockIdx.x] + sum;
}

/* After the sums: the norm, and what the gradients are multiplied by, 1 when they stay as they are. */
__global__ void __launch_bounds__(NORM_BLOCKS) norm_kernel(double *sums, double most)
{
    __shared__ double shared[32];
    const double norm = sqrt(block_sum(sums[threadIdx.x], shared));
    if (threadIdx.x) return;
    sums[NORM_BLOCKS] = norm;
    sums[NORM_BLOCKS + 1] = norm > most ? most / norm : 1;
}

template <typename T> __device__ __forceinline__ void scale(void *data, int64_t from, int n, double factor)
{
    constexpr int P = pack<T>::size;
    T *const x = static_cast<T *>(data) + from;
    const int whole = n / P * P;
    const wide<T> f = static_cast<wide<T>>(factor);
#pragma unroll 2
    for (int i = threadIdx.x * P; i < whole; i += THREADS * P) {
        pack<T> v = load_pack(x + i);
#pragma unroll
        for (int l = 0; l < P; l++) v.x[l] = narrow<T>(widen(v.x[l]) * f);
        store_pack(x + i, v);
    }
    const int last = whole + static_cast<int>(threadIdx.x);
    if (last < n) x[last] = narrow<T>(widen(x[last]) * f);
}

__global__ void __launch_bounds__(THREADS)
    scale_kernel(const double *sums, double most, const __grid_constant__ gradient_batch b)
{
    const double factor = sums[NORM_BLOCKS + 1];
    if (!(sums[NORM_BLOCKS] > most)) return;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        switch (dtype) {
        case RW_F64: scale<double>(data, from, n, factor); break;
        case RW_BF16: scale<bf16>(data, from, n, factor); break;
        case RW_F16: scale<f16>(data, from, n, factor); break;
        default: scale<float>(data, from, n, factor);
        }
    });
}

/* Gradients from number `from` on, as many as fit. */
gradient_batch batch_of(const rw_clip_tensor *gradients, size_t n, size_t from)
{
    gradient_batch b = {};
    b.first = from == 0;
    for (size_t i = from; i < n && b.n < BATCH; i++, b.n++) {
        b.chunks += static_cast<int64_t>(chunks_of(gradients[i].n));
        b.data[b.n] = gradients[i].data;
        b.numel[b.n] = gradients[i].n;
        b.end[b.n] = b.chunks;
        b.dtype[b.n] = static_cast<uint8_t>(gradients[i].dtype);
    }
    return b;
}

rw_status clip_all(void *device, const rw_clip_tensor *gradients, size_t n, double max_norm, double *ret_norm, int)
{
    rw_cuda *const cuda = static_cast<rw_cuda *>(device);
    const rw_kernel k = on_stream(cuda);
    for (size_t from = 0; from == 0 || from < n; from += BATCH)
        RW_LAUNCH(squares_kernel, NORM_BLOCKS, THREADS, 0, &k, cuda->norm, batch_of(gradients, n, from));
    RW_LAUNCH(norm_kernel, 1, NORM_BLOCKS, 0, &k, cuda->norm, max_norm);
    for (size_t from = 0; from < n; from += BATCH)
        RW_LAUNCH(scale_kernel, NORM_BLOCKS, THREADS, 0, &k, cuda->norm, max_norm, batch_of(gradients, n, from));
    const rw_status status = rw_cuda_launched(&k);
    if (status || !ret_norm) return status;
    double norm;
    TRY(cudaMemcpyAsync(&norm, cuda->norm + NORM_BLOCKS, sizeof norm, cudaMemcpyDeviceToHost, cuda->stream));
    TRY(cudaStreamSynchronize(cuda->stream));
    *ret_norm = norm;
    return RW_OK;
}

} // namespace

extern "C" const rw_optim_fns rw_optim_cuda = { open_optimizer, close_optimizer, prepare_step,
                                                update_all,     widen_all,       clip_all };
