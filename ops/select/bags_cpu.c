/* CPU kernel of embedding_bag_offsets. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/select/bags.h"

rw_status RW_ISA_NAME(rw_bags_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_bags_cpu)(const rw_kernel *k)
{
    const int64_t bags = k->in[0].layout->numel, places = ((const struct rw_bags_attrs *)k->attrs)->places;
    const int32_t *const offset = k->in[0].data;
    int32_t *const number = k->out[0].data;
    for (int64_t b = 0; b < bags; b++)
        if ((b ? offset[b] < offset[b - 1] : offset[b] != 0) || offset[b] > places) return RW_ERR_ARGUMENT;
    for (int64_t b = 0; b < bags; b++)
        for (int64_t i = offset[b]; i < (b + 1 < bags ? offset[b + 1] : places); i++) number[i] = (int32_t)b;
    return RW_OK;
}
