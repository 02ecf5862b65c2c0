/* CPU kernels of attention_bias and attention_seen (attention_bias_matrix.c), element by element. */
#include "base/thread_team.h"
#include "device/cpu/isa.h"
#include "ops/attention/attention.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"

#include <math.h>

struct bias {
    const struct rw_attention_bias_attrs *attrs;
    const rw_view *mask, *slopes, *documents, *out;
};

static double number_at(const rw_view *x, int64_t at)
{
    if (x->dtype == RW_BOOL) return ((const uint8_t *)x->data)[at] ? 0 : -(double)INFINITY;
    return x->dtype == RW_F64 ? ((const double *)x->data)[at] : (double)f_get(x->data, x->dtype, at);
}

/* One element of the matrix: slope, mask and span applied to a score of 0. */
static double element(const struct bias *c, struct att_span span, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const struct rw_attention_bias_attrs *const a = c->attrs;
    const double lowest = a->dtype == RW_F16 ? ATT_LOWEST_F16 : ATT_LOWEST;
    double x = 0;
    if (c->slopes) x -= number_at(c->slopes, h * c->slopes->layout->stride[0]) *
                        fabs((double)(i + a->kv_seq - a->seq - j));
    if (c->mask) {
        const rw_layout *const l = c->mask->layout;
        const int64_t at[] = { b, h, i, j };
        int64_t from = 0;
        for (int axis = 0; axis < 4; axis++) from += l->dim[axis] == 1 ? 0 : at[axis] * l->stride[axis];
        x += number_at(c->mask, from);
    }
    const bool seen = j >= span.lo && j < span.hi && x != -(double)INFINITY;
    if (a->seen) return seen;
    return seen ? x : lowest;
}

static void row(const struct bias *c, const struct att_reach *r, int64_t b, int64_t h, int64_t i)
{
    const rw_layout *const l = c->out->layout;
    const struct att_span span = rw_att_span(r, i);
    const int64_t to = ((b * l->dim[1] + h) * l->dim[2] + i) * l->dim[3];
    for (int64_t j = 0; j < l->dim[3]; j++) {
        const double x = element(c, span, b, h, i, j);
        if (c->out->dtype == RW_F64) ((double *)c->out->data)[to + j] = x;
        else f_put(c->out->data, c->out->dtype, to + j, (float)x);
    }
}

/* The rows of one batch element. */
struct rows {
    const struct bias *c;
    struct att_reach r;
    int64_t b;
};

static void fill_rows(void *of, int64_t first, int64_t end)
{
    const struct rows *const s = of;
    const int64_t queries = s->c->out->layout->dim[2];
    for (int64_t i = first; i < end; i++) row(s->c, &s->r, s->b, i / queries, i % queries);
}

/* Checks the documents of each batch element, then computes the rows of its matrix in parallel. */
rw_status RW_ISA_NAME(rw_attention_bias_cpu)(const rw_kernel *k);
rw_status RW_ISA_NAME(rw_attention_bias_cpu)(const rw_kernel *k)
{
    const struct rw_attention_bias_attrs *const a = k->attrs;
    const rw_layout *const l = k->out[0].layout;
    const int mask = rw_att_extra(&a->forward, ATT_MASK, 0), slopes = rw_att_extra(&a->forward, ATT_SLOPES, 0);
    const int documents = rw_att_extra(&a->forward, ATT_DOCUMENTS, 0);
    const struct bias c = { a, mask < 0 ? NULL : &k->in[mask], slopes < 0 ? NULL : &k->in[slopes],
                            documents < 0 ? NULL : &k->in[documents], &k->out[0] };
    const struct att_extents e = { .seq = a->seq, .kv_seq = a->kv_seq };
    for (int64_t b = 0; b < l->dim[0]; b++) {
        const bool own = c.documents && c.documents->layout->rank == 2;
        const struct rows s = { &c, rw_att_reach(&a->forward, &e, c.documents, own ? b : 0), b };
        for (int64_t n = 0; n < s.r.entries; n++)
            if (!rw_att_entry_holds(&s.r, n)) return RW_ERR_ARGUMENT;
        rw_team_for(rw_threads_for(k, l->numel), l->dim[1] * l->dim[2], fill_rows, &s);
    }
    return RW_OK;
}
