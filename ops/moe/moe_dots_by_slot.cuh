/* Dot products of rows on CUDA: computed by row, stored by slot. */
#ifndef RW_OPS_MOE_DOTS_BY_SLOT_CUH
#define RW_OPS_MOE_DOTS_BY_SLOT_CUH

#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/moe/moe.h"
}

namespace {

constexpr int DOTS_THREADS = 256;

template <typename W>
__global__ void __launch_bounds__(DOTS_THREADS) by_slot_kernel(const W *dots, W *to, const int32_t *inverse, int64_t n)
{
    const int64_t slot = static_cast<int64_t>(blockIdx.x) * DOTS_THREADS + threadIdx.x;
    if (slot < n) to[slot] = dots[rw_moe_within(inverse[slot], n)];
}

/* Copies the workspace, by row, to output `out`, by slot: input `inverse` has the row of each slot. */
template <typename W> rw_status dots_by_slot(const rw_kernel *k, int out, int inverse)
{
    const int64_t n = k->out[out].layout->numel;
    RW_LAUNCH(by_slot_kernel<W>, blocks_for(n, DOTS_THREADS), DOTS_THREADS, 0, k, static_cast<const W *>(k->workspace),
              static_cast<W *>(k->out[out].data), static_cast<const int32_t *>(k->in[inverse].data), n);
    return rw_cuda_launched(k);
}

} // namespace

#endif
