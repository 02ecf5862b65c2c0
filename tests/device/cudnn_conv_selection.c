/*
 * Convolutions by the simulated device's cuDNN: on request or not, installed or not, which engines are chosen, that the
 * choice is permanent, and the state after a failure of each call. Results: ops/conv.c and the tables of cases, which
 * scripts/test.sh runs with REWIND_CONV=cudnn as well.
 */
#include "support/compare.h"
#include "support/support.h"

#include "base/alloc.h"
#include "device/cuda/cudnn/conv.h"
#include "device/cuda/cudnn/execution_plan_cache.h"
#include "record/context.h"

#include <criterion/criterion.h>
#include <cudasim.h>
#include <cudnn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const rw_dtype types[] = { RW_F32, RW_BF16, RW_F16, RW_F64 };

/* Every engine that is not deterministic or not exact: convolution.cc. */
#define REFUSED "1,2,3,4,6,10"
enum { RUNS = 3 }; /* convolutions of a step: forward, data, weight */

struct world {
    struct fixture b;
    rw_tensor *x, *w, *bias;
};

static void open_context(struct world *o, const char *choice, bool tf32)
{
    if (choice) setenv("REWIND_CONV", choice, 1);
    else unsetenv("REWIND_CONV");
    *o = (struct world){ 0 };
    const rw_context_params params = { .device = RW_DEVICE_CUDA, .seed = 3, .tf32 = tf32 };
    cr_assert_eq(rw_context_create(&o->b.ctx, &params), RW_OK);
    cr_assert_eq(rw_tape_create(&o->b.t, o->b.ctx), RW_OK);
}

/* Every type holds them; their products differ widely in magnitude. */
static double number(int64_t i)
{
    return ldexp((double)(i * 7919 % 1009 % 127 - 63), -5 - (int)(i % 7));
}

static void make_layer(struct world *o, rw_dtype dtype)
{
    o->x = rw_param(o->b.ctx, "x", dtype, RW_SHAPE(2, 6, 9, 8));
    o->w = rw_param(o->b.ctx, "w", dtype, RW_SHAPE(10, 3, 3, 2));
    o->bias = rw_param(o->b.ctx, "b", dtype, RW_SHAPE(10));
    cr_assert(tensor_fill(o->x, number) && tensor_fill(o->w, number) && tensor_fill(o->bias, number));
}

static rw_tensor *record(struct world *o)
{
    const rw_conv2d_params params = { .padding = { 1, 2 }, .stride = { 2, 1 }, .dilation = { 1, 2 }, .groups = 2 };
    rw_tensor *const y = rw_conv2d(o->b.t, o->x, o->w, o->bias, &params);
    return rw_sum(o->b.t, rw_mul(o->b.t, y, rw_tanh(o->b.t, y)), RW_ALL_AXES, false);
}

static rw_status try_step(struct world *o)
{
    rw_error_clear(o->b.ctx);
    rw_tape_reset(o->b.t);
    rw_zero_grad(o->b.ctx);
    return rw_backward(o->b.t, record(o));
}

/* All gradients of a step. The caller frees. */
static unsigned char *step(struct world *o, size_t *ret_bytes)
{
    cr_assert_eq(try_step(o), RW_OK, "%s", rw_error_message(o->b.ctx));
    return all_gradients(o->b.ctx, ret_bytes);
}

static void close_world(struct world *o)
{
    fixture_close(&o->b);
    cr_assert_eq(cudasim_live_allocations(), 0, "leaked");
}

/* A step of a context of its own, and the number of convolutions that the library executed. */
static unsigned char *once(const char *choice, rw_dtype dtype, bool tf32, size_t *ret_bytes, long *ret_runs)
{
    struct world o;
    const long before = cudasim_calls("cudnnBackendExecute");
    open_context(&o, choice, tf32);
    make_layer(&o, dtype);
    unsigned char *const all = step(&o, ret_bytes);
    *ret_runs = cudasim_calls("cudnnBackendExecute") - before;
    cr_assert_str_eq(rw_error_message(o.b.ctx), "");
    close_world(&o);
    return all;
}

static void same(unsigned char *a, unsigned char *b, size_t bytes, const char *what)
{
    cr_expect_eq(first_difference(a, b, bytes), -1, "%s", what);
    free(b);
}

/* ---- when the library is used ---- */

Test(cudnn_conv_selection, is_by_the_library_where_that_is_requested)
{
    size_t bytes;
    long runs;
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        free(once(NULL, types[d], false, &bytes, &runs));
        cr_expect_eq(runs, 0, "%s: unasked", rw_dtype_name(types[d]));
        free(once("own", types[d], false, &bytes, &runs));
        cr_expect_eq(runs, 0, "%s: another word", rw_dtype_name(types[d]));
        free(once("cudnn", types[d], false, &bytes, &runs));
        cr_expect_eq(runs, RUNS, "%s: %ld runs", rw_dtype_name(types[d]), runs);
    }
}

/* Without it the library's own tiles are used, without a message. */
Test(cudnn_conv_selection, a_library_that_is_not_there_or_too_old)
{
    static const int versions[] = { 0, 90300, 91002 };
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t bytes;
        long runs;
        unsigned char *const own = once(NULL, types[d], false, &bytes, &runs);
        for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
            cudasim_set_cudnn(versions[i]);
            same(own, once("cudnn", types[d], false, &bytes, &runs), bytes, "own tiles");
            cr_expect_eq(runs, 0, "version %d", versions[i]);
        }
        cudasim_set_cudnn(91900);
        free(own);
    }
}

/* A context's choice is permanent: neither the variable nor the library is checked again. */
Test(cudnn_conv_selection, the_library_is_looked_for_once)
{
    for (int there = 0; there < 2; there++) {
        size_t bytes;
        struct world o;
        open_context(&o, "cudnn", false);
        setenv("REWIND_CONV", "own", 1);
        make_layer(&o, RW_F32);
        cudasim_set_cudnn(there ? 91900 : 0);
        unsigned char *const first = step(&o, &bytes);
        cudasim_set_cudnn(there ? 0 : 91900);
        cr_assert_eq(ckpt_set_policy(o.b.t, "full"), RW_OK); /* so that the step is planned again */
        same(first, step(&o, &bytes), bytes, there ? "gone" : "found later");
        cr_expect_eq(cudasim_calls("cudnnCreate"), there);
        cr_expect_eq(cudasim_calls("cudnnBackendExecute") > 0, there);
        free(first);
        close_world(&o);
    }
}

/* ---- which engines ---- */

struct offer {
    const char *engines;
    rw_dtype dtype;
    bool tf32, taken;
};

/* By their notes, workspace and status when a plan is made with them: convolution.cc. */
static const struct offer offers[] = {
    { "0", RW_F32, false, true },      { "8", RW_F32, false, true },     { "7", RW_F32, false, true },
    { "1", RW_F32, false, false },     { "1", RW_BF16, false, false },   { "1", RW_F64, true, false },
    { "2", RW_F32, false, false },     { "3", RW_F16, false, false },    { "4", RW_F32, false, false },
    { "4", RW_F16, false, false },     { "10", RW_F32, true, false },    { "6", RW_BF16, false, false },
    { "5", RW_F32, false, false },     { "5", RW_F32, true, true },      { "5", RW_BF16, false, true },
    { "5", RW_F16, false, true },      { "9", RW_F32, false, false },    { "9", RW_F32, true, true },
    { "9", RW_BF16, true, false },     { REFUSED, RW_F32, false, false }, { REFUSED ",5,9,8", RW_F32, false, true },
    { REFUSED ",5", RW_F16, false, true },
};

Test(cudnn_conv_selection, engines_are_taken_by_their_notes)
{
    for (size_t i = 0; i < sizeof offers / sizeof *offers; i++) {
        const struct offer *const f = &offers[i];
        size_t bytes;
        long runs;
        unsigned char *const own = once(NULL, f->dtype, f->tf32, &bytes, &runs);
        cudasim_set_dnn_engines(f->engines);
        unsigned char *const all = once("cudnn", f->dtype, f->tf32, &bytes, &runs);
        cr_expect_eq(runs, f->taken ? RUNS : 0, "%s, %s: %ld runs", f->engines, rw_dtype_name(f->dtype), runs);
        if (!f->taken) cr_expect_eq(first_difference(own, all, bytes), -1, "%s: own tiles", f->engines);
        cudasim_set_dnn_engines(NULL);
        free(own), free(all);
    }
}

/* After the favorites of the heuristics, and before the fallback engines. */
Test(cudnn_conv_selection, a_plain_engine_is_found_after_many_others)
{
    size_t bytes;
    long runs;
    unsigned char *const all = once("cudnn", RW_F32, false, &bytes, &runs);
    cudasim_set_dnn_engines("0");
    unsigned char *const last = once("cudnn", RW_F32, false, &bytes, &runs);
    cr_expect_neq(first_difference(all, last, bytes), -1, "the fallback");
    free(all), free(last);
}

/* Convolutions with empty extents are not passed to the library, which does not support them. */
Test(cudnn_conv_selection, of_nothing)
{
    static const int64_t shapes[][4] = { { 0, 3, 4, 4 }, { 2, 0, 4, 4 }, { 2, 3, 4, 4 } };
    for (int i = 0; i < 3; i++) {
        struct world o;
        open_context(&o, "cudnn", false);
        const int64_t *const s = shapes[i];
        rw_tensor *const x = rw_param(o.b.ctx, "x", RW_F32, RW_SHAPE(s[0], s[1], s[2], s[3]));
        rw_tensor *const w = rw_param(o.b.ctx, "w", RW_F32, RW_SHAPE(i == 2 ? 0 : 5, s[1], 3, 3));
        const rw_tensor *const y = rw_conv2d(o.b.t, x, w, RW_NONE, NULL);
        cr_assert_eq(rw_backward(o.b.t, rw_sum(o.b.t, (rw_tensor *)y, RW_ALL_AXES, false)), RW_OK, "%s",
                     rw_error_message(o.b.ctx));
        cr_expect_eq(cudasim_calls("cudnnBackendCreateDescriptor"), 0);
        close_world(&o);
    }
}

/* ---- the choice is permanent ---- */

/* Although the library would answer otherwise each time; and only the executions call it again. */
Test(cudnn_conv_selection, a_choice_is_for_the_life_of_a_context)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t bytes;
        struct world o;
        open_context(&o, "cudnn", false);
        make_layer(&o, types[d]);
        cudasim_set_blas_rotation(true);
        unsigned char *const first = step(&o, &bytes);
        const long asked = cudasim_calls("cudnnBackendGetAttribute");
        for (int i = 0; i < 3; i++) {
            cr_assert_eq(ckpt_set_policy(o.b.t, i ? "full" : "ops:conv2d"), RW_OK);
            same(first, step(&o, &bytes), bytes, rw_dtype_name(types[d]));
        }
        cudasim_set_dnn_engines("1");
        same(first, step(&o, &bytes), bytes, "offered another one");
        cr_expect_eq(cudasim_calls("cudnnBackendGetAttribute"), asked, "it was queried again");
        cudasim_set_dnn_engines(NULL);
        free(first);
        close_world(&o);
    }
}

/* Also if there is no engine. */
Test(cudnn_conv_selection, so_is_that_there_is_no_engine)
{
    size_t bytes;
    struct world o;
    open_context(&o, "cudnn", false);
    make_layer(&o, RW_F32);
    cudasim_set_dnn_engines(REFUSED);
    unsigned char *const first = step(&o, &bytes);
    cudasim_set_dnn_engines("8");
    cr_assert_eq(ckpt_set_policy(o.b.t, "full"), RW_OK); /* so that the step is planned again */
    same(first, step(&o, &bytes), bytes, "offered one later");
    cr_expect_eq(cudasim_calls("cudnnBackendExecute"), 0);
    free(first);
    close_world(&o);
}

/* An image, a weight and a bias in one buffer, with so much before each. */
enum { N = 2 * 5 * 6 * 3, K = 4 * 3 * 3 * 3, M = 4 };
static int apart;

static double lying(int64_t i)
{
    const int64_t w = i - N - apart, bias = w - K - apart;
    return number(bias >= apart ? 5 * (bias - apart) : w >= apart ? 3 * (w - apart) : i - apart);
}

/* An input that is not aligned to 16 bytes is copied to an address that the engine accepts: the same bytes. */
Test(cudnn_conv_selection, where_an_operand_begins_does_not_count)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        void *results[2] = { NULL, NULL };
        size_t bytes = 0;
        for (int off = 0; off < 2; off++) {
            struct world o;
            open_context(&o, "cudnn", false);
            rw_tensor *const all = rw_buffer(o.b.ctx, "all", types[d], RW_SHAPE(off + N + off + K + off + M));
            apart = off;
            cr_assert(tensor_fill(all, lying));
            rw_tensor *const image = rw_reshape(o.b.t, rw_slice(o.b.t, all, 0, off, off + N), RW_SHAPE(2, 5, 6, 3));
            rw_tensor *const w = rw_reshape(o.b.t, rw_slice(o.b.t, all, 0, 2 * off + N, 2 * off + N + K),
                                            RW_SHAPE(4, 3, 3, 3));
            rw_tensor *const bias = rw_slice(o.b.t, all, 0, 3 * off + N + K, 3 * off + N + K + M);
            rw_tensor *const x = rw_permute(o.b.t, image, (const int[]){ 0, 3, 1, 2 });
            rw_tensor *const y = rw_contiguous(o.b.t, rw_conv2d(o.b.t, x, w, bias, NULL));
            bytes = rw_tensor_bytes(y);
            results[off] = malloc(bytes);
            cr_assert_eq(rw_read(o.b.t, y, results[off], bytes), RW_OK, "%s", rw_error_message(o.b.ctx));
            close_world(&o);
        }
        cr_expect_eq(cudasim_calls("cudnnBackendExecute"), 2 * ((long)d + 1));
        cr_expect_eq(first_difference(results[0], results[1], bytes), -1, "%s", rw_dtype_name(types[d]));
        free(results[0]), free(results[1]);
    }
}

/* As one CUDA graph: a launch computes what a recorded step would have, also if nothing has been executed before. */
Test(cudnn_conv_selection, in_a_graph)
{
    for (size_t d = 0; d < sizeof types / sizeof *types; d++) {
        size_t bytes;
        long runs;
        unsigned char *const first = once("cudnn", types[d], false, &bytes, &runs);
        for (int before = 0; before < 2; before++) {
            struct world o;
            rw_graph *g = NULL;
            open_context(&o, "cudnn", false);
            make_layer(&o, types[d]);
            if (before) same(first, step(&o, &bytes), bytes, "recorded");
            rw_tape_reset(o.b.t);
            cr_assert_eq(rw_graph_create(&g, o.b.t, record(&o), &(rw_graph_params){ 0 }), RW_OK, "%s",
                         rw_error_message(o.b.ctx));
            for (int i = 0; i < 4; i++) {
                rw_zero_grad(o.b.ctx);
                cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(o.b.ctx));
                same(first, all_gradients(o.b.ctx, &bytes), bytes, rw_dtype_name(types[d]));
            }
            rw_graph_destroy(&g);
            close_world(&o);
        }
        free(first);
    }
}

/* The first signatures of a context keep their plans; those beyond the capacity of the table never get one. */
Test(cudnn_conv_selection, the_table_has_an_end)
{
    struct world o;
    size_t workspace = 0, n = 0;
    bool has;
    open_context(&o, "cudnn", false);
    struct rw_dnn_conv *const conv = ((struct rw_cuda *)o.b.ctx->device_state)->conv;
    struct rw_dnn_conv_signature s = { .n = 1, .h = 1, .w = 1, .c = 1, .oh = 1, .ow = 1, .oc = 1, .kh = 1, .kw = 1 };
    s.stride[0] = s.stride[1] = s.dilation[0] = s.dilation[1] = s.groups = 1;
    s.dtype = RW_F32;
    for (int pass = 0; pass < 2; pass++)
        for (s.n = 1; s.n <= RW_DNN_PINS_MAX + 2; s.n++) {
            cr_assert_eq(rw_dnn_conv_query(conv, &s, &has, &workspace), RW_OK);
            cr_assert_eq(has, s.n <= RW_DNN_PINS_MAX, "signature %lld", (long long)s.n);
            cr_assert_eq(rw_dnn_conv_has(conv, &s, &workspace), has);
            n += has;
        }
    cr_expect_eq(n, 2 * RW_DNN_PINS_MAX);
    close_world(&o);
}

/* ---- failures ---- */

/*
 * Each call fails in turn for lack of memory: the step reports it, leaks nothing, and the next one has the bytes that
 * it would have had. No engine is skipped because memory was exhausted at that moment (law 6).
 */
static void every_call_fails(const char *function, int code, rw_status status)
{
    struct world o;
    size_t bytes;
    long failures = 0, runs;
    unsigned char *const expected = once("cudnn", RW_F32, false, &bytes, &runs);
    for (long n = 1;; n += n < 60 ? 1 : 37) {
        open_context(&o, "cudnn", false);
        make_layer(&o, RW_F32);
        cudasim_fail_call(function, n, code);
        const long before = cudasim_calls(function);
        const rw_status got = try_step(&o);
        const bool struck = cudasim_calls(function) - before >= n;
        cudasim_clear_faults();
        if (struck) {
            cr_assert_eq(got, status, "%s %ld: %s: %s", function, n, rw_status_name(got), rw_error_message(o.b.ctx));
            cr_assert_gt(strlen(rw_error_message(o.b.ctx)), 0, "%s %ld: no message", function, n);
            failures++;
        }
        same(expected, step(&o, &bytes), bytes, function);
        close_world(&o);
        if (!struck) break;
    }
    cr_assert_gt(failures, 0, "%s never failed: the test proves nothing", function);
    free(expected);
}

Test(cudnn_conv_selection, without_memory_for_a_handle)
{
    every_call_fails("cudnnCreate", CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, RW_ERR_MEMORY);
}

Test(cudnn_conv_selection, without_memory_for_a_descriptor)
{
    every_call_fails("cudnnBackendCreateDescriptor", CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, RW_ERR_MEMORY);
}

Test(cudnn_conv_selection, without_memory_for_an_attribute)
{
    every_call_fails("cudnnBackendSetAttribute", CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, RW_ERR_MEMORY);
}

Test(cudnn_conv_selection, without_memory_for_an_answer)
{
    every_call_fails("cudnnBackendGetAttribute", CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, RW_ERR_MEMORY);
}

Test(cudnn_conv_selection, without_memory_for_a_plan)
{
    every_call_fails("cudnnBackendFinalize", CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, RW_ERR_MEMORY);
}

/* Each allocation of a first step, including the table's. */
Test(cudnn_conv_selection, without_memory_of_our_own)
{
    size_t bytes;
    long runs;
    uint64_t failures = 0;
    unsigned char *const expected = once("cudnn", RW_F32, false, &bytes, &runs);
    for (uint64_t n = 1;; n++) {
        struct world o;
        open_context(&o, "cudnn", false);
        make_layer(&o, RW_F32);
        const uint64_t before = rw_alloc_count();
        rw_alloc_fail_at(n);
        const rw_status got = try_step(&o);
        rw_alloc_fail_at(0);
        const bool struck = rw_alloc_count() - before >= n;
        if (got) cr_assert_eq(got, RW_ERR_MEMORY, "allocation %d: %s", (int)n, rw_error_message(o.b.ctx));
        failures += got != RW_OK;
        same(expected, step(&o, &bytes), bytes, "after a failure");
        close_world(&o);
        if (!struck) break;
    }
    cr_assert_gt(failures, 10, "%d failures", (int)failures);
    free(expected);
}

/* It is installed, but cannot be loaded: this is reported, and not treated as a library that is not installed. */
Test(cudnn_conv_selection, a_library_that_cannot_be_opened)
{
    static const char *const functions[] = { "cudnnCreate", "cudnnSetStream" };
    for (int i = 0; i < 2; i++) {
        struct world o;
        size_t bytes;
        long runs;
        unsigned char *const expected = once("cudnn", RW_F32, false, &bytes, &runs);
        open_context(&o, "cudnn", false);
        make_layer(&o, RW_F32);
        cudasim_fail_call(functions[i], 1, CUDNN_STATUS_NOT_INITIALIZED);
        cr_expect_neq(try_step(&o), RW_OK, "%s", functions[i]);
        cr_expect(strstr(rw_error_message(o.b.ctx), functions[i]), "%s", rw_error_message(o.b.ctx));
        same(expected, step(&o, &bytes), bytes, functions[i]);
        free(expected);
        close_world(&o);
    }
}

/* An engine that fails at execution: no other one is tried, and the message names it and the reason. */
Test(cudnn_conv_selection, an_engine_that_fails_at_run)
{
    static const char *const names[] = { "a convolution: ", "backward of", "backward of" };
    struct world o;
    size_t bytes;
    open_context(&o, "cudnn", false);
    make_layer(&o, RW_F32);
    unsigned char *const expected = step(&o, &bytes);
    for (int n = 1; n <= RUNS; n++) {
        cudasim_fail_call("cudnnBackendExecute", n, CUDNN_STATUS_EXECUTION_FAILED);
        cr_expect_eq(try_step(&o), RW_ERR_DEVICE);
        const char *const message = rw_error_message(o.b.ctx);
        cr_expect(strstr(message, "cuDNN: ") && strstr(message, names[n - 1]) &&
                      strstr(message, "CUDNN_STATUS_EXECUTION_FAILED (5000)"),
                  "run %d: %s", n, message);
        same(expected, step(&o, &bytes), bytes, "after a failure");
    }
    free(expected);
    close_world(&o);
}

/* An error of an earlier kernel is reported as such. */
Test(cudnn_conv_selection, a_convolution_that_finds_the_device_lost)
{
    struct world o;
    open_context(&o, "cudnn", false);
    make_layer(&o, RW_F32);
    cudasim_fail_call("cudnnBackendExecute", 2, CUDNN_STATUS_EXECUTION_FAILED);
    cudasim_fail_call("cudaStreamQuery", 1, cudaErrorIllegalAddress);
    cr_expect_eq(try_step(&o), RW_ERR_DEVICE);
    cr_expect(strstr(rw_error_message(o.b.ctx), "cannot use the device any more"), "%s", rw_error_message(o.b.ctx));
    fixture_close(&o.b);
    cudasim_restart();
}
