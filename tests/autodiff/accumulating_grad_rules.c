/*
 * rw_grad_accumulator() and rw_grad_set_sum(): rules that add to a gradient themselves, which of these sums are written
 * directly to a parameter's gradient, and that neither the old gradient nor a contribution is lost or counted twice.
 * All numbers are small integers: every sum is exact in any order.
 */
#include "support/plan_queries.h"

#include "plan/cache.h"
#include "record/context.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { N = 6 };

static const float ones[N] = { 1, 1, 1, 1, 1, 1 }, xs[N] = { 1, -2, 3, 4, -5, 6 }, ys[N] = { 3, 1, -2, 5, 2, -4 };

static rw_tensor *param(struct fixture *b, const char *name, const float *data)
{
    rw_tensor *const p = rw_param(b->ctx, name, RW_F32, RW_SHAPE(N));
    cr_assert_eq(rw_write(p, data, rw_tensor_bytes(p)), RW_OK);
    return p;
}

static rw_tensor *input(struct fixture *b, const float *data)
{
    return rw_input(b->t, RW_F32, RW_SHAPE(N), data, N * sizeof *data);
}

static rw_tensor *total(struct fixture *b, rw_tensor *x)
{
    return rw_sum(b->t, x, RW_ALL_AXES, false);
}

static void backward(struct fixture *b, rw_tensor *loss)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
}

static void expect_gradient(struct fixture *b, rw_tensor *of, const float *each, float times, const char *what)
{
    float g[N];
    cr_assert_eq(rw_read(b->t, rw_gradient(of), g, sizeof g), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (int i = 0; i < N; i++)
        cr_assert_eq(g[i], times * each[i], "%s, element %d: %g, not %g", what, i, (double)g[i],
                     (double)(times * each[i]));
}

/* ---- a product of two inputs whose rule adds in one of several ways ---- */

enum way {
    BOTH_ASKED_FIRST,
    IN_TURN,
    SECOND_HANDED_OVER_FIRST,
    ASKED_AND_LEFT,
    SECOND_ASKED_FIRST,
    WITHOUT_ASKING,
    ASKED_TWICE,
    ASKED_AGAIN_AFTER,
    WAYS
};

/* sum + a b by one node, which may overwrite the sum or not. */
static rw_status madd_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status madd_kernel(const rw_kernel *k)
{
    const float *const sum = k->in[0].data, *const a = k->in[1].data, *const b = k->in[2].data;
    float *const y = k->out[0].data;
    if (k->op->inplace) {
        for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = sum[i] + a[i] * b[i];
        return RW_OK;
    }
    /* A kernel may do that if it was not promised the sum's memory. */
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] = 0;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] += sum[i];
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) y[i] += a[i] * b[i];
    return RW_OK;
}

/* Differentiated by the library's own ops. */
static rw_status madd_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_grad_upstream(g, 0);
    if (rw_grad_wanted(g, 0) && rw_grad_set(g, 0, dy)) return RW_ERR_ARGUMENT;
    for (int i = 1; i < 3; i++)
        if (rw_grad_wanted(g, i)) rw_grad_set(g, i, rw_mul(t, dy, rw_grad_input(g, 3 - i)));
    return RW_OK;
}

HOST_KERNEL_OF(madd_kernel)
static const rw_op_def madd_over = { .name = "madd_over",
                                     .n_inputs = 3,
                                     .n_outputs = 1,
                                     .inplace = RW_INPLACE({ 0, 0 }),
                                     .check = madd_check,
                                     .kernel = HOST_KERNEL(madd_kernel),
                                     .grad = madd_grad };
static const rw_op_def madd_beside = { .name = "madd_beside", .n_inputs = 3, .n_outputs = 1, .check = madd_check,
                                       .kernel = HOST_KERNEL(madd_kernel), .grad = madd_grad };

struct times_attrs {
    int32_t way, over;
};

static rw_tensor *sum_of(rw_grad_call *g, rw_tensor *addend, int other)
{
    const struct times_attrs *const a = rw_grad_attrs(g);
    rw_tensor *const in[] = { addend, rw_grad_upstream(g, 0), rw_grad_input(g, other) };
    if (!addend) return rw_mul(rw_grad_tape(g), in[1], in[2]);
    return rw_apply(rw_grad_tape(g), a->over ? &madd_over : &madd_beside, in, 3, NULL, 0, NULL);
}

static rw_status add_to(rw_grad_call *g, int i)
{
    return rw_grad_set_sum(g, i, sum_of(g, rw_grad_accumulator(g, i), 1 - i));
}

static rw_status both_asked_first(rw_grad_call *g, bool second_first)
{
    rw_tensor *addend[2], *sums[2];
    for (int i = 0; i < 2; i++) addend[second_first ? 1 - i : i] = rw_grad_accumulator(g, second_first ? 1 - i : i);
    for (int i = 0; i < 2; i++) sums[i] = sum_of(g, addend[i], 1 - i);
    for (int i = 0; i < 2; i++) {
        const rw_status status = rw_grad_set_sum(g, i, sums[i]);
        if (status) return status;
    }
    return RW_OK;
}

/* The rule of the product: it adds in the way that its attribute selects, right or wrong. */
static rw_status times_grad(rw_grad_call *g)
{
    const enum way way = (enum way)((const struct times_attrs *)rw_grad_attrs(g))->way;
    rw_tensor *ignored = NULL;
    rw_status status = RW_OK;
    switch (way) {
    case BOTH_ASKED_FIRST:
    case SECOND_ASKED_FIRST: return both_asked_first(g, way == SECOND_ASKED_FIRST);
    case SECOND_HANDED_OVER_FIRST:
        status = rw_grad_set(g, 1, sum_of(g, NULL, 0));
        return status ? status : add_to(g, 0);
    case ASKED_AND_LEFT:
        for (int i = 0; !status && i < 2; i++) {
            ignored = rw_grad_accumulator(g, i);
            status = rw_grad_set(g, i, sum_of(g, NULL, 1 - i));
        }
        return status;
    case WITHOUT_ASKING:
        for (int i = 0; !status && i < 2; i++) status = rw_grad_set_sum(g, i, sum_of(g, NULL, 1 - i));
        return status;
    case ASKED_TWICE:
        ignored = rw_grad_accumulator(g, 0);
        if (ignored != rw_grad_accumulator(g, 0)) return RW_ERR_ARGUMENT;
        status = add_to(g, 0);
        return status ? status : add_to(g, 1);
    case ASKED_AGAIN_AFTER: /* the second time it returns the sum that it was given: nothing is added to it */
        status = add_to(g, 0);
        if (!status && rw_grad_wanted(g, 0)) status = rw_grad_set_sum(g, 0, rw_grad_accumulator(g, 0));
        return status ? status : add_to(g, 1);
    default:
        status = add_to(g, 0);
        return status ? status : add_to(g, 1);
    }
}

static rw_status times_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status times_kernel(const rw_kernel *k)
{
    const float *const a = k->in[0].data, *const b = k->in[1].data;
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) ((float *)k->out[0].data)[i] = a[i] * b[i];
    return RW_OK;
}

HOST_KERNEL_OF(times_kernel)
static const rw_op_def times_op = { .name = "times", .n_inputs = 2, .n_outputs = 1, .check = times_check,
                                    .kernel = HOST_KERNEL(times_kernel), .grad = times_grad };

static rw_tensor *times(struct fixture *b, rw_tensor *x, rw_tensor *y, enum way way, bool over)
{
    const struct times_attrs a = { (int32_t)way, over };
    rw_tensor *const in[] = { x, y };
    return rw_apply(b->t, &times_op, in, 2, &a, sizeof a, NULL);
}

/* x x + x y + x x + z x: d/dx = 4 x + y + z. over: whether the first (2) and the second addition (1) overwrite the
   sum. */
static void same_value_twice(enum way way, int over, bool on_the_way)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const p = param(&b, "p", xs), *const q = param(&b, "q", ys);
    float each[N];
    for (int i = 0; i < N; i++) each[i] = 4 * xs[i] + 2 * ys[i];
    for (int step = 1; step < 4; step++) {
        rw_tensor *const x = on_the_way ? rw_require_grad(b.t, rw_scale(b.t, p, 1)) : p;
        rw_tensor *const z = input(&b, ys);
        rw_tensor *const terms[] = { times(&b, x, x, way, over & 1), times(&b, x, q, way, over & 1),
                                     times(&b, x, x, way, over & 1), times(&b, z, x, way, over & 2) };
        rw_tensor *sum = terms[0];
        for (int i = 1; i < 4; i++) sum = rw_add(b.t, sum, terms[i]);
        rw_tensor *const loss = total(&b, sum);
        cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
        backward(&b, loss);
        expect_gradient(&b, p, each, (float)step, "p");
        expect_gradient(&b, q, xs, (float)step, "q");
        if (on_the_way) expect_gradient(&b, x, each, 1, "on the way");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

Test(accumulating_grad_rules, one_value_as_two_inputs)
{
    for (int way = 0; way < WAYS; way++)
        for (int over = 0; over < 4; over++)
            for (int on_the_way = 0; on_the_way < 2; on_the_way++)
                same_value_twice((enum way)way, over, on_the_way);
}

/* The library's own op: the second input's contribution is added to the first one's product. */
Test(accumulating_grad_rules, a_matrix_times_itself)
{
    struct fixture b = fixture_open(1, 1);
    float m[4] = { 1, 2, 3, -4 }, g[4];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(2, 2));
    cr_assert_eq(rw_write(w, m, sizeof m), RW_OK);
    for (int step = 1; step < 4; step++) {
        rw_tensor *const loss = total(&b, rw_matmul(b.t, w, w));
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "matmul"), 0);
        cr_expect_eq(steps_of(&b, plan, "matmul_add"), 2);
        cr_expect_eq(steps_of(&b, plan, "accumulate") + steps_of(&b, plan, "contiguous"), 0);
        backward(&b, loss);
        cr_assert_eq(rw_read(NULL, rw_gradient(w), g, sizeof g), RW_OK);
        /* sum of w w: d/dw[i][j] = (row sums of w)[j] + (column sums of w)[i] */
        const float rows[] = { m[0] + m[1], m[2] + m[3] }, columns[] = { m[0] + m[2], m[1] + m[3] };
        for (int i = 0; i < 4; i++) cr_expect_eq(g[i], (float)step * (rows[i % 2] + columns[i / 2]), "%d", i);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* x x x by nested ops that add: d/dx = 3 x^2 = g, d(sum of g)/dx = 6 x. */
Test(accumulating_grad_rules, a_sum_is_differentiated_again)
{
    for (int way = 0; way < WAYS; way++)
        for (int over = 0; over < 2; over++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *const p = param(&b, "p", xs);
            for (int step = 1; step < 3; step++) {
                rw_tensor *g = NULL;
                rw_tensor *const y = times(&b, times(&b, p, p, (enum way)way, over), p, (enum way)way, over);
                cr_assert_eq(rw_grad(b.t, total(&b, y), (rw_tensor *[]){ p }, 1, &g), RW_OK, "%s",
                             rw_error_message(b.ctx));
                backward(&b, total(&b, g));
                expect_gradient(&b, p, xs, 6 * (float)step, "second order");
                rw_tape_reset(b.t);
            }
            fixture_close(&b);
        }
}

/* ---- where the sum of a parameter is written ---- */

/* Three products of one weight: their sum is accumulated in the gradient's memory. */
Test(accumulating_grad_rules, no_second_buffer_for_a_weight_that_is_used_several_times)
{
    static float zeros[2 * 512];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(512, 512));
    for (int step = 0; step < 3; step++) {
        rw_tensor *y = rw_input(b.t, RW_F32, RW_SHAPE(2, 512), zeros, sizeof zeros);
        for (int i = 0; i < 3; i++) y = rw_linear(b.t, y, w, RW_NONE);
        rw_tensor *const loss = total(&b, rw_mul(b.t, y, y));
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "matmul_add"), 3);
        cr_expect_lt(plan->largest_live, rw_tensor_bytes(w) / 2, "%d: %d bytes", step, (int)plan->largest_live);
        backward(&b, loss);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The product is a matrix, the parameter has another shape: the bytes are the same, and nothing is copied. */
Test(accumulating_grad_rules, a_sum_in_another_shape)
{
    struct fixture b = fixture_open(1, 1);
    const rw_shape shape = RW_SHAPE(2, 1, 3);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, shape), *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1, 3));
    rw_write(x, xs, sizeof xs);
    rw_write(w, ys, 3 * sizeof *ys);
    for (int step = 1; step < 4; step++) {
        rw_tensor *const y = rw_add(b.t, rw_linear(b.t, x, w, RW_NONE), rw_linear(b.t, x, w, RW_NONE));
        const float weights[2] = { 1, 2 };
        rw_tensor *const loss = total(
            &b, rw_mul(b.t, y, rw_input(b.t, RW_F32, RW_SHAPE(2, 1, 1), weights, sizeof weights)));
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "contiguous") + steps_of(&b, plan, "accumulate"), 0);
        backward(&b, loss);
        expect_gradient(&b, x, (const float[]){ 3, 1, -2, 6, 2, -4 }, 2 * (float)step, "x");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* Tied embeddings: the rows of tokens are added in place to the result of the head's product. */
Test(accumulating_grad_rules, a_table_that_is_the_head_too)
{
    static const int32_t tokens[4] = { 3, 70, 3, 1 };
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(512, 64));
    float once[512], now[512];
    for (int step = 0; step < 3; step++) {
        rw_init_constant(table, 1);
        rw_tensor *const x = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(4), tokens, sizeof tokens));
        rw_tensor *const y = rw_linear(b.t, x, table, RW_NONE), *const loss = total(&b, rw_mul(b.t, y, y));
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "embedding_backward"), 1);
        cr_expect_eq(steps_of(&b, plan, "matmul_add"), 1);
        cr_expect_eq(steps_of(&b, plan, "accumulate"), 1, "of the square alone");
        cr_expect_lt(plan->largest_live, rw_tensor_bytes(table) / 2, "%d: %d bytes", step, (int)plan->largest_live);
        backward(&b, loss);
        float *const all = malloc(rw_tensor_bytes(table));
        cr_assert_eq(rw_read(NULL, rw_gradient(table), all, rw_tensor_bytes(table)), RW_OK);
        for (int row = 0; row < 512; row++) now[row] = all[64 * row + row % 64];
        free(all);
        if (step == 0) memcpy(once, now, sizeof once);
        for (int row = 0; row < 512; row++) cr_assert_eq(now[row], (float)(step + 1) * once[row], "row %d", row);
        /* y = 64 everywhere, dy = 128: 4 rows of ones by the head; for each token with that row, 512 times dy */
        cr_assert(once[0] == 4 * 128 && once[1] == 4 * 128 + 512 * 128 && once[3] == 4 * 128 + 2 * 512 * 128);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* y = t0 t1 + 2 t1 t2, with rows by index: g = (t1, t0 + 2 t2, 2 t1), and d(g g)/dt = (2 g1, 10 t1, 4 g1). */
Test(accumulating_grad_rules, a_table_is_differentiated_again)
{
    static const int32_t left[3] = { 0, 1, 1 }, right[3] = { 1, 2, 2 };
    static const float rows[3] = { 3, -2, 5 }, expected[3] = { 2 * 13, -10 * 2, 4 * 13 };
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(3, 1));
    rw_write(table, rows, sizeof rows);
    for (int step = 1; step < 3; step++) {
        float got[3];
        rw_tensor *g = NULL;
        rw_tensor *const x = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(3), left, sizeof left));
        rw_tensor *const y = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(3), right, sizeof right));
        cr_assert_eq(rw_grad(b.t, total(&b, rw_mul(b.t, x, y)), (rw_tensor *[]){ table }, 1, &g), RW_OK);
        rw_tensor *const loss = total(&b, rw_mul(b.t, g, g));
        cr_expect_eq(steps_of(&b, step_plan(&b, loss), "embedding_backward"), 4);
        backward(&b, loss);
        cr_assert_eq(rw_read(NULL, rw_gradient(table), got, sizeof got), RW_OK);
        for (int i = 0; i < 3; i++) cr_assert_eq(got[i], (float)step * expected[i], "row %d: %g", i, (double)got[i]);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* x + f(norm(x)), twice: the norms add to the residual stream's gradient. */
Test(accumulating_grad_rules, a_residual_stream)
{
    for (int rms = 0; rms < 2; rms++) {
        struct fixture b = fixture_open(1, 2);
        rw_tensor *const p = param(&b, "p", xs), *const gain = param(&b, "gain", ones), *x = rw_add(b.t, p, p);
        for (int l = 0; l < 2; l++) {
            rw_tensor *const h = rms ? rw_rmsnorm(b.t, x, gain, 1e-5f) : rw_layernorm(b.t, x, gain, gain, 1e-5f);
            x = rw_add(b.t, x, rw_tanh(b.t, h));
        }
        const rw_plan *const plan = step_plan(&b, total(&b, rw_mul(b.t, x, input(&b, ys))));
        /* layernorm's weight and bias are one value: its two gradients are added afterwards */
        cr_expect_eq(steps_of(&b, plan, rms ? "rmsnorm_backward_add" : "layernorm_backward"), 2);
        cr_expect_eq(steps_of(&b, plan, "accumulate"), rms ? 2 : 6, "of the gains and of p: %d",
                     steps_of(&b, plan, "accumulate"));
        fixture_close(&b);
    }
}

/* A gradient to which nothing flows is unchanged. */
Test(accumulating_grad_rules, a_parameter_that_no_loss_reaches)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(&b, "p", xs), *const q = param(&b, "q", ys);
    cr_assert_eq(rw_write(rw_gradient(q), ys, sizeof ys), RW_OK);
    for (int step = 1; step < 3; step++) {
        rw_tensor *const unused = rw_mul(b.t, q, p), *const loss = total(&b, rw_mul(b.t, p, input(&b, ys)));
        cr_assert_not_null(unused);
        cr_expect_eq(steps_of(&b, step_plan(&b, loss), "contiguous"), 0, "copied for nothing");
        backward(&b, loss);
        expect_gradient(&b, p, ys, (float)step, "p");
        expect_gradient(&b, q, ys, 1, "q");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* y = x0, with a rule that misuses the sum: it returns the sum's old contents as the other input's gradient, too. */
static rw_status nosy_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const addend = rw_grad_accumulator(g, 0);
    rw_tensor *const in[] = { addend, rw_grad_upstream(g, 0), rw_grad_input(g, 1) };
    if (!addend) return rw_grad_set(g, 0, rw_mul(t, in[1], in[2]));
    const rw_status status = rw_grad_set_sum(g, 0, rw_apply(t, &madd_over, in, 3, NULL, 0, NULL));
    return status ? status : rw_grad_set(g, 1, rw_mul(t, addend, rw_grad_upstream(g, 0)));
}

static rw_status first_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

HOST_KERNEL_OF(first_kernel)
static const rw_op_def nosy = { .name = "nosy", .n_inputs = 2, .n_outputs = 1, .check = times_check,
                                .kernel = HOST_KERNEL(first_kernel), .grad = nosy_grad };

Test(accumulating_grad_rules, a_rule_that_reads_the_old_gradient_afterwards)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(&b, "p", xs), *const q = param(&b, "q", ys);
    cr_assert_eq(rw_write(rw_gradient(p), xs, sizeof xs), RW_OK);
    const float sum[N] = { 1 + 3, -2 + 1, 3 - 2, 4 + 5, -5 + 2, 6 - 4 };
    backward(&b, total(&b, rw_apply(b.t, &nosy, ((rw_tensor *[]){ p, q }), 2, NULL, 0, NULL)));
    expect_gradient(&b, p, sum, 1, "p");
    expect_gradient(&b, q, xs, 1, "what p's gradient was");
    fixture_close(&b);
}

/* A rule with nothing to add returns the sum unchanged. */
static rw_status silent_grad(rw_grad_call *g)
{
    rw_tensor *const addend = rw_grad_accumulator(g, 0);
    return addend ? rw_grad_set_sum(g, 0, addend) : RW_OK;
}

static const rw_op_def silent = { .name = "silent", .n_inputs = 2, .n_outputs = 1, .check = times_check,
                                  .kernel = HOST_KERNEL(first_kernel), .grad = silent_grad };

Test(accumulating_grad_rules, a_rule_that_adds_nothing)
{
    for (int use = 0; use < 3; use++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = param(&b, "p", xs);
        cr_assert_eq(rw_write(rw_gradient(p), xs, sizeof xs), RW_OK);
        rw_tensor *const x = input(&b, ys);
        rw_tensor *const quiet = rw_apply(b.t, &silent, ((rw_tensor *[]){ p, x }), 2, NULL, 0, NULL);
        rw_tensor *const loud = rw_mul(b.t, p, input(&b, xs));
        rw_tensor *const both = use == 1 ? rw_add(b.t, quiet, loud) : rw_add(b.t, loud, quiet);
        rw_tensor *const loss = total(&b, use ? both : quiet);
        if (use == 0) rw_require_grad(b.t, x);
        backward(&b, loss);
        expect_gradient(&b, p, xs, use ? 2 : 1, "p");
        fixture_close(&b);
    }
}

/* An input whose gradient is requested: it does not include the old contents of parameters' gradients. */
Test(accumulating_grad_rules, a_leaf_that_is_requested)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(&b, "p", ys);
    for (int step = 1; step < 4; step++) {
        rw_tensor *const x = rw_require_grad(b.t, input(&b, xs));
        rw_tensor *const shared = rw_add(b.t, p, x); /* both have the same gradient */
        rw_tensor *const y = rw_add(b.t, times(&b, shared, shared, IN_TURN, true), times(&b, x, x, IN_TURN, true));
        backward(&b, total(&b, y));
        float both[N], alone[N];
        for (int i = 0; i < N; i++) alone[i] = 2 * (xs[i] + ys[i]), both[i] = alone[i] + 2 * xs[i];
        expect_gradient(&b, x, both, 1, "the input");
        expect_gradient(&b, p, alone, (float)step, "the parameter");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* Whether gradients have contents to add to is determined when backward runs: one plan serves clear gradients and
   others. */
Test(accumulating_grad_rules, one_plan_whatever_gradients_hold)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(&b, "p", xs);
    rw_tensor *const loss = total(&b, times(&b, p, p, IN_TURN, true));
    const struct rw_request request = { .kind = RW_PLAN_STEP, .values = &loss->id, .n_values = 1,
                                        .policy = &b.t->policy };
    rw_plan *clear = NULL, *holding = NULL;
    cr_assert_eq(rw_plan_get(b.t, &request, &clear), RW_OK);
    cr_assert_eq(rw_write(rw_gradient(p), xs, sizeof xs), RW_OK);
    cr_assert_eq(rw_plan_get(b.t, &request, &holding), RW_OK);
    cr_expect_eq(clear, holding);
    fixture_close(&b);
}

/* ---- gradients that the program itself reads ---- */

/* The loss contains p's gradient as it was at recording; backward reads it for q, late, or in a replay. */
Test(accumulating_grad_rules, a_program_that_reads_the_old_gradient)
{
    static const char *const policies[] = { "none", "full" };
    for (int i = 0; i < 2; i++)
        for (int uses = 1; uses < 3; uses++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *const q = param(&b, "q", ones), *const p = param(&b, "p", xs);
            cr_assert_eq(rw_write(rw_gradient(p), ys, sizeof ys), RW_OK);
            cr_assert_eq(ckpt_set_policy(b.t, policies[i]), RW_OK);
            ckpt_begin(b.t, "r");
            rw_tensor *const seen = rw_scale(b.t, rw_gradient(p), 2); /* in the region: recomputed under "full" */
            rw_tensor *y = rw_mul(b.t, rw_mul(b.t, q, seen), rw_gradient(p));
            ckpt_end(b.t);
            for (int k = 0; k < uses; k++) y = rw_add(b.t, y, times(&b, p, input(&b, xs), IN_TURN, true));
            backward(&b, total(&b, y));
            float dq[N], dp[N];
            for (int k = 0; k < N; k++) dq[k] = 2 * ys[k] * ys[k], dp[k] = ys[k] + (float)uses * xs[k];
            expect_gradient(&b, q, dq, 1, policies[i]);
            expect_gradient(&b, p, dp, 1, policies[i]);
            fixture_close(&b);
        }
}

/* Cleared without having been written: every reader finds zeros, in forward, late and in replays. */
Test(accumulating_grad_rules, a_program_that_reads_a_cleared_gradient)
{
    static const char *const policies[] = { "none", "full" };
    static const float zeros[N];
    for (int i = 0; i < 2; i++) {
        struct fixture b = fixture_open(1, 1);
        float seen[N];
        rw_tensor *const q = param(&b, "q", ones), *const p = param(&b, "p", xs);
        cr_assert_eq(rw_write(rw_gradient(p), ys, sizeof ys), RW_OK);
        rw_zero_grad(b.ctx);
        rw_tensor *const twice = rw_add(b.t, rw_gradient(p), rw_gradient(p));
        cr_assert_eq(rw_read(b.t, twice, seen, sizeof seen), RW_OK);
        cr_expect_arr_eq(seen, zeros, sizeof seen);
        rw_tape_reset(b.t);
        cr_assert_eq(ckpt_set_policy(b.t, policies[i]), RW_OK);
        ckpt_begin(b.t, "r");
        rw_tensor *const y = rw_mul(b.t, rw_mul(b.t, q, rw_scale(b.t, rw_gradient(p), 2)), input(&b, xs));
        ckpt_end(b.t);
        backward(&b, total(&b, rw_add(b.t, y, times(&b, p, input(&b, xs), IN_TURN, true))));
        expect_gradient(&b, q, zeros, 1, policies[i]);
        expect_gradient(&b, p, xs, 1, policies[i]);
        fixture_close(&b);
    }
}

/* Two tapes alternating, as in a pipeline: the first backward writes the gradient that the second adds to, and values
   that the second one's forward has computed are not recomputed. */
Test(accumulating_grad_rules, backwards_of_two_tapes_whose_forwards_ran_before)
{
    struct fixture b = fixture_open(1, 1);
    rw_tape *second = NULL;
    cr_assert_eq(rw_tape_create(&second, b.ctx), RW_OK);
    rw_tensor *const p = param(&b, "p", xs);
    float d[N];
    for (int i = 0; i < N; i++) d[i] = 2 * xs[i];
    for (int step = 0; step < 3; step++) {
        rw_tape *const t[] = { b.t, second };
        rw_tensor *loss[2];
        counted_clear();
        for (int k = 0; k < 2; k++) {
            loss[k] = rw_sum(t[k], counted_square(t[k], p, k), RW_ALL_AXES, false);
            rw_item(t[k], loss[k]);
        }
        for (int k = 0; k < 2; k++) cr_assert_eq(rw_backward(t[k], loss[k]), RW_OK, "%s", rw_error_message(b.ctx));
        for (int k = 0; k < 2; k++) cr_expect_eq(counted_runs[k], 1, "tape %d: %d runs", k, counted_runs[k]);
        expect_gradient(&b, p, d, 2, "both");
        rw_zero_grad(b.ctx);
        for (int k = 0; k < 2; k++) rw_tape_reset(t[k]);
    }
    rw_tape_destroy(&second);
    fixture_close(&b);
}

/* Between reading a loss and its backward: the contents of gradients are determined when backward runs. */
Test(accumulating_grad_rules, gradients_that_are_cleared_or_written_after_the_loss_was_read)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(&b, "p", xs);
    for (int step = 0; step < 4; step++) {
        rw_tensor *const loss = total(&b, rw_mul(b.t, p, input(&b, ys)));
        cr_assert_eq(rw_item(b.t, loss), 3 - 2 - 6 + 20 - 10 - 24);
        if (step % 2) rw_zero_grad(b.ctx);
        else cr_assert_eq(rw_write(rw_gradient(p), ys, sizeof ys), RW_OK);
        backward(&b, loss);
        expect_gradient(&b, p, ys, step % 2 ? 1 : 2, step % 2 ? "cleared" : "written");
        if (!(step % 2)) rw_zero_grad(b.ctx);
        if (step == 2) cr_assert_eq(rw_write(rw_gradient(p), xs, sizeof xs), RW_OK);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* ---- invalid rules ---- */

static int wrong;

static rw_status wrong_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const addend = rw_grad_accumulator(g, 0);
    if (addend) cr_assert(rw_shape_equal(rw_tensor_shape(addend), RW_SHAPE(N)));
    if (wrong == 0) return rw_grad_set_sum(g, 0, rw_reshape(t, rw_grad_upstream(g, 0), RW_SHAPE(2, N / 2)));
    if (wrong == 1) return rw_grad_set_sum(g, 0, rw_cast(t, rw_grad_upstream(g, 0), RW_F64));
    if (wrong == 2) return rw_grad_set_sum(g, 0, NULL);
    rw_tensor *const in[] = { addend, addend, addend };
    if (addend) rw_apply(t, &madd_over, in, 3, NULL, 0, NULL);
    return RW_ERR_UNSUPPORTED;
}

static const rw_op_def wrong_op = { .name = "wrong", .n_inputs = 2, .n_outputs = 1, .check = times_check,
                                    .kernel = HOST_KERNEL(first_kernel), .grad = wrong_grad };

Test(accumulating_grad_rules, refused)
{
    static const rw_status expected[] = { RW_ERR_SHAPE, RW_ERR_SHAPE, RW_ERR_ARGUMENT, RW_ERR_UNSUPPORTED };
    for (wrong = 0; wrong < 4; wrong++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const p = param(&b, "p", xs);
        cr_assert_eq(rw_write(rw_gradient(p), xs, sizeof xs), RW_OK);
        rw_tensor *const y = rw_apply(b.t, &wrong_op, ((rw_tensor *[]){ p, p }), 2, NULL, 0, NULL);
        rw_tensor *const loss = total(&b, rw_add(b.t, y, rw_mul(b.t, p, p)));
        const size_t nodes = rw_tape_nodes(b.t);
        cr_assert_eq(rw_backward(b.t, loss), expected[wrong], "%d: %s", wrong, rw_error_message(b.ctx));
        cr_assert(strstr(rw_error_message(b.ctx), "wrong"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_eq(rw_tape_nodes(b.t), nodes);
        expect_gradient(&b, p, xs, 1, "as before");
        fixture_close(&b);
    }
}

/* A micro-batch without rows: an empty product is added to the weight's gradient. */
Test(accumulating_grad_rules, a_batch_of_nothing_adds_nothing)
{
    enum { IN = 3, OUT = 2 };
    struct fixture b = fixture_open(1, 1);
    static const float x[2 * IN] = { 1, 2, 3, 4, 5, 6 };
    float before[OUT * IN], after[OUT * IN];
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(OUT, IN));
    rw_init_constant(w, 1);
    for (int64_t rows = 2; rows >= 0; rows -= 2) {
        rw_tensor *const y = rw_linear(
            b.t, rw_input(b.t, RW_F32, RW_SHAPE(rows, IN), rows ? x : NULL, (size_t)(rows * IN) * sizeof *x), w,
            RW_NONE);
        backward(&b, total(&b, y));
        cr_assert_eq(rw_read(NULL, rw_gradient(w), rows ? before : after, sizeof after), RW_OK);
        rw_tape_reset(b.t);
    }
    for (int i = 0; i < OUT * IN; i++)
        cr_assert(before[i] == x[i % IN] + x[IN + i % IN] && after[i] == before[i], "%d", i);
    fixture_close(&b);
}
