/* Definitions of element-wise ops: arithmetic, functions, activations, bounds (rewind/ops.h and pointwise.h). */
#include "support/cases/functions.h"
#include "support/definition_runner.h"

#include <math.h>
#include <string.h>

/* ---- functions of one operand: the table of functions.h ---- */

enum { FN_FUNCTION, FN_RANK, FN_LAYOUT };

/* A row of the table, if it has a definition. */
static const struct op_function *function_of(const struct def_trial *c)
{
    size_t n;
    const struct op_function *const all = op_functions(&n);
    const size_t i = (size_t)c->v[FN_FUNCTION];
    return i < n && all[i].of ? &all[i] : NULL;
}

static double function_number(const struct def_trial *c, int64_t i)
{
    return function_of(c)->number(i);
}

static bool unary_make(struct def_trial *c)
{
    if (!function_of(c)) return false;
    def_operand(c, 0, def_shape(c->v[FN_RANK]), DEF_SIGNED, c->v[FN_LAYOUT])->value = function_number;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool unary_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = op_function_record(t, function_of(c), x[0]));
}

static void unary_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    const struct op_function *const f = function_of(c);
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = f->of(x[0][i], (real)op_function_constant(f));
}

/* ---- at kinks, NaN and infinity: values and slopes of the headers ---- */

static const struct op_corner *corner_of(const struct def_trial *c)
{
    size_t n;
    const struct op_corner *const all = op_corners(&n);
    return (size_t)c->v[0] < n ? &all[c->v[0]] : NULL;
}

static double corner_value(const struct def_trial *c, int64_t i)
{
    (void)i;
    return corner_of(c)->x;
}

static bool corner_make(struct def_trial *c)
{
    static const int64_t extents[] = { 1, 3, 8, 19 };
    if (!corner_of(c)) return false;
    def_operand(c, 0, RW_SHAPE(extents[c->v[1]]), DEF_SIGNED, DEF_DENSE)->value = corner_value;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool corner_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = op_function_record(t, op_function_named(corner_of(c)->name), x[0]));
}

static void corner_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    (void)x;
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = (real)corner_of(c)->y;
}

static void corner_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    (void)x;
    for (int64_t i = 0; i < c->in[0].numel; i++) dx[0][i] = dy[0][i] * (real)corner_of(c)->slope;
}

/* ---- two operands that broadcast ---- */

static double above_one(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 37 + 11) % 97 + 32) / 32;
}

static double large(const struct def_trial *c, int64_t i)
{
    return above_one(c, i) * (i % 2 ? 1 : -1);
}

enum { TWO_OP, TWO_A, TWO_B, TWO_A_LAYOUT, TWO_B_LAYOUT };

static double apart(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 23 + 5) % 97 - 48) / 32 + 1. / 128;
}

enum { ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, POW, TWO_OPS };

static bool binary_make(struct def_trial *c)
{
    const rw_shape *const a = def_broadcastable(c->v[TWO_A]), *const b = def_broadcastable(c->v[TWO_B]);
    def_operand(c, 0, *a, DEF_SIGNED, c->v[TWO_A_LAYOUT]);
    def_operand(c, 1, *b, DEF_SIGNED, c->v[TWO_B_LAYOUT]);
    if (c->v[TWO_OP] == POW) c->in[0].value = above_one;
    if (c->v[TWO_OP] == DIV) c->in[1].value = large;
    if (c->v[TWO_OP] == MAXIMUM || c->v[TWO_OP] == MINIMUM) c->in[1].value = apart;
    c->out[0] = def_broadcast(*a, *b);
    return true;
}

static bool binary_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    switch (c->v[TWO_OP]) {
    case ADD: y[0] = rw_add(t, x[0], x[1]); break;
    case SUB: y[0] = rw_sub(t, x[0], x[1]); break;
    case MUL: y[0] = rw_mul(t, x[0], x[1]); break;
    case DIV: y[0] = rw_div(t, x[0], x[1]); break;
    case MAXIMUM: y[0] = rw_maximum(t, x[0], x[1]); break;
    case MINIMUM: y[0] = rw_minimum(t, x[0], x[1]); break;
    default: y[0] = rw_pow(t, x[0], x[1]); break;
    }
    return y[0];
}

static void binary_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    do {
        const real a = x[0][def_at(c->in[0].shape, at, c->out[0].rank)];
        const real b = x[1][def_at(c->in[1].shape, at, c->out[0].rank)];
        const real all[] = { a + b, a - b, a * b, a / b, a >= b ? a : b, a <= b ? a : b, powl(fabsl(a), b) };
        y[0][i++] = all[c->v[TWO_OP]];
    } while (def_next(c->out[0], at));
}

/* Equal operands: the gradient goes to the first. Base 0 and exponent 0 of pow. */
static bool equal_make(struct def_trial *c)
{
    def_operand(c, 0, *def_broadcastable(c->v[1]), DEF_TIES, c->v[3]);
    def_operand(c, 1, *def_broadcastable(c->v[2]), DEF_TIES, c->v[4]);
    c->out[0] = def_broadcast(c->in[0].shape, c->in[1].shape);
    return true;
}

static bool equal_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = c->v[0] ? rw_minimum(t, x[0], x[1]) : rw_maximum(t, x[0], x[1]));
}

static void equal_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    do {
        const real a = x[0][def_at(c->in[0].shape, at, c->out[0].rank)];
        const real b = x[1][def_at(c->in[1].shape, at, c->out[0].rank)];
        y[0][i++] = c->v[0] ? fminl(a, b) : fmaxl(a, b);
    } while (def_next(c->out[0], at));
}

static void equal_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    do {
        const int64_t m = def_at(c->in[0].shape, at, c->out[0].rank), n = def_at(c->in[1].shape, at, c->out[0].rank);
        const bool first = c->v[0] ? x[0][m] <= x[1][n] : x[0][m] >= x[1][n];
        if (first) dx[0][m] += dy[0][i];
        else dx[1][n] += dy[0][i];
        i++;
    } while (def_next(c->out[0], at));
}

/* swiglu, clamp_tensor: operands with one shape; bounds that broadcast. */

static bool swiglu_make(struct def_trial *c)
{
    def_operand(c, 0, def_shape(c->v[0]), DEF_SIGNED, c->v[1]);
    def_operand(c, 1, def_shape(c->v[0]), DEF_SIGNED, c->v[2]);
    c->out[0] = c->in[0].shape;
    return true;
}

static bool swiglu_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)c;
    return (y[0] = rw_swiglu(t, x[0], x[1]));
}

static void swiglu_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    real (*const silu)(real x, real a) = op_function_named("silu")->of;
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = silu(x[0][i], 0) * x[1][i];
}

static bool clamp_make(struct def_trial *c)
{
    def_operand(c, 0, *def_broadcastable(c->v[0]), DEF_SIGNED, c->v[1]);
    def_operand(c, 1, *def_broadcastable(c->v[2]), DEF_SIGNED, DEF_DENSE)->value = apart;
    def_operand(c, 2, *def_broadcastable(c->v[3]), DEF_UNIT, c->v[4])->value = apart;
    c->in[1].is_absent = c->v[5] == 1;
    c->in[2].is_absent = c->v[5] == 2;
    c->out[0] = *def_broadcastable(c->v[0]);
    if (!c->in[1].is_absent) c->out[0] = def_broadcast(c->out[0], *def_broadcastable(c->v[2]));
    if (!c->in[2].is_absent) c->out[0] = def_broadcast(c->out[0], *def_broadcastable(c->v[3]));
    return c->v[5] || c->v[2] != c->v[3] || c->v[4]; /* excludes equal numbers in both bounds */
}

static bool clamp_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    (void)c;
    return (y[0] = rw_clamp_tensor(t, x[0], x[1], x[2]));
}

/* The clamp by tensors, or its gradient, which goes to the operand that the value comes from. */
static void clamp_all(const struct def_trial *c, real *const *x, real *y, real *const *dy, real *const *dx)
{
    int64_t at[RW_MAX_RANK] = { 0 }, i = 0;
    do {
        int64_t place[3] = { 0 };
        for (int k = 0; k < 3; k++)
            if (x[k]) place[k] = def_at(c->in[k].shape, at, c->out[0].rank);
        int from = 0;
        real value = x[0][place[0]];
        if (x[1] && value < x[1][place[1]]) from = 1, value = x[1][place[1]];
        if (x[2] && value > x[2][place[2]]) from = 2, value = x[2][place[2]];
        if (y) y[i] = value;
        else dx[from][place[from]] += dy[0][i];
        i++;
    } while (def_next(c->out[0], at));
}

static void clamp_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    clamp_all(c, x, y[0], NULL, NULL);
}

static void clamp_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    clamp_all(c, x, NULL, dy, dx);
}

#define PAIR                                                                                                           \
    { "a", DEF_SHAPES }, { "b", DEF_SHAPES }, { "a layout", DEF_LAYOUTS },                                             \
    {                                                                                                                  \
        "b layout", DEF_LAYOUTS                                                                                        \
    }

const struct definition def_pointwise[] = {
    { .name = "functions",
      .ops = "",
      .factor = { { "function", OP_FUNCTIONS_MAX }, { "rank", 4 }, { "layout", DEF_LAYOUTS } },
      .make = unary_make,
      .record = unary_record,
      .reference = unary_reference,
      .roundings = 8,
      .back_roundings = 16,
      .stored = 1 },
    { .name = "corners",
      .ops = "",
      .factor = { { "corner", OP_CORNERS_MAX }, { "extent", 4 } },
      .make = corner_make,
      .record = corner_record,
      .reference = corner_reference,
      .gradient = corner_gradient,
      .back_roundings = 1 },
    { .name = "binary",
      .ops = "add sub mul div maximum minimum pow",
      .factor = { { "op", TWO_OPS }, PAIR },
      .make = binary_make,
      .record = binary_record,
      .reference = binary_reference,
      .roundings = 3,
      .back_roundings = 70,
      .stored = 4 },
    { .name = "equal operands",
      .ops = "maximum minimum",
      .factor = { { "op", 2 }, PAIR },
      .make = equal_make,
      .record = equal_record,
      .reference = equal_reference,
      .gradient = equal_gradient,
      .back_roundings = 60 },
    { .name = "swiglu",
      .ops = "swiglu",
      .factor = { { "rank", 4 }, { "gate", DEF_LAYOUTS }, { "up", DEF_LAYOUTS } },
      .make = swiglu_make,
      .record = swiglu_record,
      .reference = swiglu_reference,
      .roundings = 4,
      .back_roundings = 8,
      .stored = 1 },
    { .name = "clamp_tensor",
      .ops = "maximum minimum",
      .factor = { { "x", DEF_SHAPES },
                  { "x layout", DEF_LAYOUTS },
                  { "low", DEF_SHAPES },
                  { "high", DEF_SHAPES },
                  { "high layout", DEF_LAYOUTS },
                  { "absent", 3 } },
      .make = clamp_make,
      .record = clamp_record,
      .reference = clamp_reference,
      .gradient = clamp_gradient,
      .back_roundings = 60 },
    { 0 }
};
