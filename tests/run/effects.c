/*
 * Effects: each recorded one happens exactly once when its tape is evaluated, and reads the values from before the
 * step; a step that fails leaves every buffer unchanged.
 */
#include "support/support.h"

#include "base/alloc.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#define OK(ctx, call) cr_assert_eq((call), RW_OK, "%s: %s", #call, rw_error_message(ctx))

static const float ramp[4] = { 1, 2, 3, 4 }, ones[4] = { 1, 1, 1, 1 }, zeros[4] = { 0 };

static rw_tensor *total(rw_tape *t, rw_tensor *x)
{
    return rw_sum(t, x, RW_ALL_AXES, false);
}

static void expect4(rw_context *ctx, rw_tape *t, rw_tensor *x, const float *expected, const char *what)
{
    float got[4];
    OK(ctx, rw_read(t, x, got, sizeof got));
    cr_expect(!memcmp(got, expected, sizeof got), "%s: got %g %g %g %g, expected %g %g %g %g", what, (double)got[0],
              (double)got[1], (double)got[2], (double)got[3], (double)expected[0], (double)expected[1],
              (double)expected[2], (double)expected[3]);
}

static void both_modes(void (*test)(void))
{
    test();
    setenv("REWIND_EAGER", "1", 1);
    test();
    unsetenv("REWIND_EAGER");
}

/* ---- an evaluation, whatever has been executed before ---- */

enum way { EVAL, EVAL_NOTHING, ITEM, READ, EVAL_INPUT, WAYS };

static void evaluate(struct fixture *b, enum way way, rw_tensor *y, rw_tensor *sum, rw_tensor *input)
{
    float bytes[4];
    if (way == EVAL) OK(b->ctx, rw_eval(b->t, &y, 1));
    if (way == EVAL_NOTHING) OK(b->ctx, rw_eval(b->t, NULL, 0));
    if (way == ITEM) rw_item(b->t, sum);
    if (way == READ) OK(b->ctx, rw_read(b->t, y, bytes, sizeof bytes));
    if (way == EVAL_INPUT) OK(b->ctx, rw_eval(b->t, &input, 1));
}

/* An evaluation in each way, after values have been read or not, performs the effect once. */
static void held_values(void)
{
    static const float doubled[4] = { 2, 4, 6, 8 };
    for (int read_before = 0; read_before < 2; read_before++)
        for (enum way way = 0; way < WAYS; way++) {
            struct fixture b = fixture_open(1, 1);
            float bytes[4];
            rw_tensor *const buffer = rw_buffer(b.ctx, "b", RW_F32, RW_SHAPE(4));
            rw_tensor *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(4));
            rw_tensor *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp), *const y = rw_scale(b.t, x, 2);
            rw_tensor *const sum = total(b.t, y);
            if (read_before) OK(b.ctx, rw_read(b.t, y, bytes, sizeof bytes));
            if (read_before) rw_item(b.t, sum);
            OK(b.ctx, rw_assign(b.t, buffer, y));
            OK(b.ctx, rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)));
            cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 2);
            evaluate(&b, way, y, sum, x);
            cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 0, "way %d", (int)way);
            evaluate(&b, way, y, sum, x);
            expect4(b.ctx, NULL, buffer, doubled, "the assigned value");
            expect4(b.ctx, NULL, count, ones, "once");
            rw_tape_reset(b.t);
            cr_expect_eq(rw_context_dropped_effects(b.ctx, NULL), 0);
            fixture_close(&b);
        }
}

Test(effects, happen_once_also_where_all_values_are_computed)
{
    both_modes(held_values);
}

/* A target network that follows its parameter: the parameter is detached, nothing on the tape requires a gradient. */
static void soft_update(void)
{
    static const float followed[4] = { 0.25f, 0.5f, 0.75f, 1 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    rw_tensor *const d = rw_detach(b.t, p);
    OK(b.ctx, rw_assign(b.t, q, rw_add(b.t, rw_scale(b.t, q, 0.75), rw_scale(b.t, d, 0.25))));
    OK(b.ctx, rw_eval(b.t, NULL, 0));
    expect4(b.ctx, NULL, q, followed, "the target");
    fixture_close(&b);
}

Test(effects, of_a_detached_parameter_happen)
{
    both_modes(soft_update);
}

/* On a tape that requires gradients they wait for backward, or for rw_eval_effects(), and happen once in total. */
static void wait_for_backward(void)
{
    for (int early = 0; early < 2; early++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_write(p, ramp, sizeof ramp));
        OK(b.ctx, rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)));
        rw_tensor *y = rw_mul(b.t, p, p), *const loss = total(b.t, y);
        OK(b.ctx, rw_eval(b.t, &y, 1));
        rw_item(b.t, loss);
        cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 1);
        expect4(b.ctx, NULL, count, zeros, "before");
        if (early) OK(b.ctx, rw_eval_effects(b.t));
        if (early) OK(b.ctx, rw_eval_effects(b.t));
        if (early) expect4(b.ctx, NULL, count, ones, "rw_eval_effects()");
        OK(b.ctx, rw_backward(b.t, loss));
        OK(b.ctx, rw_eval_effects(b.t));
        expect4(b.ctx, NULL, count, ones, "after backward");
        fixture_close(&b);
    }
}

Test(effects, of_a_step_wait_for_its_backward)
{
    both_modes(wait_for_backward);
}

Test(effects, that_a_reset_drops_are_counted_and_told)
{
    for (int tells = 0; tells < 2; tells++) {
        if (tells) setenv("REWIND_DEBUG", "order,effects", 1);
        struct fixture b = fixture_open(1, 1);
        rw_site site = { 0 };
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4));
        for (int i = 0; i < 3; i++) {
            OK(b.ctx, rw_assign(b.t, q, rw_mul(b.t, p, p)));
            const int line = __LINE__ - 1;
            rw_tape_reset(b.t);
            cr_expect_eq(rw_context_dropped_effects(b.ctx, &site), (size_t)i + 1);
            cr_expect_eq(site.line, line);
            cr_expect_eq(rw_error_status(b.ctx), tells ? RW_ERR_MODIFIED : RW_OK);
            if (tells) cr_expect(strstr(rw_error_message(b.ctx), "effects.c"), "%s", rw_error_message(b.ctx));
            rw_error_clear(b.ctx);
        }
        unsetenv("REWIND_DEBUG");
        fixture_close(&b);
    }
}

/* ---- values that a commit reads ---- */

/* A gradient that is assigned to a buffer in the step must be read before backward adds to it. */
static void assigned_gradient(void)
{
    static const float before[4] = { 10, 20, 30, 40 }, after[4] = { 11, 21, 31, 41 };
    for (int view = 0; view < 3; view++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4)),
                         *const r = rw_buffer(b.ctx, "r", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_write(rw_gradient(p), before, sizeof before));
        rw_tensor *g = rw_gradient(p);
        if (view) g = rw_reshape(b.t, rw_reshape(b.t, g, RW_SHAPE(2, 2)), RW_SHAPE(4));
        if (view < 2) OK(b.ctx, rw_assign(b.t, q, g));
        OK(b.ctx, rw_assign(b.t, r, rw_gradient(p)));
        if (view == 2) OK(b.ctx, rw_assign(b.t, q, g));
        OK(b.ctx, rw_backward(b.t, total(b.t, p)));
        expect4(b.ctx, NULL, q, before, "what the gradient was");
        expect4(b.ctx, NULL, r, before, "what the gradient was, by another leaf");
        expect4(b.ctx, NULL, rw_gradient(p), after, "the gradient");
        fixture_close(&b);
    }
}

Test(effects, commits_read_gradients_of_before_the_step)
{
    both_modes(assigned_gradient);
}

/* A transposed view of a buffer is assigned to the buffer itself. */
static void own_view(void)
{
    static const float matrix[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 }, transposed[9] = { 1, 4, 7, 2, 5, 8, 3, 6, 9 };
    for (int trains = 0; trains < 2; trains++) {
        struct fixture b = fixture_open(1, 1);
        float got[9];
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                         *const m = rw_buffer(b.ctx, "m", RW_F32, RW_SHAPE(3, 3));
        OK(b.ctx, rw_write(m, matrix, sizeof matrix));
        OK(b.ctx, rw_assign(b.t, m, rw_transpose(b.t, m, 0, 1)));
        if (trains) OK(b.ctx, rw_backward(b.t, total(b.t, p)));
        else OK(b.ctx, rw_eval(b.t, NULL, 0));
        OK(b.ctx, rw_read(NULL, m, got, sizeof got));
        cr_expect(!memcmp(got, transposed, sizeof got), "%g %g %g %g", (double)got[0], (double)got[1], (double)got[2],
                  (double)got[3]);
        fixture_close(&b);
    }
}

Test(effects, a_buffer_becomes_a_view_of_itself)
{
    both_modes(own_view);
}

/* A caller's commit whose kernel writes its output in reverse order: it must not read the memory that it writes. */
static rw_status reverse_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 1);
}

static rw_status reverse_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    for (int i = 0; i < 4; i++) y[i] = x[3 - i];
    return RW_OK;
}

static const rw_op_def reverse = { .name = "reverse_commit", .n_inputs = 2, .n_outputs = 1, .check = reverse_check,
                                   .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                   .kernel = { [RW_DEVICE_CPU] = reverse_kernel } };

Test(effects, a_callers_commit_never_reads_what_it_writes)
{
    NEEDS_HOST_MEMORY();
    static const float reversed[4] = { 4, 3, 2, 1 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4)), *const in[] = { q, q };
    OK(b.ctx, rw_write(q, ramp, sizeof ramp));
    cr_assert_not_null(rw_apply(b.t, &reverse, in, 2, NULL, 0, NULL));
    OK(b.ctx, rw_eval(b.t, NULL, 0));
    expect4(b.ctx, NULL, q, reversed, "reversed");
    fixture_close(&b);
}

/* ---- a retained gradient that a rule returns as a value of forward ---- */

static rw_status as_gradient(rw_grad_call *g)
{
    rw_grad_set(g, 0, rw_grad_input(g, 1));
    return RW_OK;
}

static rw_status two_check(rw_op_call *call)
{
    return rw_op_output(call, 0, RW_F32, RW_SCALAR);
}

static rw_status two_kernel(const rw_kernel *k)
{
    *(float *)k->out[0].data = 1;
    return RW_OK;
}

HOST_KERNEL_OF(two_kernel)
static const rw_op_def fused_loss = { .name = "fused_loss", .n_inputs = 2, .n_outputs = 1, .check = two_check,
                                      .grad = as_gradient, .kernel = HOST_KERNEL(two_kernel) };

/* The retained gradient is a value of forward, which may be read before. */
static void forward_value_as_gradient(void)
{
    static const float squares[4] = { 1, 4, 9, 16 }, threes[4] = { 3, 3, 3, 3 };
    for (int read = 0; read < 3; read++)
        for (int other = 0; other < 2; other++) {
            struct fixture b = fixture_open(1, 1);
            float bytes[4];
            rw_tensor *const x = rw_require_grad(b.t, rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp));
            rw_tensor *const d = rw_detach(b.t, x), *const z = rw_mul(b.t, d, d), *const in[] = { x, z };
            rw_tensor *const loss = rw_apply(b.t, &fused_loss, in, 2, NULL, 0, NULL);
            rw_tensor *const before = total(b.t, rw_scale(b.t, x, 3));
            if (other) OK(b.ctx, rw_backward(b.t, before));
            if (other) expect4(b.ctx, b.t, rw_gradient(x), threes, "of the other loss");
            if (read == 1) OK(b.ctx, rw_read(b.t, z, bytes, sizeof bytes));
            if (read == 2) rw_item(b.t, loss);
            if (!other) cr_expect_null(rw_gradient(x), "before backward");
            OK(b.ctx, rw_backward(b.t, loss));
            cr_assert_not_null(rw_gradient(x));
            expect4(b.ctx, b.t, rw_gradient(x), squares, "the gradient");
            fixture_close(&b);
        }
}

Test(effects, a_forward_value_that_is_a_gradient_is_that_of_this_backward)
{
    both_modes(forward_value_as_gradient);
}

/* ---- a step that fails ---- */

static int fails, runs;

static rw_status store_kernel(const rw_kernel *k)
{
    if (fails-- > 0) {
        memset(k->out[0].data, 0x55, 2 * sizeof(float)); /* half of it */
        return RW_ERR_DEVICE;
    }
    memcpy(k->out[0].data, k->in[0].data, 4 * sizeof(float));
    return RW_OK;
}

static const rw_op_def store = { .name = "store_commit", .n_inputs = 2, .n_outputs = 1, .check = reverse_check,
                                 .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                 .kernel = { [RW_DEVICE_CPU] = store_kernel } };

/* The second of three commits fails once: no buffer changes, and the next try performs all of them. */
static void fail_among_commits(bool clear)
{
    static const float twice[4] = { 2, 4, 6, 8 }, squares[4] = { 1, 4, 9, 16 };
    static const float added[4] = { 3, 5, 7, 9 }, gradient[4] = { 2, 4, 6, 8 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                     *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(4)),
                     *const second = rw_buffer(b.ctx, "second", RW_F32, RW_SHAPE(4)),
                     *const third = rw_buffer(b.ctx, "third", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    if (!clear) OK(b.ctx, rw_write(rw_gradient(p), ones, sizeof ones));
    OK(b.ctx, rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)));
    rw_tensor *const in[] = { rw_scale(b.t, p, 2), second };
    cr_assert_not_null(rw_apply(b.t, &store, in, 2, NULL, 0, NULL));
    rw_tensor *const y = rw_mul(b.t, p, p);
    OK(b.ctx, rw_assign(b.t, third, y));
    rw_tensor *const loss = total(b.t, y);
    fails = 1;
    cr_assert_eq(rw_backward(b.t, loss), RW_ERR_DEVICE);
    cr_expect(strstr(rw_error_message(b.ctx), "store_commit"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 3);
    expect4(b.ctx, NULL, count, zeros, "the first buffer");
    expect4(b.ctx, NULL, second, zeros, "the buffer whose commit failed");
    expect4(b.ctx, NULL, third, zeros, "the last buffer");
    if (!clear) {
        float bytes[4];
        cr_expect_eq(rw_read(NULL, rw_gradient(p), bytes, sizeof bytes), RW_ERR_MODIFIED, "half of a sum");
        rw_error_clear(b.ctx);
        rw_zero_grad(b.ctx);
        OK(b.ctx, rw_write(rw_gradient(p), ones, sizeof ones));
    }
    OK(b.ctx, rw_backward(b.t, loss));
    cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 0);
    expect4(b.ctx, NULL, count, ones, "the first buffer");
    expect4(b.ctx, NULL, second, twice, "the second buffer");
    expect4(b.ctx, NULL, third, squares, "the last buffer");
    expect4(b.ctx, NULL, rw_gradient(p), clear ? gradient : added, "the gradient");
    fixture_close(&b);
}

Test(effects, a_commit_that_fails_leaves_every_buffer)
{
    NEEDS_HOST_MEMORY();
    fail_among_commits(true);
    fail_among_commits(false);
}

/* The same in a graph: a launch that fails changes no buffer, and the next one starts from the beginning. */
Test(effects, a_commit_that_fails_in_a_graph_leaves_every_buffer)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    rw_graph *g = NULL;
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                     *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(4)),
                     *const second = rw_buffer(b.ctx, "second", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    OK(b.ctx, rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)));
    rw_tensor *const in[] = { rw_mul(b.t, p, p), second };
    cr_assert_not_null(rw_apply(b.t, &store, in, 2, NULL, 0, NULL));
    OK(b.ctx, rw_graph_create(&g, b.t, total(b.t, p), NULL));
    fails = 1;
    cr_expect_eq(rw_graph_launch(g), RW_ERR_DEVICE);
    rw_error_clear(b.ctx);
    expect4(b.ctx, NULL, count, zeros, "after the launch that failed");
    OK(b.ctx, rw_graph_launch(g));
    expect4(b.ctx, NULL, count, ones, "after the next launch");
    rw_graph_destroy(&g);
    fixture_close(&b);
}

/* A stateful op that was executed before the failure has had its effect: the next try does not execute it again. */
static rw_status tick_kernel(const rw_kernel *k)
{
    runs++;
    memcpy(k->out[0].data, k->in[0].data, 4 * sizeof(float));
    return RW_OK;
}

static rw_status same_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status pass_gradient(rw_grad_call *g)
{
    rw_grad_set(g, 0, rw_grad_upstream(g, 0));
    return RW_OK;
}

static rw_status fail_kernel(const rw_kernel *k)
{
    if (fails-- > 0) return RW_ERR_DEVICE;
    memcpy(k->out[0].data, k->in[0].data, 4 * sizeof(float));
    return RW_OK;
}

static const rw_op_def tick = { .name = "tick", .n_inputs = 1, .n_outputs = 1, .check = same_check,
                                .flags = RW_OP_STATEFUL, .grad = pass_gradient,
                                .kernel = { [RW_DEVICE_CPU] = tick_kernel } };
static const rw_op_def fail_once = { .name = "fail_once", .n_inputs = 1, .n_outputs = 1, .check = same_check,
                                     .grad = pass_gradient, .kernel = { [RW_DEVICE_CPU] = fail_kernel } };

Test(effects, a_stateful_op_before_a_failure_runs_once)
{
    NEEDS_HOST_MEMORY();
    static const char *const policies[] = { "none", "full" };
    for (int i = 0; i < 2; i++)
        for (int item = 0; item < 2; item++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4));
            OK(b.ctx, rw_write(p, ramp, sizeof ramp));
            OK(b.ctx, ckpt_set_policy(b.t, policies[i]));
            ckpt_begin(b.t, "r");
            rw_tensor *const in[] = { rw_scale(b.t, p, 2) };
            rw_tensor *const ticked = rw_apply(b.t, &tick, in, 1, NULL, 0, NULL);
            rw_tensor *const then[] = { rw_exp(b.t, ticked) };
            rw_tensor *const y = rw_apply(b.t, &fail_once, then, 1, NULL, 0, NULL);
            ckpt_end(b.t);
            rw_tensor *const loss = total(b.t, rw_mul(b.t, y, y));
            runs = 0;
            fails = item ? 4 : 2; /* rw_item() itself retries a failure that happened as part of a step */
            for (int try = 0; try < 2; try++) {
                if (item) rw_item(b.t, loss);
                else cr_assert_eq(rw_backward(b.t, loss), RW_ERR_DEVICE);
                cr_assert_eq(rw_error_status(b.ctx), RW_ERR_DEVICE);
                rw_error_clear(b.ctx);
                cr_expect_eq(runs, 1);
            }
            OK(b.ctx, rw_backward(b.t, loss));
            cr_expect_eq(runs, 1);
            fixture_close(&b);
        }
}

/* On an asynchronous device a bad index is reported at the wait: the commits of the step have not been executed
   then. */
static void bad_index(void)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(3, 4)),
                     *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(4));
    rw_tensor *const index = rw_input(b.t, RW_I32, RW_SHAPE(1), (const int32_t[]){ 7 }, sizeof(int));
    OK(b.ctx, rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)));
    rw_tensor *const loss = total(b.t, rw_embedding(b.t, table, index));
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    expect4(b.ctx, NULL, count, zeros, "after the step that failed");
    cr_expect_eq(rw_tape_pending_effects(b.t, NULL), 1);
    fixture_close(&b);
}

Test(effects, do_not_happen_in_a_step_with_a_bad_index)
{
    bad_index();
}

/* ---- bugs found by a review of this code ---- */

static rw_tape *disturbs;

static rw_status disturb_kernel(const rw_kernel *k)
{
    if (fails-- > 0) rw_eval_effects(disturbs);
    memcpy(k->out[0].data, k->in[0].data, 4 * sizeof(float));
    return RW_OK;
}

static const rw_op_def disturbing = { .name = "disturbing_commit", .n_inputs = 2, .n_outputs = 1,
                                      .check = reverse_check,
                                      .flags = RW_OP_STATEFUL | RW_OP_NO_GRADIENT | RW_OP_COMMIT,
                                      .kernel = { [RW_DEVICE_CPU] = disturb_kernel } };

/* A kernel that calls its own context makes its step fail at that action, also if it is a commit. */
Test(effects, a_kernel_that_calls_back_fails_where_it_does)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                     *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4)),
                     *const count = rw_buffer(b.ctx, "count", RW_F32, RW_SHAPE(4));
    OK(b.ctx, rw_write(p, ramp, sizeof ramp));
    rw_tensor *const in[] = { rw_scale(b.t, p, 2), q };
    cr_assert_not_null(rw_apply(b.t, &disturbing, in, 2, NULL, 0, NULL));
    OK(b.ctx, rw_assign(b.t, count, rw_add_scalar(b.t, count, 1)));
    rw_tensor *const loss = total(b.t, rw_mul(b.t, p, p));
    disturbs = b.t;
    fails = 1;
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    expect4(b.ctx, NULL, q, zeros, "the caller's buffer");
    expect4(b.ctx, NULL, count, zeros, "the assigned buffer");
    OK(b.ctx, rw_backward(b.t, loss));
    expect4(b.ctx, NULL, count, ones, "after the next try");
    fixture_close(&b);
}

/* The same if a stateful op is the last action of the run, and if there is no memory for the copies for the commits. */
Test(effects, a_stateful_op_at_the_end_of_what_ran_runs_once)
{
    NEEDS_HOST_MEMORY();
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4));
    rw_tensor *const x[] = { rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp) };
    rw_tensor *const in[] = { rw_apply(b.t, &tick, x, 1, NULL, 0, NULL), q };
    cr_assert_not_null(rw_apply(b.t, &store, in, 2, NULL, 0, NULL));
    int failures = 0;
    runs = 0;
    fails = 0;
    for (uint64_t n = 1;; n++) {
        rw_alloc_fail_from(n);
        const rw_status status = rw_eval(b.t, NULL, 0);
        rw_alloc_fail_at(0);
        if (!status) break;
        failures++;
        cr_assert_eq(status, RW_ERR_MEMORY, "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        expect4(b.ctx, NULL, q, zeros, "while it fails");
    }
    cr_expect_gt(failures, 3);
    cr_expect_eq(runs, 1);
    expect4(b.ctx, NULL, q, ramp, "at the end");
    fixture_close(&b);
}

/* The output of a commit is memory that it writes when the step ends: it cannot be read, evaluated or used as an
   operand. */
Test(effects, a_commits_output_is_no_value)
{
    NEEDS_HOST_MEMORY();
    static const float reversed[4] = { 4, 3, 2, 1 };
    struct fixture b = fixture_open(1, 1);
    float got[4];
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                     *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4));
    rw_tensor *const in[] = { q, q };
    OK(b.ctx, rw_write(q, ramp, sizeof ramp));
    rw_tensor *out = rw_apply(b.t, &reverse, in, 2, NULL, 0, NULL);
    cr_assert_not_null(out);
    cr_expect_eq(rw_read(b.t, out, got, sizeof got), RW_ERR_ARGUMENT);
    cr_expect(strstr(rw_error_message(b.ctx), "RW_OP_COMMIT"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_eval(b.t, &out, 1), RW_ERR_ARGUMENT);
    rw_error_clear(b.ctx);
    cr_expect_null(rw_scale(b.t, out, 2));
    rw_error_clear(b.ctx);
    OK(b.ctx, rw_backward(b.t, total(b.t, p)));
    expect4(b.ctx, NULL, q, reversed, "the buffer");
    fixture_close(&b);
}

/* A value that reads the memory of an effect is computed with the effect, not after it. */
Test(effects, happen_with_the_value_that_is_read)
{
    static const float halves[4] = { 0.5f, 0.5f, 0.5f, 0.5f };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4)), *const y = rw_add_scalar(b.t, q, 0.5);
    OK(b.ctx, rw_assign(b.t, q, y));
    expect4(b.ctx, b.t, y, halves, "the value");
    expect4(b.ctx, b.t, q, halves, "the buffer");
    expect4(b.ctx, b.t, y, halves, "the value again");
    fixture_close(&b);
}

Test(effects, happen_where_a_buffer_is_read)
{
    static const float doubled[4] = { 2, 4, 6, 8 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const q = rw_buffer(b.ctx, "q", RW_F32, RW_SHAPE(4)),
                     *const x = rw_input(b.t, RW_F32, RW_SHAPE(4), ramp, sizeof ramp);
    OK(b.ctx, rw_assign(b.t, q, rw_scale(b.t, x, 2)));
    expect4(b.ctx, b.t, q, doubled, "read by its tape");
    fixture_close(&b);
}

/* Fused updates are commits among other actions, and no copy could restore them: a caller's commit, which may fail, is
   refused in the same graph. */
Test(effects, of_a_graph_that_updates_inside_backward)
{
    NEEDS_HOST_MEMORY();
    for (int own = 0; own < 2; own++) {
        struct fixture b = fixture_open(1, 1);
        rw_optimizer *opt = NULL;
        rw_graph *g = NULL;
        rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4, 4)),
                         *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(4, 4)),
                         *const first = rw_buffer(b.ctx, "first", RW_F32, RW_SHAPE(4)),
                         *const second = rw_buffer(b.ctx, "second", RW_F32, RW_SHAPE(4));
        OK(b.ctx, rw_init_normal(p, 0, 1));
        OK(b.ctx, rw_init_normal(w, 0, 1));
        OK(b.ctx, rw_lion_create(&opt, b.ctx, NULL));
        rw_tensor *const y = rw_linear(b.t, rw_tanh(b.t, rw_linear(b.t, p, w, RW_NONE)), w, RW_NONE);
        rw_tensor *const in[] = { rw_reshape(b.t, rw_slice(b.t, y, 0, 0, 1), RW_SHAPE(4)), second };
        OK(b.ctx, rw_assign(b.t, first, rw_add_scalar(b.t, first, 1)));
        if (own) cr_assert_not_null(rw_apply(b.t, &store, in, 2, NULL, 0, NULL));
        const rw_graph_params params = { { rw_record_update_inside(opt) } };
        const rw_status status = rw_graph_create(&g, b.t, total(b.t, y), &params);
        cr_expect_eq(status, own ? RW_ERR_UNSUPPORTED : RW_OK, "%s", rw_error_message(b.ctx));
        if (own) cr_expect(strstr(rw_error_message(b.ctx), "store_commit"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        if (!own) OK(b.ctx, rw_graph_launch(g));
        if (!own) expect4(b.ctx, NULL, first, ones, "after the launch");
        rw_graph_destroy(&g);
        rw_optimizer_destroy(&opt);
        fixture_close(&b);
    }
}

/* The copies count: if a `total:` has no space for them, the step is refused before anything is written. */
Test(effects, copies_for_commits_are_within_the_total)
{
    NEEDS_HOST_MEMORY();
    enum { N = 1 << 18 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(4)),
                     *const big = rw_buffer(b.ctx, "big", RW_F32, RW_SHAPE(N));
    rw_tensor *const in[] = { rw_input(b.t, RW_F32, RW_SHAPE(N), NULL, 0), big };
    OK(b.ctx, ckpt_set_policy(b.t, "total:2200KiB"));
    cr_assert_not_null(rw_apply(b.t, &store, in, 2, NULL, 0, NULL));
    rw_tensor *const loss = total(b.t, rw_mul(b.t, p, p));
    fails = 0;
    cr_expect_eq(rw_backward(b.t, loss), RW_ERR_BUDGET, "a buffer, an input and a copy of a MiB each");
    rw_error_clear(b.ctx);
    OK(b.ctx, ckpt_set_policy(b.t, "total:4MiB"));
    OK(b.ctx, rw_backward(b.t, loss));
    fixture_close(&b);
}
