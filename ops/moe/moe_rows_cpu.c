/* Rows of tokens on the CPU: each row, token or slot has one owner. */
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/moe/moe.h"

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

/* A token's rows in the order of its slots, a vector of columns after another. */
VEC_INLINE void combine_vectors(const rw_kernel *k, rw_dtype dtype, int64_t token)
{
    const int32_t *const inverse = k->in[1].data;
    const int64_t each = k->in[1].layout->dim[1], n = k->in[0].layout->dim[1], rows = k->in[0].layout->dim[0];
    for (int64_t i = 0; i < n; i += NF_LANES) {
        const bool whole = n - i >= NF_LANES;
        nf sum = nf_all(0);
        for (int64_t s = 0; s < each; s++) {
            const int64_t at = rw_moe_within(inverse[token * each + s], rows) * n + i;
            sum += whole ? nf_get(k->in[0].data, dtype, at) : nf_get_some(k->in[0].data, dtype, at, n - i);
        }
        if (whole) nf_put(k->out[0].data, dtype, token * n + i, sum);
        else nf_put_some(k->out[0].data, dtype, token * n + i, n - i, sum);
    }
}

static void combine_doubles(const rw_kernel *k, int64_t token)
{
    const int32_t *const inverse = k->in[1].data;
    const int64_t each = k->in[1].layout->dim[1], n = k->in[0].layout->dim[1], rows = k->in[0].layout->dim[0];
    double *const to = (double *)k->out[0].data + token * n;
    for (int64_t i = 0; i < n; i++) to[i] = 0;
    for (int64_t s = 0; s < each; s++) {
        const double *const row = (const double *)k->in[0].data + rw_moe_within(inverse[token * each + s], rows) * n;
        for (int64_t i = 0; i < n; i++) to[i] += row[i];
    }
}

static void combine(const rw_kernel *k, int64_t token)
{
    switch (k->in[0].dtype) {
    case RW_F64: combine_doubles(k, token); return;
    case RW_BF16: combine_vectors(k, RW_BF16, token); return;
    case RW_F16: combine_vectors(k, RW_F16, token); return;
    default: combine_vectors(k, RW_F32, token); return;
    }
}

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
