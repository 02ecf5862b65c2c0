/* Capacity of experts on the CPU: each slot computes independently whether it is kept. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/moe/moe.h"

#include <math.h>

static double weight_at(const rw_view *x, int64_t i)
{
    return x->dtype == RW_F64 ? ((const double *)x->data)[i] : (double)f_get(x->data, x->dtype, i);
}

/* Number of rows of a slot's expert that rank before it: those with larger weights, and earlier ones with equal
   weights. */
static int64_t before(const rw_kernel *k, struct moe_range rows, int64_t slot, int64_t most)
{
    const int32_t *const order = k->in[1].data;
    const int64_t n = k->in[0].layout->numel;
    const double own = weight_at(&k->in[4], slot);
    int64_t count = 0;
    for (int64_t r = rows.from; r < rows.to && count < most; r++) {
        const int64_t other = rw_moe_within(order[r], n);
        const double w = weight_at(&k->in[4], other);
        count += w > own || (w == own && other < slot);
    }
    return count;
}

/* False if the expert does not exist, or if a weight is NaN. */
static bool drop(const rw_kernel *k, int64_t slot)
{
    const struct rw_moe_drop_attrs *const a = k->attrs;
    const int64_t n = k->in[0].layout->numel, experts = k->in[3].layout->numel - 1;
    const int32_t expert = ((const int32_t *)k->in[0].data)[slot];
    int32_t *const to = (int32_t *)k->out[0].data + slot;
    *to = expert;
    if (expert == RW_MOE_DROPPED) return true;
    if (expert < 0 || expert >= experts) return false;
    if (k->n_inputs == 5 && isnan(weight_at(&k->in[4], slot))) return false;
    const struct moe_range rows = rw_moe_rows_of(k->in[3].data, expert, n);
    if (rows.to - rows.from <= a->capacity) return true;
    const int64_t place = k->n_inputs == 5 ? before(k, rows, slot, a->capacity)
                                           : ((const int32_t *)k->in[2].data)[slot] - rows.from;
    if (place >= a->capacity) *to = RW_MOE_DROPPED;
    return true;
}

struct slots {
    const rw_kernel *k;
    bool wrong;
};

static void drop_some(void *of, int64_t first, int64_t end)
{
    struct slots *const s = of;
    bool wrong = false;
    for (int64_t i = first; i < end; i++) wrong |= !drop(s->k, i);
    if (wrong) __atomic_store_n(&s->wrong, true, __ATOMIC_RELAXED);
}

rw_status RW_ISA_NAME(rw_moe_drop_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_drop_cpu)(const rw_kernel *k)
{
    const int64_t n = k->in[0].layout->numel;
    struct slots s = { k, false };
    rw_team_for(n >= 1024 ? k->threads : 1, n, drop_some, &s);
    return s.wrong ? RW_ERR_ARGUMENT : RW_OK;
}
