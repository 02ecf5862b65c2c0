/*
 * CPU kernels of gather and of sums by index. A column, all that differs in the place along the axis alone, belongs to
 * one thread, which adds in the order of the index: how columns are shared out does not show.
 */
#include "ops/select/gather.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/select/row_sums.h"

#define COLUMNS 64

/* index seen as [outer, along, inner]; where its columns lie in x. */
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

/* Where columns [c, c + n) of place `outer` lie in x, at index 0. */
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

/* Calls each(job, outer, c, n) for all blocks of columns. */
typedef void (*gather_each)(const struct gather_job *job, int64_t outer, int64_t c, int64_t n);

static rw_status run(const struct gather_job *job, gather_each each)
{
    const int64_t numel = job->index->numel, extent = job->x->dim[job->axis];
    if (!numel) return RW_OK;
    for (int64_t i = 0; i < numel; i++)
        if (job->at[i] < 0 || job->at[i] >= extent) return RW_ERR_ARGUMENT;
    const int64_t tasks = numel / (job->along * job->inner) * job->blocks;
#pragma omp parallel for num_threads(job->k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < tasks; i++) {
        const int64_t c = i % job->blocks * COLUMNS, rest = job->inner - c;
        each(job, i / job->blocks, c, rest < COLUMNS ? rest : COLUMNS);
    }
    return RW_OK;
}

#define TAKE(size, type)                                                                                         \
    static void take_##size(const struct gather_job *job, int64_t outer, int64_t c, int64_t n)                   \
    {                                                                                                            \
        int64_t from[COLUMNS];                                                                                   \
        const int64_t stride = job->x->stride[job->axis];                                                        \
        seek(job, outer, c, n, from);                                                                            \
        for (int64_t j = 0; j < job->along; j++) {                                                               \
            const int64_t to = (outer * job->along + j) * job->inner + c;                                        \
            for (int64_t l = 0; l < n; l++)                                                                      \
                ((type *)job->k->out[0].data)[to + l] =                                                          \
                    ((const type *)job->k->in[0].data)[from[l] + job->at[to + l] * stride];                      \
        }                                                                                                        \
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

/* Where they are added up: in the result, or in the workspace. */
static void *sums_of(const rw_kernel *k)
{
    return k->workspace ? k->workspace : k->out[0].data;
}

static void add_f(const struct gather_job *job, int64_t outer, int64_t c, int64_t n)
{
    int64_t to[COLUMNS];
    float *const sum = sums_of(job->k);
    const int64_t stride = job->x->stride[job->axis];
    const rw_dtype dtype = job->k->in[0].dtype;
    seek(job, outer, c, n, to);
    for (int64_t j = 0; j < job->along; j++) {
        const int64_t from = (outer * job->along + j) * job->inner + c;
        for (int64_t l = 0; l < n; l++)
            sum[to[l] + job->at[from + l] * stride] += f_get(job->k->in[0].data, dtype, from + l);
    }
}

static void add_d(const struct gather_job *job, int64_t outer, int64_t c, int64_t n)
{
    int64_t to[COLUMNS];
    double *const sum = sums_of(job->k);
    const int64_t stride = job->x->stride[job->axis];
    seek(job, outer, c, n, to);
    for (int64_t j = 0; j < job->along; j++) {
        const int64_t from = (outer * job->along + j) * job->inner + c;
        for (int64_t l = 0; l < n; l++)
            sum[to[l] + job->at[from + l] * stride] += ((const double *)job->k->in[0].data)[from + l];
    }
}

/* The sums, and what they are added to, rounded once. */
static void finish(const rw_kernel *k)
{
    const int64_t numel = k->out[0].layout->numel;
    const rw_dtype dtype = k->out[0].dtype;
    const bool adds = rw_kernel_has(k, 2);
    const float *const f = k->workspace;
    const double *const d = k->workspace;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < numel; i++) {
        if (dtype == RW_F64) ((double *)k->out[0].data)[i] = d[i] + (adds ? ((const double *)k->in[2].data)[i] : 0);
        else f_put(k->out[0].data, dtype, i, f[i] + (adds ? f_get(k->in[2].data, dtype, i) : 0));
    }
}

rw_status RW_ISA_NAME(rw_gather_back_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_gather_back_cpu)(const rw_kernel *k)
{
    const bool wide = k->out[0].dtype == RW_F64;
    const struct gather_job job = job_of(k, k->out[0].layout);
    if (!k->out[0].layout->numel) return RW_OK;
    memset(sums_of(k), 0, (size_t)k->out[0].layout->numel * (wide ? sizeof(double) : sizeof(float)));
    const rw_status status = run(&job, wide ? add_d : add_f);
    if (!status && k->workspace) finish(k);
    return status;
}

/* ---- index_select's: rows of x, by the gradient of an embedding ---- */

rw_status RW_ISA_NAME(rw_embedding_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_index_select_back_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_index_select_back_cpu)(const rw_kernel *k)
{
    struct rw_row_sums r;
    if (!k->out[0].layout->numel) return RW_OK;
    rw_row_sums_of(k, &r);
    const int32_t *const index = k->in[1].data;
    int32_t *const flat = k->workspace;
    for (int64_t j = 0; j < r.listed; j++)
        if (index[j] < 0 || index[j] >= r.extent) return RW_ERR_ARGUMENT;
    for (int64_t o = 0; o < r.outer; o++)
        for (int64_t j = 0; j < r.listed; j++) flat[o * r.listed + j] = (int32_t)(o * r.extent) + index[j];
    rw_row_sums_kernel(k, &r, r.outer * r.listed, r.outer * r.extent, r.width, flat, flat + r.outer * r.listed);
    return RW_ISA_NAME(rw_embedding_backward_cpu)(&r.k);
}

/* ---- embedding_bag ---- */

VEC_INLINE void bag_f(const rw_kernel *k, rw_dtype dtype, const int32_t *index, int64_t m, int64_t c, int64_t n,
                      int64_t width, int64_t to, float divisor)
{
    float sum[COLUMNS] = { 0 };
    for (int64_t j = 0; j < m; j++)
        for (int64_t l = 0; l < n; l++) sum[l] += f_get(k->in[0].data, dtype, index[j] * width + c + l);
    for (int64_t l = 0; l < n; l++) f_put(k->out[0].data, dtype, to + c + l, sum[l] / divisor);
}

static void bag_d(const rw_kernel *k, const int32_t *index, int64_t m, int64_t c, int64_t n, int64_t width, int64_t to,
                  double divisor)
{
    double sum[COLUMNS] = { 0 };
    for (int64_t j = 0; j < m; j++)
        for (int64_t l = 0; l < n; l++) sum[l] += ((const double *)k->in[0].data)[index[j] * width + c + l];
    for (int64_t l = 0; l < n; l++) ((double *)k->out[0].data)[to + c + l] = sum[l] / divisor;
}

rw_status RW_ISA_NAME(rw_embedding_bag_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_embedding_bag_cpu)(const rw_kernel *k)
{
    const int32_t *const index = k->in[1].data;
    const int64_t bags = k->in[1].layout->dim[0], m = k->in[1].layout->dim[1], width = k->in[0].layout->dim[1];
    const int64_t divisor = *(const int64_t *)k->attrs && m ? m : 1;
    for (int64_t i = 0; i < bags * m; i++)
        if (index[i] < 0 || index[i] >= k->in[0].layout->dim[0]) return RW_ERR_ARGUMENT;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (bags * m * width >= RW_PARALLEL_FROM)
    for (int64_t b = 0; b < bags; b++)
        for (int64_t c = 0; c < width; c += COLUMNS) {
            const int64_t n = width - c < COLUMNS ? width - c : COLUMNS;
            const int32_t *const rows = index + b * m;
            switch (k->out[0].dtype) {
            case RW_F64: bag_d(k, rows, m, c, n, width, b * width, (double)divisor); break;
            case RW_BF16: bag_f(k, RW_BF16, rows, m, c, n, width, b * width, (float)divisor); break;
            case RW_F16: bag_f(k, RW_F16, rows, m, c, n, width, b * width, (float)divisor); break;
            default: bag_f(k, RW_F32, rows, m, c, n, width, b * width, (float)divisor);
            }
        }
    return RW_OK;
}
