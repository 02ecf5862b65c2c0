/*
 * The table of op_cases.h: ops times shapes. A loop per family; the roundings stand beside the ops.
 *
 * Roundings, from the arithmetic in ops/. A sum or product of k terms in any order: k. A library function of exp's kind:
 * F = 4, for CUDA's are within 2 ulp (SLEEF's within 1) and an ulp is two roundings; powf within 4.
 *  - sigmoid: exp, sum, quotient and 1 to spare: F + 3. Its users add their products; a slope s (1 + x (1 - s)) has it
 *    twice. tanh's slope 1 - y y: twice F and 2. gelu: the argument's 2 at half weight, sum, half, product: F + 6; slope:
 *    that and the density. gelu_tanh: its inner polynomial of 6 at a quarter, sigmoid, product: 2 F + 8; slope twice that.
 *  - norms over c elements: mean c + 1; the variance c + 4, halved by the root, and root and quotient: r is off by c / 2 + 4.
 *    y takes both: 2 c + 8. dx has r, xh twice (each 1.5 c + 6) and a mean: 5 c + 24. dweight: xh and the rows.
 *  - softmax over c elements: exp F, sum c, quotient, product: c + F + 8. Gradient: two probabilities and a sum. Logarithms
 *    are one more of the same order; exp(x - logsumexp): 2 c + 2 F + 16.
 *  - attention: P = d + kv + F + 12 for a probability and 8 more for each rescaling, at most one per block of 16 keys.
 *    Output: P + kv. dv: P + rows. ds: p, dot and d: 2 P + kv + d + 6, then a sum over kv (dq) or the rows of a group (dk).
 *  - rope: angle (weighed by the angle in M), sine or cosine F, its rounding, product, sum: F + 6.
 */
#include "op_cases.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CASES 1024
#define F 4
#define F_POW 8
#define SIGMOID (F + 3)
#define S(...) RW_SHAPE(__VA_ARGS__)

static struct op_case table[MOST_CASES];
static size_t n_table;

/* ---- operands ---- */

double op_number(enum op_range range, int64_t i, int salt)
{
    const uint64_t mixed = ((uint64_t)i * 0x9e3779b97f4a7c15u + (uint64_t)(salt + 1) * 0xd1b54a32d192ed03u) ^ (uint64_t)i >> 7;
    const int k = (int)((mixed * 0xbf58476d1ce4e5b9u) >> 57); /* 0 to 127 */
    switch (range) {
    case OP_POSITIVE: return (k + 8) / 32.0;
    case OP_WIDE: return (2 * k - 127) / 16.0;
    case OP_SCORES: return (k - 64) / 16.0;
    case OP_TIES: return k % 9 / 2.0 - 2;
    default: return (k - 64) / 32.0;
    }
}

rw_shape op_base_shape(const struct op_operand *o)
{
    rw_shape s = o->shape;
    const int last = s.rank - 1;
    const int64_t swap = s.rank > 1 ? s.dim[o->layout == OP_MIDDLE ? 1 : last] : 0;
    switch (o->layout) {
    case OP_TURNED: s.dim[last] = s.dim[last - 1], s.dim[last - 1] = swap; break;
    case OP_MIDDLE: s.dim[1] = s.dim[2], s.dim[2] = swap; break;
    case OP_SLICED: s.dim[last] += 3; break;
    case OP_CUT: s.dim[0] += 2; break;
    case OP_EXPANDED: s.dim[0] = 1; break;
    default: break;
    }
    return s;
}

rw_tensor *op_operand_of(rw_tape *t, const struct op_operand *o, rw_tensor *base)
{
    const rw_shape s = o->shape;
    switch (o->layout) {
    case OP_TURNED: return rw_transpose(t, base, -1, -2);
    case OP_MIDDLE: return rw_transpose(t, base, 1, 2);
    case OP_SLICED: return rw_slice(t, base, -1, 1, 1 + s.dim[s.rank - 1]);
    case OP_CUT: return rw_slice(t, base, 0, 2, 2 + s.dim[0]);
    case OP_EXPANDED: return rw_broadcast_to(t, base, s);
    default: return base;
    }
}

int64_t op_expansion(const struct op_operand *o)
{
    return o->layout == OP_EXPANDED ? o->shape.dim[0] : 1;
}

int32_t op_index(const struct op_case *c, int64_t i, int64_t below)
{
    if (c->ignoring && i % 3 == 1) return c->axis;
    const int64_t most = below < 300 ? below : 300;
    return (int32_t)((i * 7 + i * i * 3 + 2) % most);
}

static rw_tensor *indexes(rw_tape *t, const struct op_case *c, int64_t below)
{
    const int64_t n = rw_shape_numel(c->shape);
    int32_t *const data = malloc((size_t)(n + 1) * sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = op_index(c, i, below);
    rw_tensor *const index = rw_input(t, RW_I32, c->shape, data);
    free(data);
    return index;
}

/* ---- what is recorded ---- */

#define B(name, ...)                                                                       \
    static rw_tensor *b_##name(rw_tape *t, rw_tensor **x, const struct op_case *c)         \
    {                                                                                      \
        (void)x, (void)c;                                                                  \
        return __VA_ARGS__;                                                                \
    }
B(add, rw_add(t, x[0], x[1]))
B(sub, rw_sub(t, x[0], x[1]))
B(mul, rw_mul(t, x[0], x[1]))
B(div, rw_div(t, x[0], x[1]))
B(maximum, rw_maximum(t, x[0], x[1]))
B(scale, rw_scale(t, x[0], c->value))
B(add_scalar, rw_add_scalar(t, x[0], c->value))
B(pow_scalar, rw_pow_scalar(t, x[0], c->value))
B(neg, rw_neg(t, x[0]))
B(abs, rw_abs(t, x[0]))
B(exp, rw_exp(t, x[0]))
B(log, rw_log(t, x[0]))
B(sqrt, rw_sqrt(t, x[0]))
B(tanh, rw_tanh(t, x[0]))
B(sigmoid, rw_sigmoid(t, x[0]))
B(relu, rw_relu(t, x[0]))
B(silu, rw_silu(t, x[0]))
B(gelu, rw_gelu(t, x[0]))
B(gelu_tanh, rw_gelu_tanh(t, x[0]))
B(swiglu, rw_swiglu(t, x[0], x[1]))
B(matmul, rw_matmul(t, x[0], x[1]))
B(linear, rw_linear(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE))
B(layernorm, rw_layernorm(t, x[0], x[1], c->n == 3 ? x[2] : RW_NONE, (float)c->value))
B(rmsnorm, rw_rmsnorm(t, x[0], x[1], (float)c->value))
B(sum, rw_sum(t, x[0], c->axes, c->keep))
B(mean, rw_mean(t, x[0], c->axes, c->keep))
B(max, rw_max(t, x[0], c->axes, c->keep))
B(logsumexp, rw_logsumexp(t, x[0], c->axes, c->keep))
B(sum_to, rw_sum_to(t, x[0], c->shape))
B(softmax, rw_softmax(t, x[0], c->axis))
B(log_softmax, rw_log_softmax(t, x[0], c->axis))
B(causal_softmax, rw_causal_softmax(t, x[0], (float)c->value))
B(attention, rw_attention(t, x[0], x[1], x[2],
                          &(rw_attention_params){ .causal = c->causal, .scale = (float)c->value, .dropout = (float)c->dropout }))
B(rope, rw_rope(t, x[0], c->shape.rank ? indexes(t, c, INT32_MAX) : RW_NONE, (float)c->value))
B(embedding, rw_embedding(t, x[0], indexes(t, c, c->in[0].shape.dim[0])))
B(cross_entropy, c->axis == -100 ? rw_cross_entropy(t, x[0], indexes(t, c, c->in[0].shape.dim[c->in[0].shape.rank - 1]))
                                 : rw_cross_entropy_ignore(t, x[0], indexes(t, c, c->in[0].shape.dim[c->in[0].shape.rank - 1]), c->axis))
B(mse_loss, rw_mse_loss(t, x[0], x[1]))
B(reshape, rw_reshape(t, x[0], c->shape))
B(permute, rw_permute(t, x[0], (const int[]){ 2, 0, 1 }))
B(contiguous, rw_contiguous(t, x[0]))
B(slice, rw_slice(t, x[0], c->axis, 1, 4))
B(broadcast_to, rw_broadcast_to(t, x[0], c->shape))
B(concat, rw_concat(t, x, c->n, c->axis))
B(cast, rw_cast(t, rw_mul(t, x[0], x[0]), c->dtype))
B(dropout, rw_dropout(t, x[0], (float)c->dropout))
B(rand, rw_rand(t, c->dtype, c->shape))
B(randn, rw_randn(t, c->dtype, c->shape))

static rw_tensor *b_split(rw_tape *t, rw_tensor **x, const struct op_case *c)
{
    rw_tensor *part[3];
    const rw_shape s = rw_tensor_shape(x[0]);
    const int64_t n = s.dim[c->axis < 0 ? s.rank + c->axis : c->axis];
    if (rw_split(t, x[0], c->axis, (const int64_t[]){ 1, n - 3, 2 }, 3, part)) return NULL;
    return rw_concat(t, (rw_tensor *const[]){ part[2], part[0], part[1] }, 3, c->axis);
}

/* ---- making the table ---- */

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
        if (at < (int)sizeof c->name) at += snprintf(c->name + at, sizeof c->name - (size_t)at, "%s", layouts[c->in[i].layout]);
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
        { "scale", b_scale, op_values, OP_SIGNED, 1.7, { 2, 0 }, { 2, 0 } },
        { "add_scalar", b_add_scalar, OP_TERMS, OP_SIGNED, 0.3, { 2, 0 }, { 0, 0 } },
        { "pow 2.5", b_pow_scalar, op_values, OP_POSITIVE, 2.5, { F_POW, 0 }, { F_POW + 4, 2 } },
        { "pow -0.5", b_pow_scalar, op_values, OP_POSITIVE, -0.5, { F_POW, 0 }, { F_POW + 4, 2 } },
        { "pow 2", b_pow_scalar, op_values, OP_SIGNED, 2, { F_POW, 0 }, { F_POW + 4, 2 } },
        { "pow 3", b_pow_scalar, op_values, OP_SIGNED, 3, { F_POW, 0 }, { F_POW + 4, 2 } },
        { "neg", b_neg, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "abs", b_abs, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "exp", b_exp, op_values, OP_SCORES, 0, { F, 0 }, { F + 1, 1 } },
        { "log", b_log, op_values, OP_POSITIVE, 0, { F, 0 }, { 1, 0 } },
        { "sqrt", b_sqrt, op_values, OP_POSITIVE, 0, { 1, 0 }, { 3, 1 } },
        { "tanh", b_tanh, op_sizes_tanh, OP_SIGNED, 0, { F, 0 }, { 2 * F + 2, 1 } },
        { "sigmoid", b_sigmoid, op_sizes_sigmoid, OP_WIDE, 0, { SIGMOID, 0 }, { 2 * SIGMOID, 1 } },
        { "relu", b_relu, op_values, OP_SIGNED, 0, { 0, 0 }, { 0, 0 } },
        { "silu", b_silu, op_sizes_silu, OP_WIDE, 0, { SIGMOID + 2, 0 }, { 2 * SIGMOID + 6, 0 } },
        { "gelu", b_gelu, op_sizes_gelu, OP_WIDE, 0, { F + 6, 0 }, { 2 * F + 12, 0 } },
        { "gelu_tanh", b_gelu_tanh, op_sizes_gelu_tanh, OP_WIDE, 0, { 2 * F + 8, 0 }, { 4 * F + 16, 0 } },
    };
    const struct op_operand shapes[] = { { S(1), OP_DENSE, 0 },      { S(7), OP_DENSE, 0 },    { S(33), OP_DENSE, 0 },
                                         { S(257), OP_DENSE, 0 },    { S(3, 37), OP_TURNED, 0 }, { S(5, 16), OP_SLICED, 0 },
                                         { S(4, 9), OP_CUT, 0 },     { S(3, 5), OP_EXPANDED, 0 }, { S(2, 0, 3), OP_DENSE, 0 },
                                         { S(40003), OP_DENSE, 0 },  { S(131, 1025), OP_TURNED, 0 } };
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

static rw_shape broadcast(rw_shape a, rw_shape b)
{
    rw_shape s = a.rank >= b.rank ? a : b;
    const rw_shape o = a.rank >= b.rank ? b : a;
    for (int i = 1; i <= o.rank; i++)
        if (s.dim[s.rank - i] == 1) s.dim[s.rank - i] = o.dim[o.rank - i];
    return s;
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
        { "add", b_add, op_values, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "sub", b_sub, op_values, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "mul", b_mul, OP_TERMS, { OP_SIGNED, OP_SIGNED }, { 1, 0 }, { { 1, 1 }, { 1, 1 } } },
        { "div", b_div, OP_TERMS, { OP_SIGNED, OP_POSITIVE }, { 1, 0 }, { { 1, 1 }, { 4, 3 } } },
        { "maximum", b_maximum, op_values, { OP_TIES, OP_TIES }, { 0, 0 }, { { 0, 0 }, { 0, 0 } } },
        { "swiglu", b_swiglu, op_sizes_swiglu, { OP_WIDE, OP_SIGNED }, { SIGMOID + 3, 0 }, { { 2 * SIGMOID + 8, 0 }, { SIGMOID + 3, 0 } } },
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
            const rw_shape whole = broadcast(shapes[k][0].shape, shapes[k][1].shape);
            if (ops[i].build == b_swiglu && k >= 6) break; /* equal shapes only */
            struct op_case *const c = next(OP_POINTWISE, ops[i].build, ops[i].sizes, 2);
            c->r[0] = ops[i].y;
            for (int j = 0; j < 2; j++) {
                const int64_t numel = rw_shape_numel(shapes[k][j].shape), times = numel ? rw_shape_numel(whole) / numel : 1;
                c->in[j] = shapes[k][j];
                c->in[j].range = ops[i].range[j];
                c->r[1 + j] = ops[i].g[j];
                if (times > 1) c->r[1 + j].n += (int)times;
            }
            c->large = rw_shape_numel(whole) > 4096;
            describe(c, "%s", ops[i].name);
        }
}

static void add_products(void)
{
    const struct {
        struct op_operand a, b;
        int batch_a, batch_b; /* how often an operand is broadcast */
    } products[] = {
        { { S(1, 1), 0, 0 }, { S(1, 1), 0, 0 }, 1, 1 },
        { { S(2, 3), 0, 0 }, { S(3, 4), 0, 0 }, 1, 1 },
        { { S(5, 33), OP_TURNED, 0 }, { S(33, 7), 0, 0 }, 1, 1 },
        { { S(17, 16), 0, 0 }, { S(16, 65), OP_TURNED, 0 }, 1, 1 },
        { { S(9, 8), OP_TURNED, 0 }, { S(8, 24), OP_TURNED, 0 }, 1, 1 },
        { { S(6, 20), OP_SLICED, 0 }, { S(20, 5), OP_CUT, 0 }, 1, 1 },
        { { S(2, 5, 33), 0, 0 }, { S(33, 7), 0, 0 }, 1, 2 },
        { { S(2, 1, 5, 33), 0, 0 }, { S(3, 33, 7), 0, 0 }, 3, 2 },
        { { S(2, 3, 5, 8), OP_MIDDLE, 0 }, { S(2, 3, 8, 5), OP_MIDDLE, 0 }, 1, 1 },
        { { S(3, 4, 6), OP_EXPANDED, 0 }, { S(3, 6, 4), 0, 0 }, 1, 1 },
        { { S(3, 0), 0, 0 }, { S(0, 4), 0, 0 }, 1, 1 },
        { { S(0, 3), 0, 0 }, { S(3, 4), 0, 0 }, 1, 1 },
        { { S(200, 257), 0, 0 }, { S(257, 130), OP_TURNED, 0 }, 1, 1 },
        { { S(4, 129, 64), 0, 0 }, { S(4, 64, 129), OP_TURNED, 0 }, 1, 1 },
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++) {
        struct op_case *const c = next(OP_PRODUCTS, b_matmul, OP_TERMS, 2);
        c->in[0] = products[i].a, c->in[1] = products[i].b;
        const rw_shape a = c->in[0].shape, b = c->in[1].shape;
        const int m = (int)a.dim[a.rank - 2], k = (int)a.dim[a.rank - 1], n = (int)b.dim[b.rank - 1];
        c->r[0].n = k;
        c->r[1] = (struct roundings){ n + products[i].batch_a, products[i].batch_a > 1 };
        c->r[2] = (struct roundings){ m + m * (products[i].batch_b - 1) + products[i].batch_b, products[i].batch_b > 1 };
        c->large = m > 100;
        describe(c, "matmul");
    }
    const struct {
        struct op_operand x;
        int64_t out;
    } layers[] = { { { S(1, 1), 0, 0 }, 1 }, { { S(2, 5, 33), 0, 0 }, 7 }, { { S(9, 16), OP_TURNED, 0 }, 24 }, { { S(3, 8), OP_SLICED, 0 }, 65 },
                   { { S(0, 4), 0, 0 }, 3 }, { { S(7), 0, 0 }, 5 }, { { S(300, 96), 0, 0 }, 200 } };
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++)
        for (int bias = 0; bias < 2; bias++) {
            struct op_case *const c = next(OP_PRODUCTS, b_linear, OP_TERMS, 2 + bias);
            const rw_shape x = layers[i].x.shape;
            const int64_t in = x.dim[x.rank - 1], rows = rw_shape_numel(x) / in;
            c->in[0] = layers[i].x;
            c->in[1].shape = S(layers[i].out, in), c->in[2].shape = S(layers[i].out);
            c->r[0].n = (int)in + 1;
            c->r[1].n = (int)layers[i].out;
            c->r[2].n = c->r[3].n = (int)rows + 1;
            c->large = rows > 100;
            describe(c, "linear");
        }
}

static void add_norms(void)
{
    const struct op_operand shapes[] = { { S(1, 1), 0, 0 },           { S(3, 2), 0, 0 },   { S(2, 3, 37), 0, 0 },    { S(5, 64), OP_TURNED, 0 },
                                         { S(2, 257), OP_SLICED, 0 }, { S(130, 5), 0, 0 }, { S(4, 8), OP_EXPANDED, 0 }, { S(0, 6), 0, 0 },
                                         { S(3, 1024), 0, 0 },        { S(9), 0, 0 },      { S(1500, 33), 0, 0 },    { S(17, 4099), 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = 0; kind < 3; kind++) { /* layernorm, without bias, rmsnorm */
            struct op_case *const c = next(OP_NORMS, kind == 2 ? b_rmsnorm : b_layernorm, op_sizes_norm, kind ? 2 : 3);
            const rw_shape s = shapes[i].shape;
            const int width = (int)s.dim[s.rank - 1], rows = (int)(rw_shape_numel(s) / width);
            c->rms = kind == 2;
            c->value = 1e-3;
            c->in[0] = shapes[i];
            c->in[1].shape = c->in[2].shape = S(width);
            c->r[0].n = 2 * width + 8;
            c->r[1].n = 5 * width + 24;
            c->r[2].n = 2 * width + 8 + rows;
            c->r[3].n = rows;
            c->large = rw_shape_numel(s) > 4096;
            describe(c, kind == 2 ? "rmsnorm" : "layernorm");
        }
}

static void add_reductions(void)
{
    static const struct {
        const char *name;
        op_build build;
        op_sizes sizes;
        enum op_range range;
    } ops[] = { { "sum", b_sum, OP_TERMS, OP_SIGNED },
                { "mean", b_mean, OP_TERMS, OP_SIGNED },
                { "max", b_max, op_values, OP_TIES },
                { "logsumexp", b_logsumexp, op_sizes_logsumexp, OP_SCORES } };
    const struct {
        struct op_operand x;
        uint32_t axes;
    } shapes[] = {
        { { S(1), 0, 0 }, 1 },           { { S(257), 0, 0 }, 1 },          { { S(3, 5, 37), 0, 0 }, 1 },          { { S(3, 5, 37), 0, 0 }, 2 },
        { { S(3, 5, 37), 0, 0 }, 4 },    { { S(3, 5, 37), 0, 0 }, 3 },     { { S(3, 5, 37), 0, 0 }, 5 },          { { S(3, 5, 37), 0, 0 }, 6 },
        { { S(3, 5, 37), 0, 0 }, 7 },    { { S(2, 1025), 0, 0 }, 2 },      { { S(300, 3), 0, 0 }, 1 },            { { S(33, 32), OP_TURNED, 0 }, 2 },
        { { S(33, 32), OP_TURNED, 0 }, 1 }, { { S(7, 31), OP_SLICED, 0 }, 2 }, { { S(5, 12), OP_EXPANDED, 0 }, 1 }, { { S(0, 3), 0, 0 }, 2 },
        { { S(0, 3), 0, 0 }, 1 },        { { S(3, 70000), 0, 0 }, 2 },     { { S(5000, 65), 0, 0 }, 1 },          { { S(37, 41, 43), 0, 0 }, 5 },
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            const rw_shape s = shapes[k].x.shape;
            int n = 1; /* elements that meet */
            for (int axis = 0; axis < s.rank; axis++)
                if (shapes[k].axes >> axis & 1) n *= (int)s.dim[axis];
            if (!n && i) continue; /* nothing has a sum only */
            struct op_case *const c = next(OP_REDUCTIONS, ops[i].build, ops[i].sizes, 1);
            c->in[0] = shapes[k].x;
            c->in[0].range = ops[i].range;
            c->axes = shapes[k].axes;
            c->keep = k % 2;
            c->r[0].n = i == 0 ? n : i == 1 ? n + 2 : i == 2 ? 0 : n + F + 10;
            c->r[1].n = i == 1 ? 3 : i == 3 ? 2 * n + 2 * F + 16 : 0;
            c->r[1].s = i == 3;
            c->large = rw_shape_numel(s) > 4096;
            describe(c, "%s of axes %x", ops[i].name, c->axes);
        }
    const struct {
        rw_shape from, to;
    } down[] = { { S(3, 5, 37), S(5, 1) }, { S(3, 5, 37), S(37) }, { S(4, 9), S(1) }, { S(300, 33), S(33) } };
    for (size_t i = 0; i < sizeof down / sizeof *down; i++) {
        struct op_case *const c = next(OP_REDUCTIONS, b_sum_to, OP_TERMS, 1);
        c->in[0].shape = down[i].from;
        c->shape = down[i].to;
        c->r[0].n = (int)(rw_shape_numel(down[i].from) / rw_shape_numel(down[i].to));
        c->large = i == 3;
        describe(c, "sum_to");
    }
}

static void add_softmaxes(void)
{
    const struct {
        struct op_operand x;
        int axis;
    } shapes[] = { { { S(1, 1), 0, 0 }, -1 },          { { S(3, 5), 0, 0 }, -1 },           { { S(5, 33), OP_TURNED, 0 }, -1 },
                   { { S(2, 257), OP_SLICED, 0 }, -1 }, { { S(3, 11, 5), 0, 0 }, 1 },        { { S(7, 3), 0, 0 }, 0 },
                   { { S(2, 1025), 0, 0 }, -1 },       { { S(0, 4), 0, 0 }, -1 },           { { S(6, 9), OP_EXPANDED, 0 }, -1 },
                   { { S(70, 4), 0, 0 }, -1 },         { { S(40, 5003), 0, 0 }, -1 },       { { S(9, 65, 129), 0, 0 }, 1 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int logarithm = 0; logarithm < 2; logarithm++) {
            struct op_case *const c = next(OP_REDUCTIONS, logarithm ? b_log_softmax : b_softmax,
                                           logarithm ? op_sizes_log_softmax : op_sizes_softmax, 1);
            const rw_shape s = shapes[i].x.shape;
            const int n = (int)s.dim[shapes[i].axis < 0 ? s.rank + shapes[i].axis : shapes[i].axis];
            c->in[0] = shapes[i].x;
            c->in[0].range = OP_SCORES;
            c->axis = shapes[i].axis;
            c->r[0].n = n + F + 10;
            c->r[1] = logarithm ? (struct roundings){ 2 * n + 2 * F + 16, 1 } : (struct roundings){ 3 * n + 2 * F + 20, 2 };
            c->large = rw_shape_numel(s) > 4096;
            describe(c, "%s along %d", logarithm ? "log_softmax" : "softmax", c->axis);
        }
    const struct op_operand scores[] = { { S(2, 6, 9), 0, 0 },   { S(1, 5, 5), 0, 0 },        { S(9, 6), 0, 0 }, { S(3, 1, 8), 0, 0 },
                                         { S(2, 33, 33), 0, 0 }, { S(2, 5, 7), OP_TURNED, 0 }, { S(3, 200, 131), 0, 0 } };
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++) {
        struct op_case *const c = next(OP_REDUCTIONS, b_causal_softmax, op_sizes_softmax, 1);
        const int n = (int)scores[i].shape.dim[scores[i].shape.rank - 1];
        c->in[0] = scores[i];
        c->in[0].range = OP_SCORES;
        c->axis = -1;
        c->value = (double)0.7f;
        c->r[0].n = n + F + 10;
        c->r[1] = (struct roundings){ 3 * n + 2 * F + 20, 2 };
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
        { 1, 1, 1, 1, 1, 1, false, 0, 0, OP_DENSE, false },      { 1, 2, 2, 5, 3, 16, false, 0.3, 0, OP_DENSE, false },
        { 2, 4, 2, 5, 7, 12, true, 0, 0, OP_DENSE, false },      { 1, 2, 1, 17, 17, 64, true, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 9, 20, 128, true, 0, 0, OP_DENSE, false },    { 1, 2, 2, 33, 33, 8, true, 0, 0, OP_MIDDLE, false },
        { 1, 4, 1, 6, 6, 5, true, 0.5, 0, OP_MIDDLE, false },    { 1, 1, 1, 65, 70, 7, false, 0, 0, OP_DENSE, false },
        { 1, 2, 1, 4, 9, 80, false, 0, 0, OP_SLICED, false },    { 1, 1, 1, 3, 5, 256, true, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 9, 5, 8, true, 0, 0, OP_DENSE, false },       { 1, 2, 1, 13, 18, 8, true, 0, 0.3, OP_DENSE, false },
        { 1, 1, 1, 19, 35, 64, false, 0, 0.1, OP_MIDDLE, false }, { 1, 1, 1, 0, 4, 8, false, 0, 0, OP_DENSE, false },
        { 1, 1, 1, 1, 66, 64, true, 0, 0, OP_DENSE, false },     { 2, 2, 1, 5, 6, 4, true, 0, 0.2, OP_EXPANDED, false },
        { 1, 3, 3, 4, 129, 3, false, -0.5, 0, OP_DENSE, false },
        { 1, 4, 2, 130, 257, 64, true, 0, 0, OP_MIDDLE, true },  { 2, 2, 2, 129, 129, 128, true, 0, 0, OP_DENSE, true },
        { 1, 2, 1, 200, 200, 64, true, 0, 0.1, OP_DENSE, true }, { 1, 2, 2, 100, 300, 96, false, 0, 0, OP_DENSE, true },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct op_case *const c = next(OP_ATTENTION, b_attention, op_sizes_attention, 3);
        const int d = (int)all[i].d, kv = (int)all[i].kv_seq, rows = (int)(all[i].seq * all[i].heads / all[i].kv_heads);
        const int p = d + kv + F + 12 + 8 * (kv / 16 + 1), ds = 2 * p + kv + d + 6, extra = all[i].dropout > 0 ? 2 : 0;
        c->in[0].shape = S(all[i].batch, all[i].heads, all[i].seq, all[i].d);
        c->in[1].shape = c->in[2].shape = S(all[i].batch, all[i].kv_heads, all[i].kv_seq, all[i].d);
        for (int k = 0; k < 3; k++) c->in[k].layout = all[i].layout;
        c->causal = all[i].causal;
        c->value = all[i].scale;
        c->dropout = all[i].dropout;
        c->first_only = c->dropout > 0;
        /* Stored, where tiles go through a matrix unit of 16 bits: p; and the output, p and ds on the way to a gradient. */
        c->r[0] = (struct roundings){ p + kv + extra, 1 };
        c->r[1] = (struct roundings){ ds + kv + extra, 3 };
        c->r[2] = (struct roundings){ ds + rows + extra, 3 };
        c->r[3] = (struct roundings){ p + rows + extra, 1 };
        c->large = all[i].large;
        describe(c, "attention%s%s%s", c->causal ? " causal" : "", c->value != 0 ? " scaled" : "", c->dropout > 0 ? " dropout" : "");
    }
}

static void add_ropes(void)
{
    const struct op_operand shapes[] = { { S(1, 1, 3, 2), 0, 0 },          { S(2, 3, 5, 36), 0, 0 },      { S(1, 2, 9, 64), OP_MIDDLE, 0 },
                                         { S(1, 1, 2, 128), 0, 0 },        { S(2, 2, 3, 6), OP_EXPANDED, 0 }, { S(1, 2, 0, 4), 0, 0 },
                                         { S(2, 4, 130, 64), OP_MIDDLE, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int given = 0; given < 2; given++) {
            struct op_case *const c = next(OP_ATTENTION, b_rope, op_sizes_rope, 1);
            c->in[0] = shapes[i];
            c->value = given ? 50 : 10000;
            if (given) c->shape = S(shapes[i].shape.dim[2]);
            c->r[0].n = c->r[1].n = F + 6;
            c->large = rw_shape_numel(shapes[i].shape) > 4096;
            describe(c, given ? "rope of positions" : "rope");
        }
}

/* The most that any row of a table is asked for. */
static int most_asked(const struct op_case *c)
{
    int asked[300] = { 0 }, most = 0;
    for (int64_t i = 0; i < rw_shape_numel(c->shape); i++) {
        const int k = ++asked[op_index(c, i, c->in[0].shape.dim[0])];
        most = k > most ? k : most;
    }
    return most;
}

static void add_tables(void)
{
    const rw_shape tables[][2] = { { S(1, 1), S(1) },    { S(7, 19), S(2, 3) },  { S(5, 64), S(33) },      { S(3, 5), S(200) },
                                   { S(4, 8), S(0) },    { S(11, 257), S(4) },   { S(250, 96), S(3, 700) } };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        struct op_case *const c = next(OP_TABLES, b_embedding, OP_TERMS, 1);
        c->in[0].shape = tables[i][0];
        c->shape = tables[i][1];
        c->r[1].n = most_asked(c);
        c->large = i == 6;
        describe(c, "embedding of %lld", (long long)rw_shape_numel(c->shape));
    }
    const struct {
        struct op_operand x;
        bool ignoring;
        int ignored;
    } losses[] = { { { S(1, 1), 0, 0 }, false, -100 }, { { S(2, 3, 37), 0, 0 }, true, -100 },       { { S(5, 11), 0, 0 }, true, 1 },
                   { { S(33, 257), 0, 0 }, false, -100 }, { { S(4, 16), OP_SLICED, 0 }, true, -100 }, { { S(3, 1025), 0, 0 }, true, -100 },
                   { { S(0, 5), 0, 0 }, false, -100 }, { { S(11), 0, 0 }, false, -100 },            { { S(70, 5003), 0, 0 }, true, -100 } };
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        struct op_case *const c = next(OP_TABLES, b_cross_entropy, op_sizes_cross_entropy, 1);
        const rw_shape s = losses[i].x.shape;
        const int n = (int)s.dim[s.rank - 1], rows = (int)(rw_shape_numel(s) / n);
        c->in[0] = losses[i].x;
        c->in[0].range = OP_SCORES;
        c->shape = s;
        c->shape.rank--;
        c->ignoring = losses[i].ignoring;
        c->axis = losses[i].ignored;
        c->no_sum = true;
        c->r[0].n = n + F + 10 + rows;
        c->r[1].n = 2 * n + 2 * F + 16;
        c->large = i == 8;
        describe(c, "cross_entropy%s", c->ignoring ? " ignoring" : "");
    }
    const rw_shape pairs[][2] = { { S(1), S(1) }, { S(5, 37), S(5, 37) }, { S(1025), S(1025) }, { S(5, 37), S(37) }, { S(400, 201), S(400, 201) } };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct op_case *const c = next(OP_TABLES, b_mse_loss, op_sizes_mse, 2);
        const int n = (int)rw_shape_numel(pairs[i][0]), rows = n / (int)rw_shape_numel(pairs[i][1]);
        for (int k = 0; k < 2; k++) c->in[k].shape = pairs[i][k];
        c->no_sum = true;
        c->r[0] = (struct roundings){ n + 4, rows > 1 ? 2 : 0 };
        c->r[1] = c->r[2] = (struct roundings){ 6 + (rows > 1 ? rows : 0), rows > 1 ? 3 : 0 };
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
    const struct op_operand boxes[] = { { S(4, 5, 6), 0, 0 }, { S(2, 33, 12), OP_TURNED, 0 }, { S(3, 8, 6), OP_MIDDLE, 0 },
                                        { S(3, 6, 5), OP_SLICED, 0 }, { S(6, 7, 4), OP_EXPANDED, 0 }, { S(35, 33, 66), OP_TURNED, 0 } };
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) {
        const rw_shape s = boxes[i].shape;
        exact("permute", b_permute, boxes[i]);
        exact("contiguous", b_contiguous, boxes[i]);
        exact("reshape", b_reshape, boxes[i])->shape = S(s.dim[1], -1);
        for (int axis = -1; axis < 2; axis++) {
            if (s.dim[axis < 0 ? 2 : axis] < 4) continue;
            exact("slice", b_slice, boxes[i])->axis = axis;
            exact("split", b_split, boxes[i])->axis = axis;
        }
    }
    const rw_shape wide[][2] = { { S(4, 1), S(3, 4, 6) }, { S(1), S(257) }, { S(5), S(2, 0, 5) }, { S(3, 1, 2), S(3, 7, 2) } };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) {
        struct op_case *const c = exact("broadcast_to", b_broadcast_to, (struct op_operand){ .shape = wide[i][0] });
        c->sizes = OP_TERMS;
        c->shape = wide[i][1];
        c->r[1].n = (int)(rw_shape_numel(wide[i][1]) / rw_shape_numel(wide[i][0]));
    }
    const struct {
        struct op_operand x[3];
        int n, axis;
    } parts[] = { { { { S(4, 2, 3), 0, 0 }, { S(4, 1, 3), 0, 0 }, { S(4, 5, 3), OP_SLICED, 0 } }, 3, 1 },
                  { { { S(7), 0, 0 }, { S(257), 0, 0 } }, 2, 0 },
                  { { { S(3, 5), OP_TURNED, 0 }, { S(3, 0), 0, 0 }, { S(3, 2), 0, 0 } }, 3, -1 },
                  { { { S(5, 4), 0, 0 } }, 1, 0 } };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct op_case *const c = next(OP_SHAPES, b_concat, op_values, parts[i].n);
        memcpy(c->in, parts[i].x, sizeof parts[i].x);
        c->axis = parts[i].axis;
        describe(c, "concat");
    }
    for (int d = 0; d < RW_DTYPE_COUNT; d++)
        for (int k = 0; k < 2 && rw_dtype_is_float((rw_dtype)d); k++) {
            /* Squares have 16 bits: rounded once to a narrow type, by the product or by the cast. */
            struct op_case *const c = next(OP_SHAPES, b_cast, op_values, 1);
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
    const struct op_operand shapes[] = { { S(1), 0, 0 },  { S(63), 0, 0 },  { S(64), 0, 0 },   { S(65), 0, 0 },          { S(257), 0, 0 },
                                         { S(1027), 0, 0 }, { S(3, 37), OP_TURNED, 0 }, { S(0), 0, 0 }, { S(40003), 0, 0 } };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const bool large = rw_shape_numel(shapes[i].shape) > 4096;
        for (int k = 0; k < 3; k++) {
            struct op_case *const c = next(OP_RANDOM, b_dropout, op_values, 1);
            c->in[0] = shapes[i];
            c->in[0].range = OP_POSITIVE; /* no zeros but the mask's */
            c->dropout = p[k];
            c->first_only = true;
            c->r[0].n = c->r[1].n = 3; /* 1 - p, its inverse, the product */
            c->large = large;
            describe(c, "dropout %g", p[k]);
        }
        for (int normal = 0; normal < 2; normal++)
            for (int d = 0; d < RW_DTYPE_COUNT; d++) {
                if (!rw_dtype_is_float((rw_dtype)d)) continue;
                struct op_case *const c = next(OP_RANDOM, normal ? b_randn : b_rand, op_values, 0);
                c->shape = shapes[i].shape;
                c->dtype = (rw_dtype)d;
                c->first_only = c->typed = true;
                /* Evaluated in double: logarithm, root, sine and product, then rounded. Uniform deviates are words. */
                c->r[0].n = normal ? 2 * F + 3 : 0;
                c->large = large;
                describe(c, "%s %s of %lld", normal ? "randn" : "rand", rw_dtype_name(c->dtype), (long long)rw_shape_numel(c->shape));
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
