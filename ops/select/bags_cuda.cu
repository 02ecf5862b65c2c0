/* CUDA kernel of embedding_bag_offsets: a place of the index, and an offset, per thread. */
#include "device/cuda/kernel.cuh"

#include "ops/select/bags.h"

namespace {

constexpr int THREADS = 256;

/* Where offsets are wrong the numbers are some bags', so that what reads them stays within its memory. */
__global__ void __launch_bounds__(THREADS)
    number_kernel(const int32_t *offset, int32_t *number, int64_t bags, int64_t places, index_guard guard)
{
    const int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (i < bags && ((i ? offset[i] < offset[i - 1] : offset[i] != 0) || offset[i] > places)) guard.report();
    if (i >= places) return;
    int64_t low = 0, high = bags; /* the first bag that begins behind the place lies between them */
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (offset[middle] <= i) low = middle + 1;
        else high = middle;
    }
    number[i] = static_cast<int32_t>(low ? low - 1 : 0);
}

} // namespace

extern "C" rw_status rw_bags_cuda(const rw_kernel *k)
{
    const int64_t bags = k->in[0].layout->numel, places = static_cast<const rw_bags_attrs *>(k->attrs)->places;
    const int64_t n = bags > places ? bags : places;
    if (!n) return RW_OK;
    RW_LAUNCH(number_kernel, blocks_for(n, THREADS), THREADS, 0, k, static_cast<const int32_t *>(k->in[0].data),
              static_cast<int32_t *>(k->out[0].data), bags, places, guard_of(k));
    return rw_cuda_launched(k);
}
