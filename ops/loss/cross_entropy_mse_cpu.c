/*
 * CPU kernels of cross_entropy and mse_loss. Cross-entropy: rows in parallel, their losses added in order. Mean squared
 * error: blocks of fixed length in lanes of float (double for float64), their sums in double, in order.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/elementwise_map.h"
#include "ops/common/util.h"
#include "ops/loss/loss.h"
#include "ops/loss/logits_row_cpu.h"

/* ---- cross-entropy ---- */

/* The arguments of the three kernels. x, y: logits and their gradient; y may be x, or NULL. */
struct call {
    rw_dtype dtype;
    int64_t rows, n;
    const void *x;
    void *y, *kept;
    const int32_t *target;
    int32_t ignore;
    int64_t counted; /* rows; -1: a target is out of range */
};

static struct call call_of(const rw_kernel *k, void *kept, void *y)
{
    const rw_layout *const l = k->in[0].layout;
    struct call c = { .dtype = k->in[0].dtype, .n = l->dim[l->rank - 1], .x = k->in[0].data, .y = y, .kept = kept,
                      .target = k->in[1].data,
                      .ignore = ((const struct rw_cross_entropy_attrs *)k->attrs)->ignore };
    c.rows = l->numel / c.n;
    c.counted = count_rows(c.target, c.rows, c.n, c.ignore);
    return c;
}

static void sum_row(const struct call *c, int64_t row)
{
    const int64_t at = row * c->n;
    struct kept *const kept = (struct kept *)c->kept + row; /* not used for float64 */
    if (c->dtype == RW_F64) ((struct kept_d *)c->kept)[row] = keep_row_d((const double *)c->x + at, c->n);
    else if (c->dtype == RW_BF16) *kept = keep_row(c->x, RW_BF16, at, c->n);
    else if (c->dtype == RW_F16) *kept = keep_row(c->x, RW_F16, at, c->n);
    else *kept = keep_row(c->x, RW_F32, at, c->n);
}

static double loss_of(const struct call *c, int64_t row)
{
    if (c->target[row] == c->ignore) return 0;
    const int64_t at = row * c->n + c->target[row];
    const struct kept_d kept = kept_of(c->kept, c->dtype, row);
    const double x = c->dtype == RW_F64 ? ((const double *)c->x)[at] : (double)f_get(c->x, c->dtype, at);
    return kept.most - x + kept.log;
}

static rw_status give_mean(const rw_kernel *k, const struct call *c, double sum)
{
    const double loss = c->counted ? sum / (double)c->counted : 0;
    if (k->out[0].dtype == RW_F64) *(double *)k->out[0].data = loss;
    else *(float *)k->out[0].data = (float)loss;
    return RW_OK;
}

static int threads_of(const rw_kernel *k, const struct call *c)
{
    return rw_threads_for(k, 4 * c->rows * c->n);
}

static void sum_rows(void *of, int64_t first, int64_t end)
{
    const struct call *const c = of;
    for (int64_t i = first; i < end; i++) sum_row(c, i);
}

rw_status RW_ISA_NAME(rw_cross_entropy_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_cpu)(const rw_kernel *k)
{
    const struct call c = call_of(k, k->out[1].data, NULL);
    if (c.counted < 0) return RW_ERR_ARGUMENT;
    rw_team_for(threads_of(k, &c), c.rows, sum_rows, &c);
    double sum = 0;
    for (int64_t i = 0; i < c.rows; i++) sum += loss_of(&c, i);
    return give_mean(k, &c, sum);
}

VEC_INLINE void backward_row(const struct call *c, rw_dtype dtype, int64_t row, float factor)
{
    const struct kept kept = ((const struct kept *)c->kept)[row];
    const int64_t n = c->n, at = row * n;
    const int32_t target = c->target[row];
    const float hit = target >= 0 ? f_get(c->x, dtype, at + target) : 0; /* before it is overwritten */
    for (int64_t i = 0; i < n; i += VF_LANES) {
        struct nf_parts y = row_load(c->x, dtype, at, i, n, 0);
        for (int p = 0; p < NF_PARTS; p++) y.part[p] = nf_exp(y.part[p] - kept.most - kept.log) * factor;
        nf_parts_put_some(c->y, dtype, at + i, n - i, y);
    }
    if (target < 0) return;
    const vf e = vf_exp(vf_all(hit - kept.most - kept.log));
    f_put(c->y, dtype, at + target, (e[0] - 1) * factor);
}

static void backward_row_d(const struct call *c, int64_t row, double factor)
{
    const struct kept_d kept = ((const struct kept_d *)c->kept)[row];
    const double *const x = (const double *)c->x + row * c->n;
    double *const y = (double *)c->y + row * c->n;
    for (int64_t i = 0; i < c->n; i++)
        y[i] = (exp(x[i] - kept.most - kept.log) - (i == c->target[row])) * factor;
}

static void write_gradient_row(const struct call *c, int64_t row, double factor)
{
    const size_t bytes = (size_t)c->n * rw_dtype_size(c->dtype);
    if (c->target[row] == c->ignore) memset((char *)c->y + (size_t)row * bytes, 0, bytes);
    else if (c->dtype == RW_F64) backward_row_d(c, row, factor);
    else if (c->dtype == RW_BF16) backward_row(c, RW_BF16, row, (float)factor);
    else if (c->dtype == RW_F16) backward_row(c, RW_F16, row, (float)factor);
    else backward_row(c, RW_F32, row, (float)factor);
}

/* The factor of the rows' gradients. */
static double factor_of(const struct call *c, const rw_view *dy)
{
    const double by = dy->dtype == RW_F64 ? *(const double *)dy->data : (double)*(const float *)dy->data;
    return c->counted ? by / (double)c->counted : 0;
}

/* Rows from `from` on, and where each stores its loss, or NULL. */
struct rows {
    const struct call *c;
    double factor, *loss;
    int64_t from;
};

static void write_gradient_rows(void *of, int64_t first, int64_t end)
{
    const struct rows *const r = of;
    for (int64_t i = first; i < end; i++) write_gradient_row(r->c, r->from + i, r->factor);
}

static void join_rows(void *of, int64_t first, int64_t end)
{
    const struct rows *const r = of;
    for (int64_t i = first; i < end; i++) {
        sum_row(r->c, r->from + i);
        r->loss[i] = loss_of(r->c, r->from + i);
        write_gradient_row(r->c, r->from + i, r->factor);
    }
}

rw_status RW_ISA_NAME(rw_cross_entropy_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_backward_cpu)(const rw_kernel *k)
{
    const struct call c = call_of(k, k->in[2].data, k->out[0].data);
    if (c.counted < 0) return RW_ERR_ARGUMENT;
    const struct rows r = { .c = &c, .factor = factor_of(&c, &k->in[3]) };
    rw_team_for(threads_of(k, &c), c.rows, write_gradient_rows, &r);
    return RW_OK;
}

#define JOINT_ROWS 1024 /* rows whose losses are stored to be added in order, because their logits are overwritten */

/* Loss and gradient, row by row: the second pass over a row reads the cache. */
rw_status RW_ISA_NAME(rw_cross_entropy_joint_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_joint_cpu)(const rw_kernel *k)
{
    const struct call c = call_of(k, k->out[1].data, k->out[2].data);
    if (c.counted < 0) return RW_ERR_ARGUMENT;
    double sum = 0, loss[JOINT_ROWS];
    struct rows r = { .c = &c, .factor = factor_of(&c, &k->in[2]), .loss = loss };
    for (; r.from < c.rows; r.from += JOINT_ROWS) {
        const int64_t some = c.rows - r.from < JOINT_ROWS ? c.rows - r.from : JOINT_ROWS;
        rw_team_for(threads_of(k, &c), some, join_rows, &r);
        for (int64_t i = 0; i < some; i++) sum += loss[i];
    }
    return give_mean(k, &c, sum);
}

/* -1 / n at the target of each counted row, else 0. */
rw_status RW_ISA_NAME(rw_cross_entropy_weights_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_weights_cpu)(const rw_kernel *k)
{
    const struct rw_cross_entropy_attrs *const a = k->attrs;
    const int32_t *const target = k->in[0].data;
    const int64_t rows = k->in[0].layout->numel, counted = count_rows(target, rows, a->classes, a->ignore);
    if (counted < 0) return RW_ERR_ARGUMENT;
    if (!k->out[0].layout->numel) return RW_OK;
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

#define SQUARE_RUN 1024 /* elements that are added in float */

/* The sum of squared differences of n elements, in runs of float that are added in double. */
VEC_INLINE double square_f(const rw_kernel *k, rw_dtype dtype, int64_t at, int64_t n)
{
    const void *const x = k->in[0].data, *const y = k->in[1].data;
    double total = 0;
    int64_t i = 0;
    while (i + VF_LANES <= n) {
        const int64_t stop = n - i < SQUARE_RUN ? n : i + SQUARE_RUN;
        struct nf_parts sum = nf_parts_all(0);
        for (; i + VF_LANES <= stop; i += VF_LANES)
            for (int p = 0; p < NF_PARTS; p++) {
                const int64_t l = at + i + p * NF_LANES;
                const nf d = nf_get(x, dtype, l) - nf_get(y, dtype, l);
                sum.part[p] += d * d;
            }
        total += (double)nf_parts_sum(sum);
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

static void square_blocks(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const int64_t n = k->in[0].layout->numel;
    for (int64_t b = first; b < end; b++) {
        const int64_t at = b * RW_MSE_BLOCK;
        ((double *)k->workspace)[b] = square(k, at, n - at < RW_MSE_BLOCK ? n - at : RW_MSE_BLOCK);
    }
}

rw_status RW_ISA_NAME(rw_mse_loss_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_mse_loss_cpu)(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel, blocks = rw_mse_blocks(n);
    const double *const part = k->workspace;
    double total = 0;
    rw_team_for(rw_threads_for(k, n), blocks, square_blocks, k);
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
