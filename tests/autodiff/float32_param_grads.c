/*
 * Float32 gradients of 16-bit parameters. Inputs are small integers that 16 bits hold, and so are the terms of a
 * gradient; their sums are integers that 16 bits do not hold. So the gradient equals that of the same program in
 * float64 exactly, unless an intermediate value was rounded.
 */
#include "support/compare.h"
#include "support/plan_queries.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 48 * 1024 };

static const rw_dtype narrow[] = { RW_BF16, RW_F16 };

static double whole(int64_t i, int salt)
{
    return (double)((i * 7 + salt * 5 + i * i % 11) % 9 - 4);
}

/* The upstream gradient of element i of y: at most 8 bits, and positive, so that sums are large. */
static double flow(int64_t i, int salt)
{
    return 17 * (whole(i, 3) + 5);
}

/* A factor that does not add bits. */
static double power(int64_t i, int salt)
{
    return 1 << i % 3;
}

static rw_tensor *made(struct fixture *b, rw_dtype dtype, rw_shape shape, double (*number)(int64_t, int), int salt)
{
    static char data[MAX * 8];
    for (int64_t i = 0; i < rw_shape_numel(shape); i++)
        cr_assert(number_put(data, dtype, i, number(i, salt)), "%g", number(i, salt));
    return rw_input(b->t, dtype, shape, data, (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype));
}

static rw_tensor *numbers(struct fixture *b, rw_dtype dtype, rw_shape shape, int salt)
{
    return made(b, dtype, shape, whole, salt);
}

static rw_tensor *loss_of(struct fixture *b, rw_tensor *y)
{
    rw_tensor *const c = made(b, rw_tensor_dtype(y), rw_tensor_shape(y), flow, 0);
    return rw_sum(b->t, rw_mul(b->t, y, c), RW_ALL_AXES, false);
}

/* ---- programs: y of a parameter ---- */

static rw_tensor *small_product(struct fixture *b, rw_tensor *w)
{
    return rw_linear(b->t, numbers(b, rw_tensor_dtype(w), RW_SHAPE(160, 6), 1), w, RW_NONE);
}

static rw_tensor *large_product(struct fixture *b, rw_tensor *w)
{
    return rw_linear(b->t, numbers(b, rw_tensor_dtype(w), RW_SHAPE(120, 64), 1), w, RW_NONE);
}

static rw_tensor *bias(struct fixture *b, rw_tensor *w)
{
    const rw_dtype dtype = rw_tensor_dtype(w);
    return rw_linear(b->t, numbers(b, dtype, RW_SHAPE(1100, 2), 1), numbers(b, dtype, RW_SHAPE(40, 2), 2), w);
}

static rw_tensor *table(struct fixture *b, rw_tensor *w)
{
    int32_t token[600];
    for (int i = 0; i < 600; i++) token[i] = i * i % 7 % 5; /* 3 is never named */
    return rw_embedding(b->t, w, rw_input(b->t, RW_I32, RW_SHAPE(600), token, sizeof token));
}

static rw_tensor *tokens(struct fixture *b, rw_shape shape)
{
    int32_t token[600];
    for (int i = 0; i < 600; i++) token[i] = i * i % 7 % 5;
    return rw_input(b->t, RW_I32, shape, token, (size_t)rw_shape_numel(shape) * sizeof *token);
}

static rw_tensor *rows_by_index(struct fixture *b, rw_tensor *w)
{
    return rw_index_select(b->t, w, 0, tokens(b, RW_SHAPE(600)));
}

static rw_tensor *columns_by_index(struct fixture *b, rw_tensor *w)
{
    return rw_index_select(b->t, w, 1, tokens(b, RW_SHAPE(600)));
}

static rw_tensor *bags(struct fixture *b, rw_tensor *w)
{
    return rw_embedding_bag(b->t, w, tokens(b, RW_SHAPE(150, 4)), RW_BAG_SUM);
}

static rw_tensor *broadcast(struct fixture *b, rw_tensor *w)
{
    return rw_mul(b->t, made(b, rw_tensor_dtype(w), RW_SHAPE(200, 25), power, 0), w);
}

static rw_tensor *uses(struct fixture *b, rw_tensor *w)
{
    return rw_add(b->t, rw_add(b->t, rw_scale(b->t, w, 16), w), rw_scale(b->t, w, 256));
}

static rw_tensor *batch(struct fixture *b, rw_tensor *w)
{
    return rw_matmul(b->t, made(b, rw_tensor_dtype(w), RW_SHAPE(160, 1, 7), power, 0), w);
}

static rw_tensor *widened(struct fixture *b, rw_tensor *w)
{
    const rw_dtype dtype = rw_tensor_dtype(w) == RW_F64 ? RW_F64 : RW_F32;
    return rw_scale(b->t, rw_cast(b->t, w, dtype), 257);
}

/* The products are added before the other contribution. */
static rw_tensor *tied(struct fixture *b, rw_tensor *w)
{
    int32_t token[120];
    for (int i = 0; i < 120; i++) token[i] = i % 9;
    rw_tensor *const x = rw_embedding(b->t, w, rw_input(b->t, RW_I32, RW_SHAPE(120), token, sizeof token));
    rw_tensor *const one = numbers(b, rw_tensor_dtype(w), RW_SHAPE(120, 5), 1);
    return rw_concat(b->t, (rw_tensor *[]){ rw_linear(b->t, one, w, RW_NONE), x }, 2, 1);
}

static rw_tensor *experts(struct fixture *b, rw_tensor *w)
{
    const rw_shape s = rw_tensor_shape(w);
    rw_moe_routes r;
    int32_t index[300];
    for (int i = 0; i < 300; i++) index[i] = i * i % 7 % 5 % 2;
    cr_assert_eq(rw_moe_route(b->t, rw_input(b->t, RW_I32, RW_SHAPE(300, 1), index, sizeof index), s.dim[0], &r),
                 RW_OK);
    return rw_moe_linear(b->t, numbers(b, rw_tensor_dtype(w), RW_SHAPE(300, s.dim[2]), 1), w, &r);
}

static const struct {
    const char *name;
    rw_tensor *(*y)(struct fixture *b, rw_tensor *w);
    rw_shape shape;
    int products, sums, casts; /* nodes of matmul_add, accumulate_wide, and accumulate and cast in backward */
} programs[] = {
    { "small_product", small_product, { 2, { 5, 6 } }, 1, 0 },
    { "large_product", large_product, { 2, { 48, 64 } }, 1, 0 },
    { "bias", bias, { 1, { 40 } }, 0, 0 },
    { "table", table, { 2, { 5, 8 } }, 0, 0 },
    { "table_of_odd_width", table, { 2, { 5, 7 } }, 0, 0 },
    { "rows_by_index", rows_by_index, { 2, { 5, 8 } }, 0, 0 },
    { "columns_by_index", columns_by_index, { 2, { 4, 7 } }, 0, 0 },
    { "bags", bags, { 2, { 5, 9 } }, 0, 0 },
    { "broadcast", broadcast, { 1, { 25 } }, 0, 0 },
    { "uses", uses, { 2, { 9, 33 } }, 0, 3 },
    { "batch", batch, { 3, { 1, 7, 5 } }, 0, 0 },
    { "widened", widened, { 1, { 40 } }, 0, 0, 1 },
    { "tied", tied, { 2, { 9, 5 } }, 1, 0 },
    { "experts_of_few_numbers", experts, { 3, { 3, 7, 16 } }, 0, 0 },
    { "experts", experts, { 3, { 2, 128, 128 } }, 0, 0 }, /* with the library's products */
};
enum { PROGRAMS = sizeof programs / sizeof *programs };

static rw_tensor *param_of(struct fixture *b, int p, rw_dtype dtype)
{
    static char data[MAX * 8];
    rw_tensor *const w = rw_param(b->ctx, "w", dtype, programs[p].shape);
    for (int64_t i = 0; i < rw_shape_numel(programs[p].shape); i++) cr_assert(number_put(data, dtype, i, whole(i, 8)));
    cr_assert_eq(rw_write(w, data, rw_tensor_bytes(w)), RW_OK);
    return w;
}

static double *read_numbers(struct fixture *b, rw_tensor *x)
{
    const int64_t n = rw_shape_numel(rw_tensor_shape(x));
    char *const raw = malloc(rw_tensor_bytes(x) + 8);
    double *const to = calloc((size_t)n + 1, sizeof *to);
    cr_assert_eq(rw_read(b->t, x, raw, rw_tensor_bytes(x)), RW_OK, "%s", rw_error_message(b->ctx));
    for (int64_t i = 0; i < n; i++) to[i] = number_get(raw, rw_tensor_dtype(x), i);
    free(raw);
    return to;
}

static double *exact(int p)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = param_of(&b, p, RW_F64);
    cr_assert_eq(rw_backward(b.t, loss_of(&b, programs[p].y(&b, w))), RW_OK, "%s", rw_error_message(b.ctx));
    double *const g = read_numbers(&b, rw_gradient(w));
    fixture_close(&b);
    return g;
}

static void expect_sum(struct fixture *b, rw_tensor *g, const double *once, int times, const char *what, int p)
{
    double *const got = read_numbers(b, g);
    cr_assert_eq(rw_tensor_dtype(g), RW_F32);
    for (int64_t i = 0; i < rw_shape_numel(programs[p].shape); i++)
        cr_assert_eq(got[i], times * once[i], "%s, %s, element %d: %g, not %d times %g", programs[p].name, what, (int)i,
                     got[i], times, once[i]);
    free(got);
}

static bool holds(rw_dtype dtype, double x)
{
    char room[8];
    return number_put(room, dtype, 0, x);
}

Test(float32_param_grads, sums_over_uses_and_micro_batches_are_float32)
{
    for (int p = 0; p < PROGRAMS; p++) {
        double *const once = exact(p);
        for (int d = 0; d < 2; d++) {
            struct fixture b = fixture_open(1, 1 + p % 3);
            rw_tensor *const w = param_of(&b, p, narrow[d]);
            int lost = 0;
            for (int64_t i = 0; i < rw_shape_numel(programs[p].shape); i++) lost += !holds(narrow[d], once[i]);
            cr_expect_gt(lost, 0, "%s: %s would hold every sum", programs[p].name, rw_dtype_name(narrow[d]));
            cr_assert_eq(ckpt_set_policy(b.t, "full"), RW_OK);
            for (int step = 1; step <= 3; step++) {
                ckpt_begin(b.t, "region");
                rw_tensor *const y = programs[p].y(&b, w);
                ckpt_end(b.t);
                rw_tensor *const loss = loss_of(&b, y);
                cr_assert_eq(ckpt_verify(b.t, loss, NULL), RW_OK, "%s", rw_error_message(b.ctx));
                cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%s", rw_error_message(b.ctx));
                expect_sum(&b, rw_gradient(w), once, step, rw_dtype_name(narrow[d]), p);
                rw_tape_reset(b.t);
            }
            fixture_close(&b);
        }
        free(once);
    }
}

/* The product is written to the sum, and 16-bit terms are added unconverted: no cast, no second buffer. */
Test(float32_param_grads, one_node_makes_and_adds)
{
    for (int p = 0; p < PROGRAMS; p++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const loss = loss_of(&b, programs[p].y(&b, param_of(&b, p, RW_BF16)));
        const rw_plan *const plan = step_plan(&b, loss);
        cr_expect_eq(steps_of(&b, plan, "matmul_add"), programs[p].products, "%s", programs[p].name);
        cr_expect_eq(steps_of(&b, plan, "accumulate_wide"), programs[p].sums, "%s", programs[p].name);
        cr_expect_eq(steps_of(&b, plan, "accumulate") + steps_of(&b, plan, "cast"), programs[p].casts, "%s",
                     programs[p].name);
        fixture_close(&b);
    }
}

Test(float32_param_grads, no_second_buffer_for_a_weight_gradient)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(512, 512));
    rw_tensor *const y = rw_linear(b.t, rw_input(b.t, RW_BF16, RW_SHAPE(2, 512), NULL, 0), w, RW_NONE);
    const rw_plan *const plan = step_plan(&b, loss_of(&b, y));
    cr_expect_lt(plan->largest_live, rw_tensor_bytes(w) / 2, "%d bytes", (int)plan->largest_live);
    fixture_close(&b);
}

/* On the tape a sum starts without contents; its bytes are those of a step that starts with clear gradients. */
Test(float32_param_grads, as_ops_they_are_float32_too)
{
    for (int p = 0; p < PROGRAMS; p++) {
        double *const once = exact(p);
        for (int d = 0; d < 2; d++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *w = param_of(&b, p, narrow[d]), *g = NULL;
            cr_assert_eq(rw_grad(b.t, loss_of(&b, programs[p].y(&b, w)), &w, 1, &g), RW_OK, "%s",
                         rw_error_message(b.ctx));
            expect_sum(&b, g, once, 1, "rw_grad()", p);
            fixture_close(&b);
        }
        free(once);
    }
}

/* The gradient of |dw|^2: through every op that adds to a float32 sum. */
Test(float32_param_grads, can_be_differentiated_again)
{
    for (int p = 0; p < PROGRAMS; p++) {
        if (programs[p].y == uses || programs[p].y == widened) continue; /* linear in w, and so are the squares' */
        double *got[2];
        for (int d = 0; d < 2; d++) {
            struct fixture b = fixture_open(1, 1);
            rw_tensor *w = param_of(&b, p, d ? RW_BF16 : RW_F64), *g = NULL, *const y = programs[p].y(&b, w);
            rw_tensor *const loss = rw_mean(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false);
            cr_assert_eq(rw_grad(b.t, loss, &w, 1, &g), RW_OK, "%s", rw_error_message(b.ctx));
            cr_assert_eq(rw_backward(b.t, rw_mean(b.t, rw_mul(b.t, g, g), RW_ALL_AXES, false)), RW_OK, "%s: %s",
                         programs[p].name, rw_error_message(b.ctx));
            got[d] = read_numbers(&b, rw_gradient(w));
            fixture_close(&b);
        }
        double most = 0;
        for (int64_t i = 0; i < rw_shape_numel(programs[p].shape); i++) most = fmax(most, fabs(got[0][i]));
        /* some ten intermediates stored with 8 bits */
        for (int64_t i = 0; i < rw_shape_numel(programs[p].shape); i++)
            cr_expect(fabs(got[0][i] - got[1][i]) <= 10 * 0x1p-8 * most, "%s, %d: %g, not %g", programs[p].name, (int)i,
                      got[1][i], got[0][i]);
        cr_expect_gt(most, 0);
        for (int d = 0; d < 2; d++) free(got[d]);
    }
}

/* ---- sums that are not integers ---- */

enum { ROWS = 300, WIDTH = 24 };

static rw_tensor *vector(struct fixture *b, const char *name, rw_dtype dtype)
{
    rw_tensor *const v = rw_param(b->ctx, name, dtype, RW_SHAPE(WIDTH));
    cr_assert_eq(rw_init_constant(v, 2), RW_OK);
    return v;
}

/* xh <= sqrt(WIDTH) and dy <= 153, ROWS of them with some ten roundings each; in 16 bits the sum would have an error of
   2^-9 of itself. */
Test(float32_param_grads, of_norms)
{
    for (int rms = 0; rms < 2; rms++)
        for (int d = 0; d < 2; d++) {
            double *got[2][2] = { { NULL } };
            for (int wide = 0; wide < 2; wide++) {
                struct fixture b = fixture_open(1, 2);
                const rw_dtype dtype = wide ? narrow[d] : RW_F64;
                rw_tensor *const w[] = { vector(&b, "w", dtype), vector(&b, "v", dtype) };
                rw_tensor *const x = numbers(&b, dtype, RW_SHAPE(ROWS, WIDTH), 1);
                rw_tensor *const y = rms ? rw_rmsnorm(b.t, x, w[0], 1) : rw_layernorm(b.t, x, w[0], w[1], 1);
                for (int times = 0; times < 2; times++)
                    cr_assert_eq(rw_backward(b.t, loss_of(&b, y)), RW_OK, "%s", rw_error_message(b.ctx));
                for (int i = 0; i < 2 - rms; i++) got[wide][i] = read_numbers(&b, rw_gradient(w[i]));
                fixture_close(&b);
            }
            const double error = 2 * roundings(ROWS + 10, 0x1p-24) * ROWS * 153 * sqrt(WIDTH);
            for (int i = 0; i < WIDTH; i++) {
                cr_expect(fabs(got[0][0][i] - got[1][0][i]) <= error, "weight %d: %g, not %g", i, got[1][0][i],
                          got[0][0][i]);
                if (rms) continue;
                cr_expect_eq(got[0][1][i], got[1][1][i], "bias %d: %g, not %g", i, got[1][1][i], got[0][1][i]);
            }
            for (int i = 0; i < 4; i++) free(got[i / 2][i % 2]);
        }
}

/* The bias gradient of a linear layer with gelu is summed in the pass that computes the slopes: the bytes of the two
   ops. */
Test(float32_param_grads, of_a_bias_that_backward_sums_on_the_way)
{
    for (int d = 0; d < 2; d++)
        for (int rows = 7; rows <= ROWS; rows += ROWS - 7) {
            double *got[2];
            for (int fused = 0; fused < 2; fused++) {
                struct fixture b = fixture_open(1, 2);
                rw_tensor *const w = rw_param(b.ctx, "w", narrow[d], RW_SHAPE(WIDTH, 3)), *const v = vector(&b, "v",
                                                                                                            narrow[d]);
                cr_assert_eq(rw_init_normal(w, 0, 0.5), RW_OK);
                rw_tensor *const x = rw_scale(b.t, numbers(&b, narrow[d], RW_SHAPE(rows, 3), 1), 0.25);
                rw_tensor *const y = fused ? rw_linear_gelu(b.t, x, w, v)
                                           : rw_gelu_tanh(b.t, rw_linear(b.t, x, w, v));
                for (int times = 0; times < 2; times++)
                    cr_assert_eq(rw_backward(b.t, loss_of(&b, y)), RW_OK, "%s", rw_error_message(b.ctx));
                got[fused] = read_numbers(&b, rw_gradient(v));
                int lost = 0;
                for (int i = 0; i < WIDTH; i++) lost += !holds(narrow[d], got[fused][i]);
                cr_expect_gt(lost, 0, "every sum is one that 16 bits hold");
                fixture_close(&b);
            }
            for (int i = 0; i < WIDTH; i++)
                cr_expect_eq(got[0][i], got[1][i], "%d: %g, not %g", i, got[1][i], got[0][i]);
            for (int i = 0; i < 2; i++) free(got[i]);
        }
}

/* ---- gradients that a verified step writes to memory of its own first ---- */

Test(float32_param_grads, those_of_a_verified_step)
{
    double *got[2][2];
    for (int verified = 0; verified < 2; verified++) {
        if (verified) setenv("REWIND_VERIFY", "1", 1);
        struct fixture b = fixture_open(1, 1);
        rw_tensor *w[2];
        for (int i = 0; i < 2; i++) {
            w[i] = rw_param(b.ctx, i ? "v" : "w", narrow[i], RW_SHAPE(1000));
            cr_assert_eq(rw_init_constant(w[i], 1), RW_OK);
        }
        for (int step = 0; step < 2; step++) {
            rw_tensor *const y = rw_add(b.t, w[0], rw_cast(b.t, rw_scale(b.t, w[1], 2), RW_BF16));
            cr_assert_eq(rw_backward(b.t, loss_of(&b, y)), RW_OK, "%s", rw_error_message(b.ctx));
            rw_tape_reset(b.t);
        }
        for (int i = 0; i < 2; i++) got[verified][i] = read_numbers(&b, rw_gradient(w[i]));
        fixture_close(&b);
    }
    unsetenv("REWIND_VERIFY");
    for (int i = 0; i < 2000; i++)
        cr_assert_eq(got[1][i / 1000][i % 1000], got[0][i / 1000][i % 1000], "element %d: %g", i,
                     got[1][i / 1000][i % 1000]);
    for (int i = 0; i < 4; i++) free(got[i / 2][i % 2]);
}

/* ---- an op of a program's own ---- */

static rw_status check_twice(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status twice(const rw_kernel *k)
{
    for (int64_t i = 0; i < k->out[0].layout->numel; i++) {
        const double x = number_get(k->in[0].data, k->in[0].dtype, i);
        if (!number_put(k->out[0].data, k->out[0].dtype, i, 2 * x)) return RW_ERR_ARGUMENT;
    }
    return RW_OK;
}
HOST_KERNEL_OF(twice)

/* A rule that only supports one type: it has no sum to add to if the sum has another type. */
static rw_status grad_twice(rw_grad_call *g)
{
    rw_tensor *const dx = rw_scale(rw_grad_tape(g), rw_grad_upstream(g, 0), 2), *const sum = rw_grad_accumulator(g, 0);
    const bool same = rw_grad_dtype(g, 0) == rw_tensor_dtype(rw_grad_input(g, 0));
    if (!same && sum) return RW_ERR_ARGUMENT;
    return rw_grad_set_sum(g, 0, sum ? rw_add(rw_grad_tape(g), sum, dx) : dx);
}

static const rw_op_def op_twice = { .name = "twice", .n_inputs = 1, .n_outputs = 1, .check = check_twice,
                                    .kernel = HOST_KERNEL(twice), .grad = grad_twice };

Test(float32_param_grads, a_rule_of_ones_own_need_not_know)
{
    for (int d = 0; d < 2; d++) {
        struct fixture b = fixture_open(1, 1);
        rw_tensor *const w = rw_param(b.ctx, "w", narrow[d], RW_SHAPE(30));
        for (int step = 1; step <= 3; step++) {
            rw_tensor *y = rw_apply(b.t, &op_twice, (rw_tensor *[]){ w }, 1, NULL, 0, NULL);
            y = rw_add(b.t, y, rw_scale(b.t, w, 256));
            cr_assert_eq(rw_backward(b.t, loss_of(&b, y)), RW_OK, "%s", rw_error_message(b.ctx));
            double *const g = read_numbers(&b, rw_gradient(w));
            for (int i = 0; i < 30; i++) cr_assert_eq(g[i], step * 258 * flow(i, 0), "%d: %g", i, g[i]);
            free(g);
            rw_tape_reset(b.t);
        }
        fixture_close(&b);
    }
}

/* ---- the type of a parameter's gradient ---- */

Test(float32_param_grads, a_parameter_says_which_it_wants)
{
    static const struct {
        rw_dtype dtype, asked, gets;
    } wants[] = { { RW_BF16, RW_F32, RW_F32 }, { RW_BF16, RW_BF16, RW_BF16 }, { RW_F16, RW_F16, RW_F16 },
                  { RW_F32, RW_F32, RW_F32 },  { RW_F64, RW_F32, RW_F64 },    { RW_F64, RW_F64, RW_F64 } };
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < sizeof wants / sizeof *wants; i++) {
        char name[8];
        double data[3] = { 0 };
        rw_memory before, after;
        snprintf(name, sizeof name, "w%d", (int)i);
        rw_memory_stats(b.ctx, &before);
        rw_tensor *const w = rw_param_with(b.ctx, name, wants[i].dtype, RW_SHAPE(3),
                                           &(rw_param_options){ .grad_dtype = wants[i].asked });
        rw_tensor *const g = rw_gradient(w);
        rw_memory_stats(b.ctx, &after);
        cr_assert_eq(rw_tensor_dtype(g), wants[i].gets, "%d", (int)i);
        cr_assert_eq(after.gradients - before.gradients, 3 * rw_dtype_size(wants[i].gets), "%d", (int)i);
        cr_assert_eq(rw_tensor_bytes(g), 3 * rw_dtype_size(wants[i].gets));
        cr_assert_eq(rw_write(g, data, rw_tensor_bytes(g)), RW_OK);
        cr_assert_eq(rw_backward(b.t, rw_sum(b.t, w, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b.ctx));
        double *const got = read_numbers(&b, g);
        for (int k = 0; k < 3; k++) cr_assert_eq(got[k], 1);
        free(got);
    }
    rw_tensor *const w = rw_param_with(b.ctx, "plain", RW_F16, RW_SHAPE(3), NULL);
    cr_assert_eq(rw_tensor_dtype(rw_gradient(w)), RW_F32);
    fixture_close(&b);
}

Test(float32_param_grads, what_no_gradient_can_be_is_refused)
{
    static const struct {
        rw_dtype dtype, asked;
    } wrong[] = { { RW_BF16, RW_F16 }, { RW_F16, RW_BF16 }, { RW_F32, RW_BF16 }, { RW_F16, RW_F64 },
                  { RW_F32, RW_F64 },  { RW_BF16, RW_I32 }, { RW_F32, (rw_dtype)77 },
                  { RW_F64, RW_BF16 }, { RW_F64, RW_F16 }, { RW_F64, RW_I32 }, { RW_F64, (rw_dtype)99 } };
    struct fixture b = fixture_open(1, 1);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_null(rw_param_with(b.ctx, "w", wrong[i].dtype, RW_SHAPE(3),
                                     &(rw_param_options){ .grad_dtype = wrong[i].asked }));
        cr_assert_eq(rw_error_status(b.ctx), RW_ERR_DTYPE, "%d: %s", (int)i, rw_error_message(b.ctx));
        cr_assert(strstr(rw_error_message(b.ctx), "float32_param_grads.c"), "%s", rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_null(rw_param_get(b.ctx, 0));
    }
    cr_assert_null(rw_param_with(NULL, "w", RW_F32, RW_SHAPE(3), NULL));
    rw_tensor *const w = rw_param(b.ctx, "w", RW_BF16, RW_SHAPE(3));
    const uint16_t data[3] = { 0 };
    cr_assert_eq(rw_write(rw_gradient(w), data, sizeof data), RW_ERR_ARGUMENT);
    cr_assert(strstr(rw_error_message(b.ctx), "expected 12, the size of the gradient of \"w\", got 6"),
            "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}
