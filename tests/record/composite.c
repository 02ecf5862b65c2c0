/*
 * Composite functions of a caller (rewind/composite.h): the messages of their ops, and the rollback of everything that
 * a failed one has recorded: ops, random numbers, regions, policies, recipes. A tape that was set back gives the bytes
 * of one on which the function was never called.
 */
#include "support/support.h"

#include <rewind/composite.h>
#include <rewind/precision.h>

#include <criterion/criterion.h>
#include <string.h>

/* dropout(x) + y, and a region and a recipe around it. The sum fails if the shapes do not broadcast. */
static rw_tensor *noisy_sum_at(rw_site at, rw_tape *t, rw_tensor *x, rw_tensor *y)
{
    if (rw_recording_refused(t, __func__)) return NULL;
    if (!rw_operand_check(at, t, x, "noisy_sum", "x") || !rw_operand_check(at, t, y, "noisy_sum", "y")) return NULL;
    const rw_composite c = rw_composite_begin(t, "noisy_sum");
    ckpt_begin_at(at, t, "noisy");
    rw_recipe_begin_at(at, t, &(rw_recipe){ .kind = RW_RECIPE_BF16 });
    ckpt_policy_begin_at(at, t, "full");
    rw_no_grad_begin(t);
    rw_tensor *const dropped = rw_dropout_at(at, t, x, 0.5);
    rw_no_grad_end(t);
    rw_tensor *const sum = rw_add_at(at, t, dropped, y);
    if (sum) {
        ckpt_policy_end_at(at, t);
        rw_recipe_end_at(at, t);
        ckpt_end_at(at, t);
    }
    return rw_composite_end(&c, sum);
}
#define noisy_sum(...) noisy_sum_at(RW_HERE, __VA_ARGS__)

static void expect_message(struct fixture *b, rw_status status, const char *text)
{
    cr_expect_eq(rw_error_status(b->ctx), status, "%s", rw_error_message(b->ctx));
    cr_expect(strstr(rw_error_message(b->ctx), text), "\"%s\" is not in: %s", text, rw_error_message(b->ctx));
    rw_error_clear(b->ctx);
}

static rw_tensor *param(struct fixture *b, const char *name, rw_shape shape)
{
    rw_tensor *const p = rw_param(b->ctx, name, RW_F32, shape);
    rw_init_normal(p, 0, 1);
    return p;
}

Test(composite, the_message_names_the_function_and_the_caller)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(4, 8)), *const y = param(&b, "y", RW_SHAPE(3));
    char site[64];
    snprintf(site, sizeof site, "composite.c:%d", __LINE__ + 1);
    cr_assert_null(noisy_sum(b.t, x, y));
    cr_expect(strstr(rw_error_message(b.ctx), site), "%s", rw_error_message(b.ctx));
    expect_message(&b, RW_ERR_SHAPE, "noisy_sum: add(");
    cr_assert_null(noisy_sum(b.t, x, NULL));
    expect_message(&b, RW_ERR_ARGUMENT, "y is NULL; expected a tensor");
    cr_assert_null(rw_add(b.t, x, y)); /* outside of the function, its name is gone */
    cr_expect(!strstr(rw_error_message(b.ctx), "noisy_sum"), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* The gradient of a step, in which a call of the function failed before the rest or not. */
static void gradient_of_step(bool fails_first, float *ret_gradient, rw_generator_state *ret_state)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(4, 8)), *const y = param(&b, "y", RW_SHAPE(3));
    rw_tensor *const z = param(&b, "z", RW_SHAPE(4, 8));
    ckpt_begin(b.t, "outer");
    rw_tensor *const h = rw_tanh(b.t, x);
    if (fails_first) cr_assert_null(noisy_sum(b.t, h, y));
    rw_error_clear(b.ctx);
    rw_tensor *const sum = noisy_sum(b.t, rw_mul(b.t, h, z), z);
    cr_assert_eq(ckpt_end(b.t), RW_OK, "%s", rw_error_message(b.ctx));
    cr_assert_eq(rw_backward(b.t, rw_sum_all(b.t, rw_mul(b.t, sum, rw_dropout(b.t, h, 0.5)))), RW_OK, "%s",
                 rw_error_message(b.ctx));
    cr_assert_eq(rw_read(b.t, rw_gradient(x), ret_gradient, 32 * sizeof(float)), RW_OK);
    *ret_state = rw_generator_get(b.ctx);
    fixture_close(&b);
}

Test(composite, a_failed_function_leaves_nothing)
{
    float with[32], without[32];
    rw_generator_state drawn, undisturbed;
    gradient_of_step(false, without, &undisturbed);
    gradient_of_step(true, with, &drawn);
    cr_expect_arr_eq(with, without, sizeof with);
    cr_expect_eq(drawn.offset, undisturbed.offset);
}

/* Regions, policies, recipes and no-grad scopes of a failed function are not open any more. */
Test(composite, scopes_of_a_failed_function_are_gone)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(4, 8)), *const y = param(&b, "y", RW_SHAPE(3));
    cr_assert_null(noisy_sum(b.t, x, y));
    rw_error_clear(b.ctx);
    cr_expect_eq(rw_recipe_low_dtype(b.t, x), RW_F32);
    cr_expect_eq(rw_recipe_end(b.t), RW_ERR_REGION);
    rw_error_clear(b.ctx);
    cr_expect_eq(ckpt_policy_end(b.t), RW_ERR_REGION);
    rw_error_clear(b.ctx);
    cr_expect_eq(ckpt_end(b.t), RW_ERR_REGION);
    rw_error_clear(b.ctx);
    const rw_composite c = rw_composite_begin(b.t, "scope");
    cr_assert_eq(rw_no_grad_begin(b.t), RW_OK);
    cr_expect_null(rw_composite_end(&c, NULL));
    cr_expect_eq(rw_no_grad_end(b.t), RW_ERR_REGION);
    rw_error_clear(b.ctx);
    fixture_close(&b);
}

/* A region that was open before, and that the failed function ended, is open again. */
Test(composite, a_region_that_a_failed_function_ended_is_open_again)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(4, 8));
    ckpt_begin(b.t, "outer");
    rw_tensor *const y = rw_tanh(b.t, x);
    const rw_composite c = rw_composite_begin(b.t, "ends");
    cr_assert_eq(ckpt_end(b.t), RW_OK);
    cr_assert_not_null(rw_exp(b.t, y));
    cr_expect_null(rw_composite_end(&c, NULL));
    rw_tensor *const z = rw_sigmoid(b.t, y);
    cr_expect_eq(ckpt_end(b.t), RW_OK, "%s", rw_error_message(b.ctx));
    cr_expect_eq(rw_backward(b.t, rw_sum_all(b.t, z)), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(composite, functions_nest)
{
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(4, 8)), *const y = param(&b, "y", RW_SHAPE(3));
    const rw_composite outer = rw_composite_begin(b.t, "outer");
    rw_tensor *const h = rw_tanh(b.t, x);
    const size_t nodes = rw_tape_nodes(b.t);
    cr_assert_null(noisy_sum(b.t, h, y));
    expect_message(&b, RW_ERR_SHAPE, "outer: add(");
    cr_expect_eq(rw_tape_nodes(b.t), nodes, "only the inner function's ops are removed");
    cr_expect_eq(rw_composite_end(&outer, h), h);
    cr_assert_null(rw_add(b.t, x, y));
    cr_expect(!strstr(rw_error_message(b.ctx), "outer"), "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

/* Each removed ops that other functions had recorded. */
Test(composite, an_end_in_the_wrong_order_is_refused)
{
    static const char refusal[] = "rw_composite_end: expected the innermost function";
    struct fixture b = fixture_open(1, 1);
    rw_tensor *const x = param(&b, "x", RW_SHAPE(4, 8));
    const rw_composite outer = rw_composite_begin(b.t, "outer");
    rw_tensor *const h = rw_tanh(b.t, x);
    const rw_composite inner = rw_composite_begin(b.t, "inner");
    cr_expect_null(rw_composite_end(&outer, NULL));
    expect_message(&b, RW_ERR_ARGUMENT, refusal);
    cr_expect_eq(rw_tape_nodes(b.t), 1, "nothing is removed");
    cr_expect_eq(rw_composite_end(&inner, h), h);
    cr_expect_null(rw_composite_end(&outer, NULL));
    cr_expect_eq(rw_tape_nodes(b.t), 0);
    rw_tanh(b.t, rw_tanh(b.t, x));
    const rw_composite *const ended[] = { &outer, &inner };
    for (int i = 0; i < 2; i++) {
        cr_expect_null(rw_composite_end(ended[i], NULL));
        expect_message(&b, RW_ERR_ARGUMENT, refusal);
        cr_expect_eq(rw_tape_nodes(b.t), 2, "ops after its end stay");
    }
    const rw_composite late = rw_composite_begin(b.t, "late");
    rw_tape_reset(b.t);
    cr_expect_null(rw_composite_end(&late, NULL));
    expect_message(&b, RW_ERR_ARGUMENT, refusal);
    cr_expect_eq(rw_backward(b.t, rw_sum_all(b.t, rw_tanh(b.t, x))), RW_OK, "%s", rw_error_message(b.ctx));
    fixture_close(&b);
}

Test(composite, a_null_tape_is_left_to_the_ops)
{
    const rw_composite c = rw_composite_begin(NULL, "none");
    cr_expect_null(c.tape);
    rw_tensor *const x = RW_NONE;
    cr_expect_eq(rw_composite_end(&c, x), x);
    cr_expect_eq(rw_composite_end(NULL, x), x);
    cr_expect(!rw_recording_refused(NULL, "none"));
}
