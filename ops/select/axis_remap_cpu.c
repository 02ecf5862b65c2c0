/*
 * CPU kernels that move elements along an axis, by a rule or by a list of places, and of the sums that are their
 * gradients.
 */
#include "base/thread_team.h"
#include "ops/select/axis_remap.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/shape/copy_rows.h"

#define BLOCK 16384 /* elements that a thread takes at a time */

/* [outer, from, inner] to [outer, to, inner] */
struct remap_job {
    const struct rw_remap_runs *by; /* NULL: a list of places */
    const int32_t *index;
    int64_t from, to, inner;
};

/* Places [j, end) of one outer index, within a run. */
static void move_run(const struct remap_job *job, const struct rw_remap_run *r, const char *x, char *y, size_t size,
                     int64_t j, int64_t end)
{
    const int64_t bytes = job->inner * (int64_t)size;
    if (j < r->to) j = r->to;
    if (end > r->to + r->n) end = r->to + r->n;
    if (j >= end) return;
    x += (r->from + (j - r->to) * r->slope) * bytes;
    y += j * bytes;
    if (job->inner == 1) copy_strided(y, x, r->slope, end - j, size);
    else copy_rows(y, bytes, x, r->slope * bytes, (size_t)bytes, end - j);
}

/* Rows of one element by a list: without a call for each. */
#define PICK(size, type)                                                                                   \
    static void pick_##size(const int32_t *index, const void *x, void *y, int64_t n)                       \
    {                                                                                                      \
        for (int64_t i = 0; i < n; i++) ((type *)y)[i] = ((const type *)x)[index[i]];                      \
    }

PICK(1, uint8_t)
PICK(2, uint16_t)
PICK(4, uint32_t)
PICK(8, uint64_t)

static void pick(const struct remap_job *job, const char *x, char *y, size_t size, int64_t j, int64_t end)
{
    const size_t bytes = (size_t)job->inner * size;
    const int32_t *const index = job->index + j;
    y += (size_t)j * bytes;
    if (job->inner > 1)
        for (int64_t i = 0; i < end - j; i++) memcpy(y + (size_t)i * bytes, x + (size_t)index[i] * bytes, bytes);
    else if (size == 1) pick_1(index, x, y, end - j);
    else if (size == 2) pick_2(index, x, y, end - j);
    else if (size == 4) pick_4(index, x, y, end - j);
    else pick_8(index, x, y, end - j);
}

/* Rows [row, end) of [outer, to]. */
static void move_some(const struct remap_job *job, const rw_kernel *k, int64_t row, int64_t end)
{
    const size_t size = rw_dtype_size(k->out[0].dtype);
    int64_t outer = row / job->to, j = row % job->to;
    for (; row < end; outer++, j = 0) {
        const int64_t n = job->to - j < end - row ? job->to - j : end - row;
        const char *const x = (const char *)k->in[0].data + (size_t)(outer * job->from * job->inner) * size;
        char *const y = (char *)k->out[0].data + (size_t)(outer * job->to * job->inner) * size;
        if (!job->by) pick(job, x, y, size, j, j + n);
        else for (int i = 0; i < RW_REMAP_RUNS; i++) move_run(job, &job->by->run[i], x, y, size, j, j + n);
        row += n;
    }
}

struct moves {
    const struct remap_job *job;
    const rw_kernel *k;
    int64_t rows, some; /* all, of a block */
};

static void move_blocks(void *of, int64_t first, int64_t end)
{
    const struct moves *const m = of;
    for (int64_t i = first; i < end; i++) {
        const int64_t row = i * m->some;
        move_some(m->job, m->k, row, row + m->some < m->rows ? row + m->some : m->rows);
    }
}

static void move_all(const rw_kernel *k, const struct remap_job *job)
{
    const int64_t numel = k->out[0].layout->numel, rows = numel / job->inner;
    const struct moves m = { job, k, rows, job->inner < BLOCK ? BLOCK / job->inner : 1 };
    rw_team_for(rw_threads_for(k, numel), (rows + m.some - 1) / m.some, move_blocks, &m);
}

static int64_t inner_of(const rw_layout *l, int64_t axis)
{
    int64_t n = 1;
    for (int i = (int)axis + 1; i < l->rank; i++) n *= l->dim[i];
    return n;
}

static int64_t axis_of(const rw_kernel *k, const struct rw_remap_attrs *a)
{
    return a->axis < 0 ? a->axis + k->in[0].layout->rank : a->axis;
}

rw_status RW_ISA_NAME(rw_remap_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_remap_cpu)(const rw_kernel *k)
{
    const struct rw_remap_attrs *const a = k->attrs;
    const struct rw_remap_runs by = rw_remap_runs_of(a);
    const struct remap_job job = { &by, NULL, a->from, a->to, inner_of(k->in[0].layout, axis_of(k, a)) };
    if (k->out[0].layout->numel) move_all(k, &job);
    return RW_OK;
}

/* ---- sums of the places to which an element was copied ---- */

#define SUMS 2048

/* A section: elements [from, end) of one outer index, and columns [column, column + columns) of the inner ones; all
   columns if it has more than one element. */
struct sums {
    const struct rw_remap_attrs *a;
    struct rw_remap_runs by;
    const void *dy;
    int64_t inner, from, end, column, columns;
};

VEC_INLINE float f_one(const void *x, rw_dtype dtype, int64_t at)
{
    return f_get(x, dtype, at);
}

/* There is memory after sum: adding 0 there changes no sum, because sums are never -0. */
VEC_INLINE void f_add(float *sum, const void *x, rw_dtype dtype, int64_t at, int64_t n)
{
    int64_t l = 0;
    for (; l + NF_LANES <= n; l += NF_LANES) *(nf *)(sum + l) += nf_get(x, dtype, at + l);
    if (l < n) *(nf *)(sum + l) += nf_get_some(x, dtype, at + l, n - l);
}

VEC_INLINE void f_store(void *y, rw_dtype dtype, int64_t at, const float *sum, int64_t n)
{
    int64_t l = 0;
    for (; l + NF_LANES <= n; l += NF_LANES) nf_put(y, dtype, at + l, *(const nf *)(sum + l));
    if (l < n) nf_put_some(y, dtype, at + l, n - l, *(const nf *)(sum + l));
}

VEC_INLINE double d_one(const void *x, rw_dtype dtype, int64_t at)
{
    return ((const double *)x)[at];
}

VEC_INLINE void d_add(double *sum, const void *x, rw_dtype dtype, int64_t at, int64_t n)
{
    for (int64_t l = 0; l < n; l++) sum[l] += ((const double *)x)[at + l];
}

VEC_INLINE void d_store(void *y, rw_dtype dtype, int64_t at, const double *sum, int64_t n)
{
    memcpy((double *)y + at, sum, (size_t)n * sizeof *sum);
}

#define T float
#define F(name) f_##name
#include "ops/select/axis_remap_sums_tmpl.h"
#undef T
#undef F
#define T double
#define F(name) d_##name
#include "ops/select/axis_remap_sums_tmpl.h"

static void sum_share(const struct sums *s, rw_dtype dtype, int64_t outer, void *dx)
{
    switch (dtype) {
    case RW_F32: f_sum_share(s, RW_F32, outer, dx); return;
    case RW_BF16: f_sum_share(s, RW_BF16, outer, dx); return;
    case RW_F16: f_sum_share(s, RW_F16, outer, dx); return;
    default: d_sum_share(s, RW_F64, outer, dx); return;
    }
}

/* Cut into sections of `some` places along the axis and `columns` columns after it. */
struct back {
    const rw_kernel *k;
    struct sums all;
    int64_t some, columns, shares, cuts;
};

static void sum_shares(void *of, int64_t first, int64_t end)
{
    const struct back *const b = of;
    const int64_t extent = b->all.a->from;
    for (int64_t i = first; i < end; i++) {
        struct sums s = b->all;
        s.from = i / b->cuts % b->shares * b->some, s.column = i % b->cuts * b->columns;
        s.end = s.from + b->some < extent ? s.from + b->some : extent;
        s.columns = s.inner - s.column < b->columns ? s.inner - s.column : b->columns;
        sum_share(&s, b->k->out[0].dtype, i / b->cuts / b->shares, b->k->out[0].data);
    }
}

rw_status RW_ISA_NAME(rw_remap_back_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_remap_back_cpu)(const rw_kernel *k)
{
    const struct rw_remap_attrs *const a = k->attrs;
    const int64_t inner = inner_of(k->out[0].layout, a->axis), numel = k->out[0].layout->numel;
    if (!numel) return RW_OK;
    struct back b = { .k = k,
                      .all = { .a = a, .by = rw_remap_runs_of(a), .dy = k->in[0].data, .inner = inner },
                      .some = inner < SUMS ? SUMS / inner : 1,
                      .columns = inner < SUMS ? inner : SUMS };
    b.shares = (a->from + b.some - 1) / b.some;
    b.cuts = (inner + b.columns - 1) / b.columns;
    rw_team_for(rw_threads_for(k, numel), numel / (a->from * inner) * b.shares * b.cuts, sum_shares, &b);
    return RW_OK;
}

/* ---- index_select: the same moves by a list ---- */

rw_status RW_ISA_NAME(rw_index_select_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_index_select_cpu)(const rw_kernel *k)
{
    const int64_t axis = *(const int64_t *)k->attrs, n = k->in[1].layout->numel;
    const rw_layout *const x = k->in[0].layout;
    const int at = (int)(axis < 0 ? axis + x->rank : axis);
    const int32_t *const index = k->in[1].data;
    const struct remap_job job = { NULL, index, x->dim[at], n, inner_of(x, at) };
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= x->dim[at]) return RW_ERR_ARGUMENT;
    if (k->out[0].layout->numel) move_all(k, &job);
    return RW_OK;
}
