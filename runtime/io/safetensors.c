/* rw_save() and rw_load(): parameters and buffers as a safetensors file (safetensors_format.h). */
#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/atomic_file_replace.h"
#include "base/utf8.h"
#include "io/safetensors_format.h"
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

static rw_status put(int fd, const void *data, size_t bytes)
{
    size_t written;
    return rw_fd_write(fd, data, bytes, &written) ? RW_OK : RW_ERR_IO;
}

static rw_status write_all(const rw_context *ctx, int fd, const unsigned char *header, size_t bytes)
{
    rw_status status = put(fd, header, bytes);
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        void *const host = rw_malloc(p->bytes);
        status = host ? ctx->device->download(ctx->device_state, host, p->data, p->bytes) : RW_ERR_MEMORY;
        if (!status) status = put(fd, host, p->bytes);
        const int reason = errno;
        rw_free(host);
        errno = reason;
    }
    return status;
}

static rw_status check_names(rw_context *ctx, const char *path)
{
    for (size_t i = 0; i < ctx->n_params; i++)
        if (!rw_utf8_is_text(ctx->params[i]->name))
            return rw_fail(ctx, RW_ERR_ARGUMENT, "rw_save: %s: expected names in UTF-8, got \"%s\"",
                           path, ctx->params[i]->name);
    if (!rw_param_find(ctx, RW_FORMAT_METADATA)) return RW_OK;
    return rw_fail(ctx, RW_ERR_ARGUMENT,
                   "rw_save: %s: expected no parameter of the reserved name \"" RW_FORMAT_METADATA "\", got one: give "
                   "it another one",
                   path);
}

rw_status rw_save(const rw_context *const_ctx, const char *path)
{
    RW_ENTER(const_ctx, RW_ERR_ARGUMENT);
    rw_context *const ctx = (rw_context *)(uintptr_t)const_ctx; /* an error is noted there */
    if (!ctx || !path) return rw_fail_null(ctx, "rw_save", ctx ? "path" : "ctx");
    struct rw_replacement file;
    const char *why = NULL;
    size_t bytes;
    rw_status status = rw_check_runs(ctx, "rw_save");
    if (!status) status = check_names(ctx, path);
    if (status) return status;
    unsigned char *const header = make_header(ctx, &bytes);
    status = header ? rw_replace_begin(&file, path, &why) : RW_ERR_MEMORY;
    if (!status) status = rw_replace_end(&file, write_all(ctx, file.fd, header, bytes));
    if (status)
        rw_fail(ctx, status, "rw_save: %s: %s", path,
                why ? why : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
    rw_free(header);
    return status;
}

/* Locations of each parameter's elements, in the file and in a block of memory for all of them. */
static rw_status locate(const rw_context *ctx, const struct rw_format_file *f, const struct rw_header_entry **entry,
                        size_t *ret_bytes, char *why, size_t size)
{
    rw_status status = RW_OK;
    *ret_bytes = 0;
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        const struct rw_param *const p = ctx->params[i];
        status = rw_format_locate(f, p->name, (rw_dtype)p->tensor.dtype, shape_of(ctx, p), &entry[i], why, size);
        *ret_bytes += p->bytes;
    }
    return status;
}

/* Reads all before the first one changes. */
static rw_status read_all(const rw_context *ctx, struct rw_format_file *f, const struct rw_header_entry **entry,
                          unsigned char *to, char *why, size_t size)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        status = rw_format_read(f, entry[i], to, why, size);
        to += ctx->params[i]->bytes;
    }
    return status;
}

static rw_status upload_all(rw_context *ctx, const unsigned char *from)
{
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        struct rw_param *const p = ctx->params[i];
        p->version++;
        status = ctx->device->upload(ctx->device_state, p->data, from, p->bytes);
        if (status) rw_fail(ctx, status, "rw_load: \"%s\": the copy to the device failed", p->name);
        from += p->bytes;
    }
    return status;
}

rw_status rw_load(rw_context *ctx, const char *path)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx || !path) return rw_fail_null(ctx, "rw_load", ctx ? "path" : "ctx");
    const rw_status runs = rw_check_runs(ctx, "rw_load");
    if (runs) return runs;
    char why[RW_MESSAGE_MAX / 2] = "out of memory";
    struct rw_format_file f;
    size_t bytes = 0;
    const struct rw_header_entry **const entry = rw_calloc(ctx->n_params, sizeof *entry);
    rw_status status = rw_format_open(&f, path, why, sizeof why);
    if (!status && !entry) status = RW_ERR_MEMORY;
    if (!status) status = locate(ctx, &f, entry, &bytes, why, sizeof why);
    unsigned char *const data = status ? NULL : rw_malloc(bytes + 1);
    if (!status && !data) status = RW_ERR_MEMORY;
    if (!status) status = read_all(ctx, &f, entry, data, why, sizeof why);
    if (status) rw_fail(ctx, status, "rw_load: %s: %s", path, why);
    else status = upload_all(ctx, data);
    rw_free(entry);
    rw_free(data);
    rw_format_finish(&f);
    return status;
}
