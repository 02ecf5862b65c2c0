/* Statements on images: convolutions, pooling with all of its options, norms by batch and by group. */
#include "whole/fuzz/generate.h"

#include <rewind/conv.h>
#include <rewind/norm.h>

#include <math.h>
#include <string.h>

static bool is_image(const struct fz_type *x)
{
    return rw_dtype_is_float(x->dtype) && x->shape.rank == 4 && rw_shape_numel(x->shape) > 0;
}

static int image(struct fz_generator *g)
{
    const int x = fz_any(g, 4, 4);
    const rw_shape shape = RW_SHAPE(1 + fz_below(g, 2), 1 + fz_below(g, 4), 1 + fz_below(g, 9), 1 + fz_below(g, 9));
    return x >= 0 && is_image(fz_type_of(g->p, x)) ? x : fz_like(g, g->dtype, shape);
}

static int choose_image(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, image(g));
}

/* Sets an image result whose elements are up to `most` times as large. */
static bool image_like(const struct fz_type *x, struct fz_statement *s, int64_t h, int64_t w, double most)
{
    rw_shape shape = x->shape;
    shape.dim[2] = h, shape.dim[3] = w;
    return fz_out(s, 0, x->dtype, shape, x->bound * most, x->slope * most);
}

/* ---- convolutions: x, weight[, bias] ---- */

static int choose_conv(struct fz_generator *g, int op)
{
    const int x = image(g);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int64_t c = t.shape.dim[1], groups = fz_chance(g, 30) ? c : 1, out = groups * (1 + fz_below(g, 3));
    const rw_shape filter = RW_SHAPE(out, c / groups, 1 + fz_below(g, 3), 1 + fz_below(g, 3));
    const int w = fz_like(g, t.dtype, filter);
    return fz_chance(g, 50) ? fz_emit(g, op, 2, x, w) : fz_emit(g, op, 3, x, w, fz_like(g, t.dtype, RW_SHAPE(out)));
}

/* Number of windows in n. The last one, which may be the first, may be partial or not; 0: none fits. */
static int64_t windows(int64_t n, int64_t padding, int64_t window, int64_t stride, bool ceil)
{
    const int64_t room = n + 2 * padding - window;
    if (room < 0) return ceil && room > -stride;
    const int64_t m = (room + (ceil ? stride - 1 : 0)) / stride + 1;
    return ceil && (m - 1) * stride >= n + padding ? m - 1 : m;
}

/* k[0]: stride, k[1]: padding, k[2]: dilation, k[3]: groups */
static bool resolve_conv(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const w = fz_in(p, s, 1);
    if (!is_image(x) || !is_image(w) || w->dtype != x->dtype || x->shape.dim[1] % w->shape.dim[1]) return false;
    const int64_t out = w->shape.dim[0];
    s->k[0] = 1 + s->word[0] % 2;
    s->k[1] = s->word[0] >> 8 & 1;
    s->k[2] = 1 + (s->word[0] >> 9 & 1);
    s->k[3] = x->shape.dim[1] / w->shape.dim[1];
    rw_shape shape = RW_SHAPE(x->shape.dim[0], out, 0, 0);
    for (int i = 2; i < 4; i++)
        shape.dim[i] = windows(x->shape.dim[i], s->k[1], s->k[2] * (w->shape.dim[i] - 1) + 1, s->k[0], false);
    if (out % s->k[3] || !rw_shape_numel(shape)) return false;
    const double n = 2 * sqrt((double)(rw_shape_numel(w->shape) / out) + 1); /* as of any product */
    double bound = x->bound * w->bound * n, slope = (x->slope * w->bound + w->slope * x->bound) * n;
    if (s->n_in > 2) {
        const struct fz_type *const bias = fz_in(p, s, 2);
        if (bias->dtype != x->dtype || !rw_shape_equal(bias->shape, RW_SHAPE(out))) return false;
        bound += bias->bound, slope += bias->slope;
    }
    return fz_out(s, 0, x->dtype, shape, bound, slope);
}

static void record_conv(struct fz_call *c)
{
    const int64_t *const k = c->s->k;
    const rw_conv2d_params params = { .stride = { (int)k[0], (int)k[0] },
                                      .padding = { (int)k[1], (int)k[1] },
                                      .dilation = { (int)k[2], (int)k[2] },
                                      .groups = (int)k[3] };
    c->out[0] = rw_conv2d_at(c->at, c->t, c->in[0], c->in[1], c->s->n_in > 2 ? c->in[2] : RW_NONE, &params);
}

/* ---- pooling ---- */

/* k[0], k[1]: the kernel, k[2]: stride, k[3]: the options below */
enum { PADS = 1, DILATES = 2, CEIL = 4, OWN = 8 /* excludes the padding, and uses a custom divisor, alternately */ };

static rw_pool2d_params params_of(const struct fz_statement *s)
{
    const bool average = !strcmp(fz_op(s->op)->name, "avg_pool2d");
    const int64_t *const k = s->k;
    rw_pool2d_params params = { .kernel = { (int)k[0], (int)k[1] },
                                .stride = { (int)k[2], (int)k[2] },
                                .ceil_mode = k[3] & CEIL };
    if (k[3] & PADS) params.padding[0] = (int)k[0] / 2, params.padding[1] = (int)k[1] / 2;
    if (k[3] & DILATES) params.dilation[0] = params.dilation[1] = 2;
    if (average && k[3] & OWN) {
        params.exclude_padding = k[3] & PADS;
        params.divisor_override = k[3] & PADS ? 0 : 3;
    }
    return params;
}

/* A dilated window without padding contains an element of the image, and so does one whose elements are contiguous. */
static bool resolve_pool(const struct fz_program *p, struct fz_statement *s)
{
    const bool average = !strcmp(fz_op(s->op)->name, "avg_pool2d");
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!is_image(x)) return false;
    s->k[0] = 1 + s->word[0] % 4;
    s->k[1] = 1 + s->word[1] % 4;
    s->k[2] = 1 + s->word[2] % 3;
    s->k[3] = s->word[0] >> 8 & 15;
    if (average) s->k[3] &= ~DILATES;
    if (s->k[3] & DILATES) s->k[3] &= ~PADS;
    const rw_pool2d_params a = params_of(s);
    int64_t extent[2];
    for (int i = 0; i < 2; i++) {
        const int64_t window = (s->k[3] & DILATES ? 2 : 1) * (a.kernel[i] - 1) + 1;
        extent[i] = windows(x->shape.dim[2 + i], a.padding[i], window, a.stride[i], a.ceil_mode);
        if (!extent[i]) return false;
    }
    const double most = a.divisor_override ? (double)(s->k[0] * s->k[1]) / 3 + 1 : 1;
    return image_like(x, s, extent[0], extent[1], most);
}

static void record_max_pool(struct fz_call *c)
{
    const rw_pool2d_params params = params_of(c->s);
    c->out[0] = rw_max_pool2d_at(c->at, c->t, c->in[0], &params);
}

static void record_avg_pool(struct fz_call *c)
{
    const rw_pool2d_params params = params_of(c->s);
    c->out[0] = rw_avg_pool2d_at(c->at, c->t, c->in[0], &params);
}

/* Smaller extents than the image's, equal ones, or larger ones. */
static bool resolve_adaptive(const struct fz_program *p, struct fz_statement *s)
{
    s->k[0] = 1 + s->word[0] % 6;
    s->k[1] = 1 + s->word[1] % 6;
    return is_image(fz_in(p, s, 0)) && image_like(fz_in(p, s, 0), s, s->k[0], s->k[1], 1);
}

static void record_adaptive_max(struct fz_call *c)
{
    c->out[0] = rw_adaptive_max_pool2d_at(c->at, c->t, c->in[0], c->s->k[0], c->s->k[1]);
}

static void record_adaptive_avg(struct fz_call *c)
{
    c->out[0] = rw_adaptive_avg_pool2d_at(c->at, c->t, c->in[0], c->s->k[0], c->s->k[1]);
}

/* ---- norms: x[, weight[, bias]] ---- */

static int choose_norm(struct fz_generator *g, int op)
{
    int in[FZ_INS] = { image(g) };
    if (in[0] < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, in[0]);
    const int n = 1 + (int)fz_below(g, 3);
    for (int i = 1; i < n; i++) in[i] = fz_like(g, t.dtype, RW_SHAPE(t.shape.dim[1]));
    return fz_emit_list(g, op, n, in);
}

/* k[0]: groups, for a batch norm whether it has a relu */
static bool resolve_norm(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    const bool by_batch = !strcmp(fz_op(s->op)->name, "batchnorm");
    if (!is_image(x)) return false;
    const int64_t c = x->shape.dim[1];
    if (by_batch && rw_shape_numel(x->shape) / c < 2) return false;
    double bound = 5, slope = x->slope;
    s->f = s->word[0] % 2 ? 0.125 : 0.015625;
    s->k[0] = by_batch ? s->word[1] & 1 : s->word[1] % 3 == 0 ? c : s->word[1] % 3 == 1 && c % 2 == 0 ? 2 : 1;
    for (int i = 1; i < s->n_in; i++) {
        const struct fz_type *const v = fz_in(p, s, i);
        if (v->dtype != x->dtype || !rw_shape_equal(v->shape, RW_SHAPE(c))) return false;
        bound = i == 1 ? 5 * v->bound : bound + v->bound;
        slope = i == 1 ? slope * v->bound + 5 * v->slope : slope + v->slope;
    }
    return fz_out(s, 0, x->dtype, x->shape, bound, slope / sqrt(s->f));
}

static void record_batchnorm(struct fz_call *c)
{
    const rw_batchnorm_params params = { .eps = c->s->f, .relu = c->s->k[0] };
    c->out[0] = rw_batchnorm_at(c->at, c->t, c->in[0], c->s->n_in > 1 ? c->in[1] : RW_NONE,
                                c->s->n_in > 2 ? c->in[2] : RW_NONE, RW_NONE, RW_NONE, &params);
}

static void record_group_norm(struct fz_call *c)
{
    c->out[0] = rw_group_norm_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->s->n_in > 1 ? c->in[1] : RW_NONE,
                                 c->s->n_in > 2 ? c->in[2] : RW_NONE, c->s->f);
}

#define WINDOW ".kernel = { %0, %1 }, .stride = { %2, %2 }, .ceil_mode = %3 & 4, " \
               ".padding = { %3 & 1 ? %0 / 2 : 0, %3 & 1 ? %1 / 2 : 0 }"
#define MAXIMUM WINDOW ", .dilation = { %3 & 2 ? 2 : 1, %3 & 2 ? 2 : 1 }"
#define AVERAGE WINDOW ", .exclude_padding = (%3 & 9) == 9, .divisor_override = (%3 & 9) == 8 ? 3 : 0"
#define SQUARE(k) "{ " k ", " k " }"

const struct fz_op fz_image_ops[] = {
    { "conv2d", 6, 0, 7, choose_conv, resolve_conv, record_conv,
      "rw_conv2d(t, $0, $1, $2, &(rw_conv2d_params){ .stride = " SQUARE("%0") ", .padding = " SQUARE("%1")
      ", .dilation = " SQUARE("%2") ", .groups = %3 })" },
    { "max_pool2d", 5, 0, 1, choose_image, resolve_pool, record_max_pool,
      "rw_max_pool2d(t, $0, &(rw_pool2d_params){ " MAXIMUM " })" },
    { "avg_pool2d", 5, 0, 1, choose_image, resolve_pool, record_avg_pool,
      "rw_avg_pool2d(t, $0, &(rw_pool2d_params){ " AVERAGE " })" },
    { "adaptive_max_pool2d", 4, 0, 1, choose_image, resolve_adaptive, record_adaptive_max,
      "rw_adaptive_max_pool2d(t, $0, %0, %1)" },
    { "adaptive_avg_pool2d", 4, 0, 1, choose_image, resolve_adaptive, record_adaptive_avg,
      "rw_adaptive_avg_pool2d(t, $0, %0, %1)" },
    { "batchnorm", 5, 0, 7, choose_norm, resolve_norm, record_batchnorm,
      "rw_batchnorm(t, $0, $1, $2, RW_NONE, RW_NONE, &(rw_batchnorm_params){ .eps = ~, .relu = %0 })" },
    { "group_norm", 4, 0, 7, choose_norm, resolve_norm, record_group_norm, "rw_group_norm(t, $0, %0, $1, $2, ~)" },
    { NULL },
};
