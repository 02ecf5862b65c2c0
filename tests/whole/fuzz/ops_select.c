/* Statements of comparisons and selections, slices, and indexing. */
#include "whole/fuzz/generate.h"

#include <rewind/compare.h>
#include <rewind/create.h>
#include <rewind/gather.h>
#include <rewind/select.h>

#include <string.h>

typedef rw_tensor *(*unary_fn)(rw_site, rw_tape *, rw_tensor *);
typedef rw_tensor *(*binary_fn)(rw_site, rw_tape *, rw_tensor *, rw_tensor *);

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static bool is_float(const struct fz_type *x)
{
    return rw_dtype_is_float(x->dtype);
}

static bool like(const struct fz_program *p, struct fz_statement *s, rw_shape shape)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    return is_float(x) && fz_out(s, 0, x->dtype, shape, x->bound, x->slope);
}

static int axis_of(const struct fz_statement *s, rw_shape x)
{
    return (int)(s->word[0] % (uint32_t)x.rank);
}

/* An axis as the caller writes it: sometimes counted from the end. */
static int64_t written(const struct fz_statement *s, int axis, int rank)
{
    return s->word[0] >> 9 & 1 ? axis - rank : axis;
}

static int choose_any(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static int choose_ranked(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 1, 6));
}

static int choose_equal(struct fz_generator *g, int op)
{
    const int a = fz_any(g, 0, 6);
    return a < 0 ? -1 : fz_emit(g, op, 2, a, fz_like(g, fz_type_of(g->p, a)->dtype, fz_type_of(g->p, a)->shape));
}

/* ---- booleans ---- */

static int choose_masks(struct fz_generator *g, int op)
{
    const int a = fz_any_mask(g);
    return a < 0 ? -1 : fz_emit(g, op, 2, a, fz_mask(g, fz_type_of(g->p, a)->shape));
}

static int choose_mask(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any_mask(g));
}

/* The condition, and two operands of its shape, or of one that broadcasts with it. */
static int choose_where(struct fz_generator *g, int op)
{
    const int mask = fz_any_mask(g);
    if (mask < 0) return -1;
    const rw_shape shape = fz_type_of(g->p, mask)->shape;
    rw_shape row = shape;
    if (row.rank > 1 && fz_chance(g, 30)) row = RW_SHAPE(row.dim[row.rank - 1]);
    return fz_emit(g, op, 3, mask, fz_like(g, g->dtype, shape), fz_like(g, g->dtype, row));
}

static int choose_filled(struct fz_generator *g, int op)
{
    const int mask = fz_any_mask(g);
    return mask < 0 ? -1 : fz_emit(g, op, 2, fz_like(g, g->dtype, fz_type_of(g->p, mask)->shape), mask);
}

static bool resolve_comparison(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape joint;
    if (!is_float(fz_in(p, s, 0)) || fz_in(p, s, 0)->dtype != fz_in(p, s, 1)->dtype) return false;
    return fz_broadcast(fz_in(p, s, 0)->shape, fz_in(p, s, 1)->shape, &joint) && fz_out(s, 0, RW_BOOL, joint, 1, 0);
}

static bool resolve_truth(const struct fz_program *p, struct fz_statement *s)
{
    s->f = (int)(s->word[1] % 5) * 0.25 - 0.5;
    return is_float(fz_in(p, s, 0)) && fz_out(s, 0, RW_BOOL, fz_in(p, s, 0)->shape, 1, 0);
}

static bool resolve_logic(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape joint = fz_in(p, s, 0)->shape;
    for (int i = 0; i < s->n_in; i++)
        if (fz_in(p, s, i)->dtype != RW_BOOL || !fz_broadcast(joint, fz_in(p, s, i)->shape, &joint)) return false;
    return fz_out(s, 0, RW_BOOL, joint, 1, 0);
}

static bool resolve_where(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const c = fz_in(p, s, 0), *const a = fz_in(p, s, 1), *const b = fz_in(p, s, 2);
    rw_shape joint;
    if (c->dtype != RW_BOOL || !is_float(a) || a->dtype != b->dtype || !fz_broadcast(a->shape, b->shape, &joint) ||
        !fz_broadcast(c->shape, joint, &joint))
        return false;
    return fz_out(s, 0, a->dtype, joint, larger(a->bound, b->bound), a->slope + b->slope);
}

static bool resolve_filled(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const mask = fz_in(p, s, 1);
    rw_shape joint;
    s->f = (int)(s->word[1] % 5) * 0.75 - 1.5;
    if (!is_float(x) || mask->dtype != RW_BOOL || mask->shape.rank > x->shape.rank ||
        !fz_broadcast(x->shape, mask->shape, &joint) || !rw_shape_equal(joint, x->shape))
        return false;
    return fz_out(s, 0, x->dtype, x->shape, larger(x->bound, 2), x->slope);
}

static bool resolve_clamp(const struct fz_program *p, struct fz_statement *s)
{
    return like(p, s, fz_in(p, s, 0)->shape);
}

/* x and a lower bound[, and an upper one] */
static int choose_clamp(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 0, 6);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    rw_shape row = t.shape;
    if (row.rank > 1 && fz_chance(g, 50)) row = RW_SHAPE(row.dim[row.rank - 1]);
    const int low = fz_like(g, t.dtype, row);
    return fz_chance(g, 40) ? fz_emit(g, op, 2, x, low) : fz_emit(g, op, 3, x, low, fz_like(g, t.dtype, t.shape));
}

static bool resolve_clamp_tensor(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    rw_shape joint = x->shape;
    double bound = 0, slope = 0;
    for (int i = 0; i < s->n_in; i++) {
        const struct fz_type *const y = fz_in(p, s, i);
        if (!is_float(y) || y->dtype != x->dtype || !fz_broadcast(joint, y->shape, &joint)) return false;
        bound = larger(bound, y->bound);
        slope += y->slope;
    }
    return fz_out(s, 0, x->dtype, joint, bound, slope);
}

static void record_clamp_tensor(struct fz_call *c)
{
    c->out[0] = rw_clamp_tensor_at(c->at, c->t, c->in[0], c->in[1], c->s->n_in > 2 ? c->in[2] : RW_NONE);
}

static void record_unary(struct fz_call *c)
{
    c->out[0] = (*(const unary_fn *)fz_op(c->s->op)->function)(c->at, c->t, c->in[0]);
}

static void record_binary(struct fz_call *c)
{
    c->out[0] = (*(const binary_fn *)fz_op(c->s->op)->function)(c->at, c->t, c->in[0], c->in[1]);
}

static void record_above(struct fz_call *c)
{
    c->out[0] = rw_gt_scalar_at(c->at, c->t, c->in[0], c->s->f);
}

static void record_where(struct fz_call *c)
{
    c->out[0] = rw_where_at(c->at, c->t, c->in[0], c->in[1], c->in[2]);
}

static void record_filled(struct fz_call *c)
{
    c->out[0] = rw_masked_fill_at(c->at, c->t, c->in[0], c->in[1], c->s->f);
}

static void record_clamp(struct fz_call *c)
{
    c->out[0] = rw_clamp_at(c->at, c->t, c->in[0], -0.5, 0.75);
}

/* ---- slices ---- */

static bool resolve_select(const struct fz_program *p, struct fz_statement *s)
{
    const rw_shape x = fz_in(p, s, 0)->shape;
    if (!x.rank) return false;
    const int axis = axis_of(s, x);
    if (!x.dim[axis]) return false;
    s->k[0] = written(s, axis, x.rank);
    s->k[1] = (int64_t)(s->word[1] % (uint64_t)x.dim[axis]) - (s->word[2] & 1 ? x.dim[axis] : 0);
    return like(p, s, fz_without(x, axis));
}

static bool resolve_unsqueeze(const struct fz_program *p, struct fz_statement *s)
{
    const rw_shape x = fz_in(p, s, 0)->shape;
    const int axis = (int)(s->word[0] % (uint32_t)(x.rank + 1));
    s->k[0] = written(s, axis, x.rank + 1);
    return like(p, s, fz_with(x, axis, 1));
}

/* An axis of up to three elements. */
static bool resolve_unbind(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!x->shape.rank || !is_float(x)) return false;
    const int axis = axis_of(s, x->shape);
    const int64_t n = x->shape.dim[axis];
    if (n < 1 || n > FZ_OUTS) return false;
    s->k[0] = written(s, axis, x->shape.rank);
    for (int i = 0; i < n; i++)
        if (!fz_out(s, i, x->dtype, fz_without(x->shape, axis), x->bound, x->slope)) return false;
    return true;
}

static int choose_stack(struct fz_generator *g, int op)
{
    const int a = fz_any(g, 0, 5);
    if (a < 0) return -1;
    const struct fz_type x = *fz_type_of(g->p, a);
    int in[3] = { a, a, a };
    const int n = 1 + (int)fz_below(g, 3);
    for (int i = 1; i < n; i++) in[i] = fz_like(g, x.dtype, x.shape);
    return fz_emit_list(g, op, n, in);
}

static bool resolve_stack(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    double bound = 0, slope = 0;
    for (int i = 0; i < s->n_in; i++) {
        if (!is_float(x) || !fz_same(x, fz_in(p, s, i))) return false;
        bound = larger(bound, fz_in(p, s, i)->bound);
        slope += fz_in(p, s, i)->slope;
    }
    const int axis = (int)(s->word[0] % (uint32_t)(x->shape.rank + 1));
    s->k[0] = written(s, axis, x->shape.rank + 1);
    return fz_out(s, 0, x->dtype, fz_with(x->shape, axis, s->n_in), bound, slope);
}

/* Small windows: they overlap, touch, or leave gaps. */
static bool resolve_unfold(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape x = fz_in(p, s, 0)->shape;
    if (!x.rank) return false;
    const int axis = axis_of(s, x);
    s->k[0] = written(s, axis, x.rank);
    s->k[1] = 1 + s->word[1] % 4;
    s->k[2] = 1 + s->word[2] % 4;
    if (x.dim[axis] < s->k[1]) return false;
    x.dim[axis] = (x.dim[axis] - s->k[1]) / s->k[2] + 1;
    x.dim[x.rank++] = s->k[1];
    return like(p, s, x);
}

static bool resolve_moved(const struct fz_program *p, struct fz_statement *s)
{
    const rw_shape x = fz_in(p, s, 0)->shape;
    if (!x.rank) return false;
    s->k[0] = written(s, axis_of(s, x), x.rank);
    s->k[1] = (int64_t)(s->word[1] % 21) - 10;
    return like(p, s, x);
}

/* The last axis, in each mode; at least one element remains when it is cropped. */
static bool resolve_pad(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape x = fz_in(p, s, 0)->shape;
    if (!x.rank || x.dim[x.rank - 1] < 1) return false;
    const int64_t n = x.dim[x.rank - 1];
    s->k[0] = s->word[0] % RW_PAD_MODE_COUNT;
    for (int i = 1; i < 3; i++) {
        const int64_t most = s->k[0] == RW_PAD_REFLECT ? n - 1 : n;
        s->k[i] = (int64_t)(s->word[i] % 4);
        if (s->k[0] == RW_PAD_CONSTANT && n > 4) s->k[i] -= 2;
        if (s->k[i] > most) s->k[i] = most;
    }
    x.dim[x.rank - 1] += s->k[1] + s->k[2];
    const struct fz_type *const in = fz_in(p, s, 0);
    return is_float(in) && fz_out(s, 0, in->dtype, x, larger(in->bound, 1), 3 * in->slope);
}

static void record_select(struct fz_call *c)
{
    c->out[0] = rw_select_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->s->k[1]);
}

static void record_unsqueeze(struct fz_call *c)
{
    c->out[0] = rw_unsqueeze_at(c->at, c->t, c->in[0], (int)c->s->k[0]);
}

static void record_unbind(struct fz_call *c)
{
    rw_unbind_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->out, c->s->n_out);
}

static void record_stack(struct fz_call *c)
{
    c->out[0] = rw_stack_at(c->at, c->t, c->in, c->s->n_in, (int)c->s->k[0]);
}

static void record_unfold(struct fz_call *c)
{
    c->out[0] = rw_unfold_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->s->k[1], c->s->k[2]);
}

static void record_roll(struct fz_call *c)
{
    c->out[0] = rw_roll_at(c->at, c->t, c->in[0], c->s->k[1], (int)c->s->k[0]);
}

static void record_flip(struct fz_call *c)
{
    c->out[0] = rw_flip_at(c->at, c->t, c->in[0], (int)c->s->k[0]);
}

static void record_pad(struct fz_call *c)
{
    c->out[0] = rw_pad_at(c->at, c->t, c->in[0], c->s->k + 1, 2, (rw_pad_mode)c->s->k[0], -1);
}

/* ---- by index ---- */

static bool resolve_place(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!is_float(x) || !x->shape.rank) return false;
    const int axis = axis_of(s, x->shape);
    const int64_t n = x->shape.dim[axis];
    s->k[0] = written(s, axis, x->shape.rank);
    return n > 0 && fz_out(s, 0, RW_I32, fz_without(x->shape, axis), (double)n, 0);
}

static bool resolve_topk(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    rw_shape shape = x->shape;
    if (!is_float(x) || !shape.rank) return false;
    const int axis = axis_of(s, shape);
    const int64_t n = shape.dim[axis];
    s->k[0] = written(s, axis, shape.rank);
    s->k[1] = n ? 1 + (int64_t)(s->word[1] % (uint64_t)(n < 5 ? n : 5)) : 0;
    shape.dim[axis] = s->k[1];
    return n > 0 && fz_out(s, 0, x->dtype, shape, x->bound, x->slope) && fz_out(s, 1, RW_I32, shape, (double)n, 0);
}

/* x's shape except along axis 0, whose extent the row's words determine. */
static rw_shape index_shape(struct fz_generator *g, rw_shape x)
{
    x.dim[0] = fz_extent(g);
    if (x.rank > 1 && x.dim[1] > 1 && fz_chance(g, 30)) x.dim[1]--;
    return x;
}

static int choose_gather(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    if (x < 0 || !fz_type_of(g->p, x)->shape.dim[0]) return -1;
    const rw_shape shape = fz_type_of(g->p, x)->shape;
    return fz_emit(g, op, 2, x, fz_index(g, index_shape(g, shape), shape.dim[0]));
}

static int choose_scatter(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    if (x < 0 || !fz_type_of(g->p, x)->shape.dim[0]) return -1;
    const struct fz_type in = *fz_type_of(g->p, x);
    const rw_shape shape = index_shape(g, in.shape);
    return fz_emit(g, op, 3, x, fz_index(g, shape, in.shape.dim[0]), fz_like(g, in.dtype, shape));
}

static bool index_fits(const struct fz_type *x, const struct fz_type *index)
{
    if (!is_float(x) || index->dtype != RW_I32 || !x->shape.rank || index->shape.rank != x->shape.rank) return false;
    for (int i = 1; i < x->shape.rank; i++)
        if (index->shape.dim[i] > x->shape.dim[i]) return false;
    return index->bound <= (double)x->shape.dim[0];
}

static bool resolve_gather(const struct fz_program *p, struct fz_statement *s)
{
    return index_fits(fz_in(p, s, 0), fz_in(p, s, 1)) && like(p, s, fz_in(p, s, 1)->shape);
}

static bool resolve_scatter(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const index = fz_in(p, s, 1), *const src = fz_in(p, s, 2);
    if (!index_fits(x, index) || src->dtype != x->dtype || !rw_shape_equal(src->shape, index->shape)) return false;
    const double n = (double)index->shape.dim[0];
    return fz_out(s, 0, x->dtype, x->shape, x->bound + n * src->bound, x->slope + n * src->slope);
}

static int choose_list(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 6);
    if (x < 0) return -1;
    const rw_shape shape = fz_type_of(g->p, x)->shape;
    return fz_emit(g, op, 2, x, fz_index(g, RW_SHAPE(fz_extent(g)), shape.dim[fz_below(g, shape.rank)]));
}

/* The first axis, from the word's on, for which all indexes are in range. */
static bool resolve_list(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const index = fz_in(p, s, 1);
    rw_shape shape = x->shape;
    if (!shape.rank || index->dtype != RW_I32 || index->shape.rank != 1) return false;
    int axis = axis_of(s, shape), tries = 0;
    for (; tries < shape.rank && index->bound > (double)shape.dim[axis]; tries++) axis = (axis + 1) % shape.rank;
    if (tries == shape.rank) return false;
    s->k[0] = written(s, axis, shape.rank);
    shape.dim[axis] = index->shape.dim[0];
    return like(p, s, shape);
}

static int choose_bag(struct fz_generator *g, int op)
{
    const int table = fz_any(g, 2, 2);
    if (table < 0 || !fz_type_of(g->p, table)->shape.dim[0]) return -1;
    const rw_shape shape = RW_SHAPE(fz_extent(g), 1 + fz_below(g, 5));
    return fz_emit(g, op, 2, table, fz_index(g, shape, fz_type_of(g->p, table)->shape.dim[0]));
}

static bool resolve_bag(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const table = fz_in(p, s, 0), *const index = fz_in(p, s, 1);
    if (!is_float(table) || table->shape.rank != 2 || index->dtype != RW_I32 || index->shape.rank != 2 ||
        index->bound > (double)table->shape.dim[0])
        return false;
    const double m = (double)index->shape.dim[1];
    s->k[0] = s->word[0] & 1;
    return fz_out(s, 0, table->dtype, RW_SHAPE(index->shape.dim[0], table->shape.dim[1]), m * table->bound,
                  m * table->slope);
}

static int choose_hot(struct fz_generator *g, int op)
{
    const rw_shape shape = RW_SHAPE(fz_extent(g));
    return fz_emit(g, op, 1, fz_index(g, shape, 1 + fz_below(g, 9)));
}

static bool resolve_hot(const struct fz_program *p, struct fz_statement *s)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16 };
    const struct fz_type *const index = fz_in(p, s, 0);
    rw_shape shape = index->shape;
    if (index->dtype != RW_I32 || shape.rank > 4) return false;
    s->k[0] = (int64_t)index->bound;
    shape.dim[shape.rank++] = s->k[0];
    return fz_out(s, 0, types[s->word[0] % 3], shape, 1, 0);
}

static void record_argmax(struct fz_call *c)
{
    c->out[0] = rw_argmax_at(c->at, c->t, c->in[0], (int)c->s->k[0], false);
}

static void record_argmin(struct fz_call *c)
{
    c->out[0] = rw_argmin_at(c->at, c->t, c->in[0], (int)c->s->k[0], false);
}

static void record_topk(struct fz_call *c)
{
    rw_topk_at(c->at, c->t, c->in[0], c->s->k[1], (int)c->s->k[0], c->out, c->out + 1);
}

static void record_gather(struct fz_call *c)
{
    c->out[0] = rw_gather_at(c->at, c->t, c->in[0], 0, c->in[1]);
}

static void record_scatter(struct fz_call *c)
{
    c->out[0] = rw_scatter_add_at(c->at, c->t, c->in[0], 0, c->in[1], c->in[2]);
}

static void record_list(struct fz_call *c)
{
    c->out[0] = rw_index_select_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->in[1]);
}

static void record_bag(struct fz_call *c)
{
    c->out[0] = rw_embedding_bag_at(c->at, c->t, c->in[0], c->in[1], (rw_bag_mode)c->s->k[0]);
}

static void record_hot(struct fz_call *c)
{
    c->out[0] = rw_one_hot_at(c->at, c->t, c->in[0], c->s->k[0], c->s->out[0].dtype);
}

/* A pointer to data can point to a pointer to a function, but not to a function. */
#define FN(name, type) static const type fn_##name = rw_##name##_at;
FN(eq, binary_fn) FN(ne, binary_fn) FN(lt, binary_fn) FN(le, binary_fn) FN(gt, binary_fn) FN(ge, binary_fn)
FN(logical_and, binary_fn) FN(logical_or, binary_fn) FN(logical_not, unary_fn) FN(isfinite, unary_fn)

#define COMPARISON(name) \
    { #name, 2, 0, 0, choose_equal, resolve_comparison, record_binary, "rw_" #name "(t, $0, $1)", &fn_##name }
#define LOGIC(name) \
    { #name, 2, 0, 0, choose_masks, resolve_logic, record_binary, "rw_" #name "(t, $0, $1)", &fn_##name }

const struct fz_op fz_select_ops[] = {
    COMPARISON(eq),
    COMPARISON(ne),
    COMPARISON(lt),
    COMPARISON(le),
    COMPARISON(gt),
    COMPARISON(ge),
    { "gt_scalar", 3, 0, 0, choose_any, resolve_truth, record_above, "rw_gt_scalar(t, $0, ~)" },
    { "isfinite", 2, 0, 0, choose_any, resolve_truth, record_unary, "rw_isfinite(t, $0)", &fn_isfinite },
    LOGIC(logical_and),
    LOGIC(logical_or),
    { "logical_not", 2, 0, 0, choose_mask, resolve_logic, record_unary, "rw_logical_not(t, $0)", &fn_logical_not },
    { "where", 6, 0, 6, choose_where, resolve_where, record_where, "rw_where(t, $0, $1, $2)" },
    { "masked_fill", 4, 0, 1, choose_filled, resolve_filled, record_filled, "rw_masked_fill(t, $0, $1, ~)" },
    { "clamp", 3, 0, 1, choose_any, resolve_clamp, record_clamp, "rw_clamp(t, $0, -0.5, 0.75)" },
    { "clamp_tensor", 4, 0, 7, choose_clamp, resolve_clamp_tensor, record_clamp_tensor,
      "rw_clamp_tensor(t, $0, $1, $2)" },
    { "select", 4, 0, 1, choose_ranked, resolve_select, record_select, "rw_select(t, $0, %0, %1)" },
    { "unsqueeze", 2, 0, 1, choose_any, resolve_unsqueeze, record_unsqueeze, "rw_unsqueeze(t, $0, %0)" },
    { "unbind", 8, 0, 1, choose_ranked, resolve_unbind, record_unbind, NULL },
    { "stack", 3, 0, 7, choose_stack, resolve_stack, record_stack, NULL },
    { "unfold", 4, 0, 1, choose_ranked, resolve_unfold, record_unfold, "rw_unfold(t, $0, %0, %1, %2)" },
    { "roll", 3, 0, 1, choose_ranked, resolve_moved, record_roll, "rw_roll(t, $0, %1, %0)" },
    { "flip", 3, 0, 1, choose_ranked, resolve_moved, record_flip, "rw_flip(t, $0, %0)" },
    { "pad", 5, 0, 1, choose_ranked, resolve_pad, record_pad,
      "rw_pad(t, $0, (const int64_t[]){ %1, %2 }, 2, (rw_pad_mode)%0, -1)" },
    { "argmax", 2, 0, 0, choose_ranked, resolve_place, record_argmax, "rw_argmax(t, $0, %0, false)" },
    { "argmin", 2, 0, 0, choose_ranked, resolve_place, record_argmin, "rw_argmin(t, $0, %0, false)" },
    { "topk", 4, 0, 1, choose_ranked, resolve_topk, record_topk, NULL },
    { "gather", 4, 0, 1, choose_gather, resolve_gather, record_gather, "rw_gather(t, $0, 0, $1)" },
    { "scatter_add", 4, 0, 5, choose_scatter, resolve_scatter, record_scatter, "rw_scatter_add(t, $0, 0, $1, $2)" },
    { "index_select", 4, 0, 1, choose_list, resolve_list, record_list, "rw_index_select(t, $0, %0, $1)" },
    { "embedding_bag", 4, 0, 1, choose_bag, resolve_bag, record_bag,
      "rw_embedding_bag(t, $0, $1, (rw_bag_mode)%0)" },
    { "one_hot", 3, 0, 0, choose_hot, resolve_hot, record_hot, "rw_one_hot(t, $0, %0, ^0)" },
    { NULL },
};
