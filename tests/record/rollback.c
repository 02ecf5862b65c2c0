/*
 * Rollback of failed calls, observed through later calls: leaves, drawn random numbers, effects, values that
 * REWIND_EAGER=1 has computed. Calls that are refused before anything has to be undone: ops with wrong descriptions,
 * views out of range, commits of another shape. Also the messages of calls.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float ones[6] = { 1, 1, 1, 1, 1, 1 };

static struct fixture open_eager(void)
{
    setenv("REWIND_EAGER", "1", 1);
    const struct fixture b = fixture_open(1, 1);
    unsetenv("REWIND_EAGER");
    return b;
}

/* The first call that uses the parameter fails; the next one works as if it had not been made. */
Test(rollback, leaves)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(5));
    float g[6];
    rw_init_constant(w, 2);
    cr_assert_null(rw_add(b.t, w, v));
    rw_error_clear(b.ctx);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(6), ones, sizeof ones);
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, rw_mul(b.t, x, w), w), RW_ALL_AXES, false);
    cr_assert_eq(rw_item(b.t, loss), 24);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(w), g, sizeof g), RW_OK);
    for (int i = 0; i < 6; i++) cr_assert_eq(g[i], 4);
    fixture_close(&b);
}

static rw_status as_many(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status fails(const rw_kernel *k)
{
    return RW_ERR_ARGUMENT;
}

/* Numbers are drawn when the op is recorded; it then fails during execution. */
static const rw_op_def draws_and_fails = { .name = "draws_and_fails", .n_inputs = 1, .n_outputs = 1,
                                           .flags = RW_OP_RANDOM, .check = as_many,
                                           .kernel = { [RW_DEVICE_CPU] = fails } };

static const rw_op_def fails_once = { .name = "fails_once", .n_inputs = 1, .n_outputs = 1,
                                      .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT, .check = as_many,
                                      .kernel = { [RW_DEVICE_CPU] = fails } };

static void fails_and_leaves_nothing(struct fixture *b, const rw_op_def *op, rw_tensor *x)
{
    const rw_generator_state before = rw_generator_get(b->ctx);
    const size_t nodes = rw_tape_nodes(b->t);
    cr_assert_null(rw_apply(b->t, op, &x, 1, NULL, 0, NULL));
    cr_assert_eq(rw_error_status(b->ctx), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_tape_nodes(b->t), nodes);
    cr_assert_eq(rw_generator_get(b->ctx).offset, before.offset);
    rw_error_clear(b->ctx);
}

/* A launch advances the tickets by as many numbers as the recorded step has drawn. */
Test(rollback, numbers_that_were_drawn)
{
    NEEDS_HOST_MEMORY();
    uint64_t drawn[2];
    for (int fail = 0; fail < 2; fail++) {
        struct fixture b = open_eager();
        rw_graph *g = NULL;
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6));
        rw_tensor *const y = rw_dropout(b.t, w, 0.5f);
        rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
        if (fail) fails_and_leaves_nothing(&b, &draws_and_fails, y);
        cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 3; i++) cr_assert_eq(audited_launch(g, b.t), RW_OK);
        drawn[fail] = rw_generator_get(b.ctx).offset;
        rw_graph_destroy(&g);
        fixture_close(&b);
    }
    cr_assert_eq(drawn[0], drawn[1], "%llu, and %llu after a failed call", (unsigned long long)drawn[0],
                 (unsigned long long)drawn[1]);
}

Test(rollback, effects)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = open_eager();
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6)), *const n = rw_buffer(b.ctx, "n", RW_F32, RW_SCALAR);
    rw_tensor *const x = rw_mul(b.t, w, rw_input(b.t, RW_F32, RW_SHAPE(6), ones, sizeof ones));
    float count = 0;
    fails_and_leaves_nothing(&b, &fails_once, x);
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    cr_assert_eq(rw_assign(b.t, n, rw_add_scalar(b.t, n, 1)), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(NULL, n, &count, sizeof count), RW_OK);
    cr_assert_eq(count, 1);
    fixture_close(&b);
}

/* The dense copy of a strided input was recorded and executed before the op refused its other input. */
Test(rollback, values_that_were_computed)
{
    struct fixture b = open_eager();
    const float x[6] = { 1, 2, 3, 4, 5, 6 };
    float y[6];
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(2, 3), x, sizeof x), *const swapped = rw_transpose(b.t, in, 0,
                                                                                                            1);
    rw_tensor *const weight = rw_input(b.t, RW_F32, RW_SHAPE(5), ones, 5 * sizeof *ones);
    const size_t nodes = rw_tape_nodes(b.t);
    cr_assert_null(rw_rmsnorm(b.t, swapped, weight, 0));
    cr_assert_eq(rw_tape_nodes(b.t), nodes);
    rw_error_clear(b.ctx);
    cr_assert_eq(rw_read(b.t, rw_neg(b.t, in), y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 6; i++) cr_assert_eq(y[i], -x[i], "element %d: %g", i, (double)y[i]);
    fixture_close(&b);
}

/* ---- refused calls ---- */

static int64_t rows, begin;

static rw_status view_check(rw_op_call *call)
{
    return rw_op_output_view(call, 0, RW_SHAPE(rows), (const int64_t[]){ 1 }, begin);
}

static const rw_op_def window = { .name = "window", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
                                  .check = view_check };

/* Described as dense, with more elements than the buffer has. */
static rw_status dense_check(rw_op_call *call)
{
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(rows));
}

static const rw_op_def all_of_it = { .name = "all_of_it", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_VIEW,
                                     .check = dense_check };

static void expect_view(struct fixture *b, const rw_op_def *op, int64_t n, int64_t from, bool fine)
{
    rw_tensor *const x = rw_input(b->t, RW_F32, RW_SHAPE(6), ones, sizeof ones);
    rows = n, begin = from;
    cr_assert_eq(rw_apply(b->t, op, &x, 1, NULL, 0, NULL) != NULL, fine, "%s of %ld from %ld", op->name, (long)n,
                 (long)from);
    cr_assert_eq(rw_error_status(b->ctx), fine ? RW_OK : RW_ERR_SHAPE);
    rw_error_clear(b->ctx);
}

Test(rollback, views_beyond_their_buffer)
{
    struct fixture b = fixture_open(1, 1);
    expect_view(&b, &window, 6, 0, true);
    expect_view(&b, &window, 2, 4, true);
    expect_view(&b, &window, 7, 0, false);
    expect_view(&b, &window, 3, 4, false);
    expect_view(&b, &window, 1, 6, false);
    expect_view(&b, &window, 1, -1, false);
    expect_view(&b, &all_of_it, 6, 0, true);
    expect_view(&b, &all_of_it, 7, 0, false);
    fixture_close(&b);
}

static rw_status one_short(rw_op_call *call)
{
    return rw_op_output(call, 0, call->in[0].dtype, RW_SHAPE(5));
}

static rw_status no_output(rw_op_call *call)
{
    call->n_outputs = 0;
    return RW_OK;
}

static void expect_refused(struct fixture *b, const rw_op_def *op, rw_tensor *x, const char *word)
{
    cr_assert_null(rw_apply(b->t, op, &x, 1, NULL, 0, NULL), "%s", op->name);
    cr_assert_eq(rw_error_status(b->ctx), RW_ERR_ARGUMENT, "%s", op->name);
    cr_assert(strstr(rw_error_message(b->ctx), word), "%s", rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

Test(rollback, ops_that_promise_too_little)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    const uint32_t all = RW_OP_COMMIT | RW_OP_STATEFUL | RW_OP_NO_GRADIENT;
    const rw_op_def none = { .name = "none", .n_inputs = 1, .check = as_many, .kernel = { [RW_DEVICE_CPU] = fails } },
                    forgets = { .name = "forgets", .n_inputs = 1, .n_outputs = RW_OP_VARIADIC, .check = no_output,
                                .kernel = { [RW_DEVICE_CPU] = fails } },
                    commits = { .name = "commits", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_COMMIT,
                                .check = as_many, .kernel = { [RW_DEVICE_CPU] = fails } },
                    shorter = { .name = "shorter", .n_inputs = 1, .n_outputs = 1, .flags = all, .check = one_short,
                                .kernel = { [RW_DEVICE_CPU] = fails } };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6));
    expect_refused(&b, &none, w, "n_outputs");
    expect_refused(&b, &forgets, w, "output");
    expect_refused(&b, &commits, w, "RW_OP_COMMIT");
    expect_refused(&b, &shorter, w, "shape");
    fixture_close(&b);
}

/* ---- messages ---- */

/* In no order, so that some of them collide in a table. */
static int line(int i)
{
    return 1 + i * i * 7919 % 99991;
}

/* Many ops fail during execution, and each names its own line. */
Test(rollback, a_message_names_the_line)
{
    struct fixture b = fixture_open(1, 1);
    enum { LINES = 120 };
    const int32_t bad = 9;
    rw_tensor *const table = rw_input(b.t, RW_F32, RW_SHAPE(3, 2), ones, sizeof ones), *y[LINES];
    rw_tensor *const at = rw_input(b.t, RW_I32, RW_SHAPE(1), &bad, sizeof bad);
    for (int i = 0; i < LINES; i++) y[i] = rw_embedding_at((rw_site){ __FILE__, line(i) }, b.t, table, at);
    for (int i = 0; i < LINES; i++) {
        char here[32];
        snprintf(here, sizeof here, ":%d ", line(i));
        cr_assert_eq(rw_eval(b.t, &y[i], 1), RW_ERR_ARGUMENT);
        cr_assert(strstr(rw_error_message(b.ctx), here), "no \"%s\" in: %s", here, rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
    }
    fixture_close(&b);
}

Test(rollback, a_message_is_one_line)
{
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "sel\nective:\x1b[31m"), RW_ERR_POLICY);
    for (const char *c = rw_error_message(b.ctx); *c; c++) cr_assert((unsigned char)*c >= ' ', "byte %d", *c);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

Test(rollback, a_value_of_another_tape_is_named_so)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *other = NULL;
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *const x = rw_input(other, RW_F32, RW_SHAPE(6), ones, sizeof ones);
    cr_assert_null(rw_neg(b.t, x));
    cr_assert(strstr(rw_error_message(b.ctx), "another tape"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    rw_tape_destroy(&other);
    fixture_close(&b);
}

/* ---- values with a gradient ---- */

static rw_status no_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, 24);
    return RW_OK;
}

Test(rollback, what_carries_no_gradient_says_so)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    const rw_op_def still = { .name = "still", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                              .check = as_many, .kernel = { [RW_DEVICE_CPU] = no_kernel } };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6));
    rw_tensor *const y = rw_apply(b.t, &still, &w, 1, NULL, 0, NULL);
    cr_assert(y && !rw_tensor_requires_grad(y));
    cr_assert(!rw_tensor_requires_grad(rw_cast(b.t, w, RW_I32)) && rw_tensor_requires_grad(rw_cast(b.t, w, RW_F64)));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* A second mark has no effect: a step whose loss was read continues, nothing is executed twice. */
Test(rollback, a_second_mark_is_none)
{
    struct fixture b = fixture_open(1, 1);
    float g[6];
    counted_clear();
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(6), ones, sizeof ones));
    rw_tensor *const y = counted_square(b.t, counted_square(b.t, x, 0), 1);
    rw_tensor *const loss = rw_sum(b.t, y, RW_ALL_AXES, false);
    cr_assert_eq(rw_item(b.t, loss), 6);
    cr_assert_eq(rw_require_grad(b.t, x), x);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    cr_assert(counted_runs[0] == 1 && counted_runs[1] == 1, "%d and %d runs", counted_runs[0], counted_runs[1]);
    cr_assert_eq(rw_read(b.t, rw_gradient(x), g, sizeof g), RW_OK);
    for (int i = 0; i < 6; i++) cr_assert_eq(g[i], 4);
    fixture_close(&b);
}

/* Law 8: initial values count as written, like any others. */
Test(rollback, initial_values_after_their_use)
{
    struct fixture b = fixture_open(1, 1);
    float y[6];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(6)), *const x = rw_scale(b.t, w, 2);
    cr_assert_eq(rw_init_constant(w, 3), RW_OK);
    cr_assert_eq(rw_read(b.t, x, y, sizeof y), RW_ERR_MODIFIED);
    cr_assert(strstr(rw_error_message(b.ctx), "\"w\""), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    fixture_close(&b);
}
