/*
 * The cost of reading a value is the cost of computing it: rw_read() and rw_eval() take inference's memory and begin no
 * step, the assumption of rw_item() never causes an error, and nothing in rw_no_grad_begin() .. rw_no_grad_end()
 * requires a gradient.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

enum { WIDTH = 64, LAYERS = 12, BATCH = 32 };

struct model {
    struct fixture b;
    rw_tensor *w, *loss, *hidden;
};

static rw_tensor *forward(struct model *m)
{
    rw_tensor *x = rw_input(m->b.t, RW_F32, RW_SHAPE(BATCH, WIDTH), NULL, 0);
    x = rw_add_scalar(m->b.t, x, 0.5);
    for (int i = 0; i < LAYERS; i++) {
        ckpt_begin(m->b.t, "layer");
        x = rw_gelu(m->b.t, rw_linear(m->b.t, x, m->w, RW_NONE));
        ckpt_end(m->b.t);
    }
    m->hidden = x;
    return m->loss = rw_mean(m->b.t, rw_mul(m->b.t, x, x), RW_ALL_AXES, false);
}

static struct model open_model(const char *policy)
{
    struct model m = { .b = fixture_open(3, 1) };
    m.w = rw_param(m.b.ctx, "w", RW_F32, RW_SHAPE(WIDTH, WIDTH));
    OK(m.b.ctx, rw_init_normal(m.w, 0, 0.2));
    OK(m.b.ctx, ckpt_set_policy(m.b.t, policy));
    return m;
}

static size_t arena(const struct model *m)
{
    rw_memory memory;
    OK(m->b.ctx, rw_memory_stats(m->b.ctx, &memory));
    return memory.arenas;
}

enum way { DETACHED, READ, EVAL, NO_GRAD, ITEM, WAYS };

/* Arena of reading the loss in the given way. */
static size_t arena_of(const char *policy, enum way way, double *ret_loss)
{
    struct model m = open_model(policy);
    float value = 0;
    if (way == NO_GRAD) OK(m.b.ctx, rw_no_grad_begin(m.b.t));
    forward(&m);
    if (way == NO_GRAD) OK(m.b.ctx, rw_no_grad_end(m.b.t));
    if (way == DETACHED) *ret_loss = rw_item(m.b.t, rw_detach(m.b.t, m.loss));
    if (way == EVAL) OK(m.b.ctx, rw_eval(m.b.t, &m.loss, 1));
    if (way == READ || way == EVAL) OK(m.b.ctx, rw_read(m.b.t, m.loss, &value, sizeof value));
    if (way == READ || way == EVAL) *ret_loss = value;
    if (way == NO_GRAD || way == ITEM) *ret_loss = rw_item(m.b.t, m.loss);
    cr_assert_eq(rw_error_status(m.b.ctx), RW_OK, "%s", rw_error_message(m.b.ctx));
    const size_t bytes = arena(&m);
    fixture_close(&m.b);
    return bytes;
}

Test(read_eval_no_grad, takes_the_memory_of_inference)
{
    static const char *const policies[] = { "none", "full", "uniform:4", "budget:50%" };
    for (int i = 0; i < 4; i++) {
        double expected, got;
        const size_t least = arena_of(policies[i], DETACHED, &expected);
        cr_assert_leq(least, (size_t)8 * BATCH * WIDTH * sizeof(float), "a layer's values and a product's workspace");
        for (enum way way = READ; way <= NO_GRAD; way++) {
            cr_expect_eq(arena_of(policies[i], way, &got), least, "%s, way %d", policies[i], (int)way);
            cr_expect_eq(got, expected);
        }
    }
    double loss;
    cr_expect_gt(arena_of("none", ITEM, &loss), (size_t)2 * LAYERS * BATCH * WIDTH * sizeof(float));
}

/* An impossible budget is refused by rw_backward(), not when a number is read. */
Test(read_eval_no_grad, a_scalar_is_read_where_its_step_has_no_plan)
{
    struct model m = open_model("budget:1KiB");
    forward(&m);
    const double loss = rw_item(m.b.t, m.loss);
    cr_expect_eq(rw_error_status(m.b.ctx), RW_OK, "%s", rw_error_message(m.b.ctx));
    cr_expect_gt(loss, 0);
    cr_expect_eq(rw_backward(m.b.t, m.loss), RW_ERR_BUDGET);
    rw_error_clear(m.b.ctx);
    OK(m.b.ctx, ckpt_set_policy(m.b.t, "full"));
    OK(m.b.ctx, rw_backward(m.b.t, m.loss));
    cr_expect_eq(rw_item(m.b.t, m.loss), loss);
    fixture_close(&m.b);
}

/* During recording, the budget is for the future step: a scalar from its beginning is read all the same. */
Test(read_eval_no_grad, a_scalar_in_the_middle_under_a_budget_of_the_whole)
{
    struct model m = open_model("budget:60%");
    forward(&m);
    cr_expect_gt(rw_item(m.b.t, rw_mean(m.b.t, m.hidden, RW_ALL_AXES, false)), -1e9);
    forward(&m);
    cr_expect_gt(rw_item(m.b.t, rw_mean(m.b.t, m.hidden, RW_ALL_AXES, false)), -1e9);
    OK(m.b.ctx, rw_backward(m.b.t, m.loss));
    fixture_close(&m.b);
}

/* However many scalars are read before backward, only one begun step is suspended; the gradients have the same
   bytes. */
Test(read_eval_no_grad, several_scalars_hold_one_step)
{
    unsigned char *bytes[3];
    size_t n = 0, held[3];
    for (int logged = 0; logged < 3; logged++) {
        struct model m = open_model("none");
        forward(&m);
        rw_memory memory;
        rw_tensor *const more[] = { rw_sum(m.b.t, m.hidden, RW_ALL_AXES, false),
                                    rw_mean(m.b.t, m.hidden, RW_ALL_AXES, false) };
        for (int i = 0; i < logged; i++) rw_item(m.b.t, more[i]);
        rw_item(m.b.t, m.loss);
        OK(m.b.ctx, rw_memory_stats(m.b.ctx, &memory));
        cr_expect_eq(memory.runs, 1, "%d scalars: %zu steps wait", logged, memory.runs);
        held[logged] = memory.waiting;
        OK(m.b.ctx, rw_backward(m.b.t, m.loss));
        bytes[logged] = all_gradients(m.b.ctx, &n);
        cr_expect_eq(first_difference(bytes[0], bytes[logged], n), -1);
        fixture_close(&m.b);
    }
    cr_expect_leq(held[2], held[0] + held[0] / 8);
    for (int i = 0; i < 3; i++) free(bytes[i]);
}

static rw_status same_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status triple(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    for (int64_t i = 0; i < k->in[0].layout->numel; i++) ((float *)k->out[0].data)[i] = 3 * x[i];
    return RW_OK;
}

HOST_KERNEL_OF(triple)
static const rw_op_def no_rule = { .name = "triple_without_rule", .n_inputs = 1, .n_outputs = 1, .check = same_check,
                                   .kernel = HOST_KERNEL(triple) };

Test(read_eval_no_grad, a_loss_after_an_op_without_a_rule)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_init_constant(p, 1));
    rw_tensor *const in[] = { rw_scale(b.t, p, 2) };
    rw_tensor *const loss = rw_sum(b.t, rw_apply(b.t, &no_rule, in, 1, NULL, 0, NULL), RW_ALL_AXES, false);
    cr_expect_eq(rw_item(b.t, loss), 24);
    cr_expect_eq(rw_error_status(b.ctx), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_NO_GRADIENT);
    fixture_close(&b);
}

/* ---- rw_no_grad_begin() ---- */

/* Values recorded without gradients must act as constants, also in nested scopes and after a later mark. */
static void no_grad(void)
{
    struct fixture b = fixture_open(1, 1);
    static const float ramp[4] = { 1, 2, 3, 4 };
    float got[4];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    cr_expect_eq(rw_no_grad_end(b.t), RW_ERR_REGION);
    rw_error_clear(b.ctx);
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp);
    OK(b.ctx, rw_no_grad_begin(b.t));
    OK(b.ctx, rw_no_grad_begin(b.t));
    rw_tensor *const square = rw_mul(b.t, p, p), *const y = rw_scale(b.t, x, 2);
    OK(b.ctx, rw_no_grad_end(b.t));
    rw_tensor *const cube = rw_mul(b.t, square, p);
    OK(b.ctx, rw_no_grad_end(b.t));
    cr_expect_not(rw_tensor_requires_grad(square));
    cr_expect_not(rw_tensor_requires_grad(cube));
    rw_require_grad(b.t, x); /* marked afterwards: it does not affect what was recorded without gradients */
    rw_tensor *const loss = rw_sum(b.t, rw_add(b.t, rw_mul(b.t, cube, p), rw_mul(b.t, x, y)), RW_ALL_AXES, false);
    OK(b.ctx, rw_backward(b.t, loss));
    OK(b.ctx, rw_read(b.t, rw_gradient(p), got, sizeof got));
    for (int i = 0; i < 4; i++) cr_expect_eq(got[i], ramp[i] * ramp[i] * ramp[i], "as if the cube were a constant");
    OK(b.ctx, rw_read(b.t, rw_gradient(x), got, sizeof got));
    for (int i = 0; i < 4; i++) cr_expect_eq(got[i], 2 * ramp[i]);
    rw_tape_reset(b.t);
    rw_tensor *const again = rw_mul(b.t, p, p);
    cr_expect(rw_tensor_requires_grad(again), "a reset ends the scope");
    fixture_close(&b);
}

Test(read_eval_no_grad, without_gradients_in_a_scope)
{
    no_grad();
    setenv("REWIND_EAGER", "1", 1);
    no_grad();
    unsetenv("REWIND_EAGER");
}

/* The same ops with and without the scope are two programs: they share no plan. */
Test(read_eval_no_grad, the_scope_is_part_of_the_plans_key)
{
    struct fixture b = fixture_open(1, 1);
    static const float ramp[4] = { 1, 2, 3, 4 };
    float got[4];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    for (int step = 0; step < 6; step++) {
        const int scope = step % 3;
        if (scope == 1) OK(b.ctx, rw_no_grad_begin(b.t));
        rw_tensor *const square = rw_mul(b.t, p, p);
        if (scope == 1) OK(b.ctx, rw_no_grad_end(b.t));
        rw_tensor *const cube = rw_mul(b.t, square, p);
        OK(b.ctx, rw_backward(b.t, rw_sum(b.t, cube, RW_ALL_AXES, false)));
        OK(b.ctx, rw_read(b.t, rw_gradient(p), got, sizeof got));
        for (int i = 0; i < 4; i++)
            cr_expect_eq(got[i], (scope == 1 ? 1 : 3) * ramp[i] * ramp[i], "step %d: %g", step, (double)got[i]);
        rw_zero_grad(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* Running statistics of a forward without backward are updated when a value is read. */
Test(read_eval_no_grad, effects_happen_in_the_scope)
{
    struct fixture b = fixture_open(1, 1);
    float got[4];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                     *const mean = rw_buffer(b.ctx, "m", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_init_constant(p, 3));
    OK(b.ctx, rw_no_grad_begin(b.t));
    rw_tensor *const y = rw_mul(b.t, p, p);
    OK(b.ctx, rw_assign(b.t, mean, y));
    OK(b.ctx, rw_no_grad_end(b.t));
    rw_item(b.t, rw_mean(b.t, y, RW_ALL_AXES, false));
    OK(b.ctx, rw_read(NULL, mean, got, sizeof got));
    cr_expect_eq(got[0], 9);
    fixture_close(&b);
}

/* ---- bugs found by a review of this code ---- */

/* A value that is marked after its use only affects ops outside the scope: two programs that differ only in the
   scope. */
Test(read_eval_no_grad, a_late_mark_finds_the_plan_of_its_own_scope)
{
    struct fixture b = fixture_open(1, 1);
    static const float ramp[4] = { 1, 2, 3, 4 };
    float got[4];
    for (int step = 0; step < 4; step++) {
        const bool scope = step % 2 == 0;
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp);
        if (scope) OK(b.ctx, rw_no_grad_begin(b.t));
        rw_tensor *const square = rw_mul(b.t, x, x);
        if (scope) OK(b.ctx, rw_no_grad_end(b.t));
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, square, x), RW_ALL_AXES, false);
        rw_require_grad(b.t, x);
        rw_tensor *dx = NULL, *in[] = { x };
        OK(b.ctx, rw_grad(b.t, loss, in, 1, &dx));
        OK(b.ctx, rw_backward(b.t, loss));
        OK(b.ctx, rw_read(b.t, rw_gradient(x), got, sizeof got));
        for (int i = 0; i < 4; i++) cr_expect_eq(got[i], (scope ? 1 : 3) * ramp[i] * ramp[i], "step %d", step);
        OK(b.ctx, rw_read(b.t, dx, got, sizeof got));
        for (int i = 0; i < 4; i++) cr_expect_eq(got[i], (scope ? 1 : 3) * ramp[i] * ramp[i], "rw_grad, step %d", step);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

static void expect_refused(struct fixture *b, rw_tensor *x, const char *what)
{
    float got[2] = { 7, 7 };
    cr_expect_eq(rw_read(b->t, x, got, sizeof got), RW_ERR_MODIFIED, "%s", what);
    cr_expect(got[0] == 7 && got[1] == 7, "%s: %g", what, (double)got[0]);
    rw_error_clear(b->ctx);
}

/* A view of a parameter or an input is a result of an op, though it has no memory of its own: it is not read with
   contents that came later. The tensor itself is, and so is a view of a gradient. */
Test(read_eval_no_grad, a_view_has_the_contents_of_its_recording)
{
    struct fixture b = fixture_open(1, 1);
    static const float old[2] = { 1, 2 }, new[2] = { 5, 6 };
    float got[2];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2));
    rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2), old, sizeof old);
    OK(b.ctx, rw_write(p, old, sizeof old));
    rw_tensor *const of_p = rw_reshape(b.t, p, RW_SHAPE(1, 2)), *const of_x = rw_reshape(b.t, x, RW_SHAPE(1, 2));
    rw_tensor *const of_g = rw_reshape(b.t, rw_gradient(p), RW_SHAPE(1, 2));
    rw_tensor *const views[] = { of_p, of_x };
    for (int i = 0; i < 2; i++) {
        OK(b.ctx, rw_read(b.t, views[i], got, sizeof got));
        cr_expect_arr_eq(got, old, sizeof old);
    }
    OK(b.ctx, rw_read(b.t, of_g, got, sizeof got));
    cr_expect(got[0] == 0 && got[1] == 0);
    OK(b.ctx, rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, p, x), RW_ALL_AXES, false)));
    OK(b.ctx, rw_write(p, new, sizeof new));
    OK(b.ctx, rw_input_write(x, new, sizeof new));
    expect_refused(&b, of_p, "a view of a parameter");
    expect_refused(&b, of_x, "a view of an input");
    OK(b.ctx, rw_read(b.t, of_g, got, sizeof got));
    cr_expect_arr_eq(got, old, sizeof old);
    OK(b.ctx, rw_read(NULL, p, got, sizeof got));
    cr_expect_arr_eq(got, new, sizeof new);
    OK(b.ctx, rw_read(b.t, x, got, sizeof got));
    cr_expect_arr_eq(got, new, sizeof new);
    fixture_close(&b);
}

/* Reading or evaluating a view of an input is a request that reads the input, though nothing is executed for it. */
Test(read_eval_no_grad, a_view_that_was_requested_is_not_read_with_later_elements)
{
    static const float old[2] = { 1, 2 }, new[2] = { 5, 6 };
    float got[2];
    for (int evaluated = 0; evaluated < 2; evaluated++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2), old, sizeof old);
        rw_tensor *view = rw_reshape(b.t, x, RW_SHAPE(1, 2)), *const scaled = rw_scale(b.t, view, 3);
        if (evaluated) OK(b.ctx, rw_eval(b.t, &view, 1));
        else OK(b.ctx, rw_read(b.t, view, got, sizeof got));
        OK(b.ctx, rw_input_write(x, new, sizeof new));
        expect_refused(&b, view, "the view");
        expect_refused(&b, scaled, "a value that would read the input again");
        OK(b.ctx, rw_read(b.t, x, got, sizeof got));
        cr_expect_arr_eq(got, new, sizeof new);
        fixture_close(&b);
    }
}

/* The request of a view of a buffer also executes the effect that writes the buffer: the view is computed before. */
Test(read_eval_no_grad, a_view_of_a_buffer_that_an_effect_writes)
{
    static const float old[4] = { 1, 2, 3, 4 };
    float got[4];
    for (int way = 0; way < 2; way++) { /* read; evaluated, then read */
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const buffer = rw_buffer(b.ctx, "counter", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_write(buffer, old, sizeof old));
        rw_tensor *const square = rw_reshape(b.t, buffer, RW_SHAPE(2, 2));
        rw_tensor *views[] = { rw_slice(b.t, buffer, 0, 2, 4), rw_transpose(b.t, square, 0, 1) };
        OK(b.ctx, rw_assign(b.t, buffer, rw_add_scalar(b.t, buffer, 10)));
        if (way) OK(b.ctx, rw_eval(b.t, views, 2));
        OK(b.ctx, rw_read(b.t, views[0], got, 2 * sizeof *got));
        cr_expect(got[0] == 3 && got[1] == 4, "%g %g", (double)got[0], (double)got[1]);
        if (way) OK(b.ctx, rw_read(b.t, views[1], got, sizeof got));
        if (way) cr_expect(got[0] == 1 && got[1] == 3 && got[2] == 2 && got[3] == 4);
        OK(b.ctx, rw_read(b.t, buffer, got, sizeof got));
        cr_expect(got[0] == 11 && got[3] == 14, "%g %g", (double)got[0], (double)got[3]);
        fixture_close(&b);
    }
}

/* A view that is refused is refused before an effect has happened. */
Test(read_eval_no_grad, a_refused_view_executes_no_effect)
{
    static const float old[2] = { 1, 2 }, new[2] = { 5, 6 };
    float got[2];
    for (int written = 0; written < 2; written++) { /* the buffer that the effect writes, or another one */
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const buffer = rw_buffer(b.ctx, "counter", RW_F32, RW_SHAPE(2)),
                         *const other = rw_buffer(b.ctx, "other", RW_F32, RW_SHAPE(2));
        OK(b.ctx, rw_write(buffer, old, sizeof old));
        rw_tensor *const view = rw_reshape(b.t, written ? buffer : other, RW_SHAPE(1, 2));
        OK(b.ctx, rw_assign(b.t, buffer, rw_input(b.t, RW_F32, RW_SHAPE(2), new, sizeof new)));
        OK(b.ctx, rw_write(written ? buffer : other, old, sizeof old));
        expect_refused(&b, view, "a view of a buffer that has changed");
        OK(b.ctx, rw_read(NULL, buffer, got, sizeof got));
        cr_expect_arr_eq(got, old, sizeof old);
        cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 1);
        fixture_close(&b);
    }
}

/* Backward does not enter what was recorded in the scope, even from a result that was marked there. */
Test(read_eval_no_grad, a_marked_result_of_the_scope_is_where_backward_ends)
{
    struct fixture b = fixture_open(1, 1);
    static const float ramp[4] = { 1, 2, 3, 4 };
    float got[4];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    OK(b.ctx, rw_no_grad_begin(b.t));
    rw_tensor *const y = rw_scale(b.t, p, 2);
    OK(b.ctx, rw_no_grad_end(b.t));
    rw_require_grad(b.t, y);
    OK(b.ctx, rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)));
    OK(b.ctx, rw_read(b.t, rw_gradient(y), got, sizeof got));
    for (int i = 0; i < 4; i++) cr_expect_eq(got[i], 4 * ramp[i]);
    OK(b.ctx, rw_read(NULL, rw_gradient(p), got, sizeof got));
    for (int i = 0; i < 4; i++) cr_expect_eq(got[i], 0);
    fixture_close(&b);
}

/* Nor is a cast that a recipe recorded there reused for ops outside. */
Test(read_eval_no_grad, a_cast_of_the_scope_is_not_used_outside)
{
    static const float x0[4] = { 1, 2, 2, 1 };
    float got[2][4];
    for (int before = 0; before < 2; before++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
        OK(b.ctx, rw_init_constant(w, 1));
        const rw_recipe recipe = { .kind = RW_RECIPE_BF16 };
        OK(b.ctx, rw_recipe_begin(b.t, &recipe));
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(2, 2), x0, sizeof x0);
        if (before) OK(b.ctx, rw_no_grad_begin(b.t));
        if (before) rw_linear(b.t, x, w, RW_NONE);
        if (before) OK(b.ctx, rw_no_grad_end(b.t));
        rw_tensor *const y = rw_cast(b.t, rw_linear(b.t, x, w, RW_NONE), RW_F32);
        OK(b.ctx, rw_recipe_end(b.t));
        OK(b.ctx, rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)));
        OK(b.ctx, rw_read(NULL, rw_gradient(w), got[before], sizeof got[before]));
        fixture_close(&b);
    }
    cr_expect(!memcmp(got[0], got[1], sizeof got[0]), "%g, %g", (double)got[0][0], (double)got[1][0]);
    cr_expect_eq(got[1][0], 3);
}

/* A gradient rule cannot leave a scope open, and what it records in one is removed with the plan. */
static bool leaves_open;

static rw_status scoped_rule(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_no_grad_begin(t);
    rw_tensor *const dx = rw_scale(t, rw_grad_upstream(g, 0), 1);
    if (!leaves_open) rw_no_grad_end(t);
    return rw_grad_set(g, 0, dx);
}

static const rw_op_def scoped = { .name = "scoped", .n_inputs = 1, .n_outputs = 1, .check = same_check,
                                  .grad = scoped_rule, .kernel = HOST_KERNEL(triple) };

Test(read_eval_no_grad, a_rule_ends_the_scopes_that_it_begins)
{
    static const float ramp[4] = { 1, 2, 3, 4 };
    for (int open = 0; open < 2; open++) {
        struct fixture b = fixture_open(1, 1);
        float got[4];
        leaves_open = open;
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)), *const in[] = { p };
        OK(b.ctx, rw_write(p, ramp, sizeof ramp));
        rw_tensor *const loss = rw_sum(b.t, rw_apply(b.t, &scoped, in, 1, NULL, 0, NULL), RW_ALL_AXES, false);
        cr_expect_eq(rw_backward(b.t, loss), open ? RW_ERR_REGION : RW_OK, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        rw_zero_grad(b.ctx);
        rw_tensor *const more = rw_mul(b.t, rw_scale(b.t, rw_scale(b.t, p, 1), 1), p);
        cr_expect(rw_tensor_requires_grad(more));
        OK(b.ctx, rw_backward(b.t, rw_sum(b.t, more, RW_ALL_AXES, false)));
        OK(b.ctx, rw_read(NULL, rw_gradient(p), got, sizeof got));
        for (int i = 0; i < 4; i++) cr_expect_eq(got[i], 2 * ramp[i]);
        fixture_close(&b);
    }
}

/* rw_grad() in the scope gives constants, however often x is used; outside of it gradients through which backward
   passes. */
Test(read_eval_no_grad, gradients_recorded_in_the_scope_are_constants)
{
    for (int uses = 1; uses <= 2; uses++)
        for (int scope = 0; scope < 2; scope++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4));
            float got[4];
            OK(b.ctx, rw_init_constant(w, 2));
            rw_tensor *y = rw_mul(b.t, w, rw_mul(b.t, w, w)), *dw = NULL, *in[] = { w };
            if (uses == 2) y = rw_add(b.t, y, rw_mul(b.t, w, w));
            rw_tensor *const sum = rw_sum(b.t, y, RW_ALL_AXES, false);
            if (scope) OK(b.ctx, rw_no_grad_begin(b.t));
            OK(b.ctx, rw_grad(b.t, sum, in, 1, &dw));
            if (scope) OK(b.ctx, rw_no_grad_end(b.t));
            cr_expect_eq(rw_tensor_requires_grad(dw), !scope);
            OK(b.ctx, rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, dw, w), RW_ALL_AXES, false)));
            OK(b.ctx, rw_read(NULL, rw_gradient(w), got, sizeof got));
            const float first = uses == 1 ? 12 : 16, second = uses == 1 ? 12 : 14; /* 3 w^2 (+ 2 w), 6 w (+ 2) */
            cr_expect_eq(got[0], scope ? first : first + 2 * second, "%d uses, scope %d: %g", uses, scope,
                         (double)got[0]);
            fixture_close(&b);
        }
}
