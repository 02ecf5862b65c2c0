/*
 * CPU kernels of gather and of sums by index. A column, which is all elements that differ only along the axis, belongs
 * to one thread, which adds in the order of the index. So the distribution of columns does not affect results.
 */
#include "base/thread_team.h"
#include "ops/select/gather.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/select/index_add_via_embedding_grad.h"

#define COLUMNS 64

/* index as [outer, along, inner]; and the offsets of its columns in x. */
struct gather_job {
    const rw_kernel *k;
    const rw_layout *index, *x;
    const int32_t *at;
    int axis;
    int64_t along, inner, blocks; /* blocks of inner columns */
};

static struct gather_job job_of(const rw_kernel *k, const rw_layout *x)
{
    const int64_t axis = ((const struct rw_gather_attrs *)k->attrs)->axis;
    struct gather_job job = { .k = k, .index = k->in[1].layout, .x = x, .at = k->in[1].data, .inner = 1 };
    job.axis = (int)(axis < 0 ? axis + x->rank : axis);
    job.along = job.index->dim[job.axis];
    for (int i = job.axis + 1; i < x->rank; i++) job.inner *= job.index->dim[i];
    job.blocks = (job.inner + COLUMNS - 1) / COLUMNS;
    return job;
}

/* Offsets in x of columns [c, c + n) of place `outer`, at index 0. */
static void seek(const struct gather_job *job, int64_t outer, int64_t c, int64_t n, int64_t *at)
{
    int64_t base = 0;
    for (int i = job->axis - 1; i >= 0; i--) {
        base += outer % job->index->dim[i] * job->x->stride[i];
        outer /= job->index->dim[i];
    }
    for (int64_t l = 0; l < n; l++) {
        int64_t rest = c + l;
        at[l] = base;
        for (int i = job->x->rank - 1; i > job->axis; i--) {
            at[l] += rest % job->index->dim[i] * job->x->stride[i];
            rest /= job->index->dim[i];
        }
    }
}

/* Applies an op to columns [c, c + n) of place `outer`; false for an index out of range. */
typedef bool (*gather_each)(const struct gather_job *job, int64_t outer, int64_t c, int64_t n);

struct tasks {
    const struct gather_job *job;
    gather_each each;
    bool bad; /* an index was out of range */
};

static void run_tasks(void *of, int64_t first, int64_t end)
{
    struct tasks *const t = of;
    const struct gather_job *const job = t->job;
    bool bad = false;
    for (int64_t i = first; i < end; i++) {
        const int64_t c = i % job->blocks * COLUMNS, rest = job->inner - c;
        bad = !t->each(job, i / job->blocks, c, rest < COLUMNS ? rest : COLUMNS) || bad;
    }
    if (bad) __atomic_store_n(&t->bad, true, __ATOMIC_RELAXED);
}

static rw_status run(const struct gather_job *job, gather_each each)
{
    const int64_t numel = job->index->numel;
    if (!numel) return RW_OK;
    struct tasks t = { job, each, false };
    rw_team_for(rw_threads_for(job->k, numel), numel / (job->along * job->inner) * job->blocks, run_tasks, &t);
    return t.bad ? RW_ERR_ARGUMENT : RW_OK;
}

static bool in_range(const int32_t *index, int64_t n, int64_t extent)
{
    const uint32_t end = (uint32_t)extent;
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) bad |= (uint32_t)index[i] >= end;
    return !bad;
}

/* A single column is a loop along it; several adjacent columns are processed together. */
#define TAKE(size, type)                                                                                         \
    static bool take_##size(const struct gather_job *job, int64_t outer, int64_t c, int64_t n)                   \
    {                                                                                                            \
        int64_t from[COLUMNS];                                                                                   \
        const int64_t stride = job->x->stride[job->axis], extent = job->x->dim[job->axis];                       \
        const int64_t first = outer * job->along * job->inner + c;                                               \
        const int32_t *index = job->at + first;                                                                  \
        const type *const x = job->k->in[0].data;                                                                \
        type *y = (type *)job->k->out[0].data + first;                                                           \
        seek(job, outer, c, n, from);                                                                            \
        if (job->inner == 1) {                                                                                   \
            if (!in_range(index, job->along, extent)) return false;                                              \
            for (int64_t j = 0; j < job->along; j++) y[j] = x[from[0] + index[j] * stride];                      \
            return true;                                                                                         \
        }                                                                                                        \
        for (int64_t j = 0; j < job->along; j++, index += job->inner, y += job->inner) {                         \
            if (!in_range(index, n, extent)) return false;                                                       \
            for (int64_t l = 0; l < n; l++) y[l] = x[from[l] + index[l] * stride];                               \
        }                                                                                                        \
        return true;                                                                                             \
    }

TAKE(1, uint8_t)
TAKE(2, uint16_t)
TAKE(4, uint32_t)
TAKE(8, uint64_t)

rw_status RW_ISA_NAME(rw_gather_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_gather_cpu)(const rw_kernel *k)
{
    static const gather_each take[] = { [1] = take_1, [2] = take_2, [4] = take_4, [8] = take_8 };
    const struct gather_job job = job_of(k, k->in[0].layout);
    return run(&job, take[rw_dtype_size(k->in[0].dtype)]);
}

/* ---- sums by index ---- */

/* The destination of the sums: the result, or the workspace. */
static void *sums_of(const rw_kernel *k)
{
    return k->workspace ? k->workspace : k->out[0].data;
}

#define GET_D(p, dtype, i) (((const double *)(p))[i])

#define ADD(name, wide, dtype, get)                                                                              \
    static bool add_##name(const struct gather_job *job, int64_t outer, int64_t c, int64_t n)                    \
    {                                                                                                            \
        int64_t to[COLUMNS];                                                                                     \
        const int64_t stride = job->x->stride[job->axis], extent = job->x->dim[job->axis];                       \
        int64_t at = outer * job->along * job->inner + c;                                                        \
        const int32_t *index = job->at + at;                                                                     \
        const void *const src = job->k->in[0].data;                                                              \
        wide *const sum = sums_of(job->k);                                                                       \
        seek(job, outer, c, n, to);                                                                              \
        if (job->inner == 1) {                                                                                   \
            if (!in_range(index, job->along, extent)) return false;                                              \
            for (int64_t j = 0; j < job->along; j++) sum[to[0] + index[j] * stride] += get(src, dtype, at + j);  \
            return true;                                                                                         \
        }                                                                                                        \
        for (int64_t j = 0; j < job->along; j++, index += job->inner, at += job->inner) {                        \
            if (!in_range(index, n, extent)) return false;                                                       \
            for (int64_t l = 0; l < n; l++) sum[to[l] + index[l] * stride] += get(src, dtype, at + l);           \
        }                                                                                                        \
        return true;                                                                                             \
    }

ADD(f32, float, RW_F32, f_get)
ADD(bf16, float, RW_BF16, f_get)
ADD(f16, float, RW_F16, f_get)
ADD(f64, double, RW_F64, GET_D)

#define FINISH_BLOCK 16384

/* Adds the addend to elements [from, to) of the sums, and rounds once. */
VEC_INLINE void finish_some(const rw_kernel *k, rw_dtype dtype, int64_t from, int64_t to)
{
    const void *const addend = rw_kernel_has(k, 2) ? k->in[2].data : NULL;
    const float *const sum = k->workspace;
    void *const out = k->out[0].data;
    int64_t i = from;
    for (; i + NF_LANES <= to; i += NF_LANES)
        nf_put(out, dtype, i, nf_get(sum, RW_F32, i) + (addend ? nf_get(addend, dtype, i) : nf_all(0)));
    for (; i < to; i++) f_put(out, dtype, i, sum[i] + (addend ? f_get(addend, dtype, i) : 0));
}

static void finish_some_d(const rw_kernel *k, int64_t from, int64_t to)
{
    const double *const addend = rw_kernel_has(k, 2) ? k->in[2].data : NULL, *const sum = k->workspace;
    for (int64_t i = from; i < to; i++) ((double *)k->out[0].data)[i] = sum[i] + (addend ? addend[i] : 0);
}

static void finish_blocks(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const int64_t numel = k->out[0].layout->numel, from = first * FINISH_BLOCK;
    const int64_t to = end * FINISH_BLOCK < numel ? end * FINISH_BLOCK : numel;
    switch (k->out[0].dtype) {
    case RW_F64: finish_some_d(k, from, to); break;
    case RW_BF16: finish_some(k, RW_BF16, from, to); break;
    case RW_F16: finish_some(k, RW_F16, from, to); break;
    default: finish_some(k, RW_F32, from, to);
    }
}

static void finish(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    rw_team_for(rw_threads_for(k, numel), (numel + FINISH_BLOCK - 1) / FINISH_BLOCK, finish_blocks, k);
}

rw_status RW_ISA_NAME(rw_gather_back_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_gather_back_cpu)(const rw_kernel *k)
{
    const bool wide = k->out[0].dtype == RW_F64;
    const struct gather_job job = job_of(k, k->out[0].layout);
    if (!k->out[0].layout->numel) return RW_OK;
    static const gather_each add[RW_DTYPE_COUNT] = { [RW_F32] = add_f32, [RW_BF16] = add_bf16, [RW_F16] = add_f16,
                                                     [RW_F64] = add_f64 };
    memset(sums_of(k), 0, (size_t)k->out[0].layout->numel * (wide ? sizeof(double) : sizeof(float)));
    const rw_status status = run(&job, add[k->out[0].dtype]);
    if (!status && k->workspace) finish(k);
    return status;
}

/*
 * index_select: sums of rows of x. For the first axis they use the gradient of an embedding, which with an addend
 * accesses only the rows in the index. For another axis each place before it computes its own sums.
 */

#define ADD_ROWS(name, wide, dtype, get)                                                                             \
    static void add_rows_##name(const rw_kernel *k, const struct rw_row_sums *r, int64_t outer)                      \
    {                                                                                                                \
        const int32_t *const index = k->in[1].data;                                                                  \
        wide *const sum = (wide *)sums_of(k) + outer * r->extent * r->width;                                         \
        int64_t at = outer * r->listed * r->width;                                                                   \
        for (int64_t j = 0; j < r->listed && r->width == 1; j++) sum[index[j]] += get(k->in[0].data, dtype, at + j); \
        if (r->width == 1) return;                                                                                   \
        for (int64_t j = 0; j < r->listed; j++, at += r->width) {                                                    \
            wide *const to = sum + index[j] * r->width;                                                              \
            for (int64_t l = 0; l < r->width; l++) to[l] += get(k->in[0].data, dtype, at + l);                       \
        }                                                                                                            \
    }

ADD_ROWS(f32, float, RW_F32, f_get)
ADD_ROWS(bf16, float, RW_BF16, f_get)
ADD_ROWS(f16, float, RW_F16, f_get)
ADD_ROWS(f64, double, RW_F64, GET_D)

struct places {
    const rw_kernel *k;
    const struct rw_row_sums *r;
};

static void add_places(void *of, int64_t first, int64_t end)
{
    static void (*const add[RW_DTYPE_COUNT])(const rw_kernel *, const struct rw_row_sums *, int64_t) = {
        [RW_F32] = add_rows_f32, [RW_BF16] = add_rows_bf16, [RW_F16] = add_rows_f16, [RW_F64] = add_rows_f64
    };
    const struct places *const p = of;
    for (int64_t o = first; o < end; o++) add[p->k->in[0].dtype](p->k, p->r, o);
}

static void sum_places(const rw_kernel *k, const struct rw_row_sums *r)
{
    const int64_t numel = k->out[0].layout->numel;
    const rw_dtype dtype = k->out[0].dtype;
    memset(sums_of(k), 0, (size_t)numel * (dtype == RW_F64 ? sizeof(double) : sizeof(float)));
    rw_team_for(rw_threads_for(k, numel), r->outer, add_places, &(struct places){ k, r });
    if (k->workspace) finish(k);
}

rw_status RW_ISA_NAME(rw_embedding_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_index_select_back_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_index_select_back_cpu)(const rw_kernel *k)
{
    struct rw_row_sums r;
    if (!k->out[0].layout->numel) return RW_OK;
    rw_row_sums_of(k, &r);
    if (!in_range(k->in[1].data, r.listed, r.extent)) return RW_ERR_ARGUMENT;
    if (r.outer > 1) {
        sum_places(k, &r);
        return RW_OK;
    }
    rw_row_sums_kernel(k, &r, r.listed, r.extent, r.width, k->in[1].data, k->workspace);
    return RW_ISA_NAME(rw_embedding_backward_cpu)(&r.k);
}

/* ---- embedding_bag ---- */

#define BAG_COLUMNS 256
#define BAG_AHEAD 8 /* in rows: they are in arbitrary order, so only the index tells what to prefetch */

/* Prefetches the columns that bag_f() will read of the row BAG_AHEAD places later, of this bag or the next one. */
VEC_INLINE void fetch_row(const rw_kernel *k, rw_dtype dtype, const int32_t *index, int64_t width, int64_t c, int64_t n)
{
    const int32_t *const ahead = index + BAG_AHEAD;
    if (ahead >= (const int32_t *)k->in[1].data + k->in[1].layout->numel) return;
    const char *const row = (const char *)k->in[0].data + (size_t)(*ahead * width + c) * float_size(dtype);
    for (size_t at = 0; at < (size_t)n * float_size(dtype); at += 64) __builtin_prefetch(row + at);
}

VEC_INLINE void bag_f(const rw_kernel *k, rw_dtype dtype, const int32_t *index, int64_t m, int64_t c, int64_t n,
                      int64_t width, int64_t to, float divisor)
{
    float sum[BAG_COLUMNS];
    for (int64_t l = 0; l < n; l++) sum[l] = 0;
    for (int64_t j = 0; j < m; j++) {
        fetch_row(k, dtype, index + j, width, c, n);
        for (int64_t l = 0; l < n; l++) sum[l] += f_get(k->in[0].data, dtype, index[j] * width + c + l);
    }
    for (int64_t l = 0; l < n; l++) f_put(k->out[0].data, dtype, to + c + l, sum[l] / divisor);
}

static void bag_d(const rw_kernel *k, const int32_t *index, int64_t m, int64_t c, int64_t n, int64_t width, int64_t to,
                  double divisor)
{
    double sum[BAG_COLUMNS] = { 0 };
    for (int64_t j = 0; j < m; j++)
        for (int64_t l = 0; l < n; l++) sum[l] += ((const double *)k->in[0].data)[index[j] * width + c + l];
    for (int64_t l = 0; l < n; l++) ((double *)k->out[0].data)[to + c + l] = sum[l] / divisor;
}

/* Sums some bags. */
static void sum_bags(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const int64_t m = k->in[1].layout->dim[1], width = k->in[0].layout->dim[1];
    const int64_t divisor = *(const int64_t *)k->attrs && m ? m : 1;
    for (int64_t b = first; b < end; b++)
        for (int64_t c = 0; c < width; c += BAG_COLUMNS) {
            const int64_t n = width - c < BAG_COLUMNS ? width - c : BAG_COLUMNS;
            const int32_t *const rows = (const int32_t *)k->in[1].data + b * m;
            switch (k->out[0].dtype) {
            case RW_F64: bag_d(k, rows, m, c, n, width, b * width, (double)divisor); break;
            case RW_BF16: bag_f(k, RW_BF16, rows, m, c, n, width, b * width, (float)divisor); break;
            case RW_F16: bag_f(k, RW_F16, rows, m, c, n, width, b * width, (float)divisor); break;
            default: bag_f(k, RW_F32, rows, m, c, n, width, b * width, (float)divisor);
            }
        }
}

rw_status RW_ISA_NAME(rw_embedding_bag_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_embedding_bag_cpu)(const rw_kernel *k)
{
    const int32_t *const index = k->in[1].data;
    const int64_t bags = k->in[1].layout->dim[0], m = k->in[1].layout->dim[1], width = k->in[0].layout->dim[1];
    for (int64_t i = 0; i < bags * m; i++)
        if (index[i] < 0 || index[i] >= k->in[0].layout->dim[0]) return RW_ERR_ARGUMENT;
    rw_team_for(rw_threads_for(k, bags * m * width), bags, sum_bags, k);
    return RW_OK;
}
