/*
 * Load balance on the CPU: the routing biases of the next step. Loads are integers, so they are compared with their
 * mean without rounding.
 */
#include "device/cpu/isa.h"
#include "ops/moe/moe.h"

rw_status RW_ISA_NAME(rw_moe_balance_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_balance_cpu)(const rw_kernel *k)
{
    const float rate = (float)*(const double *)k->attrs;
    const float *const bias = k->in[0].data, *const total = k->in[1].data;
    const int64_t n = k->in[0].layout->numel;
    double sum = 0;
    for (int64_t e = 0; e < n; e++) sum += (double)total[e];
    for (int64_t e = 0; e < n; e++) {
        const double excess = sum - (double)total[e] * (double)n;
        ((float *)k->out[0].data)[e] = bias[e] + (excess > 0 ? rate : excess < 0 ? -rate : 0);
        ((float *)k->out[1].data)[e] = 0;
    }
    return RW_OK;
}
