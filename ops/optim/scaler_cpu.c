/* CPU kernels of loss scaling: unscales gradients and tests them in one pass; and advances the scale. */
#include "ops/optim/scaler.h"

#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"

#define BLOCK 4096

/* Unscales n <= BLOCK elements, in place or to another buffer. x - x is 0 for a finite x and NaN otherwise, so the sum
   of these differences is NaN if an element is not finite. */
VEC_INLINE bool unscale_f(void *to, const void *data, rw_dtype dtype, int64_t from, int64_t n, float inverse)
{
    nf all = { 0 };
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) {
        nf_put(to, dtype, from + i, nf_get(data, dtype, from + i) * inverse);
        const nf x = nf_get(to, dtype, from + i);
        all += x - x;
    }
    if (i < n) {
        nf_put_some(to, dtype, from + i, n - i, nf_get_some(data, dtype, from + i, n - i) * inverse);
        const nf x = nf_get_some(to, dtype, from + i, n - i);
        all += x - x;
    }
    bool finite = true;
    for (int l = 0; l < NF_LANES; l++) finite &= all[l] == 0;
    return finite;
}

static bool unscale_d(double *to, const double *x, int64_t n, double inverse)
{
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        to[i] = x[i] * inverse;
        finite &= to[i] - to[i] == 0;
    }
    return finite;
}

static bool unscale_block(void *to, const rw_view *g, int64_t from, double inverse)
{
    const int64_t rest = g->layout->numel - from, n = rest < BLOCK ? rest : BLOCK;
    if (g->dtype == RW_F64) return unscale_d((double *)to + from, (const double *)g->data + from, n, inverse);
    if (g->dtype == RW_BF16) return unscale_f(to, g->data, RW_BF16, from, n, (float)inverse);
    if (g->dtype == RW_F16) return unscale_f(to, g->data, RW_F16, from, n, (float)inverse);
    return unscale_f(to, g->data, RW_F32, from, n, (float)inverse);
}

struct unscaling {
    void *to;
    const rw_view *g;
    double inverse;
    bool found; /* an element that is not finite */
};

static void unscale_blocks(void *of, int64_t first, int64_t end)
{
    struct unscaling *const u = of;
    bool finite = true;
    for (int64_t b = first; b < end; b++) finite &= unscale_block(u->to, u->g, b * BLOCK, u->inverse);
    if (!finite) __atomic_store_n(&u->found, true, __ATOMIC_RELAXED);
}

/* False: an element is not finite. */
static bool unscale(void *to, const rw_view *g, double inverse, int threads)
{
    const int64_t n = g->layout->numel;
    struct unscaling u = { to, g, inverse, false };
    rw_team_for(n >= RW_PARALLEL_FROM ? threads : 1, (n + BLOCK - 1) / BLOCK, unscale_blocks, &u);
    return !u.found;
}

static double inverse_of(const rw_kernel *k)
{
    return 1 / (double)((const float *)k->in[0].data)[RW_SCALER_SCALE];
}

rw_status RW_ISA_NAME(rw_unscale_grads_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_unscale_grads_cpu)(const rw_kernel *k)
{
    const double inverse = inverse_of(k);
    bool finite = true;
    for (int i = 2; i < k->n_inputs; i++)
        if (rw_kernel_has(k, i)) finite &= unscale(k->in[i].data, &k->in[i], inverse, k->threads);
    *(int32_t *)k->out[0].data = !finite;
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_unscale_grad_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_unscale_grad_cpu)(const rw_kernel *k)
{
    *(int32_t *)k->out[1].data = !unscale(k->out[0].data, &k->in[1], inverse_of(k), k->threads);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_any_found_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_any_found_cpu)(const rw_kernel *k)
{
    int32_t found = 0;
    for (int i = 0; i < k->n_inputs - 1; i++) found |= *(const int32_t *)k->in[i].data;
    *(int32_t *)k->out[0].data = found;
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_scaler_update_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_scaler_update_cpu)(const rw_kernel *k)
{
    rw_scaler_next(k->attrs, *(const int32_t *)k->in[0].data, k->out[0].data);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_update_rows_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_update_rows_cpu)(const rw_kernel *k)
{
    const int first = k->n_inputs - 3, rule = ((const struct rw_update_attrs *)k->attrs)->rule;
    const struct rw_update_row *const uploaded = k->in[first].data;
    int32_t(*const pending)[2] = k->out[0].data;
    struct rw_update_row *const due = k->out[1].data;
    const bool left_out = first && *(const int32_t *)k->in[0].data;
    for (int64_t i = 0; i < k->in[first].layout->dim[0]; i++)
        due[i] = rw_update_row_due(uploaded[i], rule, left_out, pending[i]);
    return RW_OK;
}
