/* CUDA kernels of loss scaling: unscales gradients and tests them in one pass; and advances the scale. */
/* machine_code.py: stream unscale_kernel<(true|false)> */
/* machine_code.py: next_kernel: one thread */
/* machine_code.py: any_kernel: one block */
/* machine_code.py: rows_kernel: a thread for a parameter */
#include "ops/optim/multi_tensor_apply.cuh"

extern "C" {
#include "ops/optim/scaler.h"
}

namespace {

/* Is one of this thread's elements not finite? */
template <typename T>
__device__ __forceinline__ bool unscale(void *to, const void *data, int64_t from, int n, double inverse)
{
    constexpr int P = pack<T>::size;
    const T *const x = static_cast<const T *>(data) + from;
    T *const y = static_cast<T *>(to) + from;
    const int whole = n / P * P;
    const wide<T> by = static_cast<wide<T>>(inverse);
    bool found = false;
#pragma unroll 2
    for (int i = threadIdx.x * P; i < whole; i += GRADIENT_THREADS * P) {
        const pack<T> v = load_pack(x + i);
        wide<T> w[P];
#pragma unroll
        for (int l = 0; l < P; l++) w[l] = widen(v.x[l]) * by;
        const raw<pack<T>> r = narrow_pack<T>(w);
        store_global(y + i, r);
        const pack<T> unscaled = r.elements();
#pragma unroll
        for (int l = 0; l < P; l++) found |= !(widen(unscaled.x[l]) - widen(unscaled.x[l]) == 0);
    }
    const int last = whole + static_cast<int>(threadIdx.x);
    if (last < n) {
        y[last] = narrow<T>(widen(x[last]) * by);
        found |= !(widen(y[last]) - widen(y[last]) == 0);
    }
    return found;
}

/* In place or, for a batch of one, to another buffer. All threads that find such an element write the same number. */
template <bool Moves>
__global__ void __launch_bounds__(GRADIENT_THREADS)
    unscale_kernel(void *destination, const float *scaler, int32_t *found, const __grid_constant__ gradient_batch b)
{
    const double inverse = 1 / static_cast<double>(scaler[RW_SCALER_SCALE]);
    bool any = false;
    for_chunks(b, [&](void *data, int dtype, int64_t from, int n) {
        void *const to = Moves ? destination : data;
        switch (dtype) {
        case RW_F64: any |= unscale<double>(to, data, from, n, inverse); break;
        case RW_BF16: any |= unscale<bf16>(to, data, from, n, inverse); break;
        case RW_F16: any |= unscale<f16>(to, data, from, n, inverse); break;
        default: any |= unscale<float>(to, data, from, n, inverse);
        }
    });
    if (any) *found = 1;
}

struct found_batch {
    int32_t n;
    const int32_t *found[GRADIENT_THREADS];
};

__global__ void __launch_bounds__(GRADIENT_THREADS)
    any_kernel(int32_t *ret_found, const __grid_constant__ found_batch b)
{
    if (static_cast<int>(threadIdx.x) < b.n && *b.found[threadIdx.x]) *ret_found = 1;
}

__global__ void next_kernel(rw_scaler_rule rule, const int32_t *found, float *scaler)
{
    rw_scaler_next(&rule, *found, scaler);
}

__global__ void __launch_bounds__(GRADIENT_THREADS)
    rows_kernel(const int32_t *found, const rw_update_row *uploaded, int32_t (*pending)[2], rw_update_row *due,
                int rule, int64_t n)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * GRADIENT_THREADS + threadIdx.x;
    if (i < n) due[i] = rw_update_row_due(uploaded[i], rule, found && *found, pending[i]);
}

} // namespace

extern "C" rw_status rw_update_rows_cuda(const rw_kernel *k)
{
    const int first = k->n_inputs - 3;
    const int64_t n = k->in[first].layout->dim[0];
    const int32_t *const found = first ? static_cast<const int32_t *>(k->in[0].data) : nullptr;
    const int rule = static_cast<const rw_update_attrs *>(k->attrs)->rule;
    if (n)
        RW_LAUNCH(rows_kernel, blocks_for(n, GRADIENT_THREADS), GRADIENT_THREADS, 0, k, found,
                  static_cast<const rw_update_row *>(k->in[first].data), static_cast<int32_t (*)[2]>(k->out[0].data),
                  static_cast<rw_update_row *>(k->out[1].data), rule, n);
    return rw_cuda_launched(k);
}

/* Clears the output that reports elements that are not finite. */
static rw_status clear_found(const rw_kernel *k, int output, int32_t **ret_found)
{
    *ret_found = static_cast<int32_t *>(k->out[output].data);
    const cudaError_t cleared = cudaMemsetAsync(*ret_found, 0, sizeof **ret_found, rw_stream(k));
    return cleared ? rw_cuda_status(static_cast<rw_cuda *>(k->device), cleared, "cudaMemsetAsync") : RW_OK;
}

extern "C" rw_status rw_unscale_grads_cuda(const rw_kernel *k)
{
    const float *const scaler = static_cast<const float *>(k->in[0].data);
    int32_t *found;
    const rw_status status = clear_found(k, 0, &found);
    if (status) return status;
    for (int next = 2; next < k->n_inputs;) {
        const gradient_batch b = next_batch(k, &next);
        if (b.n)
            RW_LAUNCH(unscale_kernel<false>, GRADIENT_BLOCKS, GRADIENT_THREADS, 0, k, static_cast<void *>(nullptr),
                      scaler, found, b);
    }
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_unscale_grad_cuda(const rw_kernel *k)
{
    const float *const scaler = static_cast<const float *>(k->in[0].data);
    const gradient_batch b = batch_of(k->in[1]);
    const unsigned blocks = b.chunks < GRADIENT_BLOCKS ? static_cast<unsigned>(b.chunks) : GRADIENT_BLOCKS;
    int32_t *found;
    const rw_status status = clear_found(k, 1, &found);
    if (status) return status;
    if (blocks) RW_LAUNCH(unscale_kernel<true>, blocks, GRADIENT_THREADS, 0, k, k->out[0].data, scaler, found, b);
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_any_found_cuda(const rw_kernel *k)
{
    int32_t *found;
    const rw_status status = clear_found(k, 0, &found);
    if (status) return status;
    for (int next = 0; next < k->n_inputs - 1;) {
        found_batch b = {};
        for (; next < k->n_inputs - 1 && b.n < GRADIENT_THREADS; next++)
            b.found[b.n++] = static_cast<const int32_t *>(k->in[next].data);
        RW_LAUNCH(any_kernel, 1, GRADIENT_THREADS, 0, k, found, b);
    }
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_scaler_update_cuda(const rw_kernel *k)
{
    RW_LAUNCH(next_kernel, 1, 1, 0, k, *static_cast<const rw_scaler_rule *>(k->attrs),
              static_cast<const int32_t *>(k->in[0].data), static_cast<float *>(k->out[0].data));
    return rw_cuda_launched(k);
}
