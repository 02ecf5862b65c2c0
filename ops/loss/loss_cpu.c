/*
 * CPU kernels of the losses. Cross-entropy: rows in parallel, their losses added in order. Mean squared error: blocks
 * of fixed length in lanes of float (double for float64), their sums in double, in order.
 */
#include "device/cpu/isa.h"
#include "ops/common/map.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/loss/loss.h"
#include "ops/loss/row_cpu.h"

/* ---- cross-entropy ---- */

rw_status RW_ISA_NAME(rw_cross_entropy_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_cpu)(const rw_kernel *k)
{
    const struct rw_cross_entropy_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const int64_t classes = l->dim[l->rank - 1], rows = l->numel / classes;
    const int32_t *const target = k->in[1].data;
    const void *const x = k->in[0].data;
    const int64_t counted = count_rows(target, rows, classes, a->ignore);
    if (counted < 0) return RW_ERR_ARGUMENT;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM / 4)
    for (int64_t i = 0; i < rows; i++) {
        if (k->in[0].dtype == RW_F64)
            ((double *)k->out[1].data)[i] = lse_row_d((const double *)x + i * classes, classes);
        else if (k->in[0].dtype == RW_BF16) ((float *)k->out[1].data)[i] = lse_row(x, RW_BF16, i * classes, classes);
        else if (k->in[0].dtype == RW_F16) ((float *)k->out[1].data)[i] = lse_row(x, RW_F16, i * classes, classes);
        else ((float *)k->out[1].data)[i] = lse_row(x, RW_F32, i * classes, classes);
    }
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (target[i] == a->ignore) continue;
        const int64_t at = i * classes + target[i];
        if (k->in[0].dtype == RW_F64) sum += ((double *)k->out[1].data)[i] - ((const double *)x)[at];
        else sum += (double)((float *)k->out[1].data)[i] - (double)f_get(x, k->in[0].dtype, at);
    }
    const double loss = counted ? sum / (double)counted : 0;
    if (k->out[0].dtype == RW_F64) *(double *)k->out[0].data = loss;
    else *(float *)k->out[0].data = (float)loss;
    return RW_OK;
}

VEC_INLINE void backward_row(const rw_kernel *k, rw_dtype dtype, int64_t row, int64_t n, int32_t target, float factor)
{
    const float lse = ((const float *)k->in[2].data)[row];
    const int64_t at = row * n;
    const float hit = target >= 0 ? f_get(k->in[0].data, dtype, at + target) : 0; /* before it is written over */
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const vf y = vf_exp(row_load(k->in[0].data, dtype, at, i, n, 0) - lse) * factor;
        if (i + VF_LANES <= n) vf_put(k->out[0].data, dtype, at + i, y);
        else for (int64_t j = i; j < n; j++) f_put(k->out[0].data, dtype, at + j, y[j - i]);
    }
    if (target < 0) return;
    const vf e = vf_exp(vf_all(hit - lse));
    f_put(k->out[0].data, dtype, at + target, (e[0] - 1) * factor);
}

static void backward_row_d(const rw_kernel *k, int64_t row, int64_t n, int32_t target, double factor)
{
    const double lse = ((const double *)k->in[2].data)[row];
    const double *const x = (const double *)k->in[0].data + row * n;
    double *const y = (double *)k->out[0].data + row * n;
    for (int64_t i = 0; i < n; i++) y[i] = (exp(x[i] - lse) - (i == target)) * factor;
}

rw_status RW_ISA_NAME(rw_cross_entropy_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_backward_cpu)(const rw_kernel *k)
{
    const struct rw_cross_entropy_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], rows = l->numel / n;
    const int32_t *const target = k->in[1].data;
    const int64_t counted = count_rows(target, rows, n, a->ignore);
    if (counted < 0) return RW_ERR_ARGUMENT;
    const rw_dtype dtype = k->in[0].dtype;
    const double dy = dtype == RW_F64 ? *(const double *)k->in[3].data : (double)*(const float *)k->in[3].data;
    const double factor = counted ? dy / (double)counted : 0;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM / 4)
    for (int64_t i = 0; i < rows; i++) {
        if (target[i] == a->ignore)
            memset((char *)k->out[0].data + (size_t)(i * n) * rw_dtype_size(dtype), 0,
                   (size_t)n * rw_dtype_size(dtype));
        else if (dtype == RW_F64) backward_row_d(k, i, n, target[i], factor);
        else if (dtype == RW_BF16) backward_row(k, RW_BF16, i, n, target[i], (float)factor);
        else if (dtype == RW_F16) backward_row(k, RW_F16, i, n, target[i], (float)factor);
        else backward_row(k, RW_F32, i, n, target[i], (float)factor);
    }
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_cross_entropy_weights_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_weights_cpu)(const rw_kernel *k)
{
    const struct rw_cross_entropy_attrs *const a = k->attrs;
    const int32_t *const target = k->in[0].data;
    const int64_t rows = k->in[0].layout->numel, counted = count_rows(target, rows, a->classes, a->ignore);
    if (counted < 0) return RW_ERR_ARGUMENT;
    memset(k->out[0].data, 0, (size_t)k->out[0].layout->numel * rw_dtype_size(k->out[0].dtype));
    for (int64_t i = 0; i < rows; i++) {
        if (target[i] == a->ignore) continue;
        const double w = -1 / (double)counted;
        const int64_t at = i * a->classes + target[i];
        if (k->out[0].dtype == RW_F64) ((double *)k->out[0].data)[at] = w;
        else f_put(k->out[0].data, k->out[0].dtype, at, (float)w);
    }
    return RW_OK;
}

/* ---- mean squared error ---- */

#define SQUARE_RUN 1024 /* elements added in float */

VEC_INLINE double square_f(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n)
{
    const void *const x = k->in[0].data, *const y = k->in[1].data;
    double total = 0;
    int64_t i = 0;
    while (i + VF_LANES <= n) {
        const int64_t stop = n - i < SQUARE_RUN ? n : i + SQUARE_RUN;
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
