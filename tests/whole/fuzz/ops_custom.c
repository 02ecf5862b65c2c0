/* Statements of the caller's own ops. */
#include "whole/fuzz/generate.h"
#include "whole/fuzz/custom_ops.h"

#include <string.h>

static int choose_any(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static int choose_rows(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 1, 6));
}

static bool resolve_like(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    const char *const name = fz_op(s->op)->name;
    if (!rw_dtype_is_float(x->dtype)) return false;
    if (!strcmp(name, "fuzz_noise")) return fz_out(s, 0, x->dtype, x->shape, 1.5 * x->bound, 1.5 * x->slope);
    return fz_out(s, 0, x->dtype, x->shape, x->bound, x->slope);
}

static bool resolve_pair(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    return rw_dtype_is_float(x->dtype) &&
           fz_out(s, 0, x->dtype, x->shape, x->bound * x->bound, 2 * x->bound * x->slope) &&
           fz_out(s, 1, x->dtype, x->shape, x->bound, x->slope);
}

static bool resolve_top(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    rw_shape rows = x->shape;
    if (!rw_dtype_is_float(x->dtype) || !rows.rank || !rows.dim[rows.rank - 1]) return false;
    const double width = (double)rows.dim[--rows.rank];
    return fz_out(s, 0, x->dtype, rows, x->bound * width, x->slope * width) && fz_out(s, 1, RW_I32, rows, width, 0);
}

static void record_own(struct fz_call *c)
{
    const int64_t id = c->s - c->p->s;
    rw_apply_at(c->at, c->t, fz_op(c->s->op)->function, c->in, 1, &id, sizeof id, c->out);
}

static void record_jitter(struct fz_call *c)
{
    c->out[0] = rw_apply_at(c->at, c->t, &fuzz_jitter, c->in, 1, NULL, 0, NULL);
}

#define OWN(name, weight, choose, resolve, record) { #name, weight, FZ_HOST, 1, choose, resolve, record, NULL, &name }

const struct fz_op fz_custom_ops[] = {
    OWN(fuzz_pair, 5, choose_any, resolve_pair, record_own),
    OWN(fuzz_top, 5, choose_rows, resolve_top, record_own),
    OWN(fuzz_jitter, 4, choose_any, resolve_like, record_jitter),
    OWN(fuzz_noise, 3, choose_any, resolve_like, record_own),
    OWN(fuzz_tally, 3, choose_any, resolve_like, record_own),
    { NULL },
};
