/*
 * Contexts: their creation, what the environment says, threads, the generator; and the one place where control goes up:
 * record calls what runs, by the table that is filled here.
 */
#include "api/context.h"

#include "api/ask.h"
#include "api/clip.h"
#include "api/sweep.h"
#include "autodiff/costs.h"
#include "base/alloc.h"
#include "device/cpu/memory_limits.h"
#include "device/cpu/threads.h"
#include "device/planning.h"
#include "plan/cache.h"
#include "record/counts.h"
#include "record/kept_codes.h"
#include "record/tape.h"
#include "run/advance.h"
#include "run/poison.h"
#include "run/trace.h"
#include "verify/faults.h"
#include "verify/replays.h"
#include "verify/verify.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_set(const char *variable)
{
    const char *const value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
}

/* Is the word one of the variable's, which commas separate? */
static bool names(const char *variable, const char *word)
{
    const char *at = getenv(variable);
    for (const size_t n = strlen(word); at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, word, n) && (!at[n] || at[n] == ',')) return true;
    return false;
}

static enum rw_verify_mode verify_mode_of(const char *value)
{
    if (!value || !*value || !strcmp(value, "0")) return RW_VERIFY_OFF;
    return !strcmp(value, "digest") ? RW_VERIFY_DIGEST : RW_VERIFY_FULL;
}

static void free_context(rw_context *ctx);

static void reset(rw_tape *t)
{
    rw_tape_drop_effects(t);
    rw_runs_reset(t);
    rw_sweep_layouts(t->ctx, t);
}

static const struct rw_upward upward = { .recorded = rw_run_eagerly, .undone = rw_results_undone, .reset = reset,
                                         .gone = rw_results_finish, .destroy = free_context };

/* Who watches what runs. The last one stands nearest to the kernels: what a fault does is seen by all others. */
static rw_status attach_all(rw_context *ctx)
{
    rw_trace_attach(ctx, getenv("REWIND_TRACE"));
    const rw_status status = ctx->verify == RW_VERIFY_DIGEST ? rw_replays_attach(ctx)
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

/* AUTO is the fastest device of this build that answers. */
static rw_status open_device(rw_context *ctx, const rw_context_params *params)
{
    char why[RW_MESSAGE_MAX];
    if (params->device != RW_DEVICE_AUTO) return open_kind(ctx, params->device, params, why, sizeof why);
    if (open_kind(ctx, RW_DEVICE_CUDA, params, why, sizeof why) == RW_OK) return RW_OK;
    return open_kind(ctx, RW_DEVICE_CPU, params, why, sizeof why);
}

rw_status rw_device_check(rw_device device, char *why, size_t size)
{
    const rw_context_params params = { .device = device };
    rw_context probe = { 0 };
    if (size && !why) return RW_ERR_ARGUMENT;
    if (size) why[0] = '\0';
    if ((unsigned)device >= RW_DEVICE_COUNT) return RW_ERR_ARGUMENT;
    if (device == RW_DEVICE_AUTO) return RW_OK;
    const rw_status status = open_kind(&probe, device, &params, why, size);
    if (!status) probe.device->close(probe.device_state);
    return status;
}

/* OMP_NUM_THREADS, or all cores. */
static int default_threads(void)
{
    const int n = omp_get_max_threads();
    return n < RW_MAX_THREADS ? n : RW_MAX_THREADS;
}

/* With threads, generator, plans and room for runs. */
static rw_status open_bare(rw_context *ctx, const rw_context_params *params)
{
    ctx->up = &upward;
    ctx->n_users = 1;
    rw_threads_init();
    ctx->threads = params->threads ? params->threads : default_threads();
    ctx->generator.seed = params->seed;
    ctx->store.fns = ctx->device->store;
    ctx->plans = rw_calloc(1, sizeof *ctx->plans);
    if (!ctx->plans) return RW_ERR_MEMORY;
    return rw_runs_init(ctx, params->waiting_bytes ? params->waiting_bytes
                                                     : (size_t)(rw_memory_limits().resident / 2));
}

rw_status rw_context_create_bare(rw_context **ret_ctx, const rw_context_params *params)
{
    const rw_context_params p = params ? *params : (rw_context_params){ 0 };
    if (!ret_ctx || (unsigned)p.device >= RW_DEVICE_COUNT || p.threads < 0 || p.threads > RW_MAX_THREADS)
        return RW_ERR_ARGUMENT;
    rw_context *ctx = rw_calloc(1, sizeof *ctx);
    if (!ctx) return RW_ERR_MEMORY;
    rw_status status = open_device(ctx, &p);
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
    if (status) rw_context_destroy(&ctx);
    else *ret_ctx = ctx;
    return status;
}

rw_status rw_context_create(rw_context **ret_ctx, const rw_context_params *params)
{
    rw_context *ctx;
    rw_status status = rw_context_create_bare(ret_ctx ? &ctx : NULL, params);
    if (status) return status;
    ctx->eager = is_set("REWIND_EAGER") && !ctx->plan_only;
    ctx->orders = names("REWIND_DEBUG", "order");
    ctx->tells_dropped_effects = names("REWIND_DEBUG", "effects");
    if (!ctx->plan_only) ctx->verify = verify_mode_of(getenv("REWIND_VERIFY"));
    status = ctx->plan_only ? RW_OK : attach_all(ctx);
    if (status) {
        rw_context_destroy(&ctx);
        return status;
    }
    if (is_set("REWIND_OFFLOAD")) rw_context_set_offload(ctx, &(rw_offload){ .path = getenv("REWIND_OFFLOAD") });
    *ret_ctx = ctx;
    return RW_OK;
}

static void free_params(rw_context *ctx)
{
    for (size_t i = 0; i < ctx->n_ids; i++) {
        struct rw_param *const p = ctx->by_id[i];
        if (!p) continue;
        ctx->device->free(ctx->device_state, p->data);
        ctx->device->free(ctx->device_state, p->gradient.data);
        rw_free(p->name);
        rw_free(p);
    }
    rw_free(ctx->params);
    rw_free(ctx->param_hash);
    rw_free(ctx->by_id);
}

static void free_context(rw_context *ctx)
{
    rw_runs_finish(ctx);
    if (ctx->plans) rw_plan_cache_finish(ctx->plans);
    rw_free(ctx->plans);
    rw_costs_free(ctx->costs);
    rw_counts_free(ctx);
    for (size_t i = 0; i < ctx->n_params; i++) rw_kept_codes_drop(ctx, ctx->params[i]);
    free_params(ctx);
    rw_tables_finish(ctx);
    rw_free(ctx->store.path);
    ctx->device->close(ctx->device_state);
    rw_free(ctx);
}

void rw_context_destroy(rw_context **pctx)
{
    if (!pctx || !*pctx) return;
    rw_context *const ctx = *pctx;
    *pctx = NULL;
    if (ctx->destroyed) return; /* what is left belongs to its tapes and optimizers */
    ctx->destroyed = true;
    rw_clipping_destroy(ctx); /* its tape is a user */
    rw_context_release(ctx);
}

rw_device rw_context_device(const rw_context *ctx)
{
    return ctx ? ctx->kind : RW_DEVICE_AUTO;
}

void *rw_context_stream(const rw_context *ctx)
{
    return ctx && ctx->device->queue ? ctx->device->queue(ctx->device_state, RW_LANE_COMPUTE).stream : NULL;
}

int rw_context_threads(const rw_context *ctx)
{
    return ctx ? ctx->threads : 0;
}

rw_status rw_context_set_threads(rw_context *ctx, int n)
{
    if (!ctx) return RW_ERR_ARGUMENT;
    if (n < 1 || n > RW_MAX_THREADS)
        return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_context_set_threads: %d threads, 1 to %d can be asked for", n,
                       RW_MAX_THREADS);
    int usable;
    const rw_status status = ctx->device->on_host ? rw_team(ctx, "rw_context_set_threads", n, &usable) : RW_OK;
    if (!status) ctx->threads = n;
    return status;
}

rw_generator_state rw_generator_get(const rw_context *ctx)
{
    return ctx ? ctx->generator : (rw_generator_state){ 0 };
}

void rw_generator_set(rw_context *ctx, rw_generator_state state)
{
    if (ctx) ctx->generator = state;
}
