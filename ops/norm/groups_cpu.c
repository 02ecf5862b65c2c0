/* CPU kernels of batchnorm, group_norm and instance_norm: blocks of rows are shared out and merged in order. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/norm/groups.h"

#define T float
#define F(name) f_##name
#include "ops/norm/groups_tmpl.h"
#undef T
#undef F
#define T double
#define F(name) d_##name
#include "ops/norm/groups_tmpl.h"

/* The loops of each type, with the type a constant in them. */
#define TYPED(name)                                                               \
    switch (k->in[0].dtype) {                                                     \
    case RW_F32: f_##name(k, RW_F32, &g, parallel); return RW_OK;                 \
    case RW_BF16: f_##name(k, RW_BF16, &g, parallel); return RW_OK;               \
    case RW_F16: f_##name(k, RW_F16, &g, parallel); return RW_OK;                 \
    default: d_##name(k, RW_F64, &g, parallel); return RW_OK;                     \
    }

rw_status RW_ISA_NAME(rw_groups_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_groups_cpu)(const rw_kernel *k)
{
    const struct rw_groups g = rw_groups_of(k->attrs, k->in[0].layout);
    const bool parallel = k->in[0].layout->numel >= RW_PARALLEL_FROM;
    TYPED(forward)
}

rw_status RW_ISA_NAME(rw_groups_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_groups_backward_cpu)(const rw_kernel *k)
{
    const struct rw_groups g = rw_groups_of(k->attrs, k->in[0].layout);
    const bool parallel = k->in[0].layout->numel >= RW_PARALLEL_FROM;
    TYPED(backward)
}

rw_status RW_ISA_NAME(rw_groups_update_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_groups_update_cpu)(const rw_kernel *k)
{
    if (k->out[0].dtype == RW_F64) d_update(k);
    else f_update(k);
    return RW_OK;
}
