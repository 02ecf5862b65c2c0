/*
 * CUDA kernels of gradient clipping. Squares are summed in double: for each chunk of a gradient, then for each
 * gradient, then for all. So the norm is the same whether gradients are processed together or one by one. Norm and
 * factor stay on the device.
 */
/* machine_code.py: stream squares_kernel: store=0, share=1 */
/* machine_code.py: stream scale(_one)?_kernel */
/* machine_code.py: (norm|factor|note)_kernel: one block */
/* machine_code.py: add_squares_kernel: a number for each chunk of 8192 elements */
#include "ops/optim/clip.h"
#include "ops/optim/multi_tensor_apply.cuh"
#include "ops/optim/update_ops.h"

namespace {

constexpr int THREADS = GRADIENT_THREADS, BLOCKS = GRADIENT_BLOCKS;

/* A thread's part of the sum of squares of a chunk. */
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

/* The sums of chunks, one block each. */
__global__ void __launch_bounds__(THREADS) squares_kernel(double *parts, const __grid_constant__ gradient_batch b)
{
    __shared__ double shared[32];
    double sum = 0;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        switch (dtype) {
        case RW_F64: sum = squares<double>(data, from, n); break;
        case RW_BF16: sum = squares<bf16>(data, from, n); break;
        case RW_F16: sum = squares<f16>(data, from, n); break;
        default: sum = squares<float>(data, from, n);
        }
    });
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

/* The sums of gradients over their chunks, one block each. noted: recorded sums, that of input 3 first; or NULL. */
__global__ void __launch_bounds__(THREADS)
    add_squares_kernel(double *sums, double *noted, const double *parts, const __grid_constant__ gradient_batch b)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int64_t c = (blockIdx.x ? b.end[blockIdx.x - 1] : 0) + threadIdx.x; c < b.end[blockIdx.x]; c += THREADS)
        sum += parts[c];
    sum = block_sum(sum, shared);
    if (threadIdx.x) return;
    sums[blockIdx.x] = sum;
    if (noted) noted[b.input[blockIdx.x] - 3] = sum;
}

/* Over all gradients: the norm, and the factor of the gradients, 1 if they are unchanged. */
__global__ void __launch_bounds__(THREADS)
    norm_kernel(double *ret_norm, double *ret_factor, const double *sums, int n, const double *limit,
                bool keeps_nonfinite)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) sum += sums[i];
    const double norm = sqrt(block_sum(sum, shared));
    if (threadIdx.x) return;
    *ret_norm = norm;
    *ret_factor = rw_clip_factor(norm, *limit, keeps_nonfinite);
}

struct sum_batch {
    int32_t n;
    bool first, last;
    const double *sum[THREADS];
};

/* The same for sums in separate buffers, a limited number per launch; `room` holds the sums of earlier launches. */
__global__ void __launch_bounds__(THREADS)
    factor_kernel(double *ret_factor, double *ret_norm, double *room, const double *limit,
                  const __grid_constant__ sum_batch b)
{
    __shared__ double shared[32];
    double sum = b.first ? 0 : room[threadIdx.x];
    if (static_cast<int>(threadIdx.x) < b.n) sum += *b.sum[threadIdx.x];
    if (!b.last) {
        room[threadIdx.x] = sum;
        return;
    }
    const double norm = sqrt(block_sum(sum, shared));
    if (threadIdx.x) return;
    *ret_norm = norm;
    *ret_factor = rw_clip_factor(norm, *limit, false);
}

__global__ void __launch_bounds__(THREADS)
    note_kernel(double *ret_norm, double *noted, const double *norm, const __grid_constant__ sum_batch b)
{
    if (static_cast<int>(threadIdx.x) < b.n) noted[threadIdx.x] = *b.sum[threadIdx.x];
    if (threadIdx.x == 0) *ret_norm = *norm;
}

/* Multiplies a chunk by a factor. */
template <typename T>
__device__ __forceinline__ void scale(void *to, const void *data, int64_t from, int n, double factor,
                                      bool keeps = false)
{
    constexpr int P = pack<T>::size;
    const T *const x = static_cast<const T *>(data) + from;
    T *const y = static_cast<T *>(to) + from;
    const int whole = n / P * P;
    const wide<T> f = static_cast<wide<T>>(factor);
#pragma unroll 2
    for (int i = threadIdx.x * P; i < whole; i += THREADS * P) {
        pack<T> v = load_pack(x + i);
#pragma unroll
        for (int l = 0; l < P; l++) v.x[l] = keeps ? v.x[l] : narrow<T>(widen(v.x[l]) * f);
        store_pack(y + i, v);
    }
    const int last = whole + static_cast<int>(threadIdx.x);
    if (last < n) y[last] = keeps ? x[last] : narrow<T>(widen(x[last]) * f);
}

__global__ void __launch_bounds__(THREADS)
    scale_kernel(const double *the_factor, const __grid_constant__ gradient_batch b)
{
    const double factor = *the_factor;
    if (factor == 1) return;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        switch (dtype) {
        case RW_F64: scale<double>(data, data, from, n, factor); break;
        case RW_BF16: scale<bf16>(data, data, from, n, factor); break;
        case RW_F16: scale<f16>(data, data, from, n, factor); break;
        default: scale<float>(data, data, from, n, factor);
        }
    });
}

/* One gradient, in place or to another buffer. A factor of 1 leaves even a NaN unchanged. */
__global__ void __launch_bounds__(THREADS)
    scale_one_kernel(void *to, const double *the_factor, const __grid_constant__ gradient_batch b)
{
    const double factor = *the_factor;
    const bool keeps = factor == 1;
    if (keeps && to == b.data[0]) return;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        switch (dtype) {
        case RW_F64: scale<double>(to, data, from, n, factor, keeps); break;
        case RW_BF16: scale<bf16>(to, data, from, n, factor, keeps); break;
        case RW_F16: scale<f16>(to, data, from, n, factor, keeps); break;
        default: scale<float>(to, data, from, n, factor, keeps);
        }
    });
}

/* The sums of a batch's gradients. */
void add_squares(const rw_kernel *k, double *sums, double *noted, double *parts, const gradient_batch &b)
{
    if (b.chunks) RW_LAUNCH(squares_kernel, static_cast<unsigned>(b.chunks), THREADS, 0, k, parts, b);
    if (b.n) RW_LAUNCH(add_squares_kernel, b.n, THREADS, 0, k, sums, noted, parts, b);
}

} // namespace

/* The factor; the sum of each gradient; and those of a launch's chunks, at most as many as in one launch for all. */
extern "C" size_t rw_clip_grad_norm_workspace_cuda(const rw_op_call *call)
{
    size_t numbers = 1 + static_cast<size_t>(call->n_inputs);
    for (int i = 3; i < call->n_inputs; i++) numbers += chunks_of(call->in[i].layout);
    return numbers * sizeof(double);
}

/* Sums the squares of all gradients, computes the factor, and multiplies the gradients. */
extern "C" rw_status rw_clip_grad_norm_cuda(const rw_kernel *k)
{
    const double *const limit = static_cast<const double *>(k->in[0].data);
    double *const norm = static_cast<double *>(k->out[0].data), *const factor = static_cast<double *>(k->workspace);
    double *const sums = factor + 1, *const parts = sums + k->n_inputs;
    double *const noted = static_cast<double *>(k->out[1].data);
    const size_t bytes = static_cast<size_t>(k->n_inputs - 3) * sizeof *noted;
    const cudaError_t cleared = bytes ? cudaMemsetAsync(noted, 0, bytes, rw_stream(k)) : cudaSuccess;
    if (cleared) return rw_cuda_status(static_cast<rw_cuda *>(k->device), cleared, "cudaMemsetAsync");
    int n = 0;
    for (int next = 3; next < k->n_inputs;) {
        const gradient_batch b = next_batch(k, &next);
        add_squares(k, sums + n, noted, parts, b);
        n += b.n;
    }
    const rw_clip_attrs *const a = static_cast<const rw_clip_attrs *>(k->attrs);
    RW_LAUNCH(norm_kernel, 1, THREADS, 0, k, norm, factor, sums, n, limit, a->keeps_nonfinite != 0);
    for (int next = 3; next < k->n_inputs;) {
        const gradient_batch b = next_batch(k, &next);
        RW_LAUNCH(scale_kernel, BLOCKS, THREADS, 0, k, factor, b);
    }
    return rw_cuda_launched(k);
}

extern "C" size_t rw_grad_squares_workspace_cuda(const rw_op_call *call)
{
    return (chunks_of(call->in[0].layout) + 1) * sizeof(double);
}

extern "C" rw_status rw_grad_squares_cuda(const rw_kernel *k)
{
    add_squares(k, static_cast<double *>(k->out[0].data), nullptr, static_cast<double *>(k->workspace),
                batch_of(k->in[0]));
    return rw_cuda_launched(k);
}

extern "C" size_t rw_clip_factor_workspace_cuda(const rw_op_call *)
{
    return THREADS * sizeof(double);
}

extern "C" rw_status rw_clip_factor_cuda(const rw_kernel *k)
{
    int next = 1;
    do {
        sum_batch b = {};
        b.first = next == 1;
        for (; next < k->n_inputs && b.n < THREADS; next++)
            b.sum[b.n++] = static_cast<const double *>(k->in[next].data);
        b.last = next == k->n_inputs;
        RW_LAUNCH(factor_kernel, 1, THREADS, 0, k, static_cast<double *>(k->out[0].data),
                  static_cast<double *>(k->out[1].data), static_cast<double *>(k->workspace),
                  static_cast<const double *>(k->in[0].data), b);
    } while (next < k->n_inputs);
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_clip_note_cuda(const rw_kernel *k)
{
    double *noted = static_cast<double *>(k->out[1].data);
    int next = 1;
    do {
        sum_batch b = {};
        for (; next < k->n_inputs - 2 && b.n < THREADS; next++)
            b.sum[b.n++] = static_cast<const double *>(k->in[next].data);
        RW_LAUNCH(note_kernel, 1, THREADS, 0, k, static_cast<double *>(k->out[0].data), noted,
                  static_cast<const double *>(k->in[0].data), b);
        noted += b.n;
    } while (next < k->n_inputs - 2);
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_clip_scale_cuda(const rw_kernel *k)
{
    const gradient_batch b = batch_of(k->in[1]);
    const unsigned blocks = b.chunks < BLOCKS ? static_cast<unsigned>(b.chunks) : BLOCKS;
    if (blocks)
        RW_LAUNCH(scale_one_kernel, blocks, THREADS, 0, k, k->out[0].data, static_cast<const double *>(k->in[0].data),
                  b);
    return rw_cuda_launched(k);
}
