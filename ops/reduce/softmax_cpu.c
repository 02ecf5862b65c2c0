/*
 * Softmax kernels over rows of the last axis, and element by element over any other. A row is read from cache after its
 * first pass; every form is safe over its input.
 */
#include "device/cpu/isa.h"
#include "ops/reduce/softmax.h"
#include "ops/util.h"
#include "ops/vec.h"

/* A row as floats or doubles, whatever its type and stride. */
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
    return vf_load_some((const char *)p + (size_t)(at + i) * (dtype == RW_BF16 ? 2 : 4), dtype, n - i, fill);
}

VEC_INLINE void store(void *p, rw_dtype dtype, int64_t at, int64_t i, int64_t n, vf x)
{
    if (i + VF_LANES <= n) vf_put(p, dtype, at + i, x);
    else vf_store_some((char *)p + (size_t)(at + i) * (dtype == RW_BF16 ? 2 : 4), dtype, n - i, x);
}

VEC_INLINE void softmax_row_f(const struct row *r, rw_dtype dtype, bool logarithm)
{
    const float scale = (float)r->scale;
    vf m = vf_all(-INFINITY), sum = { 0 };
    for (int64_t i = 0; i < r->seen; i += VF_LANES) m = vf_max(m, tail(r->x, dtype, r->at, i, r->seen, -INFINITY) * scale);
    float most = vf_max_lane(m);
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < r->seen; i += VF_LANES)
        sum += vf_exp(tail(r->x, dtype, r->at, i, r->seen, -INFINITY) * scale - most);
    const float total = vf_sum(sum);
    const float inverse = total > 0 || total != total ? 1 / total : 0, shift = most + logf(total);
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        const vf x = tail(r->x, dtype, r->at, i, r->seen, 0) * scale;
        if (logarithm) store(r->y, dtype, r->at, i, r->seen, x - shift);
        else store(r->y, dtype, r->at, i, r->seen, vf_exp(x - most) * inverse);
    }
    for (int64_t i = r->seen; i < r->n; i++) f_put(r->y, dtype, r->at + i, 0);
}

VEC_INLINE void softmax_row_d(const struct row *r, rw_dtype dtype, bool logarithm)
{
    double most = -INFINITY, total = 0;
    for (int64_t i = 0; i < r->seen; i++) most = fmax(most, get(r->x, dtype, r->at + i * r->stride) * r->scale);
    if (most == -INFINITY) most = 0;
    for (int64_t i = 0; i < r->seen; i++) total += exp(get(r->x, dtype, r->at + i * r->stride) * r->scale - most);
    const double inverse = total > 0 || total != total ? 1 / total : 0, shift = most + log(total);
    for (int64_t i = 0; i < r->seen; i++) {
        const double x = get(r->x, dtype, r->at + i * r->stride) * r->scale;
        put(r->y, dtype, r->at + i * r->stride, logarithm ? x - shift : exp(x - most) * inverse);
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

VEC_INLINE void one_row(const struct row *r, rw_dtype dtype, bool logarithm, bool backward)
{
    if (dtype == RW_F64 || r->stride != 1) {
        if (backward) backward_row_d(r, dtype, logarithm);
        else softmax_row_d(r, dtype, logarithm);
    } else {
        if (backward) backward_row_f(r, dtype, logarithm);
        else softmax_row_f(r, dtype, logarithm);
    }
}

VEC_INLINE rw_status rows(const rw_kernel *k, bool logarithm, bool backward)
{
    const struct rw_softmax_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const int axis = (int)(a->axis < 0 ? a->axis + l->rank : a->axis);
    int64_t inner = 1;
    for (int i = axis + 1; i < l->rank; i++) inner *= l->dim[i];
    const int64_t n = l->dim[axis], s = a->causal ? l->dim[l->rank - 2] : 1;
    if (!l->numel) return RW_OK;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (l->numel >= RW_PARALLEL_FROM / 4)
    for (int64_t i = 0; i < l->numel / n; i++) {
        struct row r = { k->in[0].data, backward ? k->in[1].data : NULL, k->out[0].data, i / inner * n * inner + i % inner, inner, n, n,
                         a->scale };
        if (a->causal && !backward) {
            const int64_t seen = i % s + 1 + (n - s);
            r.seen = seen < 0 ? 0 : seen < n ? seen : n;
        }
        switch (k->in[0].dtype) {
        case RW_F64: one_row(&r, RW_F64, logarithm, backward); break;
        case RW_BF16: one_row(&r, RW_BF16, logarithm, backward); break;
        default: one_row(&r, RW_F32, logarithm, backward);
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
