/* CPU kernels that merge two attentions, one row of d elements at a time. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

#include <math.h>
#include <sleef.h>

/* Offset of row `row`, counted over the first `rank` axes, in elements. */
static int64_t offset_of(const rw_layout *l, int rank, int64_t row)
{
    int64_t at = 0;
    for (int axis = rank - 1; axis >= 0; axis--) {
        at += row % l->dim[axis] * l->stride[axis];
        row /= l->dim[axis];
    }
    return at;
}

struct row {
    int64_t from, step, d;
};

static struct row row_of(const rw_view *x, int64_t row)
{
    const int last = x->layout->rank - 1;
    return (struct row){ offset_of(x->layout, last, row), x->layout->stride[last], x->layout->dim[last] };
}

static float vf_exp_one(float x)
{
    return Sleef_expf_u10(x);
}

static float vf_log_one(float x)
{
    return Sleef_logf_u10(x);
}

static double vd_exp_one(double x)
{
    return Sleef_exp_u10(x);
}

static double vd_log_one(double x)
{
    return Sleef_log_u10(x);
}

#define T float
#define F(name) vf_##name
#include "ops/attention/attention_merge_tmpl.h"
#undef T
#undef F
#define T double
#define F(name) vd_##name
#include "ops/attention/attention_merge_tmpl.h"
#undef T
#undef F

static void merge(const rw_kernel *k, int64_t row)
{
    switch (k->in[0].dtype) {
    case RW_F64: vd_merge_row(k, RW_F64, row); return;
    case RW_BF16: vf_merge_row(k, RW_BF16, row); return;
    case RW_F16: vf_merge_row(k, RW_F16, row); return;
    default: vf_merge_row(k, RW_F32, row); return;
    }
}

static void backward(const rw_kernel *k, int64_t row)
{
    switch (k->in[0].dtype) {
    case RW_F64: vd_backward_row(k, RW_F64, row); return;
    case RW_BF16: vf_backward_row(k, RW_BF16, row); return;
    case RW_F16: vf_backward_row(k, RW_F16, row); return;
    default: vf_backward_row(k, RW_F32, row); return;
    }
}

struct rows {
    const rw_kernel *k;
    void (*one)(const rw_kernel *k, int64_t row);
};

static void run_some(void *of, int64_t first, int64_t end)
{
    const struct rows *const r = of;
    for (int64_t row = first; row < end; row++) r->one(r->k, row);
}

static void run(const rw_kernel *k, void (*one)(const rw_kernel *k, int64_t row))
{
    rw_team_for(rw_threads_for(k, k->in[0].layout->numel), k->in[2].layout->numel, run_some,
                &(struct rows){ k, one });
}

rw_status RW_ISA_NAME(rw_attention_merge_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_attention_merge_cpu)(const rw_kernel *k)
{
    run(k, merge);
    return RW_OK;
}

rw_status RW_ISA_NAME(rw_attention_merge_backward_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_attention_merge_backward_cpu)(const rw_kernel *k)
{
    run(k, backward);
    return RW_OK;
}
