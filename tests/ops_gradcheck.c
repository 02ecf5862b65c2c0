/*
 * Every op's gradient rule in float64 against central finite differences, first and second order, along random
 * directions.
 *
 * Tolerance. With step h the central difference of L errs by h^2 |L'''| / 6 + e |L| / h, where e = 2^-52 times the
 * number of roundings in L. With h = 1e-5, third derivatives below 100 per unit direction and fewer than 2^10 roundings
 * both terms are below 3e-9 (1 + |L|); the test asks for 3e-8, and values of the inputs are kept where that holds.
 */
#include "support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST 512
#define STEP 1e-5

typedef rw_tensor *(*build_fn)(rw_tape *t, rw_tensor **x);

struct op_case {
    const char *name;
    build_fn build;
    int n;
    rw_shape shape[4];
    double lo, hi;   /* range of the inputs */
    bool first_only; /* no gradient of the gradient: random, or fused on purpose */
};

#define B(name, ...) static rw_tensor *b_##name(rw_tape *t, rw_tensor **x) { return __VA_ARGS__; }
B(add, rw_add(t, x[0], x[1]))
B(sub, rw_sub(t, x[0], x[1]))
B(mul, rw_mul(t, x[0], x[1]))
B(div, rw_div(t, x[0], x[1]))
B(maximum, rw_maximum(t, x[0], x[1]))
B(scale, rw_scale(t, x[0], 1.7))
B(add_scalar, rw_mul(t, rw_add_scalar(t, x[0], 0.3), x[0]))
B(pow_scalar, rw_pow_scalar(t, x[0], 2.5))
B(neg, rw_mul(t, rw_neg(t, x[0]), x[0]))
B(abs, rw_mul(t, rw_abs(t, x[0]), x[0]))
B(exp, rw_exp(t, x[0]))
B(log, rw_log(t, x[0]))
B(sqrt, rw_sqrt(t, x[0]))
B(tanh, rw_tanh(t, x[0]))
B(sigmoid, rw_sigmoid(t, x[0]))
B(relu, rw_mul(t, rw_relu(t, x[0]), x[0]))
B(silu, rw_silu(t, x[0]))
B(gelu, rw_gelu(t, x[0]))
B(gelu_tanh, rw_gelu_tanh(t, x[0]))
B(swiglu, rw_swiglu(t, x[0], x[1]))
B(matmul, rw_matmul(t, x[0], x[1]))
B(matmul_transposed, rw_matmul(t, rw_transpose(t, x[0], -1, -2), rw_transpose(t, x[1], -1, -2)))
B(linear, rw_linear(t, x[0], x[1], x[2]))
B(linear_no_bias, rw_linear(t, x[0], x[1], RW_NONE))
B(layernorm, rw_layernorm(t, x[0], x[1], x[2], 1e-3f))
B(layernorm_no_bias, rw_layernorm(t, x[0], x[1], RW_NONE, 1e-3f))
B(rmsnorm, rw_rmsnorm(t, x[0], x[1], 1e-3f))
B(sum, rw_sum(t, rw_mul(t, x[0], x[0]), RW_AXES(0, -1), false))
B(sum_middle, rw_sum(t, rw_mul(t, x[0], x[0]), RW_AXES(1), true))
B(mean, rw_mean(t, rw_mul(t, x[0], x[0]), RW_AXES(-1), true))
B(max, rw_mul(t, rw_max(t, x[0], RW_AXES(1), true), x[0]))
B(sum_to, rw_sum_to(t, rw_mul(t, x[0], x[0]), RW_SHAPE(3, 1)))
B(softmax, rw_softmax(t, x[0], -1))
B(softmax_middle, rw_softmax(t, x[0], 1))
B(causal_softmax, rw_causal_softmax(t, x[0], 0.7f))
B(log_softmax, rw_log_softmax(t, x[0], -1))
B(logsumexp, rw_logsumexp(t, x[0], RW_AXES(0, 2), false))
B(dropout, rw_dropout(t, rw_mul(t, x[0], x[0]), 0.4f))
B(attention, rw_attention(t, x[0], x[1], x[2], &(rw_attention_params){ .causal = true }))
B(attention_full, rw_attention(t, x[0], x[1], x[2], NULL))
B(attention_dropout, rw_attention(t, x[0], x[1], x[2], &(rw_attention_params){ .causal = true, .dropout = 0.3f }))
B(rope, rw_mul(t, rw_rope(t, x[0], RW_NONE, 100.0f), x[0]))
B(mse, rw_mse_loss(t, x[0], x[1]))
B(reshape, rw_mul(t, rw_reshape(t, x[0], RW_SHAPE(6, -1)), rw_reshape(t, x[0], RW_SHAPE(6, -1))))
B(permute, rw_mul(t, rw_permute(t, x[0], (const int[]){ 2, 0, 1 }), rw_permute(t, x[0], (const int[]){ 2, 0, 1 })))
B(slice, rw_mul(t, rw_slice(t, x[0], 1, 1, 3), rw_slice(t, x[0], 1, 0, 2)))
B(broadcast_to, rw_mul(t, rw_broadcast_to(t, x[0], RW_SHAPE(3, 4, 5)), x[1]))
B(contiguous, rw_exp(t, rw_contiguous(t, rw_transpose(t, x[0], 0, 1))))
B(concat, rw_exp(t, rw_concat(t, x, 2, 1)))

static rw_tensor *b_embedding(rw_tape *t, rw_tensor **x)
{
    const int32_t index[6] = { 2, 0, 2, 1, 2, 0 };
    rw_tensor *const y = rw_embedding(t, x[0], rw_input(t, RW_I32, RW_SHAPE(2, 3), index));
    return rw_mul(t, y, y);
}

static rw_tensor *b_cross_entropy(rw_tape *t, rw_tensor **x)
{
    const int32_t target[4] = { 2, -100, 0, 4 };
    return rw_cross_entropy(t, x[0], rw_input(t, RW_I32, RW_SHAPE(4), target));
}

static rw_tensor *b_split(rw_tape *t, rw_tensor **x)
{
    rw_tensor *part[3];
    if (rw_split(t, x[0], -1, (const int64_t[]){ 1, 2, 2 }, 3, part)) return NULL;
    return rw_mul(t, rw_exp(t, part[1]), part[2]);
}

static rw_tensor *b_positions(rw_tape *t, rw_tensor **x)
{
    const int32_t p[3] = { 5, 0, 9 };
    return rw_rope(t, x[0], rw_input(t, RW_I32, RW_SHAPE(3), p), 50.0f);
}

#define S(...) RW_SHAPE(__VA_ARGS__)
static struct op_case *cases(size_t *ret_n)
{
    static struct op_case all[64];
    size_t n = 0;
#define CASE(NAME, N, LO, HI, ONLY, ...)                                                                \
    do {                                                                                                \
        const rw_shape shapes[] = { __VA_ARGS__ };                                                      \
        all[n] = (struct op_case){ .name = #NAME, .build = b_##NAME, .n = N, .lo = LO, .hi = HI, .first_only = ONLY }; \
        memcpy(all[n++].shape, shapes, sizeof shapes);                                                  \
    } while (0)
    CASE(add, 2, -1, 1, false, S(2, 3, 4), S(3, 1));
    CASE(sub, 2, -1, 1, false, S(4), S(2, 3, 1));
    CASE(mul, 2, -1, 1, false, S(2, 3, 4), S(4));
    CASE(div, 2, 0.5, 2, false, S(3, 4), S(3, 1));
    CASE(maximum, 2, -1, 1, false, S(3, 5), S(5));
    CASE(scale, 1, -1, 1, false, S(7));
    CASE(add_scalar, 1, -1, 1, false, S(7));
    CASE(pow_scalar, 1, 0.5, 2, false, S(7));
    CASE(neg, 1, -1, 1, false, S(7));
    CASE(abs, 1, 0.2, 1, false, S(7));
    CASE(exp, 1, -1, 1, false, S(3, 7));
    CASE(log, 1, 0.5, 2, false, S(3, 7));
    CASE(sqrt, 1, 0.5, 2, false, S(3, 7));
    CASE(tanh, 1, -1, 1, false, S(17));
    CASE(sigmoid, 1, -2, 2, false, S(17));
    CASE(relu, 1, 0.2, 1, false, S(17));
    CASE(silu, 1, -2, 2, false, S(17));
    CASE(gelu, 1, -2, 2, false, S(17));
    CASE(gelu_tanh, 1, -2, 2, false, S(17));
    CASE(swiglu, 2, -2, 2, false, S(3, 5), S(3, 5));
    CASE(matmul, 2, -1, 1, false, S(2, 1, 3, 4), S(3, 4, 5));
    CASE(matmul_transposed, 2, -1, 1, false, S(4, 3), S(2, 5, 4));
    CASE(linear, 3, -1, 1, false, S(2, 3, 4), S(5, 4), S(5));
    CASE(linear_no_bias, 2, -1, 1, false, S(3, 4), S(5, 4));
    CASE(layernorm, 3, -1, 1, false, S(3, 9), S(9), S(9));
    CASE(layernorm_no_bias, 2, -1, 1, false, S(2, 2, 5), S(5));
    CASE(rmsnorm, 2, -1, 1, false, S(3, 9), S(9));
    CASE(sum, 1, -1, 1, false, S(2, 3, 4));
    CASE(sum_middle, 1, -1, 1, false, S(2, 3, 4));
    CASE(mean, 1, -1, 1, false, S(2, 3, 4));
    CASE(max, 1, -1, 1, false, S(2, 5, 3));
    CASE(sum_to, 1, -1, 1, false, S(2, 3, 4));
    CASE(softmax, 1, -1, 1, false, S(3, 6));
    CASE(softmax_middle, 1, -1, 1, false, S(2, 4, 3));
    CASE(causal_softmax, 1, -1, 1, false, S(2, 3, 5));
    CASE(log_softmax, 1, -1, 1, false, S(3, 6));
    CASE(logsumexp, 1, -1, 1, false, S(2, 3, 4));
    CASE(dropout, 1, -1, 1, true, S(37));
    CASE(attention, 3, -1, 1, false, S(2, 4, 5, 6), S(2, 2, 7, 6), S(2, 2, 7, 6));
    CASE(attention_full, 3, -1, 1, false, S(1, 2, 5, 4), S(1, 2, 3, 4), S(1, 2, 3, 4));
    CASE(attention_dropout, 3, -1, 1, true, S(1, 2, 5, 4), S(1, 1, 6, 4), S(1, 1, 6, 4));
    CASE(rope, 1, -1, 1, false, S(1, 2, 3, 4));
    CASE(positions, 1, -1, 1, false, S(2, 1, 3, 4));
    CASE(mse, 2, -1, 1, false, S(3, 4), S(3, 4));
    CASE(reshape, 1, -1, 1, false, S(3, 4));
    CASE(permute, 1, -1, 1, false, S(2, 3, 4));
    CASE(slice, 1, -1, 1, false, S(2, 4, 3));
    CASE(broadcast_to, 2, -1, 1, false, S(4, 1), S(3, 4, 5));
    CASE(contiguous, 1, -1, 1, false, S(3, 4));
    CASE(concat, 2, -1, 1, false, S(2, 3, 2), S(2, 1, 2));
    CASE(embedding, 1, -1, 1, false, S(4, 5));
    CASE(cross_entropy, 1, -1, 1, false, S(4, 5));
    CASE(split, 1, -1, 1, false, S(3, 5));
    *ret_n = n;
    return all;
}

static uint64_t state;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

struct problem {
    const struct op_case *c;
    struct bench b;
    rw_tensor *x[4];
    double value[4][MOST], direction[4][MOST], weight[MOST];
    size_t n[4];
    bool second;
};

/* sum(weight * y), or for the second order sum(weight * dL/dx0) */
static rw_tensor *record(struct problem *p)
{
    rw_tape *const t = p->b.t;
    for (int i = 0; i < p->c->n; i++) rw_write(p->x[i], p->value[i], p->n[i] * sizeof(double));
    rw_generator_set(p->b.ctx, (rw_generator_state){ 3, 0 }); /* the same mask each time */
    rw_tensor *x[4];
    memcpy(x, p->x, sizeof x);
    rw_tensor *y = p->c->build(t, x);
    cr_assert(y, "%s: %s", p->c->name, rw_error_message(p->b.ctx));
    if (p->second) {
        y = rw_mul(t, y, y); /* so that a linear op too has a second derivative */
        rw_tensor *const w = rw_input(t, RW_F64, rw_tensor_shape(y), p->weight);
        rw_tensor *const first = rw_sum(t, rw_mul(t, y, w), RW_ALL_AXES, false);
        cr_assert_eq(rw_grad(t, first, p->x, 1, &y), RW_OK, "%s: %s", p->c->name, rw_error_message(p->b.ctx));
    }
    return rw_sum(t, rw_mul(t, y, rw_input(t, RW_F64, rw_tensor_shape(y), p->weight + 7)), RW_ALL_AXES, false);
}

static double loss_at(struct problem *p, double h)
{
    double saved[4][MOST];
    memcpy(saved, p->value, sizeof saved);
    for (int i = 0; i < p->c->n; i++)
        for (size_t j = 0; j < p->n[i]; j++) p->value[i][j] += h * p->direction[i][j];
    const double loss = rw_item(p->b.t, record(p));
    cr_assert_eq(rw_error_status(p->b.ctx), RW_OK, "%s: %s", p->c->name, rw_error_message(p->b.ctx));
    rw_tape_reset(p->b.t);
    memcpy(p->value, saved, sizeof saved);
    return loss;
}

static void check(const struct op_case *c, bool second)
{
    struct problem *const p = calloc(1, sizeof *p);
    p->c = c;
    p->second = second;
    p->b = bench_open(1, 2);
    state = 88172645463325252u;
    for (int i = 0; i < c->n; i++) {
        const char name[2] = { (char)('a' + i), 0 };
        p->x[i] = rw_param(p->b.ctx, name, RW_F64, c->shape[i]);
        p->n[i] = (size_t)rw_shape_numel(c->shape[i]);
        for (size_t j = 0; j < p->n[i]; j++) {
            p->value[i][j] = c->lo + (c->hi - c->lo) * uniform();
            p->direction[i][j] = uniform() - 0.5;
        }
    }
    for (int j = 0; j < MOST; j++) p->weight[j] = uniform() - 0.5;
    rw_tensor *const loss = record(p);
    cr_assert_eq(rw_backward(p->b.t, loss), RW_OK, "%s: %s", c->name, rw_error_message(p->b.ctx));
    const double value = rw_item(p->b.t, loss);
    double slope = 0;
    for (int i = 0; i < c->n; i++) {
        double g[MOST];
        cr_assert_eq(rw_read(NULL, rw_gradient(p->x[i]), g, p->n[i] * sizeof *g), RW_OK);
        for (size_t j = 0; j < p->n[i]; j++) slope += g[j] * p->direction[i][j];
    }
    rw_tape_reset(p->b.t);
    const double difference = (loss_at(p, STEP) - loss_at(p, -STEP)) / (2 * STEP);
    const double error = fabs(slope - difference), bound = 3e-8 * (1 + fabs(value) + fabs(slope));
    cr_expect_lt(error, bound, "%s%s: gradient %.12g, difference %.12g", c->name, second ? ", second order" : "", slope, difference);
    bench_close(&p->b);
    free(p);
}

Test(gradcheck, first_order)
{
    size_t n;
    const struct op_case *const all = cases(&n);
    for (size_t i = 0; i < n; i++) check(&all[i], false);
}

Test(gradcheck, second_order)
{
    size_t n;
    const struct op_case *const all = cases(&n);
    for (size_t i = 0; i < n; i++)
        if (!all[i].first_only) check(&all[i], true);
}

Test(gradcheck, values_are_what_the_closed_form_says)
{
    struct bench b = bench_open(1, 1);
    const double x[3] = { -1, 0.5, 2 };
    rw_tensor *const in = rw_input(b.t, RW_F64, RW_SHAPE(3), x);
    double y[3];
    rw_read(b.t, rw_gelu(b.t, in), y, sizeof y);
    for (int i = 0; i < 3; i++) cr_assert_float_eq(y[i], 0.5 * x[i] * (1 + erf(x[i] / sqrt(2))), 1e-14);
    bench_close(&b);
}
