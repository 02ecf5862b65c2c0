/* Statements of the scan of a state-space model: x, dt, a, b, c[, state] -> y and the final state. */
#include "whole/fuzz/generate.h"

#include <rewind/ops.h>
#include <rewind/recurrent.h>

#include <math.h>

enum { X, DT, A, B, C, STATE };

/* Emits a state-space scan with fitting operands, half of the time with an initial state. */
static int choose_scan(struct fz_generator *g, int op)
{
    const int64_t length = fz_chance(g, 60) ? fz_extent(g) : 1 + fz_below(g, 5);
    int x = fz_any(g, 4, 4);
    if (x < 0 || fz_type_of(g->p, x)->bound > 5 || fz_chance(g, 30))
        x = fz_like(g, g->dtype, RW_SHAPE(1 + fz_below(g, 2), length, 1 + fz_below(g, 4), 1 + fz_below(g, 3)));
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int64_t *const d = t.shape.dim, n = 1 + fz_below(g, 4), groups = d[2] && fz_chance(g, 40) ? d[2] : 1;
    const rw_shape shared = RW_SHAPE(d[0], d[1], groups, n);
    int in[FZ_INS] = { x };
    in[DT] = fz_like(g, t.dtype, RW_SHAPE(d[0], d[1], d[2]));
    in[A] = fz_like(g, t.dtype, RW_SHAPE(d[2]));
    in[B] = fz_like(g, t.dtype, shared);
    in[C] = fz_like(g, t.dtype, shared);
    if (fz_chance(g, 50)) return fz_emit_list(g, op, STATE, in);
    in[STATE] = fz_like(g, t.dtype, RW_SHAPE(d[0], d[2], d[3], n));
    return fz_emit_list(g, op, STATE + 1, in);
}

static bool fits(const struct fz_program *p, const struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, X), *const b = fz_in(p, s, B);
    if (s->n_in < STATE || !rw_dtype_is_float(x->dtype) || x->shape.rank != 4 || b->shape.rank != 4) return false;
    for (int i = 1; i < s->n_in; i++)
        if (fz_in(p, s, i)->dtype != x->dtype) return false;
    const int64_t *const d = x->shape.dim, groups = b->shape.dim[2], n = b->shape.dim[3];
    if (groups < 1 || d[2] % groups || n < 1 || !fz_same(b, fz_in(p, s, C))) return false;
    if (b->shape.dim[0] != d[0] || b->shape.dim[1] != d[1]) return false;
    if (!rw_shape_equal(fz_in(p, s, DT)->shape, RW_SHAPE(d[0], d[1], d[2]))) return false;
    if (!rw_shape_equal(fz_in(p, s, A)->shape, RW_SHAPE(d[2]))) return false;
    return s->n_in == STATE || rw_shape_equal(fz_in(p, s, STATE)->shape, RW_SHAPE(d[0], d[2], d[3], n));
}

/* The state does not grow: dt is at least 0 and a at most. k[0]: places of a chunk */
static bool resolve_scan(const struct fz_program *p, struct fz_statement *s)
{
    if (!fits(p, s)) return false;
    const struct fz_type *const x = fz_in(p, s, X), *const b = fz_in(p, s, B), *const c = fz_in(p, s, C);
    const struct fz_type *const dt = fz_in(p, s, DT), *const a = fz_in(p, s, A);
    const int64_t *const d = x->shape.dim, n = b->shape.dim[3];
    const double places = 2 * sqrt((double)d[1] + 1), width = 2 * sqrt((double)n + 1); /* as of any product */
    double state = places * dt->bound * x->bound * b->bound;
    double slope = places * (dt->slope * x->bound * b->bound + dt->bound * (x->slope * b->bound + x->bound * b->slope));
    if (s->n_in > STATE) state += fz_in(p, s, STATE)->bound, slope += fz_in(p, s, STATE)->slope;
    slope += state * (double)(d[1] + 1) * (dt->slope * a->bound + a->slope * dt->bound);
    s->k[0] = s->word[0] % 8; /* 0: the default number */
    return fz_out(s, 0, x->dtype, x->shape, width * state * c->bound, width * (slope * c->bound + state * c->slope)) &&
           fz_out(s, 1, x->dtype, RW_SHAPE(d[0], d[2], d[3], n), state, slope);
}

static void record_scan(struct fz_call *c)
{
    const rw_ssd_operands operands = { .x = c->in[X],
                                       .dt = rw_abs_at(c->at, c->t, c->in[DT]),
                                       .a = rw_neg_at(c->at, c->t, rw_abs_at(c->at, c->t, c->in[A])),
                                       .b = c->in[B],
                                       .c = c->in[C],
                                       .state = c->s->n_in > STATE ? c->in[STATE] : RW_NONE };
    c->out[0] = rw_ssd_scan_at(c->at, c->t, &operands, c->s->k[0], &c->out[1]);
}

const struct fz_op fz_scan_ops[] = {
    { "ssd_scan", 6, 0, 63, choose_scan, resolve_scan, record_scan,
      "rw_ssd_scan(t, &(rw_ssd_operands){ .x = $0, .dt = rw_abs(t, $1), .a = rw_neg(t, rw_abs(t, $2)), .b = $3, "
      ".c = $4, .state = $5 }, %0, " },
    { NULL },
};
