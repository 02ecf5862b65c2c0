/* Mean squared error: blocks of fixed length in lanes of float (double for float64), their sums in double, in order. */
#include "device/cpu/isa.h"
#include "ops/loss/loss.h"
#include "ops/common/map.h"
#include "ops/common/vec.h"

#define RUN 1024 /* elements added in float */

VEC_INLINE double square_f(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n)
{
    const void *const x = k->in[0].data, *const y = k->in[1].data;
    double total = 0;
    int64_t i = 0;
    while (i + VF_LANES <= n) {
        const int64_t stop = n - i < RUN ? n : i + RUN;
        vf sum = { 0 };
        for (; i + VF_LANES <= stop; i += VF_LANES) {
            const vf d = vf_get(x, dtype, at + i) - vf_get(y, dtype, at + i);
            sum += d * d;
        }
        total += (double)vf_sum(sum);
    }
    for (; i < n; i++) {
        const float d = f_get(x, dtype, at + i) - f_get(y, dtype, at + i);
        total += (double)(d * d);
    }
    return total;
}

static double square_d(const double *x, const double *y, int64_t n)
{
    vd sum = { 0 };
    int64_t i = 0;
    for (; i + VD_LANES <= n; i += VD_LANES) {
        const vd d = vd_load(x + i) - vd_load(y + i);
        sum += d * d;
    }
    double total = vd_sum(sum);
    for (; i < n; i++) total += (x[i] - y[i]) * (x[i] - y[i]);
    return total;
}

static double square(const rw_kernel *k, int64_t at, int64_t n)
{
    switch (k->in[0].dtype) {
    case RW_F64: return square_d((const double *)k->in[0].data + at, (const double *)k->in[1].data + at, n);
    case RW_BF16: return square_f(k, RW_BF16, at, n);
    case RW_F16: return square_f(k, RW_F16, at, n);
    default: return square_f(k, RW_F32, at, n);
    }
}

rw_status RW_ISA_NAME(rw_mse_loss_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_mse_loss_cpu)(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel, blocks = rw_mse_blocks(n);
    double *const part = k->workspace;
    double total = 0;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = b * RW_MSE_BLOCK;
        part[b] = square(k, at, n - at < RW_MSE_BLOCK ? n - at : RW_MSE_BLOCK);
    }
    for (int64_t b = 0; b < blocks; b++) total += part[b];
    total /= (double)n;
    if (k->out[0].dtype == RW_F64) *(double *)k->out[0].data = total;
    else *(float *)k->out[0].data = (float)total;
    return RW_OK;
}

VEC_INLINE void back_f(const nf *x, nf *y, double a)
{
    y[0] = (x[0] - x[1]) * (float)a;
}

VEC_INLINE void back_d(const nd *x, nd *y, double a)
{
    y[0] = (x[0] - x[1]) * a;
}

MAP_FUNCTIONS(back, 2, 1, back_f, back_d)

rw_status RW_ISA_NAME(rw_mse_loss_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_mse_loss_backward_cpu)(const rw_kernel *k)
{
    const double dy = k->in[2].dtype == RW_F64 ? *(const double *)k->in[2].data : (double)*(const float *)k->in[2].data;
    return map_kernel(k, 2, back_blocks, 2 * dy / (double)k->in[0].layout->numel);
}
