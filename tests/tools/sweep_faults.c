/*
 * Faults that recompute_sweep must detect, linked into a build of it for tests/tools/sweep.py. SWEEP_FAULT=draw makes
 * every policy except none draw one more block of random numbers. SWEEP_FAULT=buffer adds forward's changes of buffers
 * (running means) once more. SWEEP_FAULT=update leaves the gradients' bytes right and makes the parameters after the
 * update wrong. SWEEP_FAULT=peak makes a step's activations take more than was planned, SWEEP_FAULT=total the rest.
 * SWEEP_FAULT=loss makes every policy except none have another loss. SWEEP_FAULT=busy makes it take ten times longer
 * than its costs. SWEEP_FAULT=ceiling makes a plain product a million times slower. SWEEP_FAULT=length makes the
 * sequences after the first length fail.
 */
#include "device_roofline.h"
#include "sweep/measure_policies.h"

#include <stdlib.h>
#include <string.h>

rw_status __real_rw_backward(rw_tape *t, rw_tensor *loss);
rw_status __wrap_rw_backward(rw_tape *t, rw_tensor *loss);
rw_status __real_rw_optimizer_step(rw_optimizer *optimizer);
rw_status __wrap_rw_optimizer_step(rw_optimizer *optimizer);
rw_status __real_rw_memory_stats(const rw_context *ctx, rw_memory *ret);
rw_status __wrap_rw_memory_stats(const rw_context *ctx, rw_memory *ret);
rw_status __real_limit_matmul(const rw_context_params *params, rw_dtype dtype, double *ret_tflops);
rw_status __wrap_limit_matmul(const rw_context_params *params, rw_dtype dtype, double *ret_tflops);
rw_status __real_sweep_run_rows(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row **row,
                                int n);
rw_status __wrap_sweep_run_rows(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row **row,
                                int n);

double __real_rw_item(rw_tape *t, rw_tensor *x);
double __wrap_rw_item(rw_tape *t, rw_tensor *x);
rw_status __real_rw_timer_end(rw_context *ctx, double *ret_ms);
rw_status __wrap_rw_timer_end(rw_context *ctx, double *ret_ms);

static bool is_fault(const char *name)
{
    const char *const fault = getenv("SWEEP_FAULT");
    return fault && !strcmp(fault, name);
}

static bool replays; /* the last step's policy is not none */
static rw_context *context;

static float first_of(rw_tensor *p, float *all)
{
    if (rw_read(NULL, p, all, rw_tensor_bytes(p))) abort();
    return all[0];
}

enum { BUFFERS_MAX = 1024, BYTES_MAX = 1 << 20 };

/* Copies of the float32 buffers of a small model. */
static struct {
    rw_tensor *buffer;
    float *before;
} kept[BUFFERS_MAX];
static size_t n_kept;

static void keep_buffers(rw_context *ctx)
{
    rw_tensor *p;
    for (size_t i = 0; (p = rw_param_get(ctx, i)) && n_kept < BUFFERS_MAX; i++) {
        if (rw_gradient(p) || rw_tensor_dtype(p) != RW_F32) continue;
        kept[n_kept].buffer = p;
        kept[n_kept].before = malloc(rw_tensor_bytes(p));
        if (!kept[n_kept].before) abort();
        first_of(p, kept[n_kept++].before);
    }
}

/* Adds the changes of a step once more, if requested. */
static void move_buffers(bool wanted)
{
    static float now[BYTES_MAX / sizeof(float)];
    while (n_kept > 0) {
        rw_tensor *const p = kept[--n_kept].buffer;
        const size_t bytes = rw_tensor_bytes(p);
        if (bytes > sizeof now) abort();
        first_of(p, now);
        for (size_t i = 0; i < bytes / sizeof *now; i++) now[i] += 0.9f * (now[i] - kept[n_kept].before[i]);
        if (wanted && rw_write(p, now, bytes)) abort();
        free(kept[n_kept].before);
    }
}

rw_status __wrap_rw_backward(rw_tape *t, rw_tensor *loss)
{
    rw_context *const ctx = context = rw_tape_context(t);
    if (is_fault("buffer")) keep_buffers(ctx);
    const rw_status status = __real_rw_backward(t, loss);
    replays = strcmp(ckpt_policy(t), "none") != 0;
    if (!status && replays && is_fault("draw")) {
        rw_generator_state state = rw_generator_get(ctx);
        state.offset++;
        rw_generator_set(ctx, state);
    }
    move_buffers(!status && replays);
    return status;
}

rw_status __wrap_rw_optimizer_step(rw_optimizer *optimizer)
{
    const rw_status status = __real_rw_optimizer_step(optimizer);
    rw_tensor *const p = !status && replays && is_fault("update") ? rw_param_get(context, 0) : NULL;
    float *const all = p ? malloc(rw_tensor_bytes(p)) : NULL;
    if (all) {
        all[0] = first_of(p, all) + 1;
        if (rw_write(p, all, rw_tensor_bytes(p))) abort();
    }
    free(all);
    return status;
}

double __wrap_rw_item(rw_tape *t, rw_tensor *x)
{
    return __real_rw_item(t, x) + (replays && is_fault("loss") ? 0.5 : 0);
}

rw_status __wrap_rw_timer_end(rw_context *ctx, double *ret_ms)
{
    const rw_status status = __real_rw_timer_end(ctx, ret_ms);
    if (!status && replays && is_fault("busy")) *ret_ms *= 10;
    return status;
}

rw_status __wrap_rw_memory_stats(const rw_context *ctx, rw_memory *ret)
{
    const rw_status status = __real_rw_memory_stats(ctx, ret);
    if (!status && is_fault("peak")) ret->measured_peak += 64;
    if (!status && is_fault("total")) ret->inputs += 64;
    return status;
}

rw_status __wrap_limit_matmul(const rw_context_params *params, rw_dtype dtype, double *ret_tflops)
{
    const rw_status status = __real_limit_matmul(params, dtype, ret_tflops);
    if (is_fault("ceiling")) *ret_tflops *= 1e-6;
    return status;
}

rw_status __wrap_sweep_run_rows(const struct sweep_options *o, const struct sweep_text *text, struct sweep_row **row,
                                int n)
{
    if (is_fault("length") && row[0]->seq != o->seqs[0]) return RW_ERR_MEMORY;
    return __real_sweep_run_rows(o, text, row, n);
}
