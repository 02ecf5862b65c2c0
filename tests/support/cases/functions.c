/* Element-wise functions of one operand: see functions.h. */
#include "support/cases/functions.h"

#include "api/mistakes/table.h"
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef long double real;

/* ---- inputs for definitions ---- */

/* Away from the kinks of these functions, which differences of the reference must not cross. */
static double off_kinks(int64_t i)
{
    const int64_t k = (i * 37 + 11) % 230;
    return (double)(k - 115) / 16 + 1. / 64;
}

static double near_zero(int64_t i)
{
    return (double)((i * 37 + 11) % 120 + 4) / 256 * (i % 2 ? 1 : -1);
}

static double above_one(int64_t i)
{
    return (double)((i * 37 + 11) % 97 + 32) / 32;
}

static double large(int64_t i)
{
    return above_one(i) * (i % 2 ? 1 : -1);
}

/* ---- what is recorded, and its definition ---- */

/* The call, of a tensor x and the case's constant a; and the value, of a number x and the constant a. */
#define FUNCTION(name, call, definition)                                                  \
    static rw_tensor *build_##name(rw_tape *t, rw_tensor **in, const struct op_case *c)   \
    {                                                                                     \
        rw_tensor *const x = in[0];                                                       \
        const double a = c->value;                                                        \
        (void)a;                                                                          \
        return call;                                                                      \
    }                                                                                     \
    static real of_##name(real x, real a)                                                 \
    {                                                                                     \
        (void)a;                                                                          \
        return definition;                                                                \
    }

static real sigmoid(real x)
{
    return 1 / (1 + expl(-x));
}

static real relu6(real x)
{
    return x > 6 ? 6 : x > 0 ? x : 0;
}

#define PI 3.14159265358979323846264338327950288L
FUNCTION(scale, rw_scale(t, x, a), a *x)
FUNCTION(add_scalar, rw_add_scalar(t, x, a), x + a)
FUNCTION(pow_scalar, rw_pow_scalar(t, x, a), powl(x, a))
FUNCTION(neg, rw_neg(t, x), -x)
FUNCTION(abs, rw_abs(t, x), fabsl(x))
FUNCTION(sign, rw_mul(t, x, rw_sign(t, x)), fabsl(x)) /* it has no gradient of its own */
FUNCTION(exp, rw_exp(t, x), expl(x))
FUNCTION(log, rw_log(t, x), logl(x))
FUNCTION(log1p, rw_log1p(t, x), log1pl(x))
FUNCTION(sqrt, rw_sqrt(t, x), sqrtl(x))
FUNCTION(tanh, rw_tanh(t, x), tanhl(x))
FUNCTION(erf, rw_erf(t, x), erfl(x))
FUNCTION(sin, rw_sin(t, x), sinl(x))
FUNCTION(cos, rw_cos(t, x), cosl(x))
FUNCTION(softplus, rw_softplus(t, x), x > 0 ? x + log1pl(expl(-x)) : log1pl(expl(x)))
FUNCTION(sigmoid, rw_sigmoid(t, x), sigmoid(x))
FUNCTION(relu, rw_relu(t, x), x > 0 ? x : 0)
FUNCTION(silu, rw_silu(t, x), x *sigmoid(x))
FUNCTION(gelu, rw_gelu(t, x), x *erfcl(-x * sqrtl(0.5L)) / 2)
FUNCTION(gelu_tanh, rw_gelu_tanh(t, x), x / 2 * (1 + tanhl(sqrtl(2 / PI) * (x + 0.044715L * x * x * x))))
FUNCTION(elu, rw_elu(t, x, a), x > 0 ? x : a * expm1l(x))
FUNCTION(celu, rw_celu(t, x, a), x > 0 ? x : a * expm1l(x / a))
FUNCTION(leaky_relu, rw_leaky_relu(t, x, a), x > 0 ? x : a * x)
FUNCTION(relu6, rw_relu6(t, x), relu6(x))
FUNCTION(hardswish, rw_hardswish(t, x), x *relu6(x + 3) / 6)
FUNCTION(clamp, rw_clamp(t, x, -1.5, 2), x < -1.5L ? -1.5L : x > 2 ? 2 : x)
FUNCTION(clamp_above, rw_clamp(t, x, -INFINITY, 0.5), x > 0.5L ? 0.5L : x)
FUNCTION(clamp_below, rw_clamp(t, x, -0.5, INFINITY), x < -0.5L ? -0.5L : x)
FUNCTION(clamp_crossed, rw_clamp(t, x, 2, -1), 0 * x - 1)

#define OF(name) build_##name, of_##name
#define BUILD_OF(name) op_build_##name, NULL, NULL
static const struct op_function functions[] = {
    { "scale", OF(scale), off_kinks, op_values, OP_SIGNED, 1.7, { 2, 0 }, { 2, 0 } },
    { "add_scalar", OF(add_scalar), off_kinks, OP_TERMS, OP_SIGNED, 0.3, { 2, 0 }, { 0, 0 } },
    { "pow_scalar 2.5", OF(pow_scalar), above_one, op_values, OP_POSITIVE, 2.5, { N_POW, 0 }, { N_POW_G, 0 } },
    { "pow_scalar -1.25", OF(pow_scalar), above_one, op_values, OP_POSITIVE, -1.25, { N_POW, 0 }, { N_POW_G, 0 } },
    { "pow_scalar 0.5", OF(pow_scalar), above_one, op_values, OP_POSITIVE, 0.5, { N_POW, 0 }, { N_POW_G, 0 } },
    { "pow_scalar -0.5", OF(pow_scalar), above_one, op_values, OP_POSITIVE, -0.5, { N_POW, 0 }, { N_POW_G, 0 } },
    { "pow_scalar -1", OF(pow_scalar), large, op_values, OP_POSITIVE, -1, { N_POW, 0 }, { N_POW_G, 0 } },
    { "pow_scalar 2", OF(pow_scalar), off_kinks, op_values, OP_SIGNED, 2, { N_POW, 0 }, { N_POW_G, 0 } },
    { "pow_scalar 3", OF(pow_scalar), off_kinks, op_values, OP_SIGNED, 3, { N_POW, 0 }, { N_POW_G, 0 } },
    { "neg", OF(neg), off_kinks, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
    { "abs", OF(abs), off_kinks, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
    { "exp", OF(exp), off_kinks, op_values, OP_SCORES, 0, { N_F, 0 }, { N_F + 1, 1 } },
    { "log", OF(log), above_one, op_values, OP_POSITIVE, 0, { N_F, 0 }, { 1, 0 } },
    { "log1p", OF(log1p), near_zero, op_values, OP_POSITIVE, 0, { N_F, 0 }, { 2, 1 } },
    { "sqrt", OF(sqrt), above_one, op_values, OP_POSITIVE, 0, { 1, 0 }, { 3, 1 } },
    { "tanh", OF(tanh), near_zero, op_sizes_tanh, OP_SIGNED, 0, { N_F, 0 }, { N_TANH_G, 1 } },
    { "erf", OF(erf), near_zero, op_values, OP_SIGNED, 0, { N_F, 0 }, { N_ERF_G, 0 } },
    { "sin", OF(sin), off_kinks, op_values, OP_WIDE, 0, { N_F, 0 }, { N_F + 1, 1 } },
    { "cos", OF(cos), off_kinks, op_values, OP_WIDE, 0, { N_F, 0 }, { N_F + 1, 2 } },
    { "softplus", OF(softplus), off_kinks, op_values, OP_WIDE, 0, { N_SOFTPLUS, 0 }, { N_SIGMOID + 1, 1 } },
    { "sigmoid", OF(sigmoid), off_kinks, op_sizes_sigmoid, OP_WIDE, 0, { N_SIGMOID, 0 }, { N_SIGMOID_G, 1 } },
    { "relu", OF(relu), off_kinks, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
    { "sign", OF(sign), off_kinks, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
    { "detach", BUILD_OF(detach), op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
    { "straight_through", BUILD_OF(straight_through), op_values, OP_SIGNED, 0, { 1, 0 }, { 0, 0 } },
    { "custom_grad", BUILD_OF(custom_grad), op_values, OP_SIGNED, 0, { 1, 0 }, { 2, 1 } },
    { "silu", OF(silu), off_kinks, op_sizes_silu, OP_WIDE, 0, { N_SILU, 0 }, { N_SILU_G, 0 } },
    { "gelu", OF(gelu), near_zero, op_sizes_gelu, OP_WIDE, 0, { N_GELU, 0 }, { N_GELU_G, 0 } },
    { "gelu_tanh", OF(gelu_tanh), near_zero, op_sizes_gelu_tanh, OP_WIDE, 0, { N_GELU_TANH, 0 }, { N_GELU_TANH_G, 0 } },
    { "elu", OF(elu), off_kinks, op_values, OP_WIDE, 1.7, { N_F + 2, 0 }, { N_F + 3, 0 } },
    /* alpha is rounded, and so is x / alpha, down to -6, whose errors an exponential multiplies by that. */
    { "celu", OF(celu), off_kinks, op_values, OP_WIDE, 1.5, { N_F + 4, 0 }, { N_F + 13, 0 } },
    { "leaky_relu", OF(leaky_relu), off_kinks, op_values, OP_WIDE, 0.2, { 2, 0 }, { 2, 0 } },
    { "relu6", OF(relu6), off_kinks, op_values, OP_WIDE, 0, { 0, 0 }, { 0, 0 } },
    { "hardswish", OF(hardswish), off_kinks, op_values, OP_WIDE, 0, { 3, 0 }, { 3, 0 } },
    { "clamp both", OF(clamp), off_kinks, op_values, OP_WIDE, 0, { 0, 0 }, { 0, 0 } },
    { "clamp above", OF(clamp_above), off_kinks, op_values, OP_WIDE, 0, { 0, 0 }, { 0, 0 } },
    { "clamp below", OF(clamp_below), off_kinks, op_values, OP_WIDE, 0, { 0, 0 }, { 0, 0 } },
    { "clamp crossed", OF(clamp_crossed), off_kinks, op_values, OP_WIDE, 0, { 0, 0 }, { 0, 0 } },
};
#define FUNCTIONS (sizeof functions / sizeof *functions)

/* As in PyTorch: at NaN, backward of relu, relu6, elu, celu and hardswish passes the upstream gradient on. */
static const struct op_corner corners[] = {
    { "abs", 0, 0, 0 },
    { "abs", -0.0, 0, 0 },
    { "abs", NAN, NAN, 0 },
    { "relu", 0, 0, 0 },
    { "relu", -0.0, 0, 0 },
    { "relu", NAN, NAN, 1 },
    { "relu6", 0, 0, 0 },
    { "relu6", -0.0, 0, 0 },
    { "relu6", 6, 6, 0 },
    { "relu6", 7, 6, 0 },
    { "relu6", NAN, NAN, 1 },
    { "elu", 0, 0, 1.75 },
    { "elu", NAN, NAN, 1 },
    { "celu", 0, 0, 1 },
    { "celu", -INFINITY, -1.5, 0 },
    { "celu", NAN, NAN, 1 },
    { "leaky_relu", 0, 0, 0.25 },
    { "leaky_relu", NAN, NAN, 0.25 },
    { "hardswish", -3, 0, 0 },
    { "hardswish", 0, 0, 0.5 },
    { "hardswish", 3, 3, 1 },
    { "hardswish", NAN, NAN, 1 },
    { "clamp both", -1.5, -1.5, 0 },
    { "clamp both", 2, 2, 0 },
    { "clamp both", NAN, NAN, 0 },
    { "clamp above", 0.5, 0.5, 0 },
    { "clamp above", -4, -4, 1 },
    { "clamp below", -0.5, -0.5, 0 },
    { "clamp below", 4, 4, 1 },
    { "clamp crossed", 0, -1, 0 },
};

_Static_assert(FUNCTIONS <= OP_FUNCTIONS_MAX && sizeof corners / sizeof *corners <= OP_CORNERS_MAX,
               "functions.h has the maximum");

/* ---- for suites ---- */

const struct op_function *op_functions(size_t *ret_n)
{
    *ret_n = FUNCTIONS;
    return functions;
}

const struct op_corner *op_corners(size_t *ret_n)
{
    *ret_n = sizeof corners / sizeof *corners;
    return corners;
}

const struct op_function *op_function_named(const char *name)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (!strcmp(functions[i].name, name)) return &functions[i];
    abort();
}

double op_function_constant(const struct op_function *f)
{
    return rint(8 * f->value) / 8;
}

rw_tensor *op_function_record(rw_tape *t, const struct op_function *f, rw_tensor *x)
{
    const struct op_case c = { .n = 1, .value = op_function_constant(f) };
    return f->build(t, &x, &c);
}

bool op_function_defines(const char *op)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (functions[i].of && strcspn(functions[i].name, " ") == strlen(op) &&
            !memcmp(functions[i].name, op, strlen(op)))
            return true;
    return false;
}

void op_cases_functions(void)
{
    const struct op_operand shapes[] = { { S(1), OP_DENSE, 0 },         { S(7), OP_DENSE, 0 },
                                         { S(33), OP_DENSE, 0 },        { S(257), OP_DENSE, 0 },
                                         { S(3, 37), OP_TURNED, 0 },    { S(5, 16), OP_SLICED, 0 },
                                         { S(4, 9), OP_CUT, 0 },        { S(3, 5), OP_EXPANDED, 0 },
                                         { S(2, 0, 3), OP_DENSE, 0 },   { S(40003), OP_DENSE, 0 },
                                         { S(131, 1025), OP_TURNED, 0 } };
    for (size_t i = 0; i < FUNCTIONS; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct op_case *const c = op_case_next(OP_POINTWISE, functions[i].build, functions[i].sizes, 1);
            c->in[0] = shapes[k];
            c->in[0].range = functions[i].range;
            c->value = functions[i].value;
            c->r[0] = functions[i].y, c->r[1] = functions[i].g;
            c->large = rw_shape_numel(shapes[k].shape) > 4096;
            op_case_describe(c, "%s", functions[i].name);
        }
}

/* ---- invalid calls ---- */

/* Every function of the table with operands that are not of this tape, and of a type that it does not take; and
   constants. */
void mistakes_with_functions(struct trial *m, struct world *w)
{
    rw_tape *const t = w->t;
    static char names[OP_FUNCTIONS_MAX][32]; /* the chosen trial keeps a pointer */
    for (size_t i = 0; i < FUNCTIONS; i++) {
        if (!functions[i].of) continue;
        snprintf(names[i], sizeof names[i], "rw_%.*s", (int)strcspn(functions[i].name, " "), functions[i].name);
#define CALL(expected, t, x)                              \
    TRIAL(names[i], #t ", " #x, expected, false, (void)0, \
          op_function_record(t, &functions[i], x) ? RW_OK : rw_error_status(m->world->ctx))
        CALL(RW_ERR_ARGUMENT, t, NULL);
        CALL(RW_ERR_ARGUMENT, NULL, w->x);
        CALL(RW_ERR_ARGUMENT, t, RW_NONE);
        CALL(RW_ERR_ARGUMENT, t, w->dead);
        CALL(RW_ERR_DTYPE, t, w->index);
#undef CALL
    }
    TENSOR("rw_celu", RW_ERR_ARGUMENT, rw_celu(t, w->x, 0));
    TENSOR("rw_celu", RW_ERR_ARGUMENT, rw_celu(t, w->x, 1e-60));
    TENSOR("rw_celu", RW_ERR_ARGUMENT, rw_celu(t, w->wide, INFINITY));
    TENSOR("rw_celu", RW_ERR_ARGUMENT, rw_celu(t, w->half, NAN));
}
