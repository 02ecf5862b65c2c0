/*
 * CPU kernels of the softmax family: over the last axis one row at a time, over any other axis a vector of adjacent
 * rows. After its first pass a row is read from the cache; the result may overwrite the input.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/reduce/softmax.h"
#include "ops/common/partial_vectors.h"
#include "ops/common/util.h"
#include "ops/common/vec_native_array.h"

/* A row of any stride. */
struct row {
    const void *x;
    const void *z; /* second input, in backward */
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

/* Loads a vector from i on; lanes from element `n` of the row on are 0. */
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

/* The inverse of a row's sum: 0 if the mask leaves no element. */
VEC_INLINE float inverse_of(float total)
{
    return total > 0 || total != total ? 1 / total : 0;
}

/* Writes zeros for masked elements. */
VEC_INLINE void rest_of_row(const struct row *r, rw_dtype dtype)
{
    if (r->seen < r->n) memset((char *)r->y + (size_t)(r->at + r->seen) * float_size(dtype), 0,
                               (size_t)(r->n - r->seen) * float_size(dtype));
}

#define WAITING 4096 /* exponentials of a row that fit in the L1 cache together with the row */

/* Exponentials are stored in the output if its type holds them exactly, else in a buffer; for a row too long for the
   buffer they are recomputed. For a logarithm the maximum is subtracted first, so elements near it lose no
   precision. */
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

/* The same for a row that fits in one vector, which is read once. */
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

/* x: y of the forward pass, z: dy. Masked elements of dy are not read: 0 times NaN is NaN. */
VEC_INLINE void backward_row_f(const struct row *r, rw_dtype dtype, bool logarithm)
{
    struct nf_parts dot = nf_parts_all(0);
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        const struct nf_parts y = load(r->x, dtype, r->at, i, r->seen), dy = load(r->z, dtype, r->at, i, r->seen);
        for (int p = 0; p < NF_PARTS; p++) {
            if (logarithm) dot.part[p] += dy.part[p];
            else dot.part[p] += y.part[p] * dy.part[p];
        }
    }
    const float sum = nf_parts_sum(dot), scale = (float)r->scale;
    for (int64_t i = 0; i < r->seen; i += VF_LANES) {
        const struct nf_parts y = load(r->x, dtype, r->at, i, r->seen), dy = load(r->z, dtype, r->at, i, r->seen);
        struct nf_parts dx;
        for (int p = 0; p < NF_PARTS; p++) {
            if (logarithm) dx.part[p] = dy.part[p] - nf_exp(y.part[p]) * sum;
            else dx.part[p] = y.part[p] * (dy.part[p] - sum) * scale;
        }
        store(r->y, dtype, r->at, i, r->seen, dx);
    }
    rest_of_row(r, dtype);
}

VEC_INLINE void backward_row_d(const struct row *r, rw_dtype dtype, bool logarithm)
{
    double sum = 0;
    for (int64_t i = 0; i < r->seen; i++) {
        const double dy = get(r->z, dtype, r->at + i * r->stride);
        sum += logarithm ? dy : get(r->x, dtype, r->at + i * r->stride) * dy;
    }
    for (int64_t i = 0; i < r->seen; i++) {
        const int64_t at = r->at + i * r->stride;
        const double y = get(r->x, dtype, at), dy = get(r->z, dtype, at);
        put(r->y, dtype, at, logarithm ? dy - exp(y) * sum : y * (dy - sum) * r->scale);
    }
    for (int64_t i = r->seen; i < r->n; i++) put(r->y, dtype, r->at + i * r->stride, 0);
}

/* Up to NF_LANES adjacent rows: the axis is not the last one. Lanes are independent, so vectors may have any width. */
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

/* Selects the function for one row, or for several adjacent rows. */
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

/* Rows along an axis; several adjacent ones if other axes follow it. */
struct rows {
    const rw_kernel *k;
    const struct rw_softmax_attrs *a;
    int64_t n, inner, side, pieces;
    int64_t queries; /* with a causal mask: row i of them sees i + 1 keys, plus the difference of the lengths */
};

/* Processes rows [first, end). */
VEC_INLINE void run_rows(const struct rows *s, int64_t first, int64_t end, bool logarithm, bool backward)
{
    const rw_kernel *const k = s->k;
    const int64_t n = s->n, inner = s->inner;
    for (int64_t i = first; i < end; i++) {
        const int64_t c = i % s->pieces * s->side, lanes = inner - c < s->side ? inner - c : s->side;
        struct row r = { k->in[0].data, backward ? k->in[1].data : NULL, k->out[0].data,
                         i / s->pieces * n * inner + c, inner, n, n, s->a->scale };
        if (s->a->causal) {
            const int64_t seen = i % s->queries + 1 + (n - s->queries);
            r.seen = seen < 0 ? 0 : seen < n ? seen : n;
        }
        switch (k->in[0].dtype) {
        case RW_F64: one(&r, RW_F64, lanes, logarithm, backward); break;
        case RW_BF16: one(&r, RW_BF16, lanes, logarithm, backward); break;
        case RW_F16: one(&r, RW_F16, lanes, logarithm, backward); break;
        default: one(&r, RW_F32, lanes, logarithm, backward);
        }
    }
}

static rw_status run(const rw_kernel *k, rw_team_range *some)
{
    const struct rw_softmax_attrs *const a = k->attrs;
    const rw_layout *const l = k->in[0].layout;
    const int axis = (int)(a->axis < 0 ? a->axis + l->rank : a->axis);
    struct rows s = { .k = k, .a = a, .n = l->dim[axis], .inner = 1 };
    for (int i = axis + 1; i < l->rank; i++) s.inner *= l->dim[i];
    if (!l->numel) return RW_OK;
    s.queries = a->causal ? l->dim[l->rank - 2] : 1;
    s.side = k->in[0].dtype == RW_F64 || s.inner == 1 ? 1 : NF_LANES;
    s.pieces = (s.inner + s.side - 1) / s.side;
    rw_team_for(rw_threads_for(k, 4 * l->numel), l->numel / (s.n * s.inner) * s.pieces, some, &s);
    return RW_OK;
}

#define KERNEL(name, logarithm, backward)                                \
    static void name##_rows(void *of, int64_t first, int64_t end)        \
    {                                                                    \
        run_rows(of, first, end, logarithm, backward);                   \
    }                                                                    \
    rw_status RW_ISA_NAME(name)(const rw_kernel *k);                     \
    rw_status RW_ISA_NAME(name)(const rw_kernel *k)                      \
    {                                                                    \
        return run(k, name##_rows);                                      \
    }

KERNEL(rw_softmax_cpu, false, false)
KERNEL(rw_log_softmax_cpu, true, false)
KERNEL(rw_softmax_backward_cpu, false, true)
KERNEL(rw_log_softmax_backward_cpu, true, true)
