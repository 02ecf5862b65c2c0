/* Convolutions by oneDNN, and conversion of weights from and to its own layouts. */
#include "device/cpu/onednn_primitive.h"

#include "base/thread_team.h"

#include <string.h>

#define FEW_FILTERS 16
#define FEW_ELEMENTS 65536 /* 256 KiB of float32 */

/* ---- making a primitive ---- */

static dnnl_status_t describe_images(struct rw_onednn_primitive *p)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const dnnl_dims_t x = { s->n, s->c, s->h, s->w }, y = { s->n, s->oc, s->oh, s->ow }, bias = { s->oc };
    const dnnl_data_type_t type = rw_onednn_type_of(s->dtype);
    dnnl_status_t status = rw_onednn_desc_by_tag(&p->operand[FIRST], 4, x, type, dnnl_nhwc);
    if (!status) status = rw_onednn_desc_by_tag(&p->operand[RESULT], 4, y, type, dnnl_nhwc);
    if (!status) status = rw_onednn_desc_by_tag(&p->operand[BIAS], 1, bias, type, dnnl_a);
    return status;
}

/* Describes a weight, dense or in the layout that the primitive prefers. */
static dnnl_status_t describe_weight(const struct rw_conv_signature *s, bool dense, rw_onednn_desc *d)
{
    const bool grouped = s->groups > 1;
    const dnnl_dims_t one = { s->oc, s->c, s->kh, s->kw };
    const dnnl_dims_t many = { s->groups, s->oc / s->groups, s->c / s->groups, s->kh, s->kw };
    const dnnl_data_type_t type = s->kind == RW_ONEDNN_BACKWARD_WEIGHT ? dnnl_f32 : rw_onednn_type_of(s->dtype);
    const dnnl_format_tag_t tag = !dense ? dnnl_format_tag_any : grouped ? dnnl_goihw : dnnl_oihw;
    return rw_onednn_desc_by_tag(d, grouped ? 5 : 4, grouped ? many : one, type, tag);
}

/*
 * AMX code for the weight's gradient of long rows, in version 2.6.3: if the kernel is 3 x 3, padded by one, without
 * stride or dilation, and a row of y is longer than 736, its creation does not return. For other shapes it may be
 * unrolled along the row: 180 MB for 480,000 pixels. 3,000 random shapes were tried, and rows from 401 on with 9
 * heights; the limit has a margin. The library's next choice is its AVX-512 code, which does neither.
 */
#define AMX_ROW_MAX 512

static bool excludes_amx(const struct rw_conv_signature *s)
{
    return s->kind == RW_ONEDNN_BACKWARD_WEIGHT && s->dtype == RW_BF16 && s->ow > AMX_ROW_MAX;
}

/* May an output have no pixel under its taps, because there is more padding than taps, or they skip the image? */
static bool may_read_nothing(const struct rw_conv_signature *s)
{
    const int64_t taps[2] = { s->kh, s->kw }, extent[2] = { s->h, s->w };
    for (int i = 0; i < 2; i++) {
        const int64_t reach = (taps[i] - 1) * s->dilation[i];
        if (s->padding[i] > reach || s->end[i] > reach || extent[i] < s->dilation[i]) return true;
    }
    return false;
}

/*
 * Code of version 3.7.2 that is not used, found by 50,000 random shapes with operands at the end of mapped memory; the
 * library's next choice does none of this. Forward: depthwise, with 15 taps or more along a row, its creation may not
 * return. With one output per row, and a stride, sums are of wrong rows. An output that reads only padding ends the
 * process. dx: there is a table entry for each pixel of a row.
 */
#define DEPTHWISE_TAPS_MAX 7
#define ROW_MAX 65536

static const char *excluded_3(const struct rw_conv_signature *s)
{
    if (s->kind == RW_ONEDNN_BACKWARD_WEIGHT) return NULL;
    if (s->kind == RW_ONEDNN_BACKWARD_DATA) return s->w > ROW_MAX ? "brg" : NULL;
    if (s->groups == s->c && s->groups == s->oc && s->groups > 1) return s->kw > DEPTHWISE_TAPS_MAX ? "brdgmm" : NULL;
    return s->ow == 1 || may_read_nothing(s) ? "brg" : NULL;
}

/* Part of the name of code that must not be used; NULL for none. */
static const char *excluded_code(const struct rw_conv_signature *s)
{
    if (excludes_amx(s)) return "amx";
    return DNNL_VERSION_MAJOR >= 3 ? excluded_3(s) : NULL;
}

/* Describes one of the three products. */
static dnnl_status_t describe_conv(const struct rw_onednn_primitive *p, rw_onednn_const_desc weight,
                                   dnnl_primitive_attr_t attr, dnnl_primitive_desc_t *ret)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const struct rw_onednn_conv_operands o = {
        .x = p->operand[FIRST],
        .weight = weight,
        .bias = s->bias ? p->operand[BIAS] : NULL,
        .y = p->operand[RESULT],
        .stride = { s->stride[0], s->stride[1] },
        .dilation = { s->dilation[0] - 1, s->dilation[1] - 1 },
        .padding = { s->padding[0], s->padding[1] },
        .end = { s->end[0], s->end[1] },
    };
    return rw_onednn_describe_conv(p->engine, s->kind, &o, attr, excluded_code(s), ret);
}

/* Filters per conversion, which are contiguous in most layouts. Those of a gradient stay in a thread's cache until they
   are rounded; those of a weight are distributed over threads. */
static int64_t few_filters(const struct rw_conv_signature *s)
{
    int64_t few = FEW_FILTERS;
    while (s->oc % (2 * few) == 0 && 2 * few * s->c * s->kh * s->kw <= FEW_ELEMENTS) few *= 2;
    return few;
}

/* Describes what is converted at a time: a few filters, or all if the layout does not allow that. */
static dnnl_status_t describe_reordered(struct rw_onednn_primitive *p)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const int64_t few = few_filters(s);
    const dnnl_dims_t extent = { few, s->c, s->kh, s->kw }, first = { 0 }, next = { few };
    const dnnl_data_type_t type = s->kind == RW_ONEDNN_BACKWARD_WEIGHT ? dnnl_f32 : rw_onednn_type_of(s->dtype);
    rw_onednn_desc *const d = p->operand;
    int64_t start;
    dnnl_status_t status = s->groups > 1 || s->oc <= few || s->oc % few ? dnnl_unimplemented : dnnl_success;
    if (!status) status = rw_onednn_desc_part(&d[REORDERED], d[SECOND], extent, next, &p->step);
    if (!status) status = rw_onednn_desc_part(&d[REORDERED], d[SECOND], extent, first, &start);
    p->filters = status ? s->oc : few;
    if (status == dnnl_out_of_memory) return status;
    return status ? rw_onednn_desc_copy(&d[REORDERED], d[SECOND])
                  : rw_onednn_desc_by_tag(&d[PLAIN], 4, extent, type, dnnl_oihw);
}

/* Describes the conversion between the dense weight and the primitive's own. */
static dnnl_status_t describe_reorder(const struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr,
                                      dnnl_primitive_desc_t *ret)
{
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    return dnnl_reorder_primitive_desc_create(ret, p->operand[out ? REORDERED : PLAIN], p->engine,
                                              p->operand[out ? PLAIN : REORDERED], p->engine, attr);
}

/* Makes the conversion. It shares the scratch memory of the primitive. */
static dnnl_status_t make_reorder(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = describe_reorder(p, attr, &pd);
    if (!status) {
        rw_onednn_const_desc scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        if (dnnl_memory_desc_get_size(scratch) > dnnl_memory_desc_get_size(p->operand[SCRATCH]))
            status = rw_onednn_desc_copy(&p->operand[SCRATCH], scratch);
        if (!status) status = rw_onednn_make(p, pd, &p->reorder);
    }
    if (pd) dnnl_primitive_desc_destroy(pd);
    return status;
}

/* Makes the conversion between the dense weight and the primitive's own layout of it. */
static dnnl_status_t make_conversion(struct rw_onednn_primitive *p, dnnl_primitive_desc_t pd,
                                     dnnl_primitive_attr_t attr)
{
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    const dnnl_query_t own = out ? dnnl_query_diff_weights_md : dnnl_query_weights_md;
    dnnl_status_t status = rw_onednn_desc_copy(&p->operand[SECOND], dnnl_primitive_desc_query_md(pd, own, 0));
    if (!status) status = describe_reordered(p);
    if (!status && !out) p->pairs = rw_onednn_pairs_of(p->operand[SECOND]);
    return status || p->pairs.block ? status : make_reorder(p, attr);
}

/* Describes the operands, makes the primitive with fast code, and the conversion of its weight. */
static dnnl_status_t make_conv(struct rw_onednn_primitive *p, dnnl_primitive_attr_t attr)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    rw_onednn_desc weight = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t status = describe_images(p);
    if (!status) status = describe_weight(s, true, &p->operand[PLAIN]);
    if (!status) status = describe_weight(s, false, &weight);
    if (!status) {
        status = describe_conv(p, weight, attr, &pd);
        status = rw_onednn_make_fast(p, status, pd);
    }
    if (!status && p->fast) status = make_conversion(p, pd, attr);
    if (pd) dnnl_primitive_desc_destroy(pd);
    rw_onednn_desc_destroy(&weight);
    return status;
}

/*
 * Upper bounds of measurements with version 2.6.3 on Xeons, for kernels of 1 to 301 taps and rows of up to 2,048
 * outputs; tests/device/resource_limits.c compares. Forward for AVX-512 has a table entry, and often code, for each
 * number of outputs up to that of a row. There are several if more than one tap at a time is outside of x, and each
 * grows with the number of channels. A weight's gradient for AVX2 is code that is unrolled along a row of x.
 */
#define CONV_BYTES ((size_t)160 << 10)
#define MANY_CHANNELS 1024

/*
 * The same with version 3.7.2, from 5,000 random shapes of up to 7 x 31 taps, 1,024 channels and rows of 1,500, and
 * some of 480,000. Most code has a fixed number of kernels, and a table entry for each output of a row. That of dx has
 * a kernel for each tap along a row, and that of forward for each tap that may be in padding, if these are many. That
 * of a float32 weight's gradient may be unrolled along the row below padding.
 */
#define CONV_BYTES_3 ((size_t)448 << 10)
#define CONV_BYTES_3_TAP ((size_t)80 << 10)
#define CONV_PADDING_3 8
#define CONV_BYTES_3_OUTPUT 40
#define CONV_BYTES_3_UNROLLED 1536

static size_t forward_bytes(const struct rw_conv_signature *s)
{
    const int64_t padding = s->padding[1] > s->end[1] ? s->padding[1] : s->end[1];
    const int64_t channels = s->c < MANY_CHANNELS ? s->c : MANY_CHANNELS;
    return (size_t)(3 * channels) + (padding <= s->dilation[1] ? 1280 : 4096 + 8 * (size_t)s->kw);
}

static size_t fixed_bytes(const struct rw_conv_signature *s)
{
    if (DNNL_VERSION_MAJOR < 3) return CONV_BYTES;
    const int64_t padding = s->padding[1] > s->end[1] ? s->padding[1] : s->end[1];
    int64_t taps = 0; /* with code of their own */
    if (s->kind == RW_ONEDNN_BACKWARD_DATA) taps = s->kw;
    else if (s->kind == RW_ONEDNN_FORWARD && padding > CONV_PADDING_3) taps = padding;
    return CONV_BYTES_3 + (excluded_3(s) ? 0 : (size_t)taps * CONV_BYTES_3_TAP);
}

static size_t bytes_each_output_3(const struct rw_conv_signature *s)
{
    const bool pads_above = s->padding[0] || s->end[0];
    if (s->kind == RW_ONEDNN_BACKWARD_WEIGHT)
        return s->dtype == RW_F32 && pads_above ? CONV_BYTES_3_UNROLLED * (size_t)s->stride[1] : 0;
    if (!excluded_3(s)) return CONV_BYTES_3_OUTPUT;
    return s->kind == RW_ONEDNN_FORWARD ? forward_bytes(s) : 0; /* the code that version 2 selects */
}

static size_t bytes_each_output(const struct rw_conv_signature *s)
{
    if (DNNL_VERSION_MAJOR >= 3 && rw_onednn_takes_avx512()) return bytes_each_output_3(s);
    if (s->kind == RW_ONEDNN_FORWARD)
        return s->groups > 1 || s->kh * s->kw == 1 || !rw_onednn_takes_avx512() ? 0 : forward_bytes(s);
    if (s->kind == RW_ONEDNN_BACKWARD_DATA || rw_onednn_takes_avx512() || s->groups == s->c) return 0;
    return 1536 * (size_t)s->stride[1];
}

size_t rw_onednn_conv_bytes(const struct rw_conv_signature *s)
{
    const size_t most = 2 * RW_ONEDNN_BYTES_MAX;
    size_t bytes;
    if (__builtin_mul_overflow(bytes_each_output(s), (size_t)s->ow, &bytes) || bytes > most) return most;
    return fixed_bytes(s) + bytes;
}

/*
 * The same for AMX code, from 1,400 random bfloat16 shapes of up to 15 x 7 taps, 512 channels and rows of 3,000; the
 * largest took 10 MB. Forward has a description for each number of taps and of outputs at a time, of which the library
 * chooses the latter; a weight's gradient is unrolled along a row.
 */
#define AMX_BYTES_MAX ((size_t)12 << 20)

static size_t amx_bytes(const struct rw_conv_signature *s)
{
    const bool is_gradient = s->kind == RW_ONEDNN_BACKWARD_WEIGHT;
    const bool is_small = s->dtype != RW_BF16 || s->kind == RW_ONEDNN_BACKWARD_DATA;
    if (!rw_onednn_takes_amx() || is_small || excludes_amx(s)) return 0;
    const double forward = 2.0 * (1 << 20) + (double)(s->kh * s->kw + 1) * (double)s->ow * 10240;
    const double bytes = is_gradient ? (double)CONV_BYTES + (double)(s->kw * s->ow) * 768 : forward;
    return bytes < (double)AMX_BYTES_MAX ? (size_t)bytes : AMX_BYTES_MAX;
}

static size_t conv_bytes(const struct rw_onednn_signature *s)
{
    const size_t bytes = rw_onednn_conv_bytes(&s->of.conv), amx = amx_bytes(&s->of.conv);
    return amx > bytes ? amx : bytes;
}

static bool conv_fits(const struct rw_onednn_signature *signature)
{
    const struct rw_conv_signature *const s = &signature->of.conv;
    const int64_t each[] = { s->n,          s->h,          s->w,      s->c,      s->oh,          s->ow,
                             s->oc,         s->kh,         s->kw,     s->groups, s->stride[0],   s->stride[1],
                             s->padding[0], s->padding[1], s->end[0], s->end[1], s->dilation[0], s->dilation[1] };
    const int64_t x[] = { s->h, s->w, s->c }, y[] = { s->oh, s->ow, s->oc };
    const int64_t weight[] = { s->oc, s->c / s->groups, s->kh, s->kw };
    if (!rw_onednn_counts(each, sizeof each / sizeof *each) || !rw_onednn_counts_bytes(x, 3) ||
        !rw_onednn_counts_bytes(y, 3) || !rw_onednn_counts_bytes(weight, 4))
        return false;
    const int64_t batches[] = { s->n * s->h * s->w * s->c, s->n * s->oh * s->ow * s->oc };
    return rw_onednn_counts(batches, 2) && rw_onednn_conv_bytes(s) <= RW_ONEDNN_BYTES_MAX;
}

static const struct rw_onednn_kind kind = { .operands = OPERANDS,
                                            .fits = conv_fits,
                                            .bytes = conv_bytes,
                                            .make = make_conv };

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

/* ---- execution ---- */

bool rw_onednn_conv_same_weight(const struct rw_onednn_primitive *p, const struct rw_onednn_primitive *q)
{
    return dnnl_memory_desc_equal(p->operand[SECOND], q->operand[SECOND]);
}

/* Sets the addresses of this thread's memory objects and executes. */
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

/* Converts p->filters filters of a weight. */
static rw_status reorder(struct rw_onednn_primitive *p, int thread, const void *from, void *to, void *scratch)
{
    dnnl_memory_t *const of = p->slots[thread].of;
    const bool out = p->signature.of.conv.kind == RW_ONEDNN_BACKWARD_WEIGHT;
    dnnl_memory_t const source = of[out ? REORDERED : PLAIN], target = of[out ? PLAIN : REORDERED];
    dnnl_status_t status = rw_onednn_point(source, from);
    if (!status) status = rw_onednn_point(target, to);
    if (!status) status = rw_onednn_point(of[SCRATCH], scratch);
    if (status) return rw_onednn_status_of(status);
    const dnnl_exec_arg_t args[] = { { DNNL_ARG_FROM, source }, { DNNL_ARG_TO, target },
                                     { DNNL_ARG_SCRATCHPAD, of[SCRATCH] } };
    return rw_onednn_execute(p, p->reorder, thread, args, 3);
}

/* Bytes of an element of the weight. */
static int64_t size_of(const struct rw_conv_signature *s)
{
    return s->kind == RW_ONEDNN_BACKWARD_WEIGHT || rw_onednn_type_of(s->dtype) == dnnl_f32 ? 4 : 2;
}

/* Bytes of that many filters of a dense weight. */
static int64_t dense_bytes(const struct rw_conv_signature *s, int64_t filters)
{
    return filters * (s->c / s->groups) * s->kh * s->kw * size_of(s);
}

rw_status rw_onednn_conv_reorder_filters(struct rw_onednn_primitive *p, int thread, int64_t i, const void *from,
                                         void *to, void *scratch)
{
    return reorder(p, thread, (const float *)from + i * p->step, to, scratch);
}

rw_status rw_onednn_conv_reorder_gradient(struct rw_onednn_primitive *p, int thread, const void *from, void *to,
                                          void *scratch)
{
    const struct rw_conv_signature *const s = &p->signature.of.conv;
    const int64_t dense = dense_bytes(s, p->filters);
    for (int64_t i = 0; i < s->oc / p->filters; i++)
        RW_ONEDNN_TRY(rw_onednn_conv_reorder_filters(p, thread, i, from, (char *)to + i * dense, scratch));
    return RW_OK;
}

/* Conversion of a weight by several threads, some filters at a time. */
struct reordering {
    struct rw_onednn_primitive *p;
    const char *from;
    char *to, *scratch;
    size_t each;
    int failed;
};

static void reorder_some(void *of, int thread, int threads)
{
    struct reordering *const t = of;
    const struct rw_conv_signature *const s = &t->p->signature.of.conv;
    const int64_t dense = dense_bytes(s, t->p->filters), step = t->p->step * size_of(s);
    const int64_t n = s->oc / t->p->filters, end = rw_team_first(n, thread + 1, threads);
    for (int64_t i = rw_team_first(n, thread, threads); i < end; i++) {
        const rw_status status = reorder(t->p, thread, t->from + i * dense, t->to + i * step,
                                         t->scratch + (size_t)thread * t->each);
        if (status) __atomic_store_n(&t->failed, (int)status, __ATOMIC_RELAXED);
    }
}

rw_status rw_onednn_conv_reorder_weight(struct rw_onednn_primitive *p, int threads, const void *from, void *to,
                                        char *scratch, size_t each)
{
    struct reordering t = { p, from, to, scratch, each, RW_OK };
    const int64_t n = p->signature.of.conv.oc / p->filters;
    if (p->pairs.block) rw_onednn_copy_pairs(&p->pairs, from, threads, to);
    else rw_team_run(threads < n ? threads : (int)n, reorder_some, &t);
    return (rw_status)t.failed;
}
