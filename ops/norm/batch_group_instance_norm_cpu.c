/*
 * CPU kernels of batchnorm, group_norm and instance_norm: blocks of rows are distributed over threads and merged in
 * order. A lane is a channel and channels are independent, so native vectors are used.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/partial_vectors.h"
#include "ops/common/util.h"
#include "ops/norm/batch_group_instance_norm.h"

VEC_INLINE nf f_relu(nf x)
{
    return nf_select((ni)((x > 0) | (x != x)), x, nf_all(0));
}

/* 0 where y is at most `most`, else x; also 0 where y is NaN, as in the gradient of rw_relu(). */
VEC_INLINE nf f_unless_up_to(nf y, float most, nf x)
{
    return nf_select((ni)(y <= most), nf_all(0), x);
}

VEC_INLINE nd d_relu(nd x)
{
    return nd_select((nl)((x > 0) | (x != x)), x, nd_all(0));
}

VEC_INLINE nd d_unless_up_to(nd y, double most, nd x)
{
    return nd_select((nl)(y <= most), nd_all(0), x);
}

#define WITH(TYPE, call)            \
    {                                \
        const rw_dtype dtype = TYPE; \
        call;                        \
    }

#define T float
#define V nf
#define OF_TYPE(call)                           \
    switch (type) {                             \
    case RW_F32: WITH(RW_F32, call) break;      \
    case RW_BF16: WITH(RW_BF16, call) break;    \
    default: WITH(RW_F16, call) break;          \
    }
#define F(name) f_##name
#include "ops/norm/batch_group_instance_norm_tmpl.h"
#undef T
#undef V
#undef F
#define T double
#define V nd
#define OF_TYPE(call) \
    (void)type;       \
    WITH(RW_F64, call)
#define F(name) d_##name
#include "ops/norm/batch_group_instance_norm_tmpl.h"

rw_status RW_ISA_NAME(rw_groups_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_groups_cpu)(const rw_kernel *k)
{
    const rw_layout *const y = k->out[0].layout;
    const struct rw_groups g = rw_groups_of(k->attrs, y, rw_groups_channels(y));
    const int threads = rw_threads_for(k, y->numel);
    if (k->in[0].dtype == RW_F64) d_forward(k, RW_F64, &g, threads);
    else f_forward(k, k->in[0].dtype, &g, threads);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_groups_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_groups_backward_cpu)(const rw_kernel *k)
{
    const rw_layout *const dx = k->out[0].layout;
    const struct rw_groups g = rw_groups_of(k->attrs, dx, rw_groups_channels(dx));
    const int threads = rw_threads_for(k, dx->numel);
    if (k->in[0].dtype == RW_F64) d_backward(k, RW_F64, &g, threads);
    else f_backward(k, k->in[0].dtype, &g, threads);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_groups_update_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_groups_update_cpu)(const rw_kernel *k)
{
    if (k->out[0].dtype == RW_F64) d_update(k);
    else f_update(k);
    return RW_OK;
}
