/*
 * Contexts: creation, environment variables, threads, the generator. This is the only place where lower layers call
 * higher ones: `record` calls code that runs, through the table that is filled in here.
 */
#include "api/context.h"

#include "api/backward_with.h"
#include "api/eval_and_backward.h"
#include "api/expected_backward.h"
#include "api/clip_grad_norm.h"
#include "api/layout_gc.h"
#include "autodiff/costs.h"
#include "base/alloc.h"
#include "device/cpu/memory_limits.h"
#include "device/cpu/default_thread_count.h"
#include "device/plan_only_device.h"
#include "plan/cache.h"
#include "plan/dump_passes.h"
#include "record/arg_eval_order_check.h"
#include "record/gradient_state.h"
#include "record/tape.h"
#include "run/run_advance.h"
#include "run/poison.h"
#include "run/trace.h"
#include "verify/faults.h"
#include "verify/digest_check.h"
#include "verify/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_set(const char *variable)
{
    const char *const value = secure_getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* Is the word in the comma-separated list of the variable? */
static bool names(const char *variable, const char *word)
{
    const char *at = secure_getenv(variable);
    for (const size_t n = strlen(word); at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, word, n) && (!at[n] || at[n] == ',')) return true;
    return false;
}

static enum rw_verify_mode verify_mode_of(const char *value)
{
    if (!value || !*value || !strcmp(value, "0")) return RW_VERIFY_OFF;
    return !strcmp(value, "digest") ? RW_VERIFY_DIGEST : RW_VERIFY_FULL;
}

/* After the runs have ended. */
static void end_step(rw_tape *t, void *state)
{
    struct rw_expected *entry;
    rw_history_end_step(t, &entry);
    if (entry) rw_begun_plan_ahead(t, entry);
    rw_layout_gc(t->ctx, t);
}

static struct rw_extension steps_extension = { .name = "steps", .reset = end_step };

static const struct rw_upward upward = { .recorded = rw_run_eagerly, .written = rw_begun_written,
                                         .release = rw_runs_release };

/* Attaches the observers of runs. The last one is closest to the kernels, so all others see what a fault changes. */
static rw_status attach_all(rw_context *ctx)
{
    rw_trace_attach(ctx, secure_getenv("REWIND_TRACE"));
    const rw_status status = ctx->verify == RW_VERIFY_DIGEST ? rw_digest_check_attach(ctx)
                             : ctx->verify == RW_VERIFY_FULL ? rw_verify_attach(ctx)
                                                             : RW_OK;
    const rw_status poisoned = status ? status : rw_poison_attach(ctx);
    return poisoned ? poisoned : rw_faults_attach(ctx);
}

static const struct rw_device_fns *const devices[RW_DEVICE_COUNT] = {
    [RW_DEVICE_CPU] = &rw_device_cpu,
#ifdef RW_HAVE_CUDA
    [RW_DEVICE_CUDA] = &rw_device_cuda,
#endif
};

static rw_status open_kind(rw_context *ctx, rw_device kind, const rw_context_params *params, char *why, size_t size)
{
    if (!devices[kind]) {
        snprintf(why, size, "this build has no %s device", rw_device_name(kind));
        return RW_ERR_UNSUPPORTED;
    }
    ctx->kind = kind;
    ctx->device = devices[kind];
    return ctx->device->open(&ctx->device_state, params, why, size);
}

/* AUTO selects the fastest device of this build that opens. */
static rw_status open_device(rw_context *ctx, const rw_context_params *params)
{
    char why[RW_MESSAGE_MAX] = "";
    const bool any = params->device == RW_DEVICE_AUTO;
    if (any && open_kind(ctx, RW_DEVICE_CUDA, params, why, sizeof why) == RW_OK) return RW_OK;
    const rw_status status = open_kind(ctx, any ? RW_DEVICE_CPU : params->device, params, why, sizeof why);
    return status ? rw_fail(NULL, status, "rw_context_create: %s", *why ? why : rw_status_name(status)) : RW_OK;
}

/* Destroys a context that could not be created. Its error is reported without it. */
static rw_status not_created(rw_context *ctx, rw_status status)
{
    const char *const why = ctx ? rw_error_message(ctx) : "";
    rw_fail(NULL, status, "rw_context_create: %s", *why ? why : rw_status_name(status));
    rw_context_destroy(&ctx);
    return status;
}

static rw_status params_fault(rw_context **ret_ctx, const rw_context_params *p)
{
    if (!ret_ctx) return rw_fail_null(NULL, "rw_context_create", "ret_ctx");
    if ((unsigned)p->device >= RW_DEVICE_COUNT)
        return rw_fail(NULL, RW_ERR_ARGUMENT, "rw_context_create(device): expected RW_DEVICE_AUTO (%d) to "
                       "RW_DEVICE_CUDA (%d), got %d", RW_DEVICE_AUTO, RW_DEVICE_CUDA, (int)p->device);
    if (p->threads >= 0 && p->threads <= RW_MAX_THREADS) return RW_OK;
    return rw_fail(NULL, RW_ERR_ARGUMENT, "rw_context_create(threads): expected 0 to %d, got %d", RW_MAX_THREADS,
                   p->threads);
}

/* Opens the device and closes it again. The reason is text of this function's own: `why` may be short or NULL. */
rw_status rw_device_check(rw_device device, char *why, size_t size)
{
    RW_ENTER_ANYWHERE;
    const rw_context_params params = { .device = device };
    rw_context probe = { 0 };
    char reason[RW_MESSAGE_MAX] = "";
    rw_status status = RW_OK;
    if (size && !why) return rw_fail_null(NULL, "rw_device_check", "why");
    if (size) why[0] = '\0';
    if (device == RW_DEVICE_AUTO) return RW_OK;
    const bool known = (unsigned)device < RW_DEVICE_COUNT;
    if (known) status = open_kind(&probe, device, &params, reason, sizeof reason);
    else {
        status = RW_ERR_ARGUMENT;
        snprintf(reason, sizeof reason, "expected RW_DEVICE_AUTO (%d) to RW_DEVICE_CUDA (%d), got %d", RW_DEVICE_AUTO,
                 RW_DEVICE_CUDA, (int)device);
    }
    if (!status) {
        probe.device->close(probe.device_state);
        return RW_OK;
    }
    if (!*reason) snprintf(reason, sizeof reason, "%s", rw_status_name(status));
    if (size) snprintf(why, size, "%s", reason);
    return rw_fail(NULL, status, "rw_device_check%s: %s", known ? "" : "(device)", reason);
}

/* Initializes threads, generator, plans and runs. */
static rw_status open_bare(rw_context *ctx, const rw_context_params *params)
{
    ctx->up = &upward;
    ctx->n_users = 1;
    ctx->threads = params->threads;
    ctx->generator.seed = params->seed;
    ctx->strict_policy = params->strict_policy;
    ctx->store.fns = ctx->device->store;
    rw_status status = rw_gradients_open(ctx);
    if (!status) status = rw_effects_open(ctx);
    if (!status) status = rw_costs_open(ctx);
    if (!status) status = rw_plan_cache_open(ctx);
    if (status) return status;
    status = rw_runs_init(ctx, params->waiting_bytes ? params->waiting_bytes
                                                     : (size_t)(rw_memory_limits().resident / 2));
    if (status) return status;
    return rw_extension_make(&ctx->extensions, &steps_extension) ? RW_OK : RW_ERR_MEMORY;
}

/* Checks the parameters, opens the device and initializes the context. */
rw_status rw_context_create_bare(rw_context **ret_ctx, const rw_context_params *params)
{
    rw_context_params p = params ? *params : (rw_context_params){ 0 };
    rw_status status = params_fault(ret_ctx, &p);
    if (status) return status;
    if (!p.threads && rw_threads_default(&p.threads))
        return rw_fail(NULL, RW_ERR_ARGUMENT, "rw_context_create: REWIND_THREADS: expected 1 to %d, got \"%s\"",
                       RW_MAX_THREADS, getenv("REWIND_THREADS"));
    rw_context *ctx = rw_calloc(1, sizeof *ctx);
    if (!ctx) return not_created(NULL, RW_ERR_MEMORY);
    status = open_device(ctx, &p);
    if (status) {
        rw_free(ctx);
        return status;
    }
    if (p.plan_only) {
        ctx->plan_only = true;
        ctx->planning = rw_device_for_planning(ctx->device);
        ctx->device = &ctx->planning;
    }
    status = open_bare(ctx, &p);
    if (status) return not_created(ctx, status);
    *ret_ctx = ctx;
    return RW_OK;
}

/* Applies environment variables to a bare context. */
rw_status rw_context_create(rw_context **ret_ctx, const rw_context_params *params)
{
    RW_ENTER_ANYWHERE;
    rw_context *ctx;
    rw_status status = rw_context_create_bare(ret_ctx ? &ctx : NULL, params);
    if (status) return status;
    ctx->eager = is_set("REWIND_EAGER") && !ctx->plan_only;
    if (!ctx->plan_only) ctx->verify = verify_mode_of(secure_getenv("REWIND_VERIFY"));
    if (names("REWIND_DEBUG", "order")) status = rw_order_check_begin(ctx);
    if (names("REWIND_DEBUG", "effects")) rw_effects_refuse_drops(ctx);
    if (!status) status = rw_plan_dump_into(ctx, secure_getenv("REWIND_DUMP"));
    if (!status && !ctx->plan_only) status = attach_all(ctx);
    if (status) return not_created(ctx, status);
    if (is_set("REWIND_OFFLOAD")) rw_context_set_offload(ctx, &(rw_offload){ .path = secure_getenv("REWIND_OFFLOAD") });
    *ret_ctx = ctx;
    return RW_OK;
}

void rw_context_destroy(rw_context **pctx)
{
    RW_ENTER(pctx ? *pctx : NULL, );
    if (!pctx || !*pctx) return;
    rw_context *const ctx = *pctx;
    *pctx = NULL;
    if (ctx->destroyed) return; /* the rest belongs to its tapes and optimizers */
    ctx->destroyed = true;
    rw_clipping_destroy(ctx); /* its tape is a user */
    rw_backward_recorders_destroy(ctx); /* likewise */
    rw_context_release(ctx);
}

rw_device rw_context_device(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    return ctx ? ctx->kind : RW_DEVICE_AUTO;
}

void *rw_context_stream(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    return ctx && ctx->device->queue ? ctx->device->queue(ctx->device_state, RW_LANE_COMPUTE).stream : NULL;
}

int rw_context_threads(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    return ctx ? ctx->threads : 0;
}

rw_status rw_context_set_threads(rw_context *ctx, int n)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_context_set_threads", "ctx");
    if (n < 1 || n > RW_MAX_THREADS)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_context_set_threads(n): expected 1 to %d, got %d", RW_MAX_THREADS, n);
    const rw_status status = ctx->device->on_host ? rw_start_threads(ctx, "rw_context_set_threads", n) : RW_OK;
    if (!status) ctx->threads = n;
    return status;
}

rw_generator_state rw_generator_get(const rw_context *ctx)
{
    RW_LOOKS_ONLY;
    return ctx ? ctx->generator : (rw_generator_state){ 0 };
}

void rw_generator_set(rw_context *ctx, rw_generator_state state)
{
    RW_ENTER(ctx, );
    if (ctx) ctx->generator = state;
}
