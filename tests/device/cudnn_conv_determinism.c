/*
 * Convolutions by cuDNN on a device, or a simulated one: the library computes, and the engines that claim to be
 * deterministic are. Ten steps, a graph, a policy that recomputes values, and another context give the same bytes.
 * Skipped if cuDNN is not installed. Results are checked by scripts/gpu_check.sh, which runs ops/conv.c and the tables
 * of cases with REWIND_CONV=cudnn.
 */
#include "device/conv_layer_fixture.h"
#include "support/support.h"

#include "device/cuda/cudnn/conv.h"
#include "device/cuda/cudnn/library.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 10, KINDS = 3 };

/* Sums long enough to be split; strides; groups and dilation; depthwise; odd numbers. */
static const struct layer layers[] = {
    { 4, 16, 12, 12, 32, 3, 1, 1, 1, 1 }, { 2, 3, 17, 17, 24, 5, 2, 2, 1, 1 }, { 2, 16, 9, 9, 24, 3, 1, 2, 2, 4 },
    { 3, 32, 10, 10, 32, 3, 1, 1, 1, 32 }, { 3, 7, 11, 11, 5, 3, 2, 1, 1, 1 },
};

static void open_context(struct fixture *b, const struct layer *l, rw_dtype dtype)
{
    *b = fixture_open(7, 2);
    rw_init_normal(rw_param(b->ctx, "x", dtype, RW_SHAPE(l->n, l->c, l->h, l->w)), 0, 1);
    rw_init_normal(rw_param(b->ctx, "w", dtype, RW_SHAPE(l->oc, l->c / l->groups, l->k, l->k)), 0, 0.2);
    rw_init_normal(rw_param(b->ctx, "b", dtype, RW_SHAPE(l->oc)), 0, 1);
}

static rw_tensor *record(struct fixture *b, const struct layer *l)
{
    const rw_conv2d_params params = { .stride = { l->stride, l->stride },
                                      .padding = { l->padding, l->padding },
                                      .dilation = { l->dilation, l->dilation },
                                      .groups = l->groups };
    rw_tensor *const x = rw_tanh(b->t, rw_param_find(b->ctx, "x"));
    rw_tensor *const y = rw_conv2d(b->t, x, rw_param_find(b->ctx, "w"), rw_param_find(b->ctx, "b"), &params);
    return rw_sum(b->t, rw_mul(b->t, y, rw_tanh(b->t, y)), RW_ALL_AXES, false);
}

static unsigned char *step(struct fixture *b, const struct layer *l, const char *policy, size_t *ret_bytes)
{
    rw_tape_reset(b->t);
    rw_zero_grad(b->ctx);
    cr_assert_eq(ckpt_set_policy(b->t, policy), RW_OK);
    cr_assert_eq(rw_backward(b->t, record(b, l)), RW_OK, "%s", rw_error_message(b->ctx));
    return all_gradients(b->ctx, ret_bytes);
}

/* The gradients after three launches of the layer as a graph. */
static unsigned char *launched(struct fixture *b, const struct layer *l, size_t *ret_bytes)
{
    rw_graph *g = NULL;
    unsigned char *all = NULL;
    rw_tape_reset(b->t);
    cr_assert_eq(rw_graph_create(&g, b->t, record(b, l), &(rw_graph_params){ 0 }), RW_OK, "%s",
                 rw_error_message(b->ctx));
    for (int i = 0; i < 3; i++) {
        free(all);
        rw_zero_grad(b->ctx);
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b->ctx));
        all = all_gradients(b->ctx, ret_bytes);
    }
    rw_graph_destroy(&g);
    return all;
}

/* For how many of the three products the library has a pinned engine. */
static int pinned(const struct fixture *b, const struct layer *l, rw_dtype dtype)
{
    const struct rw_cuda *const cuda = b->ctx->device_state;
    size_t workspace;
    int n = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        const bool bias = kind == RW_DNN_CONV_FORWARD;
        const struct rw_dnn_conv_signature s = signature_of(l, dtype, (enum rw_dnn_conv_kind)kind, bias);
        n += rw_dnn_conv_has(cuda->conv, &s, &workspace);
    }
    return n;
}

static void expect_same(const unsigned char *first, unsigned char *again, size_t bytes, const char *how, size_t i,
                        rw_dtype dtype)
{
    cr_expect_eq(first_difference(first, again, bytes), -1, "layer %zu, %s: %s", i, rw_dtype_name(dtype), how);
    free(again);
}

/* Runs every layer repeatedly, in a graph and under a policy, and compares all gradients. */
static void same_bytes(rw_dtype dtype)
{
    struct rw_cuda cuda = { .ordinal = 0 };
    struct rw_cudnn dnn;
    memset(&dnn, 0, sizeof dnn);
    if (test_device() != RW_DEVICE_CUDA) cr_skip_test("not on a CUDA device");
    if (rw_cudnn_load(&dnn, &cuda)) cr_skip_test("cuDNN is not installed, or older than the library uses");
    setenv("REWIND_CONV", "cudnn", 1);
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        struct fixture b, other;
        size_t bytes;
        open_context(&b, &layers[i], dtype);
        unsigned char *const first = step(&b, &layers[i], "none", &bytes);
        cr_expect_eq(pinned(&b, &layers[i], dtype), KINDS, "layer %zu, %s: not by cuDNN", i, rw_dtype_name(dtype));
        for (int n = 1; n < STEPS; n++)
            expect_same(first, step(&b, &layers[i], n % 2 ? "full" : "none", &bytes), bytes, "again", i, dtype);
        expect_same(first, launched(&b, &layers[i], &bytes), bytes, "in a graph", i, dtype);
        open_context(&other, &layers[i], dtype);
        expect_same(first, step(&other, &layers[i], "none", &bytes), bytes, "in another context", i, dtype);
        fixture_close(&other);
        fixture_close(&b);
        free(first);
    }
}

Test(cudnn_conv_determinism, f32)
{
    same_bytes(RW_F32);
}

Test(cudnn_conv_determinism, bf16)
{
    same_bytes(RW_BF16);
}

Test(cudnn_conv_determinism, f16)
{
    same_bytes(RW_F16);
}

Test(cudnn_conv_determinism, f64)
{
    same_bytes(RW_F64);
}
