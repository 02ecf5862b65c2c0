/* Statements of views and copies: reshape, permute, slice, split, concat, broadcast, cast. */
#include "whole/fuzz/generate.h"

#include <rewind/ops.h>

#include <string.h>

static int choose_any(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static int choose_ranked(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 1, 6));
}

static bool view(const struct fz_program *p, struct fz_statement *s, rw_shape shape)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    return rw_dtype_is_float(x->dtype) && fz_out(s, 0, x->dtype, shape, x->bound, x->slope);
}

/* Flattens, merges two axes, splits one in two, or inserts one of extent 1. */
static bool resolve_reshape(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape x = fz_in(p, s, 0)->shape;
    const uint32_t way = s->word[0] % 4, pick = s->word[1];
    if (x.rank && way == 1) {
        const int axis = (int)(pick % (uint32_t)x.rank);
        const int64_t n = x.dim[axis];
        int64_t factor = n;
        for (int64_t f = 2; f * f <= n; f++)
            if (n % f == 0) factor = pick >> 8 & 1 ? f : n / f;
        x.dim[axis] = factor;
        x = fz_with(x, axis + 1, factor ? n / factor : 1);
    } else if (x.rank > 1 && way == 2) {
        const int axis = (int)(pick % (uint32_t)(x.rank - 1));
        x.dim[axis] *= x.dim[axis + 1];
        x = fz_without(x, axis + 1);
    } else if (way == 3) {
        x = fz_with(x, (int)(pick % (uint32_t)(x.rank + 1)), 1);
    } else {
        x = RW_SHAPE(rw_shape_numel(x));
    }
    return view(p, s, x);
}

/* A random permutation by the statement's words, stored in k[0]. */
static bool resolve_permute(const struct fz_program *p, struct fz_statement *s)
{
    const rw_shape x = fz_in(p, s, 0)->shape;
    rw_shape out = x;
    int axis[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    if (!x.rank || x.rank > 6) return false;
    uint32_t w = s->word[0];
    s->k[0] = 0;
    for (int i = 0; i < x.rank; i++) {
        const int j = i + (int)(w % (uint32_t)(x.rank - i)), swap = axis[i];
        w /= 7;
        axis[i] = axis[j], axis[j] = swap;
        out.dim[i] = x.dim[axis[i]];
        s->k[0] |= (int64_t)axis[i] << 4 * i;
    }
    return view(p, s, out);
}

static bool resolve_transpose(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape x = fz_in(p, s, 0)->shape;
    if (x.rank < 2) return false;
    const int a = s->word[0] % 2 ? x.rank - 1 : (int)(s->word[1] % (uint32_t)x.rank);
    const int b = s->word[0] % 2 ? x.rank - 2 : (int)(s->word[2] % (uint32_t)x.rank);
    const int64_t extent = x.dim[a];
    x.dim[a] = x.dim[b], x.dim[b] = extent;
    s->k[0] = s->word[1] >> 9 & 1 ? a - x.rank : a;
    s->k[1] = b;
    return view(p, s, x);
}

static bool resolve_slice(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape x = fz_in(p, s, 0)->shape;
    if (!x.rank) return false;
    const int axis = (int)(s->word[0] % (uint32_t)x.rank);
    const int64_t n = x.dim[axis];
    int64_t from = (int64_t)(s->word[1] % (uint64_t)(n + 1)), to = (int64_t)(s->word[2] % (uint64_t)(n + 1));
    if (from > to) { const int64_t swap = from; from = to, to = swap; }
    if (from == to && s->word[1] % 16)
        from = from ? from - 1 : 0, to = from < n ? from + 1 : n; /* sometimes an empty one */
    s->k[0] = axis, s->k[1] = from, s->k[2] = to;
    x.dim[axis] = to - from;
    return view(p, s, x);
}

/* Two or three parts along an axis. */
static bool resolve_split(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    rw_shape part = x->shape;
    if (!part.rank || !rw_dtype_is_float(x->dtype)) return false;
    const int axis = (int)(s->word[0] % (uint32_t)part.rank), pieces = 2 + (int)(s->word[0] >> 8 & 1);
    const int64_t n = part.dim[axis];
    s->k[0] = s->word[0] >> 9 & 1 ? axis - part.rank : axis;
    s->k[1] = (int64_t)(s->word[1] % (uint64_t)(n + 1));
    s->k[2] = pieces == 2 ? n - s->k[1] : (int64_t)(s->word[2] % (uint64_t)(n - s->k[1] + 1));
    s->k[3] = pieces == 2 ? 0 : n - s->k[1] - s->k[2];
    for (int i = 0; i < pieces; i++) {
        part.dim[axis] = s->k[1 + i];
        if (!fz_out(s, i, x->dtype, part, x->bound, x->slope)) return false;
    }
    return true;
}

static int choose_concat(struct fz_generator *g, int op)
{
    const int a = fz_any(g, 1, 6);
    if (a < 0) return -1;
    const struct fz_type x = *fz_type_of(g->p, a);
    int in[3] = { a, a, a };
    const int n = 1 + (int)fz_below(g, 3);
    for (int i = 1; i < n; i++) {
        rw_shape other = x.shape;
        if (fz_chance(g, 50)) other.dim[fz_below(g, other.rank)] = fz_extent(g);
        in[i] = fz_chance(g, 15) ? a : fz_like(g, x.dtype, other);
    }
    return fz_emit_list(g, op, n, in);
}

/* Operands that differ in at most one extent. */
static bool resolve_concat(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    rw_shape out = x->shape;
    double bound = x->bound, slope = x->slope;
    int axis = -1;
    if (!out.rank || !rw_dtype_is_float(x->dtype)) return false;
    for (int i = 1; i < s->n_in; i++) { /* the axis in which they differ */
        const struct fz_type *const y = fz_in(p, s, i);
        if (y->dtype != x->dtype || y->shape.rank != out.rank) return false;
        for (int k = 0; k < out.rank; k++) {
            if (y->shape.dim[k] == x->shape.dim[k]) continue;
            if (axis >= 0 && axis != k) return false;
            axis = k;
        }
        bound = y->bound > bound ? y->bound : bound;
        slope += y->slope;
    }
    if (axis < 0) axis = (int)(s->word[0] % (uint32_t)out.rank);
    for (int i = 1; i < s->n_in; i++) out.dim[axis] += fz_in(p, s, i)->shape.dim[axis];
    s->k[0] = s->word[1] & 1 ? axis - out.rank : axis;
    return fz_out(s, 0, x->dtype, out, bound, slope);
}

static bool resolve_broadcast(const struct fz_program *p, struct fz_statement *s)
{
    rw_shape x = fz_in(p, s, 0)->shape;
    for (int i = 0; i < x.rank; i++)
        if (x.dim[i] == 1 && s->word[0] >> i & 1) x.dim[i] = 1 + s->word[1] % 5;
    if (x.rank < 5 && s->word[2] & 1) x = fz_with(x, 0, 1 + s->word[2] / 2 % 4);
    return view(p, s, x);
}

static bool resolve_same(const struct fz_program *p, struct fz_statement *s)
{
    return view(p, s, fz_in(p, s, 0)->shape);
}

static bool resolve_cast(const struct fz_program *p, struct fz_statement *s)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16 };
    const struct fz_type *const x = fz_in(p, s, 0);
    return rw_dtype_is_float(x->dtype) && fz_out(s, 0, types[s->word[0] % 3], x->shape, x->bound, x->slope);
}

static void record_reshape(struct fz_call *c)
{
    rw_shape shape = c->s->out[0].shape;
    c->out[0] = rw_reshape_at(c->at, c->t, c->in[0], shape);
}

static void record_permute(struct fz_call *c)
{
    int axes[8] = { 0 };
    for (int i = 0; i < c->s->out[0].shape.rank; i++) axes[i] = (int)(c->s->k[0] >> 4 * i & 15);
    c->out[0] = rw_permute_at(c->at, c->t, c->in[0], axes);
}

static void record_transpose(struct fz_call *c)
{
    c->out[0] = rw_transpose_at(c->at, c->t, c->in[0], (int)c->s->k[0], (int)c->s->k[1]);
}

static void record_slice(struct fz_call *c)
{
    c->out[0] = rw_slice_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->s->k[1], c->s->k[2]);
}

static void record_split(struct fz_call *c)
{
    rw_split_at(c->at, c->t, c->in[0], (int)c->s->k[0], c->s->k + 1, c->s->n_out, c->out);
}

static void record_concat(struct fz_call *c)
{
    c->out[0] = rw_concat_at(c->at, c->t, c->in, c->s->n_in, (int)c->s->k[0]);
}

static void record_broadcast(struct fz_call *c)
{
    c->out[0] = rw_broadcast_to_at(c->at, c->t, c->in[0], c->s->out[0].shape);
}

static void record_contiguous(struct fz_call *c)
{
    c->out[0] = rw_contiguous_at(c->at, c->t, c->in[0]);
}

static void record_cast(struct fz_call *c)
{
    c->out[0] = rw_cast_at(c->at, c->t, c->in[0], c->s->out[0].dtype);
}

const struct fz_op fz_shape_ops[] = {
    { "reshape", 6, 0, 1, choose_any, resolve_reshape, record_reshape, "rw_reshape(t, $0, @0)" },
    { "permute", 4, 0, 1, choose_ranked, resolve_permute, record_permute, NULL },
    { "transpose", 5, 0, 1, choose_ranked, resolve_transpose, record_transpose, "rw_transpose(t, $0, %0, %1)" },
    { "slice", 6, 0, 1, choose_ranked, resolve_slice, record_slice, "rw_slice(t, $0, %0, %1, %2)" },
    { "split", 5, 0, 1, choose_ranked, resolve_split, record_split, NULL },
    { "concat", 5, 0, 7, choose_concat, resolve_concat, record_concat, NULL },
    { "broadcast_to", 3, 0, 1, choose_any, resolve_broadcast, record_broadcast, "rw_broadcast_to(t, $0, @0)" },
    { "contiguous", 3, 0, 1, choose_any, resolve_same, record_contiguous, "rw_contiguous(t, $0)" },
    { "cast", 5, 0, 1, choose_any, resolve_cast, record_cast, "rw_cast(t, $0, ^0)" },
    { NULL },
};
