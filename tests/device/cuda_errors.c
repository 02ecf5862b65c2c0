/*
 * A CUDA device that is missing, too old, full, or failing: one status, a message with the call and its text, nothing
 * leaked, and the CPU still usable. On the simulated device, where every call can be made to fail.
 */
#include "support/support.h"

#include <criterion/criterion.h>
#include <cuda_runtime.h>
#include <cudasim.h>
#include <stdlib.h>
#include <string.h>

static rw_status create(rw_context **ctx, rw_device device)
{
    return rw_context_create(ctx, &(rw_context_params){ .device = device, .seed = 3, .threads = 2 });
}

static void unusable(const char *word)
{
    char why[256];
    rw_context *ctx = NULL;
    cr_assert_eq(rw_device_check(RW_DEVICE_CUDA, why, sizeof why), RW_ERR_UNSUPPORTED, "%s", word);
    cr_assert(strstr(why, word), "\"%s\" does not say \"%s\"", why, word);
    cr_assert_eq(create(&ctx, RW_DEVICE_CUDA), RW_ERR_UNSUPPORTED);
    cr_assert_null(ctx);
    cr_assert_eq(create(&ctx, RW_DEVICE_AUTO), RW_OK);
    cr_assert_eq(rw_context_device(ctx), RW_DEVICE_CPU);
    rw_context_destroy(&ctx);
    cr_assert_eq(cudasim_live_allocations(), 0, "%s", word);
}

Test(cuda_errors, no_driver)
{
    cudasim_set_driver(false);
    unusable("driver");
}

Test(cuda_errors, no_device)
{
    cudasim_set_devices(0);
    unusable("no CUDA device");
}

Test(cuda_errors, a_compute_capability_that_is_too_low)
{
    cudasim_set_capability(7, 5);
    unusable("7.5");
}

Test(cuda_errors, auto_takes_a_device_that_answers)
{
    char why[64] = "?";
    rw_context *ctx = NULL;
    cr_assert_eq(rw_device_check(RW_DEVICE_CUDA, why, sizeof why), RW_OK);
    cr_assert_str_eq(why, "");
    cr_assert_eq(create(&ctx, RW_DEVICE_AUTO), RW_OK);
    cr_assert_eq(rw_context_device(ctx), RW_DEVICE_CUDA);
    rw_context_destroy(&ctx);
    cr_assert_eq(cudasim_live_allocations(), 0);
}

/* The program and the library share one runtime, as with static linking: its last error is the program's, too. */
Test(cuda_errors, an_error_of_the_programs_own_is_not_the_next_steps)
{
    struct fixture b = fixture_open(1, 1);
    for (int i = 0; i < 2; i++) {
        float y = 0;
        void *p;
        rw_tensor *const x = rw_input(b.t, RW_F32, RW_SCALAR, &(float){ 2 }, sizeof(float));
        if (i) cr_assert_neq(cudaMalloc(&p, (size_t)1 << 60), cudaSuccess);
        cr_assert_eq(rw_read(b.t, rw_mul(b.t, x, x), &y, sizeof y), RW_OK, "%s", rw_error_message(b.ctx));
        cr_assert_eq(y, 4);
    }
    fixture_close(&b);
}

/* ---- a training step that may fail at any call ---- */

struct training {
    struct fixture b;
    struct net n;
    rw_optimizer *opt;
};

static rw_status open_training(struct training *r, rw_device device)
{
    *r = (struct training){ 0 };
    rw_status status = create(&r->b.ctx, device);
    if (!status) status = rw_tape_create(&r->b.t, r->b.ctx);
    if (status) return status;
    net_init(&r->n, r->b.ctx, 2, 16, RW_F32, 1);
    ckpt_set_policy(r->b.t, "full");
    if (!rw_error_status(r->b.ctx)) rw_adamw_create(&r->opt, r->b.ctx, NULL);
    return rw_error_status(r->b.ctx);
}

static void close_training(struct training *r)
{
    rw_optimizer_destroy(&r->opt);
    rw_tape_destroy(&r->b.t);
    rw_context_destroy(&r->b.ctx);
}

/* From the same parameters and generator state every time; ret_gradients may be NULL. */
static rw_status step(struct training *r, unsigned char **ret_gradients, size_t *ret_bytes)
{
    rw_context *const ctx = r->b.ctx;
    rw_error_clear(ctx);
    rw_tape_reset(r->b.t);
    rw_zero_grad(ctx);
    rw_generator_set(ctx, (rw_generator_state){ .seed = 11 });
    rw_status status = rw_backward(r->b.t, net_loss(&r->n, r->b.t, 9, 0));
    if (!status && ret_gradients) *ret_gradients = all_gradients(ctx, ret_bytes);
    return status ? status : rw_error_status(ctx);
}

/* Every call of these functions by a context and a step fails once. */
static const char *const functions[] = { "cudaMalloc",
                                         "cudaMallocHost",
                                         "cudaMemcpyAsync",
                                         "cudaMemsetAsync",
                                         "cudaStreamCreateWithFlags",
                                         "cudaStreamSynchronize",
                                         "launch",
                                         "cublasLtCreate",
                                         "cublasLtMatmulDescCreate",
                                         "cublasLtMatrixLayoutCreate",
                                         "cublasLtMatmulAlgoGetHeuristic",
                                         "cublasLtMatmul",
                                         "cudaGetDevice" };

static int code_of(const char *function)
{
    return !strncmp(function, "cublas", 6) ? 3 /* CUBLAS_STATUS_ALLOC_FAILED */ : (int)cudaErrorMemoryAllocation;
}

Test(cuda_errors, every_call_of_a_step_fails_once)
{
    struct training r;
    unsigned char *expected = NULL;
    size_t bytes = 0;
    cr_assert_eq(open_training(&r, RW_DEVICE_CUDA), RW_OK, "%s", rw_error_message(r.b.ctx));
    cr_assert_eq(step(&r, &expected, &bytes), RW_OK);
    close_training(&r);
    cr_assert_eq(cudasim_live_allocations(), 0);
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        size_t failures = 0;
        for (long n = 1;; n += n < 40 ? 1 : 17) {
            cudasim_clear_faults();
            cudasim_fail_call(functions[f], n, code_of(functions[f]));
            const long before = cudasim_calls(functions[f]);
            const rw_status opened = open_training(&r, RW_DEVICE_CUDA);
            rw_status status = opened;
            if (r.b.ctx && !opened) status = step(&r, NULL, NULL);
            const bool struck = cudasim_calls(functions[f]) - before >= n;
            if (status && r.b.ctx)
                cr_assert_gt(strlen(rw_error_message(r.b.ctx)), 0, "%s %ld: no message", functions[f], n);
            failures += status != RW_OK;
            cudasim_clear_faults();
            if (!opened) {
                unsigned char *again = NULL;
                cr_assert_eq(step(&r, &again, &bytes), RW_OK, "%s %ld: %s", functions[f], n, rw_error_message(r.b.ctx));
                cr_assert_eq(first_difference(expected, again, bytes), -1, "%s %ld: other bytes after the failure",
                             functions[f], n);
                free(again);
            }
            close_training(&r);
            cr_assert_eq(cudasim_live_allocations(), 0, "%s %ld: leaked", functions[f], n);
            if (!struck) break;
        }
        cr_assert_gt(failures, 0, "%s never failed: the test proves nothing", functions[f]);
    }
    free(expected);
}

Test(cuda_errors, out_of_memory_says_how_much_was_requested)
{
    struct fixture b = { 0 };
    cr_assert_eq(create(&b.ctx, RW_DEVICE_CUDA), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    cudasim_set_memory((size_t)1 << 20);
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1024, 1024));
    cr_assert_null(w);
    cr_assert_eq(rw_error_status(b.ctx), RW_ERR_MEMORY);
    cr_assert(strstr(rw_error_message(b.ctx), "4194304"), "%s", rw_error_message(b.ctx));
    rw_error_clear(b.ctx);
    cudasim_set_memory((size_t)1 << 30);
    cr_assert_not_null(rw_param(b.ctx, "w", RW_F32, RW_SHAPE(1024, 1024)));
    fixture_close(&b);
    cr_assert_eq(cudasim_live_allocations(), 0);
}

/* An error after which the device is lost: the context reports it, and the CPU stays usable. */
Test(cuda_errors, a_kernel_that_breaks_the_device)
{
    struct training r, host;
    cr_assert_eq(open_training(&r, RW_DEVICE_CUDA), RW_OK);
    cr_assert_eq(step(&r, NULL, NULL), RW_OK);
    cudasim_fail_kernel(3, cudaErrorIllegalAddress);
    cr_assert_eq(step(&r, NULL, NULL), RW_ERR_DEVICE);
    cr_assert(strstr(rw_error_message(r.b.ctx), "illegal"), "%s", rw_error_message(r.b.ctx));
    cr_assert(strstr(rw_error_message(r.b.ctx), "cannot use the device any more"), "%s", rw_error_message(r.b.ctx));
    cr_assert_neq(step(&r, NULL, NULL), RW_OK);
    close_training(&r);
    cudasim_restart(); /* a dead context's memory is freed with its process; no object of the library may remain */
    cr_assert_eq(open_training(&host, RW_DEVICE_CPU), RW_OK);
    cr_assert_eq(step(&host, NULL, NULL), RW_OK);
    close_training(&host);
}

/* The same for an error of unknown extent: no later call of the process will succeed. */
Test(cuda_errors, errors_after_which_nothing_is_known_end_the_device_too)
{
    static const cudaError_t codes[] = { cudaErrorUnknown, cudaErrorMpsClientTerminated };
    for (size_t i = 0; i < 2; i++) {
        struct training r;
        cr_assert_eq(open_training(&r, RW_DEVICE_CUDA), RW_OK);
        cudasim_fail_kernel(3, codes[i]);
        cr_assert_eq(step(&r, NULL, NULL), RW_ERR_DEVICE);
        cr_assert(strstr(rw_error_message(r.b.ctx), "cannot use the device any more"), "%s",
                  rw_error_message(r.b.ctx));
        close_training(&r);
        cudasim_restart();
    }
}

/* A product may be the first to report the error of an earlier kernel. */
Test(cuda_errors, a_product_that_finds_the_device_lost)
{
    for (int lost = 0; lost < 2; lost++) {
        struct training r;
        cr_assert_eq(open_training(&r, RW_DEVICE_CUDA), RW_OK);
        cudasim_fail_call("cublasLtMatmul", 2, 13);
        if (lost) cudasim_fail_call("cudaStreamQuery", 1, cudaErrorIllegalAddress);
        cr_assert_eq(step(&r, NULL, NULL), RW_ERR_DEVICE);
        const char *const message = rw_error_message(r.b.ctx);
        cr_assert_eq(strstr(message, "cannot use the device any more") != NULL, lost, "%s", message);
        cr_assert(strstr(message, "Matmul"), "%s", message);
        if (!lost) cr_assert_eq(step(&r, NULL, NULL), RW_OK);
        close_training(&r);
        cudasim_restart();
    }
}

/*
 * During a capture the device is not queried for an earlier error: the query would end the capture, and its own failure
 * would replace the library's.
 */
Test(cuda_errors, a_product_that_fails_in_a_capture)
{
    size_t failures = 0;
    for (long n = 0; n < 12; n++) {
        struct training r;
        rw_graph *g = NULL;
        cr_assert_eq(open_training(&r, RW_DEVICE_CUDA), RW_OK);
        cr_assert_eq(rw_graph_create(&g, r.b.t, net_loss(&r.n, r.b.t, 9, 0), NULL), RW_OK);
        cr_assert_eq(rw_graph_launch(g), RW_OK); /* runs without a capture */
        cudasim_fail_call("cublasLtMatmul", n + 1, 13);
        const rw_status status = rw_graph_launch(g);
        const char *const message = rw_error_message(r.b.ctx);
        if (status) {
            failures++;
            cr_expect_eq(status, RW_ERR_DEVICE, "%s", message);
            cr_expect(strstr(message, "cuBLASLt: Matmul") && strstr(message, "(13)"), "%s", message);
        }
        rw_graph_destroy(&g);
        cudasim_clear_faults();
        cr_expect_eq(step(&r, NULL, NULL), RW_OK, "%s", rw_error_message(r.b.ctx));
        close_training(&r);
        cr_assert_eq(cudasim_live_allocations(), 0);
    }
    cr_assert_gt(failures, 0, "no product was captured");
}

/* a b of integers, with a batch of its own or the same b for all; and the gradient of a, which is 1 b^T. */
static void expect_batch(struct fixture *b, int64_t outer, int64_t inner, bool shared)
{
    enum { M = 2, K = 3, N = 2 };
    const int64_t batch = outer * inner;
    float *const all = malloc((size_t)batch * (2 * M * K + K * N + M * N) * sizeof *all);
    float *const x = all, *const w = x + batch * M * K, *const y = w + batch * K * N, *const dx = y + batch * M * N;
    for (int64_t i = 0; i < batch * M * K; i++) x[i] = (float)(i % 11 - 5);
    for (int64_t i = 0; i < batch * K * N; i++) w[i] = (float)(i % 7 - 3);
    rw_tensor *const a = rw_param(b->ctx, shared ? "shared" : "own", RW_F32, RW_SHAPE(outer, inner, M, K));
    cr_assert_eq(rw_write(a, x, rw_tensor_bytes(a)), RW_OK);
    rw_tensor *const by = rw_input(b->t, RW_F32, shared ? RW_SHAPE(K, N) : RW_SHAPE(outer, inner, K, N), w,
                                   (size_t)(shared ? K * N : outer * inner * K * N) * sizeof *w);
    rw_tensor *const product = rw_matmul(b->t, a, by);
    cr_assert_eq(rw_backward(b->t, rw_sum(b->t, product, RW_ALL_AXES, false)), RW_OK, "%s", rw_error_message(b->ctx));
    cr_assert_eq(rw_read(b->t, product, y, rw_tensor_bytes(product)), RW_OK);
    cr_assert_eq(rw_read(NULL, rw_gradient(a), dx, rw_tensor_bytes(a)), RW_OK);
    for (int64_t i = 0; i < batch * M * N; i++) {
        const float *const row = x + i / N * K, *const column = w + (shared ? 0 : i / (M * N) * K * N) + i % N;
        const float want = row[0] * column[0] + row[1] * column[N] + row[2] * column[2 * N];
        cr_assert_eq(y[i], want, "element %lld", (long long)i);
    }
    for (int64_t i = 0; i < batch * M * K; i++) {
        const float *const column = w + (shared ? 0 : i / (M * K) * K * N) + i % K * N;
        cr_assert_eq(dx[i], column[0] + column[1], "gradient %lld", (long long)i);
    }
    rw_tape_reset(b->t);
    free(all);
}

/* Some algorithms of cuBLASLt take a batch of at most 65,535. */
Test(cuda_errors, a_batch_that_is_too_long_for_one_call)
{
    struct fixture b = { 0 };
    cr_assert_eq(create(&b.ctx, RW_DEVICE_CUDA), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    for (int shared = 0; shared < 2; shared++) {
        const long before = cudasim_calls("cublasLtMatmul");
        expect_batch(&b, 2, 32770, shared);
        cr_expect_geq(cudasim_calls("cublasLtMatmul") - before, 2 + 2 * !shared, "%d", shared);
    }
    fixture_close(&b);
    cr_assert_eq(cudasim_live_allocations(), 0);
}

Test(cuda_errors, an_index_out_of_range_is_named_where_it_was_recorded)
{
    struct fixture b = { 0 };
    const int32_t good[3] = { 0, 1, 2 }, bad[3] = { 0, 7, 2 };
    cr_assert_eq(create(&b.ctx, RW_DEVICE_CUDA), RW_OK);
    cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
    rw_tensor *const table = rw_param(b.ctx, "table", RW_F32, RW_SHAPE(4, 8));
    for (int i = 0; i < 2; i++) {
        rw_tensor *const rows = rw_embedding(b.t, table,
                                             rw_input(b.t, RW_I32, RW_SHAPE(3), i ? good : bad, 3 * sizeof(int32_t)));
        const rw_status status = rw_backward(b.t, rw_sum(b.t, rows, RW_ALL_AXES, false));
        cr_assert_eq(status, i ? RW_OK : RW_ERR_ARGUMENT, "%s", rw_error_message(b.ctx));
        if (!i)
            cr_assert(strstr(rw_error_message(b.ctx), "embedding") &&
                      strstr(rw_error_message(b.ctx), "cuda_errors.c:"));
        rw_error_clear(b.ctx);
        rw_tape_reset(b.t);
    }
    fixture_close(&b);
}

/*
 * residual + x w^T + bias in integers, whose sums are exact in any order. The residual is not read later, and the
 * result overwrites it; or it is a slice, which begins at an unaligned address.
 */
static void expect_sum(struct fixture *b, bool apart, const char *what)
{
    enum { M = 48, N = 24, K = 32 };
    static float x[M * K], w[N * K], bias[N], to[M * N + 1], y[M * N];
    for (int i = 0; i < M * K; i++) x[i] = (float)(i % 5 - 2);
    for (int i = 0; i < N * K; i++) w[i] = (float)(i % 7 - 3);
    for (int i = 0; i < N; i++) bias[i] = (float)(i % 9);
    for (int i = 0; i < M * N + 1; i++) to[i] = (float)(i % 11);
    rw_tensor *const whole = rw_input(b->t, RW_F32, RW_SHAPE(M * N + 1), to, sizeof to);
    rw_tensor *const part = rw_slice(b->t, whole, 0, apart, apart + M * N);
    rw_tensor *const residual = rw_reshape(b->t, apart ? part : rw_scale(b->t, part, 1), RW_SHAPE(M, N));
    rw_tensor *const sum = rw_linear_add(b->t, rw_input(b->t, RW_F32, RW_SHAPE(M, K), x, sizeof x),
                                         rw_input(b->t, RW_F32, RW_SHAPE(N, K), w, sizeof w),
                                         rw_input(b->t, RW_F32, RW_SHAPE(N), bias, sizeof bias), residual);
    cr_assert_eq(rw_read(b->t, sum, y, sizeof y), RW_OK, "%s: %s", what, rw_error_message(b->ctx));
    for (int i = 0; i < M * N; i++) {
        float want = to[i + apart] + bias[i % N];
        for (int k = 0; k < K; k++) want += x[i / N * K + k] * w[i % N * K + k];
        cr_assert_eq(y[i], want, "%s, element %d: %g, not %g", what, i, (double)y[i], (double)want);
    }
    rw_tape_reset(b->t);
}

/* Without an algorithm for a product with a bias and beta = 1, the library's own tiles add both. */
Test(cuda_errors, a_sum_that_the_library_does_not_have)
{
    for (int refused = 0; refused < 2; refused++)
        for (int apart = 0; apart < 2; apart++) {
            struct fixture b = { 0 };
            cr_assert_eq(create(&b.ctx, RW_DEVICE_CUDA), RW_OK);
            cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
            if (refused) cudasim_fail_call("cublasLtMatmulAlgoGetHeuristic", 1, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
            const long before = cudasim_calls("cublasLtMatmul");
            for (int i = 0; i < 2; i++) expect_sum(&b, apart, refused ? "refused" : "by the library");
            cr_assert_eq(cudasim_calls("cublasLtMatmul") - before, refused ? 0 : 2);
            cudasim_clear_faults();
            fixture_close(&b);
            cr_assert_eq(cudasim_live_allocations(), 0);
        }
}

/* gelu(x w^T + bias) of bfloat16; one op or two. The caller frees. */
static unsigned char *activation(struct fixture *b, bool one_op, uint64_t seed, size_t *ret_bytes)
{
    const rw_generator_state start = { .seed = seed };
    rw_generator_set(b->ctx, start);
    rw_tensor *const x = rw_randn(b->t, RW_BF16, RW_SHAPE(48, 32));
    rw_tensor *const w = rw_randn(b->t, RW_BF16, RW_SHAPE(64, 32));
    rw_tensor *const bias = rw_randn(b->t, RW_BF16, RW_SHAPE(64));
    rw_tensor *const y = one_op ? rw_linear_gelu(b->t, x, w, bias) : rw_gelu_tanh(b->t, rw_linear(b->t, x, w, bias));
    *ret_bytes = rw_tensor_bytes(y);
    unsigned char *const bytes = malloc(*ret_bytes);
    cr_assert_eq(rw_read(b->t, y, bytes, *ret_bytes), RW_OK, "%s", rw_error_message(b->ctx));
    rw_tape_reset(b->t);
    return bytes;
}

/*
 * If cuBLASLt has no algorithm with a gelu epilogue, our kernel computes the function, as long as the context exists,
 * although the library would have an answer later, and another one each time.
 */
Test(cuda_errors, an_epilogue_that_the_library_does_not_have)
{
    for (int refused = 0; refused < 2; refused++) {
        struct fixture b = { 0 };
        unsigned char *bytes[4];
        size_t n;
        cr_assert_eq(create(&b.ctx, RW_DEVICE_CUDA), RW_OK);
        cr_assert_eq(rw_tape_create(&b.t, b.ctx), RW_OK);
        bytes[0] = activation(&b, false, 4, &n);
        free(activation(&b, false, 5, &n)); /* overwrites the memory of the next results */
        if (refused) cudasim_fail_call("cublasLtMatmulAlgoGetHeuristic", 1, 15 /* CUBLAS_STATUS_NOT_SUPPORTED */);
        for (int i = 1; i < 4; i++) {
            bytes[i] = activation(&b, true, 4, &n);
            cr_assert_eq(first_difference(bytes[i], bytes[1], n), -1, "run %d", i);
            cudasim_clear_faults();
            cudasim_set_blas_rotation(true);
        }
        cudasim_set_blas_rotation(false);
        cr_assert_eq(first_difference(bytes[0], bytes[1], n) < 0, refused, "who takes the function shows");
        for (int i = 0; i < 4; i++) free(bytes[i]);
        fixture_close(&b);
        cr_assert_eq(cudasim_live_allocations(), 0);
    }
}

/* A capture, or its launch, that fails for lack of memory has not changed states in pinned memory: it can be launched
   again. */
Test(cuda_errors, a_launch_that_fails_leaves_states_in_pinned_memory_usable)
{
    static const char *const calls[] = { "cudaGraphInstantiate", "cudaGraphLaunch" };
    struct fixture b = fixture_open(1, 1);
    rw_optimizer *opt = NULL;
    rw_graph *g = NULL;
    rw_tensor *const w = rw_param(b.ctx, "w", RW_F32, RW_SHAPE(300));
    rw_init_constant(w, 2);
    const rw_adamw_params p = { .states = { .place = RW_STATE_HOST } };
    cr_assert_eq(rw_adamw_create(&opt, b.ctx, &p), RW_OK, "%s", rw_error_message(b.ctx));
    rw_tensor *const loss = rw_sum(b.t, rw_mul(b.t, w, w), RW_ALL_AXES, false);
    cr_assert_eq(rw_graph_create(&g, b.t, loss, &(rw_graph_params){ { rw_record_update(opt) } }), RW_OK);
    cr_assert_eq(rw_graph_launch(g), RW_OK, "%s", rw_error_message(b.ctx));
    for (int i = 0; i < 2; i++) {
        cudasim_fail_call(calls[i], 1, cudaErrorMemoryAllocation);
        cr_assert_eq(rw_graph_launch(g), RW_ERR_MEMORY, "%s: %s", calls[i], rw_error_message(b.ctx));
        rw_error_clear(b.ctx);
        cr_assert_eq(rw_graph_launch(g), RW_OK, "%s: %s", calls[i], rw_error_message(b.ctx));
    }
    rw_graph_destroy(&g);
    rw_optimizer_destroy(&opt);
    fixture_close(&b);
}

/* Offload to pinned memory, which is exhausted at one call or another of a step: an error that names the allocation, or
   success without it; then the step runs. */
Test(cuda_errors, pinned_memory_that_there_is_not_is_named_and_the_step_runs_again)
{
    unsigned char *expected = NULL;
    size_t bytes, named = 0;
    for (long n = 0;; n++) {
        struct fixture b = fixture_open(3, 1);
        struct net net;
        net_init(&net, b.ctx, 3, 64, RW_F32, 1);
        cr_assert_eq(ckpt_set_policy(b.t, n ? "offload:outer" : "none"), RW_OK);
        rw_tensor *const loss = net_loss(&net, b.t, 37, 0);
        const long before = cudasim_calls("cudaMallocHost");
        if (n) cudasim_fail_call("cudaMallocHost", n, cudaErrorMemoryAllocation);
        const rw_status status = rw_backward(b.t, loss);
        const bool struck = cudasim_calls("cudaMallocHost") - before >= n;
        cudasim_clear_faults();
        if (status) {
            cr_assert_eq(status, RW_ERR_MEMORY, "%ld: %s", n, rw_error_message(b.ctx));
            const char *const said = strstr(rw_error_message(b.ctx), "offloaded values do not fit (");
            named += said && strstr(said, "pinned") != NULL;
            rw_error_clear(b.ctx);
            rw_zero_grad(b.ctx);
            cr_assert_eq(rw_backward(b.t, loss), RW_OK, "%ld: %s", n, rw_error_message(b.ctx));
        }
        unsigned char *const got = all_gradients(b.ctx, &bytes);
        if (!n) expected = got;
        else cr_assert_eq(first_difference(expected, got, bytes), -1, "%ld", n);
        if (n) free(got);
        fixture_close(&b);
        cr_assert_eq(cudasim_live_allocations(), 0, "%ld: leaked", n);
        if (!struck) break;
    }
    cr_expect_eq(named, 1, "%zu", named);
    free(expected);
}
