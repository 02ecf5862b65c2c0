/*
 * Deferred nodes, which only backward reads: if their outputs are dropped, they are first executed there. Tests how
 * often and when each is executed, the bytes of gradients compared with a run that keeps everything, the effect of
 * budgets, and that an input that changes between forward and backward is refused as under any other policy.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1024, VALUE = N * sizeof(float), BLOCKS = 4 };

/* dx = dy * m, where only this reads m. */
static rw_status scale_by_side(rw_grad_call *g, const void *data)
{
    rw_grad_set(g, 1, rw_mul(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_grad_input(g, 2)));
    return RW_OK;
}

static rw_tensor *with_side(rw_tape *t, rw_tensor *x, rw_tensor *m)
{
    rw_tensor *const in[] = { x, m };
    return rw_custom_grad(t, rw_add(t, x, x), in, 2, scale_by_side, NULL, 0);
}

/* A parameter's square, so that its readers read a value of the arena. */
static rw_tensor *begin(struct fixture *b)
{
    rw_tensor *const p = rw_param(b->ctx, "p", RW_F32, RW_SHAPE(N));
    rw_init_uniform(p, 0.9f, 1.1f);
    return rw_mul(b->t, p, p);
}

/* ---- one side chain of two nodes, with marks ---- */

struct pair {
    struct fixture b;
    rw_tensor *first, *second, *loss;
};

/* p -> first = p^2 -> second = first^2, which only the gradient of the loss reads. */
static struct pair open_pair(const char *policy)
{
    struct pair s = { .b = fixture_open(5, 1) };
    counted_clear();
    cr_assert_eq(ckpt_set_policy(s.b.t, policy), RW_OK);
    rw_tensor *const x = begin(&s.b);
    s.first = counted_square(s.b.t, rw_detach(s.b.t, x), 0);
    s.second = counted_square(s.b.t, s.first, 1);
    s.loss = rw_sum(s.b.t, with_side(s.b.t, x, s.second), RW_ALL_AXES, false);
    return s;
}

/* Executions of the two nodes after the loss has been read, and after backward. */
static void expect_runs(struct pair *s, int first, int second, int first_in_all, int second_in_all, const char *when)
{
    rw_item(s->b.t, s->loss);
    cr_expect(counted_runs[0] == first && counted_runs[1] == second, "%s: forward ran %d, %d", when, counted_runs[0],
              counted_runs[1]);
    cr_assert_eq(rw_backward(s->b.t, s->loss), RW_OK, "%s", rw_error_message(s->b.ctx));
    cr_expect(counted_runs[0] == first_in_all && counted_runs[1] == second_in_all, "%s: in all %d, %d", when,
              counted_runs[0], counted_runs[1]);
    fixture_close(&s->b);
}

Test(deferred_execution, a_dropped_value_that_only_backward_reads_runs_there_alone)
{
    struct pair s = open_pair("none");
    expect_runs(&s, 1, 1, 1, 1, "all kept");
    s = open_pair("none");
    ckpt_recompute(s.b.t, s.second);
    expect_runs(&s, 1, 0, 1, 1, "the second dropped");
    s = open_pair("none");
    ckpt_recompute(s.b.t, s.first);
    ckpt_recompute(s.b.t, s.second);
    expect_runs(&s, 0, 0, 1, 1, "both dropped");
    s = open_pair("none");
    ckpt_recompute(s.b.t, s.first);
    expect_runs(&s, 1, 1, 1, 1, "the first dropped, which forward reads");
}

/* A value that the caller reads is not deferred: it exists when it is read. */
Test(deferred_execution, a_value_that_is_read_between_forward_and_backward_is_computed_once_more_at_most)
{
    float m[N];
    struct pair s = open_pair("none");
    ckpt_recompute(s.b.t, s.second);
    rw_item(s.b.t, s.loss);
    cr_assert_eq(rw_read(s.b.t, s.second, m, sizeof m), RW_OK);
    cr_assert_eq(rw_backward(s.b.t, s.loss), RW_OK, "%s", rw_error_message(s.b.ctx));
    cr_expect_leq(counted_runs[1], 2);
    fixture_close(&s.b);
}

/* ---- inputs that change ---- */

/* Only the deferred node reads the input. */
static rw_status change_input(const char *policy, bool drops)
{
    struct fixture b = fixture_open(5, 1);
    float one[N];
    for (int i = 0; i < N; i++) one[i] = 1;
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(N), one, sizeof one);
    rw_tensor *const x = begin(&b);
    rw_tensor *const m = rw_exp(b.t, in);
    if (drops) ckpt_recompute(b.t, m);
    rw_tensor *y = with_side(b.t, x, m), *dy = rw_input(b.t, RW_F32, RW_SHAPE(N), one, sizeof one);
    cr_assert_eq(rw_forward(b.t, &y, 1), RW_OK, "%s", rw_error_message(b.ctx));
    one[3] = 2;
    cr_assert_eq(rw_input_write(in, one, sizeof one), RW_OK);
    const rw_status status = rw_backward_from(b.t, &y, &dy, 1);
    fixture_close(&b);
    return status;
}

Test(deferred_execution, an_input_that_changes_before_backward_is_refused)
{
    cr_expect_eq(change_input("none", false), RW_OK, "m was computed in forward, and is kept");
    cr_expect_eq(change_input("none", true), RW_ERR_MODIFIED);
}

/* ---- bytes, with random ops, views, precision, regions, offload ---- */

static rw_tensor *record_block(rw_tape *t, rw_tensor *x, int i)
{
    ckpt_begin(t, "block");
    rw_tensor *m = rw_dropout(t, rw_reshape(t, rw_detach(t, x), RW_SHAPE(N / 2, 2)), 0.3f);
    m = rw_reshape(t, rw_cast(t, rw_cast(t, rw_tanh(t, m), RW_BF16), RW_F32), RW_SHAPE(N));
    if (i == 1) ckpt_keep(t, m);
    if (i == 2) ckpt_recompute(t, m);
    if (i == 3) ckpt_offload(t, m);
    m = rw_softmax(t, m, 0);
    x = with_side(t, rw_mul(t, x, x), m);
    ckpt_end(t);
    return rw_dropout(t, x, 0.1f);
}

static unsigned char *gradients_under(const char *policy, size_t *ret_bytes)
{
    struct fixture b = fixture_open(9, 1);
    const rw_offload fast = { .out_bytes_per_s = 1e12, .in_bytes_per_s = 1e12 };
    cr_assert_eq(rw_context_set_offload(b.ctx, &fast), RW_OK);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *x = begin(&b);
    for (int i = 0; i < BLOCKS; i++) x = record_block(b.t, x, i);
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
    unsigned char *const all = all_gradients(b.ctx, ret_bytes);
    fixture_close(&b);
    return all;
}

Test(deferred_execution, gradients_are_those_of_none)
{
    static const char *const policies[] = { "full", "uniform:2", "block:2", "discard:block", "ops:tanh", "budget:90%",
                                            "budget:70%", "budget:55%+offload", "budget:80%+offload" };
    size_t bytes;
    unsigned char *const none = gradients_under("none", &bytes);
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        unsigned char *const got = gradients_under(policies[i], &bytes);
        cr_expect_eq(first_difference(none, got, bytes), -1, "%s", policies[i]);
        free(got);
    }
    free(none);
}

/* ---- budgets ---- */

/* The inputs of each m are live through all of backward. */
static rw_tensor *blocks(struct fixture *b)
{
    rw_tensor *x = begin(b), *const p = rw_param_find(b->ctx, "p");
    for (int i = 0; i < BLOCKS; i++) x = with_side(b->t, x, rw_softmax(b->t, rw_detach(b->t, p), 0));
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

/* Dropped is as fast as kept, so the budget that drops them takes as long as none, and the bound is the same. */
Test(deferred_execution, a_budget_takes_no_longer_for_what_it_defers)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const loss = blocks(&b);
    rw_prediction none, p;
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK);
    cr_assert_eq(rw_tape_plan(b.t, loss, "budget:99%", &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_leq(p.peak_bytes + VALUE, none.peak_bytes);
    cr_expect_float_eq(p.ms, none.ms, none.ms * 1e-12);
    cr_expect_float_eq(p.bound_ms, none.ms, none.ms * 1e-8);
    cr_expect_eq(p.cost.replayed_nodes, 0);
    cr_expect_eq(p.cost.forward_nodes, none.cost.forward_nodes);
    fixture_close(&b);
}

Test(deferred_execution, is_what_explain_calls_it)
{
    struct fixture b = fixture_open(1, 1);
    cr_assert_eq(ckpt_set_policy(b.t, "budget:99%"), RW_OK);
    rw_tensor *const loss = blocks(&b);
    cr_assert_not_null(loss);
    char *text = NULL;
    size_t size;
    FILE *const out = open_memstream(&text, &size);
    cr_assert_eq(ckpt_explain(b.t, out), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(out);
    cr_expect_not_null(strstr(text, "deferred "), "%s", text);
    cr_expect_not_null(strstr(text, "only backward reads it"), "%s", text);
    free(text);
    fixture_close(&b);
}

/* Small values that forward passes on, and with each a large and expensive one that only its gradient reads. */
Test(deferred_execution, a_large_value_beside_a_small_one_costs_nothing_at_half_the_bytes)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *x = begin(&b);
    for (int i = 0; i < BLOCKS; i++) {
        rw_tensor *const row = rw_reshape(b.t, rw_detach(b.t, x), RW_SHAPE(1, N));
        rw_tensor *const wide = rw_broadcast_to(b.t, row, RW_SHAPE(32, N));
        rw_tensor *const m = rw_softmax(b.t, rw_tanh(b.t, wide), 1);
        x = with_side(b.t, x, rw_reshape(b.t, rw_slice(b.t, m, 0, 3, 4), RW_SHAPE(N)));
    }
    rw_tensor *const loss = rw_sum(b.t, x, RW_ALL_AXES, false);
    rw_prediction none, p;
    cr_assert_eq(rw_tape_plan(b.t, loss, "none", &none), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_tape_plan(b.t, loss, "budget:55%", &p), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_float_eq(p.ms, none.ms, none.ms * 1e-12, "%g of %g ms", p.ms, none.ms);
    fixture_close(&b);
}
