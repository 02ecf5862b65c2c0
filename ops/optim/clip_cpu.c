/* CPU kernels of gradient clipping: squares are summed in double, in blocks of fixed size, in order. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/common/vec_native.h"
#include "ops/optim/clip.h"
#include "ops/optim/update_ops.h"

#include <string.h>

#define BLOCK 4096
#define GROUP 1024 /* blocks whose sums are kept at a time */
#define LANES 8

/* Element i is added to sum i % 8; the eight sums are added as a tree. */
VEC_INLINE double block_squares(const void *grad, rw_dtype dtype, int64_t from, int64_t n)
{
    double sum[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) {
            const double g = dtype == RW_F64 ? ((const double *)grad)[from + i + l]
                                             : (double)f_get(grad, dtype, from + i + l);
            sum[l] += g * g;
        }
    for (int l = 0; i + l < n; l++) {
        const double g = dtype == RW_F64 ? ((const double *)grad)[from + i + l]
                                         : (double)f_get(grad, dtype, from + i + l);
        sum[l] += g * g;
    }
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}

static double block_sum(const rw_view *grad, int64_t from)
{
    const int64_t rest = grad->layout->numel - from, some = rest < BLOCK ? rest : BLOCK;
    if (grad->dtype == RW_F64) return block_squares(grad->data, RW_F64, from, some);
    if (grad->dtype == RW_BF16) return block_squares(grad->data, RW_BF16, from, some);
    if (grad->dtype == RW_F16) return block_squares(grad->data, RW_F16, from, some);
    return block_squares(grad->data, RW_F32, from, some);
}

struct squares {
    const rw_view *grad;
    int64_t from;
    double part[GROUP];
};

static void sum_blocks(void *of, int64_t first, int64_t end)
{
    struct squares *const s = of;
    for (int64_t b = first; b < end; b++) s->part[b] = block_sum(s->grad, s->from + b * BLOCK);
}

/* The same result for any number of threads. */
static double sum_squares(const rw_view *grad, int threads)
{
    const int64_t n = grad->layout->numel;
    double total = 0;
    struct squares s = { .grad = grad };
    for (; s.from < n; s.from += (int64_t)BLOCK * GROUP) {
        const int64_t rest = n - s.from, blocks = rest >= (int64_t)BLOCK * GROUP ? GROUP : (rest + BLOCK - 1) / BLOCK;
        rw_team_for(rest >= RW_PARALLEL_FROM ? threads : 1, blocks, sum_blocks, &s);
        for (int64_t b = 0; b < blocks; b++) total += s.part[b];
    }
    return total;
}

/* Multiplies n <= BLOCK elements by a factor, in place or to another buffer. */
VEC_INLINE void scale_f32(void *to, const void *data, rw_dtype dtype, int64_t from, int64_t n, float factor)
{
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) nf_put(to, dtype, from + i, nf_get(data, dtype, from + i) * factor);
    if (i < n) nf_put_some(to, dtype, from + i, n - i, nf_get_some(data, dtype, from + i, n - i) * factor);
}

static void scale_block(void *to, const rw_view *grad, int64_t from, double factor)
{
    const int64_t rest = grad->layout->numel - from, n = rest < BLOCK ? rest : BLOCK;
    const void *const data = grad->data;
    if (grad->dtype == RW_F64)
        for (int64_t i = from; i < from + n; i++) ((double *)to)[i] = ((const double *)data)[i] * factor;
    else if (grad->dtype == RW_BF16) scale_f32(to, data, RW_BF16, from, n, (float)factor);
    else if (grad->dtype == RW_F16) scale_f32(to, data, RW_F16, from, n, (float)factor);
    else scale_f32(to, data, RW_F32, from, n, (float)factor);
}

struct scaling {
    void *to;
    const rw_view *grad;
    double factor;
};

static void scale_blocks(void *of, int64_t first, int64_t end)
{
    const struct scaling *const s = of;
    for (int64_t b = first; b < end; b++) scale_block(s->to, s->grad, b * BLOCK, s->factor);
}

static void scale(void *to, const rw_view *grad, double factor, int threads)
{
    const int64_t n = grad->layout->numel;
    struct scaling s = { to, grad, factor };
    rw_team_for(n >= RW_PARALLEL_FROM ? threads : 1, (n + BLOCK - 1) / BLOCK, scale_blocks, &s);
}

rw_status RW_ISA_NAME(rw_clip_grad_norm_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_clip_grad_norm_cpu)(const rw_kernel *k)
{
    const double most = *(const double *)k->in[0].data;
    double sum = 0, *const sums = k->out[1].data;
    for (int i = 3; i < k->n_inputs; i++) {
        sums[i - 3] = rw_kernel_has(k, i) ? sum_squares(&k->in[i], k->threads) : 0;
        sum += sums[i - 3];
    }
    const struct rw_clip_attrs *const a = k->attrs;
    const double norm = sqrt(sum), factor = rw_clip_factor(norm, most, a->keeps_nonfinite);
    for (int i = 3; factor != 1 && i < k->n_inputs; i++)
        if (rw_kernel_has(k, i)) scale(k->in[i].data, &k->in[i], factor, k->threads);
    *(double *)k->out[0].data = norm;
    return RW_OK;
}

/* ---- gradients one by one ---- */

rw_status RW_ISA_NAME(rw_grad_squares_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_grad_squares_cpu)(const rw_kernel *k)
{
    *(double *)k->out[0].data = sum_squares(&k->in[0], k->threads);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_clip_factor_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_clip_factor_cpu)(const rw_kernel *k)
{
    const double most = *(const double *)k->in[0].data;
    double sum = 0;
    for (int i = 1; i < k->n_inputs; i++) sum += *(const double *)k->in[i].data;
    const double norm = sqrt(sum);
    *(double *)k->out[0].data = rw_clip_factor(norm, most, false);
    *(double *)k->out[1].data = norm;
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_clip_note_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_clip_note_cpu)(const rw_kernel *k)
{
    double *const sums = k->out[1].data;
    *(double *)k->out[0].data = *(const double *)k->in[0].data;
    for (int i = 1; i < k->n_inputs - 2; i++) sums[i - 1] = *(const double *)k->in[i].data;
    return RW_OK;
}

/* A factor of 1 leaves even a NaN unchanged. */
rw_status RW_ISA_NAME(rw_clip_scale_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_clip_scale_cpu)(const rw_kernel *k)
{
    const double factor = *(const double *)k->in[0].data;
    const rw_view *const g = &k->in[1];
    void *const to = k->out[0].data;
    if (factor != 1) scale(to, g, factor, k->threads);
    else if (to != g->data && g->layout->numel) memcpy(to, g->data, (size_t)g->layout->numel * rw_dtype_size(g->dtype));
    return RW_OK;
}
