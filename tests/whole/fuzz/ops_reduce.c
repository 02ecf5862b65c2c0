/* Statements of reductions and softmaxes over random axes, with the axes kept or not. */
#include "whole/fuzz/generate.h"

#include <rewind/ops.h>

#include <math.h>
#include <string.h>

typedef rw_tensor *(*reduce_fn)(rw_site, rw_tape *, rw_tensor *, uint32_t, bool);
typedef rw_tensor *(*axis_fn)(rw_site, rw_tape *, rw_tensor *, int);

static int choose_any(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static int choose_ranked(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 1, 6));
}

static int choose_matrix(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 2, 6));
}

/* k[0]: set of axes, k[1]: kept, k[2]: number of elements reduced to one */
static rw_shape reduced(struct fz_statement *s, rw_shape x)
{
    const uint32_t all = (1u << x.rank) - 1;
    uint32_t mask = s->word[0] % 4 == 0 || !x.rank ? all : s->word[1] & all;
    if (!mask && x.rank) mask = 1u << s->word[1] % (uint32_t)x.rank;
    s->k[0] = mask;
    s->k[1] = s->word[0] >> 8 & 1;
    s->k[2] = 1;
    rw_shape out = { 0 };
    for (int i = 0; i < x.rank; i++) {
        if (mask >> i & 1) s->k[2] *= x.dim[i];
        if (!(mask >> i & 1)) out.dim[out.rank++] = x.dim[i];
        else if (s->k[1]) out.dim[out.rank++] = 1;
    }
    return out;
}

static bool resolve_reduce(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    const char *const name = fz_op(s->op)->name;
    if (!rw_dtype_is_float(x->dtype)) return false;
    const rw_shape out = reduced(s, x->shape);
    const double n = (double)s->k[2];
    if (!strcmp(name, "sum")) return fz_out(s, 0, x->dtype, out, x->bound * n, x->slope * n);
    if (!strcmp(name, "logsumexp")) return n > 0 && fz_out(s, 0, x->dtype, out, x->bound + log(n), x->slope);
    return n > 0 && fz_out(s, 0, x->dtype, out, x->bound, x->slope); /* of no elements there is no mean or maximum */
}

static bool resolve_sum_to(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    rw_shape out = { 0 };
    double n = 1;
    if (!rw_dtype_is_float(x->dtype)) return false;
    const int skip = x->shape.rank ? (int)(s->word[0] % (uint32_t)(x->shape.rank + 1)) : 0;
    for (int i = 0; i < x->shape.rank; i++) {
        const bool one = s->word[1] >> i & 1;
        if (i >= skip) out.dim[out.rank++] = one ? 1 : x->shape.dim[i];
        if (i < skip || one) n *= (double)x->shape.dim[i];
    }
    return fz_out(s, 0, x->dtype, out, x->bound * n, x->slope * n);
}

static bool resolve_axis(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!rw_dtype_is_float(x->dtype) || !x->shape.rank) return false;
    s->k[0] = s->word[0] % (uint32_t)x->shape.rank;
    const double n = (double)x->shape.dim[s->k[0]];
    if (s->word[1] & 1) s->k[0] -= x->shape.rank;
    if (!strcmp(fz_op(s->op)->name, "softmax")) return fz_out(s, 0, x->dtype, x->shape, 1, x->slope);
    return fz_out(s, 0, x->dtype, x->shape, 2 * x->bound + log(n + 1), 2 * x->slope);
}

static bool resolve_causal(const struct fz_program *p, struct fz_statement *s)
{
    static const double scales[] = { 1, 0.5, 0.125 };
    const struct fz_type *const x = fz_in(p, s, 0);
    s->f = scales[s->word[0] % 3];
    return x->shape.rank >= 2 && rw_dtype_is_float(x->dtype) && fz_out(s, 0, x->dtype, x->shape, 1, x->slope);
}

static void record_reduce(struct fz_call *c)
{
    const bool all = c->s->k[0] == (1 << rw_tensor_shape(c->in[0]).rank) - 1;
    c->out[0] = (*(const reduce_fn *)fz_op(c->s->op)->function)(c->at, c->t, c->in[0],
                                                                all ? RW_ALL_AXES : (uint32_t)c->s->k[0], c->s->k[1]);
}

static void record_sum_to(struct fz_call *c)
{
    c->out[0] = rw_sum_to_at(c->at, c->t, c->in[0], c->s->out[0].shape);
}

static void record_axis(struct fz_call *c)
{
    c->out[0] = (*(const axis_fn *)fz_op(c->s->op)->function)(c->at, c->t, c->in[0], (int)c->s->k[0]);
}

static void record_causal(struct fz_call *c)
{
    c->out[0] = rw_causal_softmax_at(c->at, c->t, c->in[0], (float)c->s->f);
}

/* A term of a loss: a scalar computed from any value. */
static bool resolve_term(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    if (!rw_dtype_is_float(x->dtype)) return false;
    s->k[0] = s->word[0] % 3;
    s->f = rw_shape_numel(x->shape) ? 1 / (double)rw_shape_numel(x->shape) : 1;
    return fz_out(s, 0, RW_F32, RW_SCALAR, 1, x->slope);
}

static void record_term(struct fz_call *c)
{
    rw_tensor *x = c->in[0];
    x = c->s->k[0] == 0   ? rw_mul_at(c->at, c->t, x, rw_tanh_at(c->at, c->t, x))
        : c->s->k[0] == 1 ? rw_tanh_at(c->at, c->t, x)
                          : x;
    x = rw_scale_at(c->at, c->t, rw_sum_at(c->at, c->t, x, RW_ALL_AXES, false), c->s->f);
    c->out[0] = rw_cast_at(c->at, c->t, x, RW_F32);
}

static int choose_term(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

static const reduce_fn fn_sum = rw_sum_at, fn_mean = rw_mean_at, fn_max = rw_max_at, fn_logsumexp = rw_logsumexp_at;
static const axis_fn fn_softmax = rw_softmax_at, fn_log_softmax = rw_log_softmax_at;

const struct fz_op fz_reduce_ops[] = {
    { "sum", 4, 0, 1, choose_any, resolve_reduce, record_reduce, "rw_sum(t, $0, #, %1)", &fn_sum },
    { "mean", 5, 0, 1, choose_any, resolve_reduce, record_reduce, "rw_mean(t, $0, #, %1)", &fn_mean },
    { "max", 4, 0, 1, choose_any, resolve_reduce, record_reduce, "rw_max(t, $0, #, %1)", &fn_max },
    { "logsumexp", 4, 0, 1, choose_any, resolve_reduce, record_reduce, "rw_logsumexp(t, $0, #, %1)", &fn_logsumexp },
    { "sum_to", 3, 0, 1, choose_any, resolve_sum_to, record_sum_to, "rw_sum_to(t, $0, @0)" },
    { "softmax", 6, 0, 1, choose_ranked, resolve_axis, record_axis, "rw_softmax(t, $0, %0)", &fn_softmax },
    { "log_softmax", 4, 0, 1, choose_ranked, resolve_axis, record_axis, "rw_log_softmax(t, $0, %0)", &fn_log_softmax },
    { "causal_softmax", 4, 0, 1, choose_matrix, resolve_causal, record_causal, "rw_causal_softmax(t, $0, ~f)" },
    { "loss_term", 1, 0, 1, choose_term, resolve_term, record_term, NULL },
    { NULL },
};
