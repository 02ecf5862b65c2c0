/*
 * Statements of metamorphic programs only (FZ_SESSION): custom gradients, gradients as operands, effects, precision
 * recipes, parts with a policy, and own ops that fail or record what they drew.
 */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/custom_ops.h"

#include <rewind/rewind.h>

#include <stdio.h>
#include <string.h>

static const char *name_of(const struct fz_program *p, int value)
{
    return fz_op(p->s[value / FZ_OUTS].op)->name;
}

static int choose_any(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

/* A pair of values of one type. */
static int choose_pair(struct fz_generator *g, int op)
{
    const int y = fz_any(g, 0, 6);
    if (y < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, y);
    return fz_emit(g, op, 2, y, fz_like(g, t.dtype, t.shape));
}

static bool like(struct fz_statement *s, int i, const struct fz_type *x)
{
    return rw_dtype_is_float(x->dtype) && fz_out(s, i, x->dtype, x->shape, x->bound, x->slope);
}

/* ---- custom gradients ---- */

static bool resolve_detach(const struct fz_program *p, struct fz_statement *s)
{
    return like(s, 0, fz_in(p, s, 0));
}

static void record_detach(struct fz_call *c)
{
    c->out[0] = rw_detach_at(c->at, c->t, c->in[0]);
}

static bool resolve_straight(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const y = fz_in(p, s, 0), *const x = fz_in(p, s, 1);
    return fz_same(x, y) && like(s, 0, y) && fz_out(s, 0, y->dtype, y->shape, y->bound, x->slope);
}

static void record_straight(struct fz_call *c)
{
    c->out[0] = rw_straight_through_at(c->at, c->t, c->in[0], c->in[1]);
}

/* The gradient of x is a value of forward, as for a loss that is computed together with its gradient. */
static rw_status forward_value_rule(rw_grad_call *g, const void *data)
{
    (void)data;
    return rw_grad_set(g, 1, rw_grad_input(g, 2));
}

/* The gradient of x is computed from a value of forward. */
static rw_status product_rule(rw_grad_call *g, const void *data)
{
    (void)data;
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const sum = rw_sum(t, rw_grad_upstream(g, 0), RW_ALL_AXES, false);
    return rw_grad_set(g, 1, rw_mul(t, rw_grad_input(g, 2), sum));
}

/* y, x, z: x is not a 16-bit parameter, whose gradient has another type. */
static int choose_custom(struct fz_generator *g, int op)
{
    const int y = fz_any(g, 0, 6), x = fz_any(g, 0, 6);
    if (y < 0 || x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    int z = fz_like(g, t.dtype, t.shape);
    if (z >= 0 && fz_type_of(g->p, z)->trains) z = fz_emit(g, fz_op_named("detach"), 1, z);
    if (z >= 0 && fz_chance(g, 70)) z = fz_emit(g, fz_op_named("scale"), 1, z);
    return fz_emit(g, op, 3, y, x, z);
}

static bool resolve_custom(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const y = fz_in(p, s, 0), *const x = fz_in(p, s, 1), *const z = fz_in(p, s, 2);
    s->k[0] = s->word[0] % 2;
    return fz_same(x, z) && x->dtype == y->dtype && rw_dtype_size(x->dtype) > 2 && rw_shape_numel(y->shape) > 0 &&
           like(s, 0, y) && fz_out(s, 0, y->dtype, y->shape, y->bound, z->bound * 40 + x->slope);
}

static void record_custom(struct fz_call *c)
{
    c->out[0] = rw_custom_grad_at(c->at, c->t, c->in[0], c->in + 1, 2,
                                  c->s->k[0] ? product_rule : forward_value_rule, NULL, 0);
}

/* ---- the gradient of a parameter as an operand ---- */

static int choose_gradient(struct fz_generator *g, int op)
{
    int found = -1, n = 0;
    for (int i = 0; i < g->p->n; i++)
        if (!strcmp(name_of(g->p, i * FZ_OUTS), "param") && fz_below(g, ++n) == 0) found = i * FZ_OUTS;
    return found < 0 ? -1 : fz_emit(g, op, 1, found);
}

static bool resolve_gradient(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (strcmp(name_of(p, s->in[0]), "param")) return false;
    return fz_out(s, 0, rw_dtype_size(x->dtype) == 2 ? RW_F32 : x->dtype, x->shape, 4, 0);
}

static void record_gradient(struct fz_call *c)
{
    c->out[0] = rw_gradient(c->in[0]);
}

/* ---- effects ---- */

/* Statistics of rows by column: x [n, c], running mean and variance [c]. */
static int choose_statistics(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 2, 4);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const rw_dtype dtype = t.dtype == RW_F64 ? RW_F64 : RW_F32;
    const rw_shape c = RW_SHAPE(t.shape.dim[1]);
    return fz_emit(g, op, 3, x, fz_new_leaf(g, "buffer", dtype, c, 2), fz_new_leaf(g, "buffer", dtype, c, 2));
}

static bool resolve_statistics(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const mean = fz_in(p, s, 1);
    if (!rw_dtype_is_float(x->dtype) || x->shape.rank < 2 || !rw_shape_numel(x->shape)) return false;
    if (rw_shape_numel(x->shape) / x->shape.dim[1] < 2) return false;
    if (mean->dtype != (x->dtype == RW_F64 ? RW_F64 : RW_F32) || !fz_same(mean, fz_in(p, s, 2)) ||
        !rw_shape_equal(mean->shape, RW_SHAPE(x->shape.dim[1])))
        return false;
    return fz_out(s, 0, x->dtype, x->shape, 5, x->slope * 3);
}

static void record_statistics(struct fz_call *c)
{
    const rw_batchnorm_params params = { .eps = 0.125, .momentum = 0.25 };
    c->out[0] = rw_batchnorm_at(c->at, c->t, c->in[0], RW_NONE, RW_NONE, c->in[1], c->in[2], &params);
}

static int choose_store(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 0, 6);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    return fz_emit(g, op, 2, x, fz_new_leaf(g, "buffer", t.dtype, t.shape, 2));
}

static bool resolve_store(const struct fz_program *p, struct fz_statement *s)
{
    return !strcmp(name_of(p, s->in[1]), "buffer") && fz_same(fz_in(p, s, 0), fz_in(p, s, 1));
}

static void record_store(struct fz_call *c)
{
    rw_apply_at(c->at, c->t, &fuzz_store, c->in, 2, NULL, 0, NULL);
}

/* ---- own ops: one that fails on demand, one that records what it draws ---- */

static bool resolve_like(const struct fz_program *p, struct fz_statement *s)
{
    return like(s, 0, fz_in(p, s, 0));
}

static void record_breaks(struct fz_call *c)
{
    c->out[0] = rw_apply_at(c->at, c->t, &fuzz_breaks, c->in, 1, NULL, 0, NULL);
}

static void record_draw(struct fz_call *c)
{
    const int64_t id = c->p->part * 1000 + (c->s - c->p->s);
    c->out[0] = rw_apply_at(c->at, c->t, &fuzz_draw, c->in, 1, &id, sizeof id, NULL);
}

/* ---- a layer under a precision recipe, from float32 to float32 ---- */

static int choose_layer(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 2, 3);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    const int64_t in = t.shape.dim[t.shape.rank - 1], out = 1 + fz_below(g, 6);
    return fz_emit(g, op, 2, x, fz_like(g, RW_F32, RW_SHAPE(out, in)));
}

static bool resolve_layer(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0), *const w = fz_in(p, s, 1);
    if (x->dtype != RW_F32 || w->dtype != RW_F32 || x->shape.rank < 2 || w->shape.rank != 2) return false;
    rw_shape y = x->shape;
    const int64_t n = y.dim[y.rank - 1];
    if (n != w->shape.dim[1] || !rw_shape_numel(x->shape) || !rw_shape_numel(w->shape)) return false;
    y.dim[y.rank - 1] = w->shape.dim[0];
    s->k[0] = s->word[0] % 6;
    s->k[1] = s->word[1] % 2;
    return fz_out(s, 0, RW_F32, y, x->bound * w->bound * (double)n,
                  (x->slope * w->bound + w->slope * x->bound) * (double)n);
}

static void record_layer(struct fz_call *c)
{
    static const rw_recipe recipes[] = {
        { .kind = RW_RECIPE_BF16 }, { .kind = RW_RECIPE_F16 }, { .kind = RW_RECIPE_F8 },
        { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_1X128 }, { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_MX },
        { .kind = RW_RECIPE_F8, .gradient_dtype = RW_F8_E4M3 }
    };
    rw_recipe recipe = recipes[c->s->k[0]];
    recipe.keep_weights = recipe.kind == RW_RECIPE_F8 && c->s->k[1];
    if (rw_recipe_begin_at(c->at, c->t, &recipe)) return;
    rw_tensor *const y = rw_linear_at(c->at, c->t, c->in[0], c->in[1], RW_NONE);
    rw_recipe_end_at(c->at, c->t);
    c->out[0] = rw_cast_at(c->at, c->t, y, RW_F32);
}

/* ---- parts with a policy of their own ---- */

static const char *const part_policies[] = { "full", "none", "selective:a", "uniform:1", "ops:linear,add" };

static bool resolve_part(const struct fz_program *p, struct fz_statement *s)
{
    (void)p;
    s->k[0] = s->word[0] % 5;
    return true;
}

static bool resolve_end(const struct fz_program *p, struct fz_statement *s)
{
    (void)p, (void)s;
    return true;
}

static void record_part(struct fz_call *c)
{
    ckpt_policy_begin_at(c->at, c->t, part_policies[c->s->k[0]]);
}

static void record_end(struct fz_call *c)
{
    ckpt_policy_end_at(c->at, c->t);
}

#define S FZ_SESSION

const struct fz_op fz_session_ops[] = {
    { "detach", 0, S, 0, choose_any, resolve_detach, record_detach, "rw_detach(t, $0)" },
    { "straight_through", 0, S, 2, choose_pair, resolve_straight, record_straight, "rw_straight_through(t, $0, $1)" },
    { "custom_grad", 0, S, 2, choose_custom, resolve_custom, record_custom,
      "rw_custom_grad(t, $0, { $1, $2 }, %0 ? sum of the upstream gradient times $2 : $2)" },
    { "gradient", 0, S, 0, choose_gradient, resolve_gradient, record_gradient, "rw_gradient($0)" },
    { "statistics", 0, S, 1, choose_statistics, resolve_statistics, record_statistics,
      "rw_batchnorm(t, $0, RW_NONE, RW_NONE, $1, $2, { .eps = 0.125, .momentum = 0.25 })" },
    { "fuzz_store", 0, S | FZ_MARK | FZ_HOST, 0, choose_store, resolve_store, record_store, "fuzz_store(t, $0, $1)" },
    { "fuzz_breaks", 0, S | FZ_HOST, 1, choose_any, resolve_like, record_breaks, "fuzz_breaks(t, $0)" },
    { "fuzz_draw", 0, S | FZ_HOST, 1, choose_any, resolve_like, record_draw, "fuzz_draw(t, $0)" },
    { "layer", 0, S, 3, choose_layer, resolve_layer, record_layer, "linear(t, $0, $1) under recipe %0, kept %1" },
    { "part_begin", 0, S | FZ_MARK, 0, NULL, resolve_part, record_part, "ckpt_policy_begin(t, policy %0)" },
    { "part_end", 0, S | FZ_MARK, 0, NULL, resolve_end, record_end, "ckpt_policy_end(t)" },
    { NULL },
};
