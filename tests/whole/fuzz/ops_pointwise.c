/* Statements of element-wise ops. If a function is not defined everywhere, its argument is shifted into its domain. */
#include "whole/fuzz/generate.h"

#include <rewind/ops.h>

#include <math.h>
#include <string.h>

typedef rw_tensor *(*unary_fn)(rw_site, rw_tape *, rw_tensor *);
typedef rw_tensor *(*binary_fn)(rw_site, rw_tape *, rw_tensor *, rw_tensor *);

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static int choose_unary(struct fz_generator *g, int op)
{
    return fz_emit(g, op, 1, fz_any(g, 0, 6));
}

/* x's shape, with random axes of extent 1 and leading axes missing */
static rw_shape narrowed(struct fz_generator *g, rw_shape x)
{
    rw_shape s = { 0 };
    const int skip = fz_chance(g, 40) && x.rank ? (int)fz_below(g, x.rank + 1) : 0;
    for (int i = skip; i < x.rank; i++) s.dim[s.rank++] = fz_chance(g, 25) ? 1 : x.dim[i];
    return s;
}

/* An operand to broadcast with a: any value that does, or one whose shape is a's, narrowed. */
static int partner(struct fz_generator *g, int a)
{
    const struct fz_type *const x = fz_type_of(g->p, a);
    rw_shape joint;
    for (int tries = 0; tries < 6; tries++) {
        const int b = fz_any(g, 0, 6);
        const struct fz_type *const y = b < 0 ? NULL : fz_type_of(g->p, b);
        if (y && y->dtype == x->dtype && fz_broadcast(x->shape, y->shape, &joint)) return b;
    }
    return fz_like(g, x->dtype, fz_chance(g, 60) ? x->shape : narrowed(g, x->shape));
}

static int choose_binary(struct fz_generator *g, int op)
{
    const int a = fz_any(g, 0, 6);
    if (a < 0) return -1;
    const int b = partner(g, a);
    return fz_chance(g, 50) ? fz_emit(g, op, 2, a, b) : fz_emit(g, op, 2, b, a);
}

static int choose_equal(struct fz_generator *g, int op)
{
    const int a = fz_any(g, 0, 6);
    return a < 0 ? -1 : fz_emit(g, op, 2, a, fz_like(g, fz_type_of(g->p, a)->dtype, fz_type_of(g->p, a)->shape));
}

static bool is_float(const struct fz_type *x)
{
    return rw_dtype_is_float(x->dtype);
}

static bool unary(const struct fz_program *p, struct fz_statement *s, double bound, double steepest)
{
    const struct fz_type *const x = fz_in(p, s, 0);
    return is_float(x) && fz_out(s, 0, x->dtype, x->shape, bound, x->slope * steepest);
}

static bool resolve_same(const struct fz_program *p, struct fz_statement *s)
{
    return unary(p, s, fz_in(p, s, 0)->bound, 1.2); /* silu and gelu are slightly steeper than 1 */
}

static bool resolve_tanh(const struct fz_program *p, struct fz_statement *s)
{
    return unary(p, s, 1, 1);
}

static bool resolve_exp(const struct fz_program *p, struct fz_statement *s)
{
    const double b = fz_in(p, s, 0)->bound;
    return b <= 5 && unary(p, s, exp(b), exp(b));
}

static bool resolve_log(const struct fz_program *p, struct fz_statement *s)
{
    return unary(p, s, larger(0.7, log(fz_in(p, s, 0)->bound + 0.5)), 2);
}

/* log(1 + x) of values of at least 0.5. */
static bool resolve_log1p(const struct fz_program *p, struct fz_statement *s)
{
    return unary(p, s, log(fz_in(p, s, 0)->bound + 1.5), 1);
}

static bool resolve_erf(const struct fz_program *p, struct fz_statement *s)
{
    return unary(p, s, 1, 1.2);
}

static bool resolve_softplus(const struct fz_program *p, struct fz_statement *s)
{
    return unary(p, s, fz_in(p, s, 0)->bound + 0.7, 1);
}

static bool resolve_scalar(const struct fz_program *p, struct fz_statement *s)
{
    static const double values[] = { 0.5, -1.25, 2, 0.375, 1, -0.0625 };
    s->f = values[s->word[0] % 6];
    const double b = fz_in(p, s, 0)->bound;
    const bool scales = !strcmp(fz_op(s->op)->name, "scale");
    return scales ? unary(p, s, b * fabs(s->f), fabs(s->f)) : unary(p, s, b + fabs(s->f), 1);
}

static bool resolve_pow(const struct fz_program *p, struct fz_statement *s)
{
    static const double values[] = { 2, -1, 0.5, 3, -0.5, 0, 1 };
    s->f = values[s->word[0] % 7];
    const double b = fz_in(p, s, 0)->bound + 0.5;
    return unary(p, s, larger(pow(0.5, s->f), pow(b, s->f)), fabs(s->f) * larger(pow(0.5, s->f - 1), pow(b, s->f - 1)));
}

static bool binary(const struct fz_program *p, struct fz_statement *s, double bound, double slope)
{
    const struct fz_type *const a = fz_in(p, s, 0), *const b = fz_in(p, s, 1);
    rw_shape joint;
    if (!is_float(a) || a->dtype != b->dtype || !fz_broadcast(a->shape, b->shape, &joint)) return false;
    /* a broadcast operand gets the sum of the gradients of its copies */
    return fz_out(s, 0, a->dtype, joint, bound, slope);
}

static bool resolve_sum(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const a = fz_in(p, s, 0), *const b = fz_in(p, s, 1);
    return binary(p, s, a->bound + b->bound, a->slope + b->slope);
}

static bool resolve_product(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const a = fz_in(p, s, 0), *const b = fz_in(p, s, 1);
    return binary(p, s, a->bound * b->bound, a->slope * b->bound + 1.2 * b->slope * a->bound);
}

static bool resolve_quotient(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const a = fz_in(p, s, 0), *const b = fz_in(p, s, 1);
    return binary(p, s, 2 * a->bound, 2 * a->slope + 4 * a->bound * b->slope);
}

static bool resolve_larger(const struct fz_program *p, struct fz_statement *s)
{
    const struct fz_type *const a = fz_in(p, s, 0), *const b = fz_in(p, s, 1);
    return binary(p, s, larger(a->bound, b->bound), a->slope + b->slope);
}

static bool resolve_swiglu(const struct fz_program *p, struct fz_statement *s)
{
    return rw_shape_equal(fz_in(p, s, 0)->shape, fz_in(p, s, 1)->shape) && resolve_product(p, s);
}

static void record_unary(struct fz_call *c)
{
    c->out[0] = (*(const unary_fn *)fz_op(c->s->op)->function)(c->at, c->t, c->in[0]);
}

static void record_binary(struct fz_call *c)
{
    c->out[0] = (*(const binary_fn *)fz_op(c->s->op)->function)(c->at, c->t, c->in[0], c->in[1]);
}

static rw_tensor *shifted(struct fz_call *c, rw_tensor *x)
{
    return rw_add_scalar_at(c->at, c->t, rw_abs_at(c->at, c->t, x), 0.5);
}

static void record_shifted(struct fz_call *c)
{
    c->out[0] = (*(const unary_fn *)fz_op(c->s->op)->function)(c->at, c->t, shifted(c, c->in[0]));
}

static void record_pow(struct fz_call *c)
{
    c->out[0] = rw_pow_scalar_at(c->at, c->t, shifted(c, c->in[0]), c->s->f);
}

static void record_div(struct fz_call *c)
{
    c->out[0] = rw_div_at(c->at, c->t, c->in[0], shifted(c, c->in[1]));
}

static void record_scale(struct fz_call *c)
{
    c->out[0] = rw_scale_at(c->at, c->t, c->in[0], c->s->f);
}

static void record_add_scalar(struct fz_call *c)
{
    c->out[0] = rw_add_scalar_at(c->at, c->t, c->in[0], c->s->f);
}

/* A pointer to data can point to a pointer to a function, but not to a function. */
#define FN(name, type) static const type fn_##name = rw_##name##_at;
FN(neg, unary_fn) FN(abs, unary_fn) FN(exp, unary_fn) FN(log, unary_fn) FN(sqrt, unary_fn) FN(tanh, unary_fn)
FN(sigmoid, unary_fn) FN(relu, unary_fn) FN(silu, unary_fn) FN(gelu, unary_fn) FN(gelu_tanh, unary_fn)
FN(log1p, unary_fn) FN(softplus, unary_fn) FN(sin, unary_fn) FN(cos, unary_fn) FN(erf, unary_fn)
FN(minimum, binary_fn)
FN(add, binary_fn) FN(sub, binary_fn) FN(mul, binary_fn) FN(maximum, binary_fn) FN(swiglu, binary_fn)

#define UNARY(name, weight, resolve) \
    { #name, weight, 0, 1, choose_unary, resolve, record_unary, "rw_" #name "(t, $0)", &fn_##name }
#define SHIFTED(name, resolve) \
    { #name, 3, 0, 1, choose_unary, resolve, record_shifted, "rw_" #name "(t, rw_add_scalar(t, rw_abs(t, $0), 0.5))", \
      &fn_##name }
#define BINARY(name, weight, choose, resolve) \
    { #name, weight, 0, 3, choose, resolve, record_binary, "rw_" #name "(t, $0, $1)", &fn_##name }

const struct fz_op fz_pointwise_ops[] = {
    UNARY(neg, 2, resolve_same),
    UNARY(abs, 2, resolve_same),
    UNARY(exp, 5, resolve_exp),
    UNARY(tanh, 6, resolve_tanh),
    UNARY(sigmoid, 4, resolve_tanh),
    UNARY(relu, 3, resolve_same),
    UNARY(silu, 3, resolve_same),
    UNARY(gelu, 4, resolve_same),
    UNARY(gelu_tanh, 3, resolve_same),
    UNARY(sin, 2, resolve_tanh),
    UNARY(cos, 2, resolve_tanh),
    UNARY(erf, 3, resolve_erf),
    UNARY(softplus, 3, resolve_softplus),
    SHIFTED(log, resolve_log),
    SHIFTED(log1p, resolve_log1p),
    SHIFTED(sqrt, resolve_same),
    { "pow_scalar", 3, 0, 1, choose_unary, resolve_pow, record_pow,
      "rw_pow_scalar(t, rw_add_scalar(t, rw_abs(t, $0), 0.5), ~)" },
    { "scale", 3, 0, 1, choose_unary, resolve_scalar, record_scale, "rw_scale(t, $0, ~)" },
    { "add_scalar", 3, 0, 1, choose_unary, resolve_scalar, record_add_scalar, "rw_add_scalar(t, $0, ~)" },
    BINARY(add, 9, choose_binary, resolve_sum),
    BINARY(sub, 5, choose_binary, resolve_sum),
    BINARY(mul, 9, choose_binary, resolve_product),
    BINARY(maximum, 4, choose_binary, resolve_larger),
    BINARY(minimum, 4, choose_binary, resolve_larger),
    BINARY(swiglu, 4, choose_equal, resolve_swiglu),
    { "div", 4, 0, 3, choose_binary, resolve_quotient, record_div,
      "rw_div(t, $0, rw_add_scalar(t, rw_abs(t, $1), 0.5))" },
    { NULL },
};
