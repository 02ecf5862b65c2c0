/* Convolutions by oneDNN, and copies of weights from and to its own layouts. See onednn.h. */
#include "device/cpu/onednn_primitive.h"

#include <omp.h>
#include <string.h>

#define FEW_FILTERS 16
#define FEW_ELEMENTS 65536 /* 256 KiB of float32 */

/* ---- making one ---- */

static dnnl_status_t describe_images(struct rw_onednn_primitive *p)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const dnnl_dims_t x = { s->n, s->c, s->h, s->w }, y = { s->n, s->oc, s->oh, s->ow }, bias = { s->oc };
    const dnnl_data_type_t type = rw_onednn_type_of(s->dtype);
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(&p->operand[FIRST], 4, x, type, dnnl_nhwc);
    if (!status) status = dnnl_memory_desc_init_by_tag(&p->operand[RESULT], 4, y, type, dnnl_nhwc);
    if (!status) status = dnnl_memory_desc_init_by_tag(&p->operand[BIAS], 1, bias, type, dnnl_a);
    return status;
}

/* A weight, dense or in whatever layout the primitive likes best. */
static dnnl_status_t describe_weight(const struct rw_conv_signature *s, bool dense, dnnl_memory_desc_t *d)
{
    const bool grouped = s->groups > 1;
    const dnnl_dims_t one = { s->oc, s->c, s->kh, s->kw };
    const dnnl_dims_t many = { s->groups, s->oc / s->groups, s->c / s->groups, s->kh, s->kw };
    const dnnl_data_type_t type = s->kind == RW_ONEDNN_BACKWARD_WEIGHT ? dnnl_f32 : rw_onednn_type_of(s->dtype);
    const dnnl_format_tag_t tag = !dense ? dnnl_format_tag_any : grouped ? dnnl_goihw : dnnl_oihw;
    return dnnl_memory_desc_init_by_tag(d, grouped ? 5 : 4, grouped ? many : one, type, tag);
}

static dnnl_status_t describe_conv(const struct rw_conv_signature *s, int kind, const struct rw_onednn_primitive *p,
                                   const dnnl_memory_desc_t *weight, dnnl_convolution_desc_t *ret)
{
    const dnnl_memory_desc_t *const x = &p->operand[FIRST], *const y = &p->operand[RESULT];
    const dnnl_dims_t stride = { s->stride[0], s->stride[1] }, padding = { s->padding[0], s->padding[1] };
    const dnnl_dims_t end = { s->end[0], s->end[1] };
    const dnnl_dims_t dilates = { s->dilation[0] - 1, s->dilation[1] - 1 };
    if (kind == RW_ONEDNN_FORWARD)
        return dnnl_dilated_convolution_forward_desc_init(ret, dnnl_forward_training, dnnl_convolution_direct, x,
                                                          weight, s->bias ? &p->operand[BIAS] : NULL, y, stride,
                                                          dilates, padding, end);
    if (kind == RW_ONEDNN_BACKWARD_DATA)
        return dnnl_dilated_convolution_backward_data_desc_init(ret, dnnl_convolution_direct, x, weight, y, stride,
                                                                dilates, padding, end);
    return dnnl_dilated_convolution_backward_weights_desc_init(ret, dnnl_convolution_direct, x, weight, NULL, y,
                                                               stride, dilates, padding, end);
}

/* What oneDNN asks of a gradient: the primitive whose gradient it is. NULL where there is none. */
static dnnl_status_t hint_of(struct rw_onednn_primitive *p, dnnl_primitive_desc_t *ret)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    dnnl_memory_desc_t weight;
    dnnl_convolution_desc_t desc;
    struct rw_conv_signature forward = *s;
    forward.kind = RW_ONEDNN_FORWARD;
    dnnl_status_t status = describe_weight(&forward, false, &weight);
    if (!status) status = describe_conv(s, RW_ONEDNN_FORWARD, p, &weight, &desc);
    if (!status) status = dnnl_primitive_desc_create(ret, &desc, NULL, p->engine, NULL);
    return status == dnnl_unimplemented ? dnnl_success : status;
}

/* Filters that lie together in a gradient's layout as a rule: as they come out of it, they stay in a thread's cache
   until they are rounded. */
static int64_t few_filters(const struct rw_conv_signature *s)
{
    int64_t few = FEW_FILTERS;
    while (s->oc % (2 * few) == 0 && 2 * few * s->c * s->kh * s->kw <= FEW_ELEMENTS) few *= 2;
    return few;
}

/* What is turned at a time: all of a weight, of a gradient a few filters. */
static dnnl_status_t describe_turned(struct rw_onednn_primitive *p)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const int64_t few = few_filters(s);
    const dnnl_dims_t extent = { few, s->c, s->kh, s->kw }, first = { 0 }, next = { few };
    dnnl_memory_desc_t turned, second;
    p->operand[TURNED] = p->operand[SECOND];
    p->filters = s->oc;
    if (s->kind != RW_ONEDNN_BACKWARD_WEIGHT || s->groups > 1 || s->oc <= few || s->oc % few) return dnnl_success;
    if (dnnl_memory_desc_init_submemory(&turned, &p->operand[SECOND], extent, first)) return dnnl_success;
    if (dnnl_memory_desc_init_submemory(&second, &p->operand[SECOND], extent, next)) return dnnl_success;
    p->operand[TURNED] = turned;
    p->filters = few;
    p->step = second.offset0;
    return dnnl_memory_desc_init_by_tag(&p->operand[PLAIN], 4, extent, dnnl_f32, dnnl_oihw);
}

/* The copy between the dense weight and the primitive's own. */
static dnnl_status_t describe_turn(const struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr,
                                   dnnl_primitive_desc_t *ret)
{
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    const dnnl_memory_desc_t *const from = &p->operand[out ? TURNED : PLAIN], *const to = &p->operand[out ? PLAIN
                                                                                                         : TURNED];
    return dnnl_reorder_primitive_desc_create(ret, from, p->engine, to, p->engine, attr);
}

/* Its scratch memory is that of the primitive. */
static dnnl_status_t make_turn(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = describe_turn(p, attr, &pd);
    if (!status) {
        const dnnl_memory_desc_t *const scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        if (dnnl_memory_desc_get_size(scratch) > dnnl_memory_desc_get_size(&p->operand[SCRATCH]))
            p->operand[SCRATCH] = *scratch;
        status = dnnl_primitive_create(&p->turn, pd);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    return status;
}

static dnnl_status_t make_conv(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    dnnl_memory_desc_t weight;
    dnnl_convolution_desc_t desc;
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    dnnl_status_t status = describe_images(p);
    if (!status) status = describe_weight(s, true, &p->operand[PLAIN]);
    if (!status) status = describe_weight(s, false, &weight);
    if (!status) status = describe_conv(s, s->kind, p, &weight, &desc);
    if (!status && s->kind != RW_ONEDNN_FORWARD) status = hint_of(p, &hint);
    if (!status && (hint || s->kind == RW_ONEDNN_FORWARD)) status = rw_onednn_make_fast(p, &desc, attr, hint, &pd);
    if (!status && p->fast) {
        const bool out = s->kind == RW_ONEDNN_BACKWARD_WEIGHT;
        p->operand[SECOND] = *dnnl_primitive_desc_query_md(pd, out ? dnnl_query_diff_weights_md : dnnl_query_weights_md,
                                                           0);
        status = describe_turned(p);
        p->of_pairs = !out && rw_onednn_is_of_pairs(&p->operand[SECOND]);
        if (!status && !p->of_pairs) status = make_turn(p, attr);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (hint) dnnl_primitive_desc_destroy(hint);
    return status;
}

/* Where it takes no more scratch memory than the copy by one thread. */
static dnnl_status_t make_spread(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t made = NULL;
    dnnl_status_t status = describe_turn(p, attr, &pd);
    const dnnl_memory_desc_t *const scratch = status ? NULL
                                                     : dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
    if (!status && dnnl_memory_desc_get_size(scratch) <= dnnl_memory_desc_get_size(&p->operand[SCRATCH]))
        status = dnnl_primitive_create(&made, pd);
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (status) return status;
    if (p->spread) dnnl_primitive_destroy(p->spread);
    p->spread = made;
    return status;
}

/* A weight's gradient is brought back by the thread that made it. */
static rw_status spread_by(struct rw_onednn_primitive *p, int threads)
{
    if (p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT) return RW_OK;
    if (threads == 1 || p->spread_by == threads) return RW_OK;
    if (!p->of_pairs) RW_ONEDNN_TRY(rw_onednn_make_for_threads(p, threads, make_spread));
    p->spread_by = threads;
    return RW_OK;
}

static const struct rw_onednn_kind kind = { .operands = OPERANDS, .make = make_conv, .for_threads = spread_by };

static struct rw_onednn_signature key_of(const struct rw_conv_signature *s)
{
    struct rw_onednn_signature r;
    memset(&r, 0, sizeof r);
    r.which = RW_ONEDNN_CONVOLUTION;
    r.of.conv = *s;
    return r;
}

static struct rw_conv_needs needs_of(const struct rw_onednn_primitive *p)
{
    return (struct rw_conv_needs){ p->fast, rw_onednn_size_of(p, SCRATCH), rw_onednn_size_of(p, SECOND), p->filters };
}

rw_status rw_onednn_conv_prepare(struct rw_onednn *o, const struct rw_conv_signature *s, int threads,
                                 struct rw_conv_needs *ret)
{
    const struct rw_onednn_signature key = key_of(s);
    struct rw_onednn_primitive *p;
    RW_ONEDNN_TRY(rw_onednn_prepare(o, &key, &kind, threads, &p));
    *ret = needs_of(p);
    rw_onednn_forget_idle(o);
    return RW_OK;
}

struct rw_onednn_primitive *rw_onednn_conv_find(const struct rw_onednn *o, const struct rw_conv_signature *s,
                                                struct rw_conv_needs *ret)
{
    const struct rw_onednn_signature key = key_of(s);
    struct rw_onednn_primitive *const p = rw_onednn_find(o, &key);
    if (p) *ret = needs_of(p);
    return p;
}

/* ---- the run ---- */

bool rw_onednn_conv_same_weight(const struct rw_onednn_primitive *p, const struct rw_onednn_primitive *q)
{
    return dnnl_memory_desc_equal(&p->operand[SECOND], &q->operand[SECOND]);
}

rw_status rw_onednn_conv_run(struct rw_onednn_primitive *p, int thread, const void *image, const void *weight,
                             const void *bias, const void *result, void *scratch)
{
    static const int names[][3] = { { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST },
                                    { DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST },
                                    { DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST } };
    dnnl_memory_t *const of = p->slots[thread].of;
    const int *const name = names[p->signature.of.conv.kind], has_bias = p->signature.of.conv.bias;
    dnnl_status_t status = rw_onednn_point(of[FIRST], image);
    if (!status) status = rw_onednn_point(of[SECOND], weight);
    if (!status && has_bias) status = rw_onednn_point(of[BIAS], bias);
    if (!status) status = rw_onednn_point(of[RESULT], result);
    if (!status) status = rw_onednn_point(of[SCRATCH], scratch);
    if (status) return rw_onednn_status_of(status);
    const dnnl_exec_arg_t args[] = { { name[0], of[FIRST] }, { name[1], of[SECOND] }, { name[2], of[RESULT] },
                                     { DNNL_ARG_SCRATCHPAD, of[SCRATCH] }, { DNNL_ARG_BIAS, of[BIAS] } };
    return rw_onednn_execute(p, p->primitive, thread, args, has_bias ? 5 : 4);
}

static rw_status turn_by(struct rw_onednn_primitive *p, dnnl_primitive_t turn, int thread, const void *from, void *to,
                         void *scratch)
{
    dnnl_memory_t *const of = p->slots[thread].of;
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    dnnl_memory_t const source = of[out ? TURNED : PLAIN], target = of[out ? PLAIN : TURNED];
    dnnl_status_t status = rw_onednn_point(source, from);
    if (!status) status = rw_onednn_point(target, to);
    if (!status) status = rw_onednn_point(of[SCRATCH], scratch);
    if (status) return rw_onednn_status_of(status);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, source }, { DNNL_ARG_TO, target },
                                     { DNNL_ARG_SCRATCHPAD, of[SCRATCH] } };
    return rw_onednn_execute(p, turn, thread, args, 3);
}

rw_status rw_onednn_conv_turn_filters(struct rw_onednn_primitive *p, int thread, int64_t i, const void *from, void *to,
                                      void *scratch)
{
    return turn_by(p, p->turn, thread, (const float *)from + i * p->step, to, scratch);
}

rw_status rw_onednn_conv_turn_weight(struct rw_onednn_primitive *p, int thread, const void *from, void *to,
                                     void *scratch)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const int64_t turned = p->filters * s->c / s->groups * s->kh * s->kw;
    if (p->of_pairs) {
        rw_onednn_copy_pairs(&p->operand[SECOND], from, 1, to);
        return RW_OK;
    }
    if (s->kind != RW_ONEDNN_BACKWARD_WEIGHT) return turn_by(p, p->turn, thread, from, to, scratch);
    for (int64_t i = 0; i < s->oc / p->filters; i++)
        RW_ONEDNN_TRY(rw_onednn_conv_turn_filters(p, thread, i, from, (float *)to + i * turned, scratch));
    return RW_OK;
}

rw_status rw_onednn_conv_spread_weight(struct rw_onednn_primitive *p, const void *from, void *to, void *scratch)
{
    if (p->of_pairs) {
        rw_onednn_copy_pairs(&p->operand[SECOND], from, p->spread_by, to);
        return RW_OK;
    }
    const int allowed = omp_get_max_threads();
    omp_set_num_threads(p->spread ? p->spread_by : 1);
    const rw_status status = turn_by(p, p->spread ? p->spread : p->turn, 0, from, to, scratch);
    omp_set_num_threads(allowed);
    return status;
}
