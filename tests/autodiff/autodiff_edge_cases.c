/*
 * Marks, gradients and rules in unusual situations: values marked after their use, one value in several places,
 * gradients that are clear or minus zero, rules that return another type, values that exist already.
 */
#include "support/compare.h"
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

static const float numbers[4] = { 1, 2, 3, 4 };

static void expect(struct fixture *b, rw_tensor *x, float a, float c, float d, float e, const char *what)
{
    const float want[4] = { a, c, d, e };
    float got[4];
    cr_assert_not_null(x, "%s: none", what);
    cr_assert_eq(rw_read(b->t, x, got, sizeof got), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (int i = 0; i < 4; i++)
        cr_assert(got[i] == want[i] && !signbit(got[i]) == !signbit(want[i]), "%s, %d: %g, not %g", what, i,
                  (double)got[i], (double)want[i]);
}

static rw_tensor *input(struct fixture *b)
{
    return rw_input(b->t, RW_F32, RW_SHAPE(4), numbers, sizeof numbers);
}

static rw_tensor *sum(struct fixture *b, rw_tensor *y)
{
    return rw_sum(b->t, y, RW_ALL_AXES, false);
}

/* The loss also depends on a parameter, or on nothing else. */
Test(autodiff_edge_cases, values_marked_after_their_use)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_init_constant(w, 2);
    for (int with = 0; with < 2; with++) {
        rw_tensor *const x = input(&b), *const z = rw_neg(b.t, x), *const y = rw_mul(b.t, z, with ? w : z);
        rw_tensor *const loss = sum(&b, y), *const whole = rw_cast(b.t, x, RW_I32);
        cr_assert_eq(rw_require_grad(b.t, x), x);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        expect(&b, rw_gradient(x), with ? -2 : 2, with ? -2 : 4, with ? -2 : 6, with ? -2 : 8, "marked late");
        cr_assert(rw_tensor_requires_grad(z) && !rw_tensor_requires_grad(whole), "integers carry none");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

static rw_status counts_calls(rw_grad_call *g, const void *data)
{
    int *calls;
    memcpy(&calls, data, sizeof calls);
    ++*calls;
    return rw_grad_set(g, 1, rw_grad_upstream(g, 0));
}

/* Nodes before all values for which rw_grad() is called are not involved: none of their rules is called, no node
   recorded. */
Test(autodiff_edge_cases, gradients_of_values_in_the_middle_end_there)
{
    struct fixture b = fixture_open(1, 1);
    int calls = 0, *const counter = &calls;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *g[2];
    rw_init_constant(w, 1);
    rw_tensor *const far = rw_custom_grad(b.t, rw_scale(b.t, w, 2), &w, 1, counts_calls, &counter, sizeof counter);
    rw_tensor *const near = rw_mul(b.t, far, far), *y[2];
    cr_assert_eq(rw_split(b.t, near, 0, (const int64_t[]){ 1, 3 }, 2, y), RW_OK);
    rw_tensor *const loss = rw_add(b.t, sum(&b, rw_mul(b.t, y[1], y[1])), sum(&b, y[0]));
    const size_t before = rw_tape_nodes(b.t);
    cr_assert_eq(rw_grad(b.t, loss, &y[1], 1, g), RW_OK, "%s", rw_error_message(b.ctx));
    const size_t alone = rw_tape_nodes(b.t) - before;
    cr_expect_eq(rw_item(b.t, sum(&b, g[0])), 24);
    cr_expect_eq(calls, 0);
    rw_tensor *const asked[] = { near, y[1] };
    const size_t again = rw_tape_nodes(b.t);
    cr_assert_eq(rw_grad(b.t, loss, asked, 2, g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(calls, 0);
    cr_expect_gt(rw_tape_nodes(b.t) - again, alone);
    expect(&b, g[0], 1, 8, 8, 8, "what the pieces are of");
    cr_assert_eq(rw_grad(b.t, loss, (rw_tensor *[]){ y[1], w }, 2, g), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(calls, 1);
    expect(&b, g[1], 4, 32, 32, 32, "the parameter");
    fixture_close(&b);
}

/* Nodes recorded after these values that do not depend on them are not involved either: the nodes are those of
   constants. */
Test(autodiff_edge_cases, gradients_stop_at_requested_values)
{
    struct fixture b = fixture_open(1, 1);
    int calls = 0, *const counter = &calls;
    size_t nodes[2];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *g[2];
    rw_init_constant(w, 3);
    for (int depends = 0; depends < 2; depends++) {
        rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const h = rw_mul(b.t, x, x);
        rw_tensor *const side = depends ? rw_custom_grad(b.t, rw_scale(b.t, w, 2), &w, 1, counts_calls, &counter,
                                                         sizeof counter)
                                        : rw_add(b.t, input(&b), input(&b));
        rw_tensor *const whole = rw_cast(b.t, rw_cast(b.t, h, RW_I32), RW_F32); /* carries none */
        rw_tensor *const y = rw_mul(b.t, rw_add(b.t, rw_mul(b.t, h, rw_tanh(b.t, side)), side), whole);
        const size_t before = rw_tape_nodes(b.t);
        cr_assert_eq(rw_grad(b.t, sum(&b, y), &x, 1, g), RW_OK, "%s", rw_error_message(b.ctx));
        nodes[depends] = rw_tape_nodes(b.t) - before;
        rw_tensor *const dx = g[0];
        cr_assert_eq(rw_grad(b.t, sum(&b, side), &x, 1, g), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_null(g[0], "it does not depend on it");
        cr_expect_eq(calls, 0);
        if (depends) cr_assert_eq(rw_grad(b.t, sum(&b, y), (rw_tensor *[]){ x, w }, 2, g), RW_OK);
        cr_expect_eq(calls, depends);
        float got[4], want[4];
        cr_assert_eq(rw_read(b.t, dx, got, sizeof got) | rw_backward(b.t, sum(&b, y)), RW_OK);
        cr_assert_eq(rw_read(b.t, rw_gradient(x), want, sizeof want), RW_OK, "%s", rw_error_message(b.ctx));
        for (int i = 0; i < 4; i++) cr_expect_float_eq(got[i], want[i], 1e-5f * want[i], "%d: %g", i, (double)got[i]);
        rw_tape_reset(b.t);
    }
    cr_expect_eq(nodes[1], nodes[0], "%zu nodes, %zu beside constants", nodes[1], nodes[0]);
    fixture_close(&b);
}

static size_t backward_nodes(struct fixture *b, rw_tensor *loss)
{
    rw_cost cost;
    cr_assert_eq(rw_tape_cost(b->t, loss, &cost), RW_OK, "%s", rw_error_message(b->ctx));
    return cost.backward_nodes;
}

/* A parameter that is an input of one op twice is written once: no second copy. */
Test(autodiff_edge_cases, one_value_twice)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
    const size_t two = backward_nodes(&b, sum(&b, rw_mul(b.t, w, v)));
    rw_tape_reset(b.t);
    const size_t one = backward_nodes(&b, sum(&b, rw_mul(b.t, w, w)));
    cr_assert_eq(one, two, "%zu nodes, and %zu for two parameters", one, two);
    fixture_close(&b);
}

/* Clear is not zero: a term added to a clear gradient keeps its sign, and a reader finds zeros. */
Test(autodiff_edge_cases, clear_gradients)
{
    struct fixture b = fixture_open(1, 1);
    const float minus[4] = { -0.0f, 1, -0.0f, -1 };
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    cr_assert_eq(rw_write(rw_gradient(w), numbers, sizeof numbers), RW_OK);
    rw_zero_grad(b.ctx);
    expect(&b, rw_scale(b.t, rw_gradient(w), 1), 0, 0, 0, 0, "a clear gradient");
    rw_tape_reset(b.t);
    rw_tensor *const loss = sum(&b, rw_mul(b.t, w, rw_input(b.t, RW_F32, RW_SHAPE(4), minus, sizeof minus)));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    expect(&b, rw_gradient(w), -0.0f, 1, -0.0f, -1, "the gradient");
    fixture_close(&b);
}

/* Two parameters with the same gradient, each in its own memory, and the marked sum as well. */
Test(autodiff_edge_cases, one_gradient_for_several)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
    for (int pass = 1; pass < 3; pass++) {
        rw_tensor *const y = rw_require_grad(b.t, rw_add(b.t, w, v)), *const z = rw_require_grad(b.t, rw_neg(b.t, y));
        cr_assert_eq(rw_backward(b.t, sum(&b, rw_mul(b.t, rw_neg(b.t, z), input(&b)))), RW_OK);
        const float p = (float)pass;
        expect(&b, rw_gradient(w), p, 2 * p, 3 * p, 4 * p, "the first");
        expect(&b, rw_gradient(v), p, 2 * p, 3 * p, 4 * p, "the second");
        expect(&b, rw_gradient(y), 1, 2, 3, 4, "their sum");
        expect(&b, rw_gradient(z), -1, -2, -3, -4, "what is made of it");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* A root that is named twice, and one that the other uses. */
Test(autodiff_edge_cases, roots_of_one_another)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const y = rw_require_grad(b.t, rw_scale(b.t, x, 2));
    rw_tensor *const roots[] = { y, y, rw_scale(b.t, y, 3) };
    cr_assert_eq(rw_backward_from(b.t, roots, NULL, 3), RW_OK, "%s", rw_error_message(b.ctx));
    expect(&b, rw_gradient(y), 5, 5, 5, 5, "twice itself and three times");
    expect(&b, rw_gradient(x), 10, 10, 10, 10, "what it is made of");
    fixture_close(&b);
}

static size_t bytes_of_results(int n, const int *which)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const y = rw_require_grad(b.t, rw_scale(b.t, x, 2));
    rw_tensor *const all[] = { y, rw_scale(b.t, y, 3) };
    rw_tensor *roots[3];
    for (int i = 0; i < n; i++) roots[i] = all[which[i]];
    cr_assert_eq(rw_backward_from(b.t, roots, NULL, (size_t)n), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &memory);
    fixture_close(&b);
    return memory.results;
}

/* Each marked value has one gradient, stored once. */
Test(autodiff_edge_cases, roots_have_one_gradient_each)
{
    const size_t one = bytes_of_results(1, (const int[]){ 0 }); /* the root, and the gradients of x and y */
    cr_assert_eq(bytes_of_results(2, (const int[]){ 0, 0 }), one);
    cr_assert_eq(3 * bytes_of_results(2, (const int[]){ 1, 0 }), 4 * one, "another root");
}

/* A parameter that is recorded, but not part of the loss, has no gradient: it does not decay. */
Test(autodiff_edge_cases, parameters_beside_the_loss)
{
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    float got[4];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
    rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
    rw_init_constant(w, 2);
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &(rw_adamw_params){ .lr = 0.5, .weight_decay = 0.5 }), RW_OK);
    rw_neg(b.t, w);
    cr_assert_eq(rw_backward(b.t, sum(&b, rw_mul(b.t, v, input(&b)))), RW_OK);
    cr_assert_eq(rw_optimizer_step(opt), RW_OK);
    cr_assert_eq(rw_read(NULL, w, got, sizeof got), RW_OK);
    for (int i = 0; i < 4; i++) cr_assert_eq(got[i], 2, "%g", (double)got[i]);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* A value that was read exists: it is not recomputed for its readers. */
Test(autodiff_edge_cases, values_that_are_there)
{
    struct fixture b = fixture_open(1, 1);
    counted_clear();
    rw_tensor *const y = counted_square(b.t, input(&b), 0);
    expect(&b, y, 1, 4, 9, 16, "a square");
    expect(&b, counted_square(b.t, y, 1), 1, 16, 81, 256, "its square");
    cr_assert(counted_runs[0] == 1 && counted_runs[1] == 1, "%d and %d runs", counted_runs[0], counted_runs[1]);
    fixture_close(&b);
}

static rw_dtype handed_over;
static rw_status other_type(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_cast(rw_grad_tape(g), rw_grad_upstream(g, 0), handed_over));
}

static const rw_op_def turns = { .name = "turns", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                 .kernel = { [RW_DEVICE_CPU] = identity_kernel }, .grad = other_type };

Test(autodiff_edge_cases, rules_that_hand_over_another_type)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    for (int same = 0; same < 2; same++) {
        handed_over = same ? RW_F32 : RW_F64;
        rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const y = rw_apply(b.t, &turns, &x, 1, NULL, 0, NULL);
        cr_assert_eq(rw_backward(b.t, sum(&b, y)), same ? RW_OK : RW_ERR_SHAPE, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

enum { SIDE = 16 }; /* as many bytes as the memory alignment, and more: a write beyond them is detected */
static bool transposed;

static void expect_times(struct fixture *b, rw_tensor *x, const float *numbers_of_x, float factor, const char *what)
{
    float got[SIDE * SIDE];
    cr_assert_eq(rw_read(b->t, x, got, sizeof got), RW_OK, "%s", rw_error_message(b->ctx));
    for (int i = 0; i < SIDE * SIDE; i++)
        cr_assert_eq(got[i], factor * numbers_of_x[i], "%s, element %d: %g", what, i, (double)got[i]);
}

/* The sum is a strided view, or the start of a larger tensor. */
static rw_status in_a_view(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0), *const before = rw_grad_accumulator(g, 0);
    rw_tensor *const y = before ? rw_add(t, before, dy) : dy, *const twice[] = { y, y };
    if (transposed)
        return rw_grad_set_sum(g, 0, rw_transpose(t, rw_contiguous(t, rw_transpose(t, y, 0, 1)), 0, 1));
    return rw_grad_set_sum(g, 0, rw_slice(t, rw_concat(t, twice, 2, 0), 0, 0, SIDE));
}

static const rw_op_def shows = { .name = "shows", .n_inputs = 1, .n_outputs = 1, .check = identity_check,
                                 .kernel = { [RW_DEVICE_CPU] = identity_kernel }, .grad = in_a_view };

Test(autodiff_edge_cases, sums_that_are_views)
{
    NEEDS_HOST_MEMORY();
    float x[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++) x[i] = (float)(i % 37);
    for (int i = 0; i < 2; i++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(SIDE, SIDE));
        transposed = i;
        for (int pass = 1; pass < 3; pass++) {
            rw_tensor *const y = rw_apply(b.t, &shows, &w, 1, NULL, 0, NULL);
            rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(SIDE, SIDE), x, sizeof x);
            cr_assert_eq(rw_backward(b.t, sum(&b, rw_mul(b.t, y, in))), RW_OK, "%s", rw_error_message(b.ctx));
            expect_times(&b, rw_gradient(w), x, (float)pass, transposed ? "a strided sum" : "a part");
            rw_tape_reset(b.t);
        }
        fixture_close(&b);
    }
}

/* Without seeds, backward begins with ones, of each type. */
Test(autodiff_edge_cases, backward_begins_with_ones)
{
    static const rw_dtype types[] = { RW_F32, RW_F64, RW_BF16, RW_F16 };
    struct fixture b = fixture_open(1, 1);
    for (int d = 0; d < 4; d++)
        for (int plans = 0; plans < 2; plans++) {
            const int64_t n = plans ? 3 : 5;
            float got[5];
            rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, types[d], RW_SHAPE(n), NULL, 0));
            rw_tensor *const roots[] = { rw_neg(b.t, x), rw_scale(b.t, x, 4) };
            cr_assert_eq(rw_backward_from(b.t, roots, NULL, 2), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tensor *const g = rw_gradient(x);
            uint8_t raw[40];
            cr_assert_eq(rw_read(b.t, g, raw, rw_tensor_bytes(g)), RW_OK);
            for (int64_t i = 0; i < n; i++) got[i] = (float)number_get(raw, types[d], i);
            for (int64_t i = 0; i < n; i++) cr_assert_eq(got[i], 3, "%s: %g", rw_dtype_name(types[d]), (double)got[i]);
            rw_tape_reset(b.t);
        }
    fixture_close(&b);
}

/* ---- effects ---- */

static float read_one(rw_tensor *x)
{
    float y = NAN;
    cr_assert_eq(rw_read(NULL, x, &y, sizeof y), RW_OK);
    return y;
}

/* A value recorded between rw_no_grad_begin() and rw_no_grad_end() is a constant for rw_grad(), too: for x (x x) the
   gradient is x x, and for the constant alone there is none. */
Test(autodiff_edge_cases, a_constant_between_no_grad_marks)
{
    struct fixture b = fixture_open(1, 1);
    const float values[4] = { 1, 2, 3, 4 };
    float got[4];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4)), *of[] = { w }, *dw = NULL;
    cr_assert_eq(rw_write(w, values, sizeof values), RW_OK);
    cr_assert_eq(rw_no_grad_begin(b.t), RW_OK);
    rw_tensor *const square = rw_mul(b.t, w, w);
    cr_assert_eq(rw_no_grad_end(b.t), RW_OK);
    cr_assert_eq(rw_grad(b.t, sum(&b, rw_mul(b.t, w, square)), of, 1, &dw), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_not_null(dw);
    cr_assert_eq(rw_read(b.t, dw, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 4; i++) cr_assert_eq(got[i], values[i] * values[i], "%d: %g", i, (double)got[i]);
    cr_assert_eq(rw_grad(b.t, sum(&b, rw_scale(b.t, square, 2)), of, 1, &dw), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_null(dw);
    fixture_close(&b);
}

/* Effects belong to the step: not to a value that is read, and only to the first backward; each launch is a step. */
Test(autodiff_edge_cases, effects_happen_once_per_step)
{
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    float y[4];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const n = rw_buffer(b.ctx, "n", RW_F32, RW_SCALAR);
    rw_tensor *const x = rw_mul(b.t, w, input(&b)), *const loss = sum(&b, x);
    cr_assert_eq(rw_assign(b.t, n, rw_add_scalar(b.t, n, 1)), RW_OK);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, x, y, sizeof y), RW_OK);
    cr_assert_eq(read_one(n), 0, "a value was read");
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(read_one(n), 1, "two backwards of one step");
    rw_zero_grad(b.ctx);
    for (int i = 2; i < 5; i++) {
        cr_assert_eq(audited_launch(g, b.t), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(read_one(n), i, "launch %d", i - 1);
    }
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* Two steps begin on one recording, and the second ends first: the first continues without the effects that have
   happened. */
Test(autodiff_edge_cases, effects_of_steps_that_overtake_each_other)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const n = rw_buffer(b.ctx, "n", RW_F32, RW_SCALAR);
    rw_tensor *const x = rw_mul(b.t, w, input(&b)), *const loss[] = { sum(&b, x), sum(&b, rw_neg(b.t, x)) };
    cr_assert_eq(rw_assign(b.t, n, rw_add_scalar(b.t, n, 1)), RW_OK);
    for (int i = 0; i < 2; i++) cr_assert_eq(rw_item(b.t, loss[i]), 0);
    for (int i = 2; i-- > 0;) cr_assert_eq(rw_backward(b.t, loss[i]), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(read_one(n), 1, "%g times", (double)read_one(n));
    expect(&b, rw_gradient(w), 0, 0, 0, 0, "what the two add up to");
    fixture_close(&b);
}

static void explained(bool another, char *text, size_t size)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
    rw_tensor *const loss = sum(&b, rw_exp(b.t, rw_mul(b.t, w, input(&b))));
    if (another) sum(&b, w);
    FILE *const f = fmemopen(text, size, "w");
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    cr_assert_eq(ckpt_explain(b.t, f), RW_OK, "%s", rw_error_message(b.ctx));
    fclose(f);
    *strchr(text, '\n') = '\0';
    fixture_close(&b);
}

Test(autodiff_edge_cases, the_step_that_is_explained)
{
    char alone[4096] = "", beside[4096] = "";
    explained(false, alone, sizeof alone);
    explained(true, beside, sizeof beside);
    cr_assert_str_eq(alone, beside);
}

/* A loss that was only read has no gradients yet. */
Test(autodiff_edge_cases, gradients_before_backward)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const loss = sum(&b, rw_mul(b.t, x, x));
    cr_assert_eq(rw_item(b.t, loss), 30);
    cr_assert_null(rw_gradient(x));
    cr_assert_eq(rw_backward(b.t, loss), RW_OK);
    expect(&b, rw_gradient(x), 2, 4, 6, 8, "the gradient");
    fixture_close(&b);
}

/* The program reads a gradient's contents from before the step, whichever sum is written first. */
Test(autodiff_edge_cases, gradients_that_the_step_reads)
{
    for (int order = 0; order < 2; order++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
        rw_tensor *const v = rw_param(b.ctx, "v", RW_F32, RW_SHAPE(4));
        cr_assert_eq(rw_write(rw_gradient(w), numbers, sizeof numbers), RW_OK);
        rw_tensor *const g = rw_gradient(w);
        rw_tensor *const first = rw_mul(b.t, order ? w : v, g), *const second = rw_mul(b.t, order ? v : w, g);
        cr_assert_eq(rw_backward(b.t, sum(&b, rw_add(b.t, first, second))), RW_OK, "%s", rw_error_message(b.ctx));
        expect(&b, rw_gradient(v), 1, 2, 3, 4, "the other one's");
        expect(&b, rw_gradient(w), 2, 4, 6, 8, "its own");
        fixture_close(&b);
    }
}

static rw_status two_check(rw_op_call *call)
{
    rw_op_output_like(call, 0, 0);
    return rw_op_output_like(call, 1, 0);
}

static rw_status two_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) {
        const float y = x[i];
        ((float *)k->out[1].data)[i] = y + 2;
        ((float *)k->out[0].data)[i] = y + 1;
    }
    return RW_OK;
}

static const rw_op_def either = { .name = "either", .n_inputs = 1, .n_outputs = 2, .check = two_check,
                                  .inplace = RW_INPLACE({ 0, 0 }, { 1, 0 }),
                                  .kernel = { [RW_DEVICE_CPU] = two_kernel } };

/* Either output may reuse the input's memory, not both. */
Test(autodiff_edge_cases, one_input_for_two_outputs)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = rw_scale(b.t, input(&b), 1), *out[2];
    cr_assert_not_null(rw_apply(b.t, &either, &x, 1, NULL, 0, out));
    expect(&b, rw_sub(b.t, rw_scale(b.t, out[1], 10), out[0]), 28, 37, 46, 55, "10 (x + 2) - (x + 1)");
    rw_tensor *const y = rw_scale(b.t, input(&b), 1);
    cr_assert_not_null(rw_apply(b.t, &either, &y, 1, NULL, 0, out));
    expect(&b, rw_neg(b.t, out[1]), -3, -4, -5, -6, "the first is not used");
    fixture_close(&b);
}

static rw_status one_of_two(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *dy = rw_grad_upstream(g, 1);
    if (rw_grad_upstream(g, 0)) dy = dy ? rw_add(t, dy, rw_grad_upstream(g, 0)) : rw_grad_upstream(g, 0);
    return rw_grad_set(g, 0, dy);
}

static const rw_op_def both = { .name = "both", .n_inputs = 1, .n_outputs = 2, .check = two_check,
                                .kernel = { [RW_DEVICE_CPU] = two_kernel }, .grad = one_of_two };

/* Bytes of results of a step whose two outputs are requested, under a policy. */
static size_t results_under(const char *policy)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    rw_tensor *out[2];
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, input(&b));
    ckpt_begin(b.t, "a");
    rw_tensor *const z = rw_neg(b.t, x);
    cr_assert_not_null(rw_apply(b.t, &both, &z, 1, NULL, 0, out));
    rw_tensor *const y = rw_mul(b.t, out[0], out[0]);
    ckpt_end(b.t);
    rw_tensor *const roots[] = { out[1], y };
    cr_assert_eq(rw_backward_from(b.t, roots, NULL, 2), RW_OK, "%s", rw_error_message(b.ctx));
    expect(&b, rw_gradient(x), -1, 1, 3, 5, "of -x + 2 and (1 - x)^2");
    rw_memory_stats(b.ctx, &memory);
    fixture_close(&b);
    return memory.results;
}

/* A result is returned from its first computation: a replay for the other output does not compute it again as a
   result. */
Test(autodiff_edge_cases, results_beside_what_is_replayed)
{
    NEEDS_HOST_MEMORY();
    cr_assert_eq(results_under("full"), results_under("none"));
}

/* rw_forward() also computes values that depend on a recorded gradient. */
Test(autodiff_edge_cases, values_after_a_gradient)
{
    struct fixture b = fixture_open(1, 1);
    counted_clear();
    rw_tensor *const x = rw_require_grad(b.t, input(&b)), *const loss = sum(&b, rw_mul(b.t, x, x));
    rw_tensor *g;
    cr_assert_eq(rw_grad(b.t, loss, &x, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const z = counted_square(b.t, g, 0);
    cr_assert_eq(rw_forward(b.t, &z, 1), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(counted_runs[0], 1, "%d runs", counted_runs[0]);
    expect(&b, z, 4, 16, 36, 64, "the square of the gradient");
    fixture_close(&b);
}

static size_t kept_under(const char *policy)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(64, 16), NULL, 0));
    ckpt_begin(b.t, "a");
    rw_tensor *const y = rw_exp(b.t, rw_tanh(b.t, rw_exp(b.t, x)));
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, sum(&b, rw_scale(b.t, y, 2))), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &memory);
    fixture_close(&b);
    return memory.kept;
}

Test(autodiff_edge_cases, ops_whose_outputs_are_kept)
{
    const size_t value = 64 * 16 * sizeof(float), full = kept_under("full");
    cr_assert_eq(kept_under("ops:tanh"), full + value);
    cr_assert_eq(kept_under("ops:sigmoid"), full);
}

/* ---- decisions ---- */

/* Kept bytes of a step with the given decisions about one value, or about a view of it. */
static size_t kept(bool view, int decisions)
{
    struct fixture b = fixture_open(1, 1);
    rw_memory memory;
    cr_assert_eq(ckpt_set_policy(b.t, decisions < 4 ? "full" : "names:keep=here"), RW_OK);
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(64, 16), NULL, 0));
    ckpt_begin(b.t, "a");
    rw_tensor *y = counted_square(b.t, x, 0);
    rw_tensor *const seen = view ? rw_reshape(b.t, y, RW_SHAPE(16, 64)) : y;
    if (decisions & 1) ckpt_keep(b.t, seen);
    if (decisions & 2) ckpt_recompute(b.t, seen);
    if (decisions & 4) ckpt_name(b.t, seen, "here");
    y = counted_square(b.t, counted_square(b.t, y, 1), 2);
    ckpt_end(b.t);
    cr_assert_eq(rw_backward(b.t, sum(&b, y)), RW_OK, "%s", rw_error_message(b.ctx));
    rw_memory_stats(b.ctx, &memory);
    fixture_close(&b);
    return memory.kept;
}

Test(autodiff_edge_cases, a_decision_about_a_view_is_one_about_its_buffer)
{
    const size_t none = kept(false, 0), saved = kept(false, 1);
    cr_assert_eq(saved, none + 64 * 16 * sizeof(float));
    for (int view = 0; view < 2; view++) {
        cr_assert_eq(kept(view, 1), saved, "saved, %d", view);
        cr_assert_eq(kept(view, 3), none, "saved, then not, %d", view);
        cr_assert_eq(kept(view, 4), saved, "named, %d", view);
    }
}

/* The context has no recorded op: an input is its own result. */
static void backward_of_an_input_alone(int way)
{
    struct fixture b = fixture_open(1, 1);
    const float ones[4] = { 1, 1, 1, 1 };
    rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, way < 2 ? RW_SCALAR : RW_SHAPE(4), numbers,
                                                       (size_t)(way < 2 ? 1 : 4) * sizeof *numbers));
    rw_tensor *grad = NULL;
    float got = 0;
    if (way == 0) cr_assert_eq(rw_grad(b.t, x, &x, 1, &grad), RW_OK, "%s", rw_error_message(b.ctx));
    if (way == 1) cr_assert_eq(rw_backward(b.t, x), RW_OK, "%s", rw_error_message(b.ctx));
    if (way == 2) cr_assert_eq(rw_backward_from(b.t, &x, NULL, 1), RW_OK, "%s", rw_error_message(b.ctx));
    if (way == 3) {
        rw_tensor *const both[] = { x, x }, *const dy[] = { input(&b),
                                                            rw_input(b.t, RW_F32, RW_SHAPE(4), ones, sizeof ones) };
        cr_assert_eq(rw_backward_from(b.t, both, dy, 2), RW_OK, "%s", rw_error_message(b.ctx));
        expect(&b, rw_gradient(x), 2, 3, 4, 5, "of two roots");
    }
    if (way == 2) expect(&b, rw_gradient(x), 1, 1, 1, 1, "of ones");
    if (way < 2) cr_assert_eq(rw_read(b.t, grad ? grad : rw_gradient(x), &got, sizeof got), RW_OK);
    if (way < 2) cr_assert_eq(got, 1, "%g", (double)got);
    if (way == 1) cr_assert_eq(ckpt_verify(b.t, x, NULL), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(autodiff_edge_cases, an_input_alone_has_a_gradient)
{
    for (int way = 0; way < 4; way++) backward_of_an_input_alone(way);
}
