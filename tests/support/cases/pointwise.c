/* Cases of element-wise ops of one operand and of two. */
#include "support/cases/cases.h"
#include "support/op_builds.h"
#include "support/op_roundings.h"

/* Functions of one operand. */
static void add_unary(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        enum op_range range;
        double value;
        struct roundings y, g;
    } ops[] = {
        { "scale", op_build_scale, op_values, OP_SIGNED, 1.7, { 2, 0 }, { 2, 0 } },
        { "add_scalar", op_build_add_scalar, OP_TERMS, OP_SIGNED, 0.3, { 2, 0 }, { 0, 0 } },
        { "pow 2.5", op_build_pow_scalar, op_values, OP_POSITIVE, 2.5, { N_POW, 0 }, { N_POW_G, 0 } },
        { "pow -0.5", op_build_pow_scalar, op_values, OP_POSITIVE, -0.5, { N_POW, 0 }, { N_POW_G, 0 } },
        { "pow 2", op_build_pow_scalar, op_values, OP_SIGNED, 2, { N_POW, 0 }, { N_POW_G, 0 } },
        { "pow 3", op_build_pow_scalar, op_values, OP_SIGNED, 3, { N_POW, 0 }, { N_POW_G, 0 } },
        { "neg", op_build_neg, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "abs", op_build_abs, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "exp", op_build_exp, op_values, OP_SCORES, 0, { N_F, 0 }, { N_F + 1, 1 } },
        { "log", op_build_log, op_values, OP_POSITIVE, 0, { N_F, 0 }, { 1, 0 } },
        { "log1p", op_build_log1p, op_values, OP_POSITIVE, 0, { N_F, 0 }, { 2, 1 } },
        { "sqrt", op_build_sqrt, op_values, OP_POSITIVE, 0, { 1, 0 }, { 3, 1 } },
        { "tanh", op_build_tanh, op_sizes_tanh, OP_SIGNED, 0, { N_F, 0 }, { N_TANH_G, 1 } },
        { "erf", op_build_erf, op_values, OP_SIGNED, 0, { N_F, 0 }, { N_ERF_G, 0 } },
        { "sin", op_build_sin, op_values, OP_WIDE, 0, { N_F, 0 }, { N_F + 1, 1 } },
        { "cos", op_build_cos, op_values, OP_WIDE, 0, { N_F, 0 }, { N_F + 1, 2 } },
        { "softplus", op_build_softplus, op_values, OP_WIDE, 0, { N_SOFTPLUS, 0 }, { N_SIGMOID + 1, 1 } },
        { "sigmoid", op_build_sigmoid, op_sizes_sigmoid, OP_WIDE, 0, { N_SIGMOID, 0 }, { N_SIGMOID_G, 1 } },
        { "relu", op_build_relu, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "sign", op_build_sign, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "detach", op_build_detach, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "straight_through", op_build_straight_through, op_values, OP_SIGNED, 0, { 1, 0 }, { 0, 0 } },
        { "custom_grad", op_build_custom_grad, op_values, OP_SIGNED, 0, { 1, 0 }, { 2, 1 } },
        { "silu", op_build_silu, op_sizes_silu, OP_WIDE, 0, { N_SILU, 0 }, { N_SILU_G, 0 } },
        { "gelu", op_build_gelu, op_sizes_gelu, OP_WIDE, 0, { N_GELU, 0 }, { N_GELU_G, 0 } },
        { "gelu_tanh", op_build_gelu_tanh, op_sizes_gelu_tanh, OP_WIDE, 0, { N_GELU_TANH, 0 }, { N_GELU_TANH_G, 0 } },
        { "elu", op_build_elu, op_values, OP_WIDE, 1.7, { N_F + 2, 0 }, { N_F + 3, 0 } },
        { "leaky_relu", op_build_leaky_relu, op_values, OP_WIDE, 0.2, { 2, 0 }, { 2, 0 } },
        { "relu6", op_build_relu6, op_values, OP_WIDE, 0, { 0, 0 }, { 0, 0 } },
        { "hardswish", op_build_hardswish, op_values, OP_WIDE, 0, { 3, 0 }, { 3, 0 } },
    };
    const struct op_operand shapes[] = { { S(1), OP_DENSE, 0 },         { S(7), OP_DENSE, 0 },
                                         { S(33), OP_DENSE, 0 },        { S(257), OP_DENSE, 0 },
                                         { S(3, 37), OP_TURNED, 0 },    { S(5, 16), OP_SLICED, 0 },
                                         { S(4, 9), OP_CUT, 0 },        { S(3, 5), OP_EXPANDED, 0 },
                                         { S(2, 0, 3), OP_DENSE, 0 },   { S(40003), OP_DENSE, 0 },
                                         { S(131, 1025), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct op_case *const c = op_case_next(OP_POINTWISE, ops[i].build, ops[i].sizes, 1);
            c->in[0] = shapes[k];
            c->in[0].range = ops[i].range;
            c->value = ops[i].value;
            c->r[0] = ops[i].y, c->r[1] = ops[i].g;
            c->large = rw_shape_numel(shapes[k].shape) > 4096;
            op_case_describe(c, "%s", ops[i].name);
        }
}

/* Functions of two operands, which broadcast. */
static void add_binary(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        enum op_range range[2];
        struct roundings y, g[2];
    } ops[] = {
        { "add", op_build_add, op_values, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "sub", op_build_sub, op_values, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "mul", op_build_mul, OP_TERMS, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 1, 1 }, { 1, 1 } } },
        { "div", op_build_div, OP_TERMS, { OP_SIGNED, OP_POSITIVE }, { 1, 0 }, { { 1, 1 }, { 4, 3 } } },
        { "maximum", op_build_maximum, op_values, { OP_TIES, OP_TIES }, { 0, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "minimum", op_build_minimum, op_values, { OP_TIES, OP_TIES }, { 0, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "pow",
          op_build_pow,
          op_sizes_pow,
          { OP_POSITIVE, OP_SIGNED },
          { N_POW, 0 },
          { { N_POW + 4, 1 }, { N_POW + N_F + 2, 1 } } },
        { "swiglu",
          op_build_swiglu,
          op_sizes_swiglu,
          { OP_WIDE, OP_SIGNED },
          { N_SWIGLU, 0 },
          { { N_SWIGLU_G, 0 }, { N_SWIGLU, 0 } } },
    };
    const struct op_operand shapes[][2] = {
        { { S(1), 0, 0 }, { S(1), 0, 0 } },
        { { S(257), 0, 0 }, { S(257), 0, 0 } },
        { { S(5, 8), OP_TURNED, 0 }, { S(5, 8), 0, 0 } },
        { { S(4, 16), OP_SLICED, 0 }, { S(4, 16), OP_EXPANDED, 0 } },
        { { S(0, 3), 0, 0 }, { S(0, 3), 0, 0 } },
        { { S(300, 201), OP_CUT, 0 }, { S(300, 201), OP_TURNED, 0 } },
        { { S(3, 37), 0, 0 }, { S(37), 0, 0 } },
        { { S(2, 1, 37), 0, 0 }, { S(3, 1), 0, 0 } },
        { { S(1), 0, 0 }, { S(33), 0, 0 } },
        { { S(2, 3, 4, 5), 0, 0 }, { S(3, 1, 5), 0, 0 } },
        { { S(3, 16), OP_SLICED, 0 }, { S(3, 1), 0, 0 } },
        { { S(0, 3), 0, 0 }, { S(3), 0, 0 } },
        { { S(300, 201), 0, 0 }, { S(201), 0, 0 } },
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            if (ops[i].build == op_build_swiglu && k >= 6) break; /* equal shapes only */
            struct op_case *const c = op_case_next(OP_POINTWISE, ops[i].build, ops[i].sizes, 2);
            c->r[0] = ops[i].y;
            for (int j = 0; j < 2; j++) {
                c->in[j] = shapes[k][j];
                c->in[j].range = ops[i].range[j];
                c->r[1 + j] = ops[i].g[j];
            }
            op_count_broadcast(c);
            c->large = rw_shape_numel(op_broadcast(c->in[0].shape, c->in[1].shape)) > 4096;
            op_case_describe(c, "%s", ops[i].name);
        }
}

void op_cases_pointwise(void)
{
    add_unary();
    add_binary();
}
