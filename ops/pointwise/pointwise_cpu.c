/* CPU kernels of the element-wise ops: the arithmetic of arith.h in the loop of map.h, once per type. */
#include "device/cpu/isa.h"
#include "ops/map.h"

#define V nf
#define VS float
#define VM ni
#define F(name) nf_##name
#include "ops/pointwise/arith.h"
#undef V
#undef VS
#undef VM
#undef F
#define V nd
#define VS double
#define VM nl
#define F(name) nd_##name
#include "ops/pointwise/arith.h"

/* Ops on one input have one attribute, a double: the constant of those that have one. */
static double attribute(const rw_kernel *k)
{
    double a = 0;
    if (k->n_inputs == 1) memcpy(&a, k->attrs, sizeof a);
    return a;
}

#define POINTWISE(name, n_in, n_out)                                                         \
    MAP_FUNCTIONS(map_##name, n_in, n_out, nf_op_##name, nd_op_##name)                       \
    rw_status RW_ISA_NAME(rw_##name##_cpu)(const rw_kernel *k);                              \
    rw_status RW_ISA_NAME(rw_##name##_cpu)(const rw_kernel *k)                               \
    {                                                                                        \
        return map_kernel(k, n_in, map_##name##_blocks, attribute(k));                       \
    }
#include "ops/pointwise/list.h"
