/* CPU kernels of cross-entropy by row (row_cross_entropy.c): rows in parallel, each on one thread. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/loss/logits_row_cpu.h"
#include "ops/loss/row_cross_entropy.h"

#include <string.h>

/* A node's operands, and values common to all rows. */
struct rows {
    const rw_kernel *k;
    const void *x;
    const int32_t *target;
    const void *weight; /* NULL: 1 for each class */
    int64_t rows, classes, ignore;
    double smoothing, z;
    double each;  /* per class: smoothing / classes */
    double total; /* of all classes' weights; 0 without smoothing, when only the target's counts */
};

static double number(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* weights: the first input of the class weights */
static struct rows rows_of(const rw_kernel *k, int weights)
{
    const struct rw_row_loss_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const bool wide = k->in[0].dtype == RW_F64, given = k->n_inputs > weights;
    struct rows r = { .k = k, .x = k->in[0].data, .target = k->in[1].data, .ignore = a->ignore };
    r.classes = l->dim[l->rank - 1];
    r.rows = l->numel / r.classes;
    r.smoothing = wide ? a->smoothing : (double)(float)a->smoothing;
    r.z = wide ? a->z : (double)(float)a->z;
    r.each = r.smoothing / (double)r.classes;
    r.weight = given ? k->in[weights].data : NULL;
    if (r.smoothing > 0)
        r.total = given ? number(k->in[weights + 1].data, k->in[weights + 1].dtype, 0) : (double)r.classes;
    return r;
}

static double weight_of(const struct rows *r, int64_t class)
{
    return r->weight ? number(r->weight, rw_loss_dtype(r->k->in[0].dtype), class) : 1;
}

/* Weighted sum of (logit - largest logit) over a row: a common offset of the logits adds no rounding error. */
VEC_INLINE double sum_row(const struct rows *r, rw_dtype dtype, int64_t at, float most)
{
    const bool weighted = r->weight != NULL;
    struct nf_parts sum = nf_parts_all(0), w = nf_parts_all(1);
    for (int64_t i = 0; i < r->classes; i += VF_LANES) {
        const struct nf_parts x = row_load(r->x, dtype, at, i, r->classes, most);
        if (weighted) w = row_load(r->weight, RW_F32, 0, i, r->classes, 0);
        for (int p = 0; p < NF_PARTS; p++) sum.part[p] += (x.part[p] - most) * w.part[p];
    }
    return (double)nf_parts_sum(sum);
}

static double sum_row_d(const struct rows *r, int64_t at, double most)
{
    const double *const x = (const double *)r->x + at;
    double sum = 0;
    for (int64_t i = 0; i < r->classes; i++) sum += weight_of(r, i) * (x[i] - most);
    return sum;
}

/* The row's loss; its kept values have been stored. */
VEC_INLINE double loss_of(const struct rows *r, rw_dtype dtype, int64_t row)
{
    const int64_t at = row * r->classes, hit = at + r->target[row];
    const struct kept_d kept = kept_of(r->k->out[1].data, dtype, row);
    const double lse = kept.most + kept.log;
    const double x = dtype == RW_F64 ? ((const double *)r->x)[hit] : (double)f_get(r->x, dtype, hit);
    double loss = (1 - r->smoothing) * weight_of(r, r->target[row]) * (kept.most - x + kept.log) + r->z * lse * lse;
    if (r->smoothing > 0)
        loss += r->each * (r->total * kept.log - (dtype == RW_F64 ? sum_row_d(r, at, kept.most)
                                                                  : sum_row(r, dtype, at, (float)kept.most)));
    return loss;
}

VEC_INLINE void forward_row(const struct rows *r, rw_dtype dtype, int64_t row)
{
    const int64_t at = row * r->classes;
    const bool counts = r->target[row] != r->ignore;
    void *const losses = r->k->out[0].data, *const kept = r->k->out[1].data;
    if (dtype == RW_F64) {
        ((struct kept_d *)kept)[row] = counts ? keep_row_d((const double *)r->x + at, r->classes)
                                              : (struct kept_d){ 0 };
        ((double *)losses)[row] = counts ? loss_of(r, dtype, row) : 0;
    } else {
        ((struct kept *)kept)[row] = counts ? keep_row(r->x, dtype, at, r->classes) : (struct kept){ 0 };
        ((float *)losses)[row] = counts ? (float)loss_of(r, dtype, row) : 0;
    }
}

/* The gradient of one row, written over its logits. */
VEC_INLINE void backward_row(const struct rows *r, rw_dtype dtype, int64_t row)
{
    const int32_t target = r->target[row];
    const int64_t at = row * r->classes, n = r->classes;
    const struct kept kept = ((const struct kept *)r->k->in[2].data)[row];
    const double lse = (double)kept.most + (double)kept.log;
    const double dy = (double)((const float *)r->k->in[3].data)[row];
    const float own = (float)(dy * (1 - r->smoothing) * weight_of(r, target)), each = (float)(dy * r->each);
    const float rest = (float)(dy * (r->each * r->total + 2 * r->z * lse)), all = own + rest;
    const float hit = f_get(r->x, dtype, at + target); /* before it is overwritten */
    void *const to = r->k->out[0].data;
    const bool smooth = r->smoothing > 0, weighted = smooth && r->weight;
    struct nf_parts less = nf_parts_all(1);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        struct nf_parts y = row_load(r->x, dtype, at, i, n, 0);
        if (weighted) less = row_load(r->weight, RW_F32, 0, i, n, 0);
        for (int p = 0; p < NF_PARTS; p++) {
            y.part[p] = nf_exp(y.part[p] - kept.most - kept.log) * all;
            if (smooth) y.part[p] = y.part[p] - less.part[p] * each;
        }
        nf_parts_put_some(to, dtype, at + i, n - i, y);
    }
    const float e = vf_exp(vf_all(hit - kept.most - kept.log))[0];
    const float spread = smooth ? each * (float)weight_of(r, target) : 0;
    f_put(to, dtype, at + target, (e - 1) * own + (e * rest - spread));
}

static void backward_row_d(const struct rows *r, int64_t row)
{
    const struct kept_d kept = ((const struct kept_d *)r->k->in[2].data)[row];
    const double lse = kept.most + kept.log, dy = ((const double *)r->k->in[3].data)[row];
    const double own = dy * (1 - r->smoothing) * weight_of(r, r->target[row]);
    const double rest = dy * (r->each * r->total + 2 * r->z * lse), each = dy * r->each;
    const double *const x = (const double *)r->x + row * r->classes;
    double *const y = (double *)r->k->out[0].data + row * r->classes;
    for (int64_t i = 0; i < r->classes; i++) {
        const double e = exp(x[i] - kept.most - kept.log);
        y[i] = (e - (i == r->target[row])) * own + (e * rest - (r->smoothing > 0 ? each * weight_of(r, i) : 0));
    }
}

VEC_INLINE void backward_any(const struct rows *r, rw_dtype dtype, int64_t row)
{
    const size_t bytes = (size_t)r->classes * rw_dtype_size(dtype);
    if (r->target[row] == r->ignore) memset((char *)r->k->out[0].data + (size_t)row * bytes, 0, bytes);
    else if (dtype == RW_F64) backward_row_d(r, row);
    else backward_row(r, dtype, row);
}

typedef void (*row_fn)(const struct rows *r, int64_t row);

#define EACH_TYPE(name, fn)                                                                   \
    static void name##_f32(const struct rows *r, int64_t row) { fn(r, RW_F32, row); }         \
    static void name##_bf16(const struct rows *r, int64_t row) { fn(r, RW_BF16, row); }       \
    static void name##_f16(const struct rows *r, int64_t row) { fn(r, RW_F16, row); }         \
    static void name##_f64(const struct rows *r, int64_t row) { fn(r, RW_F64, row); }         \
    static const row_fn name[RW_DTYPE_COUNT] = { [RW_F32] = name##_f32, [RW_BF16] = name##_bf16, \
                                                 [RW_F16] = name##_f16, [RW_F64] = name##_f64 };

EACH_TYPE(forwards, forward_row)
EACH_TYPE(backwards, backward_any)

struct some_rows {
    const struct rows *r;
    row_fn fn;
};

static void run_some(void *of, int64_t first, int64_t end)
{
    const struct some_rows *const s = of;
    for (int64_t i = first; i < end; i++) s->fn(s->r, i);
}

static rw_status run(const struct rows *r, const row_fn *fns)
{
    const row_fn fn = fns[r->k->in[0].dtype];
    if (!fn) return RW_ERR_UNSUPPORTED;
    if (count_rows(r->target, r->rows, r->classes, r->ignore) < 0) return RW_ERR_ARGUMENT;
    rw_team_for(rw_threads_for(r->k, 4 * r->rows * r->classes), r->rows, run_some, &(struct some_rows){ r, fn });
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_cross_entropy_rows_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_rows_cpu)(const rw_kernel *k)
{
    const struct rows r = rows_of(k, 2);
    return run(&r, forwards);
}

rw_status RW_ISA_NAME(rw_cross_entropy_rows_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_rows_backward_cpu)(const rw_kernel *k)
{
    const struct rows r = rows_of(k, 4);
    return run(&r, backwards);
}

static void put(const rw_view *v, int64_t i, double x)
{
    if (v->dtype == RW_F64) ((double *)v->data)[i] = x;
    else ((float *)v->data)[i] = (float)x;
}

rw_status RW_ISA_NAME(rw_cross_entropy_share_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_share_cpu)(const rw_kernel *k)
{
    const struct rw_row_loss_attrs *const a = k->attrs;
    const int32_t *const target = k->in[0].data;
    const bool given = k->n_inputs > 1;
    double sum = 0;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) {
        if (target[i] == a->ignore) continue;
        if (given && (target[i] < 0 || target[i] >= a->classes)) return RW_ERR_ARGUMENT;
        sum += given ? number(k->in[1].data, k->in[1].dtype, target[i]) : 1;
    }
    put(&k->out[0], 0, sum != 0 ? 1 / sum : 0);
    return RW_OK;
}

/* The shares of all rows' classes, and whether rows count. */
rw_status RW_ISA_NAME(rw_cross_entropy_shares_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_cross_entropy_shares_cpu)(const rw_kernel *k)
{
    const struct rw_row_loss_attrs *const a = k->attrs;
    const int32_t *const target = k->in[0].data;
    const int64_t rows = k->in[0].layout->numel;
    const double smoothing = k->out[0].dtype == RW_F64 ? a->smoothing : (double)(float)a->smoothing;
    if (count_rows(target, rows, a->classes, a->ignore) < 0) return RW_ERR_ARGUMENT;
    for (int64_t i = 0; i < rows; i++) {
        const bool counts = target[i] != a->ignore;
        put(&k->out[1], i, counts);
        for (int64_t c = 0; c < a->classes; c++) {
            const double w = k->n_inputs > 1 ? number(k->in[1].data, k->in[1].dtype, c) : 1;
            const double share = smoothing / (double)a->classes + (c == target[i] ? 1 - smoothing : 0);
            put(&k->out[0], i * a->classes + c, counts && share > 0 ? w * share : 0); /* w may be infinite */
        }
    }
    return RW_OK;
}
