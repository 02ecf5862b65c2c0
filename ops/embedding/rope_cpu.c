/* Rotates the pairs (i, i + d/2) of each head. Angles are taken in double, once per position. */
#include "device/cpu/isa.h"
#include "ops/embedding/rope.h"
#include "ops/util.h"
#include "ops/vec.h"

static void fill_table(const rw_kernel *k, int64_t seq, int64_t half)
{
    const struct rw_rope_attrs *const a = k->attrs;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (seq * half >= RW_PARALLEL_FROM / 16)
    for (int64_t s = 0; s < seq; s++) {
        const double position = k->n_inputs == 2 ? ((const int32_t *)k->in[1].data)[s] : (double)s;
        for (int64_t i = 0; i < half; i++) {
            const double angle = position * pow(a->base, -(double)i / (double)half);
            const double c = cos(angle), z = a->inverse ? -sin(angle) : sin(angle);
            if (k->in[0].dtype == RW_F64) {
                ((double *)k->workspace)[s * 2 * half + i] = c;
                ((double *)k->workspace)[s * 2 * half + half + i] = z;
            } else {
                ((float *)k->workspace)[s * 2 * half + i] = (float)c;
                ((float *)k->workspace)[s * 2 * half + half + i] = (float)z;
            }
        }
    }
}

VEC_INLINE void rotate(const rw_kernel *k, rw_dtype dtype, int64_t from, int64_t stride, int64_t to, int64_t s, int64_t half)
{
    const void *const x = k->in[0].data;
    void *const y = k->out[0].data;
    if (dtype == RW_F64) {
        const double *const c = (const double *)k->workspace + s * 2 * half, *const z = c + half;
        for (int64_t i = 0; i < half; i++) {
            const double a = ((const double *)x)[from + i * stride], b = ((const double *)x)[from + (i + half) * stride];
            ((double *)y)[to + i] = a * c[i] - b * z[i];
            ((double *)y)[to + half + i] = b * c[i] + a * z[i];
        }
        return;
    }
    const float *const c = (const float *)k->workspace + s * 2 * half, *const z = c + half;
    int64_t i = 0;
    for (; stride == 1 && i + VF_LANES <= half; i += VF_LANES) {
        const vf a = vf_get(x, dtype, from + i), b = vf_get(x, dtype, from + half + i);
        vf_put(y, dtype, to + i, a * vf_load(c + i) - b * vf_load(z + i));
        vf_put(y, dtype, to + half + i, b * vf_load(c + i) + a * vf_load(z + i));
    }
    for (; i < half; i++) {
        const float a = f_get(x, dtype, from + i * stride), b = f_get(x, dtype, from + (i + half) * stride);
        f_put(y, dtype, to + i, a * c[i] - b * z[i]);
        f_put(y, dtype, to + half + i, b * c[i] + a * z[i]);
    }
}

rw_status RW_ISA_NAME(rw_rope_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_rope_cpu)(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    const int64_t heads = l->dim[1], seq = l->dim[2], d = l->dim[3], half = d / 2;
    if (!l->numel) return RW_OK;
    fill_table(k, seq, half);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < l->dim[0] * heads * seq; i++) {
        const int64_t s = i % seq, h = i / seq % heads, b = i / seq / heads;
        const int64_t from = b * l->stride[0] + h * l->stride[1] + s * l->stride[2];
        if (k->in[0].dtype == RW_F64) rotate(k, RW_F64, from, l->stride[3], i * d, s, half);
        else if (k->in[0].dtype == RW_BF16) rotate(k, RW_BF16, from, l->stride[3], i * d, s, half);
        else rotate(k, RW_F32, from, l->stride[3], i * d, s, half);
    }
    return RW_OK;
}
