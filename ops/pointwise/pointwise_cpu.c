/* CPU kernels of the element-wise ops: the arithmetic of arith.h in the loop of map.h, once per type. */
#include "device/cpu/isa.h"
#include "ops/map.h"

VEC_INLINE void vf_pow(const vf *in, vf *out, double a)
{
    for (int i = 0; i < VF_LANES; i++) out[0][i] = (float)pow((double)in[0][i], a);
}

VEC_INLINE void vd_pow(const vd *in, vd *out, double a)
{
    for (int i = 0; i < VD_LANES; i++) out[0][i] = pow(in[0][i], a);
}

#define V vf
#define VS float
#define VM vi
#define F(name) vf_##name
#include "ops/pointwise/arith.h"
#undef V
#undef VS
#undef VM
#undef F
#define V vd
#define VS double
#define VM vl
#define F(name) vd_##name
#include "ops/pointwise/arith.h"

/* Ops on one input have one attribute, a double: the constant of those that have one. */
static double attribute(const rw_kernel *k)
{
    double a = 0;
    if (k->n_inputs == 1) memcpy(&a, k->attrs, sizeof a);
    return a;
}

#define KERNEL(name, n_in, n_out)                                                            \
    rw_status RW_ISA_NAME(rw_##name##_cpu)(const rw_kernel *k);                              \
    rw_status RW_ISA_NAME(rw_##name##_cpu)(const rw_kernel *k)                               \
    {                                                                                        \
        const double a = attribute(k);                                                       \
        return map_kernel(k, n_in, n_out, vf_op_##name, vd_op_##name, a);                    \
    }

#define POINTWISE(name, n_in, n_out) KERNEL(name, n_in, n_out)
#include "ops/pointwise/list.h"
