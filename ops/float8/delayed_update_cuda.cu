/* CUDA kernels of delayed scaling: amaxes with one thread each, an update with one block per history. */
/* machine_code.py: note_kernel: one block */
/* machine_code.py: update_kernel: a block for each history: few numbers */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/float8/delayed_update.h"
}

namespace {

constexpr int THREADS = 64, WARP = 32;
constexpr int BATCH = 64; /* amaxes per launch, limited by the size of kernel arguments */

struct amax_batch {
    const float *amax[BATCH];
    uint32_t row[BATCH];
    int32_t n;
};

/* A maximum of integers: independent of the order. */
__global__ void __launch_bounds__(BATCH) note_kernel(const __grid_constant__ amax_batch b, unsigned *noted)
{
    const int i = static_cast<int>(threadIdx.x);
    if (i < b.n) atomicMax(noted + b.row[i], rw_f8_magnitude(*b.amax[i]));
}

/* Advances the history of one row, from its end, and returns the largest number in it. */
__device__ __forceinline__ uint32_t move_on(float *history, int64_t n, float amax)
{
    __shared__ uint32_t of_warp[THREADS / WARP];
    uint32_t m = 0;
    for (int64_t to = n; to > 0; to -= THREADS) {
        const int64_t i = to - THREADS + threadIdx.x;
        const float x = i > 0 ? history[i - 1] : amax;
        __syncthreads();
        if (i >= 0) history[i] = x;
        const uint32_t own = rw_f8_magnitude(x);
        m = own > m ? own : m;
        __syncthreads();
    }
    for (int d = WARP / 2; d; d /= 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, m, d);
        m = other > m ? other : m;
    }
    if (threadIdx.x % WARP == 0) of_warp[threadIdx.x / WARP] = m;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++) m = of_warp[w] > m ? of_warp[w] : m;
    return m;
}

__global__ void __launch_bounds__(THREADS)
    update_kernel(const rw_delayed_attrs a, const int32_t *found, float *amax, float *scale, float *history,
                  int64_t length)
{
    const int64_t row = blockIdx.x;
    const float own = amax[row];
    if (rw_delayed_takes(own, found && *found)) { /* the same for the whole block */
        const uint32_t most = move_on(history + row * length, length, own);
        if (threadIdx.x == 0) scale[row] = rw_delayed_scale(&a, row, a.most_recent ? rw_f8_magnitude(own) : most);
    }
    __syncthreads();
    if (threadIdx.x == 0) amax[row] = 0;
}

} // namespace

extern "C" rw_status rw_note_amax_cuda(const rw_kernel *k)
{
    const uint32_t *const row = static_cast<const uint32_t *>(k->attrs);
    unsigned *const noted = static_cast<unsigned *>(k->out[0].data);
    for (int i = 0; i < k->n_inputs - 1;) {
        amax_batch b = {};
        for (; b.n < BATCH && i < k->n_inputs - 1; i++) {
            b.amax[b.n] = static_cast<const float *>(k->in[i].data);
            b.row[b.n++] = row[i];
        }
        RW_LAUNCH(note_kernel, 1, BATCH, 0, k, b, noted);
    }
    return rw_cuda_launched(k);
}

extern "C" rw_status rw_delayed_update_cuda(const rw_kernel *k)
{
    const int32_t *const found = k->n_inputs == 4 ? static_cast<const int32_t *>(k->in[0].data) : nullptr;
    const int64_t rows = k->out[0].layout->numel;
    if (rows)
        RW_LAUNCH(update_kernel, static_cast<unsigned>(rows), THREADS, 0, k,
                  *static_cast<const rw_delayed_attrs *>(k->attrs), found, static_cast<float *>(k->out[0].data),
                  static_cast<float *>(k->out[1].data), static_cast<float *>(k->out[2].data),
                  k->out[2].layout->dim[1]);
    return rw_cuda_launched(k);
}
