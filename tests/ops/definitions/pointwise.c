/* Definitions of element-wise ops: arithmetic, functions, activations, bounds (rewind/ops.h and pointwise.h). */
#include "support/definition_runner.h"

#include <math.h>
#include <string.h>

/* ---- functions of one operand ---- */

enum { FN_FUNCTION, FN_RANK, FN_LAYOUT };

static real sigmoid(real x)
{
    return 1 / (1 + expl(-x));
}

/* Away from the kinks of these functions, which differences of the reference must not cross. */
static double off_kinks(const struct def_trial *c, int64_t i)
{
    (void)c;
    const int64_t k = (i * 37 + 11) % 230;
    return (double)(k - 115) / 16 + 1. / 64;
}

static double small(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 37 + 11) % 120 + 4) / 256 * (i % 2 ? 1 : -1);
}

static double above_one(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 37 + 11) % 97 + 32) / 32;
}

static double large(const struct def_trial *c, int64_t i)
{
    (void)c;
    return (double)((i * 37 + 11) % 97 + 32) / 32 * (i % 2 ? 1 : -1);
}

static rw_tensor *scale(rw_tape *t, rw_tensor *x)
{
    return rw_scale(t, x, -1.5);
}
static rw_tensor *add_scalar(rw_tape *t, rw_tensor *x)
{
    return rw_add_scalar(t, x, 0.75);
}
static rw_tensor *cube(rw_tape *t, rw_tensor *x)
{
    return rw_pow_scalar(t, x, 3);
}
static rw_tensor *root(rw_tape *t, rw_tensor *x)
{
    return rw_pow_scalar(t, x, 0.5);
}
static rw_tensor *inverse(rw_tape *t, rw_tensor *x)
{
    return rw_pow_scalar(t, x, -1);
}
static rw_tensor *power(rw_tape *t, rw_tensor *x)
{
    return rw_pow_scalar(t, x, -1.25);
}
static rw_tensor *square(rw_tape *t, rw_tensor *x)
{
    return rw_pow_scalar(t, x, 2);
}
static rw_tensor *neg(rw_tape *t, rw_tensor *x)
{
    return rw_neg(t, x);
}
static rw_tensor *absolute(rw_tape *t, rw_tensor *x)
{
    return rw_abs(t, x);
}
static rw_tensor *exponential(rw_tape *t, rw_tensor *x)
{
    return rw_exp(t, x);
}
static rw_tensor *logarithm(rw_tape *t, rw_tensor *x)
{
    return rw_log(t, x);
}
static rw_tensor *log_one(rw_tape *t, rw_tensor *x)
{
    return rw_log1p(t, x);
}
static rw_tensor *square_root(rw_tape *t, rw_tensor *x)
{
    return rw_sqrt(t, x);
}
static rw_tensor *hyperbolic(rw_tape *t, rw_tensor *x)
{
    return rw_tanh(t, x);
}
static rw_tensor *error(rw_tape *t, rw_tensor *x)
{
    return rw_erf(t, x);
}
static rw_tensor *sine(rw_tape *t, rw_tensor *x)
{
    return rw_sin(t, x);
}
static rw_tensor *cosine(rw_tape *t, rw_tensor *x)
{
    return rw_cos(t, x);
}
static rw_tensor *softplus(rw_tape *t, rw_tensor *x)
{
    return rw_softplus(t, x);
}
static rw_tensor *logistic(rw_tape *t, rw_tensor *x)
{
    return rw_sigmoid(t, x);
}
static rw_tensor *relu(rw_tape *t, rw_tensor *x)
{
    return rw_relu(t, x);
}
static rw_tensor *relu6(rw_tape *t, rw_tensor *x)
{
    return rw_relu6(t, x);
}
static rw_tensor *silu(rw_tape *t, rw_tensor *x)
{
    return rw_silu(t, x);
}
static rw_tensor *gelu(rw_tape *t, rw_tensor *x)
{
    return rw_gelu(t, x);
}
static rw_tensor *gelu_tanh(rw_tape *t, rw_tensor *x)
{
    return rw_gelu_tanh(t, x);
}
static rw_tensor *elu(rw_tape *t, rw_tensor *x)
{
    return rw_elu(t, x, 0.75);
}
static rw_tensor *leaky(rw_tape *t, rw_tensor *x)
{
    return rw_leaky_relu(t, x, 0.125);
}
static rw_tensor *hardswish(rw_tape *t, rw_tensor *x)
{
    return rw_hardswish(t, x);
}
static rw_tensor *clamp(rw_tape *t, rw_tensor *x)
{
    return rw_clamp(t, x, -1.5, 2);
}
static rw_tensor *clamp_above(rw_tape *t, rw_tensor *x)
{
    return rw_clamp(t, x, -INFINITY, 0.5);
}
static rw_tensor *clamp_below(rw_tape *t, rw_tensor *x)
{
    return rw_clamp(t, x, -0.5, INFINITY);
}
static rw_tensor *clamp_crossed(rw_tape *t, rw_tensor *x)
{
    return rw_clamp(t, x, 2, -1);
}

static real of_scale(real x)
{
    return -1.5L * x;
}
static real of_add_scalar(real x)
{
    return x + 0.75L;
}
static real of_cube(real x)
{
    return x * x * x;
}
static real of_inverse(real x)
{
    return 1 / x;
}
static real of_power(real x)
{
    return powl(x, -1.25L);
}
static real of_square(real x)
{
    return x * x;
}
static real of_neg(real x)
{
    return -x;
}
static real of_softplus(real x)
{
    return x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x));
}
static real of_relu(real x)
{
    return x > 0 ? x : 0;
}
static real of_relu6(real x)
{
    return x > 6 ? 6 : of_relu(x);
}
static real of_silu(real x)
{
    return x * sigmoid(x);
}
static real of_gelu(real x)
{
    return x * erfcl(-x * sqrtl(0.5L)) / 2;
}
static real of_elu(real x)
{
    return x > 0 ? x : 0.75L * expm1l(x);
}
static real of_leaky(real x)
{
    return x > 0 ? x : x / 8;
}
static real of_hardswish(real x)
{
    return x * of_relu6(x + 3) / 6;
}
static real of_clamp(real x)
{
    return x < -1.5L ? -1.5L : x > 2 ? 2 : x;
}
static real of_above(real x)
{
    return x > 0.5L ? 0.5L : x;
}
static real of_below(real x)
{
    return x < -0.5L ? -0.5L : x;
}
static real of_crossed(real x)
{
    return 0 * x - 1;
}
static real of_gelu_tanh(real x)
{
    const real pi = 3.14159265358979323846264338327950288L;
    return x / 2 * (1 + tanhl(sqrtl(2 / pi) * (x + 0.044715L * x * x * x)));
}

static const struct {
    rw_tensor *(*record)(rw_tape *t, rw_tensor *x);
    real (*of)(real x);
    double (*value)(const struct def_trial *c, int64_t i);
} functions[] = {
    { scale, of_scale, off_kinks },
    { add_scalar, of_add_scalar, off_kinks },
    { cube, of_cube, off_kinks },
    { root, sqrtl, above_one },
    { inverse, of_inverse, large },
    { power, of_power, above_one },
    { square, of_square, off_kinks },
    { neg, of_neg, off_kinks },
    { absolute, fabsl, off_kinks },
    { exponential, expl, off_kinks },
    { logarithm, logl, above_one },
    { log_one, log1pl, small },
    { square_root, sqrtl, above_one },
    { hyperbolic, tanhl, small },
    { error, erfl, small },
    { sine, sinl, off_kinks },
    { cosine, cosl, off_kinks },
    { softplus, of_softplus, off_kinks },
    { logistic, sigmoid, off_kinks },
    { relu, of_relu, off_kinks },
    { relu6, of_relu6, off_kinks },
    { silu, of_silu, off_kinks },
    { gelu, of_gelu, small },
    { gelu_tanh, of_gelu_tanh, small },
    { elu, of_elu, off_kinks },
    { leaky, of_leaky, off_kinks },
    { hardswish, of_hardswish, off_kinks },
    { clamp, of_clamp, off_kinks },
    { clamp_above, of_above, off_kinks },
    { clamp_below, of_below, off_kinks },
    { clamp_crossed, of_crossed, off_kinks },
};
#define FUNCTIONS (int)(sizeof functions / sizeof *functions)

static bool unary_make(struct def_trial *c)
{
    def_operand(c, 0, def_shape(c->v[FN_RANK]), DEF_SIGNED, c->v[FN_LAYOUT]);
    c->in[0].value = functions[c->v[FN_FUNCTION]].value;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool unary_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = functions[c->v[FN_FUNCTION]].record(t, x[0]));
}

static void unary_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = functions[c->v[FN_FUNCTION]].of(x[0][i]);
}

/* ---- at kinks, NaN and infinity: values and slopes of the headers ---- */

/* Slopes where a header gives one. */
static const struct corner {
    rw_tensor *(*record)(rw_tape *t, rw_tensor *x);
    real x, y, slope;
} corners[] = {
    { absolute, 0, 0, 0 },          { absolute, NAN, NAN, 0 },   { relu, 0, 0, 0 },
    { relu, NAN, NAN, 1 },          { relu6, 0, 0, 0 },          { relu6, 6, 6, 0 },
    { relu6, NAN, NAN, 1 },         { relu6, 7, 6, 0 },          { elu, 0, 0, 0.75L },
    { leaky, 0, 0, 0.125L },        { hardswish, -3, 0, 0 },     { hardswish, 3, 3, 1 },
    { clamp, -1.5L, -1.5L, 0 },     { clamp, 2, 2, 0 },          { clamp, NAN, NAN, 0 },
    { clamp_above, 0.5L, 0.5L, 0 }, { clamp_above, -4, -4, 1 },  { clamp_below, -0.5L, -0.5L, 0 },
    { clamp_below, 4, 4, 1 },       { clamp_crossed, 0, -1, 0 },
};
#define CORNERS (int)(sizeof corners / sizeof *corners)

static double corner_value(const struct def_trial *c, int64_t i)
{
    (void)i;
    return (double)corners[c->v[0]].x;
}

static bool corner_make(struct def_trial *c)
{
    static const int64_t extents[] = { 1, 3, 8, 19 };
    def_operand(c, 0, RW_SHAPE(extents[c->v[1]]), DEF_SIGNED, DEF_DENSE)->value = corner_value;
    c->out[0] = c->in[0].shape;
    return true;
}

static bool corner_record(rw_tape *t, rw_tensor **x, const struct def_trial *c, rw_tensor **y)
{
    return (y[0] = corners[c->v[0]].record(t, x[0]));
}

static void corner_reference(const struct def_trial *c, real *const *x, real *const *y)
{
    (void)x;
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = corners[c->v[0]].y;
}

static void corner_gradient(const struct def_trial *c, real *const *x, real *const *dy, real *const *dx)
{
    (void)x;
    for (int64_t i = 0; i < c->in[0].numel; i++) dx[0][i] = dy[0][i] * corners[c->v[0]].slope;
}

/* ---- two operands that broadcast ---- */

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
    for (int64_t i = 0; i < c->in[0].numel; i++) y[0][i] = of_silu(x[0][i]) * x[1][i];
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
      .ops = "scale add_scalar pow_scalar neg abs exp log log1p sqrt tanh erf sin cos softplus sigmoid relu relu6 silu "
             "gelu gelu_tanh elu leaky_relu hardswish clamp",
      .factor = { { "function", FUNCTIONS }, { "rank", 4 }, { "layout", DEF_LAYOUTS } },
      .make = unary_make,
      .record = unary_record,
      .reference = unary_reference,
      .roundings = 8,
      .back_roundings = 16,
      .stored = 1 },
    { .name = "corners",
      .ops = "abs relu relu6 elu leaky_relu hardswish clamp",
      .factor = { { "corner", CORNERS }, { "extent", 4 } },
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
