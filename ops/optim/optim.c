/* One pass over parameter, gradient and both moments. */
#include "ops/optim/optim.h"

#include "ops/util.h"
#include "ops/vec.h"

static void update_f64(const struct rw_adamw_update *u, int64_t i)
{
    double *const p = u->param, *const m = u->m, *const v = u->v;
    const double g = ((const double *)u->grad)[i];
    m[i] = u->beta1 * m[i] + (1 - u->beta1) * g;
    v[i] = u->beta2 * v[i] + (1 - u->beta2) * g * g;
    const double x = p[i] * (1 - u->lr * u->weight_decay);
    p[i] = x - u->lr * (m[i] / u->correction1) / (sqrt(v[i] / u->correction2) + u->eps);
}

/* The step of a float32 or 16-bit parameter in float32. */
VEC_INLINE void update_f32(const struct rw_adamw_update *u, rw_dtype dtype, int64_t from, int64_t n)
{
    float *const x = u->master ? u->master : u->param, *const m = u->m, *const v = u->v;
    const float b1 = (float)u->beta1, b2 = (float)u->beta2, c1 = (float)(1 - u->beta1), c2 = (float)(1 - u->beta2);
    const float decay = (float)(1 - u->lr * u->weight_decay), step = (float)(u->lr / u->correction1);
    const float root = (float)(1 / sqrt(u->correction2)), eps = (float)u->eps;
    for (int64_t i = from; i < from + n; i++) {
        const float g = f_get(u->grad, dtype, i);
        m[i] = b1 * m[i] + c1 * g;
        v[i] = b2 * v[i] + c2 * g * g;
        x[i] = x[i] * decay - step * m[i] / (sqrtf(v[i]) * root + eps);
        if (u->master) f_put(u->param, dtype, i, x[i]);
    }
}

#define BLOCK 4096

void rw_adamw_update_cpu(const struct rw_adamw_update *u)
{
#pragma omp parallel for num_threads(u->threads) schedule(static) if (u->n >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < (u->n + BLOCK - 1) / BLOCK; b++) {
        const int64_t from = b * BLOCK, n = u->n - from < BLOCK ? u->n - from : BLOCK;
        if (u->dtype == RW_F64) for (int64_t i = from; i < from + n; i++) update_f64(u, i);
        else if (u->dtype == RW_BF16) update_f32(u, RW_BF16, from, n);
        else update_f32(u, RW_F32, from, n);
    }
}

double rw_sum_squares_cpu(const void *grad, rw_dtype dtype, int64_t n, int threads)
{
    double total = 0;
    for (int64_t group = 0; group < n; group += (int64_t)BLOCK * 1024) {
        double part[1024];
        const int64_t rest = n - group, blocks = rest >= (int64_t)BLOCK * 1024 ? 1024 : (rest + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static) if (rest >= RW_PARALLEL_FROM)
        for (int64_t b = 0; b < blocks; b++) {
            double sum = 0;
            for (int64_t i = group + b * BLOCK; i < n && i < group + (b + 1) * BLOCK; i++) {
                const double g = dtype == RW_F64 ? ((const double *)grad)[i] : (double)f_get(grad, dtype, i);
                sum += g * g;
            }
            part[b] = sum;
        }
        for (int64_t b = 0; b < blocks; b++) total += part[b];
    }
    return total;
}

void rw_scale_buffer_cpu(void *data, rw_dtype dtype, int64_t n, double factor, int threads)
{
#pragma omp parallel for num_threads(threads) schedule(static) if (n >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < n; i++) {
        if (dtype == RW_F64) ((double *)data)[i] *= factor;
        else f_put(data, dtype, i, f_get(data, dtype, i) * (float)factor);
    }
}
