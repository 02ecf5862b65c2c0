/* CPU kernels of the fused activation and weighting of rows (moe_act.c), one vector at a time. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/partial_vectors.h"
#include "ops/common/elementwise_map.h"
#include "ops/moe/moe_dots_by_slot.h"
#include "ops/pointwise/pointwise_functions.h"

/* The operands of the activation, and dy. */
#define OPERANDS_MAX 3

/* A row of a call: the addresses of its operands, and its slot's weight. */
struct act_row {
    const rw_kernel *k;
    int64_t at[OPERANDS_MAX], stride[OPERANDS_MAX];
    int64_t row, width;
    double weight;
};

/* n: number of operands before the weights. */
VEC_INLINE struct act_row act_row(const rw_kernel *k, int n, int64_t row, bool dense)
{
    struct act_row r = { .k = k, .row = row, .width = k->out[0].layout->dim[1] };
    const rw_view *const w = &k->in[n];
    const int64_t slot = rw_moe_within(((const int32_t *)k->in[n + 1].data)[row], w->layout->numel);
    r.weight = w->dtype == RW_F64 ? ((const double *)w->data)[slot] : (double)((const float *)w->data)[slot];
    for (int j = 0; j < n; j++) {
        r.at[j] = row * k->in[j].layout->stride[0];
        r.stride[j] = dense ? 1 : k->in[j].layout->stride[1];
    }
    return r;
}

/* Are the elements of each operand's rows contiguous? Then a loop without strides is used. */
static bool rows_are_dense(const rw_kernel *k, int n)
{
    bool all = true;
    for (int j = 0; j < n; j++) all &= k->in[j].layout->stride[1] == 1;
    return all;
}

/* Prefetches as map_near_f() does. */
VEC_INLINE void fetch_ahead(const struct act_row *r, rw_dtype dtype, int n_in, int n_out, int64_t i)
{
    if (dtype != RW_F64)
        map_fetch_ahead(r->k, dtype, n_in, n_out, r->at, r->stride, r->row * r->width, i);
}

#define T float
#define N nf
#define N_LANES NF_LANES
#define F(name) nf_##name
#define GET(dtype, j, i, n) map_load_f(r->k->in[j].data, dtype, r->at[j] + (i) * r->stride[j], r->stride[j], n)
#define PUT(dtype, j, i, n, y) f_save(r->k->out[j].data, dtype, r->row * r->width + (i), n, y)
#include "ops/moe/moe_act_tmpl.h"
#define T double
#define N nd
#define N_LANES ND_LANES
#define F(name) nd_##name
#define GET(dtype, j, i, n) map_load_d(r->k->in[j].data, r->at[j] + (i) * r->stride[j], r->stride[j], n)
#define PUT(dtype, j, i, n, y) d_save(r->k->out[j].data, dtype, r->row * r->width + (i), n, y)
#include "ops/moe/moe_act_tmpl.h"

typedef void (*act_fn)(const rw_kernel *k, int64_t row, bool dense);

struct act_rows {
    const rw_kernel *k;
    act_fn one;
    bool dense;
};

static void run_some(void *of, int64_t first, int64_t end)
{
    const struct act_rows *const r = of;
    for (int64_t i = first; i < end; i++) r->one(r->k, i, r->dense);
}

static void run_rows(const rw_kernel *k, act_fn one, int operands)
{
    const rw_layout *const x = k->in[0].layout;
    rw_team_for(rw_threads_for(k, x->numel), x->dim[0], run_some,
                &(struct act_rows){ k, one, rows_are_dense(k, operands) });
}

/* Generates name_TYPE(): a row of an op whose activation has n operands, forward and backward. If all rows are dense,
   strides are constants. */
#define ACT_OF(name, n, type, dtype, prefix)                                                            \
    static void name##_##type(const rw_kernel *k, int64_t row, bool dense)                              \
    {                                                                                                   \
        const struct act_row all = act_row(k, n, row, true), any = act_row(k, n, row, false);           \
        if (dense) prefix##_act_weigh(&all, dtype, n, prefix##_op_##name);                              \
        else prefix##_act_weigh(&any, dtype, n, prefix##_op_##name);                                    \
    }                                                                                                   \
    static void name##_backward_##type(const rw_kernel *k, int64_t row, bool dense)                     \
    {                                                                                                   \
        const struct act_row all = act_row(k, n + 1, row, true), any = act_row(k, n + 1, row, false);   \
        const prefix##_act_fn act = prefix##_op_##name, slopes = prefix##_op_##name##_backward;         \
        if (dense) prefix##_act_weigh_backward(&all, dtype, n, act, slopes);                            \
        else prefix##_act_weigh_backward(&any, dtype, n, act, slopes);                                  \
    }

#define ACT(name, n)                                                                                    \
    ACT_OF(name, n, f32, RW_F32, nf)                                                                    \
    ACT_OF(name, n, bf16, RW_BF16, nf)                                                                  \
    ACT_OF(name, n, f16, RW_F16, nf)                                                                    \
    ACT_OF(name, n, f64, RW_F64, nd)                                                                    \
    static const act_fn name##_rows[RW_DTYPE_COUNT] = { [RW_F32] = name##_f32, [RW_BF16] = name##_bf16, \
                                                        [RW_F16] = name##_f16, [RW_F64] = name##_f64 }; \
    static const act_fn name##_backward_rows[RW_DTYPE_COUNT] = { [RW_F32] = name##_backward_f32,        \
                                                                 [RW_BF16] = name##_backward_bf16,      \
                                                                 [RW_F16] = name##_backward_f16,        \
                                                                 [RW_F64] = name##_backward_f64 };      \
    rw_status RW_ISA_NAME(rw_moe_##name##_weigh_cpu)(const rw_kernel *k);                               \
    rw_status RW_ISA_NAME(rw_moe_##name##_weigh_cpu)(const rw_kernel *k)                                \
    {                                                                                                   \
        run_rows(k, name##_rows[k->in[0].dtype], n);                                                    \
        return RW_OK;                                                                                   \
    }                                                                                                   \
    rw_status RW_ISA_NAME(rw_moe_##name##_weigh_backward_cpu)(const rw_kernel *k);                      \
    rw_status RW_ISA_NAME(rw_moe_##name##_weigh_backward_cpu)(const rw_kernel *k)                       \
    {                                                                                                   \
        run_rows(k, name##_backward_rows[k->in[0].dtype], n + 1);                                       \
        rw_moe_dots_by_slot(k, n, n + 3, k->in[0].layout->dim[0]);                                      \
        return RW_OK;                                                                                   \
    }

ACT(silu, 1)
ACT(swiglu, 2)
