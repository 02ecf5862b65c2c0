/* CPU kernel of rope: rotates the pairs of each head. Angles are computed in double, once per position. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/embedding/rope.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

VEC_FUNCTION(sin)
VEC_FUNCTION(cos)

/*
 * cos and sin of position s, `half` of each. The angular frequencies are at `frequency`, rounded up to whole vectors;
 * surplus lanes are computed and dropped.
 */
VEC_INLINE void fill_position(const rw_kernel *k, rw_dtype dtype, const double *frequency, double position, int64_t s,
                              int64_t half)
{
    const struct rw_rope_attrs *const a = k->attrs;
    const double scale = a->scale, sign = a->inverse ? -scale : scale;
    for (int64_t i = 0; i < half; i += VD_LANES) {
        const vd angle = position * vd_load(frequency + i);
        const vd c = scale * vd_cos(angle), z = sign * vd_sin(angle);
        for (int64_t l = 0; l < VD_LANES && i + l < half; l++) {
            const int64_t at = s * 2 * half + i + l;
            if (dtype == RW_F64) {
                ((double *)k->workspace)[at] = c[l];
                ((double *)k->workspace)[at + half] = z[l];
            } else {
                ((float *)k->workspace)[at] = (float)c[l];
                ((float *)k->workspace)[at + half] = (float)z[l];
            }
        }
    }
}

static double given_frequency(const rw_kernel *k, int64_t i)
{
    const rw_view *const f = &k->in[2];
    return f->dtype == RW_F64 ? ((const double *)f->data)[i] : (double)((const float *)f->data)[i];
}

struct table {
    const rw_kernel *k;
    const double *frequency;
    int64_t half;
};

static void fill_positions(void *of, int64_t first, int64_t end)
{
    const struct table *const t = of;
    const rw_kernel *const k = t->k;
    for (int64_t s = first; s < end; s++) {
        const double position = k->n_inputs > 1 ? ((const int32_t *)k->in[1].data)[s] : (double)s;
        if (k->in[0].dtype == RW_F64) fill_position(k, RW_F64, t->frequency, position, s, t->half);
        else fill_position(k, RW_F32, t->frequency, position, s, t->half);
    }
}

/* Fills the table: for each position `half` cosines, then `half` sines. The frequencies are stored after it. */
static void fill_table(const rw_kernel *k, int64_t seq, int64_t half)
{
    const struct rw_rope_attrs *const a = k->attrs;
    const size_t table = rw_rope_table_bytes(seq, half, k->in[0].dtype);
    double *const frequency = (double *)(void *)((char *)k->workspace + table);
    for (int64_t i = 0; i < (half + VD_LANES - 1) / VD_LANES * VD_LANES; i++)
        frequency[i] = i >= half ? 0 : a->given ? given_frequency(k, i) : pow(a->base, -(double)i / (double)half);
    rw_team_for(rw_threads_for(k, 4 * seq * half), seq, fill_positions, &(struct table){ k, frequency, half });
}

/* Rotates the pairs of one row. */
VEC_INLINE void rotate(const rw_kernel *k, rw_dtype dtype, int64_t from, int64_t stride, int64_t to, int64_t s,
                       int64_t half)
{
    const struct rw_rope_attrs *const attrs = k->attrs;
    const struct rw_rope_pairs p = rw_rope_pairs_of(attrs, half);
    const void *const x = k->in[0].data;
    void *const y = k->out[0].data;
    if (dtype == RW_F64) {
        const double *const c = (const double *)k->workspace + s * 2 * half, *const z = c + half;
        for (int64_t i = 0; i < half; i++) {
            const int64_t first = i * p.step, second = first + p.apart;
            const double a = ((const double *)x)[from + first * stride],
                         b = ((const double *)x)[from + second * stride];
            ((double *)y)[to + first] = a * c[i] - b * z[i];
            ((double *)y)[to + second] = b * c[i] + a * z[i];
        }
        return;
    }
    const float *const c = (const float *)k->workspace + s * 2 * half, *const z = c + half;
    int64_t i = 0;
    for (; stride == 1 && p.step == 1 && i + VF_LANES <= half; i += VF_LANES) {
        const vf a = vf_get(x, dtype, from + i), b = vf_get(x, dtype, from + half + i);
        vf_put(y, dtype, to + i, a * vf_load(c + i) - b * vf_load(z + i));
        vf_put(y, dtype, to + half + i, b * vf_load(c + i) + a * vf_load(z + i));
    }
    for (; i < half; i++) {
        const int64_t first = i * p.step, second = first + p.apart;
        const float a = f_get(x, dtype, from + first * stride), b = f_get(x, dtype, from + second * stride);
        f_put(y, dtype, to + first, a * c[i] - b * z[i]);
        f_put(y, dtype, to + second, b * c[i] + a * z[i]);
    }
}

static void rotate_rows(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const rw_layout *const l = k->in[0].layout;
    const int64_t heads = l->dim[1], seq = l->dim[2], d = l->dim[3], half = d / 2;
    for (int64_t i = first; i < end; i++) {
        const int64_t s = i % seq, h = i / seq % heads, b = i / seq / heads;
        const int64_t from = b * l->stride[0] + h * l->stride[1] + s * l->stride[2];
        if (k->in[0].dtype == RW_F64) rotate(k, RW_F64, from, l->stride[3], i * d, s, half);
        else if (k->in[0].dtype == RW_BF16) rotate(k, RW_BF16, from, l->stride[3], i * d, s, half);
        else if (k->in[0].dtype == RW_F16) rotate(k, RW_F16, from, l->stride[3], i * d, s, half);
        else rotate(k, RW_F32, from, l->stride[3], i * d, s, half);
    }
}

rw_status RW_ISA_NAME(rw_rope_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_rope_cpu)(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    if (!l->numel) return RW_OK;
    fill_table(k, l->dim[2], l->dim[3] / 2);
    rw_team_for(rw_threads_for(k, l->numel), l->dim[0] * l->dim[1] * l->dim[2], rotate_rows, k);
    return RW_OK;
}
