/*
 * The gradient of ssd_scan that can be differentiated again: composed of ops that have gradients themselves, with one
 * number in memory for each pair of places of a chunk and each head. With 16-bit types everything is computed in
 * float32, as inside the fused kernels; sums of dt a and their differences are in float64: see rw_ssd_add(). Formulas
 * and names are those of ssd_scan.h. Axes: [batch, chunk, group, head of a group, place, ...].
 */
#include "ops/common/pass_ops.h"
#include "ops/common/util.h"
#include "ops/recurrent/ssd_scan.h"
#include "ops/reduce/cumsum.h"

#include <rewind/compare.h>
#include <rewind/create.h>
#include <rewind/reductions.h>
#include <rewind/select.h>

#include <math.h>

#define HEAD 3
#define PLACE 4

struct scan {
    rw_grad_call *g;
    rw_tape *t;
    struct rw_ssd s;
    rw_dtype wide;
    rw_tensor *x, *dt, *a, *b, *c, *dy; /* by chunks; x is not multiplied by dt; dt and a are columns or rows of
                                           places */
    rw_tensor *added;                   /* dt x */
    rw_tensor *comes;                   /* 1, or 0 where the state decays to 0 in a step: [..., place] */
    rw_tensor *share, *rest, *whole;    /* exp of the sums, remaining steps, all: [..., place, 1], [..., 1, 1] */
    rw_tensor *before, *after;          /* states before the chunks, gradients of those after them */
    rw_tensor *dsum, *dlast;            /* gradients of the sums [..., place] and of the last one [..., 1] */
};

/* ---- operands by chunks ---- */

static rw_tensor *zeros(const struct scan *s, rw_shape shape)
{
    return rw_full_at(RW_HERE, s->t, s->wide, shape, 0);
}

/* x [batch, length, ...], padded with zeros: a place with a dt of 0 does not change the state. */
static rw_tensor *whole(const struct scan *s, rw_tensor *x)
{
    int64_t pad[2 * RW_MAX_RANK] = { 0 };
    const int rank = rw_tensor_shape(x).rank;
    pad[2 * (rank - 2) + 1] = s->s.chunks * s->s.q - s->s.l;
    return rw_pad(s->t, rw_grad_widened(s->g, x), pad, 2 * (rank - 1), RW_PAD_CONSTANT, 0);
}

/* [batch, length, groups * heads, width] as [batch, chunk, group, head, place, width] */
static rw_tensor *by_chunks(const struct scan *s, rw_tensor *x, int64_t heads, int64_t width)
{
    x = rw_reshape(s->t, whole(s, x), RW_SHAPE(s->s.b, s->s.chunks, s->s.q, s->s.g, heads, width));
    return rw_permute(s->t, x, (const int[]){ 0, 1, 3, 4, 2, 5 });
}

/* The inverse, to a shape [batch, length, ...]. */
static rw_tensor *by_places(const struct scan *s, rw_tensor *x, rw_shape shape)
{
    const int64_t length = s->s.chunks * s->s.q;
    x = rw_permute(s->t, x, (const int[]){ 0, 1, 4, 2, 3, 5 });
    shape.dim[1] = length;
    x = rw_reshape(s->t, x, shape);
    return length > s->s.l ? rw_slice(s->t, x, 1, 0, s->s.l) : x;
}

static rw_tensor *column(const struct scan *s, rw_tensor *x)
{
    return rw_unsqueeze(s->t, x, -1);
}

static rw_tensor *transposed(const struct scan *s, rw_tensor *x)
{
    return rw_transpose(s->t, x, -1, -2);
}

static rw_tensor *times(const struct scan *s, rw_tensor *x, rw_tensor *y)
{
    return rw_mul(s->t, x, y);
}

/* Sums along the last axis, which is removed. */
static rw_tensor *dots(const struct scan *s, rw_tensor *x, rw_tensor *y)
{
    return rw_sum(s->t, times(s, x, y), RW_AXES(-1), false);
}

/* Sums over the heads of a group. */
static rw_tensor *over_heads(const struct scan *s, rw_tensor *x)
{
    return rw_sum(s->t, x, RW_AXES(HEAD), true);
}

static rw_tensor *narrowed(const struct scan *s, rw_tensor *x)
{
    return rw_cast(s->t, x, s->wide);
}

/* ---- recomputation of forward ---- */

/* exp of the sum of dt a after place j and up to place i, for j up to i; 0 elsewhere. sums [..., place]. */
static rw_tensor *shares(const struct scan *s, rw_tensor *sums)
{
    rw_tensor *const place = rw_arange(s->t, RW_I32, 0, (double)s->s.q, 1);
    rw_tensor *const later = rw_lt(s->t, column(s, place), place);
    rw_tensor *const apart = narrowed(s, rw_sub(s->t, column(s, sums), rw_unsqueeze(s->t, sums, -2)));
    return rw_exp(s->t, rw_masked_fill(s->t, apart, later, -INFINITY));
}

/* A state [batch, heads, p, n]; zeros if it is absent. */
static rw_tensor *state_of(const struct scan *s, rw_tensor *x)
{
    const rw_shape shape = RW_SHAPE(s->s.b, s->s.g, s->s.r, s->s.p, s->s.n);
    return x ? rw_reshape(s->t, rw_grad_widened(s->g, x), shape) : zeros(s, shape);
}

/* See pass(). met, each, left: arrays for one tensor per chunk. */
static rw_tensor *pass_chunks(const struct scan *s, rw_tensor *more, bool backwards, rw_tensor **state,
                              rw_tensor **met, rw_tensor **each, rw_tensor **left)
{
    const int n = (int)s->s.chunks;
    if (rw_unbind(s->t, more, 1, each, n) || rw_unbind(s->t, s->whole, 1, left, n)) return NULL;
    for (int k = 0; k < n; k++) {
        const int i = backwards ? n - 1 - k : k;
        met[i] = *state;
        *state = rw_add(s->t, times(s, *state, left[i]), each[i]);
    }
    return rw_stack(s->t, met, n, 1);
}

/* Over the chunks in order, or from the last: *state becomes whole state + more. Returns the states before each update,
   concatenated. */
static rw_tensor *pass(const struct scan *s, rw_tensor *more, bool backwards, rw_tensor **state)
{
    const size_t n = (size_t)s->s.chunks;
    rw_tensor **const room = rw_scratch_at(RW_HERE, s->t, "ssd_scan", 3 * n, sizeof *room);
    rw_tensor *const all = room ? pass_chunks(s, more, backwards, state, room, room + n, room + 2 * n) : NULL;
    rw_free(room);
    return all;
}

/* The sums of dt a, in float64. */
static rw_tensor *sums_of(struct scan *s)
{
    const struct rw_cumsum_attrs along = { PLACE, 0 };
    const double most = rw_ssd_most(s->s.q);
    rw_tensor *const dt = rw_cast(s->t, rw_select(s->t, s->dt, -1, 0), RW_F64);
    rw_tensor *const steps = rw_mul(s->t, dt, rw_cast(s->t, s->a, RW_F64)), *some = rw_clamp(s->t, steps, -most, most);
    s->comes = narrowed(s, rw_ge(s->t, steps, rw_full_at(RW_HERE, s->t, RW_F64, RW_SHAPE(1), -most)));
    return rw_apply(s->t, &rw_op_cumsum, &some, 1, &along, sizeof along, NULL);
}

/* Computes everything that the gradient reads. Returns the sums. */
static rw_tensor *prepare(struct scan *s)
{
    const struct rw_ssd *const e = &s->s;
    rw_tensor *const dy = rw_grad_upstream(s->g, 0);
    s->a = rw_reshape(s->t, rw_grad_widened(s->g, rw_grad_input(s->g, SSD_A)), RW_SHAPE(e->g, e->r, 1));
    s->x = by_chunks(s, rw_grad_input(s->g, SSD_X), e->r, e->p);
    s->dt = by_chunks(s, column(s, rw_grad_input(s->g, SSD_DT)), e->r, 1);
    s->b = by_chunks(s, rw_grad_input(s->g, SSD_B), 1, e->n);
    s->c = by_chunks(s, rw_grad_input(s->g, SSD_C), 1, e->n);
    s->dy = dy ? by_chunks(s, dy, e->r, e->p) : zeros(s, RW_SHAPE(e->b, e->chunks, e->g, e->r, e->q, e->p));
    s->added = times(s, s->x, s->dt);
    rw_tensor *const sums = sums_of(s), *const last = rw_slice(s->t, sums, -1, e->q - 1, e->q);
    s->share = column(s, rw_exp(s->t, narrowed(s, sums)));
    s->rest = column(s, rw_exp(s->t, narrowed(s, rw_sub(s->t, last, sums))));
    s->whole = column(s, rw_exp(s->t, narrowed(s, last)));
    return sums;
}

/* ---- gradients ---- */

/* From the pairs of places within a chunk: the gradient of the sums; and the contributions to dt x, b and c. */
static rw_tensor *inside(struct scan *s, rw_tensor *sums, rw_tensor **db, rw_tensor **dc)
{
    rw_tensor *const share = shares(s, sums), *const scores = rw_matmul(s->t, s->c, transposed(s, s->b));
    rw_tensor *const m = times(s, scores, share), *const dm = rw_matmul(s->t, s->dy, transposed(s, s->added));
    rw_tensor *const dscores = over_heads(s, times(s, dm, share)), *const both = times(s, dm, m);
    s->dsum = rw_sub(s->t, rw_sum(s->t, both, RW_AXES(-1), false), rw_sum(s->t, both, RW_AXES(-2), false));
    *dc = rw_matmul(s->t, dscores, s->b);
    *db = rw_matmul(s->t, transposed(s, dscores), s->c);
    return rw_matmul(s->t, transposed(s, m), s->dy);
}

/* The states, and their gradients. *first: the gradient of the state before the first place. */
static bool both_passes(struct scan *s, rw_tensor **first)
{
    const int state = s->s.state;
    rw_tensor *forth = state_of(s, state < 0 ? NULL : rw_grad_input(s->g, state));
    rw_tensor *const more = rw_matmul(s->t, transposed(s, times(s, s->added, s->rest)), s->b);
    rw_tensor *const less = rw_matmul(s->t, transposed(s, times(s, s->dy, s->share)), s->c);
    *first = state_of(s, rw_grad_upstream(s->g, 1));
    s->before = pass(s, more, false, &forth);
    s->after = pass(s, less, true, first);
    return s->before && s->after;
}

/* From the states: adds to the gradients of dt x, b, c and the sums. */
static void outside(struct scan *s, rw_tensor **dx, rw_tensor **db, rw_tensor **dc)
{
    rw_tensor *const of_c = rw_matmul(s->t, times(s, s->dy, s->share), s->before);
    rw_tensor *const of_b = rw_matmul(s->t, times(s, s->added, s->rest), s->after);
    rw_tensor *const of_x = times(s, rw_matmul(s->t, s->b, transposed(s, s->after)), s->rest);
    rw_tensor *const of_rest = dots(s, s->added, of_x);
    rw_tensor *const kept = times(s, s->after, s->whole); /* first: before it decays, a state may be large */
    rw_tensor *const of_whole = rw_sum(s->t, times(s, s->before, kept), RW_AXES(-1, -2), false);
    *dx = rw_add(s->t, *dx, of_x);
    *db = rw_add(s->t, *db, over_heads(s, of_b));
    *dc = rw_add(s->t, *dc, over_heads(s, of_c));
    s->dsum = rw_sub(s->t, rw_add(s->t, s->dsum, dots(s, of_c, s->c)), of_rest);
    s->dlast = rw_add(s->t, column(s, of_whole), rw_sum(s->t, of_rest, RW_AXES(-1), true));
}

/* The gradients of dt and a, from the sums of their products. */
static rw_status set_steps(struct scan *s, rw_tensor *dx)
{
    const struct rw_cumsum_attrs along = { PLACE, 1 };
    rw_tensor *const later = rw_apply(s->t, &rw_op_cumsum, &s->dsum, 1, &along, sizeof along, NULL);
    rw_tensor *const steps = times(s, rw_add(s->t, later, s->dlast), s->comes);
    if (rw_grad_wanted(s->g, SSD_DT)) {
        rw_tensor *const dt = column(s, rw_add(s->t, times(s, steps, s->a), dots(s, dx, s->x)));
        rw_tensor *const all = by_places(s, dt, RW_SHAPE(s->s.b, 0, s->s.h, 1));
        RW_CHECK(rw_grad_set_narrowed(s->g, SSD_DT, rw_select(s->t, all, -1, 0)));
    }
    if (!rw_grad_wanted(s->g, SSD_A)) return RW_OK;
    rw_tensor *const da = rw_sum(s->t, times(s, steps, rw_select(s->t, s->dt, -1, 0)), RW_AXES(0, 1, PLACE), false);
    return rw_grad_set_narrowed(s->g, SSD_A, rw_reshape(s->t, da, RW_SHAPE(s->s.h)));
}

/* For an empty sequence: the state is unchanged. */
static rw_status set_empty(const struct scan *s)
{
    rw_tensor *const dstate = rw_grad_upstream(s->g, 1);
    for (int i = 0; i < rw_grad_n_inputs(s->g); i++) {
        rw_tensor *const x = rw_grad_input(s->g, i);
        if (!rw_grad_wanted(s->g, i)) continue;
        const bool flows = i == s->s.state && dstate;
        RW_CHECK(rw_grad_set(s->g, i, flows ? dstate
                                            : rw_full_at(RW_HERE, s->t, rw_tensor_dtype(x), rw_tensor_shape(x), 0)));
    }
    return RW_OK;
}

/* The rule for differentiable gradients: recomputes forward, then composes the gradients of all inputs. */
rw_status rw_ssd_grad_again(rw_grad_call *g)
{
    rw_tensor *const x = rw_grad_input(g, SSD_X), *const b = rw_grad_input(g, SSD_B), *db = NULL, *dc = NULL;
    const rw_dtype wide = rw_tensor_dtype(x) == RW_F64 ? RW_F64 : RW_F32;
    struct scan s = { .g = g, .t = rw_grad_tape(g), .wide = wide,
                      .s = rw_ssd_of(rw_tensor_layout(x), rw_tensor_layout(b), rw_grad_attrs(g)) };
    rw_tensor *first = NULL;
    if (!s.s.l) return set_empty(&s);
    rw_tensor *const sums = prepare(&s);
    rw_tensor *dx = inside(&s, sums, &db, &dc);
    if (!both_passes(&s, &first)) return rw_grad_set(g, SSD_X, NULL);
    outside(&s, &dx, &db, &dc);
    if (rw_grad_wanted(g, SSD_X))
        RW_CHECK(rw_grad_set_narrowed(g, SSD_X, by_places(&s, times(&s, dx, s.dt), rw_tensor_shape(x))));
    RW_CHECK(set_steps(&s, dx));
    if (rw_grad_wanted(g, SSD_B))
        RW_CHECK(rw_grad_set_narrowed(g, SSD_B, by_places(&s, db, rw_tensor_shape(b))));
    if (rw_grad_wanted(g, SSD_C))
        RW_CHECK(rw_grad_set_narrowed(g, SSD_C, by_places(&s, dc, rw_tensor_shape(b))));
    if (s.s.state < 0 || !rw_grad_wanted(g, s.s.state)) return RW_OK;
    return rw_grad_set_narrowed(g, s.s.state,
                                rw_reshape(s.t, first, RW_SHAPE(s.s.b, s.s.h, s.s.p, s.s.n)));
}
