/*
 * CPU kernels of causal_conv1d: the rows of a result are distributed over threads; for a weight's gradient its
 * channels.
 */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec_native.h"
#include "ops/recurrent/causal_conv1d.h"

struct conv_operands {
    const void *x, *bias, *dy, *sum;
    void *transposed, *to;
};

VEC_INLINE nf f_get_lanes(const void *p, rw_dtype dtype, int64_t i)
{
    return nf_get(p, dtype, i);
}

VEC_INLINE void f_put_lanes(void *p, rw_dtype dtype, int64_t i, nf x)
{
    nf_put(p, dtype, i, x);
}

VEC_INLINE nd d_get_lanes(const void *p, rw_dtype dtype, int64_t i)
{
    return *(const nd *)((const double *)p + i);
}

VEC_INLINE void d_put_lanes(void *p, rw_dtype dtype, int64_t i, nd x)
{
    *(nd *)((double *)p + i) = x;
}

#define LANES 32
#define ROWS 128
#define T float
#define N nf
#define N_LANES NF_LANES
#define F(name) f_##name
#include "ops/recurrent/causal_conv1d_tmpl.h"
#undef T
#undef N
#undef N_LANES
#undef F
#define T double
#define N nd
#define N_LANES ND_LANES
#define F(name) d_##name
#include "ops/recurrent/causal_conv1d_tmpl.h"

static void row_of(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t row)
{
    switch (dtype) {
    case RW_F32: f_row(j, o, RW_F32, row); return;
    case RW_BF16: f_row(j, o, RW_BF16, row); return;
    case RW_F16: f_row(j, o, RW_F16, row); return;
    default: d_row(j, o, RW_F64, row); return;
    }
}

static void strip_of(const struct rw_causal_conv1d *j, const struct conv_operands *o, rw_dtype dtype, int64_t c)
{
    switch (dtype) {
    case RW_F32: f_strip(j, o, RW_F32, c); return;
    case RW_BF16: f_strip(j, o, RW_BF16, c); return;
    case RW_F16: f_strip(j, o, RW_F16, c); return;
    default: d_strip(j, o, RW_F64, c); return;
    }
}

static void transpose(const struct rw_causal_conv1d *j, const rw_view *weight, void *to)
{
    if (weight->dtype == RW_F64) d_transpose(j, weight->data, RW_F64, to);
    else f_transpose(j, weight->data, weight->dtype, to);
}

struct conv {
    struct rw_causal_conv1d j;
    struct conv_operands o;
    rw_dtype dtype;
};

static void rows_of(void *of, int64_t first, int64_t end)
{
    const struct conv *const c = of;
    for (int64_t row = first; row < end; row++) row_of(&c->j, &c->o, c->dtype, row);
}

static void strips_of(void *of, int64_t first, int64_t end)
{
    const struct conv *const c = of;
    for (int64_t strip = first; strip < end; strip++) strip_of(&c->j, &c->o, c->dtype, strip * LANES);
}

rw_status RW_ISA_NAME(rw_causal_conv1d_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_causal_conv1d_cpu)(const rw_kernel *k)
{
    const struct conv c = { rw_causal_conv1d_of(k, false),
                            { .x = k->in[0].data, .bias = rw_kernel_has(k, 2) ? k->in[2].data : NULL,
                              .transposed = k->workspace, .to = k->out[0].data },
                            k->out[0].dtype };
    const int64_t n = k->out[0].layout->numel;
    if (!n) return RW_OK;
    transpose(&c.j, &k->in[1], k->workspace);
    rw_team_for(rw_threads_for(k, n), c.j.b * c.j.l, rows_of, &c);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_causal_conv1d_weight_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_causal_conv1d_weight_cpu)(const rw_kernel *k)
{
    const struct conv c = { rw_causal_conv1d_of(k, true),
                            { .x = k->in[0].data, .dy = k->in[1].data,
                              .sum = rw_kernel_has(k, 2) ? k->in[2].data : NULL, .to = k->out[0].data },
                            k->out[0].dtype };
    rw_team_for(rw_threads_for(k, c.j.b * c.j.l * c.j.c), (c.j.c + LANES - 1) / LANES, strips_of, &c);
    return RW_OK;
}
