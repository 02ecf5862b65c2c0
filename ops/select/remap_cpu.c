/* CPU kernels of what moves elements along an axis: by a rule, or by a list of places. */
#include "ops/select/remap.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

#define BLOCK 16384 /* elements that are handed out in one go */

/* [outer, from, inner] to [outer, to, inner] */
struct remap_job {
    const struct rw_remap_attrs *a;
    const int32_t *index; /* of places; NULL: by the rule */
    int64_t from, to, inner;
};

static int64_t source(const struct remap_job *job, int64_t j)
{
    return job->index ? job->index[j] : rw_remap_source(job->a, j);
}

/* How many places from j on have sources that follow one another. */
static int64_t run_from(const struct remap_job *job, int64_t j)
{
    const struct rw_remap_attrs *const a = job->a;
    if (job->index || a->mode == RW_REMAP_FLIP) return 1;
    if (j >= a->before && j < a->before + a->from) return a->before + a->from - j;
    if (a->mode != RW_REMAP_ROLL && a->mode != RW_REMAP_CIRCULAR) return 1;
    return j < a->before ? a->before - j : a->to - j;
}

static void move_rows(const struct remap_job *job, const char *x, char *y, size_t size, int64_t row, int64_t end)
{
    const size_t bytes = (size_t)job->inner * size;
    while (row < end) {
        const int64_t outer = row / job->to, j = row % job->to, from = outer * job->from + source(job, j);
        int64_t n = run_from(job, j);
        if (n > job->to - j) n = job->to - j;
        if (n > end - row) n = end - row;
        memcpy(y + (size_t)row * bytes, x + (size_t)from * bytes, (size_t)n * bytes);
        row += n;
    }
}

/* Rows of one element that do not follow one another: without a call for each. */
#define MOVE(size, type)                                                                                    \
    static void move_##size(const struct remap_job *job, const void *x, void *y, int64_t row, int64_t end)  \
    {                                                                                                       \
        int64_t j = row % job->to, base = row / job->to * job->from;                                        \
        while (row < end) {                                                                                 \
            const int64_t n = job->to - j < end - row ? job->to - j : end - row;                            \
            const type *const from = (const type *)x + base;                                                \
            type *const to = (type *)y + row;                                                               \
            if (job->index) for (int64_t i = 0; i < n; i++) to[i] = from[job->index[j + i]];                \
            else for (int64_t i = 0; i < n; i++) to[i] = from[job->from - 1 - (j + i)];                     \
            row += n, j = 0, base += job->from;                                                             \
        }                                                                                                   \
    }

MOVE(1, uint8_t)
MOVE(2, uint16_t)
MOVE(4, uint32_t)
MOVE(8, uint64_t)

static void move_some(const struct remap_job *job, const rw_kernel *k, int64_t row, int64_t end)
{
    const void *const x = k->in[0].data;
    void *const y = k->out[0].data;
    const size_t size = rw_dtype_size(k->out[0].dtype);
    const bool scattered = job->index || job->a->mode == RW_REMAP_FLIP;
    if (job->inner > 1 || !scattered) move_rows(job, x, y, size, row, end);
    else if (size == 1) move_1(job, x, y, row, end);
    else if (size == 2) move_2(job, x, y, row, end);
    else if (size == 4) move_4(job, x, y, row, end);
    else move_8(job, x, y, row, end);
}

static void move_all(const rw_kernel *k, const struct remap_job *job)
{
    const int64_t numel = k->out[0].layout->numel, rows = numel / job->inner;
    const int64_t some = job->inner < BLOCK ? BLOCK / job->inner : 1, blocks = (rows + some - 1) / some;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < blocks; i++)
        move_some(job, k, i * some, (i + 1) * some < rows ? (i + 1) * some : rows);
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
    const struct remap_job job = { a, NULL, a->from, a->to, inner_of(k->in[0].layout, axis_of(k, a)) };
    if (k->out[0].layout->numel) move_all(k, &job);
    return RW_OK;
}

/* ---- the sums of what an element was copied to ---- */

#define COLUMNS 256

/* Columns [c, c + n) of row (outer, i), of a type of 16 bits in float. */
VEC_INLINE void sum_columns(const rw_kernel *k, rw_dtype dtype, const struct rw_remap_attrs *a, int64_t inner,
                            int64_t outer, int64_t i, int64_t c, int64_t n)
{
    const bool windows = a->mode == RW_REMAP_WINDOWS;
    const int64_t width = windows ? a->size : 1, to = (outer * a->from + i) * inner + c;
    float sum[COLUMNS];
    for (int64_t l = 0; l < n; l++) sum[l] = 0;
    for (int64_t j = rw_remap_next(a, i, -1); j >= 0; j = rw_remap_next(a, i, j)) {
        const int64_t at = ((outer * a->to + j) * inner + c) * width + (windows ? i - j * a->step : 0);
        for (int64_t l = 0; l < n; l++) sum[l] += f_get(k->in[0].data, dtype, at + l * width);
    }
    for (int64_t l = 0; l < n; l++) f_put(k->out[0].data, dtype, to + l, sum[l]);
}

/*
 * Added where they belong, place by place: in that order too, without looking for an element's places. Where sums are
 * as wide as what is stored.
 */
#define PUSH(name, type)                                                                                             \
    static void push_##name(const rw_kernel *k, const struct rw_remap_attrs *a, int64_t inner, int64_t outer)        \
    {                                                                                                                \
        const bool windows = a->mode == RW_REMAP_WINDOWS;                                                            \
        const int64_t width = windows ? a->size : 1;                                                                 \
        type *const dx = (type *)k->out[0].data + outer * a->from * inner;                                           \
        const type *dy = (const type *)k->in[0].data + outer * a->to * inner * width;                                \
        memset(dx, 0, (size_t)(a->from * inner) * sizeof *dx);                                                       \
        for (int64_t j = 0; j < a->to; j++, dy += inner * width) {                                                   \
            type *const to = dx + (windows ? j * a->step : rw_remap_source(a, j)) * inner;                           \
            if (inner == 1) for (int64_t e = 0; e < width; e++) to[e] += dy[e];                                      \
            else for (int64_t e = 0; e < width; e++)                                                                 \
                for (int64_t l = 0; l < inner; l++) to[e * inner + l] += dy[l * width + e];                          \
        }                                                                                                            \
    }

PUSH(f32, float)
PUSH(f64, double)

static void sum_row(const rw_kernel *k, const struct rw_remap_attrs *a, int64_t inner, int64_t row)
{
    const int64_t outer = row / a->from, i = row % a->from;
    for (int64_t c = 0; c < inner; c += COLUMNS) {
        const int64_t n = inner - c < COLUMNS ? inner - c : COLUMNS;
        if (k->out[0].dtype == RW_F16) sum_columns(k, RW_F16, a, inner, outer, i, c, n);
        else sum_columns(k, RW_BF16, a, inner, outer, i, c, n);
    }
}

rw_status RW_ISA_NAME(rw_remap_back_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_remap_back_cpu)(const rw_kernel *k)
{
    const struct rw_remap_attrs *const a = k->attrs;
    const int64_t inner = inner_of(k->out[0].layout, a->axis), numel = k->out[0].layout->numel;
    const rw_dtype dtype = k->out[0].dtype;
    if (!numel) return RW_OK;
    if (dtype == RW_F32 || dtype == RW_F64) {
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
        for (int64_t outer = 0; outer < numel / (a->from * inner); outer++)
            (dtype == RW_F32 ? push_f32 : push_f64)(k, a, inner, outer);
        return RW_OK;
    }
#pragma omp parallel for num_threads(k->threads) schedule(static) if (numel >= RW_PARALLEL_FROM)
    for (int64_t row = 0; row < numel / inner; row++) sum_row(k, a, inner, row);
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
