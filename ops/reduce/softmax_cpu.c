/*
 * Softmax kernels: over the last axis a row at a time, over any other a vector of rows side by side. A row is read from
 * cache after its first pass; every form is safe over its input.
 */
#include "device/cpu/isa.h"
#include "ops/reduce/softmax.h"
#include "ops/common/lanes.h"
#include "ops/common/util.h"
#include "ops/common/vec_parts.h"

/* A row of any stride. */
struct row {
    const void *x;
    const void *z; /* second input, backward */
    void *y;
    int64_t at, stride, n;
    int64_t seen; /* elements before the mask begins */
    double scale;
};

VEC_INLINE double get(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? ((const double *)p)[i] : (double)f_get(p, dtype, i);
}

VEC_INLINE void put(void *p, rw_dtype dtype, int64_t i, double x)
{
    if (dtype == RW_F64) ((double *)p)[i] = x;
    else f_put(p, dtype, i, (float)x);
}

/* The vector at i; lanes from element `n` of the row on are 0. */
VEC_INLINE struct nf_parts load(const void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n)
{
    return nf_parts_get_some(p, dtype, at + i, n - i, 0);
}

VEC_INLINE void store(void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, struct nf_parts x)
{
    nf_parts_put_some(p, dtype, at + i, n - i, x);
}

/* Scaled scores; missing lanes are -inf. */
VEC_INLINE struct nf_parts scores(const struct row *r, rw_dtype dtype, int64_t i, float scale)
{
    struct nf_parts x = load(r->x, dtype, r->at, i, r->seen);
    for (int p = 0; p < NF_PARTS; p++) x.part[p] = x.part[p] * scale;
    return i + VF_LANES <= r->seen ? x : nf_parts_first(x, r->seen - i, -INFINITY);
}

/* Of a row's sum: 0 where the mask leaves nothing. */
VEC_INLINE float inverse_of(float total)
{
    return total > 0 || total != total ? 1 / total : 0;
}

/* Zeros behind the mask. */
VEC_INLINE void rest_of_row(const struct row *r, rw_dtype dtype)
{
    if (r->seen < r->n) memset((char *)r->y + (size_t)(r->at + r->seen) * float_size(dtype), 0,
                               (size_t)(r->n - r->seen) * float_size(dtype));
}

#define WAITING 4096 /* exponentials of a row that fit into the nearest cache beside it */

/* Exponentials wait in the output where that holds them exactly, else in a place of their own; those of a row too long
   for it are taken again. Of a logarithm the maximum is subtracted first: what is near it loses no digit to that. */
VEC_INLINE void softmax_row_f(const struct row *r, rw_dtype dtype, bool logarithm)
{
    const float scale = (float)r->scale;
    const bool keep = !logarithm && (dtype == RW_F32 || r->seen <= WAITING);
    float own[WAITING];
    float *const wait = dtype == RW_F32 ? (float *)r->y + r->at : own;
    struct nf_parts m = nf_parts_all(-INFINITY), sum = nf_parts_all(0);
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        const struct nf_parts x = scores(r, dtype, i, scale);
        for (int p = 0; p < NF_PARTS; p++) m.part[p] = nf_larger(m.part[p], x.part[p]);
    }
    float most = vf_max_lane(nf_parts_whole(m));
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        struct nf_parts e = scores(r, dtype, i, scale);
        for (int p = 0; p < NF_PARTS; p++) {
            e.part[p] = nf_exp(e.part[p] - most);
            sum.part[p] += e.part[p];
        }
        if (keep) store(wait, RW_F32, 0, i, r->seen, e);
    }
    const float total = nf_parts_sum(sum);
    const float inverse = inverse_of(total), log_total = logarithm ? logf(total) : 0;
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        struct nf_parts y = keep ? load(wait, RW_F32, 0, i, r->seen) : scores(r, dtype, i, scale);
        for (int p = 0; p < NF_PARTS; p++) {
            if (keep) y.part[p] = y.part[p] * inverse;
            else if (logarithm) y.part[p] = y.part[p] - most - log_total;
            else y.part[p] = nf_exp(y.part[p] - most) * inverse;
        }
        store(r->y, dtype, r->at, i, r->seen, y);
    }
    rest_of_row(r, dtype);
}

/* The same of a row that is no longer than a vector, which is read once. */
VEC_INLINE void softmax_short_f(const struct row *r, rw_dtype dtype, bool logarithm)
{
    struct nf_parts y = scores(r, dtype, 0, (float)r->scale), e;
    float most = vf_max_lane(nf_parts_whole(y));
    if (most == -INFINITY) most = 0;
    for (int p = 0; p < NF_PARTS; p++) e.part[p] = nf_exp(y.part[p] - most);
    const float total = nf_parts_sum(e);
    const float inverse = inverse_of(total), log_total = logarithm ? logf(total) : 0;
    for (int p = 0; p < NF_PARTS; p++) y.part[p] = logarithm ? y.part[p] - most - log_total : e.part[p] * inverse;
    store(r->y, dtype, r->at, 0, r->seen, y);
    rest_of_row(r, dtype);
}

VEC_INLINE void softmax_row_d(const struct row *r, rw_dtype dtype, bool logarithm)
{
    double most = -INFINITY, total = 0;
    for (int64_t i = 0; i < r->seen; i++) most = fmax(most, get(r->x, dtype, r->at + i * r->stride) * r->scale);
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < r->seen; i++) total += exp(get(r->x, dtype, r->at + i * r->stride) * r->scale - most);
    const double inverse = total > 0 || total != total ? 1 / total : 0, log_total = log(total);
    for (int64_t i = 0; i < r->seen; i++) {
        const double x = get(r->x, dtype, r->at + i * r->stride) * r->scale;
        put(r->y, dtype, r->at + i * r->stride, logarithm ? x - most - log_total : exp(x - most) * inverse);
    }
    for (int64_t i = r->seen; i < r->n; i++) put(r->y, dtype, r->at + i * r->stride, 0);
}

/* x: y of the forward pass, z: dy */
VEC_INLINE void backward_row_f(const struct row *r, rw_dtype dtype, bool logarithm)
{
    struct nf_parts dot = nf_parts_all(0);
    for (int64_t i = 0; i < r->n; i += VF_LANES) {
        const struct nf_parts y = load(r->x, dtype, r->at, i, r->n), dy = load(r->z, dtype, r->at, i, r->n);
        for (int p = 0; p < NF_PARTS; p++) {
            if (logarithm) dot.part[p] += dy.part[p];
            else dot.part[p] += y.part[p] * dy.part[p];
        }
    }
    const float sum = nf_parts_sum(dot), scale = (float)r->scale;
    for (int64_t i = 0; i < r->n; i += VF_LANES) {
        const struct nf_parts y = load(r->x, dtype, r->at, i, r->n), dy = load(r->z, dtype, r->at, i, r->n);
        struct nf_parts dx;
        for (int p = 0; p < NF_PARTS; p++) {
            if (logarithm) dx.part[p] = dy.part[p] - nf_exp(y.part[p]) * sum;
            else dx.part[p] = y.part[p] * (dy.part[p] - sum) * scale;
        }
        store(r->y, dtype, r->at, i, r->n, dx);
    }
}

VEC_INLINE void backward_row_d(const struct row *r, rw_dtype dtype, bool logarithm)
{
    double sum = 0;
    for (int64_t i = 0; i < r->n; i++) {
        const double dy = get(r->z, dtype, r->at + i * r->stride);
        sum += logarithm ? dy : get(r->x, dtype, r->at + i * r->stride) * dy;
    }
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t at = r->at + i * r->stride;
        const double y = get(r->x, dtype, at), dy = get(r->z, dtype, at);
        put(r->y, dtype, at, logarithm ? dy - exp(y) * sum : y * (dy - sum) * r->scale);
    }
}

/* Up to NF_LANES rows side by side: the axis is not the last one. Lanes do not meet, so their number is free. */
VEC_INLINE void softmax_columns(const struct row *r, rw_dtype dtype, int64_t lanes, bool logarithm)
{
    nf m = nf_all(-INFINITY), sum = { 0 };
    for (int64_t i = 0; i < r->n; i++) {
        const nf x = f_load(r->x, dtype, r->at + i * r->stride, lanes);
        m = nf_select((ni)(x > m), x, m);
    }
    m = nf_select((ni)(m == -INFINITY), (nf){ 0 }, m);
    for (int64_t i = 0; i < r->n; i++) sum += nf_exp(f_load(r->x, dtype, r->at + i * r->stride, lanes) - m);
    const nf inverse = nf_select((ni)(sum == 0), (nf){ 0 }, 1 / sum), log_sum = nf_log(sum);
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t at = r->at + i * r->stride;
        const nf x = f_load(r->x, dtype, at, lanes);
        f_save(r->y, dtype, at, lanes, logarithm ? x - m - log_sum : nf_exp(x - m) * inverse);
    }
}

/* x: y of the forward pass, z: dy */
VEC_INLINE void backward_columns(const struct row *r, rw_dtype dtype, int64_t lanes, bool logarithm)
{
    nf sum = { 0 };
    for (int64_t i = 0; i < r->n; i++) {
        const nf dy = f_load(r->z, dtype, r->at + i * r->stride, lanes);
        if (logarithm) sum += dy;
        else sum += f_load(r->x, dtype, r->at + i * r->stride, lanes) * dy;
    }
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t at = r->at + i * r->stride;
        const nf y = f_load(r->x, dtype, at, lanes), dy = f_load(r->z, dtype, at, lanes);
        if (logarithm) f_save(r->y, dtype, at, lanes, dy - nf_exp(y) * sum);
        else f_save(r->y, dtype, at, lanes, y * (dy - sum) * (float)r->scale);
    }
}

VEC_INLINE void one(const struct row *r, rw_dtype dtype, int64_t lanes, bool logarithm, bool backward)
{
    if (dtype == RW_F64) {
        if (backward) backward_row_d(r, dtype, logarithm);
        else softmax_row_d(r, dtype, logarithm);
    } else if (r->stride != 1) {
        if (backward && lanes == NF_LANES) backward_columns(r, dtype, NF_LANES, logarithm);
        else if (backward) backward_columns(r, dtype, lanes, logarithm);
        else if (lanes == NF_LANES) softmax_columns(r, dtype, NF_LANES, logarithm);
        else softmax_columns(r, dtype, lanes, logarithm);
    } else {
        if (backward) backward_row_f(r, dtype, logarithm);
        else if (r->n <= VF_LANES) softmax_short_f(r, dtype, logarithm);
        else softmax_row_f(r, dtype, logarithm);
    }
}

VEC_INLINE rw_status rows(const rw_kernel *k, bool logarithm, bool backward)
{
    const struct rw_softmax_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const rw_dtype dtype = k->in[0].dtype;
    const int axis = (int)(a->axis < 0 ? a->axis + l->rank : a->axis);
    int64_t inner = 1;
    for (int i = axis + 1; i < l->rank; i++) inner *= l->dim[i];
    if (!l->numel) return RW_OK;
    const int64_t n = l->dim[axis], s = a->causal ? l->dim[l->rank - 2] : 1;
    const int64_t side = dtype == RW_F64 || inner == 1 ? 1 : NF_LANES, pieces = (inner + side - 1) / side;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM / 4)
    for (int64_t i = 0; i < l->numel / (n * inner) * pieces; i++) {
        const int64_t c = i % pieces * side, lanes = inner - c < side ? inner - c : side;
        struct row r = { k->in[0].data, backward ? k->in[1].data : NULL, k->out[0].data,
                         i / pieces * n * inner + c, inner, n, n, a->scale };
        if (a->causal && !backward) {
            const int64_t seen = i % s + 1 + (n - s);
            r.seen = seen < 0 ? 0 : seen < n ? seen : n;
        }
        switch (dtype) {
        case RW_F64: one(&r, RW_F64, lanes, logarithm, backward); break;
        case RW_BF16: one(&r, RW_BF16, lanes, logarithm, backward); break;
        case RW_F16: one(&r, RW_F16, lanes, logarithm, backward); break;
        default: one(&r, RW_F32, lanes, logarithm, backward);
        }
    }
    return RW_OK;
}

#define KERNEL(name, logarithm, backward)                      \
    rw_status RW_ISA_NAME(name)(const rw_kernel *k);           \
    rw_status RW_ISA_NAME(name)(const rw_kernel *k)            \
    {                                                          \
        return rows(k, logarithm, backward);                   \
    }

KERNEL(rw_softmax_cpu, false, false)
KERNEL(rw_log_softmax_cpu, true, false)
KERNEL(rw_softmax_backward_cpu, false, true)
KERNEL(rw_log_softmax_backward_cpu, true, true)
