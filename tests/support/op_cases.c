/*
 * The table of op_cases.h: ops times shapes, a loop per family. What they record is in op_builds.c; the roundings are
 * derived in op_roundings.h and .c. A family of shapes has the tiny, the odd, those around the widths of vectors and
 * blocks, views with strides, broadcast operands, long rows, many rows, and none.
 */
#include "support/op_builds.h"
#include "support/op_roundings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CASES 1024
#define S(...) RW_SHAPE(__VA_ARGS__)

typedef void (*op_count)(struct op_case *c);

static struct op_case table[MOST_CASES];
static size_t n_table;

static void describe(struct op_case *c, const char *text, ...)
{
    static const char *const layouts[OP_LAYOUTS] = { "", " turned", " middle", " sliced", " cut", " expanded" };
    va_list args;
    va_start(args, text);
    int at = vsnprintf(c->name, sizeof c->name, text, args);
    va_end(args);
    for (int i = 0; i < c->n && at < (int)sizeof c->name; i++) {
        const rw_shape s = c->in[i].shape;
        at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s", i ? ", " : " ");
        for (int k = 0; k < s.rank && at < (int)sizeof c->name; k++)
            at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s%lld", k ? "x" : "", (long long)s.dim[k]);
        if (at < (int)sizeof c->name)
            at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s", layouts[c->in[i].layout]);
    }
}

static struct op_case *next(enum op_group group, op_build build, op_sizes sizes, int n)
{
    if (n_table == MOST_CASES) abort();
    struct op_case *const c = &table[n_table++];
    *c = (struct op_case){ .group = group, .build = build, .sizes = sizes, .n = n, .value = 1 };
    return c;
}

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
        { "pow 2.5", op_build_pow_scalar, op_values, OP_POSITIVE, 2.5, { N_POW, 0 }, { N_POW_G, 2 } },
        { "pow -0.5", op_build_pow_scalar, op_values, OP_POSITIVE, -0.5, { N_POW, 0 }, { N_POW_G, 2 } },
        { "pow 2", op_build_pow_scalar, op_values, OP_SIGNED, 2, { N_POW, 0 }, { N_POW_G, 2 } },
        { "pow 3", op_build_pow_scalar, op_values, OP_SIGNED, 3, { N_POW, 0 }, { N_POW_G, 2 } },
        { "neg", op_build_neg, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "abs", op_build_abs, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "exp", op_build_exp, op_values, OP_SCORES, 0, { N_F, 0 }, { N_F + 1, 1 } },
        { "log", op_build_log, op_values, OP_POSITIVE, 0, { N_F, 0 }, { 1, 0 } },
        { "log1p", op_build_log1p, op_values, OP_POSITIVE, 0, { N_F, 0 }, { 2, 1 } },
        { "sqrt", op_build_sqrt, op_values, OP_POSITIVE, 0, { 1, 0 }, { 3, 1 } },
        { "tanh", op_build_tanh, op_sizes_tanh, OP_SIGNED, 0, { N_F, 0 }, { N_TANH_G, 1 } },
        { "erf", op_build_erf, op_values, OP_SIGNED, 0, { N_F, 0 }, { N_ERF_G, 6 } },
        { "sin", op_build_sin, op_values, OP_WIDE, 0, { N_F, 0 }, { N_F + 1, 1 } },
        { "cos", op_build_cos, op_values, OP_WIDE, 0, { N_F, 0 }, { N_F + 1, 2 } },
        { "softplus", op_build_softplus, op_values, OP_WIDE, 0, { N_SOFTPLUS, 0 }, { N_SIGMOID + 1, 1 } },
        { "sigmoid", op_build_sigmoid, op_sizes_sigmoid, OP_WIDE, 0, { N_SIGMOID, 0 }, { N_SIGMOID_G, 1 } },
        { "relu", op_build_relu, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "silu", op_build_silu, op_sizes_silu, OP_WIDE, 0, { N_SILU, 0 }, { N_SILU_G, 0 } },
        { "gelu", op_build_gelu, op_sizes_gelu, OP_WIDE, 0, { N_GELU, 0 }, { N_GELU_G, 0 } },
        { "gelu_tanh", op_build_gelu_tanh, op_sizes_gelu_tanh, OP_WIDE, 0, { N_GELU_TANH, 0 }, { N_GELU_TANH_G, 0 } },
    };
    const struct op_operand shapes[] = { { S(1), OP_DENSE, 0 },         { S(7), OP_DENSE, 0 },
                                         { S(33), OP_DENSE, 0 },        { S(257), OP_DENSE, 0 },
                                         { S(3, 37), OP_TURNED, 0 },    { S(5, 16), OP_SLICED, 0 },
                                         { S(4, 9), OP_CUT, 0 },        { S(3, 5), OP_EXPANDED, 0 },
                                         { S(2, 0, 3), OP_DENSE, 0 },   { S(40003), OP_DENSE, 0 },
                                         { S(131, 1025), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            struct op_case *const c = next(OP_POINTWISE, ops[i].build, ops[i].sizes, 1);
            c->in[0] = shapes[k];
            c->in[0].range = ops[i].range;
            c->value = ops[i].value;
            c->r[0] = ops[i].y, c->r[1] = ops[i].g;
            c->large = rw_shape_numel(shapes[k].shape) > 4096;
            describe(c, "%s", ops[i].name);
        }
}

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
            struct op_case *const c = next(OP_POINTWISE, ops[i].build, ops[i].sizes, 2);
            c->r[0] = ops[i].y;
            for (int j = 0; j < 2; j++) {
                c->in[j] = shapes[k][j];
                c->in[j].range = ops[i].range[j];
                c->r[1 + j] = ops[i].g[j];
            }
            op_count_broadcast(c);
            c->large = rw_shape_numel(op_broadcast(c->in[0].shape, c->in[1].shape)) > 4096;
            describe(c, "%s", ops[i].name);
        }
}

static rw_shape op_product(rw_shape a, rw_shape b)
{
    const int64_t m = a.dim[a.rank - 2], n = b.dim[b.rank - 1];
    a.rank -= 2, b.rank -= 2;
    rw_shape c = op_broadcast(a, b);
    c.dim[c.rank++] = m, c.dim[c.rank++] = n;
    return c;
}

static void add_products(void)
{
    const struct {
        struct op_operand a, b;
    } products[] = {
        { { S(1, 1), 0, 0 }, { S(1, 1), 0, 0 } },
        { { S(2, 3), 0, 0 }, { S(3, 4), 0, 0 } },
        { { S(5, 33), OP_TURNED, 0 }, { S(33, 7), 0, 0 } },
        { { S(17, 16), 0, 0 }, { S(16, 65), OP_TURNED, 0 } },
        { { S(9, 8), OP_TURNED, 0 }, { S(8, 24), OP_TURNED, 0 } },
        { { S(6, 20), OP_SLICED, 0 }, { S(20, 5), OP_CUT, 0 } },
        { { S(2, 5, 33), 0, 0 }, { S(33, 7), 0, 0 } },
        { { S(2, 1, 5, 33), 0, 0 }, { S(3, 33, 7), 0, 0 } },
        { { S(2, 3, 5, 8), OP_MIDDLE, 0 }, { S(2, 3, 8, 5), OP_MIDDLE, 0 } },
        { { S(3, 4, 6), OP_EXPANDED, 0 }, { S(3, 6, 4), 0, 0 } },
        { { S(3, 0), 0, 0 }, { S(0, 4), 0, 0 } },
        { { S(0, 3), 0, 0 }, { S(3, 4), 0, 0 } },
        { { S(200, 257), 0, 0 }, { S(257, 130), OP_TURNED, 0 } },
        { { S(4, 129, 64), 0, 0 }, { S(4, 64, 129), OP_TURNED, 0 } },
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        struct op_case *const c = next(OP_PRODUCTS, op_build_matmul, OP_TERMS, 2);
        c->in[0] = products[i].a, c->in[1] = products[i].b;
        op_count_product(c);
        c->large = rw_shape_numel(c->in[0].shape) > 4096;
        describe(c, "matmul");
    }
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int lives = 0; lives < 2; lives++) {
            struct op_case *const c = next(OP_PRODUCTS, op_build_matmul_add, OP_TERMS, 3);
            c->in[1] = products[i].a, c->in[2] = products[i].b;
            c->in[0] = (struct op_operand){ .shape = op_product(c->in[1].shape, c->in[2].shape),
                                            .layout = lives ? OP_CUT : OP_DENSE };
            c->keep = lives;
            op_count_matmul_add(c);
            c->large = rw_shape_numel(c->in[1].shape) > 4096;
            describe(c, "matmul_add");
        }
    const struct {
        struct op_operand x;
        int64_t out;
    } layers[] = { { { S(1, 1), 0, 0 }, 1 },          { { S(2, 5, 33), 0, 0 }, 7 }, { { S(9, 16), OP_TURNED, 0 }, 24 },
                   { { S(3, 8), OP_SLICED, 0 }, 65 }, { { S(0, 4), 0, 0 }, 3 },     { { S(7), 0, 0 }, 5 },
                   { { S(300, 96), 0, 0 }, 200 } };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int form = 0; form < 4; form++) {
            const int bias = form & 1, gelu = form & 2;
            struct op_case *const c = next(OP_PRODUCTS, gelu ? op_build_linear_gelu : op_build_linear,
                                           gelu ? op_sizes_linear_gelu : OP_TERMS, 2 + bias);
            const rw_shape x = layers[i].x.shape;
            const int64_t in = x.dim[x.rank - 1];
            c->in[0] = layers[i].x;
            c->in[1].shape = S(layers[i].out, in), c->in[2].shape = S(layers[i].out);
            if (gelu) op_count_linear_gelu(c);
            else op_count_linear(c);
            c->large = rw_shape_numel(x) > 4096;
            describe(c, gelu ? "linear_gelu" : "linear");
        }
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int form = 0; form < 4; form++) {
            const int bias = form & 1;
            struct op_case *const c = next(OP_PRODUCTS, op_build_linear_add, OP_TERMS, 3 + bias);
            rw_shape s = layers[i].x.shape;
            c->keep = form & 2;
            c->in[1] = layers[i].x;
            c->in[2].shape = S(layers[i].out, s.dim[s.rank - 1]), c->in[3].shape = S(layers[i].out);
            s.dim[s.rank - 1] = layers[i].out;
            c->in[0] = (struct op_operand){ .shape = s, .layout = c->keep && s.rank > 1 ? OP_CUT : OP_DENSE };
            op_count_linear_add(c);
            c->large = rw_shape_numel(layers[i].x.shape) > 4096;
            describe(c, "linear_add");
        }
}

static void add_norms(void)
{
    const struct op_operand shapes[] = {
        { S(1, 1), 0, 0 },           { S(3, 2), 0, 0 },   { S(2, 3, 37), 0, 0 },       { S(5, 64), OP_TURNED, 0 },
        { S(2, 257), OP_SLICED, 0 }, { S(130, 5), 0, 0 }, { S(4, 8), OP_EXPANDED, 0 }, { S(0, 6), 0, 0 },
        { S(3, 1024), 0, 0 },        { S(9), 0, 0 },      { S(1500, 33), 0, 0 },       { S(17, 4099), 0, 0 },
        { S(2, 400), 0, 0 },         { S(2, 2048), 0, 0 }, { S(1, 4096), 0, 0 },       { S(400, 64), 0, 0 },
        { S(70, 1600), 0, 0 },       { S(3, 8192), 0, 0 }, { S(2, 8200), 0, 0 }
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int form = 0; form < 6; form++) { /* layernorm, without bias, rmsnorm; each beside its input too */
            const int kind = form % 3;
            const rw_shape s = shapes[i].shape;
            const int64_t width = s.dim[s.rank - 1];
            struct op_case *const c = next(OP_NORMS, kind == 2 ? op_build_rmsnorm : op_build_layernorm, op_sizes_norm,
                                           kind ? 2 : 3);
            c->rms = kind == 2;
            c->keep = form > 2;
            c->value = 1e-3;
            c->in[0] = shapes[i];
            c->in[1].shape = c->in[2].shape = S(width);
            op_count_norm(c);
            c->large = rw_shape_numel(s) > 4096;
            describe(c, "%s%s", kind == 2 ? "rmsnorm" : "layernorm", c->keep ? " beside" : "");
        }
}

static void add_reductions(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        enum op_range range;
        op_count count;
    } ops[] = { { "sum", op_build_sum, OP_TERMS, OP_SIGNED, op_count_sum },
                { "mean", op_build_mean, OP_TERMS, OP_SIGNED, op_count_mean },
                { "max", op_build_max, op_values, OP_TIES, op_count_max },
                { "logsumexp", op_build_logsumexp, op_sizes_logsumexp, OP_SCORES, op_count_logsumexp } };
    const struct {
        struct op_operand x;
        uint32_t axes;
    } shapes[] = {
#define NOTHING 0
        { { S(0, 3), 0, 0 }, 1 },
        { { S(1), 0, 0 }, 1 },
        { { S(257), 0, 0 }, 1 },
        { { S(3, 5, 37), 0, 0 }, 1 },
        { { S(3, 5, 37), 0, 0 }, 2 },
        { { S(3, 5, 37), 0, 0 }, 4 },
        { { S(3, 5, 37), 0, 0 }, 3 },
        { { S(3, 5, 37), 0, 0 }, 5 },
        { { S(3, 5, 37), 0, 0 }, 6 },
        { { S(3, 5, 37), 0, 0 }, 7 },
        { { S(2, 1025), 0, 0 }, 2 },
        { { S(300, 3), 0, 0 }, 1 },
        { { S(33, 32), OP_TURNED, 0 }, 2 },
        { { S(33, 32), OP_TURNED, 0 }, 1 },
        { { S(7, 31), OP_SLICED, 0 }, 2 },
        { { S(5, 12), OP_EXPANDED, 0 }, 1 },
        { { S(0, 3), 0, 0 }, 2 },
        { { S(3, 70000), 0, 0 }, 2 },
        { { S(5000, 65), 0, 0 }, 1 },
        { { S(37, 41, 43), 0, 0 }, 5 },
        { { S(700, 256), 0, 0 }, 1 },
        { { S(3, 1200, 8), 0, 0 }, 2 },
        { { S(40000), 0, 0 }, 1 },
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            const rw_shape s = shapes[k].x.shape;
            if (i && k == NOTHING) continue; /* which has a sum only */
            struct op_case *const c = next(OP_REDUCTIONS, ops[i].build, ops[i].sizes, 1);
            c->in[0] = shapes[k].x;
            c->in[0].range = ops[i].range;
            c->axes = shapes[k].axes;
            c->keep = k % 2;
            ops[i].count(c);
            c->large = rw_shape_numel(s) > 4096;
            describe(c, "%s of axes %x", ops[i].name, c->axes);
        }
    const struct {
        rw_shape from, to;
    } down[] = { { S(3, 5, 37), S(5, 1) }, { S(3, 5, 37), S(37) }, { S(4, 9), S(1) }, { S(300, 33), S(33) } };
    for (size_t i = 0; i < sizeof down / sizeof *down; i++) {
        struct op_case *const c = next(OP_REDUCTIONS, op_build_sum_to, OP_TERMS, 1);
        c->in[0].shape = down[i].from;
        c->shape = down[i].to;
        op_count_sum_to(c);
        c->large = i == 3;
        describe(c, "sum_to");
    }
}

static void add_softmaxes(void)
{
    const struct {
        struct op_operand x;
        int axis;
    } shapes[] = { { { S(1, 1), 0, 0 }, -1 },           { { S(3, 5), 0, 0 }, -1 },
                   { { S(5, 33), OP_TURNED, 0 }, -1 },  { { S(2, 257), OP_SLICED, 0 }, -1 },
                   { { S(3, 11, 5), 0, 0 }, 1 },        { { S(7, 3), 0, 0 }, 0 },
                   { { S(2, 1025), 0, 0 }, -1 },        { { S(0, 4), 0, 0 }, -1 },
                   { { S(6, 9), OP_EXPANDED, 0 }, -1 }, { { S(70, 4), 0, 0 }, -1 },
                   { { S(40, 5003), 0, 0 }, -1 },       { { S(9, 65, 129), 0, 0 }, 1 },
                   { { S(2, 400), 0, 0 }, -1 },         { { S(4, 1024), 0, 0 }, -1 },
                   { { S(2, 2048), 0, 0 }, -1 },        { { S(1, 4096), 0, 0 }, -1 },
                   { { S(3, 8192), 0, 0 }, -1 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            struct op_case *const c = next(OP_REDUCTIONS, logarithm ? op_build_log_softmax : op_build_softmax,
                                           logarithm ? op_sizes_log_softmax : op_sizes_softmax, 1);
            const rw_shape s = shapes[i].x.shape;
            c->in[0] = shapes[i].x;
            c->in[0].range = OP_SCORES;
            c->axis = shapes[i].axis;
            (logarithm ? op_count_log_softmax : op_count_softmax)(c);
            c->large = rw_shape_numel(s) > 4096;
            describe(c, "%s along %d", logarithm ? "log_softmax" : "softmax", c->axis);
        }
    const struct op_operand scores[] = { { S(2, 6, 9), 0, 0 },    { S(1, 5, 5), 0, 0 },   { S(9, 6), 0, 0 },
                                         { S(3, 1, 8), 0, 0 },    { S(2, 33, 33), 0, 0 }, { S(2, 5, 7), OP_TURNED, 0 },
                                         { S(3, 200, 131), 0, 0 } };
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        struct op_case *const c = next(OP_REDUCTIONS, op_build_causal_softmax, op_sizes_softmax, 1);
        c->in[0] = scores[i];
        c->in[0].range = OP_SCORES;
        c->axis = -1;
        c->value = (double)0.7f;
        op_count_softmax(c);
        c->large = rw_shape_numel(scores[i].shape) > 4096;
        describe(c, "causal_softmax");
    }
}

static void add_attention(void)
{
    static const struct {
        int64_t batch, heads, kv_heads, seq, kv_seq, d;
        bool causal;
        double scale, dropout;
        enum op_layout layout;
        bool large;
    } all[] = {
        { 1, 1, 1, 1, 1, 1, false, 0, 0, OP_DENSE, false },
        { 1, 2, 2, 5, 3, 16, false, 0.3, 0, OP_DENSE, false },
        { 2, 4, 2, 5, 7, 12, true, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 17, 17, 64, true, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 9, 20, 128, true, 0, 0, OP_DENSE, false },
        { 1, 2, 2, 33, 33, 8, true, 0, 0, OP_MIDDLE, false },
        { 1, 4, 1, 6, 6, 5, true, 0.5, 0, OP_MIDDLE, false },
        { 1, 1, 1, 65, 70, 7, false, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 4, 9, 80, false, 0, 0, OP_SLICED, false },
        { 1, 1, 1, 3, 5, 256, true, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 9, 5, 8, true, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 13, 18, 8, true, 0, 0.3, OP_DENSE, false },
        { 1, 1, 1, 19, 35, 64, false, 0, 0.1, OP_MIDDLE, false },
        { 1, 1, 1, 0, 4, 8, false, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 1, 66, 64, true, 0, 0, OP_DENSE, false },
        { 1, 4, 2, 40, 200, 64, true, 0, 0.2, OP_DENSE, false },
        { 1, 4, 2, 200, 12, 64, false, 0, 0.1, OP_DENSE, false },
        { 2, 2, 1, 5, 6, 4, true, 0, 0.2, OP_EXPANDED, false },
        { 1, 3, 3, 4, 129, 3, false, -0.5, 0, OP_DENSE, false },
        { 1, 4, 2, 130, 257, 64, true, 0, 0, OP_MIDDLE, true },
        { 2, 2, 2, 129, 129, 128, true, 0, 0, OP_DENSE, true },
        { 1, 2, 1, 200, 200, 64, true, 0, 0.1, OP_DENSE, true },
        { 1, 2, 2, 100, 300, 96, false, 0, 0, OP_DENSE, true },
        { 1, 4, 1, 70, 131, 128, true, 0, 0.2, OP_DENSE, true },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = next(OP_ATTENTION, op_build_attention, op_sizes_attention, 3);
        c->in[0].shape = S(all[i].batch, all[i].heads, all[i].seq, all[i].d);
        c->in[1].shape = c->in[2].shape = S(all[i].batch, all[i].kv_heads, all[i].kv_seq, all[i].d);
        for (int k = 0; k < 3; k++) c->in[k].layout = all[i].layout;
        c->causal = all[i].causal;
        c->value = all[i].scale;
        c->dropout = all[i].dropout;
        op_count_attention(c);
        c->large = all[i].large;
        c->tiled = all[i].d == 64 && all[i].seq * all[i].kv_seq > 2000;
        describe(c, "attention%s%s%s", c->causal ? " causal" : "", c->value != 0 ? " scaled" : "",
                 c->dropout > 0 ? " dropout" : "");
    }
}

static void add_ropes(void)
{
    const struct op_operand shapes[] = { { S(1, 1, 3, 2), 0, 0 },           { S(2, 3, 5, 36), 0, 0 },
                                         { S(1, 2, 9, 64), OP_MIDDLE, 0 },  { S(1, 1, 2, 128), 0, 0 },
                                         { S(2, 2, 3, 6), OP_EXPANDED, 0 }, { S(1, 2, 0, 4), 0, 0 },
                                         { S(2, 4, 130, 64), OP_MIDDLE, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int given = 0; given < 2; given++) {
            struct op_case *const c = next(OP_ATTENTION, op_build_rope, op_sizes_rope, 1);
            c->in[0] = shapes[i];
            c->value = given ? 50 : 10000;
            if (given) c->shape = S(shapes[i].shape.dim[2]);
            op_count_rope(c);
            c->large = rw_shape_numel(shapes[i].shape) > 4096;
            describe(c, given ? "rope of positions" : "rope");
        }
}

static void add_tables(void)
{
    const rw_shape tables[][2] = { { S(1, 1), S(1) },        { S(7, 19), S(2, 3) }, { S(5, 64), S(33) },
                                   { S(3, 5), S(200) },      { S(4, 8), S(0) },     { S(11, 257), S(4) },
                                   { S(250, 96), S(3, 700) } };
    for (size_t form = 0; form < 2 * (sizeof tables / sizeof *tables); form++) { /* each beside another use too */
        const size_t i = form / 2;
        struct op_case *const c = next(OP_TABLES, op_build_embedding, OP_TERMS, 1);
        c->in[0].shape = tables[i][0];
        c->shape = tables[i][1];
        c->keep = form % 2;
        op_count_embedding(c);
        c->large = i == 6;
        describe(c, c->keep ? "embedding beside a sum, of %lld" : "embedding of %lld",
                 (long long)rw_shape_numel(c->shape));
    }
    const struct {
        struct op_operand x;
        bool ignoring;
        int ignored;
    } losses[] = { { { S(1, 1), 0, 0 }, false, -100 },
                   { { S(2, 3, 37), 0, 0 }, true, -100 },
                   { { S(5, 11), 0, 0 }, true, 1 },
                   { { S(33, 257), 0, 0 }, false, -100 },
                   { { S(4, 16), OP_SLICED, 0 }, true, -100 },
                   { { S(3, 1025), 0, 0 }, true, -100 },
                   { { S(0, 5), 0, 0 }, false, -100 },
                   { { S(11), 0, 0 }, false, -100 },
                   { { S(70, 5003), 0, 0 }, true, -100 } };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        struct op_case *const c = next(OP_TABLES, op_build_cross_entropy, op_sizes_cross_entropy, 1);
        const rw_shape s = losses[i].x.shape;
        c->in[0] = losses[i].x;
        c->in[0].range = OP_SCORES;
        c->shape = s;
        c->shape.rank--;
        c->ignoring = losses[i].ignoring;
        c->axis = losses[i].ignored;
        c->no_sum = true;
        op_count_cross_entropy(c);
        c->large = i == 8;
        describe(c, "cross_entropy%s", c->ignoring ? " ignoring" : "");
    }
    const rw_shape pairs[][2] = {
        { S(1), S(1) }, { S(5, 37), S(5, 37) }, { S(1025), S(1025) }, { S(5, 37), S(37) }, { S(400, 201), S(400, 201) }
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct op_case *const c = next(OP_TABLES, op_build_mse_loss, op_sizes_mse, 2);
        for (int k = 0; k < 2; k++) c->in[k].shape = pairs[i][k];
        c->no_sum = true;
        op_count_mse(c);
        c->large = i == 4;
        describe(c, "mse_loss");
    }
}

static struct op_case *exact(const char *name, op_build build, struct op_operand x)
{
    struct op_case *const c = next(OP_SHAPES, build, op_values, 1);
    c->in[0] = x;
    c->large = rw_shape_numel(x.shape) > 4096;
    describe(c, "%s", name);
    return c;
}

static void add_shapes(void)
{
    const struct op_operand boxes[] = { { S(4, 5, 6), 0, 0 },           { S(2, 33, 12), OP_TURNED, 0 },
                                        { S(3, 8, 6), OP_MIDDLE, 0 },   { S(3, 6, 5), OP_SLICED, 0 },
                                        { S(6, 7, 4), OP_EXPANDED, 0 }, { S(35, 33, 66), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        const rw_shape s = boxes[i].shape;
        exact("permute", op_build_permute, boxes[i]);
        exact("contiguous", op_build_contiguous, boxes[i]);
        exact("reshape", op_build_reshape, boxes[i])->shape = S(s.dim[1], -1);
        for (int axis = -1; axis < 2; axis++) {
            if (s.dim[axis < 0 ? 2 : axis] < 4) continue;
            exact("slice", op_build_slice, boxes[i])->axis = axis;
            exact("split", op_build_split, boxes[i])->axis = axis;
        }
    }
    const rw_shape wide[][2] = {
        { S(4, 1), S(3, 4, 6) }, { S(1), S(257) }, { S(5), S(2, 0, 5) }, { S(3, 1, 2), S(3, 7, 2) }
    };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        struct op_case *const c = exact("broadcast_to", op_build_broadcast_to,
                                        (struct op_operand){ .shape = wide[i][0] });
        c->sizes = OP_TERMS;
        c->shape = wide[i][1];
        op_count_broadcast_to(c);
    }
    const struct {
        struct op_operand x[3];
        int n, axis;
    } parts[] = { { { { S(4, 2, 3), 0, 0 }, { S(4, 1, 3), 0, 0 }, { S(4, 5, 3), OP_SLICED, 0 } }, 3, 1 },
                  { { { S(7), 0, 0 }, { S(257), 0, 0 } }, 2, 0 },
                  { { { S(3, 5), OP_TURNED, 0 }, { S(3, 0), 0, 0 }, { S(3, 2), 0, 0 } }, 3, -1 },
                  { { { S(5, 4), 0, 0 } }, 1, 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct op_case *const c = next(OP_SHAPES, op_build_concat, op_values, parts[i].n);
        memcpy(c->in, parts[i].x, sizeof parts[i].x);
        c->axis = parts[i].axis;
        describe(c, "concat");
    }
    for (int d = 0; d < RW_DTYPE_COUNT; d++)
        for (int k = 0; k < 2 && rw_dtype_is_float((rw_dtype)d); k++) {
            /* Squares have 16 bits: rounded once to a narrow type, by the product or by the cast. */
            struct op_case *const c = next(OP_SHAPES, op_build_cast, op_values, 1);
            c->in[0] = (struct op_operand){ .shape = k ? S(5, 33) : S(257), .layout = k ? OP_TURNED : OP_DENSE };
            c->dtype = (rw_dtype)d;
            c->r[0] = (struct roundings){ 1, 1 };
            c->r[1] = (struct roundings){ 2, 1 };
            describe(c, "cast to %s", rw_dtype_name((rw_dtype)d));
        }
}

static void add_random(void)
{
    static const double p[] = { 0.1, 0.5, 0.9 };
    const struct op_operand shapes[] = { { S(1), 0, 0 },
                                         { S(63), 0, 0 },
                                         { S(64), 0, 0 },
                                         { S(65), 0, 0 },
                                         { S(257), 0, 0 },
                                         { S(1027), 0, 0 },
                                         { S(3, 37), OP_TURNED, 0 },
                                         { S(0), 0, 0 },
                                         { S(40003), 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool large = rw_shape_numel(shapes[i].shape) > 4096;
        for (int k = 0; k < 3; k++) {
            struct op_case *const c = next(OP_RANDOM, op_build_dropout, op_values, 1);
            c->in[0] = shapes[i];
            c->in[0].range = OP_POSITIVE; /* no zeros but the mask's */
            c->dropout = p[k];
            c->r[0].n = c->r[1].n = N_DROPOUT;
            c->large = large;
            describe(c, "dropout %g", p[k]);
        }
        for (int k = 0; k < 6; k++) {
            struct op_case *const c = next(OP_RANDOM, op_build_dropout_add, OP_TERMS, 2);
            c->in[0] = c->in[1] = shapes[i];
            c->in[1].layout = k % 2 && shapes[i].shape.rank > 1 ? OP_SLICED : OP_DENSE;
            c->dropout = p[k / 2];
            c->keep = k % 2;
            c->r[0].n = N_DROPOUT + 1;
            c->r[1].n = N_DROPOUT;
            c->large = large;
            describe(c, "dropout_add %g", c->dropout);
        }
        for (int normal = 0; normal < 2; normal++)
            for (int d = 0; d < RW_DTYPE_COUNT; d++) {
                if (!rw_dtype_is_float((rw_dtype)d)) continue;
                struct op_case *const c = next(OP_RANDOM, normal ? op_build_randn : op_build_rand, op_values, 0);
                c->shape = shapes[i].shape;
                c->dtype = (rw_dtype)d;
                c->typed = true;
                /* Evaluated in double: logarithm, root, sine and product, then rounded. Uniform deviates are words. */
                c->r[0].n = normal ? N_RANDN : 0;
                c->large = large;
                describe(c, "%s %s of %lld", normal ? "randn" : "rand", rw_dtype_name(c->dtype),
                         (long long)rw_shape_numel(c->shape));
            }
    }
}

const struct op_case *op_cases(size_t *ret_n)
{
    if (!n_table) {
        add_unary();
        add_binary();
        add_products();
        add_norms();
        add_reductions();
        add_softmaxes();
        add_attention();
        add_ropes();
        add_tables();
        add_shapes();
        add_random();
    }
    *ret_n = n_table;
    return table;
}
