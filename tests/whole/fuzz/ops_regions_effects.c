/* Statements that are not ops: regions, decisions, names, effects, recorded gradients. */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/region_and_value_names.h"

#include <rewind/recompute.h>
#include <rewind/ops.h>

#include <math.h>
#include <string.h>

const char *const fz_region_names[FZ_NAMES] = { "a", "b", "c" };
const char *const fz_tag_names[FZ_NAMES] = { "x", "y", "z" };

static bool resolve_name(const struct fz_program *p, struct fz_statement *s)
{
    s->k[0] = s->word[0] % FZ_NAMES;
    return true;
}

static bool resolve_end(const struct fz_program *p, struct fz_statement *s)
{
    return true;
}

/* A value computed by the tape: decisions about leaves of the context are not allowed. */
static bool resolve_decision(const struct fz_program *p, struct fz_statement *s)
{
    s->k[0] = s->word[0] % FZ_NAMES;
    return !fz_is_leaf(p, s->in[0]);
}

static bool resolve_require(const struct fz_program *p, struct fz_statement *s)
{
    return rw_dtype_is_float(fz_in(p, s, 0)->dtype) && !fz_is_leaf(p, s->in[0]);
}

static int choose_decision(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static void record_begin(struct fz_call *c)
{
    ckpt_begin_at(c->at, c->t, fz_region_names[c->s->k[0]]);
}

static void record_end(struct fz_call *c)
{
    ckpt_end_at(c->at, c->t);
}

static void record_save(struct fz_call *c)
{
    ckpt_keep_at(c->at, c->t, c->in[0]);
}

static void record_recompute(struct fz_call *c)
{
    ckpt_recompute_at(c->at, c->t, c->in[0]);
}

static void record_offload(struct fz_call *c)
{
    ckpt_offload_at(c->at, c->t, c->in[0]);
}

static void record_name(struct fz_call *c)
{
    ckpt_name_at(c->at, c->t, c->in[0], fz_tag_names[c->s->k[0]]);
}

static void record_require(struct fz_call *c)
{
    rw_require_grad(c->t, c->in[0]);
}

/* An effect: a buffer of its own for each, so that none is written twice. */
static int choose_assign(struct fz_generator *g, int op)
{
    const int x = fz_any(g, 0, 6);
    if (x < 0) return -1;
    const struct fz_type t = *fz_type_of(g->p, x);
    return fz_emit(g, op, 2, fz_new_leaf(g, "buffer", t.dtype, t.shape, 2), x);
}

static bool resolve_assign(const struct fz_program *p, struct fz_statement *s)
{
    return !strcmp(fz_op(p->s[s->in[0] / FZ_OUTS].op)->name, "buffer") && fz_same(fz_in(p, s, 0), fz_in(p, s, 1));
}

static void record_assign(struct fz_call *c)
{
    rw_assign_at(c->at, c->t, c->in[0], c->in[1]);
}

/* Gradients of y with respect to one or two values on which it depends. */
static int choose_grad(struct fz_generator *g, int op)
{
    int y = -1;
    for (int tries = 0; tries < 8 && (y < 0 || !fz_type_of(g->p, y)->trains); tries++) y = fz_any(g, 0, 6);
    if (y < 0 || !fz_type_of(g->p, y)->trains) return -1;
    int in[FZ_INS] = { y }, n = 1;
    for (int tries = 0; tries < 30 && n < 3; tries++) {
        const int x = fz_any(g, 0, 6);
        if (x < 0 || x == y || !fz_type_of(g->p, x)->trains || !fz_depends(g->p, y, x)) continue;
        in[n++] = x;
        if (fz_chance(g, 60)) break;
    }
    return n > 1 ? fz_emit_list(g, op, n, in) : -1;
}

/*
 * The type of a 16-bit parameter's gradient is float32. For a value that may be the parameter itself, because an op may
 * return its operand, the type is not determined: no program requests it.
 */
static bool type_of_gradient(const struct fz_program *p, int value, rw_dtype *dtype)
{
    const bool param = !strcmp(fz_op(p->s[value / FZ_OUTS].op)->name, "param");
    if (rw_dtype_size(*dtype) != 2) return true;
    if (param) *dtype = RW_F32;
    return param || !fz_is_leaf(p, value);
}

static bool resolve_grad(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const y = fz_in(p, s, 0);
    if (!y->trains || s->n_in < 2 || fz_is_leaf(p, s->in[0])) return false;
    const double n = sqrt((double)rw_shape_numel(y->shape) + 1);
    for (int i = 1; i < s->n_in; i++) {
        const struct fz_type *const x = fz_in(p, s, i);
        if (!x->trains || !fz_depends(p, s->in[0], s->in[i])) return false;
        rw_dtype dtype = x->dtype;
        if (!type_of_gradient(p, s->in[i], &dtype)) return false;
        if (!fz_out(s, i - 1, dtype, x->shape, y->slope * n / 4 + 1, (y->slope + 1) * (y->slope + 1) * n / 4))
            return false;
    }
    return true;
}

static void record_grad(struct fz_call *c)
{
    rw_grad_at(c->at, c->t, c->in[0], c->in + 1, (size_t)c->s->n_in - 1, c->out);
}

/* The result of grad is not assumed to depend on anything: it has no flows. */
const struct fz_op fz_mark_ops[] = {
    { "ckpt_begin", 0, FZ_MARK, 0, NULL, resolve_name, record_begin, NULL },
    { "ckpt_end", 0, FZ_MARK, 0, NULL, resolve_end, record_end, "ckpt_end(t)" },
    { "ckpt_keep", 4, FZ_MARK, 0, choose_decision, resolve_decision, record_save, "ckpt_keep(t, $0)" },
    { "ckpt_recompute", 7, FZ_MARK, 0, choose_decision, resolve_decision, record_recompute, "ckpt_recompute(t, $0)" },
    { "ckpt_offload", 5, FZ_MARK, 0, choose_decision, resolve_decision, record_offload, "ckpt_offload(t, $0)" },
    { "ckpt_name", 5, FZ_MARK, 0, choose_decision, resolve_decision, record_name, NULL },
    { "rw_require_grad", 3, FZ_MARK, 0, choose_decision, resolve_require, record_require, "rw_require_grad(t, $0)" },
    { "rw_assign", 0, FZ_MARK, 0, choose_assign, resolve_assign, record_assign, "rw_assign(t, $0, $1)" },
    { "rw_grad", 8, 0, 0, choose_grad, resolve_grad, record_grad, NULL },
    { NULL },
};
