/* Contexts: creation, errors, the generator, and the tables of ops, names and call sites. */
#include "record/context.h"

#include "run/run.h"
#include "api/ask.h"
#include "run/trace.h"
#include "base/alloc.h"
#include "record/mode.h"

#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_set(const char *variable)
{
    const char *const value = getenv(variable);
    return value && *value && strcmp(value, "0") != 0;
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
    if (size) why[0] = '\0';
    if ((unsigned)device >= RW_DEVICE_COUNT) return RW_ERR_ARGUMENT;
    if (device == RW_DEVICE_AUTO) return RW_OK;
    const rw_status status = open_kind(&probe, device, &params, why, size);
    if (!status) probe.device->close(probe.device_state);
    return status;
}

rw_status rw_context_create(rw_context **ret_ctx, const rw_context_params *params)
{
    const rw_context_params p = params ? *params : (rw_context_params){ 0 };
    if (!ret_ctx || (unsigned)p.device >= RW_DEVICE_COUNT || p.threads < 0) return RW_ERR_ARGUMENT;
    rw_context *const ctx = rw_calloc(1, sizeof *ctx);
    if (!ctx) return RW_ERR_MEMORY;
    const rw_status status = open_device(ctx, &p);
    if (status) {
        rw_free(ctx);
        return status;
    }
    ctx->threads = p.threads ? p.threads : omp_get_max_threads();
    ctx->generator.seed = p.seed;
    ctx->eager = is_set("REWIND_EAGER");
    ctx->verify = rw_verify_mode_of(getenv("REWIND_VERIFY"));
    ctx->trace = rw_trace_open(ctx);
    *ret_ctx = ctx;
    return RW_OK;
}

static void free_params(rw_context *ctx)
{
    for (size_t i = 0; i < ctx->n_params; i++) {
        struct rw_param *const p = ctx->params[i];
        ctx->device->free(ctx->device_state, p->data);
        ctx->device->free(ctx->device_state, p->grad);
        rw_free(p->name);
        rw_free(p);
    }
    rw_free(ctx->params);
}

void rw_context_destroy(rw_context **pctx)
{
    if (!pctx || !*pctx) return;
    rw_context *const ctx = *pctx;
    rw_launched_wait(ctx);
    rw_trace_close(&ctx->trace);
    rw_plan_cache_finish(&ctx->cache);
    free_params(ctx);
    ctx->device->free(ctx->device_state, ctx->arena);
    rw_layout_table_finish(&ctx->layouts);
    for (size_t i = 0; i < ctx->n_names; i++) rw_free(ctx->names[i]);
    rw_free(ctx->names);
    rw_free(ctx->ops);
    rw_free(ctx->op_hash);
    rw_free(ctx->sites);
    rw_free(ctx->site_hash);
    ctx->device->close(ctx->device_state);
    rw_free(ctx);
    *pctx = NULL;
}

rw_device rw_context_device(const rw_context *ctx)
{
    return ctx ? ctx->kind : RW_DEVICE_AUTO;
}

void *rw_context_stream(const rw_context *ctx)
{
    return ctx && ctx->device->queue ? ctx->device->queue(ctx->device_state).stream : NULL;
}

int rw_context_threads(const rw_context *ctx)
{
    return ctx ? ctx->threads : 0;
}

rw_status rw_context_set_threads(rw_context *ctx, int n)
{
    if (!ctx) return RW_ERR_ARGUMENT;
    if (n < 1) return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_context_set_threads: %d threads, at least 1 is needed", n);
    /* Workspaces are per thread: a plan is made for a number of threads, also one that waits for its backward. */
    if (n != ctx->threads && ctx->arena_owner) rw_arena_take((rw_tape *)(uintptr_t)ctx->arena_owner);
    ctx->threads = n;
    return RW_OK;
}

rw_generator_state rw_generator_get(const rw_context *ctx)
{
    return ctx ? ctx->generator : (rw_generator_state){ 0 };
}

void rw_generator_set(rw_context *ctx, rw_generator_state state)
{
    if (ctx) ctx->generator = state;
}

/* Errors */

/* What failed is said by who called the device, why by the device. */
static void append_device_message(rw_context *ctx)
{
    char text[RW_MESSAGE_MAX] = "";
    const size_t length = strlen(ctx->message);
    if (ctx->device->take_message) ctx->device->take_message(ctx->device_state, text, sizeof text);
    if (*text) snprintf(ctx->message + length, sizeof ctx->message - length, ": %s", text);
}

rw_status rw_fail(rw_context *ctx, rw_status status, const char *fmt, ...)
{
    if (!ctx || ctx->status) return status;
    va_list args;
    va_start(args, fmt);
    vsnprintf(ctx->message, sizeof ctx->message, fmt, args);
    va_end(args);
    ctx->status = status;
    append_device_message(ctx);
    return status;
}

const char *rw_error_message(const rw_context *ctx)
{
    return ctx && ctx->status ? ctx->message : "";
}

rw_status rw_error_status(const rw_context *ctx)
{
    return ctx ? ctx->status : RW_OK;
}

void rw_error_clear(rw_context *ctx)
{
    if (!ctx) return;
    ctx->status = RW_OK;
    ctx->message[0] = '\0';
}

/* Tables */

static size_t hash_pointer(const void *p)
{
    const uint64_t x = (uint64_t)(uintptr_t)p * 0x9e3779b97f4a7c15u;
    return (size_t)(x >> 32);
}

static bool rehash_ops(rw_context *ctx)
{
    const size_t size = ctx->op_hash_size ? ctx->op_hash_size * 2 : 128;
    uint16_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    for (size_t n = 0; n < ctx->n_ops; n++) {
        size_t i = hash_pointer(ctx->ops[n]) & (size - 1);
        while (hash[i]) i = (i + 1) & (size - 1);
        hash[i] = (uint16_t)(n + 1);
    }
    rw_free(ctx->op_hash);
    ctx->op_hash = hash;
    ctx->op_hash_size = size;
    return true;
}

uint32_t rw_op_index(rw_context *ctx, const rw_op_def *op)
{
    if (ctx->n_ops * 2 >= ctx->op_hash_size && !rehash_ops(ctx)) return RW_NONE_ID;
    size_t i = hash_pointer(op) & (ctx->op_hash_size - 1);
    for (; ctx->op_hash[i]; i = (i + 1) & (ctx->op_hash_size - 1))
        if (ctx->ops[ctx->op_hash[i] - 1] == op) return ctx->op_hash[i] - 1u;
    if (ctx->n_ops >= RW_NODE_MAX_OPS || !rw_grow(&ctx->ops, &ctx->cap_ops, ctx->n_ops, 1, sizeof *ctx->ops))
        return RW_NONE_ID;
    ctx->ops[ctx->n_ops] = op;
    ctx->op_hash[i] = (uint16_t)++ctx->n_ops;
    return (uint32_t)ctx->n_ops - 1;
}

/* Few names, each looked up once per region: a linear search is the fast one. */
uint32_t rw_name_index(rw_context *ctx, const char *name)
{
    for (size_t i = 0; i < ctx->n_names; i++)
        if (!strcmp(ctx->names[i], name)) return (uint32_t)i;
    if (ctx->n_names >= UINT16_MAX - 1 || !rw_grow(&ctx->names, &ctx->cap_names, ctx->n_names, 1, sizeof *ctx->names))
        return RW_NONE_ID;
    char *const copy = rw_strdup(name);
    if (!copy) return RW_NONE_ID;
    ctx->names[ctx->n_names] = copy;
    return (uint32_t)ctx->n_names++;
}

static size_t hash_site(rw_site site)
{
    return hash_pointer((const char *)((uintptr_t)site.file + (uintptr_t)site.line * 0x10001u));
}

static bool rehash_sites(rw_context *ctx)
{
    const size_t size = ctx->site_hash_size ? ctx->site_hash_size * 2 : 256;
    uint32_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    for (size_t n = 0; n < ctx->n_sites; n++) {
        size_t i = hash_site(ctx->sites[n]) & (size - 1);
        while (hash[i]) i = (i + 1) & (size - 1);
        hash[i] = (uint32_t)n + 1;
    }
    rw_free(ctx->site_hash);
    ctx->site_hash = hash;
    ctx->site_hash_size = size;
    return true;
}

uint32_t rw_site_index(rw_context *ctx, rw_site site)
{
    if (ctx->n_sites * 2 >= ctx->site_hash_size && !rehash_sites(ctx)) return RW_NONE_ID;
    size_t i = hash_site(site) & (ctx->site_hash_size - 1);
    for (; ctx->site_hash[i]; i = (i + 1) & (ctx->site_hash_size - 1)) {
        const rw_site *const known = &ctx->sites[ctx->site_hash[i] - 1];
        if (known->file == site.file && known->line == site.line) return ctx->site_hash[i] - 1;
    }
    if (!rw_grow(&ctx->sites, &ctx->cap_sites, ctx->n_sites, 1, sizeof *ctx->sites)) return RW_NONE_ID;
    ctx->sites[ctx->n_sites] = site;
    ctx->site_hash[i] = (uint32_t)++ctx->n_sites;
    return (uint32_t)ctx->n_sites - 1;
}
