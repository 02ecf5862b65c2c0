/*
 * The loop of all element-wise CPU kernels: up to three inputs of any strides (0 along a broadcast axis), up to two
 * dense outputs, one function on vectors. MAP_FUNCTIONS() generates an op's loop over a block of elements, once per
 * type, with the function inlined. map_kernel() cuts the tensor into blocks and distributes them over threads.
 * Overwriting an input is safe: each vector is loaded completely before it is stored.
 */
#ifndef RW_OPS_COMMON_ELEMENTWISE_MAP_H
#define RW_OPS_COMMON_ELEMENTWISE_MAP_H

#include "base/thread_team.h"
#include "ops/common/coalesced_axes.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"

#define MAP_INPUTS RW_AXES_INPUTS
#define MAP_OUTPUTS 2

/* Elements of a block: enough to hide the cost of scheduling it, few enough to balance threads. */
#define MAP_BLOCK 16384

/* Prefetch distance in bytes. Values that forward kept are usually in main memory, and a kernel as short as gelu waits
   for its input longer than it computes. */
#define MAP_AHEAD 2048

/* Operand counts are compile-time constants, so these loops are unrolled and vectors stay in registers. */
#define MAP_UNROLL _Pragma("GCC unroll 3")

typedef void (*map_nf)(const nf *x, nf *y, double a);
typedef void (*map_nd)(const nd *x, nd *y, double a);

/* A kernel's work, cut into blocks: sections of a long innermost axis, or several rows of a short one. */
struct map_job {
    const rw_kernel *k;
    struct rw_axes m;
    double a;
    int64_t inner, rows;
    int64_t cuts;  /* blocks per row, or 1 */
    int64_t group; /* rows per block, or 1 */
};

typedef void (*map_block)(const struct map_job *job, int64_t block);

/* Not inlined: the call costs less than compiling this into every op. */
static __attribute__((noinline, unused)) nf map_gather_f(const void *p, rw_dtype dtype, int64_t at, int64_t stride,
                                                         int64_t n)
{
    nf x = { 0 };
    for (int64_t i = 0; i < n; i++) x[i] = f_get(p, dtype, at + i * stride);
    return x;
}

VEC_INLINE nf map_load_f(const void *p, rw_dtype dtype, int64_t at, int64_t stride, int64_t n)
{
    if (stride == 1) return n == NF_LANES ? nf_get(p, dtype, at) : nf_get_rest(p, dtype, at, n);
    if (stride == 0) return nf_all(f_get(p, dtype, at));
    return map_gather_f(p, dtype, at, stride, n);
}

VEC_INLINE nd map_load_d(const double *p, int64_t at, int64_t stride, int64_t n)
{
    if (stride == 1 && n == ND_LANES) return *(const nd *)(p + at);
    if (stride == 0) return nd_all(p[at]);
    nd x = { 0 };
    for (int64_t i = 0; i < n; i++) x[i] = p[at + i * stride];
    return x;
}

/* A whole vector of a row with stride 1 or 0. */
VEC_INLINE nf map_load_near_f(const void *p, rw_dtype dtype, int64_t at, int64_t stride)
{
    return stride ? nf_get(p, dtype, at) : nf_all(f_get(p, dtype, at));
}

/* Computes n <= NF_LANES elements, from element i of the row whose inputs begin at at[] and whose outputs begin at
   `to`. near: whole vectors, and all strides are 0 or 1. */
VEC_INLINE void map_step_f(const rw_kernel *k, rw_dtype dtype, int n_in, int n_out, const int64_t *at,
                           const int64_t *stride, int64_t to, int64_t i, int64_t n, bool near, map_nf f, double a)
{
    nf x[MAP_INPUTS], y[MAP_OUTPUTS];
    MAP_UNROLL
    for (int j = 0; j < n_in; j++) {
        const int64_t from = at[j] + i * stride[j];
        x[j] = near ? map_load_near_f(k->in[j].data, dtype, from, stride[j])
                    : map_load_f(k->in[j].data, dtype, from, stride[j], n);
    }
    f(x, y, a);
    MAP_UNROLL
    for (int j = 0; j < n_out; j++) {
        if (near || n == NF_LANES) nf_put(k->out[j].data, dtype, to + i, y[j]);
        else nf_put_rest(k->out[j].data, dtype, to + i, n, y[j]);
    }
}

/* Prefetches the operands of a later vector. Prefetching beyond the end of a buffer has no effect. */
VEC_INLINE void map_fetch_ahead(const rw_kernel *k, rw_dtype dtype, int n_in, int n_out, const int64_t *at,
                                const int64_t *stride, int64_t to, int64_t i)
{
    const size_t size = float_size(dtype);
    MAP_UNROLL
    for (int j = 0; j < n_in; j++)
        if (stride[j] == 1)
            __builtin_prefetch((const void *)((uintptr_t)k->in[j].data + (size_t)(at[j] + i) * size + MAP_AHEAD), 0);
    MAP_UNROLL
    for (int j = 0; j < n_out; j++)
        __builtin_prefetch((const void *)((uintptr_t)k->out[j].data + (size_t)(to + i) * size + MAP_AHEAD), 1);
}

/* Computes whole vectors of rows with strides 0 and 1. Returns the number of elements computed. */
VEC_INLINE int64_t map_near_f(const rw_kernel *k, rw_dtype dtype, int n_in, int n_out, const int64_t *at,
                              const int64_t *stride, int64_t to, int64_t n, map_nf f, double a)
{
    int64_t i = 0;
    for (; i + NF_LANES <= n; i += NF_LANES) {
        map_fetch_ahead(k, dtype, n_in, n_out, at, stride, to, i);
        map_step_f(k, dtype, n_in, n_out, at, stride, to, i, NF_LANES, true, f, a);
    }
    return i;
}

/* One row in float64, with inputs of any strides. */
VEC_INLINE void map_row_d(const rw_kernel *k, int n_in, int n_out, const int64_t *at, const int64_t *stride, int64_t to,
                          int64_t n, map_nd f, double a)
{
    for (int64_t i = 0; i < n; i += ND_LANES) {
        const int64_t some = n - i < ND_LANES ? n - i : ND_LANES;
        nd x[MAP_INPUTS], y[MAP_OUTPUTS];
        MAP_UNROLL
        for (int j = 0; j < n_in; j++) x[j] = map_load_d(k->in[j].data, at[j] + i * stride[j], stride[j], some);
        f(x, y, a);
        MAP_UNROLL
        for (int j = 0; j < n_out; j++) {
            double *const p = (double *)k->out[j].data + to + i;
            if (some == ND_LANES) *(nd *)p = y[j];
            else for (int64_t l = 0; l < some; l++) p[l] = y[j][l];
        }
    }
}

/* One row. Dense inputs, the usual case, get a loop without strides. Inputs with strides 0 and 1 get a loop of whole
   vectors. The remaining elements and other strides share one general loop: the op's function is inlined at every call,
   and some functions take long to compile. */
VEC_INLINE void map_row(const rw_kernel *k, rw_dtype dtype, int n_in, int n_out, const int64_t *at,
                        const int64_t *stride, int64_t to, int64_t n, map_nf f, map_nd d, double a)
{
    static const int64_t dense[MAP_INPUTS] = { 1, 1, 1 };
    bool all = true, near = true;
    for (int j = 0; j < n_in; j++) all &= stride[j] == 1, near &= stride[j] == 0 || stride[j] == 1;
    if (dtype == RW_F64) {
        map_row_d(k, n_in, n_out, at, stride, to, n, d, a);
        return;
    }
    int64_t i = 0;
    if (all) i = map_near_f(k, dtype, n_in, n_out, at, dense, to, n, f, a);
    else if (near) i = map_near_f(k, dtype, n_in, n_out, at, stride, to, n, f, a);
    for (; i < n; i += NF_LANES)
        map_step_f(k, dtype, n_in, n_out, at, stride, to, i, n - i < NF_LANES ? n - i : NF_LANES, false, f, a);
}

/* at[j]: start of row `row` of input j; index: the row's position along the outer axes. */
static __attribute__((noinline, unused)) void map_seek(const struct rw_axes *m, int n_in, int64_t row, int64_t *at,
                                                       int64_t *index)
{
    for (int j = 0; j < n_in; j++) at[j] = 0;
    for (int axis = m->rank - 2; axis >= 0; axis--) {
        index[axis] = row % m->dim[axis];
        row /= m->dim[axis];
        for (int j = 0; j < n_in; j++) at[j] += index[axis] * m->stride[j][axis];
    }
}

static __attribute__((noinline, unused)) void map_next(const struct rw_axes *m, int n_in, int64_t *at, int64_t *index)
{
    for (int axis = m->rank - 2; axis >= 0; axis--) {
        for (int j = 0; j < n_in; j++) at[j] += m->stride[j][axis];
        if (++index[axis] < m->dim[axis]) return;
        for (int j = 0; j < n_in; j++) at[j] -= index[axis] * m->stride[j][axis];
        index[axis] = 0;
    }
}

/* The extent of a block: elements [begin, begin + n) of rows [row, last). Input j of its first row begins at at[j]. */
struct map_place {
    int64_t row, last, begin, n;
    int64_t at[MAP_INPUTS], stride[MAP_INPUTS], index[RW_MAX_RANK];
};

VEC_INLINE void map_find(struct map_place *p, const struct map_job *job, int64_t block, int n_in)
{
    const int64_t begin = block % job->cuts * MAP_BLOCK, rest = job->inner - begin;
    p->row = block / job->cuts * job->group;
    p->last = p->row + job->group < job->rows ? p->row + job->group : job->rows;
    p->begin = begin;
    p->n = job->cuts > 1 && rest > MAP_BLOCK ? MAP_BLOCK : rest;
    map_seek(&job->m, n_in, p->row, p->at, p->index);
    for (int j = 0; j < n_in; j++) {
        p->stride[j] = job->m.stride[j][job->m.rank - 1];
        p->at[j] += begin * p->stride[j];
    }
}

VEC_INLINE void map_one_block(const struct map_job *job, int64_t block, rw_dtype dtype, int n_in, int n_out, map_nf f,
                              map_nd d)
{
    struct map_place p;
    map_find(&p, job, block, n_in);
    for (; p.row < p.last; p.row++) {
        map_row(job->k, dtype, n_in, n_out, p.at, p.stride, p.row * job->inner + p.begin, p.n, f, d, job->a);
        map_next(&job->m, n_in, p.at, p.index);
    }
}

/* Generates the block loops of an op, for the argument `blocks` of map_kernel(). */
#define MAP_FUNCTIONS(name, n_in, n_out, f, d)                                    \
    static void name##_f32(const struct map_job *job, int64_t block)              \
    {                                                                             \
        map_one_block(job, block, RW_F32, n_in, n_out, f, d);                     \
    }                                                                             \
    static void name##_f16(const struct map_job *job, int64_t block)              \
    {                                                                             \
        map_one_block(job, block, RW_F16, n_in, n_out, f, d);                     \
    }                                                                             \
    static void name##_bf16(const struct map_job *job, int64_t block)             \
    {                                                                             \
        map_one_block(job, block, RW_BF16, n_in, n_out, f, d);                    \
    }                                                                             \
    static void name##_f64(const struct map_job *job, int64_t block)              \
    {                                                                             \
        map_one_block(job, block, RW_F64, n_in, n_out, f, d);                     \
    }                                                                             \
    static const map_block name##_blocks[RW_DTYPE_COUNT] = { [RW_F32] = name##_f32, \
                                                             [RW_BF16] = name##_bf16, \
                                                             [RW_F16] = name##_f16, \
                                                             [RW_F64] = name##_f64 };

static inline int64_t map_cut(const rw_kernel *k, int n_in, struct map_job *job)
{
    const int64_t numel = k->out[0].layout->numel;
    job->k = k;
    rw_axes_join(k, n_in, &job->m);
    job->inner = job->m.dim[job->m.rank - 1];
    job->rows = numel / job->inner;
    job->cuts = (job->inner + MAP_BLOCK - 1) / MAP_BLOCK;
    job->group = job->cuts > 1 ? 1 : MAP_BLOCK / job->inner;
    return job->cuts > 1 ? job->rows * job->cuts : (job->rows + job->group - 1) / job->group;
}

struct map_blocks {
    struct map_job job;
    map_block run;
};

static void map_run_blocks(void *of, int64_t first, int64_t end)
{
    const struct map_blocks *const b = of;
    for (int64_t i = first; i < end; i++) b->run(&b->job, i);
}

/* The body of an element-wise kernel: cuts the tensor into blocks and runs them on the threads. */
static inline rw_status map_kernel(const rw_kernel *k, int n_in, const map_block *blocks, double a)
{
    const int64_t numel = k->out[0].layout->numel;
    struct map_blocks b = { .job.a = a, .run = blocks[k->out[0].dtype] };
    if (!b.run) return RW_ERR_UNSUPPORTED;
    if (!numel) return RW_OK;
    const int64_t n = map_cut(k, n_in, &b.job);
    rw_team_for(rw_threads_for(k, numel), n, map_run_blocks, &b);
    return RW_OK;
}

#endif
