/* rw_load_parts(): parameters out of a file of somebody else's, by its names. See rewind/io.h. */
#include <rewind/io.h>

#include "base/alloc.h"
#include "io/format.h"
#include "io/read.h"
#include "record/param.h"

#include <stdio.h>
#include <string.h>

struct part {
    struct rw_param *p;
    const unsigned char *from;
    size_t bytes, offset; /* of the part, and where it goes */
    int64_t rows, columns; /* in the file, of what is transposed */
};

/* A part has the shape of the parameter, but for its first extent. */
static rw_status fit(const rw_load_part *what, rw_shape whole, const cJSON *entry, rw_shape *ret_file, char *why,
                     size_t size)
{
    const cJSON *const list = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const int rank = cJSON_GetArraySize(list);
    rw_shape file = { .rank = rank <= RW_MAX_RANK ? rank : 0 };
    for (int i = 0; i < file.rank; i++) file.dim[i] = (int64_t)cJSON_GetNumberValue(cJSON_GetArrayItem(list, i));
    rw_shape here = file;
    if (what->transposed && rank == 2) here = RW_SHAPE(file.dim[1], file.dim[0]);
    bool fits = rank == whole.rank && rank <= RW_MAX_RANK && (rank == 2 || !what->transposed);
    for (int i = 1; fits && i < rank; i++) fits = here.dim[i] == whole.dim[i];
    if (fits && rank) {
        fits = here.dim[0] >= 0 && here.dim[0] <= whole.dim[0] && what->row >= 0 &&
               what->row <= whole.dim[0] - here.dim[0] && (what->part || here.dim[0] == whole.dim[0]);
    }
    if (!fits) {
        snprintf(why, size, "\"%s\" does not fit into \"%s\": another shape", what->name, what->param);
        return RW_ERR_SHAPE;
    }
    *ret_file = file;
    return RW_OK;
}

static rw_status locate(rw_context *ctx, const struct rw_format_file *f, const rw_load_part *what, struct part *ret,
                        char *why, size_t size)
{
    struct rw_param *const p = what->param ? rw_param_of(rw_param_find(ctx, what->param)) : NULL;
    const cJSON *const entry = what->name ? rw_format_find(f, what->name) : NULL;
    rw_shape file;
    if (p && !what->name) {
        snprintf(why, size, "what \"%s\" is called there is NULL", what->param);
        return RW_ERR_ARGUMENT;
    }
    if (!p || !entry) {
        const char *const name = p ? what->name : what->param;
        snprintf(why, size, p ? "\"%s\" is not in it" : "there is no parameter \"%s\"", name ? name : "(null)");
        return p ? RW_ERR_IO : RW_ERR_ARGUMENT;
    }
    const rw_shape whole = rw_layout_shape(rw_layout_of(ctx, &p->tensor));
    const rw_status status = fit(what, whole, entry, &file, why, size);
    if (status) return status;
    const size_t row = whole.rank && whole.dim[0] ? p->bytes / (size_t)whole.dim[0] : 0;
    const void *from;
    *ret = (struct part){ .p = p, .offset = (size_t)what->row * row };
    if (what->transposed) ret->rows = file.dim[0], ret->columns = file.dim[1];
    const rw_status found = rw_format_locate(f, what->name, (rw_dtype)p->tensor.dtype, file, &from, why, size);
    if (found) return found;
    ret->from = from;
    ret->bytes = rw_format_bytes(entry);
    return RW_OK;
}

static void transpose(unsigned char *to, const struct part *x)
{
    const size_t size = rw_dtype_size((rw_dtype)x->p->tensor.dtype), rows = (size_t)x->rows;
    const size_t columns = (size_t)x->columns;
    for (size_t c = 0; c < columns; c++)
        for (size_t r = 0; r < rows; r++) memcpy(to + (c * rows + r) * size, x->from + (r * columns + c) * size, size);
}

static rw_status put(rw_context *ctx, const struct part *x, unsigned char *room)
{
    const unsigned char *from = x->from;
    if (x->columns) {
        transpose(room, x);
        from = room;
    }
    x->p->version++;
    const rw_status status = ctx->device->upload(ctx->device_state, (char *)x->p->data + x->offset, from, x->bytes);
    return status ? rw_fail(ctx, status, "rw_load_parts: \"%s\": the copy to the device failed", x->p->name) : RW_OK;
}

static rw_status load(rw_context *ctx, const char *path, struct rw_format_file *f, const rw_load_part *what, size_t n,
                      struct part *parts)
{
    char why[RW_MESSAGE_MAX / 2];
    size_t most = 0;
    rw_status status = rw_format_parse(f, why, sizeof why);
    for (size_t i = 0; !status && i < n; i++) {
        status = locate(ctx, f, &what[i], &parts[i], why, sizeof why);
        if (!status && parts[i].columns && parts[i].bytes > most) most = parts[i].bytes;
    }
    if (status) return rw_fail(ctx, status, "rw_load_parts: %s: %s", path, why);
    unsigned char *const room = rw_malloc(most);
    if (!room) return rw_fail(ctx, RW_ERR_MEMORY, "rw_load_parts: out of memory");
    for (size_t i = 0; !status && i < n; i++)
        if (parts[i].bytes) status = put(ctx, &parts[i], room);
    rw_free(room);
    return status;
}

rw_status rw_load_parts(rw_context *ctx, const char *path, const rw_load_part *parts, size_t n)
{
    if (!ctx || !path || (!parts && n))
        return rw_fail_null(ctx, "rw_load_parts", !ctx ? "ctx" : !path ? "path" : "parts");
    if (ctx->status) return ctx->status;
    const rw_status runs = rw_check_runs(ctx, "rw_load_parts");
    if (runs) return runs;
    struct rw_format_file f = { 0 };
    struct part *const found = rw_calloc(n, sizeof *found);
    rw_status status = found ? rw_file_read(ctx, "rw_load_parts", path, SIZE_MAX - 1, &f.data, &f.bytes)
                             : rw_fail(ctx, RW_ERR_MEMORY, "rw_load_parts: out of memory");
    if (!status) status = load(ctx, path, &f, parts, n, found);
    rw_free(found);
    rw_format_finish(&f);
    return status;
}
