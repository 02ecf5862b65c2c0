/*
 * Products of FP8 data on simulated devices of all generations: cuBLASLt's from compute capability 8.9 on, chosen once
 * per signature; dequantized on older ones, and if the library has none after all. Results: ops/fp8_matmul.c.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <cudasim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 64, IN = 96, OUT = 80, DECODED = 2 * (ROWS + OUT) * IN, GRADIENTS = 4 * (ROWS * IN + OUT * IN) };

static struct fixture opened(int major, int minor)
{
    struct fixture b = { 0 };
    cudasim_set_capability(major, minor);
    cr_assert_eq(rw_context_create(&b.ctx, &(rw_context_params){ .device = RW_DEVICE_CUDA, .seed = 3 }), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    rw_tensor *const x = rw_param(b.ctx, "x", RW_F32, RW_SHAPE(ROWS, IN));
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(OUT, IN));
    rw_init_normal(x, 0, 3);
    rw_init_normal(w, 0, 0.02);
    return b;
}

/* Both gradients of a layer, and the largest workspace of forward and backward. */
static unsigned char *run(struct fixture *b, const rw_recipe *recipe, size_t *ret_workspace)
{
    rw_memory m;
    size_t bytes;
    rw_zero_grad(b->ctx);
    cr_assert_eq(rw_recipe_begin(b->t, recipe), RW_OK);
    rw_tensor *const y = rw_linear(b->t, rw_param_find(b->ctx, "x"), rw_param_find(b->ctx, "w"), RW_NONE);
    cr_assert_eq(rw_recipe_end(b->t), RW_OK);
    rw_tensor *const loss = rw_sum(b->t, rw_mul(b->t, y, y), RW_ALL_AXES, false);
    cr_assert_eq(rw_backward(b->t, loss), RW_OK, "%s", rw_error_message(b->ctx));
    rw_memory_stats(b->ctx, &m);
    *ret_workspace = m.workspace;
    rw_tape_reset(b->t);
    unsigned char *const g = all_gradients(b->ctx, &bytes);
    cr_assert_eq(bytes, GRADIENTS);
    return g;
}

static void close_device(struct fixture *b)
{
    fixture_close(b);
    cr_assert_eq(cudasim_live_allocations(), 0);
}

/* Products since the context was created: forward, and both gradients, of each step. */
static void expect_products(const struct fixture *b, uint64_t fp8, uint64_t decoded)
{
    rw_float8_products n = { 99, 99 };
    cr_expect_eq(rw_float8_product_stats(b->ctx, &n), RW_OK);
    cr_expect(n.fp8 == fp8 && n.decoded == decoded, "%d by FP8, %d decoded; expected %d and %d", (int)n.fp8,
              (int)n.decoded, (int)fp8, (int)decoded);
}

Test(cuda_fp8_matmul, are_counted_nowhere_on_the_cpu)
{
    struct fixture b = { 0 };
    size_t workspace;
    cr_assert_eq(rw_context_create(&b.ctx, &(rw_context_params){ .device = RW_DEVICE_CPU, .seed = 3 }), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    rw_init_normal(rw_param(b.ctx, "x", RW_F32, RW_SHAPE(ROWS, IN)), 0, 3);
    rw_init_normal(rw_param(b.ctx, "w", RW_F32, RW_SHAPE(OUT, IN)), 0, 0.02);
    free(run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace));
    expect_products(&b, 0, 0);
    fixture_close(&b);
}

Test(cuda_fp8_matmul, are_multiplied_from_8_9_on)
{
    static const int versions[][2] = { { 8, 6 }, { 8, 9 }, { 9, 0 }, { 10, 0 }, { 12, 0 } };
    size_t workspace;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct fixture b = opened(versions[i][0], versions[i][1]);
        free(run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace));
        cr_expect_eq(workspace < DECODED, i > 0, "%d.%d: %zu bytes", versions[i][0], versions[i][1], workspace);
        expect_products(&b, i ? 3 : 0, i ? 0 : 3);
        close_device(&b);
    }
}

static int occurrences(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

/* A trace says of each product of FP8 operands how it was executed, and of no other op. */
static void expect_traced(int major, const char *how)
{
    static char text[1 << 18];
    char path[] = "/tmp/rewind-codes-XXXXXX", product[64];
    size_t workspace;
    close(mkstemp(path));
    setenv("REWIND_TRACE", path, 1);
    struct fixture b = opened(major, 0);
    unsetenv("REWIND_TRACE");
    free(run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace));
    close_device(&b);
    FILE *const file = fopen(path, "r");
    cr_assert_not_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    remove(path);
    snprintf(product, sizeof product, "\"product\":\"%s\"", how);
    cr_expect_eq(occurrences(text, product), 3);
    cr_expect_eq(occurrences(text, "\"product\":"), 3);
}

/* Each in a process of its own, because a second trace has another name. */
Test(cuda_fp8_matmul, a_trace_says_that_they_were_multiplied) { expect_traced(9, "fp8"); }
Test(cuda_fp8_matmul, a_trace_says_that_they_were_decoded) { expect_traced(8, "decoded to bfloat16"); }

/* Their scales have another layout in cuBLASLt; and it does not accept two operands of E5M2. */
Test(cuda_fp8_matmul, of_blocks_and_of_other_types_are_decoded)
{
    static const rw_recipe all[] = { { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_1X128 },
                                     { .kind = RW_RECIPE_F8, .scaling = RW_SCALING_MX } };
    size_t workspace;
    for (size_t i = 0; i < 2; i++) {
        struct fixture b = opened(9, 0), old = opened(8, 0);
        unsigned char *const now = run(&b, &all[i], &workspace), *const then = run(&old, &all[i], &workspace);
        cr_expect_geq(workspace, DECODED);
        cr_expect_eq(first_difference(now, then, GRADIENTS), -1);
        expect_products(&b, 0, 3);
        free(now), free(then);
        fixture_close(&b);
        close_device(&old);
    }
}

/* A second query for the same product would return another algorithm: there is none. */
Test(cuda_fp8_matmul, the_algorithm_is_chosen_once)
{
    struct fixture b = opened(9, 0);
    size_t workspace;
    unsigned char *const first = run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace);
    const long before = cudasim_calls("cublasLtMatmulAlgoGetHeuristic");
    cudasim_set_blas_rotation(true);
    for (int i = 0; i < 4; i++) {
        ckpt_set_policy(b.t, i % 2 ? "none" : "ops:quantize"); /* a plan of its own */
        unsigned char *const again = run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace);
        cr_expect_eq(first_difference(first, again, GRADIENTS), -1);
        free(again);
    }
    cudasim_set_blas_rotation(false);
    cr_expect_eq(cudasim_calls("cublasLtMatmulAlgoGetHeuristic"), before);
    free(first);
    close_device(&b);
}

/* The product of forward, as long as the context exists. */
Test(cuda_fp8_matmul, that_the_library_refuses_are_decoded)
{
    size_t workspace;
    unsigned char *refused[2];
    struct fixture b = opened(9, 0);
    cudasim_fail_call("cublasLtMatmulAlgoGetHeuristic", 1, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
    for (int i = 0; i < 2; i++) {
        refused[i] = run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace);
        cudasim_clear_faults();
        cr_expect_geq(workspace, DECODED);
        expect_products(&b, 2 * ((uint64_t)i + 1), (uint64_t)i + 1);
    }
    cr_expect_eq(first_difference(refused[0], refused[1], GRADIENTS), -1);
    free(refused[0]), free(refused[1]);
    close_device(&b);
}

/* Whichever query for an algorithm is refused: the weight's gradient uses the same units without a sum, as in the first
   micro-batch, and with one. */
Test(cuda_fp8_matmul, with_a_sum_and_without_are_multiplied_by_the_same_units)
{
    uint64_t decoded_once = 0;
    for (long n = 1; n <= 6; n++) {
        struct fixture b = opened(9, 0);
        rw_float8_products first, second;
        rw_tensor *const w = rw_param_find(b.ctx, "w");
        cudasim_fail_call("cublasLtMatmulAlgoGetHeuristic", n, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
        for (int step = 0; step < 2; step++) {
            cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8 }), RW_OK);
            rw_tensor *const y = rw_linear(b.t, rw_param_find(b.ctx, "x"), w, RW_NONE);
            cr_assert_eq(rw_recipe_end(b.t), RW_OK);
            cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false)), RW_OK, "%s",
                         rw_error_message(b.ctx));
            rw_tape_reset(b.t);
            rw_float8_product_stats(b.ctx, step ? &second : &first);
        }
        cr_expect_eq(second.decoded, 2 * first.decoded, "question %ld", n);
        cr_expect_eq(second.fp8, 2 * first.fp8, "question %ld", n);
        decoded_once += first.decoded > 0;
        cudasim_clear_faults();
        close_device(&b);
    }
    cr_expect_geq(decoded_once, 3, "no refusal mattered: the test proves nothing");
}

/* 63 times 448 * 256, and 1: float32 holds that, and fast accumulation does not. */
Test(cuda_fp8_matmul, sums_keep_the_bits_of_float32)
{
    static float x[ROWS * IN], c[ROWS * OUT], dw[OUT * IN];
    struct fixture b = opened(9, 0);
    for (int i = 0; i < ROWS * IN; i++) x[i] = i < IN ? 1 : 448;
    for (int i = 0; i < ROWS * OUT; i++) c[i] = i < OUT ? 1 : 256;
    rw_tensor *const in = rw_input(b.t, RW_F32, RW_SHAPE(ROWS, IN), x, sizeof x), *const w = rw_param_find(b.ctx, "w");
    cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8 }), RW_OK);
    rw_tensor *const y = rw_cast(b.t, rw_linear(b.t, in, w, RW_NONE), RW_F32);
    cr_assert_eq(rw_recipe_end(b.t), RW_OK);
    rw_tensor *const by = rw_input(b.t, RW_F32, RW_SHAPE(ROWS, OUT), c, sizeof c);
    cr_assert_eq(rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, by), RW_ALL_AXES, false)), RW_OK);
    cr_assert_eq(rw_read(NULL, rw_gradient(w), dw, sizeof dw), RW_OK);
    for (int i = 0; i < OUT * IN; i++) cr_assert_eq(dw[i], 63 * 448 * 256 + 1, "%d: %f", i, (double)dw[i]);
    close_device(&b);
}

/* Whichever call fails, nothing is leaked, and the next step is complete. */
Test(cuda_fp8_matmul, a_call_that_fails)
{
    static const char *const calls[] = { "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute",
                                         "cublasLtMatrixLayoutCreate", "cublasLtMatmul" };
    size_t workspace;
    struct fixture clean = opened(9, 0);
    unsigned char *const want = run(&clean, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace);
    fixture_close(&clean);
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (long n = 1; n <= 12; n++) {
            struct fixture b = opened(9, 0);
            cudasim_fail_call(calls[c], n, 13 /* CUBLAS_STATUS_EXECUTION_FAILED */);
            cr_assert_eq(rw_recipe_begin(b.t, &(rw_recipe){ .kind = RW_RECIPE_F8 }), RW_OK);
            rw_tensor *const y = rw_linear(b.t, rw_param_find(b.ctx, "x"), rw_param_find(b.ctx, "w"), RW_NONE);
            cr_assert_eq(rw_recipe_end(b.t), RW_OK);
            rw_backward(b.t, rw_sum(b.t, rw_mul(b.t, y, y), RW_ALL_AXES, false));
            cudasim_clear_faults();
            rw_error_clear(b.ctx);
            rw_tape_reset(b.t);
            unsigned char *const got = run(&b, &(rw_recipe){ .kind = RW_RECIPE_F8 }, &workspace);
            cr_expect_eq(first_difference(want, got, GRADIENTS), -1, "%s %ld", calls[c], n);
            free(got);
            close_device(&b);
        }
    free(want);
}
