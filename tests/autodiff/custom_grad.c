/*
 * detach, straight_through and custom_grad: which gradients flow, in regions, under recompute, under the verifier, and
 * as second gradients; and errors of the recording function.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 6 };
static const double numbers[N] = { -2, -0.5, 0.25, 1, 1.5, 3 };

static rw_tensor *input(struct fixture *b)
{
    return rw_require_grad(b->t, rw_input(b->t, RW_F64, RW_SHAPE(N), numbers, sizeof numbers));
}

/* The gradient of sum(y) in x. */
static void gradient(struct fixture *b, rw_tensor *y, rw_tensor *x, double *to)
{
    cr_assert(y, "%s", rw_error_message(b->ctx));
    rw_tensor *const loss = rw_sum(b->t, y, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(b->t, loss, NULL), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, rw_gradient(x), to, N * sizeof *to), RW_OK, "%s", rw_error_message(b->ctx));
}

Test(custom_grad, nothing_flows_through_a_detached_tensor)
{
    struct fixture b = fixture_open(1, 1);
    double g[N], y[N];
    rw_tensor *const x = input(&b), *const still = rw_detach(b.t, rw_mul(b.t, x, x));
    rw_tensor *const product = rw_mul(b.t, still, x);
    gradient(&b, product, x, g);
    for (int i = 0; i < N; i++) cr_expect_float_eq(g[i], numbers[i] * numbers[i], 1e-15);
    cr_assert_eq(rw_read(b.t, product, y, sizeof y), RW_OK);
    for (int i = 0; i < N; i++) cr_expect_float_eq(y[i], pow(numbers[i], 3), 1e-14);
    cr_expect_eq(rw_backward(b.t, rw_sum(b.t, rw_detach(b.t, x), RW_ALL_AXES, false)), RW_ERR_ARGUMENT);
    fixture_close(&b);
}

Test(custom_grad, straight_through_hands_on_what_comes)
{
    struct fixture b = fixture_open(1, 1);
    double g[N], y[N];
    rw_tensor *const x = input(&b), *const signs = rw_straight_through(b.t, rw_sign(b.t, x), x);
    gradient(&b, rw_mul(b.t, signs, signs), x, g);
    cr_assert_eq(rw_read(b.t, signs, y, sizeof y), RW_OK);
    for (int i = 0; i < N; i++) {
        cr_expect_eq(y[i], numbers[i] < 0 ? -1 : 1);
        cr_expect_eq(g[i], 2 * y[i]); /* only the upstream gradient */
    }
    fixture_close(&b);
}

/* Half the upstream gradient times data, whatever the function is. */
static rw_status scaled(rw_grad_call *g, const void *data)
{
    double factor;
    memcpy(&factor, data, sizeof factor);
    return rw_grad_set(g, 1, rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), factor / 2));
}

Test(custom_grad, the_function_is_called_instead_of_the_rules)
{
    struct fixture b = fixture_open(1, 1);
    for (int k = 0; k < 3; k++) { /* other data: another plan */
        double g[N];
        const double factor = 3 + k;
        rw_tensor *const x = input(&b);
        rw_tensor *const y = rw_exp(b.t, rw_mul(b.t, x, x)), *const from[] = { x };
        gradient(&b, rw_custom_grad(b.t, y, from, 1, scaled, &factor, sizeof factor), x, g);
        for (int i = 0; i < N; i++) cr_expect_eq(g[i], factor / 2);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The rule of a product with the values that `keep` holds: 0.5 dy keep to a, dy a^2 to b, if requested. */
static rw_status product_rule(rw_grad_call *g, const void *data)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const a = rw_grad_input(g, 1), *const keep = rw_grad_input(g, 3);
    (void)data;
    if (rw_grad_wanted(g, 1)) {
        const rw_status status = rw_grad_set(g, 1, rw_scale(t, rw_mul(t, dy, keep), 0.5));
        if (status) return status;
    }
    return rw_grad_wanted(g, 2) ? rw_grad_set(g, 2, rw_mul(t, dy, rw_mul(t, a, a))) : RW_OK;
}

/* A network whose blocks have a custom gradient; returns its gradients and loss. */
static unsigned char *run(const char *policy, int threads, size_t *ret_bytes)
{
    struct fixture b = fixture_open(5, threads);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(16, 16)), *const e = rw_param(b.ctx, "e", RW_F32,
                                                                                            RW_SHAPE(40, 16));
    rw_init_normal(w, 0, 0.3), rw_init_normal(e, 0, 1);
    rw_tensor *x = rw_scale(b.t, e, 1);
    for (int l = 0; l < 3; l++) {
        ckpt_begin(b.t, "block");
        rw_tensor *const a = rw_dropout(b.t, rw_linear(b.t, x, w, RW_NONE), 0.2), *const h = rw_tanh(b.t, x);
        rw_tensor *const keep = rw_sigmoid(b.t, a), *const from[] = { a, h, keep };
        x = rw_custom_grad(b.t, rw_mul(b.t, rw_sin(b.t, a), h), from, 3, product_rule, NULL, 0);
        if (l == 1) x = rw_straight_through(b.t, rw_sign(b.t, x), x);
        if (l == 2) x = rw_add(b.t, x, rw_detach(b.t, a));
        ckpt_end(b.t);
    }
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, x, x), RW_ALL_AXES, false);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
    unsigned char *const all = all_gradients(b.ctx, ret_bytes);
    fixture_close(&b);
    return all;
}

Test(custom_grad, same_bytes_with_recompute_and_without)
{
    static const char *const policies[] = { "full", "uniform:2", "ops:tanh", "ops:custom_grad", "budget:90%" };
    size_t n, m;
    unsigned char *const want = run("none", 1, &n);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        unsigned char *const got = run(policies[i], 1 + (int)i, &m);
        cr_assert_eq(m, n);
        cr_expect_eq(first_difference(got, want, n), -1, "%s", policies[i]);
        free(got);
    }
    free(want);
}

/* y = x^3 by ops, with the gradient 5 x^2 dy: its own gradient is 10 x dy. */
static rw_status five_squares(rw_grad_call *g, const void *data)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_grad_input(g, 1);
    (void)data;
    return rw_grad_set(g, 1, rw_mul(t, rw_grad_upstream(g, 0), rw_scale(t, rw_mul(t, x, x), 5)));
}

Test(custom_grad, a_gradient_of_its_gradient_follows_from_what_it_recorded)
{
    struct fixture b = fixture_open(1, 1);
    double second[N];
    rw_tensor *const x = input(&b), *const from[] = { x }, *g = NULL;
    rw_tensor *const y = rw_custom_grad(b.t, rw_pow_scalar(b.t, x, 3), from, 1, five_squares, NULL, 0);
    rw_tensor *wanted = x;
    cr_assert_eq(rw_grad(b.t, rw_sum(b.t, y, RW_ALL_AXES, false), &wanted, 1, &g), RW_OK, "%s",
                 rw_error_message(b.ctx));
    gradient(&b, g, x, second);
    for (int i = 0; i < N; i++) cr_expect_float_eq(second[i], 10 * numbers[i], 1e-14);
    fixture_close(&b);
}

static rw_status sets_nothing(rw_grad_call *g, const void *data)
{
    (void)g, (void)data;
    return RW_OK;
}

static rw_status sets_another_shape(rw_grad_call *g, const void *data)
{
    (void)data;
    return rw_grad_set(g, 1, rw_sum(rw_grad_tape(g), rw_grad_upstream(g, 0), RW_ALL_AXES, false));
}

static rw_status draws(rw_grad_call *g, const void *data)
{
    (void)data;
    return rw_grad_set(g, 1, rw_dropout(rw_grad_tape(g), rw_grad_upstream(g, 0), 0.5f));
}

static rw_status refuses(rw_grad_call *g, const void *data)
{
    (void)g, (void)data;
    return RW_ERR_UNSUPPORTED;
}

Test(custom_grad, what_a_function_gets_wrong_is_an_error_that_names_it)
{
    static const struct {
        rw_custom_grad_fn fn;
        rw_status status;
    } wrong[] = { { sets_nothing, RW_ERR_ARGUMENT }, { sets_another_shape, RW_ERR_SHAPE }, { draws, RW_ERR_ARGUMENT },
                  { refuses, RW_ERR_UNSUPPORTED } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const x = input(&b), *const from[] = { x };
        rw_tensor *const y = rw_custom_grad(b.t, rw_exp(b.t, x), from, 1, wrong[i].fn, NULL, 0);
        const uint64_t drawn = rw_generator_get(b.ctx).offset;
        cr_expect_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), wrong[i].status);
        cr_expect(strstr(rw_error_message(b.ctx), "custom_grad"), "%s", rw_error_message(b.ctx));
        cr_expect_eq(rw_generator_get(b.ctx).offset, drawn);
        fixture_close(&b);
    }
}

/* Calls that a rule may not make on its own tape. */
static rw_status ends_its_tape(rw_grad_call *g, const void *data)
{
    rw_tape *t = rw_grad_tape(g);
    bool destroys;
    memcpy(&destroys, data, sizeof destroys);
    if (destroys) rw_tape_destroy(&t);
    else rw_tape_reset(t);
    return t ? RW_OK : RW_ERR_DEVICE;
}

Test(custom_grad, a_rule_neither_resets_nor_destroys_its_tape)
{
    static const char *const names[] = { "rw_tape_reset: expected a call from outside a callback, "
                                         "got one by a gradient rule",
                                         "rw_tape_destroy: expected a call from outside a callback, "
                                         "got one by a gradient rule" };
    for (int destroys = 0; destroys < 2; destroys++)
        for (int as_ops = 0; as_ops < 2; as_ops++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *const x = input(&b), *const from[] = { x }, *wanted = x, *dx = NULL;
            const bool what = destroys;
            rw_tensor *const y = rw_custom_grad(b.t, rw_exp(b.t, x), from, 1, ends_its_tape, &what, sizeof what);
            rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
            cr_expect_eq(as_ops ? rw_grad(b.t, loss, &wanted, 1, &dx) : rw_backward(b.t, loss), RW_ERR_ARGUMENT);
            cr_expect(strstr(rw_error_message(b.ctx), names[destroys]), "%s", rw_error_message(b.ctx));
            rw_error_clear(b.ctx);
            cr_expect_eq(rw_backward(b.t, rw_sum(b.t, rw_exp(b.t, x), RW_ALL_AXES, false)), RW_OK);
            rw_tape_reset(b.t);
            fixture_close(&b);
        }
}

/* A rule that requests gradients of a value that depends on its own upstream gradient, and so on itself. */
static rw_status meets_itself(rw_grad_call *g, const void *data)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *x = rw_grad_input(g, 1), *dx = NULL;
    rw_tensor *const y = rw_sum(t, rw_mul(t, rw_grad_upstream(g, 0), rw_grad_output(g, 0)), RW_ALL_AXES, false);
    (void)data;
    const rw_status status = rw_grad(t, y, &x, 1, &dx);
    return status ? status : rw_grad_set(g, 1, dx);
}

/* The last op fails: a scalar has no such axis. */
static rw_status fails_after_a_gradient(rw_grad_call *g, const void *data)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const x = rw_require_grad(t, rw_detach(t, rw_grad_input(g, 1))), *wanted = x, *dx = NULL;
    (void)data;
    const rw_status status = rw_grad(t, rw_sum(t, rw_mul(t, x, x), RW_ALL_AXES, false), &wanted, 1, &dx);
    return status ? status : rw_grad_set(g, 1, rw_sum(t, dx, RW_AXES(5), false));
}

Test(custom_grad, ops_of_a_rule_after_a_gradient_have_the_callers_line)
{
    struct fixture b = fixture_open(1, 1);
    char here[300];
    rw_tensor *const x = input(&b), *const from[] = { x };
    snprintf(here, sizeof here, "%s:%d", __FILE__, __LINE__ + 1);
    rw_tensor *const y = rw_custom_grad(b.t, rw_exp(b.t, x), from, 1, fails_after_a_gradient, NULL, 0);
    cr_expect_neq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK);
    cr_expect(strstr(rw_error_message(b.ctx), here), "%s, not %s", rw_error_message(b.ctx), here);
    fixture_close(&b);
}

/* Differentiates the function that it wraps, nested `levels` deep: one more rule in each. */
static rw_status differentiates_a_copy(rw_grad_call *g, const void *data)
{
    rw_tape *const t = rw_grad_tape(g);
    int levels;
    memcpy(&levels, data, sizeof levels);
    rw_tensor *const x = rw_grad_input(g, 1), *copy = rw_require_grad(t, rw_scale(t, rw_detach(t, x), 1)), *dx = NULL;
    rw_tensor *y = rw_mul(t, copy, rw_mul(t, copy, copy));
    levels--;
    if (levels) y = rw_custom_grad(t, y, &copy, 1, differentiates_a_copy, &levels, sizeof levels);
    const rw_status status = rw_grad(t, rw_sum(t, y, RW_ALL_AXES, false), &copy, 1, &dx);
    return status ? status : rw_grad_set(g, 1, rw_mul(t, rw_grad_upstream(g, 0), dx));
}

Test(custom_grad, rules_inside_of_rules_have_an_end)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = input(&b), *const from[] = { x };
    rw_tensor *const endless = rw_custom_grad(b.t, rw_exp(b.t, x), from, 1, meets_itself, NULL, 0);
    cr_expect_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, endless, endless), RW_ALL_AXES, false)), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "never ends"), "%s", rw_error_message(b.ctx));
    cr_expect(strstr(rw_error_message(b.ctx), "rw_grad at "), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    for (int levels = 1; levels <= 8; levels++) {
        double dx[N];
        rw_tape_reset(b.t);
        rw_tensor *const again = input(&b);
        rw_tensor *const cube = rw_mul(b.t, again, rw_mul(b.t, again, again));
        gradient(&b, rw_custom_grad(b.t, cube, &again, 1, differentiates_a_copy, &levels, sizeof levels), again, dx);
        for (int i = 0; i < N; i++) cr_expect_float_eq(dx[i], 3 * numbers[i] * numbers[i], 1e-14, "%d", levels);
    }
    fixture_close(&b);
}

Test(custom_grad, views_of_strided_tensors_and_parameters)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3, 4));
    rw_init_normal(p, 0, 1);
    rw_tensor *const transposed = rw_transpose(b.t, p, 0, 1);
    const double factor = 4;
    rw_tensor *const y = rw_custom_grad(b.t, rw_detach(b.t, transposed), &transposed, 1, scaled, &factor,
                                        sizeof factor);
    float g[12];
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(p), g, sizeof g), RW_OK);
    for (int i = 0; i < 12; i++) cr_expect_eq(g[i], 2);
    fixture_close(&b);
}
