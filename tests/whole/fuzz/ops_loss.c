/* Statements of cross-entropies with their options: class weights, smoothing, z-loss, reductions, rows of
   probabilities, chunks. */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/input_values.h"

#include <rewind/losses.h>
#include <rewind/ops.h>

#include <math.h>
#include <string.h>

static int64_t last(rw_shape s)
{
    return s.rank ? s.dim[s.rank - 1] : 0;
}

static rw_shape rows_of(rw_shape s)
{
    s.rank--;
    return s;
}

static int choose_target(struct fz_generator *g, rw_shape rows, int64_t classes)
{
    return fz_chance(g, 30) ? fz_index(g, rows, classes) : fz_new_leaf(g, "targets", RW_I32, rows, (double)classes);
}

static int choose_vector(struct fz_generator *g, rw_dtype dtype, int64_t classes)
{
    return fz_like(g, dtype, RW_SHAPE(classes));
}

/* k[0]: reduction, k[1]: the ignored target, k[2]: z-loss in 64ths, k[3]: rows of a chunk; f: smoothing */
static rw_cross_entropy_params params_of(const struct fz_statement *s)
{
    return (rw_cross_entropy_params){ .reduction = (rw_reduction)s->k[0],
                                      .label_smoothing = s->f,
                                      .z_loss = (double)s->k[2] / 64,
                                      .chunk = s->k[3] };
}

static rw_cross_entropy_params params_of_classes(const struct fz_statement *s)
{
    rw_cross_entropy_params p = params_of(s);
    p.has_ignore_index = true;
    p.ignore_index = (int32_t)s->k[1];
    return p;
}

/* Sets the result for logits as large as `x`; share: total weight of a row's classes, most: the factor that a mean
   adds. */
static bool loss(struct fz_statement *s, const struct fz_type *x, rw_shape rows, double share, double most)
{
    s->k[0] = s->word[0] % 4 % 3; /* the mean twice as often */
    s->k[2] = s->word[0] >> 8 & 1;
    s->f = s->word[0] >> 9 & 1 ? 0.125 : 0;
    const double log_sum = x->bound + 5, z = (double)s->k[2] / 64;
    const double n = s->k[0] == RW_REDUCTION_SUM ? (double)rw_shape_numel(rows) + 1
                     : s->k[0] == RW_REDUCTION_MEAN ? most : 1;
    return fz_out(s, 0, x->dtype == RW_F64 ? RW_F64 : RW_F32, s->k[0] == RW_REDUCTION_NONE ? rows : RW_SCALAR,
                  n * (2 * share * log_sum + z * log_sum * log_sum), n * x->slope * (2 * share + 2 * z * log_sum));
}

static bool is_vector(const struct fz_type *v, int64_t n)
{
    return rw_dtype_is_float(v->dtype) && rw_shape_equal(v->shape, RW_SHAPE(n));
}

static bool fits_target(const struct fz_program *p, struct fz_statement *s, int at, rw_shape rows, int64_t classes)
{
    const struct fz_type *const target = fz_in(p, s, at);
    s->k[1] = fz_ignored(p, s->in[at]);
    return target->dtype == RW_I32 && rw_shape_equal(rows, target->shape) && target->bound <= (double)classes;
}

/* They are never close to 0, because a mean divides by them. */
static rw_tensor *weights(struct fz_call *c, rw_tensor *x)
{
    return rw_add_scalar_at(c->at, c->t, rw_abs_at(c->at, c->t, x), 0.5);
}

/* ---- of logits: x, target[, weights of the classes] ---- */

static int choose_rows(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    const struct fz_type t = x < 0 ? (struct fz_type){ 0 } : *fz_type_of(g->p, x);
    if (last(t.shape) < 1) return -1;
    const int target = choose_target(g, rows_of(t.shape), last(t.shape));
    if (strncmp(fz_op(op)->name, "weighted", 8) != 0) return fz_emit(g, op, 2, x, target);
    return fz_emit(g, op, 3, x, target, choose_vector(g, t.dtype, last(t.shape)));
}

static bool resolve_rows(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!rw_dtype_is_float(x->dtype) || last(x->shape) < 1) return false;
    const rw_shape rows = rows_of(x->shape);
    const bool weighted = s->n_in > 2;
    if (!fits_target(p, s, 1, rows, last(x->shape)) || (weighted && !is_vector(fz_in(p, s, 2), last(x->shape))))
        return false;
    return loss(s, x, rows, weighted ? fz_in(p, s, 2)->bound + 0.5 : 1, weighted ? 2 : 1);
}

static void record_rows(struct fz_call *c)
{
    const rw_cross_entropy_params params = params_of_classes(c->s);
    rw_tensor *const weight = c->s->n_in > 2 ? weights(c, c->in[2]) : RW_NONE;
    c->out[0] = rw_cross_entropy_with_at(c->at, c->t, c->in[0], c->in[1], weight, &params);
}

/* ---- of rows of arbitrary values as probabilities: x, y[, weights] ---- */

static int choose_soft(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    const struct fz_type t = x < 0 ? (struct fz_type){ 0 } : *fz_type_of(g->p, x);
    if (last(t.shape) < 1) return -1;
    const int y = fz_chance(g, 10) ? x : fz_like(g, t.dtype, t.shape);
    if (fz_chance(g, 50)) return fz_emit(g, op, 2, x, y);
    return fz_emit(g, op, 3, x, y, choose_vector(g, t.dtype, last(t.shape)));
}

static bool resolve_soft(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const y = fz_in(p, s, 1);
    if (!rw_dtype_is_float(x->dtype) || last(x->shape) < 1 || !fz_same(x, y)) return false;
    if (s->n_in > 2 && !is_vector(fz_in(p, s, 2), last(x->shape))) return false;
    const double share = (s->n_in > 2 ? fz_in(p, s, 2)->bound : 1) * y->bound * sqrt((double)last(x->shape));
    if (!loss(s, x, rows_of(x->shape), share, 1)) return false;
    return fz_out(s, 0, s->out[0].dtype, s->out[0].shape, s->out[0].bound,
                  s->out[0].slope + s->out[0].bound * y->slope);
}

static void record_soft(struct fz_call *c)
{
    const rw_cross_entropy_params params = params_of(c->s);
    c->out[0] = rw_cross_entropy_with_at(c->at, c->t, c->in[0], c->in[1], c->s->n_in > 2 ? c->in[2] : RW_NONE,
                                         &params);
}

/* ---- of a linear layer: x, weight, target[, weights of the classes][, bias] ---- */

static int choose_linear(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 4);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int64_t classes = 1 + fz_below(g, 9);
    const bool weighted = !strncmp(fz_op(op)->name, "weighted", 8);
    int in[FZ_INS] = { x }, n = 1;
    in[n++] = fz_like(g, t.dtype, RW_SHAPE(classes, last(t.shape)));
    in[n++] = choose_target(g, rows_of(t.shape), classes);
    if (weighted) in[n++] = choose_vector(g, t.dtype, classes);
    if (fz_chance(g, 60)) in[n++] = choose_vector(g, t.dtype, classes);
    return fz_emit_list(g, op, n, in);
}

/* Checks the operands of a linear cross-entropy, and bounds its logits and its loss. */
static bool resolve_linear(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const w = fz_in(p, s, 1);
    const bool weighted = !strncmp(fz_op(s->op)->name, "weighted", 8);
    const int bias = weighted ? 4 : 3;
    if (!rw_dtype_is_float(x->dtype) || x->dtype != w->dtype || !x->shape.rank || w->shape.rank != 2 || s->n_in < bias)
        return false;
    const int64_t classes = w->shape.dim[0];
    if (classes < 1 || last(x->shape) != w->shape.dim[1]) return false;
    if (!fits_target(p, s, 2, rows_of(x->shape), classes)) return false;
    for (int i = 3; i < s->n_in; i++)
        if (!is_vector(fz_in(p, s, i), classes) || fz_in(p, s, i)->dtype != x->dtype) return false;
    const double n = 2 * sqrt((double)last(x->shape) + 1); /* as of any product */
    struct fz_type logits = { .dtype = x->dtype,
                              .bound = x->bound * w->bound * n,
                              .slope = (x->slope * w->bound + w->slope * x->bound) * n };
    if (s->n_in > bias) logits.bound += fz_in(p, s, bias)->bound, logits.slope += fz_in(p, s, bias)->slope;
    s->k[3] = s->word[1] % 8; /* 0: chosen from the shapes */
    return loss(s, &logits, rows_of(x->shape), weighted ? fz_in(p, s, 3)->bound + 0.5 : 1, weighted ? 2 : 1);
}

static void record_linear(struct fz_call *c)
{
    const bool weighted = !strncmp(fz_op(c->s->op)->name, "weighted", 8);
    const int bias = weighted ? 4 : 3;
    rw_cross_entropy_params params = params_of_classes(c->s);
    if (weighted) params.class_weight = weights(c, c->in[3]);
    if (c->s->n_in > bias) params.bias = c->in[bias];
    c->out[0] = rw_linear_cross_entropy_at(c->at, c->t, c->in[0], c->in[1], c->in[2], &params);
}

#define WEIGHTS(i) "rw_add_scalar(t, rw_abs(t, $" #i "), 0.5)"
#define OPTIONS ".reduction = (rw_reduction)%0, .label_smoothing = ~, .z_loss = %2 / 64.0"
#define OF_CLASSES OPTIONS ", .has_ignore_index = true, .ignore_index = %1"
#define WITH(weight, options) \
    "rw_cross_entropy_with(t, $0, $1, " weight ", &(rw_cross_entropy_params){ " options " })"
#define LINEAR(options) "rw_linear_cross_entropy(t, $0, $1, $2, &(rw_cross_entropy_params){ " options " })"

const struct fz_op fz_loss_ops[] = {
    { "cross_entropy_with", 4, 0, 1, choose_rows, resolve_rows, record_rows, WITH("RW_NONE", OF_CLASSES) },
    { "weighted_cross_entropy", 4, 0, 1, choose_rows, resolve_rows, record_rows, WITH(WEIGHTS(2), OF_CLASSES) },
    { "soft_cross_entropy", 5, 0, 3, choose_soft, resolve_soft, record_soft, WITH("$2", OPTIONS) },
    { "linear_cross_entropy", 6, 0, 11, choose_linear, resolve_linear, record_linear,
      LINEAR(OF_CLASSES ", .chunk = %3, .bias = $3") },
    { "weighted_linear_cross_entropy", 6, 0, 19, choose_linear, resolve_linear, record_linear,
      LINEAR(OF_CLASSES ", .chunk = %3, .class_weight = " WEIGHTS(3) ", .bias = $4") },
    { NULL },
};
