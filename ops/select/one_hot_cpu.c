/* CPU kernel of one_hot. */
#include "base/thread_team.h"
#include "ops/select/one_hot.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"

#include <string.h>

static void put_rows(void *of, int64_t first, int64_t end)
{
    const rw_kernel *const k = of;
    const int32_t *const index = k->in[0].data;
    const size_t size = rw_dtype_size(k->out[0].dtype);
    const size_t row = (size_t)((const struct rw_one_hot_attrs *)k->attrs)->classes * size;
    const uint64_t one = rw_one_bits(k->out[0].dtype);
    for (int64_t i = first; i < end; i++) {
        char *const y = (char *)k->out[0].data + (size_t)i * row;
        memset(y, 0, row);
        memcpy(y + (size_t)index[i] * size, &one, size);
    }
}

rw_status RW_ISA_NAME(rw_one_hot_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_one_hot_cpu)(const rw_kernel *k)
{
    const struct rw_one_hot_attrs *const a = k->attrs;
    const int32_t *const index = k->in[0].data;
    const int64_t n = k->in[0].layout->numel;
    for (int64_t i = 0; i < n; i++)
        if (index[i] < 0 || index[i] >= a->classes) return RW_ERR_ARGUMENT;
    rw_team_for(rw_threads_for(k, k->out[0].layout->numel), n, put_rows, k);
    return RW_OK;
}
