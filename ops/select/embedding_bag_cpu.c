/* CPU kernels of embedding_bag_offsets and embedding_bag_argmax. */
#include "base/thread_team.h"
#include "ops/select/embedding_bag.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/select/top.h"

/* Bags by offsets: bag b has places [offset[b], rw_bag_end(b)). */
struct bags {
    const int32_t *offset;
    int64_t given, n, places; /* number of offsets, bags, places of the index */
};

static bool read_bags(const rw_kernel *k, int input, struct bags *bags)
{
    const struct rw_bags_attrs *const a = k->attrs;
    *bags = (struct bags){ k->in[input].data, k->in[input].layout->numel, 0, a->places };
    bags->n = bags->given - a->ends;
    for (int64_t i = 0; i < bags->given; i++)
        if (!rw_bags_offset_fits(a, bags->offset, i, bags->given)) return false;
    return true;
}

static int64_t end_of(const struct bags *bags, int64_t b)
{
    return b + 1 < bags->given ? bags->offset[b + 1] : bags->places;
}

rw_status RW_ISA_NAME(rw_bags_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_bags_cpu)(const rw_kernel *k)
{
    struct bags bags;
    int32_t *const number = k->out[0].data;
    if (!read_bags(k, 0, &bags)) return RW_ERR_ARGUMENT;
    for (int64_t b = 0; b < bags.n; b++)
        for (int64_t i = bags.offset[b]; i < end_of(&bags, b); i++) number[i] = (int32_t)b;
    return RW_OK;
}

/* ---- argmax ---- */

#define COLUMNS 64

struct argmax_job {
    const rw_kernel *k;
    struct bags bags;
    const uint8_t *kept; /* by place; NULL: all */
    int64_t width, blocks; /* columns, blocks of them */
};

VEC_INLINE double number_at(const void *p, rw_dtype dtype, int64_t i)
{
    return dtype == RW_F64 ? ((const double *)p)[i] : (double)f_get(p, dtype, i);
}

/* Columns [c, c + n) of bag b, row by row, so that elements are read in memory order. */
VEC_INLINE void find_typed(const struct argmax_job *job, int64_t b, int64_t c, int64_t n, rw_dtype dtype)
{
    double best[COLUMNS];
    int32_t place[COLUMNS] = { 0 };
    bool any = false;
    for (int64_t i = job->bags.offset[b], end = end_of(&job->bags, b); i < end; i++) {
        if (job->kept && !job->kept[i]) continue;
        for (int64_t l = 0; l < n; l++) {
            const double v = number_at(job->k->in[0].data, dtype, i * job->width + c + l);
            if (any && !rw_comes_before(v, i, best[l], place[l])) continue;
            best[l] = v;
            place[l] = (int32_t)i;
        }
        any = true;
    }
    memcpy((int32_t *)job->k->out[0].data + b * job->width + c, place, (size_t)n * sizeof *place);
}

static void find(const struct argmax_job *job, int64_t task)
{
    const int64_t b = task / job->blocks, c = task % job->blocks * COLUMNS, rest = job->width - c;
    const int64_t n = rest < COLUMNS ? rest : COLUMNS;
    switch (job->k->in[0].dtype) {
    case RW_F64: find_typed(job, b, c, n, RW_F64); break;
    case RW_BF16: find_typed(job, b, c, n, RW_BF16); break;
    case RW_F16: find_typed(job, b, c, n, RW_F16); break;
    default: find_typed(job, b, c, n, RW_F32);
    }
}

static bool is_empty(const struct argmax_job *job, int64_t b)
{
    int64_t i = job->bags.offset[b];
    const int64_t end = end_of(&job->bags, b);
    while (i < end && job->kept && !job->kept[i]) i++;
    return i == end;
}

static void find_some(void *of, int64_t first, int64_t end)
{
    const struct argmax_job *const job = of;
    for (int64_t i = first; i < end; i++) find(job, i);
}

rw_status RW_ISA_NAME(rw_bags_argmax_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_bags_argmax_cpu)(const rw_kernel *k)
{
    struct argmax_job job = { .k = k, .kept = rw_kernel_has(k, 2) ? k->in[2].data : NULL };
    if (!read_bags(k, 1, &job.bags)) return RW_ERR_ARGUMENT;
    job.width = k->in[0].layout->dim[1];
    job.blocks = (job.width + COLUMNS - 1) / COLUMNS;
    for (int64_t b = 0; b < job.bags.n; b++) ((uint8_t *)k->out[1].data)[b] = is_empty(&job, b);
    rw_team_for(rw_threads_for(k, k->in[0].layout->numel), job.bags.n * job.blocks, find_some, &job);
    return RW_OK;
}
