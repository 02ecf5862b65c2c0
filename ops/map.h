/*
 * The one loop of all element-wise kernels: up to three inputs of any strides (0 along a broadcast axis), up to two dense
 * outputs, one function on vectors. Everything is inlined per op and type, so the function costs nothing. Writes over an
 * input are safe: each vector is loaded whole before it is stored.
 */
#ifndef RW_OPS_MAP_H
#define RW_OPS_MAP_H

#include "ops/util.h"
#include "ops/vec.h"

#define MAP_INPUTS 3
#define MAP_OUTPUTS 2

typedef void (*map_vf)(const vf *x, vf *y, double a);
typedef void (*map_vd)(const vd *x, vd *y, double a);

/* The outputs' shape with neighbouring axes joined wherever every input allows it. */
struct map_axes {
    int rank;
    int64_t dim[RW_MAX_RANK];
    int64_t stride[MAP_INPUTS][RW_MAX_RANK];
};

static inline int64_t map_stride(const rw_layout *in, const rw_layout *out, int axis)
{
    const int i = axis - (out->rank - in->rank);
    return i < 0 || in->dim[i] == 1 ? 0 : in->stride[i];
}

static inline void map_join(const rw_kernel *k, int n_in, struct map_axes *m)
{
    const rw_layout *const out = k->out[0].layout;
    m->rank = 0;
    for (int axis = 0; axis < out->rank; axis++) {
        if (out->dim[axis] == 1) continue;
        bool joins = m->rank > 0;
        for (int i = 0; i < n_in && joins; i++)
            joins = m->stride[i][m->rank - 1] == map_stride(k->in[i].layout, out, axis) * out->dim[axis];
        if (!joins) m->dim[m->rank++] = 1;
        m->dim[m->rank - 1] *= out->dim[axis];
        for (int i = 0; i < n_in; i++) m->stride[i][m->rank - 1] = map_stride(k->in[i].layout, out, axis);
    }
    if (!m->rank) {
        m->rank = 1;
        m->dim[0] = 1;
        for (int i = 0; i < n_in; i++) m->stride[i][0] = 0;
    }
}

VEC_INLINE vf map_load_f(const void *p, rw_dtype dtype, int64_t at, int64_t stride, int64_t n)
{
    if (stride == 1 && n == VF_LANES) return vf_get(p, dtype, at);
    if (stride == 0) return vf_all(f_get(p, dtype, at));
    vf x = { 0 };
    for (int64_t i = 0; i < n; i++) x[i] = f_get(p, dtype, at + i * stride);
    return x;
}

VEC_INLINE vd map_load_d(const double *p, int64_t at, int64_t stride, int64_t n)
{
    if (stride == 1 && n == VD_LANES) return vd_load(p + at);
    if (stride == 0) return vd_all(p[at]);
    vd x = { 0 };
    for (int64_t i = 0; i < n; i++) x[i] = p[at + i * stride];
    return x;
}

/* n elements of the innermost axis. at[i]: first element of input i; to: first element of the outputs. */
VEC_INLINE void map_row_f(const rw_kernel *k, rw_dtype dtype, int n_in, int n_out, const int64_t *at, const int64_t *stride,
                          int64_t to, int64_t n, map_vf f, double a)
{
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const int64_t some = n - i < VF_LANES ? n - i : VF_LANES;
        vf x[MAP_INPUTS], y[MAP_OUTPUTS];
        for (int j = 0; j < n_in; j++) x[j] = map_load_f(k->in[j].data, dtype, at[j] + i * stride[j], stride[j], some);
        f(x, y, a);
        for (int j = 0; j < n_out; j++) {
            if (some == VF_LANES) {
                vf_put(k->out[j].data, dtype, to + i, y[j]);
                continue;
            }
            for (int64_t l = 0; l < some; l++) f_put(k->out[j].data, dtype, to + i + l, y[j][l]);
        }
    }
}

VEC_INLINE void map_row_d(const rw_kernel *k, int n_in, int n_out, const int64_t *at, const int64_t *stride, int64_t to, int64_t n,
                          map_vd f, double a)
{
    for (int64_t i = 0; i < n; i += VD_LANES) {
        const int64_t some = n - i < VD_LANES ? n - i : VD_LANES;
        vd x[MAP_INPUTS], y[MAP_OUTPUTS];
        for (int j = 0; j < n_in; j++) x[j] = map_load_d(k->in[j].data, at[j] + i * stride[j], stride[j], some);
        f(x, y, a);
        for (int j = 0; j < n_out; j++) {
            double *const p = (double *)k->out[j].data + to + i;
            if (some == VD_LANES) vd_store(p, y[j]);
            else for (int64_t l = 0; l < some; l++) p[l] = y[j][l];
        }
    }
}

#define MAP_BLOCK 16384

/* Elements [from, to) in row-major order, to at most the end of MAP_BLOCK elements or of a row. */
VEC_INLINE void map_range(const rw_kernel *k, const struct map_axes *m, rw_dtype dtype, int n_in, int n_out, int64_t row,
                          int64_t begin, int64_t n, map_vf f, map_vd d, double a)
{
    int64_t at[MAP_INPUTS] = { 0 }, stride[MAP_INPUTS] = { 0 };
    int64_t rest = row;
    for (int axis = m->rank - 2; axis >= 0; axis--) {
        const int64_t i = rest % m->dim[axis];
        rest /= m->dim[axis];
        for (int j = 0; j < n_in; j++) at[j] += i * m->stride[j][axis];
    }
    for (int j = 0; j < n_in; j++) {
        stride[j] = m->stride[j][m->rank - 1];
        at[j] += begin * stride[j];
    }
    const int64_t to = row * m->dim[m->rank - 1] + begin;
    if (dtype == RW_F64) map_row_d(k, n_in, n_out, at, stride, to, n, d, a);
    else map_row_f(k, dtype, n_in, n_out, at, stride, to, n, f, a);
}

VEC_INLINE void map_all(const rw_kernel *k, rw_dtype dtype, int n_in, int n_out, map_vf f, map_vd d, double a)
{
    struct map_axes m;
    const int64_t numel = k->out[0].layout->numel;
    if (!numel) return;
    map_join(k, n_in, &m);
    const int64_t inner = m.dim[m.rank - 1], rows = numel / inner;
    const int64_t cuts = (inner + MAP_BLOCK - 1) / MAP_BLOCK;
    const bool parallel = numel >= RW_PARALLEL_FROM && k->threads > 1;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (parallel)
    for (int64_t i = 0; i < rows * cuts; i++) {
        const int64_t begin = i % cuts * MAP_BLOCK;
        map_range(k, &m, dtype, n_in, n_out, i / cuts, begin, inner - begin < MAP_BLOCK ? inner - begin : MAP_BLOCK, f, d, a);
    }
}

/* The kernel body: one instance per type. */
VEC_INLINE rw_status map_kernel(const rw_kernel *k, int n_in, int n_out, map_vf f, map_vd d, double a)
{
    switch (k->out[0].dtype) {
    case RW_F32: map_all(k, RW_F32, n_in, n_out, f, d, a); return RW_OK;
    case RW_BF16: map_all(k, RW_BF16, n_in, n_out, f, d, a); return RW_OK;
    case RW_F64: map_all(k, RW_F64, n_in, n_out, f, d, a); return RW_OK;
    default: return RW_ERR_UNSUPPORTED;
    }
}

#endif
