/* CPU kernels of argmax, argmin and topk. */
#include "base/thread_team.h"
#include "ops/select/top.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"

VEC_INLINE double number(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? ((const double *)p)[i] : (double)f_get(p, dtype, i);
}

/* Calls f(..., dtype) with a constant type. */
#define BY_TYPE(dtype, f, ...)                          \
    switch (dtype) {                                    \
    case RW_F64: f(__VA_ARGS__, RW_F64); break;         \
    case RW_BF16: f(__VA_ARGS__, RW_BF16); break;       \
    case RW_F16: f(__VA_ARGS__, RW_F16); break;         \
    default: f(__VA_ARGS__, RW_F32);                    \
    }

/* ---- argmax and argmin: [outer, n, inner] to [outer, inner] ---- */

#define COLUMNS 64

struct place_job {
    const rw_kernel *k;
    int64_t n, inner, blocks; /* blocks of columns */
    double sign;              /* -1: the smallest */
};

/* Row by row, so that elements are read in memory order. */
VEC_INLINE void find_typed(const struct place_job *job, int64_t outer, int64_t c, int64_t columns, rw_dtype dtype)
{
    double best[COLUMNS];
    int32_t place[COLUMNS];
    const void *const x = job->k->in[0].data;
    for (int64_t i = 0; i < job->n; i++)
        for (int64_t l = 0; l < columns; l++) {
            const double v = job->sign * number(x, dtype, (outer * job->n + i) * job->inner + c + l);
            if (i && !rw_comes_before(v, i, best[l], place[l])) continue;
            best[l] = v;
            place[l] = (int32_t)i;
        }
    memcpy((int32_t *)job->k->out[0].data + outer * job->inner + c, place, (size_t)columns * sizeof *place);
}

#define ROW_BLOCK 512

/* One row: finds the block of the first largest element, then its place in the block; or the first NaN. */
VEC_INLINE void find_in_row(const struct place_job *job, int64_t row, rw_dtype dtype)
{
    const void *const x = job->k->in[0].data;
    const int64_t base = row * job->n;
    const float sign = (float)job->sign;
    float best = -INFINITY;
    bool any = false; /* NaN */
    int64_t at = 0, i;
    for (int64_t from = 0; from < job->n && !any; from += ROW_BLOCK) {
        const int64_t end = from + ROW_BLOCK < job->n ? from + ROW_BLOCK : job->n;
        vf largest = vf_all(-INFINITY);
        vi nan = { 0 };
        for (i = from; i + VF_LANES <= end; i += VF_LANES) {
            const vf v = vf_get(x, dtype, base + i) * sign;
            largest = vf_max(v, largest);
            nan |= (vi)(v != v);
        }
        float most = vf_max_lane(largest);
        for (int l = 0; l < VF_LANES; l++) any |= nan[l] != 0;
        for (; i < end; i++) {
            const float v = f_get(x, dtype, base + i) * sign;
            most = v > most ? v : most;
            any |= v != v;
        }
        if (any || most > best) best = most, at = from;
    }
    for (i = at; any ? !isnan(f_get(x, dtype, base + i)) : f_get(x, dtype, base + i) * sign != best;) i++;
    ((int32_t *)job->k->out[0].data)[row] = (int32_t)i;
}

static void find(const struct place_job *job, int64_t task)
{
    if (job->inner == 1 && job->k->in[0].dtype != RW_F64) {
        BY_TYPE(job->k->in[0].dtype, find_in_row, job, task)
        return;
    }
    const int64_t c = task % job->blocks * COLUMNS, rest = job->inner - c;
    BY_TYPE(job->k->in[0].dtype, find_typed, job, task / job->blocks, c, rest < COLUMNS ? rest : COLUMNS)
}

static void find_some(void *of, int64_t first, int64_t end)
{
    const struct place_job *const job = of;
    for (int64_t i = first; i < end; i++) find(job, i);
}

static rw_status place_kernel(const rw_kernel *k, double sign)
{
    const struct rw_place_attrs *const a = k->attrs;
    const rw_layout *const x = k->in[0].layout;
    struct place_job job = { .k = k, .inner = 1, .sign = sign };
    const int axis = (int)(a->axis < 0 ? a->axis + x->rank : a->axis);
    if (!x->numel) return RW_OK;
    job.n = x->dim[axis];
    for (int i = axis + 1; i < x->rank; i++) job.inner *= x->dim[i];
    job.blocks = (job.inner + COLUMNS - 1) / COLUMNS;
    const int64_t tasks = x->numel / (job.n * job.inner) * job.blocks;
    rw_team_for(rw_threads_for(k, x->numel), tasks, find_some, &job);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_argmax_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_argmax_cpu)(const rw_kernel *k)
{
    return place_kernel(k, 1);
}

rw_status RW_ISA_NAME(rw_argmin_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_argmin_cpu)(const rw_kernel *k)
{
    return place_kernel(k, -1);
}

/* ---- topk ---- */

/* The first place from i on that may precede the root; skips vectors in which no element does. */
VEC_INLINE int64_t pass_over(const void *x, rw_dtype dtype, int64_t i, int64_t n, int32_t root)
{
    if (dtype == RW_F64) return i;
    const float last = f_get(x, dtype, root);
    if (last != last) return n;
    for (; i + NF_LANES <= n; i += NF_LANES)
        if (nf_any((ni)(nf_get(x, dtype, i) <= last) == 0)) break;
    return i;
}

#define E uint64_t
#define R unsigned __int128
#define F(name) name##_8
#define OF_TYPE(f, ...) f(__VA_ARGS__, RW_F64, 0x7ff0000000000000);
#include "ops/select/top_tmpl.h"
#define E uint32_t
#define R uint64_t
#define F(name) name##_4
#define OF_TYPE(f, ...) f(__VA_ARGS__, RW_F32, 0x7f800000);
#include "ops/select/top_tmpl.h"
#define E uint16_t
#define R uint64_t
#define F(name) name##_2
#define OF_TYPE(f, ...)                                             \
    if (k->in[0].dtype == RW_BF16) f(__VA_ARGS__, RW_BF16, 0x7f80); \
    else f(__VA_ARGS__, RW_F16, 0x7c00);
#include "ops/select/top_tmpl.h"

static void top_rows(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const rw_layout *const l = k->in[0].layout;
    const int64_t n = l->dim[l->rank - 1], most = ((const struct rw_topk_attrs *)k->attrs)->k;
    const size_t size = rw_dtype_size(k->in[0].dtype);
    for (int64_t row = first; row < end; row++) {
        if (size == 8) top_row_8(k, row, n, most);
        else if (size == 4) top_row_4(k, row, n, most);
        else top_row_2(k, row, n, most);
    }
}

rw_status RW_ISA_NAME(rw_topk_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_topk_cpu)(const rw_kernel *k)
{
    const rw_layout *const l = k->in[0].layout;
    if (!k->out[0].layout->numel) return RW_OK;
    rw_team_for(rw_threads_for(k, l->numel), l->numel / l->dim[l->rank - 1], top_rows, k);
    return RW_OK;
}
