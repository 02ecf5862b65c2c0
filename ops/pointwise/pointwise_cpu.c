/* CPU kernels of the element-wise ops: the arithmetic of pointwise_functions.h in the loop of elementwise_map.h, once
   per type. */
#include "device/cpu/isa.h"
#include "ops/common/elementwise_map.h"
#include "ops/pointwise/pointwise_functions.h"
#include "ops/pointwise/pointwise.h"
#include "ops/reduce/reduce.h"

static double constant_of(const rw_kernel *k, bool given)
{
    return given ? ((const struct rw_pointwise_attrs *)k->attrs)->constant : 0;
}

#define POINTWISE_OF(name, n_in, n_out, given)                                               \
    MAP_FUNCTIONS(map_##name, n_in, n_out, nf_op_##name, nd_op_##name)                       \
    rw_status RW_ISA_NAME(rw_##name##_cpu)(const rw_kernel *k);                              \
    rw_status RW_ISA_NAME(rw_##name##_cpu)(const rw_kernel *k)                               \
    {                                                                                        \
        return map_kernel(k, n_in, map_##name##_blocks, constant_of(k, given));              \
    }
#include "ops/pointwise/kernel_list_tmpl.h"

/* Without a sum so far, the result is the term. */
rw_status RW_ISA_NAME(rw_copy_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_accumulate_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_accumulate_cpu)(const rw_kernel *k)
{
    if (rw_kernel_has(k, 0)) return RW_ISA_NAME(rw_add_cpu)(k);
    rw_kernel copy = *k;
    copy.in = &k->in[1];
    copy.n_inputs = 1;
    return k->in[1].data == k->out[0].data ? RW_OK : RW_ISA_NAME(rw_copy_cpu)(&copy);
}

VEC_INLINE void add_wide(const rw_kernel *k, rw_dtype dtype, int64_t from, int64_t n)
{
    const float *const sum = rw_kernel_has(k, 0) ? k->in[0].data : NULL;
    float *const to = k->out[0].data;
    int64_t i = from;
    for (; i + NF_LANES <= from + n; i += NF_LANES) {
        nf x = nf_get(k->in[1].data, dtype, i);
        if (sum) x += nf_get(sum, RW_F32, i);
        nf_put(to, RW_F32, i, x);
    }
    for (; i < from + n; i++) {
        const float x = f_get(k->in[1].data, dtype, i);
        to[i] = sum ? sum[i] + x : x;
    }
}

static void add_wide_block(const rw_kernel *k, int64_t from)
{
    const int64_t rest = k->out[0].layout->numel - from, n = rest < MAP_BLOCK ? rest : MAP_BLOCK;
    if (k->in[1].dtype == RW_BF16) add_wide(k, RW_BF16, from, n);
    else add_wide(k, RW_F16, from, n);
}

static void add_wide_blocks(void *of, int64_t first, int64_t end)
{
    for (int64_t b = first; b < end; b++) add_wide_block(of, b * MAP_BLOCK);
}

rw_status RW_ISA_NAME(rw_accumulate_wide_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_accumulate_wide_cpu)(const rw_kernel *k)
{
    const int64_t n = k->out[0].layout->numel;
    rw_team_for(rw_threads_for(k, n), (n + MAP_BLOCK - 1) / MAP_BLOCK, add_wide_blocks, k);
    return RW_OK;
}

/* gelu_tanh_backward of elements [at, at + n), with that op's arithmetic. */
static void make_slopes(const rw_kernel *k, int64_t at, int64_t n)
{
    static const int64_t dense[MAP_INPUTS] = { 1, 1, 1 };
    const int64_t from[MAP_INPUTS] = { at, at, at };
#define SLOPES(dtype)                                                                             \
    map_row(k, dtype, 2, 1, from, dense, at, n, nf_op_gelu_tanh_backward, nd_op_gelu_tanh_backward, 0)
    switch (k->out[0].dtype) {
    case RW_F64: SLOPES(RW_F64); return;
    case RW_BF16: SLOPES(RW_BF16); return;
    case RW_F16: SLOPES(RW_F16); return;
    default: SLOPES(RW_F32); return;
    }
#undef SLOPES
}

rw_status RW_ISA_NAME(rw_sum_rows_cpu)(const rw_kernel *k, rw_reduce_make make, int addend);
rw_status RW_ISA_NAME(rw_gelu_tanh_backward_sum_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_gelu_tanh_backward_sum_cpu)(const rw_kernel *k)
{
    return RW_ISA_NAME(rw_sum_rows_cpu)(k, make_slopes, 2);
}
