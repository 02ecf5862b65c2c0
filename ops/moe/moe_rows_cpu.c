/* Rows of tokens on the CPU: each row, token or slot has one owner. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/moe/moe.h"

#define COLUMNS 256

#define T float
#define F(name) mf_##name
#include "ops/moe/moe_rows_tmpl.h"
#undef T
#undef F
#define T double
#define F(name) md_##name
#include "ops/moe/moe_rows_tmpl.h"
#undef T
#undef F

#define BY_TYPE(name)                                                                                                  \
    static void name(const rw_kernel *k, int64_t i)                                                                    \
    {                                                                                                                  \
        switch (k->in[0].dtype) {                                                                                      \
        case RW_F64: md_##name(k, RW_F64, i); return;                                                                  \
        case RW_BF16: mf_##name(k, RW_BF16, i); return;                                                                \
        case RW_F16: mf_##name(k, RW_F16, i); return;                                                                  \
        default: mf_##name(k, RW_F32, i); return;                                                                      \
        }                                                                                                              \
    }
BY_TYPE(combine)
BY_TYPE(weigh)
BY_TYPE(dot)

static rw_status run(const rw_kernel *k, int64_t n, void (*one)(const rw_kernel *k, int64_t i))
{
#pragma omp parallel for num_threads(k->threads) schedule(static) if (k->in[0].layout->numel >= RW_PARALLEL_FROM)
    for (int64_t i = 0; i < n; i++) one(k, i);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_moe_gather_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_gather_cpu)(const rw_kernel *k)
{
    const struct rw_moe_gather_attrs *const a = k->attrs;
    const int32_t *const order = k->in[1].data;
    const int64_t rows = k->out[0].layout->dim[0], tokens = k->in[0].layout->dim[0];
    const size_t row = (size_t)k->in[0].layout->dim[1] * rw_dtype_size(k->in[0].dtype);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (k->out[0].layout->numel >= RW_PARALLEL_FROM)
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)k->out[0].data + (size_t)r * row,
               (const char *)k->in[0].data + (size_t)rw_moe_within(order[r] / a->k, tokens) * row, row);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_moe_combine_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_combine_cpu)(const rw_kernel *k)
{
    return run(k, k->out[0].layout->dim[0], combine);
}

rw_status RW_ISA_NAME(rw_moe_weigh_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_weigh_cpu)(const rw_kernel *k)
{
    return run(k, k->in[0].layout->dim[0], weigh);
}

rw_status RW_ISA_NAME(rw_moe_dot_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_moe_dot_cpu)(const rw_kernel *k)
{
    return run(k, k->out[0].layout->numel, dot);
}
