/*
 * Softmax kernels: over the last axis a row at a time, over any other a vector of rows side by side. A row is read from
 * cache after its first pass; every form is safe over its input.
 */
#include "device/cpu/isa.h"
#include "ops/reduce/softmax.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"

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

/* Lanes beyond `n` of the vector at i. */
VEC_INLINE vf tail(const void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, float fill)
{
    if (i + VF_LANES <= n) return vf_get(p, dtype, at + i);
    return vf_load_some((const char *)p + (size_t)(at + i) * float_size(dtype), dtype, n - i, fill);
}

VEC_INLINE void store(void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, vf x)
{
    if (i + VF_LANES <= n) vf_put(p, dtype, at + i, x);
    else vf_store_some((char *)p + (size_t)(at + i) * float_size(dtype), dtype, n - i, x);
}

/* Scaled scores; missing lanes are -inf. */
VEC_INLINE vf scores(const struct row *r, rw_dtype dtype, int64_t i, float scale)
{
    vf x = tail(r->x, dtype, r->at, i, r->seen, 0) * scale;
    for (int64_t l = r->seen - i; l < VF_LANES; l++) x[l] = -INFINITY;
    return x;
}

/* Exponentials wait in the output where that holds them exactly; elsewhere they are taken again. Of a logarithm the
   maximum is subtracted first: what is near it loses no digit to that. */
VEC_INLINE void softmax_row_f(const struct row *r, rw_dtype dtype, bool logarithm)
{
    const float scale = (float)r->scale;
    const bool keep = dtype == RW_F32 && !logarithm;
    vf m = vf_all(-INFINITY), sum = { 0 };
    for (int64_t i = 0; i < r->seen; i += VF_LANES) m = vf_max(m, scores(r, dtype, i, scale));
    float most = vf_max_lane(m);
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        const vf e = vf_exp(scores(r, dtype, i, scale) - most);
        sum += e;
        if (keep) store(r->y, dtype, r->at, i, r->seen, e);
    }
    const float total = vf_sum(sum);
    const float inverse = total > 0 || total != total ? 1 / total : 0, log_total = logf(total);
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        if (keep) store(r->y, dtype, r->at, i, r->seen, tail(r->y, dtype, r->at, i, r->seen, 0) * inverse);
        else if (logarithm) store(r->y, dtype, r->at, i, r->seen, scores(r, dtype, i, scale) - most - log_total);
        else store(r->y, dtype, r->at, i, r->seen, vf_exp(scores(r, dtype, i, scale) - most) * inverse);
    }
    if (r->seen < r->n) memset((char *)r->y + (size_t)(r->at + r->seen) * float_size(dtype), 0,
                               (size_t)(r->n - r->seen) * float_size(dtype));
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
    vf dot = { 0 };
    for (int64_t i = 0; i < r->n; i += VF_LANES) {
        const vf dy = tail(r->z, dtype, r->at, i, r->n, 0);
        if (logarithm) dot += dy;
        else dot += tail(r->x, dtype, r->at, i, r->n, 0) * dy;
    }
    const float sum = vf_sum(dot);
    for (int64_t i = 0; i < r->n; i += VF_LANES) {
        const vf y = tail(r->x, dtype, r->at, i, r->n, 0), dy = tail(r->z, dtype, r->at, i, r->n, 0);
        if (logarithm) store(r->y, dtype, r->at, i, r->n, dy - vf_exp(y) * sum);
        else store(r->y, dtype, r->at, i, r->n, y * (dy - sum) * (float)r->scale);
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

VEC_INLINE nf columns(const void *p, rw_dtype dtype, int64_t at, int64_t lanes)
{
    return lanes == NF_LANES ? nf_get(p, dtype, at) : nf_get_some(p, dtype, at, lanes);
}

VEC_INLINE void put_columns(void *p, rw_dtype dtype, int64_t at, int64_t lanes, nf x)
{
    if (lanes == NF_LANES) nf_put(p, dtype, at, x);
    else nf_put_some(p, dtype, at, lanes, x);
}

/* Up to NF_LANES rows side by side: the axis is not the last one. Lanes do not meet, so their number is free. */
VEC_INLINE void softmax_columns(const struct row *r, rw_dtype dtype, int64_t lanes, bool logarithm)
{
    nf m = nf_all(-INFINITY), sum = { 0 };
    for (int64_t i = 0; i < r->n; i++) {
        const nf x = columns(r->x, dtype, r->at + i * r->stride, lanes);
        m = nf_select((ni)(x > m), x, m);
    }
    m = nf_select((ni)(m == -INFINITY), (nf){ 0 }, m);
    for (int64_t i = 0; i < r->n; i++) sum += nf_exp(columns(r->x, dtype, r->at + i * r->stride, lanes) - m);
    const nf inverse = nf_select((ni)(sum == 0), (nf){ 0 }, 1 / sum), log_sum = nf_log(sum);
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t at = r->at + i * r->stride;
        const nf x = columns(r->x, dtype, at, lanes);
        put_columns(r->y, dtype, at, lanes, logarithm ? x - m - log_sum : nf_exp(x - m) * inverse);
    }
}

/* x: y of the forward pass, z: dy */
VEC_INLINE void backward_columns(const struct row *r, rw_dtype dtype, int64_t lanes, bool logarithm)
{
    nf sum = { 0 };
    for (int64_t i = 0; i < r->n; i++) {
        const nf dy = columns(r->z, dtype, r->at + i * r->stride, lanes);
        if (logarithm) sum += dy;
        else sum += columns(r->x, dtype, r->at + i * r->stride, lanes) * dy;
    }
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t at = r->at + i * r->stride;
        const nf y = columns(r->x, dtype, at, lanes), dy = columns(r->z, dtype, at, lanes);
        if (logarithm) put_columns(r->y, dtype, at, lanes, dy - nf_exp(y) * sum);
        else put_columns(r->y, dtype, at, lanes, y * (dy - sum) * (float)r->scale);
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
