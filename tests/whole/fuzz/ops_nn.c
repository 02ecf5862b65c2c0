/* Statements of the ops of models: products, norms, attention, rope, tables, losses, dropout. */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/input_values.h"

#include <rewind/attention.h>
#include <rewind/ops.h>

#include <math.h>
#include <string.h>

static rw_shape last_becomes(rw_shape s, int64_t n)
{
    s.dim[s.rank - 1] = n;
    return s;
}

static int64_t last(rw_shape s)
{
    return s.rank ? s.dim[s.rank - 1] : 1;
}

/* Linear and matmul */

static int choose_linear(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int64_t out = fz_chance(g, 50) ? last(t.shape) : fz_extent(g);
    const int w = fz_like(g, t.dtype, RW_SHAPE(out, last(t.shape)));
    return fz_chance(g, 50) ? fz_emit(g, op, 2, x, w) : fz_emit(g, op, 3, x, w, fz_like(g, t.dtype, RW_SHAPE(out)));
}

static bool product(struct fz_statement *s, const struct fz_type *a, const struct fz_type *b, rw_shape out, double k)
{
    /* of random signs: the sum of k products is about sqrt(k) times as large as one */
    const double n = 2 * sqrt(k + 1);
    return fz_out(s, 0, a->dtype, out, a->bound * b->bound * n, (a->slope * b->bound + b->slope * a->bound) * n);
}

static bool resolve_linear(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const w = fz_in(p, s, 1);
    if (!rw_dtype_is_float(x->dtype) || x->dtype != w->dtype || !x->shape.rank || w->shape.rank != 2) return false;
    if (last(x->shape) != w->shape.dim[1]) return false;
    if (s->n_in > 2 &&
        (fz_in(p, s, 2)->dtype != x->dtype || !rw_shape_equal(fz_in(p, s, 2)->shape, RW_SHAPE(w->shape.dim[0]))))
        return false;
    if (!product(s, x, w, last_becomes(x->shape, w->shape.dim[0]), (double)last(x->shape))) return false;
    return s->n_in < 3 || fz_out(s, 0, x->dtype, s->out[0].shape, s->out[0].bound + fz_in(p, s, 2)->bound,
                                 s->out[0].slope + fz_in(p, s, 2)->slope);
}

static void record_linear(struct fz_call *c)
{
    c->out[0] = rw_linear_at(c->at, c->t, c->in[0], c->in[1], c->s->n_in > 2 ? c->in[2] : RW_NONE);
}

static bool resolve_linear_gelu(const struct fz_program *p, struct fz_statement *s)
{
    if (!resolve_linear(p, s)) return false;
    s->out[0].slope *= 1.2; /* gelu is slightly steeper than 1 */
    return true;
}

static void record_linear_gelu(struct fz_call *c)
{
    c->out[0] = rw_linear_gelu_at(c->at, c->t, c->in[0], c->in[1], c->s->n_in > 2 ? c->in[2] : RW_NONE);
}

/* x, weight, residual and optionally a bias */
static int choose_linear_add(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int64_t out = fz_chance(g, 70) ? last(t.shape) : fz_extent(g);
    const int w = fz_like(g, t.dtype, RW_SHAPE(out, last(t.shape)));
    const bool same = out == last(t.shape) && fz_chance(g, 10);
    const int residual = same ? x : fz_like(g, t.dtype, last_becomes(t.shape, out));
    if (fz_chance(g, 50)) return fz_emit(g, op, 3, x, w, residual);
    return fz_emit(g, op, 4, x, w, residual, fz_like(g, t.dtype, RW_SHAPE(out)));
}

static bool resolve_linear_add(const struct fz_program *p, struct fz_statement *s)
{
    if (s->n_in < 3) return false;
    struct fz_statement layer = *s; /* without the residual */
    const struct fz_type *const residual = fz_in(p, s, 2);
    layer.n_in--;
    layer.in[2] = s->in[3];
    if (!resolve_linear(p, &layer)) return false;
    const struct fz_type *const y = &layer.out[0];
    return fz_same(residual, y) &&
           fz_out(s, 0, y->dtype, y->shape, y->bound + residual->bound, y->slope + residual->slope);
}

static void record_linear_add(struct fz_call *c)
{
    c->out[0] = rw_linear_add_at(c->at, c->t, c->in[0], c->in[1], c->s->n_in > 3 ? c->in[3] : RW_NONE, c->in[2]);
}

/* The other factor: leading axes missing or of extent 1, and sometimes a transposed view of it. */
static int choose_matmul(struct fz_generator *g, int op)
{
    const int a = fz_any(g, 2, 5);
    if (a < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, a);
    const int64_t k = last(t.shape), n = fz_chance(g, 40) ? t.shape.dim[t.shape.rank - 2] : fz_extent(g);
    rw_shape other = { 0 };
    const int skip = fz_chance(g, 30) ? (int)fz_below(g, t.shape.rank - 1) : 0;
    for (int i = skip; i < t.shape.rank - 2; i++) other.dim[other.rank++] = fz_chance(g, 30) ? 1 : t.shape.dim[i];
    const bool flipped = fz_chance(g, 50);
    other.dim[other.rank++] = flipped ? n : k;
    other.dim[other.rank++] = flipped ? k : n;
    int b = fz_like(g, t.dtype, other);
    if (b >= 0 && flipped) {
        b = fz_emit(g, fz_op_named("transpose"), 1, b);
        if (b < 0) return -1;
        g->p->s[b / FZ_OUTS].word[0] |= 1; /* the last two axes */
        if (!fz_resolve_statement(g->p, b / FZ_OUTS)) return -1;
    }
    return fz_emit(g, op, 2, a, b);
}

static bool resolve_matmul(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const a = fz_in(p, s, 0), *const b = fz_in(p, s, 1);
    if (!rw_dtype_is_float(a->dtype) || a->dtype != b->dtype || a->shape.rank < 2 || b->shape.rank < 2) return false;
    if (last(a->shape) != b->shape.dim[b->shape.rank - 2]) return false;
    rw_shape x = a->shape, y = b->shape, out;
    x.rank -= 2, y.rank -= 2;
    if (!fz_broadcast(x, y, &out)) return false;
    out.dim[out.rank++] = a->shape.dim[a->shape.rank - 2];
    out.dim[out.rank++] = last(b->shape);
    return product(s, a, b, out, (double)last(a->shape));
}

static void record_matmul(struct fz_call *c)
{
    c->out[0] = rw_matmul_at(c->at, c->t, c->in[0], c->in[1]);
}

/* Norms */

static int choose_norm(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    if (x < 0 || !last(fz_type_of(g->p, x)->shape)) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    if (fz_chance(g, 25)) return fz_emit(g, op, 1, x);
    const int w = fz_like(g, t.dtype, RW_SHAPE(last(t.shape)));
    const bool bias = !strcmp(fz_op(op)->name, "layernorm") && fz_chance(g, 50);
    return bias ? fz_emit(g, op, 3, x, w, fz_like(g, t.dtype, RW_SHAPE(last(t.shape)))) : fz_emit(g, op, 2, x, w);
}

static bool resolve_norm(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!rw_dtype_is_float(x->dtype) || !x->shape.rank || !last(x->shape)) return false;
    double extra = 0, bound = 1;
    for (int i = 1; i < s->n_in; i++) {
        const struct fz_type *const v = fz_in(p, s, i);
        if (v->dtype != x->dtype || !rw_shape_equal(v->shape, RW_SHAPE(last(x->shape)))) return false;
        if (i == 1) bound = v->bound;
        extra += v->slope;
    }
    s->f = s->word[0] % 2 ? 0.125 : 0.015625;
    return fz_out(s, 0, x->dtype, x->shape, 3 * bound + 2, x->slope * bound / sqrt(s->f) + extra);
}

static void record_layernorm(struct fz_call *c)
{
    c->out[0] = rw_layernorm_at(c->at, c->t, c->in[0], c->s->n_in > 1 ? c->in[1] : RW_NONE,
                                c->s->n_in > 2 ? c->in[2] : RW_NONE, (float)c->s->f);
}

static void record_rmsnorm(struct fz_call *c)
{
    c->out[0] = rw_rmsnorm_at(c->at, c->t, c->in[0], c->s->n_in > 1 ? c->in[1] : RW_NONE, (float)c->s->f);
}

/* Attention and rope: values of rank 4, made from others by reshape and permute, or new */

static int rank_4(struct fz_generator *g)
{
    const int x = fz_any(g, 4, 4);
    const int64_t batch = 1 + fz_below(g, 2), heads = 1 + fz_below(g, 4), seq = fz_extent(g), d = fz_extent(g);
    return x >= 0 ? x : fz_like(g, g->dtype, RW_SHAPE(batch, heads, seq, d));
}

static int choose_attention(struct fz_generator *g, int op)
{
    const int q = rank_4(g);
    if (q < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, q);
    rw_shape kv = t.shape;
    if (fz_chance(g, 60))
        for (int64_t h = kv.dim[1]; h > 0; h--) /* fewer heads of keys and values */
            if (t.shape.dim[1] % h == 0 && fz_chance(g, 60)) kv.dim[1] = h;
    if (fz_chance(g, 30)) kv.dim[2] = fz_extent(g);
    const int k = rw_shape_equal(kv, t.shape) && fz_chance(g, 20) ? q : fz_like(g, t.dtype, kv);
    return fz_emit(g, op, 3, q, k, fz_chance(g, 20) ? k : fz_like(g, t.dtype, kv));
}

/* k[0]: causal, k[1]: dropout in eighths, f: scale, 0 for the default */
static bool resolve_attention(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const q = fz_in(p, s, 0), *const k = fz_in(p, s, 1), *const v = fz_in(p, s, 2);
    if (!rw_dtype_is_float(q->dtype) || k->dtype != q->dtype || !fz_same(k, v) || q->shape.rank != 4 ||
        k->shape.rank != 4)
        return false;
    const int64_t *const a = q->shape.dim, *const b = k->shape.dim;
    if (a[0] != b[0] || a[3] != b[3] || (b[1] ? a[1] % b[1] : a[1]) || q->bound * k->bound > 100) return false;
    s->k[0] = s->word[0] & 1;
    s->k[1] = s->word[0] & 2 ? 1 + s->word[0] / 4 % 4 : 0;
    s->f = s->word[1] & 1 ? 0 : 0.25;
    const double d = sqrt((double)a[3] + 1) * v->bound;
    return fz_out(s, 0, q->dtype, q->shape, 2 * v->bound,
                  2 * v->slope + d * (q->slope * k->bound + k->slope * q->bound));
}

static void record_attention(struct fz_call *c)
{
    const rw_attention_params params = { .causal = c->s->k[0],
                                         .scale = (float)c->s->f,
                                         .dropout = (float)c->s->k[1] / 8 };
    c->out[0] = rw_attention_at(c->at, c->t, c->in[0], c->in[1], c->in[2], &params);
}

static int choose_rope(struct fz_generator *g, int op)
{
    int x = fz_any(g, 4, 4);
    const int64_t batch = 1 + fz_below(g, 2), heads = 1 + fz_below(g, 3), seq = fz_extent(g), half = 1 + fz_below(g, 4);
    if (x < 0 || fz_type_of(g->p, x)->shape.dim[3] % 2) x = fz_like(g, g->dtype, RW_SHAPE(batch, heads, seq, 2 * half));
    if (x < 0 || fz_chance(g, 50)) return fz_emit(g, op, 1, x);
    return fz_emit(g, op, 2, x, fz_index(g, RW_SHAPE(fz_type_of(g->p, x)->shape.dim[2]), 50));
}

static bool resolve_rope(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!rw_dtype_is_float(x->dtype) || x->shape.rank != 4 || x->shape.dim[3] % 2) return false;
    if (s->n_in > 1 &&
        (fz_in(p, s, 1)->dtype != RW_I32 || !rw_shape_equal(fz_in(p, s, 1)->shape, RW_SHAPE(x->shape.dim[2]))))
        return false;
    s->f = s->word[0] % 2 ? 10000 : 100;
    return fz_out(s, 0, x->dtype, x->shape, 1.5 * x->bound, 1.5 * x->slope);
}

static void record_rope(struct fz_call *c)
{
    c->out[0] = rw_rope_at(c->at, c->t, c->in[0], c->s->n_in > 1 ? c->in[1] : RW_NONE, (float)c->s->f);
}

/* With a table of frequencies: x, frequencies[, positions]. k[0]: interleaved; f: scale, 0 for the default */

static int choose_rope_with(struct fz_generator *g, int op)
{
    int x = fz_any(g, 4, 4);
    const int64_t batch = 1 + fz_below(g, 2), heads = 1 + fz_below(g, 3), seq = fz_extent(g), half = 1 + fz_below(g, 4);
    if (x < 0 || fz_type_of(g->p, x)->shape.dim[3] % 2) x = fz_like(g, g->dtype, RW_SHAPE(batch, heads, seq, 2 * half));
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int table = fz_like(g, fz_chance(g, 50) ? t.dtype : RW_F32, RW_SHAPE(last(t.shape) / 2));
    if (fz_chance(g, 50)) return fz_emit(g, op, 2, x, table);
    return fz_emit(g, op, 3, x, table, fz_index(g, RW_SHAPE(t.shape.dim[2]), 50));
}

static bool resolve_rope_with(const struct fz_program *p, struct fz_statement *s)
{
    if (s->n_in < 2) return false;
    const struct fz_type *const x = fz_in(p, s, 0), *const table = fz_in(p, s, 1);
    struct fz_statement plain = *s;
    plain.n_in--;
    plain.in[1] = s->in[2];
    if (!rw_dtype_is_float(table->dtype) || !resolve_rope(p, &plain)) return false;
    if (!rw_shape_equal(table->shape, RW_SHAPE(last(x->shape) / 2))) return false;
    s->k[0] = s->word[0] & 1;
    s->f = s->word[1] & 1 ? 0.75 : 0;
    return fz_out(s, 0, x->dtype, x->shape, 1.5 * x->bound, 1.5 * x->slope);
}

static void record_rope_with(struct fz_call *c)
{
    const rw_rope_params params = { .interleaved = c->s->k[0], .frequencies = c->in[1], .scale = c->s->f };
    c->out[0] = rw_rope_with_at(c->at, c->t, c->in[0], c->s->n_in > 2 ? c->in[2] : RW_NONE, &params);
}

/* Tables and losses */

static int choose_embedding(struct fz_generator *g, int op)
{
    int table = fz_any(g, 2, 2);
    const int64_t rows = 1 + fz_below(g, 12), width = fz_extent(g);
    if (table < 0 || fz_chance(g, 50) || !fz_type_of(g->p, table)->shape.dim[0])
        table = fz_like(g, g->dtype, RW_SHAPE(rows, width));
    if (table < 0) return -1;
    rw_shape shape = { .rank = (int32_t)fz_below(g, 4) };
    for (int i = 0; i < shape.rank; i++) shape.dim[i] = fz_extent(g);
    return fz_emit(g, op, 2, table, fz_index(g, shape, fz_type_of(g->p, table)->shape.dim[0]));
}

static bool resolve_embedding(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const table = fz_in(p, s, 0), *const index = fz_in(p, s, 1);
    if (!rw_dtype_is_float(table->dtype) || table->shape.rank != 2 || index->dtype != RW_I32) return false;
    if (index->bound > (double)table->shape.dim[0]) return false;
    rw_shape out = index->shape;
    out.dim[out.rank++] = table->shape.dim[1];
    return fz_out(s, 0, table->dtype, out, table->bound, table->slope);
}

static void record_embedding(struct fz_call *c)
{
    c->out[0] = rw_embedding_at(c->at, c->t, c->in[0], c->in[1]);
}

static int choose_cross_entropy(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 1, 5);
    if (x < 0 || !last(fz_type_of(g->p, x)->shape)) return -1;
    rw_shape rows = fz_type_of(g->p, x)->shape;
    rows.rank--;
    const int target = fz_chance(g, 30)
                           ? fz_index(g, rows, last(fz_type_of(g->p, x)->shape))
                           : fz_new_leaf(g, "targets", RW_I32, rows, (double)last(fz_type_of(g->p, x)->shape));
    return fz_emit(g, op, 2, x, target);
}

static bool resolve_cross_entropy(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const target = fz_in(p, s, 1);
    if (!rw_dtype_is_float(x->dtype) || !x->shape.rank || last(x->shape) < 1 || target->dtype != RW_I32) return false;
    rw_shape rows = x->shape;
    rows.rank--;
    if (!rw_shape_equal(rows, target->shape) || target->bound > (double)last(x->shape)) return false;
    s->k[0] = fz_ignored(p, s->in[1]);
    return fz_out(s, 0, x->dtype == RW_F64 ? RW_F64 : RW_F32, RW_SCALAR, 2 * x->bound + 3, 2 * x->slope);
}

static void record_cross_entropy(struct fz_call *c)
{
    const rw_cross_entropy_params params = { .has_ignore_index = true, .ignore_index = (int32_t)c->s->k[0] };
    c->out[0] = c->s->k[0] == -100 ? rw_cross_entropy_at(c->at, c->t, c->in[0], c->in[1])
                                   : rw_cross_entropy_with_at(c->at, c->t, c->in[0], c->in[1], RW_NONE, &params);
}

static int choose_mse(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 0, 5);
    if (x < 0) return -1;
    rw_shape other = fz_type_of(g->p, x)->shape;
    if (other.rank && fz_chance(g, 20)) other.dim[fz_below(g, other.rank)] = 1; /* then it is composed */
    return fz_emit(g, op, 2, x, fz_like(g, fz_type_of(g->p, x)->dtype, other));
}

static bool resolve_mse(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const y = fz_in(p, s, 1);
    rw_shape joint;
    if (!rw_dtype_is_float(x->dtype) || x->dtype != y->dtype || !fz_broadcast(x->shape, y->shape, &joint)) return false;
    if (!rw_shape_numel(joint)) return false;
    const double b = x->bound + y->bound;
    return fz_out(s, 0, x->dtype == RW_F64 ? RW_F64 : RW_F32, RW_SCALAR, b * b, 2 * b * (x->slope + y->slope));
}

static void record_mse(struct fz_call *c)
{
    c->out[0] = rw_mse_loss_at(c->at, c->t, c->in[0], c->in[1]);
}

static int choose_dropout(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static bool resolve_dropout(const struct fz_program *p, struct fz_statement *s)
{
    static const double chances[] = { 0.125, 0.5, 0.25, 0.875, 0 };
    const struct fz_type *const x = fz_in(p, s, 0);
    s->f = chances[s->word[0] % 16 < 12 ? s->word[0] % 2 : s->word[0] % 5];
    const double up = 1 / (1 - s->f);
    return rw_dtype_is_float(x->dtype) && fz_out(s, 0, x->dtype, x->shape, x->bound * up, x->slope * up);
}

static void record_dropout(struct fz_call *c)
{
    c->out[0] = rw_dropout_at(c->at, c->t, c->in[0], (float)c->s->f);
}

static int choose_dropout_add(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 0, 6);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    return fz_emit(g, op, 2, x, fz_chance(g, 10) ? x : fz_like(g, t.dtype, t.shape));
}

static bool resolve_dropout_add(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const residual = fz_in(p, s, 1);
    if (!fz_same(fz_in(p, s, 0), residual) || !resolve_dropout(p, s)) return false;
    return fz_out(s, 0, residual->dtype, residual->shape, s->out[0].bound + residual->bound,
                  s->out[0].slope + residual->slope);
}

static void record_dropout_add(struct fz_call *c)
{
    c->out[0] = rw_dropout_add_at(c->at, c->t, c->in[0], c->in[1], (float)c->s->f);
}

const struct fz_op fz_model_ops[] = {
    { "linear", 12, 0, 7, choose_linear, resolve_linear, record_linear, "rw_linear(t, $0, $1, $2)" },
    { "linear_gelu", 6, 0, 7, choose_linear, resolve_linear_gelu, record_linear_gelu,
      "rw_linear_gelu(t, $0, $1, $2)" },
    { "linear_add", 8, 0, 15, choose_linear_add, resolve_linear_add, record_linear_add,
      "rw_linear_add(t, $0, $1, $3, $2)" },
    { "matmul", 10, 0, 3, choose_matmul, resolve_matmul, record_matmul, "rw_matmul(t, $0, $1)" },
    { "layernorm", 7, 0, 7, choose_norm, resolve_norm, record_layernorm, "rw_layernorm(t, $0, $1, $2, ~f)" },
    { "rmsnorm", 6, 0, 3, choose_norm, resolve_norm, record_rmsnorm, "rw_rmsnorm(t, $0, $1, ~f)" },
    { "attention", 8, 0, 7, choose_attention, resolve_attention, record_attention, NULL },
    { "rope", 5, 0, 1, choose_rope, resolve_rope, record_rope, "rw_rope(t, $0, $1, ~f)" },
    { "rope_with", 5, 0, 1, choose_rope_with, resolve_rope_with, record_rope_with,
      "rw_rope_with(t, $0, $2, &(rw_rope_params){ .interleaved = %0, .frequencies = $1, .scale = ~ })" },
    { "embedding", 6, 0, 1, choose_embedding, resolve_embedding, record_embedding, "rw_embedding(t, $0, $1)" },
    { "cross_entropy", 6, 0, 1, choose_cross_entropy, resolve_cross_entropy, record_cross_entropy,
      "rw_cross_entropy_with(t, $0, $1, RW_NONE, "
      "&(rw_cross_entropy_params){ .has_ignore_index = true, .ignore_index = %0 })" },
    { "mse_loss", 4, 0, 3, choose_mse, resolve_mse, record_mse, "rw_mse_loss(t, $0, $1)" },
    { "dropout", 12, 0, 1, choose_dropout, resolve_dropout, record_dropout, "rw_dropout(t, $0, ~f)" },
    { "dropout_add", 8, 0, 3, choose_dropout_add, resolve_dropout_add, record_dropout_add,
      "rw_dropout_add(t, $0, $1, ~f)" },
    { NULL },
};
