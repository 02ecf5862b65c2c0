/* Load balance on CUDA: the routing biases of the next step, in one block. */
/* machine_code.py: balance_kernel: one block */
#include "device/cuda/kernel.cuh"

extern "C" {
#include "ops/moe/moe.h"
}

namespace {

__global__ void __launch_bounds__(RW_MOE_EXPERTS_MAX)
    balance_kernel(const float *bias, const float *total, float *to, float *cleared, int n, float rate)
{
    __shared__ double sum;
    const int e = threadIdx.x;
    if (e == 0) {
        sum = 0;
        for (int i = 0; i < n; i++) sum += static_cast<double>(total[i]);
    }
    __syncthreads();
    if (e >= n) return;
    const double excess = sum - static_cast<double>(total[e]) * n;
    to[e] = bias[e] + (excess > 0 ? rate : excess < 0 ? -rate : 0.0f);
    cleared[e] = 0;
}

} // namespace

extern "C" rw_status rw_moe_balance_cuda(const rw_kernel *k)
{
    const float rate = static_cast<float>(*static_cast<const double *>(k->attrs));
    RW_LAUNCH(balance_kernel, 1, RW_MOE_EXPERTS_MAX, 0, k, static_cast<const float *>(k->in[0].data),
              static_cast<const float *>(k->in[1].data), static_cast<float *>(k->out[0].data),
              static_cast<float *>(k->out[1].data), static_cast<int>(k->in[0].layout->numel), rate);
    return rw_cuda_launched(k);
}
