/*
 * Convolutions by oneDNN: how they are cut into units, one thread each. See conv_run.h.
 *
 * y and dx are cut into groups of images, and where there are few of these, each image into bands of rows. A band needs
 * rows of the other side that its neighbours need as well:
 *
 *     rows of y          0 ... 6 | 7 ... 13 | 14 ... 20      three bands, a kernel of 3, padding of 1
 *     rows of x        (-1) 0 ... 7
 *                             6 ... 14
 *                                    13 ... 20 (21)          in brackets: padding
 *
 * The weight is brought into the library's layout once. A weight's gradient is a sum over all pixels: either images or
 * bands have sums of their own, which are added in order (many pixels, a small weight), or each unit has some of the
 * filters and sees all images (few pixels, a large weight), and is done once it has them: the gradient in float32 is
 * never whole then. The library itself would cut it by the number of threads, and bits would depend on that.
 *
 * Of an x in pieces a thread puts together the rows of its unit, which are near then when the library reads them; where
 * units are filters, of which each reads all of x, that is put together once. Types of 16 bits that the processor
 * multiplies no faster than float32 are widened likewise, an image or a band at a time, whatever images a unit has: its
 * thread rounds what comes out, or adds it up.
 */
#include "ops/conv/conv_run.h"

#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "ops/common/shares.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/matmul/gemm.h"

#include <omp.h>
#include <string.h>

#define UNITS 8      /* of images and bands, at most; where there are fewer images, bands make up for them */
#define BAND_LEAST 7 /* rows */
#define FILTER_UNITS 4
#define FILTERS_ALIGN 16
#define PADDING_MOST 1024 /* the library makes code for it: 6 us for each element, 10 minutes for 10^8 */
#define SUM_BLOCK 4096 /* elements of a weight that a thread adds up at a time */

/* Of one image, or of several: rows of x or dx, and of y or dy. */
struct rows {
    int64_t x, x_end, y, y_end;
};

struct plan {
    bool own;     /* the own loops */
    bool wide;    /* the library's float32 */
    bool filters; /* units are filters, not images */
    int threads;
    int64_t units, each, rest;                    /* images or filters of a unit, and of the last one */
    int64_t bands, band;                          /* of an image, 1 as a rule, and rows of one, but for the last */
    struct rw_onednn_primitive *primitive[UNITS]; /* of a band; else of a unit, and of the last one */
    int copy[UNITS], copies;                      /* which copy of the weight a primitive takes */
    int64_t at_once[UNITS];                       /* filters that a primitive brings out of its layout at a time */
    size_t scratch, turned, dense, pack;          /* bytes: per thread, of a weight in any layout, of a unit's dy */
    size_t rows, whole;                           /* of an x that is put together: of a unit's, or of all of it */
    size_t result, weight;                        /* of what is float32 instead: of a unit's y, and of the weight */
    int64_t places;                               /* for a unit's: as many as may be at work at a time */
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

/* How far the kernel reaches down. */
static int64_t reach(const struct rw_conv *c)
{
    return (c->kh - 1) * c->dilation[0];
}

/* What band i has, or all: of a result its rows, of the other side those that they need. */
static struct rows rows_of(const struct rw_conv *c, enum rw_conv_kind kind, const struct plan *p, int64_t i)
{
    struct rows r = { 0, c->h, 0, c->oh };
    if (p->bands == 1) return r;
    const int64_t all = kind == RW_CONV_DATA ? c->h : c->oh, first = i * p->band;
    const int64_t end = first + p->band < all ? first + p->band : all, stride = c->stride[0], before = c->padding[0];
    if (kind == RW_CONV_DATA) {
        const int64_t least = first + before - reach(c), most = (end - 1 + before) / stride + 1;
        r = (struct rows){ first, end, least > 0 ? gemm_ceil_div(least, stride) : 0, most < c->oh ? most : c->oh };
    } else {
        const int64_t least = first * stride - before, most = (end - 1) * stride - before + reach(c) + 1;
        r = (struct rows){ least > 0 ? least : 0, most < c->h ? most : c->h, first, end };
    }
    return r;
}

/* Rows of padding before and behind. */
static int64_t above(const struct rw_conv *c, const struct rows *r)
{
    return r->x - (r->y * c->stride[0] - c->padding[0]);
}

static int64_t below(const struct rw_conv *c, const struct rows *r)
{
    return (r->y_end - 1) * c->stride[0] - c->padding[0] + reach(c) + 1 - r->x_end;
}

/* The library takes a band as a convolution of its own, which some, where a stride leaves rows out, are not. */
static bool are_convolutions(const struct rw_conv *c, enum rw_conv_kind kind, const struct plan *p)
{
    for (int64_t i = 0; i < p->bands; i++) {
        const struct rows r = rows_of(c, kind, p, i);
        if (r.x >= r.x_end || r.y >= r.y_end || above(c, &r) < 0 || below(c, &r) < 0) return false;
    }
    return true;
}

/* A power of two: of three bands on two threads one has two. */
static int64_t bands_of(int64_t wanted, int64_t rows)
{
    int64_t bands = 1;
    while (2 * bands <= wanted && rows / (2 * bands) >= BAND_LEAST) bands *= 2;
    return bands;
}

/* Into groups of images, or images and bands of them. */
static void cut_images(const struct rw_conv *c, enum rw_conv_kind kind, int64_t units, struct plan *p)
{
    const int64_t rows = kind == RW_CONV_DATA ? c->h : c->oh;
    const int64_t bands = bands_of(c->n < units ? gemm_ceil_div(units, c->n) : 1, rows);
    cut(p, c->n, c->n < units ? c->n : units, 1);
    if (bands < 2) return;
    p->band = gemm_ceil_div(rows, bands);
    p->bands = gemm_ceil_div(rows, p->band);
    if (are_convolutions(c, kind, p)) p->units *= p->bands;
    else p->bands = 1;
}

/* Sums of parts cost a pass over the weight each, filters one over x each: whichever is less. */
static void cut_weight(const struct rw_conv *c, struct plan *p)
{
    const int64_t dy = c->n * c->oh * c->ow * c->oc, parts = dy / (4 * weight_elements(c));
    p->filters = parts < 1 && c->groups == 1;
    if (p->filters) cut(p, c->oc, FILTER_UNITS, FILTERS_ALIGN);
    else cut_images(c, RW_CONV_WEIGHT, parts < 1 ? 2 : parts < 4 ? 4 : parts > UNITS ? UNITS : parts, p);
}

/* So many primitives there are, and this one is a unit's. */
static int primitives(const struct plan *p)
{
    return p->bands > 1 ? (int)p->bands : 2;
}

static int primitive_of(const struct plan *p, int64_t unit)
{
    return p->bands > 1 ? (int)(unit % p->bands) : unit == p->units - 1;
}

/* Of a unit, or of the last one. */
static int64_t images_of(const struct plan *p, bool last)
{
    return p->bands > 1 ? 1 : last ? p->rest : p->each;
}

/* In one call of the library. */
static int64_t images_at_once(const struct plan *p, bool last)
{
    return p->wide ? 1 : images_of(p, last);
}

static struct rw_conv_signature signature_of(const struct rw_conv *c, enum rw_conv_kind kind, const struct plan *p,
                                             int i, bool bias)
{
    static const enum rw_onednn_conv kinds[] = { RW_ONEDNN_FORWARD, RW_ONEDNN_BACKWARD_DATA,
                                                 RW_ONEDNN_BACKWARD_WEIGHT };
    const int64_t some = i ? p->rest : p->each;
    const struct rows r = rows_of(c, kind, p, i);
    struct rw_conv_signature s = { .n = p->filters ? c->n : images_at_once(p, i > 0),
                                   .h = r.x_end - r.x,
                                   .w = c->w,
                                   .c = c->c,
                                   .oh = r.y_end - r.y,
                                   .ow = c->ow,
                                   .oc = p->filters ? some : c->oc,
                                   .kh = c->kh,
                                   .kw = c->kw,
                                   .groups = c->groups,
                                   .kind = kinds[kind],
                                   .dtype = p->wide ? RW_F32 : (int32_t)c->dtype,
                                   .bias = bias && !p->wide };
    for (int axis = 0; axis < 2; axis++) {
        s.stride[axis] = c->stride[axis];
        s.padding[axis] = s.end[axis] = c->padding[axis];
        s.dilation[axis] = c->dilation[axis];
    }
    if (p->bands == 1) return s;
    s.padding[0] = above(c, &r);
    s.end[0] = below(c, &r);
    return s;
}

/* As a rule they all like the same layout. */
static void share_weight(struct plan *p, int i)
{
    int first = 0;
    while (!rw_onednn_conv_same_weight(p->primitive[first], p->primitive[i])) first++;
    p->copy[i] = first < i ? p->copy[first] : p->copies++;
}

/* Planning has the primitives made, a run finds them: its plan holds them. */
static rw_status ask_library(const struct rw_conv *c, enum rw_conv_kind kind, struct rw_onednn *onednn, bool bias,
                             bool planning, struct plan *p)
{
    for (int i = 0; i < primitives(p) && !p->own; i++) {
        const struct rw_conv_signature s = signature_of(c, kind, p, i, bias);
        struct rw_conv_needs needs = { 0 };
        if (planning) RW_CHECK(rw_onednn_conv_prepare(onednn, &s, p->threads, &needs));
        p->primitive[i] = rw_onednn_conv_find(onednn, &s, &needs);
        if (!p->primitive[i]) return RW_ERR_DEVICE;
        share_weight(p, i);
        p->own = !needs.fast;
        p->at_once[i] = needs.filters;
        if (aligned(needs.weight) > p->turned) p->turned = aligned(needs.weight);
        if (aligned(needs.scratch) > p->scratch) p->scratch = aligned(needs.scratch);
    }
    return RW_OK;
}

/* The library counts in 32 bits within an image, and has no convolution of nothing. */
static bool is_for_library(const struct rw_conv *c)
{
    if (c->dtype == RW_F64) return false;
    if (!c->n || !c->c || !c->oc || !c->h || !c->w || !c->oh || !c->ow) return false;
    const int64_t most = INT32_MAX;
    if (c->padding[0] > PADDING_MOST || c->padding[1] > PADDING_MOST) return false;
    return c->h * c->w * c->c < most / 8 && c->oh * c->ow * c->oc < most / 8 && weight_elements(c) < most / 8 &&
           c->n < most && c->padding[0] < c->kh * c->dilation[0] && c->padding[1] < c->kw * c->dilation[1];
}

/* Of a weight's gradient: what a thread has for itself, two where it adds up. */
static size_t own_bytes(const struct plan *p)
{
    return p->scratch + p->turned * (p->wide && !p->filters ? 2 : 1) + p->pack + (p->filters ? p->dense : 0);
}

/* Of a gradient in float32: of all of it, or, where units are filters, of those that are brought out at a time. */
static size_t dense_bytes(const struct rw_conv *c, const struct plan *p)
{
    const int64_t some = p->at_once[0] > p->at_once[1] ? p->at_once[0] : p->at_once[1];
    return aligned((size_t)(weight_elements(c) / c->oc * (p->filters ? some : c->oc)) * sizeof(float));
}

/* Elements of x and of y that a unit has at a time, the most. */
static void most_of_unit(const struct rw_conv *c, enum rw_conv_kind kind, const struct plan *p, int64_t *ret_x,
                         int64_t *ret_y)
{
    const int64_t images = images_at_once(p, false);
    *ret_x = *ret_y = 0;
    for (int64_t i = 0; i < p->bands; i++) {
        const struct rows r = rows_of(c, kind, p, i);
        const int64_t x = images * (r.x_end - r.x) * c->w * c->c, y = images * (r.y_end - r.y) * c->ow * c->oc;
        if (x > *ret_x) *ret_x = x;
        if (y > *ret_y) *ret_y = y;
    }
}

/* In front of all else in the workspace. */
static size_t bytes_in_front(const struct plan *p)
{
    return p->whole + (size_t)p->places * (p->rows + p->result) + p->weight;
}

/* Outputs along axis i that meet tap t: from the first whose place is not in front of x, to the last not behind it. */
static int64_t outputs_under(const struct rw_conv *c, int i, int64_t tap)
{
    const int64_t extent = i ? c->w : c->h, out = i ? c->ow : c->oh, at = rw_conv_under(c, i, 0, tap);
    const int64_t first = at < 0 ? gemm_ceil_div(-at, c->stride[i]) : 0;
    const int64_t end = at < extent ? (extent - 1 - at) / c->stride[i] + 1 : 0;
    return (end < out ? end : out) - first;
}

/*
 * Its code for AVX-512 does. Gradients of a weight that is dilated, or of which some tap meets no pixel at all: sums of
 * bfloat16 that are far off, or of memory behind the operands, and at times in float32. A dx of one tap, in bfloat16,
 * of an odd number of filters, which its code takes by twos. tests/ops/conv.c has such shapes.
 */
bool rw_conv_library_errs(const struct rw_conv *c, enum rw_conv_kind kind)
{
    if (kind == RW_CONV_DATA)
        return c->dtype == RW_BF16 && !rw_gemm_widens(c->dtype) && c->kh * c->kw == 1 && c->ocg % 2;
    if (kind == RW_CONV_FORWARD) return false;
    for (int i = 0; i < 2; i++) {
        const int64_t taps = i ? c->kw : c->kh;
        if (c->dilation[i] > 1) return true;
        for (int64_t tap = 0; tap < taps; tap++)
            if (outputs_under(c, i, tap) < 1) return true;
    }
    return false;
}

/* What is copied on its way to the library, in front of all else. */
static void set_copies(const struct rw_conv *c, enum rw_conv_kind kind, bool pieces, struct plan *p)
{
    const size_t size = p->wide ? sizeof(float) : rw_dtype_size(c->dtype);
    int64_t x, y;
    most_of_unit(c, kind, p, &x, &y);
    p->places = p->units < p->threads ? p->units : p->threads;
    if (p->filters) p->whole = pieces || p->wide ? aligned((size_t)(c->n * c->h * c->w * c->c) * size) : 0;
    else if (pieces || p->wide) p->rows = aligned((size_t)x * size);
    if (p->filters) p->pack = aligned((size_t)(c->n * c->oh * c->ow * p->each) * size);
    if (p->wide && !p->filters) p->result = aligned((size_t)y * size);
    if (p->wide && kind != RW_CONV_WEIGHT) p->weight = aligned((size_t)weight_elements(c) * size);
}

static rw_status make_plan(const struct rw_conv *c, enum rw_conv_kind kind, struct rw_onednn *onednn, int threads,
                           bool bias, bool pieces, bool planning, struct plan *ret)
{
    *ret = (struct plan){ .threads = rw_conv_products(c) < RW_CONV_PARALLEL_FROM ? 1 : threads, .bands = 1 };
    ret->own = !is_for_library(c) || rw_conv_library_errs(c, kind);
    ret->wide = rw_gemm_widens(c->dtype);
    if (ret->own) return RW_OK;
    if (kind == RW_CONV_WEIGHT) cut_weight(c, ret);
    else cut_images(c, kind, UNITS, ret);
    RW_CHECK(ask_library(c, kind, onednn, bias, planning, ret));
    if (ret->own) return RW_OK;
    const size_t each_thread = (size_t)ret->threads;
    set_copies(c, kind, pieces, ret);
    if (kind == RW_CONV_WEIGHT) {
        ret->dense = dense_bytes(c, ret);
        ret->workspace = each_thread * own_bytes(ret) + ret->dense * (size_t)(ret->filters ? 0 : ret->units);
    } else ret->workspace = each_thread * ret->scratch + ret->turned * (size_t)ret->copies;
    ret->workspace += bytes_in_front(ret);
    return RW_OK;
}

static size_t workspace_of(const rw_op_call *call, const struct rw_conv *c, enum rw_conv_kind kind)
{
    const struct rw_conv_attrs *const a = call->attrs;
    const bool third = rw_conv_inputs_of(a).third < call->n_inputs, pieces = a->more > 0;
    const size_t whole = pieces ? rw_conv_packed_bytes(c, c->n * c->h * c->w) : 0;
    if (rw_conv_is_in_strips(c, kind)) return rw_conv_strips_workspace(call, c);
    if (rw_conv_is_product(c, kind)) return whole + rw_conv_product_workspace(call, c, kind, third);
    const struct rw_cpu *const cpu = call->device;
    const bool bias = kind == RW_CONV_FORWARD && third;
    struct plan p;
    if (make_plan(c, kind, cpu->onednn, call->threads, bias, pieces, true, &p)) return SIZE_MAX;
    return p.own ? whole : p.workspace;
}

size_t rw_conv_workspace_cpu(const rw_op_call *call, enum rw_conv_kind kind)
{
    const struct rw_conv c = rw_conv_of_call(call, kind);
    if (!rw_conv_rotates(&c, kind)) return workspace_of(call, &c, kind);
    const struct rw_conv rotated = rw_conv_rotated(&c);
    const size_t bytes = workspace_of(call, &rotated, RW_CONV_FORWARD);
    return bytes == SIZE_MAX ? bytes : rw_conv_rotated_bytes(&c) + bytes;
}

/* ---- the run ---- */

struct job {
    const struct rw_conv *c;
    const struct plan *p;
    const struct conv_operands *o;
    const struct gemm_loops *loops;
    char *rows; /* workspace: what is copied on its way, then the rest */
    char *at;
};

/* What the library does at a time, of a unit: pixels of x or dx, and of y or dy. */
struct unit {
    int64_t x, y;               /* the first ones */
    int64_t x_pixels, y_pixels; /* how many */
    int64_t place;
};

static int64_t calls_of(const struct plan *p, int64_t i)
{
    const bool last = i == p->units - 1;
    return images_of(p, last) / images_at_once(p, last);
}

static struct unit unit_of(const struct job *j, enum rw_conv_kind kind, int64_t i, int64_t call, int thread)
{
    const struct rw_conv *const c = j->c;
    const struct plan *const p = j->p;
    const struct rows r = rows_of(c, kind, p, i % p->bands);
    const int64_t image = i / p->bands * p->each + call, images = images_at_once(p, i == p->units - 1);
    return (struct unit){ .x = (image * c->h + r.x) * c->w,
                          .y = (image * c->oh + r.y) * c->ow,
                          .x_pixels = images * (r.x_end - r.x) * c->w,
                          .y_pixels = images * (r.y_end - r.y) * c->ow,
                          .place = p->places < p->threads ? i : thread };
}

static void *place_of_x(const struct job *j, const struct unit *u)
{
    return j->rows + (size_t)u->place * (j->p->rows + j->p->result);
}

static void *place_of_y(const struct job *j, const struct unit *u)
{
    return (char *)place_of_x(j, u) + j->p->rows;
}

/* A unit's x, as the library takes it. */
static const void *x_of(const struct job *j, const struct unit *u)
{
    const struct rw_conv *const c = j->c;
    void *const to = place_of_x(j, u);
    if (j->p->wide) rw_conv_widen(c, j->o, j->loops, u->x, u->x_pixels, to);
    else if (j->o->pieces) rw_conv_pack(c, j->o, u->x, u->x_pixels, to);
    else return (const char *)j->o->x + (size_t)(u->x * c->c) * rw_dtype_size(c->dtype);
    return to;
}

/* A unit's dy. */
static const void *dy_of(const struct job *j, const struct unit *u, const void *dy)
{
    const struct rw_conv *const c = j->c;
    const char *const from = (const char *)dy + (size_t)(u->y * c->oc) * rw_dtype_size(c->dtype);
    if (!j->p->wide) return from;
    j->loops->widen(c->dtype, from, 1, u->y_pixels * c->oc, place_of_y(j, u));
    return place_of_y(j, u);
}

/* What came out of a unit, `pixels` from `first` on of so many channels each. */
static void round_unit(const struct job *j, const void *sums, int64_t first, int64_t pixels, int64_t channels)
{
    const rw_dtype dtype = j->c->dtype;
    const struct gemm g = { .dtype = dtype, .to = dtype, .c = j->o->to, .c_row = channels, .bias = j->o->bias,
                            .has_bias = j->o->bias != NULL };
    j->loops->round(&g, sums, channels, first * channels, pixels, 0, channels);
}

/* y or dx of a group of images, or of a band. */
static rw_status call_images(const struct job *j, enum rw_conv_kind kind, int64_t i, int64_t call, int thread)
{
    const struct rw_conv *const c = j->c;
    const struct plan *const p = j->p;
    const bool forward = kind == RW_CONV_FORWARD;
    const struct unit u = unit_of(j, kind, i, call, thread);
    const int which = primitive_of(p, i);
    const size_t size = rw_dtype_size(c->dtype);
    const char *const weight = j->at + (size_t)p->copy[which] * p->turned;
    char *const scratch = j->at + (size_t)p->copies * p->turned + (size_t)thread * p->scratch;
    char *const out = (char *)j->o->to + (size_t)(forward ? u.y * c->oc : u.x * c->c) * size;
    void *const to = !p->wide ? out : forward ? place_of_y(j, &u) : place_of_x(j, &u);
    const void *const image = forward ? x_of(j, &u) : to, *const result = forward ? to : dy_of(j, &u, j->o->x);
    RW_CHECK(rw_onednn_conv_run(p->primitive[which], thread, image, weight, p->wide ? NULL : j->o->bias, result,
                                scratch));
    if (p->wide && forward) round_unit(j, to, u.y, u.y_pixels, c->oc);
    else if (p->wide) round_unit(j, to, u.x, u.x_pixels, c->c);
    return RW_OK;
}

static rw_status run_images(const struct job *j, enum rw_conv_kind kind, int64_t i, int thread)
{
    for (int64_t call = 0; call < calls_of(j->p, i); call++) RW_CHECK(call_images(j, kind, i, call, thread));
    return RW_OK;
}

/* Filters [first, first + n) of dy, side by side. */
static void pack_filters(const struct job *j, int64_t first, int64_t n, char *to)
{
    const struct rw_conv *const c = j->c;
    const size_t size = rw_dtype_size(c->dtype), row = (size_t)n * (j->p->wide ? sizeof(float) : size);
    const char *from = (const char *)j->o->y + (size_t)first * size;
    for (int64_t i = 0; i < c->n * c->oh * c->ow; i++, from += (size_t)c->oc * size, to += row) {
        if (j->p->wide) j->loops->widen(c->dtype, from, 1, n, (float *)(void *)to);
        else memcpy(to, from, row);
    }
}

/* A weight's gradient of some images or a band, in the library's layout: the sum of its calls. */
static rw_status sum_images(const struct job *j, int64_t i, int thread, char *turned, char *scratch)
{
    const struct plan *const p = j->p;
    for (int64_t call = 0; call < calls_of(p, i); call++) {
        const struct unit u = unit_of(j, RW_CONV_WEIGHT, i, call, thread);
        char *const to = call ? turned + p->turned : turned;
        RW_CHECK(rw_onednn_conv_run(p->primitive[primitive_of(p, i)], thread, x_of(j, &u), to, NULL,
                                    dy_of(j, &u, j->o->y), scratch));
        float *const sums = (float *)(void *)turned, *const more = (float *)(void *)to;
        for (size_t n = 0; call && n < p->turned / sizeof *sums; n++) sums[n] += more[n];
    }
    return RW_OK;
}

/* What there was before is added to sums [from, from + n); rounded once. */
static void finish(const struct job *j, float *sum, int64_t from, int64_t n)
{
    const rw_dtype dtype = j->c->dtype;
    if (j->o->sum)
        for (int64_t i = 0; i < n; i++) sum[i] += f_get(j->o->sum, dtype, from + i);
    for (int64_t i = 0; i < n; i++) f_put(j->o->to, dtype, from + i, sum[i]);
}

/* The gradient of some filters, of all images, a few at a time. */
static rw_status run_filters(const struct job *j, int64_t i, int thread, char *turned, char *scratch)
{
    const struct plan *const p = j->p;
    const int which = primitive_of(p, i);
    const int64_t filters = i == p->units - 1 ? p->rest : p->each, some = p->at_once[which];
    const int64_t of_one = weight_elements(j->c) / j->c->oc;
    char *const packed = turned + p->turned, *const dense = packed + p->pack;
    pack_filters(j, i * p->each, filters, packed);
    RW_CHECK(rw_onednn_conv_run(p->primitive[which], thread, j->o->x, turned, NULL, packed, scratch));
    for (int64_t first = 0; first < filters; first += some) {
        RW_CHECK(rw_onednn_conv_turn_filters(p->primitive[which], thread, first / some, turned, dense, scratch));
        finish(j, (float *)(void *)dense, (i * p->each + first) * of_one, some * of_one);
    }
    return RW_OK;
}

/* Of some images or a band, dense and in float32. */
static rw_status run_weight(const struct job *j, int64_t i, int thread)
{
    const struct plan *const p = j->p;
    char *const scratch = j->at + (size_t)thread * own_bytes(p), *const turned = scratch + p->scratch;
    char *const to = j->at + (size_t)p->threads * own_bytes(p) + (size_t)i * p->dense;
    if (p->filters) return run_filters(j, i, thread, turned, scratch);
    RW_CHECK(sum_images(j, i, thread, turned, scratch));
    return rw_onednn_conv_turn_weight(p->primitive[primitive_of(p, i)], thread, turned, to, scratch);
}

/* The sums of all units in order. */
static void add_up(const struct job *j)
{
    const struct plan *const p = j->p;
    const char *const sums = j->at + (size_t)p->threads * own_bytes(p);
    const int64_t n = weight_elements(j->c);
#pragma omp parallel for num_threads(p->threads) schedule(static) if (p->threads > 1)
    for (int64_t from = 0; from < n; from += SUM_BLOCK) {
        float sum[SUM_BLOCK];
        const int64_t some = n - from < SUM_BLOCK ? n - from : SUM_BLOCK;
        memcpy(sum, (const float *)sums + from, (size_t)some * sizeof *sum);
        for (int64_t part = 1; part < p->units; part++) {
            const float *const more = (const float *)(sums + (size_t)part * p->dense) + from;
            for (int64_t i = 0; i < some; i++) sum[i] += more[i];
        }
        finish(j, sum, from, some);
    }
}

/* The library starts no threads of its own where one thread is allowed. */
static rw_status run_units(const struct job *j, enum rw_conv_kind kind)
{
    const struct plan *const p = j->p;
    struct rw_shares shares;
    int failed = RW_OK;
    rw_shares_deal(&shares, p->units, p->threads);
#pragma omp parallel num_threads(p->threads) if (p->threads > 1)
    {
        const int allowed = omp_get_max_threads(), thread = omp_get_thread_num();
        omp_set_num_threads(1);
        RW_EACH_SHARED(i, &shares, thread) {
            const rw_status status = kind == RW_CONV_WEIGHT ? run_weight(j, i, thread) : run_images(j, kind, i, thread);
            if (status) __atomic_store_n(&failed, (int)status, __ATOMIC_RELAXED);
        }
        omp_set_num_threads(allowed);
    }
    return (rw_status)failed;
}

/* Brings the weight into all layouts. */
static rw_status turn_weights(const struct job *j)
{
    const struct plan *const p = j->p;
    char *const scratch = j->at + (size_t)p->copies * p->turned;
    float *const wide = (float *)(void *)(j->at - p->weight);
    const void *const weight = p->wide ? wide : j->o->y;
    if (p->wide) rw_conv_widen_all(j->loops, j->c->dtype, j->o->y, weight_elements(j->c), p->threads, wide);
    for (int i = 0, made = 0; i < primitives(p); i++) {
        if (p->copy[i] < made) continue;
        char *const to = j->at + (size_t)made++ * p->turned;
        if (p->threads > 1) RW_CHECK(rw_onednn_conv_spread_weight(p->primitive[i], weight, to, scratch));
        else RW_CHECK(rw_onednn_conv_turn_weight(p->primitive[i], 0, weight, to, scratch));
    }
    return RW_OK;
}

/* All of x, once: units are filters. */
static void copy_whole(const struct rw_conv *c, const struct plan *p, const struct gemm_loops *loops,
                       struct conv_operands *o, void *to)
{
    if (p->wide) rw_conv_widen_whole(c, o, loops, p->threads, to);
    else rw_conv_pack_all(c, o, p->threads, to);
    o->x = to;
    o->pieces = 0;
}

rw_status rw_conv_run_library(const rw_kernel *k, enum rw_conv_kind kind, const struct rw_conv *c,
                              const struct conv_operands *o, const struct gemm_loops *loops, bool *ret_done)
{
    const struct rw_cpu *const cpu = k->device;
    struct plan p;
    RW_CHECK(make_plan(c, kind, cpu->onednn, k->threads, o->bias != NULL, o->pieces > 0, false, &p));
    *ret_done = !p.own;
    if (p.own) return RW_OK;
    if (k->workspace_bytes < p.workspace) return RW_ERR_MEMORY;
    struct conv_operands all = *o;
    if (p.whole) copy_whole(c, &p, loops, &all, k->workspace);
    const struct job j = { c, &p, &all, loops, k->workspace, (char *)k->workspace + bytes_in_front(&p) };
    if (kind != RW_CONV_WEIGHT) RW_CHECK(turn_weights(&j));
    RW_CHECK(run_units(&j, kind));
    if (kind == RW_CONV_WEIGHT && !p.filters) add_up(&j);
    return RW_OK;
}
