/* AdamW: one pass over parameter, gradient and both moments, each element by itself. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/optim/adamw.h"

#define BLOCK 4096

static void update_f64(const struct rw_adamw_tensor *t, const struct rw_adamw_row *s, int64_t from, int64_t n)
{
    double *const p = t->param, *const m = t->m, *const v = t->v;
    for (int64_t i = from; i < from + n; i++) {
        const double g = ((const double *)t->grad)[i];
        m[i] = s->beta1 * m[i] + (1 - s->beta1) * g;
        v[i] = s->beta2 * v[i] + (1 - s->beta2) * g * g;
        const double x = p[i] * (1 - s->lr * s->weight_decay);
        p[i] = x - s->lr * (m[i] / s->correction1) / (sqrt(v[i] / s->correction2) + s->eps);
    }
}

/* n <= NF_LANES elements of a float32 or 16-bit parameter; the arithmetic is float32's. */
VEC_INLINE void update_lanes(const struct rw_adamw_tensor *t, const struct rw_adamw_row *s, rw_dtype dtype,
                             rw_dtype of_grad, int64_t i, int64_t n, bool whole)
{
    const bool narrow = dtype != RW_F32;
    float *const to = narrow ? t->master : t->param;
#define GET(p, type) (whole ? nf_get(p, type, i) : nf_get_some(p, type, i, n))
#define PUT(p, type, x) (whole ? nf_put(p, type, i, x) : nf_put_some(p, type, i, n, x))
    const nf g = GET(t->grad, of_grad);
    const nf m = s->b1 * GET(t->m, RW_F32) + s->c1 * g;
    const nf v = s->b2 * GET(t->v, RW_F32) + s->c2 * g * g;
    const nf before = narrow && s->fresh ? GET(t->param, dtype) : GET(to, RW_F32);
    const nf x = before * s->decay - s->rate * m / (nf_sqrt(v) * s->root + s->eps32);
    PUT(t->m, RW_F32, m);
    PUT(t->v, RW_F32, v);
    PUT(to, RW_F32, x);
    if (narrow) PUT(t->param, dtype, x);
#undef GET
#undef PUT
}

VEC_INLINE void update_f32(const struct rw_adamw_tensor *t, const struct rw_adamw_row *row, rw_dtype dtype,
                           rw_dtype of_grad, int64_t from, int64_t n)
{
    const struct rw_adamw_row s = *row;
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) update_lanes(t, &s, dtype, of_grad, from + i, NF_LANES, true);
    if (i < n) update_lanes(t, &s, dtype, of_grad, from + i, n - i, false);
}

static void update_block(const struct rw_adamw_tensor *t, const struct rw_adamw_row *s, int64_t from)
{
    const int64_t n = t->n - from < BLOCK ? t->n - from : BLOCK;
    const bool wide = t->grad_dtype == RW_F32;
    if (t->dtype == RW_F64) update_f64(t, s, from, n);
    else if (t->dtype == RW_F32) update_f32(t, s, RW_F32, RW_F32, from, n);
    else if (t->dtype == RW_BF16 && wide) update_f32(t, s, RW_BF16, RW_F32, from, n);
    else if (t->dtype == RW_BF16) update_f32(t, s, RW_BF16, RW_BF16, from, n);
    else if (wide) update_f32(t, s, RW_F16, RW_F32, from, n);
    else update_f32(t, s, RW_F16, RW_F16, from, n);
}

static void update(const struct rw_adamw_tensor *t, const struct rw_adamw_row *s, int threads)
{
    if (t->n < RW_PARALLEL_FROM || threads < 2) {
        for (int64_t from = 0; from < t->n; from += BLOCK) update_block(t, s, from);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t from = 0; from < t->n; from += BLOCK) update_block(t, s, from);
}

rw_status RW_ISA_NAME(rw_adamw_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_adamw_cpu)(const rw_kernel *k)
{
    const struct rw_adamw_row *const rows = k->in[0].data;
    const int n = (int)k->in[0].layout->dim[0];
    int masters = 0;
    for (int i = 0; i < n; i++) {
        const struct rw_adamw_tensor t = rw_adamw_tensor_of(k, n, i, &masters);
        if (t.grad) update(&t, &rows[i], k->threads);
    }
    return RW_OK;
}
