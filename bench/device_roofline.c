/* Measures the rates of matrix products and of copies on a device. */
#include "device_roofline.h"

#include "figure.h"

#include <stdlib.h>
#include <string.h>

#ifdef RW_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

enum { PRODUCTS = 8, ROUNDS = 5, SIDE_MIN = 256, SIDE_MAX = 8192 };

/* PRODUCTS products of n x n matrices, ROUNDS times; the first round warms up. */
static rw_status time_products(rw_tape *t, rw_tensor *a, rw_tensor *b, double *ret_ms)
{
    rw_context *const ctx = rw_tape_context(t);
    double ms[ROUNDS];
    rw_status status = RW_OK;
    for (int round = 0; !status && round < ROUNDS; round++) {
        rw_tensor *y[PRODUCTS];
        for (int i = 0; i < PRODUCTS; i++) y[i] = rw_matmul(t, a, b);
        status = rw_timer_begin(ctx);
        if (!status) status = rw_eval(t, y, PRODUCTS);
        if (!status) status = rw_timer_end(ctx, &ms[round]);
        rw_tape_reset(t);
    }
    if (!status) *ret_ms = median_of(ms + 1, ROUNDS - 1) / PRODUCTS;
    return status;
}

static rw_status time_size(rw_context *ctx, rw_dtype dtype, int64_t n, double *ret_ms)
{
    rw_tape *t = NULL;
    rw_tensor *const a = rw_buffer(ctx, "a", dtype, RW_SHAPE(n, n)), *const b = rw_buffer(ctx, "b", dtype,
                                                                                          RW_SHAPE(n, n));
    rw_status status = a && b ? rw_init_normal(a, 0, 1) : rw_error_status(ctx);
    if (!status) status = rw_init_normal(b, 0, 1);
    if (!status) status = rw_tape_create(&t, ctx);
    if (!status) status = time_products(t, a, b, ret_ms);
    rw_tape_destroy(&t);
    return status;
}

/* Sizes double until a product is so long that its launch no longer matters. */
rw_status limit_matmul(const rw_context_params *params, rw_dtype dtype, double *ret_tflops)
{
    const char *const traced = getenv("REWIND_TRACE"); /* the trace is for the caller's ops only */
    char *const trace = traced ? strdup(traced) : NULL;
    double best = 0, ms = 0;
    rw_status status = RW_OK;
    unsetenv("REWIND_TRACE");
    for (int64_t n = SIDE_MIN; !status && n <= SIDE_MAX && ms < 5; n *= 2) {
        rw_context *ctx = NULL;
        status = rw_context_create(&ctx, params);
        if (!status) status = time_size(ctx, dtype, n, &ms);
        const double tflops = 2e-9 * (double)n * (double)n * (double)n / ms;
        if (!status && tflops > best) best = tflops;
        rw_context_destroy(&ctx);
    }
    if (trace) setenv("REWIND_TRACE", trace, 1);
    free(trace);
    if (!status) *ret_tflops = best;
    return status;
}

/* ---- copies ---- */

/* Each of the host's threads copies a part, together more than the caches hold. */
static rw_status copy_on_cpu(double *ret_gbs)
{
    enum { PIECES = 64, PIECE = 4 << 20 };
    double seconds[ROUNDS];
    char *const from = malloc((size_t)PIECES * PIECE), *const to = malloc((size_t)PIECES * PIECE);
    if (from && to) memset(from, 1, (size_t)PIECES * PIECE);
    for (int round = 0; from && to && round < ROUNDS; round++) {
        const double begin = now_s();
#pragma omp parallel for
        for (int i = 0; i < PIECES; i++) memcpy(to + (size_t)i * PIECE, from + (size_t)i * PIECE, PIECE);
        seconds[round] = now_s() - begin;
    }
    const bool ok = from && to;
    if (ok) *ret_gbs = 2e-9 * PIECES * PIECE / median_of(seconds + 1, ROUNDS - 1);
    free(from), free(to);
    return ok ? RW_OK : RW_ERR_MEMORY;
}

#ifdef RW_HAVE_CUDA
static cudaError_t time_copies(char *memory, size_t bytes, cudaEvent_t *marks, double *ret_ms)
{
    double times[ROUNDS];
    cudaError_t error = cudaMemset(memory, 1, 2 * bytes);
    for (int round = 0; !error && round < ROUNDS; round++) {
        float ms = 0;
        error = cudaEventRecord(marks[0], NULL);
        if (!error) error = cudaMemcpyAsync(memory + bytes, memory, bytes, cudaMemcpyDeviceToDevice, NULL);
        if (!error) error = cudaEventRecord(marks[1], NULL);
        if (!error) error = cudaEventSynchronize(marks[1]);
        if (!error) error = cudaEventElapsedTime(&ms, marks[0], marks[1]);
        times[round] = (double)ms;
    }
    if (!error) *ret_ms = median_of(times + 1, ROUNDS - 1);
    return error;
}

/* Half a gigabyte: many times the L2 cache. */
static rw_status copy_on_cuda(double *ret_gbs)
{
    const size_t bytes = (size_t)512 << 20;
    cudaEvent_t marks[2] = { NULL, NULL };
    void *memory = NULL;
    double ms = 0;
    cudaError_t error = cudaMalloc(&memory, 2 * bytes);
    for (int i = 0; !error && i < 2; i++) error = cudaEventCreate(&marks[i]);
    if (!error) error = time_copies(memory, bytes, marks, &ms);
    for (int i = 0; i < 2; i++)
        if (marks[i]) cudaEventDestroy(marks[i]);
    cudaFree(memory);
    if (error || ms <= 0) {
        cudaGetLastError();
        return RW_ERR_DEVICE;
    }
    *ret_gbs = 2e-6 * (double)bytes / ms;
    return RW_OK;
}
#else
static rw_status copy_on_cuda(double *ret_gbs)
{
    return RW_ERR_UNSUPPORTED;
}
#endif

rw_status limit_copy(rw_device device, double *ret_gbs)
{
    return device == RW_DEVICE_CUDA ? copy_on_cuda(ret_gbs) : copy_on_cpu(ret_gbs);
}
