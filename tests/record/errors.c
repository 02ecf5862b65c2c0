/* Invalid input: one message that names the op, the shapes or values, and this file; nothing is leaked; the tape is
   usable after a reset. */
#include "support/support.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fixture b;

static void open_fixture(void)
{
    b = fixture_open(1, 1);
}

static void close_fixture(void)
{
    fixture_close(&b);
}

TestSuite(errors, .init = open_fixture, .fini = close_fixture);

/* The first error has that status and its text contains all of these. Then the context must work again. */
static void expect(rw_status status, const char *const *parts)
{
    const char *const m = rw_error_message(b.ctx);
    cr_assert_eq(rw_error_status(b.ctx), status, "status %s: %s", rw_status_name(rw_error_status(b.ctx)), m);
    for (; *parts; parts++) cr_assert(strstr(m, *parts), "\"%s\" is not in: %s", *parts, m);
    rw_error_clear(b.ctx);
    rw_tape_reset(b.t);
    rw_tensor *p = rw_param_find(b.ctx, "works");
    if (!p) p = rw_param(b.ctx, "works", RW_F32, RW_SHAPE(2));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, p, p), RW_ALL_AXES, false)), RW_OK, "%s",
                 rw_error_message(b.ctx));
    rw_tape_reset(b.t);
}
#define EXPECT(status, ...) expect(status, (const char *const[]){ __VA_ARGS__, NULL })

static rw_tensor *in(rw_dtype dtype, rw_shape shape)
{
    return rw_input(b.t, dtype, shape, NULL, 0);
}

Test(errors, shapes_that_do_not_broadcast)
{
    cr_assert_null(rw_add(b.t, in(RW_F32, RW_SHAPE(2, 3)), in(RW_F32, RW_SHAPE(4))));
    EXPECT(RW_ERR_SHAPE, "add(", "f32[2, 3]", "f32[4]", "errors.c:", "broadcast");
}

Test(errors, inner_extents_of_a_product)
{
    cr_assert_null(rw_matmul(b.t, in(RW_F32, RW_SHAPE(2, 3)), in(RW_F32, RW_SHAPE(4, 5))));
    EXPECT(RW_ERR_SHAPE, "matmul(", "f32[2, 3]", "f32[4, 5]", "errors.c:");
}

Test(errors, residuals_that_do_not_fit)
{
    rw_tensor *const x = in(RW_F32, RW_SHAPE(4, 6)), *const w = in(RW_F32, RW_SHAPE(5, 6));
    cr_assert_null(rw_linear_add(b.t, x, w, RW_NONE, x));
    EXPECT(RW_ERR_SHAPE, "linear_add(", "residual", "f32[4, 6]", "errors.c:");
    cr_assert_null(rw_linear_add(b.t, in(RW_F32, RW_SHAPE(4, 6)), in(RW_F32, RW_SHAPE(5, 6)), RW_NONE,
                                 in(RW_F32, RW_SHAPE(5))));
    EXPECT(RW_ERR_SHAPE, "linear_add(", "residual", "f32[5]");
    cr_assert_null(rw_linear_add(b.t, in(RW_F32, RW_SHAPE(4, 6)), in(RW_F32, RW_SHAPE(5, 6)),
                                 in(RW_F32, RW_SHAPE(4, 5)), in(RW_F32, RW_SHAPE(4, 5))));
    EXPECT(RW_ERR_SHAPE, "linear_add(", "bias: expected shape [5]", "got [4, 5]");
    cr_assert_null(rw_linear_add(b.t, in(RW_F32, RW_SHAPE(4, 7)), in(RW_F32, RW_SHAPE(5, 6)), RW_NONE,
                                 in(RW_F32, RW_SHAPE(4, 5))));
    EXPECT(RW_ERR_SHAPE, "linear_add(", "weight: expected [out, 7]", "got [5, 6]");
    cr_assert_null(rw_linear_add(b.t, in(RW_F32, RW_SHAPE(4, 6)), in(RW_F32, RW_SHAPE(5, 6)), RW_NONE,
                                 in(RW_F64, RW_SHAPE(4, 5))));
    EXPECT(RW_ERR_DTYPE, "linear_add(", "f64[4, 5]");
    cr_assert_null(rw_dropout_add(b.t, in(RW_F32, RW_SHAPE(4, 5)), in(RW_F32, RW_SHAPE(5)), 0.5f));
    EXPECT(RW_ERR_SHAPE, "dropout_add(", "residual", "errors.c:");
    cr_assert_null(rw_dropout_add(b.t, in(RW_F32, RW_SHAPE(5)), in(RW_BF16, RW_SHAPE(5)), 0.5f));
    EXPECT(RW_ERR_DTYPE, "dropout_add(", "bf16");
    cr_assert_null(rw_dropout_add(b.t, in(RW_F32, RW_SHAPE(5)), in(RW_F32, RW_SHAPE(5)), 1));
    EXPECT(RW_ERR_ARGUMENT, "dropout_add(", "p: expected a probability", "got 1");
}

Test(errors, element_types_that_differ)
{
    cr_assert_null(rw_mul(b.t, in(RW_F32, RW_SHAPE(2)), in(RW_BF16, RW_SHAPE(2))));
    EXPECT(RW_ERR_DTYPE, "mul(", "f32", "bf16", "errors.c:");
}

Test(errors, integers_where_floats_are_needed)
{
    cr_assert_null(rw_tanh(b.t, in(RW_I32, RW_SHAPE(2))));
    EXPECT(RW_ERR_DTYPE, "tanh(", "i32[2]", "errors.c:");
}

Test(errors, axes_out_of_range)
{
    cr_assert_null(rw_sum(b.t, in(RW_F32, RW_SHAPE(2, 2)), RW_AXES(2), false));
    EXPECT(RW_ERR_SHAPE, "sum(", "axis: expected -2 to 1", "got 2", "errors.c:");
    cr_assert_null(rw_softmax(b.t, in(RW_F32, RW_SHAPE(2, 2)), -3));
    EXPECT(RW_ERR_SHAPE, "softmax(", "axis: expected -2 to 1", "got -3");
    cr_assert_null(rw_slice(b.t, in(RW_F32, RW_SHAPE(2, 2)), 0, 1, 5));
    EXPECT(RW_ERR_SHAPE, "slice(", "the extent of axis 0, got 1 and 5");
    cr_assert_null(rw_reshape(b.t, in(RW_F32, RW_SHAPE(2, 3)), RW_SHAPE(4)));
    EXPECT(RW_ERR_SHAPE, "reshape(", "6 elements");
}

Test(errors, values_out_of_range)
{
    cr_assert_null(rw_dropout(b.t, in(RW_F32, RW_SHAPE(2)), 1.0f));
    EXPECT(RW_ERR_ARGUMENT, "dropout(", "p: expected a probability", "got 1", "errors.c:");
    cr_assert_null(rw_dropout(b.t, in(RW_F32, RW_SHAPE(2)), NAN));
    EXPECT(RW_ERR_ARGUMENT, "dropout(");
}

Test(errors, null_passes_through_with_the_first_message_kept)
{
    rw_tensor *const bad = rw_matmul(b.t, in(RW_F32, RW_SHAPE(2)), in(RW_F32, RW_SHAPE(2)));
    rw_tensor *const later = rw_tanh(b.t, rw_add(b.t, bad, bad));
    cr_assert_null(later);
    cr_assert_eq(rw_backward(b.t, later), RW_ERR_SHAPE);
    EXPECT(RW_ERR_SHAPE, "matmul(");
}

Test(errors, a_tensor_of_another_tape_or_context)
{
    rw_tape *other = NULL;
    cr_assert_eq(rw_tape_create(&other, b.ctx), RW_OK);
    rw_tensor *const theirs = rw_input(other, RW_F32, RW_SHAPE(2), NULL, 0);
    cr_assert_null(rw_neg(b.t, theirs));
    EXPECT(RW_ERR_ARGUMENT, "neg", "another tape", "errors.c:");
    rw_tape_destroy(&other);
    struct fixture far = fixture_open(1, 1);
    rw_tensor *const p = rw_param(far.ctx, "far", RW_F32, RW_SHAPE(2));
    cr_assert_null(rw_neg(b.t, p));
    EXPECT(RW_ERR_ARGUMENT, "far", "another context");
    fixture_close(&far);
}

Test(errors, regions_that_do_not_match)
{
    cr_assert_eq(ckpt_end(b.t), RW_ERR_REGION);
    EXPECT(RW_ERR_REGION, "ckpt_end", "errors.c:");
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(2));
    ckpt_begin(b.t, "left_open");
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, p, RW_ALL_AXES, false)), RW_ERR_REGION);
    EXPECT(RW_ERR_REGION, "left_open", "errors.c:");
    cr_assert_neq(ckpt_begin(b.t, ""), RW_OK);
    EXPECT(RW_ERR_ARGUMENT, "ckpt_begin");
}

Test(errors, backward_from_what_is_no_loss)
{
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3));
    cr_assert_eq(rw_backward(b.t, rw_tanh(b.t, p)), RW_ERR_SHAPE);
    EXPECT(RW_ERR_SHAPE, "rw_backward(loss): expected 1 element, got 3");
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, in(RW_F32, RW_SHAPE(3)), RW_ALL_AXES, false)), RW_ERR_ARGUMENT);
    EXPECT(RW_ERR_ARGUMENT, "no parameter");
    cr_assert_eq(rw_backward(b.t, NULL), RW_ERR_ARGUMENT);
    EXPECT(RW_ERR_ARGUMENT, "NULL");
}

Test(errors, a_bad_policy_is_refused_with_the_position)
{
    static const struct {
        const char *spec, *part;
        rw_status status;
    } bad[] = { { "selectve:x", "column 1", RW_ERR_POLICY }, { "uniform:0", "column 9", RW_ERR_POLICY },
                { "uniform", "column 8", RW_ERR_POLICY },   { "selective:", "column 11", RW_ERR_POLICY },
                { "full,", "column 5", RW_ERR_POLICY },     { "names:qkv", "column 7", RW_ERR_POLICY },
                { "", "column 1", RW_ERR_POLICY },          { "budget:0GiB", "column 8", RW_ERR_POLICY },
                { "full+offload:", "column 14", RW_ERR_POLICY }, { "full+x", "column 6", RW_ERR_POLICY } };
    ckpt_set_policy(b.t, "full");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(ckpt_set_policy(b.t, bad[i].spec), bad[i].status, "%s", bad[i].spec);
        EXPECT(bad[i].status, bad[i].part);
        cr_assert_str_eq(ckpt_policy(b.t), "full", "the old policy stays");
    }
}

Test(errors, an_index_out_of_range_fails_when_it_runs_and_changes_no_gradient)
{
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(4, 2));
    const int32_t index[2] = { 1, 9 };
    rw_tensor *const y = rw_embedding(b.t, table, rw_input(b.t, RW_I32, RW_SHAPE(2), index, sizeof index));
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_ERR_ARGUMENT);
    EXPECT(RW_ERR_ARGUMENT, "embedding", "errors.c:", "out of range");
    float g[8];
    cr_assert_eq(rw_read(NULL, rw_gradient(table), g, sizeof g), RW_OK);
    for (int i = 0; i < 8; i++) cr_assert_eq(g[i], 0);
}

Test(errors, reading_with_the_wrong_size_leaves_the_output_untouched)
{
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3));
    float out[3] = { 7, 7, 7 };
    cr_assert_eq(rw_read(b.t, rw_tanh(b.t, p), out, 8), RW_ERR_ARGUMENT);
    cr_assert_eq(out[0], 7);
    EXPECT(RW_ERR_ARGUMENT, "rw_read", "12");
    cr_assert_eq(rw_read(b.t, p, NULL, sizeof out), RW_ERR_ARGUMENT);
    EXPECT(RW_ERR_ARGUMENT, "rw_read: out is NULL", "memory to write to");
    cr_assert(isnan(rw_item(b.t, rw_tanh(b.t, p))));
    EXPECT(RW_ERR_SHAPE, "rw_item(x): expected 1 element, got 3");
}

Test(errors, names_and_types_of_parameters)
{
    cr_assert_not_null(rw_param(b.ctx, "twice", RW_F32, RW_SHAPE(1)));
    cr_assert_null(rw_param(b.ctx, "twice", RW_F32, RW_SHAPE(1)));
    EXPECT(RW_ERR_ARGUMENT, "twice", "errors.c:");
    cr_assert_null(rw_param(b.ctx, "int", RW_I32, RW_SHAPE(1)));
    EXPECT(RW_ERR_DTYPE, "int");
    cr_assert_null(rw_param(b.ctx, "huge", RW_F32, RW_SHAPE((int64_t)1 << 40, (int64_t)1 << 40)));
    EXPECT(RW_ERR_SHAPE, "rw_param");
    cr_assert_null(rw_param(b.ctx, "neg", RW_F32, RW_SHAPE(-1)));
    EXPECT(RW_ERR_SHAPE, "rw_param");
}

static rw_status no_rule_check(rw_op_call *call)
{
    return rw_op_output_like(call, 0, 0);
}

static rw_status no_rule_kernel(const rw_kernel *k)
{
    memcpy(k->out[0].data, k->in[0].data, (size_t)k->in[0].layout->numel * sizeof(float));
    return RW_OK;
}

HOST_KERNEL_OF(no_rule_kernel)

Test(errors, an_op_without_a_gradient_rule)
{
    static const rw_op_def op = { .name = "ruleless", .n_inputs = 1, .n_outputs = 1, .check = no_rule_check,
                                  .kernel = HOST_KERNEL(no_rule_kernel) };
    rw_tensor *p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3));
    rw_tensor *const y = rw_apply(b.t, &op, &p, 1, NULL, 0, NULL);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, y, RW_ALL_AXES, false)), RW_ERR_NO_GRADIENT);
    EXPECT(RW_ERR_NO_GRADIENT, "ruleless", "errors.c:");
}

Test(errors, files_that_are_not_weights)
{
    char path[] = "/tmp/rewind-test-XXXXXX";
    const int fd = mkstemp(path);
    rw_tensor *const p = rw_param(b.ctx, "p", RW_F32, RW_SHAPE(3));
    const float x[3] = { 1, 2, 3 };
    rw_write(p, x, sizeof x);
    cr_assert_eq(write(fd, "nonsense that is longer than eight bytes", 40), 40);
    close(fd);
    cr_assert_eq(rw_load(b.ctx, path), RW_ERR_IO);
    EXPECT(RW_ERR_IO, path);
    cr_assert_eq(rw_load(b.ctx, "/nonexistent/weights"), RW_ERR_IO);
    EXPECT(RW_ERR_IO, "/nonexistent/weights");
    cr_assert_eq(rw_save(b.ctx, "/nonexistent/weights"), RW_ERR_IO);
    EXPECT(RW_ERR_IO, "/nonexistent/weights");
    cr_assert_eq(rw_save(b.ctx, path), RW_OK);
    rw_init_constant(p, 0);
    cr_assert_eq(rw_load(b.ctx, path), RW_OK, "%s", rw_error_message(b.ctx));
    float y[3];
    rw_read(NULL, p, y, sizeof y);
    cr_assert_eq(memcmp(x, y, sizeof x), 0);
    rw_param(b.ctx, "missing", RW_F32, RW_SHAPE(2));
    rw_init_constant(p, 5);
    cr_assert_eq(rw_load(b.ctx, path), RW_ERR_IO);
    rw_error_clear(b.ctx);
    rw_read(NULL, p, y, sizeof y);
    cr_assert_eq(y[0], 5, "nothing changes unless all fit");
    remove(path);
}

Test(errors, an_unknown_device)
{
    rw_context *c = NULL;
    const rw_status cuda = rw_context_create(&c, &(rw_context_params){ .device = RW_DEVICE_CUDA });
    cr_assert(cuda == RW_OK || cuda == RW_ERR_UNSUPPORTED, "%s", rw_status_name(cuda)); /* exists, or is unsupported */
    cr_assert_eq(cuda == RW_OK, c != NULL);
    if (c) cr_assert_eq(rw_context_device(c), RW_DEVICE_CUDA);
    rw_context_destroy(&c);
    cr_assert_eq(rw_context_create(&c, &(rw_context_params){ .device = (rw_device)17 }), RW_ERR_ARGUMENT);
    cr_assert_eq(rw_context_create(NULL, NULL), RW_ERR_ARGUMENT);
}
