/*
 * Convolutions by oneDNN, cut into units of work that run on one thread each.
 *
 * y and dx are cut into groups of images, or if there are few images, into bands of rows. A band needs rows of the
 * other operand that adjacent bands need, too:
 *
 *     rows of y          0 ... 6 | 7 ... 13 | 14 ... 20      three bands, a kernel of 3, padding of 1
 *     rows of x        (-1) 0 ... 7
 *                             6 ... 14
 *                                    13 ... 20 (21)          in brackets: padding
 *
 * The weight is converted to the library's layout once. A weight's gradient is a sum over all pixels, cut in one of two
 * ways. With many pixels and a small weight, images or bands have separate sums, which are added in order. With few
 * pixels and a large weight, each unit has some of the filters and reads all images. It converts their gradient when it
 * is complete, so the whole gradient never exists in float32. The library would cut the sum by the number of threads,
 * and the result would depend on that number.
 *
 * If x is virtually concatenated, a thread concatenates the rows of its unit, which are then in its cache when the
 * library reads them. If units are filters, which all read the whole x, it is concatenated once. 16-bit types that the
 * processor does not multiply faster than float32 are widened in the same way, one image or band at a time, for any
 * number of images per unit. The unit's thread rounds the results, or adds them up.
 */
#include "ops/conv/conv_run.h"

#include "base/thread_team.h"
#include "device/cpu/cpu.h"
#include "device/cpu/onednn.h"
#include "ops/common/work_stealing.h"
#include "ops/common/util.h"
#include "ops/common/vec.h"
#include "ops/matmul/gemm_descriptor.h"

#include <string.h>

#define UNITS 8      /* maximum number of units of images or bands; bands are used if there are fewer images */
#define BAND_MIN 7 /* in rows */
#define FILTER_UNITS 4
#define FILTERS_ALIGN 16
#define PADDING_MAX 1024 /* the library generates code per padding element: 6 us each, 10 minutes for 10^8 */
#define TAPS_MAX 4096 /* of a kernel, along an axis: the library has no fast code for more */
#define SUM_BLOCK 4096 /* elements of a weight that a thread adds up at a time */

/* Rows of one image, or of several: rows of x or dx, and of y or dy. */
struct rows {
    int64_t x, x_end, y, y_end;
};

struct plan {
    bool own;     /* the plain loops */
    bool wide;    /* the library's float32 */
    bool filters; /* units are filters, not images */
    int threads;
    int64_t units, each, rest;                    /* images or filters per unit, and in the last one */
    int64_t bands, band;                          /* bands per image, usually 1, and rows per band except the last */
    struct rw_onednn_primitive *primitive[UNITS]; /* per band; else for a unit, and for the last one */
    int copy[UNITS], copies;                      /* index of the weight's copy that a primitive reads */
    int64_t at_once[UNITS];                       /* filters that a primitive converts from its layout at a time */
    size_t scratch, reordered, dense, pack;       /* bytes: per thread, of a weight in any layout, of a unit's dy */
    size_t rows, whole;                           /* bytes of a concatenated x: of a unit's rows, or of all of it */
    size_t result, weight;                        /* bytes of float32 copies: of a unit's y, and of the weight */
    int64_t places;                               /* buffers for units: the maximum number of units that run at once */
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

/* ---- planning ---- */

static void cut(struct plan *p, int64_t extent, int64_t units, int64_t align)
{
    p->each = gemm_align(gemm_ceil_div(extent, units), align);
    if (p->each > extent) p->each = extent;
    p->units = gemm_ceil_div(extent, p->each);
    p->rest = extent - (p->units - 1) * p->each;
}

/* Vertical extent of the kernel minus 1, in rows. */
static int64_t reach(const struct rw_conv *c)
{
    return (c->kh - 1) * c->dilation[0];
}

/* The rows of band i, or all: for the result its own rows, for the other operand those that they need. */
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

/* Rows of padding above and below. */
static int64_t above(const struct rw_conv *c, const struct rows *r)
{
    return r->x - (r->y * c->stride[0] - c->padding[0]);
}

static int64_t below(const struct rw_conv *c, const struct rows *r)
{
    return (r->y_end - 1) * c->stride[0] - c->padding[0] + reach(c) + 1 - r->x_end;
}

/* Can each band be computed as a convolution of its own? Not if a stride skips rows in a way that a separate
   convolution cannot express. */
static bool are_convolutions(const struct rw_conv *c, enum rw_conv_kind kind, const struct plan *p)
{
    for (int64_t i = 0; i < p->bands; i++) {
        const struct rows r = rows_of(c, kind, p, i);
        if (r.x >= r.x_end || r.y >= r.y_end || above(c, &r) < 0 || below(c, &r) < 0) return false;
    }
    return true;
}

/* A power of two: with three bands on two threads, one thread would have two. */
static int64_t bands_of(int64_t wanted, int64_t rows)
{
    int64_t bands = 1;
    while (2 * bands <= wanted && rows / (2 * bands) >= BAND_MIN) bands *= 2;
    return bands;
}

/* The minimum number of units whose elements the library's types can count (device/cpu/onednn_primitive.h). */
static int64_t least_units(const struct rw_conv *c)
{
    const int64_t x = c->h * c->w * c->c, y = c->oh * c->ow * c->oc, image = x > y ? x : y;
    const int64_t images = image ? INT32_MAX / image : INT32_MAX;
    return images ? gemm_ceil_div(c->n, images) : 1;
}

/* Cuts into groups of images, or into bands of single images. */
static void cut_images(const struct rw_conv *c, enum rw_conv_kind kind, int64_t units, struct plan *p)
{
    const int64_t rows = kind == RW_CONV_DATA ? c->h : c->oh;
    const int64_t bands = bands_of(c->n < units ? gemm_ceil_div(units, c->n) : 1, rows);
    const int64_t least = kind == RW_CONV_WEIGHT ? 1 : least_units(c), some = c->n < units ? c->n : units;
    cut(p, c->n, some < least ? least : some, 1);
    if (bands < 2) return;
    p->band = gemm_ceil_div(rows, bands);
    p->bands = gemm_ceil_div(rows, p->band);
    if (are_convolutions(c, kind, p)) p->units *= p->bands;
    else p->bands = 1;
}

/* Separate sums cost one pass over the weight per unit; filters cost one pass over x per unit. Chooses the smaller
   cost. */
static void cut_weight(const struct rw_conv *c, struct plan *p)
{
    const int64_t dy = c->n * c->oh * c->ow * c->oc, parts = dy / (4 * weight_elements(c));
    p->filters = parts < 1 && c->groups == 1;
    if (p->filters) cut(p, c->oc, FILTER_UNITS, FILTERS_ALIGN);
    else cut_images(c, RW_CONV_WEIGHT, parts < 1 ? 2 : parts < 4 ? 4 : parts > UNITS ? UNITS : parts, p);
}

/* The number of primitives, and the index of a unit's primitive. */
static int primitives(const struct plan *p)
{
    return p->bands > 1 ? (int)p->bands : 2;
}

static int primitive_of(const struct plan *p, int64_t unit)
{
    return p->bands > 1 ? (int)(unit % p->bands) : unit == p->units - 1;
}

/* Images of a unit, or of the last one. */
static int64_t images_of(const struct plan *p, bool last)
{
    return p->bands > 1 ? 1 : last ? p->rest : p->each;
}

/* Images in one call of the library. */
static int64_t images_at_once(const struct plan *p, bool last)
{
    return p->wide ? 1 : images_of(p, last);
}

/* The signature of primitive i: the convolution of a unit or band. */
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

/* Lets primitives share a copy of the weight; usually all of them use the same layout. */
static void share_weight(struct plan *p, int i)
{
    int first = 0;
    while (!rw_onednn_conv_same_weight(p->primitive[first], p->primitive[i])) first++;
    p->copy[i] = first < i ? p->copy[first] : p->copies++;
}

/* Planning creates the primitives; a run finds them, because its plan keeps them alive. */
static rw_status query_library(const struct rw_conv *c, enum rw_conv_kind kind, struct rw_onednn *onednn, bool bias,
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
        if (aligned(needs.weight) > p->reordered) p->reordered = aligned(needs.weight);
        if (aligned(needs.scratch) > p->scratch) p->scratch = aligned(needs.scratch);
    }
    return RW_OK;
}

/* The library does not support empty convolutions. Convolutions whose extents it cannot represent, or for which it
   allocates too much memory, are not passed to it (device/cpu/onednn_conv.c). */
static bool is_for_library(const struct rw_conv *c)
{
    if (c->dtype == RW_F64 || !rw_onednn_is_present()) return false;
    if (!c->n || !c->c || !c->oc || !c->h || !c->w || !c->oh || !c->ow) return false;
    if (c->padding[0] > PADDING_MAX || c->padding[1] > PADDING_MAX) return false;
    return c->padding[0] < c->kh * c->dilation[0] && c->padding[1] < c->kw * c->dilation[1];
}

/* Bytes of a thread's own sums of a weight's gradient: two buffers if it accumulates. */
static size_t own_bytes(const struct plan *p)
{
    return p->scratch + p->reordered * (p->wide && !p->filters ? 2 : 1) + p->pack + (p->filters ? p->dense : 0);
}

/* Bytes of a gradient in float32: all of it or, if units are filters, the filters that are converted at a time. */
static size_t dense_bytes(const struct rw_conv *c, const struct plan *p)
{
    const int64_t some = p->at_once[0] > p->at_once[1] ? p->at_once[0] : p->at_once[1];
    return aligned((size_t)(weight_elements(c) / c->oc * (p->filters ? some : c->oc)) * sizeof(float));
}

/* Maximum number of elements of x and of y that a unit holds at a time. */
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

/* Bytes of the copies at the start of the workspace. */
static size_t bytes_in_front(const struct plan *p)
{
    return p->whole + (size_t)p->places * (p->rows + p->result) + p->weight;
}

/* Number of output positions along axis i for which tap t reads x and not padding: from the first whose position is not
   before x to the last whose position is not after it. */
static int64_t outputs_under(const struct rw_conv *c, int i, int64_t tap)
{
    const int64_t extent = i ? c->w : c->h, out = i ? c->ow : c->oh, at = rw_conv_under(c, i, 0, tap);
    const int64_t first = at < 0 ? gemm_ceil_div(-at, c->stride[i]) : 0;
    const int64_t end = at < extent ? (extent - 1 - at) / c->stride[i] + 1 : 0;
    return (end < out ? end : out) - first;
}

/*
 * Is this a gradient that oneDNN's code for AVX-512 computes wrongly? Weight gradients with dilation, or with a tap
 * that reads no pixel at all: sums of bfloat16, and at times of float32, are far off or include memory after the
 * operands. And dx of one tap, in bfloat16, with an odd number of filters, which its code processes in pairs.
 * tests/ops/conv.c has such shapes.
 */
bool rw_conv_library_errs(const struct rw_conv *c, enum rw_conv_kind kind)
{
    if (!rw_onednn_is_present()) return false;
    if (kind == RW_CONV_DATA)
        return c->dtype == RW_BF16 && !rw_gemm_widens(c->dtype) && c->kh * c->kw == 1 && c->ocg % 2;
    if (kind == RW_CONV_FORWARD) return false;
    for (int i = 0; i < 2; i++) {
        const int64_t taps = i ? c->kw : c->kh;
        if (c->dilation[i] > 1 || taps > TAPS_MAX) return true;
        for (int64_t tap = 0; tap < taps; tap++)
            if (outputs_under(c, i, tap) < 1) return true;
    }
    return false;
}

/* Sets the sizes of the copies made for the library, which come first in the workspace. */
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

/* Cuts a convolution into units and queries the library's primitives for them. */
static rw_status make_plan(const struct rw_conv *c, enum rw_conv_kind kind, struct rw_onednn *onednn, int threads,
                           bool bias, bool pieces, bool planning, struct plan *ret)
{
    *ret = (struct plan){ .threads = rw_conv_products(c) < RW_CONV_PARALLEL_FROM ? 1 : threads, .bands = 1 };
    ret->own = !is_for_library(c) || rw_conv_library_errs(c, kind);
    ret->wide = rw_gemm_widens(c->dtype);
    if (ret->own) return RW_OK;
    if (kind == RW_CONV_WEIGHT) cut_weight(c, ret);
    else cut_images(c, kind, UNITS, ret);
    RW_CHECK(query_library(c, kind, onednn, bias, planning, ret));
    if (ret->own) return RW_OK;
    const size_t each_thread = (size_t)ret->threads;
    set_copies(c, kind, pieces, ret);
    if (kind == RW_CONV_WEIGHT) {
        ret->dense = dense_bytes(c, ret);
        ret->workspace = each_thread * own_bytes(ret) + ret->dense * (size_t)(ret->filters ? 0 : ret->units);
    } else ret->workspace = each_thread * ret->scratch + ret->reordered * (size_t)ret->copies;
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

/* ---- execution ---- */

struct job {
    const struct rw_conv *c;
    const struct plan *p;
    const struct conv_operands *o;
    const struct gemm_loops *loops;
    enum rw_conv_kind kind;
    char *rows; /* the workspace: copies made for the library, then the rest */
    char *at;
};

/* The part of a unit that one library call processes: pixels of x or dx, and of y or dy. */
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

/* A unit's x in the form that the library reads. */
static const void *x_of(const struct job *j, const struct unit *u)
{
    const struct rw_conv *const c = j->c;
    void *const to = place_of_x(j, u);
    if (j->p->wide) rw_conv_widen(c, j->o, j->loops, u->x, u->x_pixels, to);
    else if (j->o->pieces) rw_conv_pack(c, j->o, u->x, u->x_pixels, to);
    else return (const char *)j->o->x + (size_t)(u->x * c->c) * rw_dtype_size(c->dtype);
    return to;
}

/* A unit's dy in the form that the library reads. */
static const void *dy_of(const struct job *j, const struct unit *u, const void *dy)
{
    const struct rw_conv *const c = j->c;
    const char *const from = (const char *)dy + (size_t)(u->y * c->oc) * rw_dtype_size(c->dtype);
    if (!j->p->wide) return from;
    j->loops->widen(c->dtype, from, 1, u->y_pixels * c->oc, place_of_y(j, u));
    return place_of_y(j, u);
}

/* Rounds the result of a unit: `pixels` from `first` on, with this number of channels each. */
static void round_unit(const struct job *j, const void *sums, int64_t first, int64_t pixels, int64_t channels)
{
    const rw_dtype dtype = j->c->dtype;
    const struct gemm g = { .dtype = dtype, .to = dtype, .c = j->o->to, .c_row = channels, .bias = j->o->bias,
                            .has_bias = j->o->bias != NULL };
    j->loops->round(&g, sums, channels, first * channels, pixels, 0, channels);
}

/* Computes y or dx of a group of images, or of a band. */
static rw_status call_images(const struct job *j, enum rw_conv_kind kind, int64_t i, int64_t call, int thread)
{
    const struct rw_conv *const c = j->c;
    const struct plan *const p = j->p;
    const bool forward = kind == RW_CONV_FORWARD;
    const struct unit u = unit_of(j, kind, i, call, thread);
    const int which = primitive_of(p, i);
    const size_t size = rw_dtype_size(c->dtype);
    const char *const weight = j->at + (size_t)p->copy[which] * p->reordered;
    char *const scratch = j->at + (size_t)p->copies * p->reordered + (size_t)thread * p->scratch;
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

/* Packs filters [first, first + n) of dy next to each other. */
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

/* The weight's gradient for some images or a band, in the library's layout: the sum of its calls. */
static rw_status sum_images(const struct job *j, int64_t i, int thread, char *reordered, char *scratch)
{
    const struct plan *const p = j->p;
    for (int64_t call = 0; call < calls_of(p, i); call++) {
        const struct unit u = unit_of(j, RW_CONV_WEIGHT, i, call, thread);
        char *const to = call ? reordered + p->reordered : reordered;
        RW_CHECK(rw_onednn_conv_run(p->primitive[primitive_of(p, i)], thread, x_of(j, &u), to, NULL,
                                    dy_of(j, &u, j->o->y), scratch));
        float *const sums = (float *)(void *)reordered, *const more = (float *)(void *)to;
        for (size_t n = 0; call && n < p->reordered / sizeof *sums; n++) sums[n] += more[n];
    }
    return RW_OK;
}

/* Adds the addend to sums [from, from + n), and rounds once. */
static void finish(const struct job *j, float *sum, int64_t from, int64_t n)
{
    const rw_dtype dtype = j->c->dtype;
    if (j->o->sum)
        for (int64_t i = 0; i < n; i++) sum[i] += f_get(j->o->sum, dtype, from + i);
    for (int64_t i = 0; i < n; i++) f_put(j->o->to, dtype, from + i, sum[i]);
}

/* The gradient of some filters, over all images, a few at a time. */
static rw_status run_filters(const struct job *j, int64_t i, int thread, char *reordered, char *scratch)
{
    const struct plan *const p = j->p;
    const int which = primitive_of(p, i);
    const int64_t filters = i == p->units - 1 ? p->rest : p->each, some = p->at_once[which];
    const int64_t of_one = weight_elements(j->c) / j->c->oc;
    char *const packed = reordered + p->reordered, *const dense = packed + p->pack;
    pack_filters(j, i * p->each, filters, packed);
    RW_CHECK(rw_onednn_conv_run(p->primitive[which], thread, j->o->x, reordered, NULL, packed, scratch));
    for (int64_t first = 0; first < filters; first += some) {
        RW_CHECK(rw_onednn_conv_reorder_filters(p->primitive[which], thread, first / some, reordered, dense, scratch));
        finish(j, (float *)(void *)dense, (i * p->each + first) * of_one, some * of_one);
    }
    return RW_OK;
}

/* The gradient for some images or a band, dense and in float32. */
static rw_status run_weight(const struct job *j, int64_t i, int thread)
{
    const struct plan *const p = j->p;
    char *const scratch = j->at + (size_t)thread * own_bytes(p), *const reordered = scratch + p->scratch;
    char *const to = j->at + (size_t)p->threads * own_bytes(p) + (size_t)i * p->dense;
    if (p->filters) return run_filters(j, i, thread, reordered, scratch);
    RW_CHECK(sum_images(j, i, thread, reordered, scratch));
    return rw_onednn_conv_reorder_gradient(p->primitive[primitive_of(p, i)], thread, reordered, to, scratch);
}

/* Adds the units' sums of some blocks of elements, in order, and finishes them. */
static void add_blocks(void *of, int64_t first, int64_t end)
{
    const struct job *const j = of;
    const struct plan *const p = j->p;
    const char *const sums = j->at + (size_t)p->threads * own_bytes(p);
    const int64_t n = weight_elements(j->c);
    for (int64_t b = first; b < end; b++) {
        float sum[SUM_BLOCK];
        const int64_t from = b * SUM_BLOCK, some = n - from < SUM_BLOCK ? n - from : SUM_BLOCK;
        memcpy(sum, (const float *)sums + from, (size_t)some * sizeof *sum);
        for (int64_t part = 1; part < p->units; part++) {
            const float *const more = (const float *)(sums + (size_t)part * p->dense) + from;
            for (int64_t i = 0; i < some; i++) sum[i] += more[i];
        }
        finish(j, sum, from, some);
    }
}

/* Adds the sums of all units in order. */
static void add_up(const struct job *j)
{
    rw_team_for(j->p->threads, gemm_ceil_div(weight_elements(j->c), SUM_BLOCK), add_blocks, j);
}

static rw_status run_unit(const void *of, int64_t i, int thread)
{
    const struct job *const j = of;
    return j->kind == RW_CONV_WEIGHT ? run_weight(j, i, thread) : run_images(j, j->kind, i, thread);
}

/* Converts the weight into all layouts in use. */
static rw_status reorder_weights(const struct job *j)
{
    const struct plan *const p = j->p;
    char *const scratch = j->at + (size_t)p->copies * p->reordered;
    float *const wide = (float *)(void *)(j->at - p->weight);
    const void *const weight = p->wide ? wide : j->o->y;
    if (p->wide) rw_conv_widen_all(j->loops, j->c->dtype, j->o->y, weight_elements(j->c), p->threads, wide);
    for (int i = 0, n_done = 0; i < primitives(p); i++) {
        if (p->copy[i] < n_done) continue;
        char *const to = j->at + (size_t)n_done++ * p->reordered;
        RW_CHECK(rw_onednn_conv_reorder_weight(p->primitive[i], p->threads, weight, to, scratch, p->scratch));
    }
    return RW_OK;
}

/* Copies all of x once, if units are filters. */
static void copy_whole(const struct rw_conv *c, const struct plan *p, const struct gemm_loops *loops,
                       struct conv_operands *o, void *to)
{
    if (p->wide) rw_conv_widen_whole(c, o, loops, p->threads, to);
    else rw_conv_pack_all(c, o, p->threads, to);
    o->x = to;
    o->pieces = 0;
}

/* Plans a convolution and runs its units. *ret_done is false if the plain loops must compute it. */
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
    const struct job j = { c, &p, &all, loops, kind, k->workspace, (char *)k->workspace + bytes_in_front(&p) };
    if (kind != RW_CONV_WEIGHT) RW_CHECK(reorder_weights(&j));
    RW_CHECK(rw_shares_run(p.threads, p.units, run_unit, &j));
    if (kind == RW_CONV_WEIGHT && !p.filters) add_up(&j);
    return RW_OK;
}
