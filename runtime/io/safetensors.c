/* rw_save() and rw_load(): parameters and buffers as a safetensors file. See format.h. */
#include "base/alloc.h"
#include "io/format.h"
#include "io/part.h"
#include "io/read.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/io.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

static rw_shape shape_of(const rw_context *ctx, const struct rw_param *p)
{
    return rw_layout_shape(rw_layout_of(ctx, &p->tensor));
}

static unsigned char *make_header(const rw_context *ctx, size_t *ret_bytes)
{
    cJSON *const header = cJSON_CreateObject();
    bool ok = header != NULL;
    size_t at = 0;
    for (size_t i = 0; ok && i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        ok = rw_format_add(header, p->name, rw_format_dtype((rw_dtype)p->tensor.dtype), shape_of(ctx, p), at,
                           at + p->bytes);
        at += p->bytes;
    }
    unsigned char *const text = ok ? rw_format_print(header, 8, ret_bytes) : NULL;
    cJSON_Delete(header);
    return text;
}

static rw_status write_elements(const rw_context *ctx, FILE *f)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        void *const host = rw_malloc(p->bytes);
        status = host ? ctx->device->download(ctx->device_state, host, p->data, p->bytes) : RW_ERR_MEMORY;
        if (!status && fwrite(host, 1, p->bytes, f) != p->bytes) status = RW_ERR_IO;
        rw_free(host);
    }
    return status;
}

static rw_status check_names(rw_context *ctx, const char *path)
{
    for (size_t i = 0; i < ctx->n_params; i++)
        if (!rw_format_holds(ctx->params[i]->name))
            return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_save: %s: the name \"%s\" is not UTF-8, as safetensors has it",
                           path, ctx->params[i]->name);
    if (!rw_param_find(ctx, RW_FORMAT_METADATA)) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "rw_save: %s: safetensors keeps the name \"" RW_FORMAT_METADATA "\" for itself: give the "
                   "parameter another one",
                   path);
}

rw_status rw_save(const rw_context *const_ctx, const char *path)
{
    rw_context *const ctx = (rw_context *)(uintptr_t)const_ctx; /* an error is noted there */
    if (!ctx || !path) return rw_fail_null(ctx, "rw_save", ctx ? "path" : "ctx");
    struct rw_part part;
    const char *why = NULL;
    size_t bytes;
    rw_status status = rw_check_runs(ctx, "rw_save");
    if (!status) status = check_names(ctx, path);
    if (status) return status;
    unsigned char *const header = make_header(ctx, &bytes);
    status = header ? rw_part_open(&part, path, &why) : RW_ERR_MEMORY;
    if (!status) {
        const bool written = fwrite(header, 1, bytes, part.file) == bytes;
        status = rw_part_close(&part, written ? write_elements(ctx, part.file) : RW_ERR_IO);
    }
    if (status)
        rw_fail(ctx, status, "rw_save: %s: %s", path,
                why ? why : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
    rw_free(header);
    return status;
}

/* Where the elements of each parameter lie. */
static rw_status locate(rw_context *ctx, const char *path, struct rw_format_file *f, const void **from)
{
    char why[RW_MESSAGE_MAX / 2];
    rw_status status = rw_format_parse(f, why, sizeof why);
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        status = rw_format_locate(f, p->name, (rw_dtype)p->tensor.dtype, shape_of(ctx, p), &from[i], why, sizeof why);
    }
    return status ? rw_fail(ctx, status, "rw_load: %s: %s", path, why) : RW_OK;
}

rw_status rw_load(rw_context *ctx, const char *path)
{
    if (!ctx || !path) return rw_fail_null(ctx, "rw_load", ctx ? "path" : "ctx");
    const rw_status runs = rw_check_runs(ctx, "rw_load");
    if (runs) return runs;
    struct rw_format_file f = { 0 };
    const void **const from = rw_calloc(ctx->n_params, sizeof *from);
    rw_status status = from ? rw_file_read(ctx, "rw_load", path, SIZE_MAX - 1, &f.data, &f.bytes)
                            : rw_fail(ctx, RW_ERR_MEMORY, "rw_load: out of memory");
    if (!status) status = locate(ctx, path, &f, from);
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        struct rw_param *const p = ctx->params[i];
        p->version++;
        status = ctx->device->upload(ctx->device_state, p->data, from[i], p->bytes);
        if (status) rw_fail(ctx, status, "rw_load: \"%s\": the copy to the device failed", p->name);
    }
    rw_free(from);
    rw_format_finish(&f);
    return status;
}
