/* Clipping of gradients whose norm is NaN or infinite: the result never looks like a valid step, or the call
   refuses. */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 4, LONG = 5003 };

static const rw_dtype types[N] = { RW_F32, RW_BF16, RW_F16, RW_F64 };
static const double bad[] = { NAN, INFINITY, -INFINITY };

struct world {
    struct fixture b;
    rw_tensor *w[N], *idle;
};

static struct world world_open(void)
{
    struct world x = { .b = fixture_open(1, 2) };
    for (int k = 0; k < N; k++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", k);
        x.w[k] = rw_param_with(x.b.ctx, name, types[k], RW_SHAPE(k == 2 ? LONG : 7),
                               &(rw_param_options){ .grad_dtype = types[k] });
        rw_init_constant(x.w[k], 0.5);
    }
    x.idle = rw_param(x.b.ctx, "idle", RW_F32, RW_SHAPE(3));
    return x;
}

/* Writes small numbers, and one that is not finite to gradient `at`; -1: to none. */
static void write_gradients(struct world *x, int at, double what)
{
    rw_zero_grad(x->b.ctx);
    for (int k = 0; k < N; k++) {
        rw_tensor *const g = rw_gradient(x->w[k]);
        const int64_t n = rw_shape_numel(rw_tensor_shape(g));
        char *const data = calloc((size_t)n, 8);
        for (int64_t i = 0; i < n; i++) number_put(data, types[k], i, (double)(i % 5) - 2);
        if (k == at) number_put(data, types[k], n - 2, what);
        cr_assert_eq(rw_write(g, data, rw_tensor_bytes(g)), RW_OK);
        free(data);
    }
}

static void expect_nan(struct world *x, rw_tensor *g, const char *what)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(g));
    char *const data = calloc((size_t)n, 8);
    cr_assert_eq(rw_read(NULL, g, data, rw_tensor_bytes(g)), RW_OK, "%s", rw_error_message(x->b.ctx));
    for (int64_t i = 0; i < n; i++)
        cr_assert(isnan(number_get(data, rw_tensor_dtype(g), i)), "%s, type %d, element %d: %g", what,
                  rw_tensor_dtype(g), (int)i, number_get(data, rw_tensor_dtype(g), i));
    free(data);
}

Test(clip_nonfinite_norm, to_a_norm_that_is_not_finite_all_are_nan)
{
    struct world x = world_open();
    for (int at = 0; at < N; at++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            double norm = 0;
            float zeros[3] = { 1, 1, 1 };
            write_gradients(&x, at, bad[i]);
            cr_assert_eq(rw_clip_grad_norm(x.b.ctx, 1e9, &norm), RW_OK, "%s", rw_error_message(x.b.ctx));
            cr_assert(i ? isinf(norm) : isnan(norm), "%g", norm);
            for (int k = 0; k < N; k++) expect_nan(&x, rw_gradient(x.w[k]), "a gradient");
            cr_assert_eq(rw_read(NULL, rw_gradient(x.idle), zeros, sizeof zeros), RW_OK);
            cr_assert(zeros[0] == 0 && zeros[1] == 0 && zeros[2] == 0, "it is clear");
        }
    fixture_close(&x.b);
}

/* An infinite limit only measures the norm. */
Test(clip_nonfinite_norm, to_no_limit_nothing_changes)
{
    struct world x = world_open();
    for (int at = -1; at < N; at++) {
        size_t bytes;
        double norm = 0;
        write_gradients(&x, at, NAN);
        unsigned char *const was = all_gradients(x.b.ctx, &bytes);
        cr_assert_eq(rw_clip_grad_norm(x.b.ctx, INFINITY, &norm), RW_OK);
        cr_assert_eq(isnan(norm), at >= 0);
        unsigned char *const is = all_gradients(x.b.ctx, &bytes);
        cr_assert_eq(first_difference(was, is, bytes), -1);
        free(was);
        free(is);
    }
    fixture_close(&x.b);
}

Test(clip_nonfinite_norm, or_refused)
{
    static const rw_clip_grad_norm_params refuses = { .error_if_nonfinite = true };
    struct world x = world_open();
    for (int at = -1; at < N; at++)
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            size_t bytes;
            double norm = -7, plain = -7;
            write_gradients(&x, at, bad[i]);
            unsigned char *const was = all_gradients(x.b.ctx, &bytes);
            const rw_status status = rw_clip_grad_norm_with(x.b.ctx, 3, &refuses, &norm);
            unsigned char *is;
            if (at < 0) {
                cr_assert_eq(status, RW_OK, "%s", rw_error_message(x.b.ctx));
                is = all_gradients(x.b.ctx, &bytes);
                write_gradients(&x, at, 0);
                cr_assert_eq(rw_clip_grad_norm_with(x.b.ctx, 3, NULL, &plain), RW_OK);
                cr_assert_eq(norm, plain);
                unsigned char *const want = all_gradients(x.b.ctx, &bytes);
                cr_assert_eq(first_difference(want, is, bytes), -1);
                cr_assert_neq(first_difference(want, was, bytes), -1, "it clips");
                free(want);
            } else {
                cr_assert_eq(status, RW_ERR_ARGUMENT);
                cr_assert(strstr(rw_error_message(x.b.ctx), "the norm of the gradients is"), "%s",
                          rw_error_message(x.b.ctx));
                rw_error_clear(x.b.ctx);
                cr_assert_eq(norm, -7, "untouched");
                is = all_gradients(x.b.ctx, &bytes);
                cr_assert_eq(first_difference(was, is, bytes), -1, "nothing has changed");
            }
            free(was);
            free(is);
        }
    cr_assert_eq(rw_clip_grad_norm_with(NULL, 1, NULL, NULL), RW_ERR_ARGUMENT);
    fixture_close(&x.b);
}

/* A refused clip is no change: a tape that has read a gradient continues. */
Test(clip_nonfinite_norm, or_refused_without_a_change)
{
    static const rw_clip_grad_norm_params refuses = { .error_if_nonfinite = true };
    struct world x = world_open();
    rw_tape *const t = x.b.t;
    write_gradients(&x, 0, INFINITY);
    cr_assert_eq(ckpt_set_policy(t, "full"), RW_OK);
    ckpt_begin(t, "r");
    rw_tensor *const y = rw_exp(t, rw_exp(t, rw_mul(t, x.w[1], rw_gradient(x.w[1]))));
    ckpt_end(t);
    rw_tensor *const loss = rw_sum(t, rw_mul(t, y, y), RW_ALL_AXES, false);
    rw_item(t, loss);
    cr_assert_eq(rw_clip_grad_norm_with(x.b.ctx, 3, &refuses, NULL), RW_ERR_ARGUMENT);
    rw_error_clear(x.b.ctx);
    cr_assert_eq(rw_backward(t, loss), RW_OK, "%s", rw_error_message(x.b.ctx));
    fixture_close(&x.b);
}

/* ---- inside of steps ---- */

/* The gradient of parameter k is factor[k]. */
static rw_tensor *loss_of(struct world *x, rw_tape *t, rw_tensor **factor)
{
    rw_tensor *sum = NULL;
    for (int k = 0; k < N; k++) {
        factor[k] = rw_input(t, RW_F32, RW_SCALAR, NULL, 0);
        rw_tensor *const y = rw_sum(t, rw_mul(t, rw_cast(t, x->w[k], RW_F32), factor[k]), RW_ALL_AXES, false);
        sum = sum ? rw_add(t, sum, y) : y;
    }
    return sum;
}

enum way { CALLS, GRAPH, INSIDE };

/* Two steps, the second with a gradient that is not finite. */
static unsigned char *train(enum way way, double what, size_t *bytes)
{
    struct world x = world_open();
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    rw_tensor *factor[N];
    cr_assert_eq(rw_sgd_create(&opt, x.b.ctx, &(rw_sgd_params){ .lr = 0.125 }), RW_OK);
    const rw_graph_params params = { { rw_record_clip(2), recorded_update(opt, way == INSIDE) } };
    for (int step = 0; step < 2; step++) {
        if (way == CALLS) rw_tape_reset(x.b.t);
        rw_tensor *const loss = g ? NULL : loss_of(&x, x.b.t, factor);
        for (int k = 0; k < N; k++) {
            const float f = step && k == 1 ? (float)what : (float)(k + 1);
            cr_assert_eq(rw_input_write(factor[k], &f, sizeof f), RW_OK);
        }
        if (way != CALLS && !g) cr_assert_eq(rw_graph_create(&g, x.b.t, loss, &params), RW_OK);
        if (g) {
            cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(x.b.ctx));
            continue;
        }
        rw_zero_grad(x.b.ctx);
        cr_assert_eq(rw_backward(x.b.t, loss), RW_OK);
        cr_assert_eq(rw_clip_grad_norm(x.b.ctx, 2, NULL), RW_OK);
        cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    }
    for (int k = 0; k < N && !isfinite(what); k++) expect_nan(&x, x.w[k], "a parameter");
    unsigned char *const all = all_parameters(x.b.ctx, bytes);
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    fixture_close(&x.b);
    return all;
}

Test(clip_nonfinite_norm, in_graphs_and_inside_backward_as_by_calls)
{
    static const double factors[] = { 2, NAN, INFINITY };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        size_t bytes;
        unsigned char *const want = train(CALLS, factors[i], &bytes);
        for (enum way way = GRAPH; way <= INSIDE; way++) {
            unsigned char *const got = train(way, factors[i], &bytes);
            cr_assert_eq(first_difference(want, got, bytes), -1, "%g, way %d", factors[i], way);
            free(got);
        }
        free(want);
    }
}
