/*
 * A caller's ops that use rewind/fusion.h: a linear layer whose bias gets its gradient from the op that follows, a
 * built-in one or another op of the caller; an op that reads the parts of a concatenation; and producers. All numbers
 * are small integers or halves, so every sum is exact in any order.
 */
#include "support/plan_queries.h"

#include "record/context.h"
#include "record/tape.h"

#include <rewind/fusion.h>

#include <criterion/criterion.h>
#include <string.h>

enum { ROWS = 4, IN = 3, OUT = 5 };

static rw_tensor *numbers(struct fixture *b, const char *name, rw_shape shape, int salt)
{
    float v[64];
    const int64_t n = rw_shape_numel(shape);
    for (int64_t i = 0; i < n; i++) v[i] = (float)((i * 7 + salt * 3) % 9) - 4;
    rw_tensor *p = rw_param_find(b->ctx, name);
    if (!p) p = rw_param(b->ctx, name, RW_F32, shape);
    cr_assert_eq(rw_write(p, v, (size_t)n * sizeof *v), RW_OK, "%s", rw_error_message(b->ctx));
    return p;
}

static void expect_message(struct fixture *b, rw_status status, const char *text)
{
    cr_expect_eq(rw_error_status(b->ctx), status, "%s", rw_error_message(b->ctx));
    cr_expect(strstr(rw_error_message(b->ctx), text), "\"%s\" is not in: %s", text, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

/* ---- a layer: y = x w^T + bias ---- */

static rw_status layer_check(rw_op_call *call)
{
    const int64_t rows = call->in[0].layout->dim[0], out = call->in[1].layout->dim[0];
    return rw_op_output(call, 0, RW_F32, RW_SHAPE(rows, out));
}

static rw_status layer_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data, *const w = k->in[1].data, *const bias = k->in[2].data;
    const int64_t rows = k->out[0].layout->dim[0], out = k->out[0].layout->dim[1], in = k->in[0].layout->dim[1];
    float *const y = k->out[0].data;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t o = 0; o < out; o++) {
            float sum = bias[o];
            for (int64_t i = 0; i < in; i++) sum += x[r * in + i] * w[o * in + i];
            y[r * out + o] = sum;
        }
    return RW_OK;
}

/* Takes the bias's columns if the op that follows has summed them. */
static rw_status layer_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0)) rw_grad_set(g, 0, rw_matmul(t, dy, rw_grad_input(g, 1)));
    if (rw_grad_wanted(g, 1)) rw_grad_set(g, 1, rw_matmul(t, rw_transpose(t, dy, 0, 1), rw_grad_input(g, 0)));
    if (!rw_grad_wanted(g, 2)) return RW_OK;
    rw_tensor *const columns = rw_grad_column_sums(g, 2);
    return columns ? rw_grad_set_sum(g, 2, columns) : rw_grad_set(g, 2, rw_sum(t, dy, RW_AXES(0), false));
}

HOST_KERNEL_OF(layer_kernel)
static const rw_op_def layer = { .name = "layer", .n_inputs = 3, .n_outputs = 1, .check = layer_check,
                                 .kernel = HOST_KERNEL(layer_kernel), .grad = layer_grad, .bias = 2 };

/* Number of actions of the plan with that op, forward ones too. */
static int actions_of(struct fixture *b, const rw_plan *plan, const char *op)
{
    int n = 0;
    for (size_t i = 0; i < plan->n_actions; i++) {
        const struct rw_node *const node = rw_plan_node(b->t, plan, plan->actions[i].node);
        n += plan->actions[i].kind <= RW_ACTION_BACKWARD && !strcmp(b->ctx->ops[node->op]->name, op);
    }
    return n;
}

static rw_tensor *layer_of(struct fixture *b, rw_tensor *bias)
{
    rw_tensor *const in[] = { numbers(b, "x", RW_SHAPE(ROWS, IN), 1), numbers(b, "w", RW_SHAPE(OUT, IN), 2), bias };
    return rw_apply(b->t, &layer, in, 3, NULL, 0, NULL);
}

/* ---- an op that follows it: y = x / 2, whose rule sums the columns in one op with dx ---- */

static rw_status halve_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status halve_kernel(const rw_kernel *k)
{
    const float *const x = k->in[0].data;
    float *const y = k->out[0].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = x[i] / 2;
    return RW_OK;
}

/* (dy [, sum]) -> dx, columns */
static rw_status halve_columns_check(rw_op_call *call)
{
    const rw_status status = rw_op_output_like(call, 0, 0);
    return status ? status : rw_op_output(call, 1, RW_F32, RW_SHAPE(call->in[0].layout->dim[1]));
}

static rw_status halve_columns_kernel(const rw_kernel *k)
{
    const float *const dy = k->in[0].data, *const sum = rw_kernel_has(k, 1) ? k->in[1].data : NULL;
    const int64_t rows = k->in[0].layout->dim[0], n = k->in[0].layout->dim[1];
    float *const dx = k->out[0].data, *const columns = k->out[1].data;
    for (int64_t c = 0; c < n; c++) columns[c] = sum ? sum[c] : 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < n; c++) {
            dx[r * n + c] = dy[r * n + c] / 2;
            columns[c] += dx[r * n + c];
        }
    return RW_OK;
}

HOST_KERNEL_OF(halve_columns_kernel)
static const rw_op_def halve_columns = { .name = "halve_columns", .n_inputs = RW_OP_VARIADIC, .n_outputs = 2,
                                         .optional = RW_OP_INPUT(1), .check = halve_columns_check,
                                         .kernel = HOST_KERNEL(halve_columns_kernel) };

/* What the rule of `halve` does wrong, or nothing. */
static enum fault { NO_FAULT, UNWANTED, OF_ANOTHER_EXTENT, OF_RANK_2, WITHOUT_A_SUM } fault;

static rw_status set_wrong(rw_grad_call *g, rw_tensor *dx, rw_tensor *columns)
{
    rw_tape *const t = rw_grad_tape(g);
    if (fault == UNWANTED) return rw_grad_set_column_sums(g, 7, columns, false);
    if (fault == OF_ANOTHER_EXTENT) return rw_grad_set_column_sums(g, 0, rw_slice(t, columns, 0, 0, 2), false);
    if (fault == OF_RANK_2) return rw_grad_set_column_sums(g, 0, dx, false);
    return rw_grad_set_column_sums(g, 0, columns, true);
}

static rw_status halve_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *sum, *out[2], *in[2] = { rw_grad_upstream(g, 0) };
    if (!rw_grad_wants_column_sums(g, 0, &sum) || (!sum && !rw_grad_is_whole(g, 0)))
        return rw_grad_set(g, 0, rw_scale(t, in[0], 0.5));
    in[1] = sum;
    rw_tensor *const dx = rw_apply(t, &halve_columns, in, sum ? 2 : 1, NULL, 0, out);
    const rw_status status = rw_grad_set(g, 0, dx);
    if (status) return status;
    return fault ? set_wrong(g, dx, out[1]) : rw_grad_set_column_sums(g, 0, out[1], sum != NULL);
}

HOST_KERNEL_OF(halve_kernel)
static const rw_op_def halve = { .name = "halve", .n_inputs = 1, .n_outputs = 1, .check = halve_check,
                                 .kernel = HOST_KERNEL(halve_kernel), .grad = halve_grad };

/* loss = sum(y * flow) */
static rw_tensor *loss_of(struct fixture *b, rw_tensor *y)
{
    float v[ROWS * OUT];
    for (int i = 0; i < ROWS * OUT; i++) v[i] = (float)(i % 6) - 2;
    return rw_sum_all(b->t, rw_mul(b->t, y, rw_input(b->t, RW_F32, RW_SHAPE(ROWS, OUT), v, sizeof v)));
}

static void expect_bias_gradient(struct fixture *b, rw_tensor *bias, float factor, int steps)
{
    float g[OUT];
    cr_assert_eq(rw_read(NULL, rw_gradient(bias), g, sizeof g), RW_OK, "%s", rw_error_message(b->ctx));
    for (int c = 0; c < OUT; c++) {
        float want = 0;
        for (int r = 0; r < ROWS; r++) want += (float)((r * OUT + c) % 6) - 2;
        cr_expect_eq(g[c], want * factor * (float)steps, "column %d: %g, not %g", c, (double)g[c],
                     (double)(want * factor * (float)steps));
    }
}

/* Under every policy, over two steps, the second of which adds to the gradient. */
Test(op_fusion, an_op_sums_the_columns_of_a_layers_bias)
{
    static const char *const policies[] = { "none", "full", "budget:100%" };
    for (size_t p = 0; p < 3; p++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const bias = numbers(&b, "bias", RW_SHAPE(OUT), 4);
        for (int step = 1; step <= 2; step++) {
            rw_tape_reset(b.t);
            ckpt_set_policy(b.t, policies[p]);
            ckpt_begin(b.t, "layer");
            rw_tensor *const y = rw_apply(b.t, &halve, (rw_tensor *[]){ layer_of(&b, bias) }, 1, NULL, 0, NULL);
            ckpt_end(b.t);
            rw_tensor *const loss = loss_of(&b, y);
            const rw_plan *const plan = step_plan(&b, loss);
            cr_expect_eq(steps_of(&b, plan, "halve_columns"), 1, "%s", policies[p]);
            cr_expect_eq(steps_of(&b, plan, "sum"), 0, "%s: the bias needs no sum of its own", policies[p]);
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s: %s", policies[p], rw_error_message(b.ctx));
            expect_bias_gradient(&b, bias, 0.5f, step);
        }
        fixture_close(&b);
    }
}

/* A built-in op does it for the caller's layer. */
Test(op_fusion, dropout_sums_the_columns_of_a_callers_layer)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const bias = numbers(&b, "bias", RW_SHAPE(OUT), 4);
    rw_tensor *const y = rw_dropout(b.t, layer_of(&b, bias), 0.5), *const loss = rw_sum_all(b.t, y);
    cr_expect_eq(steps_of(&b, step_plan(&b, loss), "dropout_columns"), 1);
    float g[OUT];
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_read(NULL, rw_gradient(bias), g, sizeof g), RW_OK);
    for (int c = 0; c < OUT; c++) cr_expect(g[c] >= 0 && g[c] <= 2 * ROWS && g[c] == 2 * (float)(int)(g[c] / 2),
                                            "2 for each element that is not dropped, not %g", (double)g[c]);
    fixture_close(&b);
}

/* With another use of the bias, or of the layer's result, no columns are wanted, and the gradient is complete. */
Test(op_fusion, nobody_sums_the_columns_of_a_bias_with_another_use)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const bias = numbers(&b, "bias", RW_SHAPE(OUT), 4);
    rw_tensor *const y = rw_apply(b.t, &halve, (rw_tensor *[]){ layer_of(&b, bias) }, 1, NULL, 0, NULL);
    rw_tensor *const loss = loss_of(&b, rw_add(b.t, y, rw_scale(b.t, bias, 0.5)));
    cr_expect_eq(steps_of(&b, step_plan(&b, loss), "halve_columns"), 0);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    expect_bias_gradient(&b, bias, 1, 1);
    fixture_close(&b);
}

Test(op_fusion, wrong_columns_are_refused)
{
    static const char *const texts[] = { [UNWANTED] = "which wants none",
                                         [OF_ANOTHER_EXTENT] = "of another extent or type",
                                         [OF_RANK_2] = "of another rank",
                                         [WITHOUT_A_SUM] = "added to a sum, and there is none" };
    for (fault = UNWANTED; fault <= WITHOUT_A_SUM; fault++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const bias = rw_buffer(b.ctx, "bias", RW_F32, RW_SHAPE(OUT)); /* no parameter's gradient to add to */
        rw_tensor *const of = rw_require_grad(b.t, rw_scale(b.t, bias, 1));
        rw_tensor *const y = rw_apply(b.t, &halve, (rw_tensor *[]){ layer_of(&b, of) }, 1, NULL, 0, NULL);
        cr_expect_eq(rw_backward(b.t, loss_of(&b, y)), RW_ERR_ARGUMENT);
        expect_message(&b, RW_ERR_ARGUMENT, texts[fault]);
        fixture_close(&b);
    }
    fault = NO_FAULT;
}

/* ---- an op that reads the parts of a concatenation: the sum of a's and b's elements, times a number ---- */

struct parts_attrs {
    int64_t n, whole;
};

static int parts_of(const void *attrs, int64_t *ret_whole)
{
    const struct parts_attrs *const a = attrs;
    *ret_whole = a->whole;
    return (int)a->n;
}

static rw_status total_check(rw_op_call *call)
{
    return rw_op_output(call, 0, RW_F32, RW_SHAPE(1));
}

static rw_status total_kernel(const rw_kernel *k)
{
    float sum = 0;
    for (int i = 0; i < k->n_inputs; i++)
        for (int64_t e = 0; e < k->in[i].layout->numel; e++) sum += ((const float *)k->in[i].data)[e];
    *(float *)k->out[0].data = sum;
    return RW_OK;
}

static enum { SOUND, ANOTHER_SHAPE, ANOTHER_TYPE } whole_is;
static rw_status total_grad(rw_grad_call *g)
{
    rw_tensor *const whole = rw_grad_whole(g);
    if (!whole) return rw_grad_set(g, 0, rw_broadcast_to(rw_grad_tape(g), rw_grad_upstream(g, 0),
                                                         rw_tensor_shape(rw_grad_input(g, 0))));
    if (!rw_grad_whole_wanted(g)) return RW_OK;
    if (whole_is == ANOTHER_SHAPE) return rw_grad_set_whole(g, rw_grad_upstream(g, 0));
    rw_tensor *const dx = rw_broadcast_to(rw_grad_tape(g), rw_grad_upstream(g, 0), rw_tensor_shape(whole));
    return rw_grad_set_whole(g, whole_is == ANOTHER_TYPE ? rw_cast(rw_grad_tape(g), dx, RW_F64) : dx);
}

HOST_KERNEL_OF(total_kernel)
static const rw_op_def total_of_parts = { .name = "total_of_parts", .n_inputs = RW_OP_VARIADIC, .n_outputs = 1,
                                          .check = total_check, .kernel = HOST_KERNEL(total_kernel),
                                          .grad = total_grad, .parts = parts_of };

/* The op reads the inputs of x if a concatenation computed it. */
static rw_tensor *total_at(rw_site at, rw_tape *t, rw_tensor *x)
{
    rw_producer producer;
    const bool is_concat = rw_tensor_producer(x, &producer) && !strcmp(producer.op->name, "concat") &&
                           !rw_tensor_is_named_or_marked(x);
    rw_tensor *in[8] = { x };
    const int n = is_concat ? producer.n_inputs : 1;
    for (int i = 0; is_concat && i < n; i++) in[i] = rw_tensor_producer_input(x, i);
    const struct parts_attrs a = { is_concat ? n : 0, is_concat ? rw_tensor_number(x) : 0 };
    return rw_apply_at(at, t, &total_of_parts, in, (size_t)n, &a, sizeof a, NULL);
}

/* The concatenation is not executed; its gradient, and those of its inputs, are as if it had been read. */
Test(op_fusion, an_op_reads_the_parts_of_a_concatenation)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = numbers(&b, "x", RW_SHAPE(2, 3), 1), *const y = numbers(&b, "y", RW_SHAPE(4, 3), 2);
    rw_tensor *const in[] = { rw_scale(b.t, x, 2), rw_scale(b.t, y, 3) };
    rw_tensor *const whole = rw_require_grad(b.t, rw_concat(b.t, in, 2, 0));
    rw_tensor *const loss = rw_scale(b.t, rw_sum_all(b.t, total_at(RW_HERE, b.t, whole)), 5);
    cr_expect_eq(actions_of(&b, step_plan(&b, loss), "concat"), 0);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    float dx[6], dy[12];
    cr_assert_eq(rw_read(NULL, rw_gradient(x), dx, sizeof dx), RW_OK);
    cr_assert_eq(rw_read(NULL, rw_gradient(y), dy, sizeof dy), RW_OK);
    for (int i = 0; i < 6; i++) cr_expect_eq(dx[i], 10);
    for (int i = 0; i < 12; i++) cr_expect_eq(dy[i], 15);
    fixture_close(&b);
}

/* A name or a decision about the concatenation is the caller's, so the op reads the whole. */
Test(op_fusion, a_kept_concatenation_is_decided)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = numbers(&b, "x", RW_SHAPE(2, 3), 1);
    rw_tensor *const in[] = { rw_tanh(b.t, x), rw_exp(b.t, x) };
    rw_tensor *const whole = rw_concat(b.t, in, 2, 0);
    cr_expect(!rw_tensor_is_named_or_marked(whole));
    ckpt_keep(b.t, whole);
    cr_expect(rw_tensor_is_named_or_marked(whole));
    rw_tensor *const loss = rw_sum_all(b.t, total_at(RW_HERE, b.t, whole));
    cr_expect_eq(actions_of(&b, step_plan(&b, loss), "concat"), 1);
    cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(op_fusion, wrong_parts_are_refused)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = numbers(&b, "x", RW_SHAPE(2, 3), 1);
    rw_tensor *in[] = { rw_tanh(b.t, x), rw_exp(b.t, x) };
    rw_tensor *const whole = rw_concat(b.t, in, 2, 0);
    static const struct parts_attrs wrong[] = { { 3, 0 }, { -1, 0 }, { 2, -1 }, { 2, 1000 } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_expect_null(rw_apply(b.t, &total_of_parts, in, 2, &wrong[i], sizeof wrong[i], NULL));
        expect_message(&b, RW_ERR_ARGUMENT, "parts: expected 0 to 2 inputs");
    }
    for (whole_is = ANOTHER_SHAPE; whole_is <= ANOTHER_TYPE; whole_is++) {
        cr_expect_eq(rw_backward(b.t, rw_sum_all(b.t, total_at(RW_HERE, b.t, whole))), RW_ERR_SHAPE);
        expect_message(&b, RW_ERR_SHAPE, "rw_grad_set_whole: dx");
    }
    whole_is = SOUND;
    fixture_close(&b);
}

static rw_status sets_a_whole_without_parts(rw_grad_call *g)
{
    cr_expect_null(rw_grad_whole(g));
    cr_expect(!rw_grad_whole_wanted(g));
    return rw_grad_set_whole(g, rw_grad_upstream(g, 0));
}

static const rw_op_def without_parts = { .name = "without_parts", .n_inputs = 1, .n_outputs = 1, .check = halve_check,
                                         .kernel = HOST_KERNEL(halve_kernel), .grad = sets_a_whole_without_parts };

Test(op_fusion, an_op_without_parts_has_no_whole)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = numbers(&b, "x", RW_SHAPE(2, 3), 1);
    rw_tensor *const y = rw_apply(b.t, &without_parts, &(rw_tensor *){ x }, 1, NULL, 0, NULL);
    cr_expect_eq(rw_backward(b.t, rw_sum_all(b.t, y)), RW_ERR_ARGUMENT);
    expect_message(&b, RW_ERR_ARGUMENT, "expected an op that reads parts of a value");
    fixture_close(&b);
}

/* ---- queries ---- */

Test(op_fusion, producers)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = numbers(&b, "x", RW_SHAPE(2, 3), 1), *const y = rw_tanh(b.t, x), *const z = rw_mul(b.t, y, y);
    rw_producer producer = { 0 };
    cr_assert(rw_tensor_producer(z, &producer));
    cr_expect_str_eq(producer.op->name, "mul");
    cr_expect_eq(producer.n_inputs, 2);
    cr_expect_eq(rw_tensor_producer_input(z, 1), y);
    cr_expect_null(rw_tensor_producer_input(z, 2));
    cr_expect_null(rw_tensor_producer_input(z, -1));
    cr_expect(!rw_tensor_producer(z, NULL));
    rw_tensor *const none[] = { x, rw_gradient(x), NULL, RW_NONE, rw_tensor_producer_input(y, 0),
                                rw_input(b.t, RW_F32, RW_SHAPE(1), &(float){ 1 }, sizeof(float)) };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        cr_expect(!rw_tensor_producer(none[i], &producer), "%zu", i);
        cr_expect_null(rw_tensor_producer_input(none[i], 0), "%zu", i);
    }
    for (size_t i = 0; i < 4; i++) cr_expect_eq(rw_tensor_number(none[i]), -1);
    cr_expect_gt(rw_tensor_number(z), rw_tensor_number(y));
    rw_tape_reset(b.t);
    cr_expect(!rw_tensor_producer(z, &producer), "recorded before a reset");
    cr_expect_eq(rw_tensor_number(z), -1);
    fixture_close(&b);
}

/* ---- sums and sizes ---- */

Test(op_fusion, accumulate_adds_16_bits_to_32)
{
    struct fixture b = fixture_open(1, 1);
    const float v[3] = { 1, -2, 0.5f }, w[3] = { 4, 8, 16.25f };
    rw_tensor *const sum = rw_input(b.t, RW_F32, RW_SHAPE(3), v, sizeof v);
    rw_tensor *const term = rw_input(b.t, RW_F32, RW_SHAPE(3), w, sizeof w);
    float got[3];
    cr_assert_eq(rw_read(b.t, rw_accumulate(b.t, sum, term), got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) cr_expect_eq(got[i], v[i] + w[i]);
    rw_tensor *const wide = rw_accumulate(b.t, sum, rw_cast(b.t, term, RW_BF16));
    cr_expect_eq(rw_tensor_dtype(wide), RW_F32);
    cr_assert_eq(rw_read(b.t, wide, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 3; i++) cr_expect_eq(got[i], v[i] + w[i]);
    cr_expect_null(rw_accumulate(b.t, rw_cast(b.t, sum, RW_BF16), term));
    expect_message(&b, RW_ERR_DTYPE, "accumulate");
    fixture_close(&b);
}

static double bytes_in_check, bytes_in_cost;

static rw_status measuring_check(rw_op_call *call)
{
    bytes_in_check = rw_op_operand_bytes(call);
    const rw_status status = rw_op_check_shape(call, *(const rw_shape *)call->attrs);
    return status ? status : rw_op_output(call, 0, RW_F32, RW_SHAPE(10));
}

static rw_op_cost measuring_cost(const rw_op_call *call)
{
    bytes_in_cost = rw_op_operand_bytes(call);
    return (rw_op_cost){ .bytes = bytes_in_cost };
}

static const rw_op_def measuring = { .name = "measuring", .n_inputs = 1, .n_outputs = 1, .flags = RW_OP_NO_GRADIENT,
                                     .check = measuring_check, .kernel = HOST_KERNEL(total_kernel),
                                     .cost = measuring_cost };

Test(op_fusion, operand_bytes_and_shapes)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = numbers(&b, "x", RW_SHAPE(2, 3), 1);
    const rw_shape sound = RW_SHAPE(3), negative = RW_SHAPE(-3);
    rw_tensor *const y = rw_apply(b.t, &measuring, &(rw_tensor *){ x }, 1, &sound, sizeof sound, NULL);
    cr_assert_not_null(y, "%s", rw_error_message(b.ctx));
    rw_cost cost;
    rw_tensor *const loss = rw_add(b.t, rw_sum_all(b.t, y), rw_sum_all(b.t, x));
    cr_assert_eq(rw_tape_cost(b.t, loss, &cost), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(bytes_in_check, 24, "a check's outputs are not described yet");
    cr_expect_eq(bytes_in_cost, 64);
    cr_expect_eq(rw_op_operand_bytes(NULL), 0);
    cr_expect_null(rw_apply(b.t, &measuring, &(rw_tensor *){ x }, 1, &negative, sizeof negative, NULL));
    expect_message(&b, RW_ERR_SHAPE, "measuring(");
    fixture_close(&b);
}
