/* rw_context_set_offload(): selects the offload store. */
#include "api/set_offload_store.h"

#include "autodiff/costs.h"
#include "base/alloc.h"
#include "base/explicit_zero_param.h"
#include "run/run_state.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The minimum size of a store. */
#define PROBE_BYTES 4096

/* Rates below 1 byte per second would give times that a plan cannot add up. */
static bool is_rate(double bytes_per_s)
{
    return bytes_per_s == 0 || (bytes_per_s >= 1 && isfinite(bytes_per_s));
}

static rw_status check_rates(rw_context *ctx, const rw_offload *o)
{
    if (is_rate(o->out_bytes_per_s) && is_rate(o->in_bytes_per_s)) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "rw_context_set_offload(out_bytes_per_s, in_bytes_per_s): expected 0 (measured), or 1 or more, got "
                   "%g and %g",
                   o->out_bytes_per_s, o->in_bytes_per_s);
}

/* Creates a file and removes it, so that a failure is known now and not in the first run. */
static rw_status try_folder(rw_context *ctx, const struct rw_store_fns *fns, const char *path)
{
    void *store;
    const rw_status status = fns->open(ctx->device_state, path, PROBE_BYTES, &store);
    if (status) return rw_fail(ctx, status, "rw_context_set_offload(path): the offload store cannot be opened in %s",
                               path);
    fns->close(ctx->device_state, store);
    return RW_OK;
}

rw_status rw_folder_find(rw_context *ctx, const char *call, const char *path, char **ret)
{
    char *const whole = realpath(path, NULL);
    if (!whole) return rw_fail(ctx, RW_ERR_IO, "%s: %s: %s", call, path, strerror(errno));
    *ret = rw_strdup(whole);
    free(whole);
    return *ret ? RW_OK : rw_fail(ctx, RW_ERR_MEMORY, "%s: out of memory", call);
}

/* Finds a folder that can be written to. */
static rw_status find_folder(rw_context *ctx, const char *path, char **ret)
{
    char *whole = NULL;
    rw_status status = rw_folder_find(ctx, "rw_context_set_offload", path, &whole);
    if (!status) status = try_folder(ctx, ctx->device->file_store, whole);
    if (status) rw_free(whole);
    else *ret = whole;
    return status;
}

/* Checks the rates and the folder, and replaces the store. */
rw_status rw_context_set_offload(rw_context *ctx, const rw_offload *offload)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx) return rw_fail_null(NULL, "rw_context_set_offload", "ctx");
    rw_offload o = offload ? *offload : (rw_offload){ 0 };
    o.out_bytes_per_s = rw_or_default(o.out_bytes_per_s, 0);
    o.in_bytes_per_s = rw_or_default(o.in_bytes_per_s, 0);
    const bool in_files = o.path && *o.path;
    char *path = NULL;
    rw_status status = check_rates(ctx, &o);
    if (!status && in_files) status = find_folder(ctx, o.path, &path);
    if (status) return status;
    rw_free(ctx->store.path);
    ctx->store = (struct rw_store_place){ .fns = in_files ? ctx->device->file_store : ctx->device->store, .path = path,
                                          .given = { o.out_bytes_per_s, o.in_bytes_per_s, 0 },
                                          .rate = { o.out_bytes_per_s, o.in_bytes_per_s, 0 },
                                          .serial = ctx->store.serial + 1 };
    rw_costs_tell_store(ctx);
    rw_arenas_free_unused(ctx, &rw_pool_of(ctx)->stores);
    return RW_OK;
}
