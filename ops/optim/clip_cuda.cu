/*
 * Clipping on CUDA. Squares are added in double: a fixed number of blocks takes the chunks of all gradients in turn,
 * and one block adds their sums. Norm and factor stay on the device.
 */
#include "ops/optim/gradients.cuh"

namespace {

constexpr int THREADS = GRADIENT_THREADS, NORM_BLOCKS = GRADIENT_BLOCKS;

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
__global__ void __launch_bounds__(NORM_BLOCKS) norm_kernel(double *ret_norm, double *sums, const double *limit)
{
    __shared__ double shared[32];
    const double norm = sqrt(block_sum(sums[threadIdx.x], shared)), most = *limit;
    if (threadIdx.x) return;
    *ret_norm = norm;
    sums[NORM_BLOCKS] = norm > most ? most / norm : 1;
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
    scale_kernel(const double *norm, const double *sums, const double *limit, const __grid_constant__ gradient_batch b)
{
    const double factor = sums[NORM_BLOCKS];
    if (!(*norm > *limit)) return;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        switch (dtype) {
        case RW_F64: scale<double>(data, from, n, factor); break;
        case RW_BF16: scale<bf16>(data, from, n, factor); break;
        case RW_F16: scale<f16>(data, from, n, factor); break;
        default: scale<float>(data, from, n, factor);
        }
    });
}

} // namespace

/* The sums of all blocks, and the factor. */
extern "C" size_t rw_clip_grad_norm_workspace_cuda(const rw_op_call *)
{
    return (NORM_BLOCKS + 1) * sizeof(double);
}

extern "C" rw_status rw_clip_grad_norm_cuda(const rw_kernel *k)
{
    const double *const limit = static_cast<const double *>(k->in[0].data);
    double *const norm = static_cast<double *>(k->out[0].data), *const sums = static_cast<double *>(k->workspace);
    int next = 2;
    do {
        const gradient_batch b = next_batch(k, &next);
        RW_LAUNCH(squares_kernel, NORM_BLOCKS, THREADS, 0, k, sums, b);
    } while (next < k->n_inputs);
    RW_LAUNCH(norm_kernel, 1, NORM_BLOCKS, 0, k, norm, sums, limit);
    for (next = 2; next < k->n_inputs;) {
        const gradient_batch b = next_batch(k, &next);
        RW_LAUNCH(scale_kernel, NORM_BLOCKS, THREADS, 0, k, norm, sums, limit, b);
    }
    return rw_cuda_launched(k);
}
