/*
 * ssd_scan: a selective state-space model's scan, by chunks (Dao and Gu, arXiv 2405.21060, section 6): products inside
 * a chunk, one state for each chunk, and a pass over the states in the order of the chunks. Composed of ordinary ops,
 * whose rules are its own, so every gradient has one. Axes: [batch, chunk, group, head of a group, place, ...].
 */
#include "ops/common/util.h"
#include "record/own_ops.h"

#include <rewind/compare.h>
#include <rewind/create.h>
#include <rewind/precision.h>
#include <rewind/recurrent.h>
#include <rewind/reductions.h>
#include <rewind/select.h>

#include <math.h>

#define MOST_CHUNKS 8189 /* pieces of rw_split(), which refuses more */

struct scan {
    rw_site at;
    rw_tape *t;
    rw_dtype dtype, wide; /* of operands; of what is between */
    int64_t b, l, h, p, g, n; /* batch, length, heads, width of a head, groups, width of a state */
    int64_t q, chunks, r;     /* places of a chunk, chunks, heads of a group */
};

/* ---- checks ---- */

static bool refuse_shape(const struct scan *s, const char *what)
{
    rw_refuse_at(s->at, s->t, RW_ERR_SHAPE, "ssd_scan: %s", what);
    return false;
}

static bool check_operands(const struct scan *s, const rw_ssd_operands *o)
{
    rw_tensor *const all[] = { o->x, o->dt, o->a, o->b, o->c, o->state };
    static const char *const names[] = { "x", "dt", "a", "b", "c", "state" };
    for (int i = 0; i < 6; i++) {
        if (i == 5 && o->state == rw_none()) continue;
        if (!rw_operand_check(s->at, s->t, all[i], "ssd_scan", names[i])) return false;
        if (rw_tensor_dtype(all[i]) == s->dtype && rw_dtype_is_float(s->dtype)) continue;
        rw_refuse_at(s->at, s->t, RW_ERR_DTYPE, "ssd_scan: %s is of %s, x of %s: one floating-point type is needed",
                     names[i], rw_dtype_name(rw_tensor_dtype(all[i])), rw_dtype_name(s->dtype));
        return false;
    }
    return true;
}

static bool check_shapes(struct scan *s, const rw_ssd_operands *o)
{
    const rw_shape x = rw_tensor_shape(o->x), b = rw_tensor_shape(o->b);
    if (x.rank != 4 || b.rank != 4)
        return refuse_shape(s, "x [batch, length, heads, p] and b [batch, length, groups, n] are needed");
    s->b = x.dim[0], s->l = x.dim[1], s->h = x.dim[2], s->p = x.dim[3], s->g = b.dim[2], s->n = b.dim[3];
    if (b.dim[0] != s->b || b.dim[1] != s->l || !rw_shape_equal(b, rw_tensor_shape(o->c)))
        return refuse_shape(s, "b and c are not [batch, length, groups, n] of x's batch and length");
    if (s->l < 1 || s->g < 1 || s->h % s->g) return refuse_shape(s, "no length, or heads that groups do not divide");
    if (!rw_shape_equal(rw_tensor_shape(o->dt), RW_SHAPE(s->b, s->l, s->h)))
        return refuse_shape(s, "dt is not [batch, length, heads]");
    if (!rw_shape_equal(rw_tensor_shape(o->a), RW_SHAPE(s->h))) return refuse_shape(s, "a is not [heads]");
    if (o->state != rw_none() && !rw_shape_equal(rw_tensor_shape(o->state), RW_SHAPE(s->b, s->h, s->p, s->n)))
        return refuse_shape(s, "the state is not [batch, heads, p, n]");
    return true;
}

static bool cut(struct scan *s, int64_t chunk)
{
    s->q = chunk ? chunk : RW_SSD_CHUNK;
    if (s->q > s->l) s->q = s->l;
    s->chunks = chunk < 0 ? 0 : s->l / s->q + (s->l % s->q != 0);
    s->r = s->h / s->g;
    if (s->chunks >= 1 && s->chunks <= MOST_CHUNKS) return true;
    rw_refuse_at(s->at, s->t, RW_ERR_ARGUMENT, "ssd_scan: chunks of %lld of a length of %lld: 1 to %d are possible",
                 (long long)chunk, (long long)s->l, MOST_CHUNKS);
    return false;
}

/* ---- operands by chunks ---- */

/* x [batch, length, ...] in the wide type, filled up with zeros: a place whose dt is 0 changes no state. */
static rw_tensor *whole(const struct scan *s, rw_tensor *x)
{
    int64_t pad[2 * RW_MAX_RANK] = { 0 };
    const int rank = rw_tensor_shape(x).rank;
    pad[2 * (rank - 2) + 1] = s->chunks * s->q - s->l;
    if (s->dtype != s->wide) x = rw_cast_at(s->at, s->t, x, s->wide);
    return rw_pad_at(s->at, s->t, x, pad, 2 * (rank - 1), RW_PAD_CONSTANT, 0);
}

/* [batch, length, heads, p] as [batch, chunk, group, head, place, p] */
static rw_tensor *by_heads(const struct scan *s, rw_tensor *x)
{
    x = rw_reshape_at(s->at, s->t, x, RW_SHAPE(s->b, s->chunks, s->q, s->g, s->r, s->p));
    return rw_permute_at(s->at, s->t, x, (const int[]){ 0, 1, 3, 4, 2, 5 });
}

/* [batch, length, groups, n] as [batch, chunk, group, 1, place, n] */
static rw_tensor *by_groups(const struct scan *s, rw_tensor *x)
{
    x = rw_reshape_at(s->at, s->t, x, RW_SHAPE(s->b, s->chunks, s->q, s->g, 1, s->n));
    return rw_permute_at(s->at, s->t, x, (const int[]){ 0, 1, 3, 4, 2, 5 });
}

static rw_tensor *column(const struct scan *s, rw_tensor *x)
{
    return rw_unsqueeze_at(s->at, s->t, x, -1);
}

static rw_tensor *turned(const struct scan *s, rw_tensor *x)
{
    return rw_transpose_at(s->at, s->t, x, -1, -2);
}

/* ---- the parts ---- */

/* exp of the sum of dt a behind place j and up to place i, for j up to i; 0 elsewhere. sums [..., place] */
static rw_tensor *decay(const struct scan *s, rw_tensor *sums)
{
    rw_tensor *const place = rw_arange_at(s->at, s->t, RW_I32, 0, (double)s->q, 1);
    rw_tensor *const later = rw_lt_at(s->at, s->t, column(s, place), place);
    rw_tensor *const apart = rw_sub_at(s->at, s->t, column(s, sums), rw_unsqueeze_at(s->at, s->t, sums, -2));
    return rw_exp_at(s->at, s->t, rw_masked_fill_at(s->at, s->t, apart, later, -INFINITY));
}

static rw_tensor *inside(const struct scan *s, rw_tensor *x, rw_tensor *b, rw_tensor *c, rw_tensor *sums)
{
    rw_tensor *const scores = rw_matmul_at(s->at, s->t, c, turned(s, b));
    return rw_matmul_at(s->at, s->t, rw_mul_at(s->at, s->t, scores, decay(s, sums)), x);
}

/* What each chunk adds to the state: [batch, chunk, group, head, p, n]. last: the sums at the chunks' ends. */
static rw_tensor *added(const struct scan *s, rw_tensor *x, rw_tensor *b, rw_tensor *sums, rw_tensor *last)
{
    rw_tensor *const rest = rw_exp_at(s->at, s->t, rw_sub_at(s->at, s->t, last, sums));
    return rw_matmul_at(s->at, s->t, turned(s, rw_mul_at(s->at, s->t, x, column(s, rest))), b);
}

/* The states before each chunk, side by side; *state: before the first, then behind the last. */
static rw_tensor *pass(const struct scan *s, rw_tensor *each, rw_tensor *last, rw_tensor **state)
{
    const int n = (int)s->chunks;
    rw_tensor *before[n], *more[n], *kept[n];
    rw_tensor *const shares = column(s, rw_exp_at(s->at, s->t, last));
    if (rw_unbind_at(s->at, s->t, each, 1, n, more) || rw_unbind_at(s->at, s->t, shares, 1, n, kept)) return NULL;
    for (int i = 0; i < n; i++) {
        before[i] = *state;
        *state = rw_add_at(s->at, s->t, rw_mul_at(s->at, s->t, *state, kept[i]), more[i]);
    }
    return rw_stack_at(s->at, s->t, before, n, 1);
}

static rw_tensor *first_state(const struct scan *s, rw_tensor *state)
{
    const rw_shape shape = RW_SHAPE(s->b, s->g, s->r, s->p, s->n);
    if (state == rw_none()) return rw_zeros_at(s->at, s->t, s->wide, shape);
    if (s->dtype != s->wide) state = rw_cast_at(s->at, s->t, state, s->wide);
    return rw_reshape_at(s->at, s->t, state, shape);
}

static rw_tensor *narrowed(const struct scan *s, rw_tensor *x)
{
    return s->dtype != s->wide ? rw_cast_at(s->at, s->t, x, s->dtype) : x;
}

static rw_tensor *record(const struct scan *s, const rw_ssd_operands *o, rw_tensor **ret_state)
{
    rw_tensor *const dt = whole(s, o->dt), *state = first_state(s, o->state);
    rw_tensor *const a = s->dtype != s->wide ? rw_cast_at(s->at, s->t, o->a, s->wide) : o->a;
    rw_tensor *const x = by_heads(s, rw_mul_at(s->at, s->t, whole(s, o->x), column(s, dt)));
    rw_tensor *const b = by_groups(s, whole(s, o->b)), *const c = by_groups(s, whole(s, o->c));
    rw_tensor *const steps = rw_reshape_at(s->at, s->t, rw_mul_at(s->at, s->t, dt, a),
                                           RW_SHAPE(s->b, s->chunks, s->q, s->g, s->r));
    rw_tensor *const turned_steps = rw_permute_at(s->at, s->t, steps, (const int[]){ 0, 1, 3, 4, 2 });
    rw_tensor *const sums = rw_cumsum_at(s->at, s->t, turned_steps, -1);
    rw_tensor *const last = rw_slice_at(s->at, s->t, sums, -1, s->q - 1, s->q);
    rw_tensor *const before = pass(s, added(s, x, b, sums, last), last, &state);
    if (!before) return NULL;
    rw_tensor *const outside = rw_mul_at(s->at, s->t, rw_matmul_at(s->at, s->t, c, turned(s, before)),
                                         column(s, rw_exp_at(s->at, s->t, sums)));
    rw_tensor *y = rw_add_at(s->at, s->t, inside(s, x, b, c, sums), outside);
    y = rw_permute_at(s->at, s->t, y, (const int[]){ 0, 1, 4, 2, 3, 5 });
    y = rw_reshape_at(s->at, s->t, y, RW_SHAPE(s->b, s->chunks * s->q, s->h, s->p));
    if (s->chunks * s->q > s->l) y = rw_slice_at(s->at, s->t, y, 1, 0, s->l);
    if (ret_state)
        *ret_state = narrowed(s, rw_reshape_at(s->at, s->t, state, RW_SHAPE(s->b, s->h, s->p, s->n)));
    return narrowed(s, y);
}

/* Under a recipe in float32, as norms and sums are: operands may then be of several types, and no product is lowered.
 */
static bool raise(const struct scan *s, rw_ssd_operands *o)
{
    rw_tensor **const all[] = { &o->x, &o->dt, &o->a, &o->b, &o->c, &o->state };
    for (int i = 0; i < 6; i++)
        if (*all[i] && *all[i] != rw_none() && !(*all[i] = rw_raised_at(s->at, s->t, *all[i]))) return false;
    return true;
}

static rw_tensor *scan(struct scan *s, rw_ssd_operands o, int64_t chunk, rw_tensor **ret_state)
{
    if (!raise(s, &o)) return NULL;
    s->dtype = rw_tensor_dtype(o.x);
    s->wide = s->dtype == RW_F64 ? RW_F64 : RW_F32;
    if (!check_operands(s, &o) || !check_shapes(s, &o) || !cut(s, chunk)) return NULL;
    if (rw_recipe_begin_at(s->at, s->t, &(rw_recipe){ .kind = RW_RECIPE_NONE })) return NULL;
    rw_tensor *const y = record(s, &o, ret_state);
    return rw_recipe_end_at(s->at, s->t) ? NULL : y;
}

rw_tensor *rw_ssd_scan_at(rw_site at, rw_tape *t, const rw_ssd_operands *operands, int64_t chunk,
                          rw_tensor **ret_state)
{
    struct scan s = { .at = at, .t = t };
    if (ret_state) *ret_state = NULL;
    if (!operands) {
        rw_refuse_at(at, t, RW_ERR_ARGUMENT, "ssd_scan: operands is NULL");
        return NULL;
    }
    const struct rw_composite c = rw_composite_begin(t, "ssd_scan");
    rw_tensor *const y = rw_composite_end(&c, scan(&s, *operands, chunk, ret_state));
    if (!y && ret_state) *ret_state = NULL;
    return y;
}
