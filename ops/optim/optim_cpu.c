/* AdamW: one pass over parameter, gradient and both moments, each element by itself. */
#include "device/cpu/isa.h"
#include "ops/optim/optim.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"

#define BLOCK 4096

static void update_f64(const struct rw_adamw_update *u, int64_t from, int64_t n)
{
    const struct rw_optim_step *const s = u->s;
    double *const p = u->t->param, *const m = u->t->m, *const v = u->t->v;
    for (int64_t i = from; i < from + n; i++) {
        const double g = ((const double *)u->t->grad)[i];
        m[i] = s->beta1 * m[i] + (1 - s->beta1) * g;
        v[i] = s->beta2 * v[i] + (1 - s->beta2) * g * g;
        const double x = p[i] * (1 - s->lr * s->weight_decay);
        p[i] = x - s->lr * (m[i] / s->correction1) / (sqrt(v[i] / s->correction2) + s->eps);
    }
}

/* n <= NF_LANES elements of a float32 or 16-bit parameter; the arithmetic is float32's. */
VEC_INLINE void update_lanes(const struct rw_optim_tensor *t, const struct rw_adamw_floats *s, rw_dtype dtype,
                             int64_t i, int64_t n, bool whole)
{
    float *const to = t->master ? t->master : t->param;
#define GET(p, type) (whole ? nf_get(p, type, i) : nf_get_some(p, type, i, n))
#define PUT(p, type, x) (whole ? nf_put(p, type, i, x) : nf_put_some(p, type, i, n, x))
    const nf g = GET(t->grad, dtype);
    const nf m = s->b1 * GET(t->m, RW_F32) + s->c1 * g;
    const nf v = s->b2 * GET(t->v, RW_F32) + s->c2 * g * g;
    const nf x = GET(to, RW_F32) * s->decay - s->rate * m / (nf_sqrt(v) * s->root + s->eps);
    PUT(t->m, RW_F32, m);
    PUT(t->v, RW_F32, v);
    PUT(to, RW_F32, x);
    if (t->master) PUT(t->param, dtype, x);
#undef GET
#undef PUT
}

VEC_INLINE void update_f32(const struct rw_adamw_update *u, rw_dtype dtype, int64_t from, int64_t n)
{
    const struct rw_adamw_floats s = rw_adamw_floats_of(u->s);
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) update_lanes(u->t, &s, dtype, from + i, NF_LANES, true);
    if (i < n) update_lanes(u->t, &s, dtype, from + i, n - i, false);
}

static void update_block(const struct rw_adamw_update *u, int64_t from)
{
    const int64_t n = u->t->n - from < BLOCK ? u->t->n - from : BLOCK;
    if (u->t->dtype == RW_F64) update_f64(u, from, n);
    else if (u->t->dtype == RW_BF16) update_f32(u, RW_BF16, from, n);
    else if (u->t->dtype == RW_F16) update_f32(u, RW_F16, from, n);
    else update_f32(u, RW_F32, from, n);
}

rw_status RW_ISA_NAME(rw_adamw_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_adamw_cpu)(const rw_kernel *k)
{
    const struct rw_adamw_update *const u = k->attrs;
    if (u->t->n < RW_PARALLEL_FROM || k->threads < 2) {
        for (int64_t from = 0; from < u->t->n; from += BLOCK) update_block(u, from);
        return RW_OK;
    }
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t from = 0; from < u->t->n; from += BLOCK) update_block(u, from);
    return RW_OK;
}

/* n <= BLOCK elements, times a factor. */
VEC_INLINE void scale_f32(void *data, rw_dtype dtype, int64_t from, int64_t n, float factor)
{
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) nf_put(data, dtype, from + i, nf_get(data, dtype, from + i) * factor);
    if (i < n) nf_put_some(data, dtype, from + i, n - i, nf_get_some(data, dtype, from + i, n - i) * factor);
}

static void scale_block(const struct rw_scale_buffer *s, int64_t from)
{
    const int64_t n = s->n - from < BLOCK ? s->n - from : BLOCK;
    if (s->dtype == RW_F64) for (int64_t i = from; i < from + n; i++) ((double *)s->data)[i] *= s->factor;
    else if (s->dtype == RW_BF16) scale_f32(s->data, RW_BF16, from, n, (float)s->factor);
    else if (s->dtype == RW_F16) scale_f32(s->data, RW_F16, from, n, (float)s->factor);
    else scale_f32(s->data, RW_F32, from, n, (float)s->factor);
}

rw_status RW_ISA_NAME(rw_scale_buffer_kernel)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_scale_buffer_kernel)(const rw_kernel *k)
{
    const struct rw_scale_buffer *const s = k->attrs;
    if (s->n < RW_PARALLEL_FROM || k->threads < 2) {
        for (int64_t from = 0; from < s->n; from += BLOCK) scale_block(s, from);
        return RW_OK;
    }
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t from = 0; from < s->n; from += BLOCK) scale_block(s, from);
    return RW_OK;
}
