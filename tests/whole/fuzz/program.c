/* Resolves a program: attributes, types and shapes of all statements, from its leaves and words. */
#include "whole/fuzz/program.h"

#include <string.h>

#define ELEMENTS_MAX 40000
#define BOUND_MAX 300.0
#define SLOPE_MAX 1e7

static const struct fz_op *const families[] = { fz_leaf_ops, fz_mark_ops,  fz_pointwise_ops, fz_reduce_ops,
                                                fz_shape_ops, fz_model_ops, fz_custom_ops, fz_select_ops,
                                                fz_loss_ops, fz_table_ops, fz_image_ops, fz_einsum_ops,
                                                fz_scan_ops, fz_session_ops };

const struct fz_op *fz_op(int op)
{
    for (size_t f = 0; f < sizeof families / sizeof *families; f++)
        for (const struct fz_op *o = families[f]; o->name; o++)
            if (op-- == 0) return o;
    return NULL;
}

int fz_ops(void)
{
    static int n;
    while (!n || fz_op(n)) n++;
    return n;
}

int fz_op_named(const char *name)
{
    for (int i = 0; i < fz_ops(); i++)
        if (!strcmp(fz_op(i)->name, name)) return i;
    return -1;
}

const struct fz_type *fz_type_of(const struct fz_program *p, int value)
{
    return &p->s[value / FZ_OUTS].out[value % FZ_OUTS];
}

bool fz_out(struct fz_statement *s, int i, rw_dtype dtype, rw_shape shape, double bound, double slope)
{
    if (shape.rank > 6 || rw_shape_numel(shape) > ELEMENTS_MAX || bound > BOUND_MAX || slope > SLOPE_MAX)
        return false;
    s->out[i] = (struct fz_type){
        .dtype = dtype, .shape = shape, .bound = bound, .slope = slope, .trains = s->out[i].trains
    };
    if (s->n_out <= i) s->n_out = (uint8_t)(i + 1);
    return true;
}

bool fz_broadcast(rw_shape a, rw_shape b, rw_shape *ret)
{
    rw_shape out = { .rank = a.rank > b.rank ? a.rank : b.rank };
    for (int i = 1; i <= out.rank; i++) {
        const int64_t m = i <= a.rank ? a.dim[a.rank - i] : 1, n = i <= b.rank ? b.dim[b.rank - i] : 1;
        if (m != n && m != 1 && n != 1) return false;
        out.dim[out.rank - i] = m == 1 ? n : m;
    }
    *ret = out;
    return true;
}

static bool operands_are_there(const struct fz_program *p, int at)
{
    const struct fz_statement *const s = &p->s[at];
    for (int i = 0; i < s->n_in; i++) {
        const int from = s->in[i] / FZ_OUTS;
        if (s->in[i] < 0 || from >= at || p->s[from].dropped || s->in[i] % FZ_OUTS >= p->s[from].n_out) return false;
    }
    return true;
}

bool fz_resolve_statement(struct fz_program *p, int at)
{
    struct fz_statement *const s = &p->s[at];
    const struct fz_op *const op = fz_op(s->op);
    if (s->dropped) return true;
    if (!operands_are_there(p, at)) return false;
    bool trains = !strcmp(op->name, "param");
    for (int i = 0; i < s->n_in; i++) trains |= (op->flows >> i & 1) && fz_in(p, s, i)->trains;
    if (!(op->flags & (FZ_LEAF | FZ_MARK))) s->n_out = 0;
    if (!op->resolve(p, s)) return false;
    for (int i = 0; i < s->n_out; i++) s->out[i].trains = trains && rw_dtype_is_float(s->out[i].dtype);
    return true;
}

bool fz_is_leaf(const struct fz_program *p, int value)
{
    static const char *const may_return_their_operand[] = { "contiguous", "cast", "dropout", "pad", "gradient" };
    const struct fz_op *const op = fz_op(p->s[value / FZ_OUTS].op);
    for (size_t i = 0; i < sizeof may_return_their_operand / sizeof *may_return_their_operand; i++)
        if (!strcmp(op->name, may_return_their_operand[i])) return fz_is_leaf(p, p->s[value / FZ_OUTS].in[0]);
    return op->flags & FZ_LEAF;
}

static bool regions_match(const struct fz_program *p)
{
    int depth = 0;
    for (int i = 0; i < p->n; i++) {
        if (p->s[i].dropped) continue;
        const char *const name = fz_op(p->s[i].op)->name;
        depth += !strcmp(name, "ckpt_begin") ? 1 : !strcmp(name, "ckpt_end") ? -1 : 0;
        if (depth < 0) return false;
    }
    return depth == 0;
}

static bool value_is_there(const struct fz_program *p, int value)
{
    return !p->s[value / FZ_OUTS].dropped && value % FZ_OUTS < p->s[value / FZ_OUTS].n_out;
}

bool fz_resolve(struct fz_program *p, const char **ret_why)
{
    const char *unused, **const why = ret_why ? ret_why : &unused;
    for (int i = 0; i < p->n; i++)
        if (!fz_resolve_statement(p, i)) return *why = fz_op(p->s[i].op)->name, false;
    if (!regions_match(p)) return *why = "regions", false;
    for (int i = 0; i < p->n_losses; i++) {
        if (!value_is_there(p, p->loss[i])) return *why = "a loss is gone", false;
        const struct fz_type *const loss = fz_type_of(p, p->loss[i]);
        if (!loss->trains || rw_shape_numel(loss->shape) != 1 || fz_is_leaf(p, p->loss[i]))
            return *why = "a loss is none", false;
    }
    for (int i = 0; i < p->n_actions; i++) {
        const struct fz_action *const a = &p->action[i];
        if (a->dropped) continue;
        const bool reads = a->kind == FZ_READ || a->kind == FZ_EVAL;
        if (reads ? !value_is_there(p, a->value) : a->loss >= p->n_losses) return *why = "an action", false;
    }
    return p->n_losses > 0 || p->evaluates;
}

bool fz_depends(const struct fz_program *p, int y, int x)
{
    bool on[FZ_STATEMENTS * FZ_OUTS] = { false };
    on[x] = true;
    for (int i = x / FZ_OUTS + 1; i <= y / FZ_OUTS; i++) {
        const struct fz_statement *const s = &p->s[i];
        if (s->dropped) continue;
        bool depends = false;
        for (int k = 0; k < s->n_in; k++) depends |= (fz_op(s->op)->flows >> k & 1) && on[s->in[k]];
        for (int k = 0; k < s->n_out; k++) on[i * FZ_OUTS + k] |= depends && rw_dtype_is_float(s->out[k].dtype);
    }
    return on[y];
}

bool fz_is_used(const struct fz_program *p, int statement)
{
    for (int i = statement + 1; i < p->n; i++)
        for (int k = 0; !p->s[i].dropped && k < p->s[i].n_in; k++)
            if (p->s[i].in[k] / FZ_OUTS == statement) return true;
    for (int i = 0; i < p->n_losses; i++)
        if (p->loss[i] / FZ_OUTS == statement) return true;
    for (int i = 0; i < p->n_actions; i++)
        if (!p->action[i].dropped && (p->action[i].kind == FZ_READ || p->action[i].kind == FZ_EVAL) &&
            p->action[i].value / FZ_OUTS == statement)
            return true;
    return false;
}

/* Compares the members: padding bytes between them are undefined. */

static bool same_type(const struct fz_type *a, const struct fz_type *b)
{
    return fz_same(a, b) && a->bound == b->bound && a->slope == b->slope && a->trains == b->trains;
}

static bool same_statement(const struct fz_statement *a, const struct fz_statement *b)
{
    if (a->op != b->op || a->n_in != b->n_in || a->n_out != b->n_out || a->dropped != b->dropped || a->f != b->f)
        return false;
    if (memcmp(a->word, b->word, sizeof a->word) || memcmp(a->k, b->k, sizeof a->k)) return false;
    for (int i = 0; i < a->n_in; i++)
        if (a->in[i] != b->in[i]) return false;
    for (int i = 0; i < a->n_out; i++)
        if (!same_type(&a->out[i], &b->out[i])) return false;
    return true;
}

static bool same_settings(const struct fz_program *a, const struct fz_program *b)
{
    for (int i = 0; i < FZ_STEPS; i++)
        if (strcmp(a->policy[i], b->policy[i]) || a->threads[i] != b->threads[i]) return false;
    return a->seed == b->seed && a->numbers == b->numbers && a->steps == b->steps && a->mode == b->mode &&
           a->two_tapes == b->two_tapes && a->accumulates == b->accumulates && a->clips == b->clips;
}

bool fz_equal(const struct fz_program *a, const struct fz_program *b)
{
    if (!same_settings(a, b) || a->n != b->n || a->n_actions != b->n_actions || a->n_losses != b->n_losses)
        return false;
    for (int i = 0; i < a->n; i++)
        if (!same_statement(&a->s[i], &b->s[i])) return false;
    for (int i = 0; i < a->n_losses; i++)
        if (a->loss[i] != b->loss[i]) return false;
    for (int i = 0; i < a->n_actions; i++) {
        const struct fz_action *const x = &a->action[i], *const y = &b->action[i];
        if (x->kind != y->kind || x->loss != y->loss || x->dropped != y->dropped || x->value != y->value) return false;
    }
    return true;
}
