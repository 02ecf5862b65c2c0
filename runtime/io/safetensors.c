/*
 * rw_save() and rw_load(): parameters and buffers as a safetensors file
 * (https://github.com/huggingface/safetensors): 8 bytes with the header's length, a JSON header, the elements.
 */
#include "base/alloc.h"
#include "io/header.h"
#include "io/part.h"
#include "io/read.h"
#include "record/context.h"
#include "record/param.h"

#include <rewind/io.h>

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METADATA "__metadata__" /* the one name that the format takes for itself */
#define HEADER_MOST ((uint64_t)100 << 20) /* as the format's own readers allow */

static const char *const dtype_names[RW_DTYPE_COUNT] = {
    [RW_F32] = "F32", [RW_F64] = "F64", [RW_BF16] = "BF16", [RW_I32] = "I32", [RW_F16] = "F16",
    [RW_BOOL] = "BOOL"
};

static bool add_entry(cJSON *header, const rw_context *ctx, const struct rw_param *p, size_t at)
{
    cJSON *const entry = cJSON_AddObjectToObject(header, p->name);
    cJSON *const shape = entry ? cJSON_AddArrayToObject(entry, "shape") : NULL;
    cJSON *const offsets = entry ? cJSON_AddArrayToObject(entry, "data_offsets") : NULL;
    if (!shape || !offsets || !cJSON_AddStringToObject(entry, "dtype", dtype_names[p->tensor.dtype])) return false;
    const rw_layout *const l = rw_layout_of(ctx, &p->tensor);
    for (int i = 0; i < l->rank; i++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)l->dim[i]))) return false;
    return cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)at)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(at + p->bytes)));
}

/* The header's text, padded with blanks to a multiple of 8; freed with cJSON_free(). */
static char *make_header(const rw_context *ctx)
{
    cJSON *const header = cJSON_CreateObject();
    bool ok = header != NULL;
    size_t at = 0;
    for (size_t i = 0; ok && i < ctx->n_params; i++) {
        ok = add_entry(header, ctx, ctx->params[i], at);
        at += ctx->params[i]->bytes;
    }
    char *const text = ok ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

static bool write_header(const char *header, FILE *f)
{
    const size_t length = strlen(header), padded = (length + 7) / 8 * 8;
    unsigned char size[8];
    for (int i = 0; i < 8; i++) size[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    if (fwrite(size, 1, 8, f) != 8 || fwrite(header, 1, length, f) != length) return false;
    for (size_t i = length; i < padded; i++)
        if (fputc(' ', f) == EOF) return false;
    return true;
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

rw_status rw_save(const rw_context *const_ctx, const char *path)
{
    rw_context *const ctx = (rw_context *)(uintptr_t)const_ctx; /* an error is noted there */
    if (!ctx || !path) return rw_fail_null(ctx, "rw_save", ctx ? "path" : "ctx");
    if (rw_param_find(ctx, METADATA))
        return rw_fail(ctx, RW_ERR_ARGUMENT,
                       "rw_save: %s: safetensors keeps the name \"" METADATA "\" for itself: give the parameter "
                       "another one",
                       path);
    struct rw_part part;
    const char *why = NULL;
    char *const header = make_header(ctx);
    rw_status status = header ? rw_part_open(&part, path, &why) : RW_ERR_MEMORY;
    if (!status) {
        status = write_header(header, part.file) ? write_elements(ctx, part.file) : RW_ERR_IO;
        status = rw_part_close(&part, status);
    }
    if (status)
        rw_fail(ctx, status, "rw_save: %s: %s", path,
                why ? why : status == RW_ERR_IO ? strerror(errno) : rw_status_name(status));
    if (header) cJSON_free(header);
    return status;
}

/* A file in memory: header and elements. */
struct file {
    unsigned char *data;
    size_t bytes;
    cJSON *header;
    const unsigned char *elements;
    size_t n_elements; /* in bytes */
};

static void file_finish(struct file *f)
{
    cJSON_Delete(f->header);
    rw_free(f->data);
}

static rw_status parse(rw_context *ctx, const char *path, struct file *f)
{
    uint64_t length = 0;
    char why[RW_MESSAGE_MAX / 2];
    for (int i = 0; f->bytes >= 8 && i < 8; i++) length |= (uint64_t)f->data[i] << (8 * i);
    if (f->bytes < 8 || length > HEADER_MOST || length > f->bytes - 8)
        return rw_fail(ctx, RW_ERR_IO, "rw_load: %s: not a safetensors file (cut off, or the header's length is wrong)",
                       path);
    f->elements = f->data + 8 + length;
    f->n_elements = f->bytes - 8 - (size_t)length;
    const rw_status status = rw_header_read((const char *)f->data + 8, (size_t)length, 8, f->n_elements, &f->header,
                                            why, sizeof why);
    return status ? rw_fail(ctx, status, "rw_load: %s: not a safetensors file: %s", path, why) : RW_OK;
}

/* Finds the elements of a parameter and checks that they fit it. */
static rw_status locate(rw_context *ctx, const char *path, const struct file *f, const struct rw_param *p,
                        const void **ret)
{
    const cJSON *const entry = cJSON_GetObjectItemCaseSensitive(f->header, p->name);
    if (!entry) return rw_fail(ctx, RW_ERR_IO, "rw_load: %s: \"%s\" is not in it", path, p->name);
    const cJSON *const dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *const shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *const offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (strcmp(dtype->valuestring, dtype_names[p->tensor.dtype]))
        return rw_fail(ctx, RW_ERR_DTYPE, "rw_load: %s: \"%s\" is %s there, %s here", path, p->name, dtype->valuestring,
                       dtype_names[p->tensor.dtype]);
    const rw_layout *const l = rw_layout_of(ctx, &p->tensor);
    bool fits = cJSON_GetArraySize(shape) == l->rank;
    for (int i = 0; fits && i < l->rank; i++)
        fits = cJSON_GetNumberValue(cJSON_GetArrayItem(shape, i)) == (double)l->dim[i];
    if (!fits) return rw_fail(ctx, RW_ERR_SHAPE, "rw_load: %s: \"%s\" has another shape there", path, p->name);
    const double from = offsets->child->valuedouble, to = offsets->child->next->valuedouble;
    if (to - from != (double)p->bytes)
        return rw_fail(ctx, RW_ERR_IO, "rw_load: %s: \"%s\" has %.0f bytes there, its type and shape take %zu", path,
                       p->name, to - from, p->bytes);
    *ret = f->elements + (size_t)from;
    return RW_OK;
}

rw_status rw_load(rw_context *ctx, const char *path)
{
    if (!ctx || !path) return rw_fail_null(ctx, "rw_load", ctx ? "path" : "ctx");
    struct file f = { 0 };
    const void **const from = rw_calloc(ctx->n_params, sizeof *from);
    rw_status status = from ? rw_file_read(ctx, "rw_load", path, SIZE_MAX - 1, &f.data, &f.bytes)
                            : rw_fail(ctx, RW_ERR_MEMORY, "rw_load: out of memory");
    if (!status) status = parse(ctx, path, &f);
    for (size_t i = 0; !status && i < ctx->n_params; i++) status = locate(ctx, path, &f, ctx->params[i], &from[i]);
    for (size_t i = 0; !status && i < ctx->n_params; i++) {
        struct rw_param *const p = ctx->params[i];
        p->version++;
        status = ctx->device->upload(ctx->device_state, p->data, from[i], p->bytes);
        if (status) rw_fail(ctx, status, "rw_load: \"%s\": the copy to the device failed", p->name);
    }
    rw_free(from);
    file_finish(&f);
    return status;
}
