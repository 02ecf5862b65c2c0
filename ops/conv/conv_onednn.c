/*
 * Convolutions by oneDNN: how they are cut into units, one thread each. See conv_run.h.
 *
 * y and dx are cut into groups of images, and the weight is brought into the library's layout once. A weight's gradient
 * is a sum over all pixels: either groups of images have sums of their own, which are added in order (many pixels, a
 * small weight), or each unit has some of the filters and sees all images (few pixels, a large weight). The library
 * itself would cut it by the number of threads, and bits would depend on that.
 */
#include "ops/conv/conv_run.h"

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/matmul/gemm.h"

#include <omp.h>
#include <string.h>

#define MOST_GROUPS 8 /* of images */
#define FILTER_UNITS 4
#define FILTERS_ALIGN 16
#define SUM_BLOCK 4096 /* elements of a weight that a thread adds up at a time */

struct plan {
    bool own;     /* the own loops */
    bool filters; /* units are filters, not images */
    int threads;
    int64_t units, each, rest; /* images or filters of a unit, and of the last one */
    struct rw_onednn_primitive *primitive[2]; /* [last unit] */
    size_t scratch, turned[2], dense, pack;   /* bytes: per thread, of a weight in either layout, of a unit's dy */
    size_t workspace;
};

static size_t aligned(size_t bytes)
{
    return (size_t)gemm_align((int64_t)bytes, GEMM_SCRATCH_ALIGN);
}

static int64_t weight_elements(const struct rw_conv *c)
{
    return c->oc * c->cg * c->kh * c->kw;
}

/* ---- the plan ---- */

static void cut(struct plan *p, int64_t extent, int64_t units, int64_t align)
{
    p->each = gemm_align(gemm_ceil_div(extent, units), align);
    if (p->each > extent) p->each = extent;
    p->units = gemm_ceil_div(extent, p->each);
    p->rest = extent - (p->units - 1) * p->each;
}

/* Sums of groups of images cost a pass over the weight each, which is to be little beside one over dy. */
static void cut_weight(const struct rw_conv *c, struct plan *p)
{
    const int64_t dy = c->n * c->oh * c->ow * c->oc, groups = dy / (4 * weight_elements(c));
    p->filters = groups < 2 && c->groups == 1;
    if (p->filters) cut(p, c->oc, FILTER_UNITS, FILTERS_ALIGN);
    else cut(p, c->n, groups < 2 ? 2 : groups > MOST_GROUPS ? MOST_GROUPS : groups, 1);
}

static struct rw_conv_signature signature_of(const struct rw_conv *c, enum rw_conv_kind kind, const struct plan *p,
                                             bool last, bool bias)
{
    static const enum rw_onednn_conv kinds[] = { RW_ONEDNN_FORWARD, RW_ONEDNN_BACKWARD_DATA,
                                                 RW_ONEDNN_BACKWARD_WEIGHT };
    const int64_t some = last ? p->rest : p->each;
    struct rw_conv_signature s = { .n = p->filters ? c->n : some, .h = c->h, .w = c->w, .c = c->c, .oh = c->oh,
                                   .ow = c->ow, .oc = p->filters ? some : c->oc, .kh = c->kh, .kw = c->kw,
                                   .groups = c->groups, .kind = kinds[kind], .dtype = (int32_t)c->dtype, .bias = bias };
    for (int i = 0; i < 2; i++) {
        s.stride[i] = c->stride[i];
        s.padding[i] = c->padding[i];
        s.dilation[i] = c->dilation[i];
    }
    return s;
}

/* Planning has the primitives made, a run finds them: its plan holds them. */
static rw_status ask_library(const struct rw_conv *c, enum rw_conv_kind kind, struct rw_onednn *onednn, bool bias,
                             bool planning, struct plan *p)
{
    for (int last = 0; last < 2 && !p->own; last++) {
        const struct rw_conv_signature s = signature_of(c, kind, p, last, bias);
        struct rw_conv_needs needs = { 0 };
        if (planning) RW_CHECK(rw_onednn_conv_prepare(onednn, &s, p->threads, &needs));
        else if (!(p->primitive[last] = rw_onednn_conv_find(onednn, &s, &needs))) return RW_ERR_DEVICE;
        p->own = !needs.fast;
        p->turned[last] = aligned(needs.weight);
        if (aligned(needs.scratch) > p->scratch) p->scratch = aligned(needs.scratch);
    }
    return RW_OK;
}

/* The library counts in 32 bits within an image, and has no convolution of nothing. */
static bool is_for_library(const struct rw_conv *c)
{
    if (c->dtype != RW_F32 && c->dtype != RW_BF16) return false;
    if (!c->n || !c->c || !c->oc || !c->h || !c->w || !c->oh || !c->ow) return false;
    const int64_t most = INT32_MAX;
    return c->h * c->w * c->c < most / 8 && c->oh * c->ow * c->oc < most / 8 && weight_elements(c) < most / 8 &&
           c->n < most && c->padding[0] < c->kh * c->dilation[0] && c->padding[1] < c->kw * c->dilation[1];
}

static rw_status make_plan(const struct rw_conv *c, enum rw_conv_kind kind, struct rw_onednn *onednn, int threads,
                           bool bias, bool planning, struct plan *ret)
{
    *ret = (struct plan){ .threads = rw_conv_products(c) < RW_CONV_PARALLEL_FROM ? 1 : threads };
    ret->own = !is_for_library(c);
    if (ret->own) return RW_OK;
    if (kind == RW_CONV_WEIGHT) cut_weight(c, ret);
    else cut(ret, c->n, c->n < MOST_GROUPS ? c->n : MOST_GROUPS, 1);
    RW_CHECK(ask_library(c, kind, onednn, bias, planning, ret));
    if (ret->own) return RW_OK;
    const size_t each_thread = (size_t)ret->threads, most = ret->turned[ret->turned[1] > ret->turned[0]];
    if (kind == RW_CONV_WEIGHT) {
        ret->dense = aligned((size_t)weight_elements(c) * sizeof(float));
        if (ret->filters)
            ret->pack = aligned((size_t)(c->n * c->oh * c->ow * ret->each) * rw_dtype_size(c->dtype));
        ret->workspace = each_thread * (ret->scratch + most + ret->pack) +
                         ret->dense * (size_t)(ret->filters ? 1 : ret->units);
    } else ret->workspace = each_thread * ret->scratch + ret->turned[0] + ret->turned[1];
    return RW_OK;
}

size_t rw_conv_workspace_cpu(const rw_op_call *call, enum rw_conv_kind kind)
{
    const struct rw_conv c = rw_conv_of_call(call, kind);
    if (rw_conv_is_product(&c, kind)) return rw_conv_product_workspace(call, &c, kind);
    const struct rw_cpu *const cpu = call->device;
    const bool bias = kind == RW_CONV_FORWARD && call->n_inputs == 3;
    struct plan p;
    return make_plan(&c, kind, cpu->onednn, call->threads, bias, true, &p) ? SIZE_MAX : p.workspace;
}

/* ---- the run ---- */

struct job {
    const struct rw_conv *c;
    const struct plan *p;
    const struct conv_operands *o;
    char *at; /* workspace */
};

/* y or dx of a group of images. */
static rw_status run_images(const struct job *j, enum rw_conv_kind kind, int64_t unit, int thread)
{
    const struct rw_conv *const c = j->c;
    const struct plan *const p = j->p;
    const bool last = unit == p->units - 1, forward = kind == RW_CONV_FORWARD;
    const size_t size = rw_dtype_size(c->dtype);
    const size_t x = (size_t)(unit * p->each * c->h * c->w * c->c) * size;
    const size_t y = (size_t)(unit * p->each * c->oh * c->ow * c->oc) * size;
    const char *const image = forward ? (const char *)j->o->x + x : (char *)j->o->to + x;
    const char *const result = forward ? (char *)j->o->to + y : (const char *)j->o->x + y;
    const char *const weight = j->at + (last ? p->turned[0] : 0);
    char *const scratch = j->at + p->turned[0] + p->turned[1] + (size_t)thread * p->scratch;
    return rw_onednn_conv_run(p->primitive[last], thread, image, weight, j->o->bias, result, scratch);
}

/* Filters [first, first + n) of dy, side by side. */
static void pack_filters(const struct rw_conv *c, const void *dy, int64_t first, int64_t n, char *to)
{
    const size_t size = rw_dtype_size(c->dtype), row = (size_t)n * size;
    const char *from = (const char *)dy + (size_t)first * size;
    for (int64_t i = 0; i < c->n * c->oh * c->ow; i++, from += (size_t)c->oc * size, to += row) memcpy(to, from, row);
}

/* A weight's gradient of some images or of some filters, dense, in float32. */
static rw_status run_weight(const struct job *j, int64_t unit, int thread)
{
    const struct rw_conv *const c = j->c;
    const struct plan *const p = j->p;
    const bool last = unit == p->units - 1;
    const size_t size = rw_dtype_size(c->dtype), most = p->turned[p->turned[1] > p->turned[0]];
    char *const scratch = j->at + (size_t)thread * (p->scratch + most + p->pack);
    char *const turned = scratch + p->scratch, *const packed = turned + most;
    char *const sums = j->at + (size_t)p->threads * (p->scratch + most + p->pack);
    const char *x = j->o->x, *dy = j->o->y;
    char *to;
    if (p->filters) {
        pack_filters(c, dy, unit * p->each, last ? p->rest : p->each, packed);
        dy = packed;
        to = sums + (size_t)(unit * p->each * c->cg * c->kh * c->kw) * sizeof(float);
    } else {
        x += (size_t)(unit * p->each * c->h * c->w * c->c) * size;
        dy += (size_t)(unit * p->each * c->oh * c->ow * c->oc) * size;
        to = sums + (size_t)unit * p->dense;
    }
    RW_CHECK(rw_onednn_conv_run(p->primitive[last], thread, x, turned, NULL, dy, scratch));
    return rw_onednn_conv_turn_weight(p->primitive[last], thread, turned, to, scratch);
}

/* The sums of all units in order, and what there was before; rounded once. */
static void add_up(const struct job *j)
{
    const struct plan *const p = j->p;
    const size_t most = p->turned[p->turned[1] > p->turned[0]];
    const char *const sums = j->at + (size_t)p->threads * (p->scratch + most + p->pack);
    const int64_t n = weight_elements(j->c), parts = p->filters ? 1 : p->units;
    const rw_dtype dtype = j->c->dtype;
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
    for (int64_t from = 0; from < n; from += SUM_BLOCK) {
        float sum[SUM_BLOCK];
        const int64_t some = n - from < SUM_BLOCK ? n - from : SUM_BLOCK;
        memcpy(sum, (const float *)sums + from, (size_t)some * sizeof *sum);
        for (int64_t part = 1; part < parts; part++) {
            const float *const more = (const float *)(sums + (size_t)part * p->dense) + from;
            for (int64_t i = 0; i < some; i++) sum[i] += more[i];
        }
        if (j->o->sum)
            for (int64_t i = 0; i < some; i++) sum[i] += f_get(j->o->sum, dtype, from + i);
        for (int64_t i = 0; i < some; i++) f_put(j->o->to, dtype, from + i, sum[i]);
    }
}

/* The library starts no threads of its own where one thread is allowed. */
static rw_status run_units(const struct job *j, enum rw_conv_kind kind)
{
    const struct plan *const p = j->p;
    int failed = RW_OK;
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        const int allowed = omp_get_max_threads(), thread = omp_get_thread_num();
        omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < p->units; i++) {
            const rw_status status = kind == RW_CONV_WEIGHT ? run_weight(j, i, thread) : run_images(j, kind, i, thread);
            if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
        }
        omp_set_num_threads(allowed);
    }
    return (rw_status)failed;
}

/* Brings the weight into the layouts of both primitives. */
static rw_status turn_weights(const struct job *j)
{
    const struct plan *const p = j->p;
    char *const scratch = j->at + p->turned[0] + p->turned[1];
    rw_status status = RW_OK;
    const int allowed = omp_get_max_threads();
    omp_set_num_threads(1);
    for (int last = p->units > 1 ? 0 : 1; last < 2 && !status; last++)
        status = rw_onednn_conv_turn_weight(p->primitive[last], 0, j->o->y, j->at + (last ? p->turned[0] : 0), scratch);
    omp_set_num_threads(allowed);
    return status;
}

rw_status rw_conv_run_library(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, bool *ret_done)
{
    const struct rw_cpu *const cpu = k->device;
    struct plan p;
    RW_CHECK(make_plan(c, kind, cpu->onednn, k->threads, o->bias != NULL, false, &p));
    *ret_done = !p.own;
    if (p.own) return RW_OK;
    if (k->workspace_bytes < p.workspace) return RW_ERR_MEMORY;
    const struct job j = { c, &p, o, k->workspace };
    if (kind != RW_CONV_WEIGHT) RW_CHECK(turn_weights(&j));
    RW_CHECK(run_units(&j, kind));
    if (kind == RW_CONV_WEIGHT) add_up(&j);
    return RW_OK;
}
