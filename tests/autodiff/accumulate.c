/*
 * Gradients that are accumulated over the uses of a value and over micro-batches: if no other op reads a product of
 * backward, one node computes and adds it, instead of computing it first and adding it then. The bytes are the same
 * under every policy. When results are compared with anything but another policy, numbers are small integers, so every
 * sum is exact.
 */
#include "support/plan_queries.h"

#include "ops/matmul/matmul.h"
#include "record/context.h"
#include "record/tape.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static const char *const policies[] = { "full",    "selective:outer", "selective:middle,inner", "uniform:2",
                                        "block:1", "ops:linear",      "ops:layernorm,gelu",     "names:keep=up" };
#define POLICIES (sizeof policies / sizeof *policies)

static void expect_steps(struct fixture *b, rw_tensor *loss, int products, int added, int sums)
{
    const rw_plan *const plan = step_plan(b, loss);
    cr_expect_eq(steps_of(b, plan, "matmul"), products, "matmul: %d", steps_of(b, plan, "matmul"));
    cr_expect_eq(steps_of(b, plan, "matmul_add"), added, "matmul_add: %d", steps_of(b, plan, "matmul_add"));
    cr_expect_eq(steps_of(b, plan, "accumulate"), sums, "accumulate: %d", steps_of(b, plan, "accumulate"));
}

static float whole_number(int64_t i, int salt)
{
    return (float)((i * 7 + salt * 5 + i * i % 11) % 9 - 4);
}

static void fill(float *to, int64_t n, int salt)
{
    for (int64_t i = 0; i < n; i++) to[i] = whole_number(i, salt);
}

static rw_tensor *param(struct fixture *b, const char *name, rw_shape shape, int salt)
{
    float data[4096];
    rw_tensor *const p = rw_param(b->ctx, name, RW_F32, shape);
    fill(data, rw_shape_numel(shape), salt);
    cr_assert_eq(rw_write(p, data, rw_tensor_bytes(p)), RW_OK);
    return p;
}

static rw_tensor *input(struct fixture *b, rw_shape shape, int salt)
{
    float data[4096];
    fill(data, rw_shape_numel(shape), salt);
    return rw_input(b->t, RW_F32, shape, data, (size_t)rw_shape_numel(shape) * sizeof *data);
}

static rw_tensor *total(rw_tape *t, rw_tensor *y)
{
    float data[4096];
    fill(data, rw_shape_numel(rw_tensor_shape(y)), 3);
    return rw_sum(t,
                  rw_mul(t, y,
                         rw_input(t, RW_F32, rw_tensor_shape(y), data,
                                  (size_t)rw_shape_numel(rw_tensor_shape(y)) * sizeof *data)),
                  RW_ALL_AXES, false);
}

static void read_gradient(rw_tensor *p, float *to)
{
    cr_assert_eq(rw_read(NULL, rw_gradient(p), to, rw_tensor_bytes(p)), RW_OK);
}

static void backward(struct fixture *b, rw_tensor *loss)
{
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
}

/* The gradient must be `times` the one after one step. */
static void expect_times(rw_tensor *p, const float *once, int times, const char *what)
{
    float now[4096];
    read_gradient(p, now);
    for (int64_t i = 0; i < rw_shape_numel(rw_tensor_shape(p)); i++)
        cr_assert_eq(now[i], (float)times * once[i], "%s, element %d: %g, not %d times %g", what, (int)i,
                     (double)now[i], times, (double)once[i]);
}

/* ---- over micro-batches ---- */

static rw_tensor *layer(struct fixture *b, rw_tensor *w)
{
    return total(b->t, rw_linear(b->t, input(b, RW_SHAPE(5, 16), 1), w, RW_NONE));
}

Test(accumulate, a_weight_gradient_is_added_to_by_one_node)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const w = param(&b, "w", RW_SHAPE(24, 16), 2), *loss = layer(&b, w);
    float once[24 * 16];
    expect_steps(&b, loss, 0, 1, 0);
    backward(&b, loss);
    read_gradient(w, once);
    for (int times = 2; times < 5; times++) {
        loss = layer(&b, w);
        expect_steps(&b, loss, 0, 1, 0);
        backward(&b, loss);
        expect_times(w, once, times, "micro-batches");
    }
    rw_zero_grad(b.ctx);
    loss = layer(&b, w);
    expect_steps(&b, loss, 0, 1, 0);
    backward(&b, loss);
    expect_times(w, once, 1, "cleared");
    fixture_close(&b);
}

Test(accumulate, no_second_buffer_for_a_weight_gradient)
{
    static float zeros[2 * 512];
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(512, 512));
    for (int step = 0; step < 2; step++) {
        rw_tensor *const y = rw_linear(b.t, rw_input(b.t, RW_F32, RW_SHAPE(2, 512), zeros, sizeof zeros), w, RW_NONE);
        rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "matmul_add"), 1);
        cr_expect_lt(plan->largest_live, rw_tensor_bytes(w) / 2, "%d: %d bytes", step, (int)plan->largest_live);
        backward(&b, loss);
    }
    fixture_close(&b);
}

struct sums {
    unsigned char *bytes;
    size_t n;
    int added; /* number of matmul_add actions in all plans */
};

enum { MICRO = 3 };

/* A simulated device is slow. */
static bool is_small(void)
{
    return test_device() == RW_DEVICE_CUDA;
}

/* Some steps of micro-batches of the small net under a policy: gradients and loss. */
static struct sums train(const char *policy, rw_dtype dtype, int threads)
{
    struct fixture b = fixture_open(7, threads);
    struct net n;
    struct sums s = { 0 };
    size_t bytes;
    net_init(&n, b.ctx, is_small() ? 2 : 4, is_small() ? 16 : 24, dtype, 3);
    cr_assert_eq(ckpt_set_policy(b.t, policy), RW_OK, "%s", rw_error_message(b.ctx));
    for (int step = 0; step < (is_small() ? 1 : 3); step++) {
        rw_zero_grad(b.ctx);
        for (int i = 0; i < MICRO; i++) {
            rw_tensor *const loss = net_loss(&n, b.t, is_small() ? 7 : 21, step * MICRO + i);
            const bool eager = b.ctx->eager;
            if (!eager) s.added += steps_of(&b, step_plan(&b, loss), "matmul_add");
            cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s: %s", policy, rw_error_message(b.ctx));
            backward(&b, loss);
        }
        unsigned char *const g = all_gradients(b.ctx, &bytes);
        s.bytes = realloc(s.bytes, s.n + bytes);
        memcpy(s.bytes + s.n, g, bytes);
        s.n += bytes;
        free(g);
    }
    fixture_close(&b);
    return s;
}

/* Gradients accumulated over micro-batches must have the same bytes under each policy. */
static void same_under_every_policy(rw_dtype dtype)
{
    struct sums none = train("none", dtype, 2);
    cr_assert_geq(none.added, (MICRO - 1) * (is_small() ? 4 : 3 * 8), "two weights of each layer and step");
    for (size_t p = 0; p <= POLICIES + 1; p++) {
        if (p == POLICIES + 1) setenv("REWIND_EAGER", "1", 1);
        const char *const policy = p < POLICIES ? policies[p] : "full";
        struct sums s = train(policy, dtype, p < POLICIES ? 2 : 3);
        cr_assert(p > POLICIES || s.added == none.added, "%s: the policy decides what is added how", policy);
        cr_assert_eq(s.n, none.n);
        cr_assert_eq(first_difference(s.bytes, none.bytes, s.n), -1, "%s, %s", rw_dtype_name(dtype), policy);
        free(s.bytes);
    }
    unsetenv("REWIND_EAGER");
    free(none.bytes);
}

Test(accumulate, micro_batches_under_every_policy_float64) { same_under_every_policy(RW_F64); }
Test(accumulate, micro_batches_under_every_policy_float32) { same_under_every_policy(RW_F32); }
Test(accumulate, micro_batches_under_every_policy_bfloat16) { same_under_every_policy(RW_BF16); }
Test(accumulate, micro_batches_under_every_policy_float16) { same_under_every_policy(RW_F16); }

/* ---- over the uses of one value ---- */

/* Three layers read h: its gradient is one product and two that are added to it. */
Test(accumulate, a_value_that_three_layers_read)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *w[3], *gradient[2];
    float g[2][2 * 5 * 16];
    for (int i = 0; i < 3; i++) w[i] = param(&b, (const char *[]){ "q", "k", "v" }[i], RW_SHAPE(8, 16), i);
    for (int joined = 0; joined < 2; joined++) {
        rw_tensor *const h = rw_require_grad(b.t, input(&b, RW_SHAPE(2, 5, 16), 4)), *y[3];
        for (int i = 0; i < 3 && !joined; i++) y[i] = rw_linear(b.t, h, w[i], RW_NONE);
        rw_tensor *const all = joined ? rw_linear(b.t, h, rw_concat(b.t, w, 3, 0), RW_NONE) : rw_concat(b.t, y, 3, -1);
        rw_tensor *const loss = total(b.t, all);
        rw_zero_grad(b.ctx);
        if (joined) expect_steps(&b, loss, 2, 0, 3);
        else expect_steps(&b, loss, 1, 5, 0);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        gradient[joined] = rw_gradient(h);
        cr_assert_eq(rw_read(b.t, gradient[joined], g[joined], sizeof g[0]), RW_OK);
        rw_tape_reset(b.t);
    }
    cr_assert_eq(first_difference(g[0], g[1], sizeof g[0]), -1);
    fixture_close(&b);
}

/* y = x w w: g = dy/dw = 2 x w, and d(g g)/dw = 8 x x w, through the node that added the second product. */
Test(accumulate, a_sum_of_products_is_differentiated_again)
{
    struct fixture b = fixture_open(1, 1);
    const rw_shape one = RW_SHAPE(1, 1);
    const float three = 3, five = 5;
    float dw;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, one), *g = NULL;
    cr_assert_eq(rw_write(w, &three, sizeof three), RW_OK);
    rw_tensor *const x = rw_input(b.t, RW_F32, one, &five, (size_t)rw_shape_numel(one) * sizeof(float));
    rw_tensor *const y = rw_sum(b.t, rw_matmul(b.t, rw_matmul(b.t, x, w), w), RW_ALL_AXES, false);
    cr_assert_eq(rw_grad(b.t, y, &w, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, g, g), RW_ALL_AXES, false);
    cr_assert_gt(steps_of(&b, step_plan(&b, loss), "matmul_add"), 0);
    backward(&b, loss);
    cr_assert_eq(rw_read(NULL, rw_gradient(w), &dw, sizeof dw), RW_OK);
    cr_assert_eq(dw, 8 * five * five * three);
    fixture_close(&b);
}

/* Overwriting the sum, and with a sum that is read later or that is a view at an offset. */
Test(accumulate, in_place_and_beside_the_sum)
{
    static const rw_dtype types[] = { RW_F64, RW_F32, RW_BF16, RW_F16 };
    for (int d = 0; d < 4; d++)
        for (int large = 0; large < 2; large++) {
            struct fixture b = fixture_open(9, 2);
            const int64_t m = large ? 150 : 7, n = large ? 140 : 5, k = large ? 64 : 3;
            rw_tensor *const a = rw_randn(b.t, types[d], RW_SHAPE(m, k)), *const x = rw_randn(b.t, types[d],
                                                                                              RW_SHAPE(k, n));
            rw_tensor *const sums = rw_randn(b.t, types[d], RW_SHAPE(m + 1, n)), *const part = rw_slice(b.t, sums, 0, 1,
                                                                                                        m + 1);
            unsigned char *bytes[3];
            size_t size = 0;
            for (int way = 0; way < 3; way++) {
                rw_tensor *const copy = rw_scale(b.t, part, 1);
                rw_tensor *const y = rw_matmul_add_at(RW_HERE, b.t, way == 2 ? part : copy, a, x);
                if (way == 1) cr_assert_eq(rw_eval(b.t, &copy, 1), RW_OK);
                bytes[way] = malloc(size = rw_tensor_bytes(y));
                cr_assert_eq(rw_read(b.t, y, bytes[way], size), RW_OK, "%s", rw_error_message(b.ctx));
            }
            for (int way = 1; way < 3; way++)
                cr_assert_eq(first_difference(bytes[0], bytes[way], size), -1, "%s, way %d", rw_dtype_name(types[d]),
                             way);
            for (int way = 0; way < 3; way++) free(bytes[way]);
            fixture_close(&b);
        }
}

/* ---- products that are used elsewhere, too ---- */

/* One product is the gradient of two parameters: it is computed once and added twice. */
Test(accumulate, a_product_that_two_parameters_share)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const v = param(&b, "v", RW_SHAPE(24, 16), 1), *const w = param(&b, "w", RW_SHAPE(24, 16), 2);
    float once[24 * 16];
    for (int times = 1; times < 4; times++) {
        rw_tensor *const loss = layer(&b, rw_add(b.t, v, w));
        expect_steps(&b, loss, 1, 0, 2);
        backward(&b, loss);
        if (times == 1) read_gradient(v, once);
        expect_times(v, once, times, "v");
        expect_times(w, once, times, "w");
    }
    fixture_close(&b);
}

/* The gradient of an intermediate value is requested, and is the same product. */
Test(accumulate, a_product_that_is_requested)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const w = param(&b, "w", RW_SHAPE(24, 16), 2);
    float once[24 * 16], seen[24 * 16];
    for (int times = 1; times < 4; times++) {
        rw_tensor *const on_the_way = rw_require_grad(b.t, rw_add(b.t, w, input(&b, RW_SHAPE(24, 16), 3)));
        rw_tensor *const loss = layer(&b, on_the_way);
        expect_steps(&b, loss, 1, 0, 1);
        cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(rw_read(b.t, rw_gradient(on_the_way), seen, sizeof seen), RW_OK);
        if (times == 1) read_gradient(w, once);
        cr_assert_eq(first_difference(seen, once, sizeof seen), -1);
        expect_times(w, once, times, "w");
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/* The gradient of a transposed weight is a transposed view of a product. */
Test(accumulate, a_product_that_is_transposed)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const w = param(&b, "w", RW_SHAPE(16, 24), 2);
    float once[16 * 24];
    for (int times = 1; times < 4; times++) {
        rw_tensor *const loss = layer(&b, rw_transpose(b.t, w, 0, 1));
        expect_steps(&b, loss, 1, 0, 1);
        backward(&b, loss);
        if (times == 1) read_gradient(w, once);
        expect_times(w, once, times, "turned");
    }
    fixture_close(&b);
}

/* An op whose gradient is its second input, unchanged. */
static rw_status borrow_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status borrow_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * rw_dtype_size(k->in[0].dtype));
    return RW_OK;
}

static rw_status borrow_grad(rw_grad_call *g)
{
    return rw_grad_set(g, 0, rw_grad_input(g, 1));
}

HOST_KERNEL_OF(borrow_kernel)
static const rw_op_def borrow = { .name = "borrow", .n_inputs = 2, .n_outputs = 1, .check = borrow_check,
                                  .kernel = HOST_KERNEL(borrow_kernel), .grad = borrow_grad };

/* A product of forward, and an input: backward must not recompute either, and the loss may be read before they are
   added. */
Test(accumulate, a_gradient_that_forward_computed)
{
    for (int leaf = 0; leaf < 2; leaf++)
        for (int early = 0; early < 2; early++) {
            struct fixture b = fixture_open(1, 2);
            rw_tensor *const v = param(&b, "v", RW_SHAPE(6, 6), 1), *const w = param(&b, "w", RW_SHAPE(6, 6), 2);
            float v_once[36], w_once[36];
            for (int times = 1; times < 4; times++) {
                rw_tensor *const x = input(&b, RW_SHAPE(6, 6), 4), *const made = leaf ? x : rw_matmul(b.t, x, x);
                rw_tensor *const in[] = { v, made };
                rw_tensor *const y = rw_matmul(b.t, rw_apply(b.t, &borrow, in, 2, NULL, 0, NULL), w);
                rw_tensor *const loss = total(b.t, y);
                if (early) rw_item(b.t, loss);
                backward(&b, loss);
                if (times == 1) read_gradient(v, v_once), read_gradient(w, w_once);
                expect_times(v, v_once, times, "v");
                expect_times(w, w_once, times, "w");
            }
            fixture_close(&b);
        }
}

/* An op whose gradient is a transposed product: dy^T times its second input, which is the identity here. */
static rw_status transposed_grad(rw_grad_call *g)
{
    rw_tape *const t = rw_grad_tape(g);
    rw_tensor *const dy = rw_transpose(t, rw_grad_upstream(g, 0), 0, 1);
    return rw_grad_set(g, 0, rw_transpose(t, rw_matmul(t, dy, rw_grad_input(g, 1)), 0, 1));
}

static const rw_op_def transposed = { .name = "turned", .n_inputs = 2, .n_outputs = 1, .check = borrow_check,
                                      .kernel = HOST_KERNEL(borrow_kernel), .grad = transposed_grad };

Test(accumulate, a_transposed_product_among_the_uses_of_a_value)
{
    struct fixture b = fixture_open(1, 2);
    rw_tensor *const v = param(&b, "v", RW_SHAPE(6, 6), 1);
    float plain[36], diagonal[36] = { 0 };
    for (int i = 0; i < 6; i++) diagonal[7 * i] = 1;
    for (int own = 0; own < 2; own++) {
        rw_tensor *const in[] = { v, rw_input(b.t, RW_F32, RW_SHAPE(6, 6), diagonal, sizeof diagonal) };
        rw_tensor *const once = own ? rw_apply(b.t, &transposed, in, 2, NULL, 0, NULL) : v;
        rw_tensor *const second = own ? rw_apply(b.t, &transposed, in, 2, NULL, 0, NULL) : v;
        rw_tensor *const loss = total(b.t, rw_add(b.t, once, second));
        rw_zero_grad(b.ctx);
        if (own) expect_steps(&b, loss, 2, 0, 2);
        backward(&b, loss);
        if (!own) read_gradient(v, plain);
    }
    expect_times(v, plain, 1, "turned");
    fixture_close(&b);
}

/* The two operands of a sum share one gradient, computed by one node: each handle, and a parameter among them, has
   it. */
Test(accumulate, one_gradient_that_belongs_to_several)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const p = param(&b, "p", RW_SHAPE(9), 1),
                     *const marked = rw_require_grad(b.t, input(&b, RW_SHAPE(9), 2)),
                     *const other = rw_require_grad(b.t, input(&b, RW_SHAPE(9), 4));
    rw_tensor *const sum = rw_require_grad(b.t, rw_add(b.t, rw_add(b.t, marked, other), p));
    cr_assert_eq(rw_backward(b.t, total(b.t, rw_mul(b.t, sum, sum))), RW_OK, "%s", rw_error_message(b.ctx));
    float of_p[9], got[9];
    read_gradient(p, of_p);
    rw_tensor *const others[] = { marked, other, sum };
    for (int i = 0; i < 3; i++) {
        rw_tensor *const g = rw_gradient(others[i]);
        cr_assert_not_null(g, "of value %d", i);
        cr_assert_eq(rw_read(b.t, g, got, sizeof got), RW_OK, "%s", rw_error_message(b.ctx));
        cr_expect_eq(first_difference(of_p, got, sizeof got), -1, "of value %d", i);
    }
    fixture_close(&b);
}
