/* rw_load_parts(): loads parameters from a file with other names and layouts. Everything is read and checked before
   anything changes. */
#include <rewind/io.h>

#include "base/alloc.h"
#include "io/safetensors_format.h"
#include "record/context.h"
#include "record/param.h"

#include <stdio.h>
#include <string.h>

struct part {
    struct rw_param *p;
    const struct rw_header_entry *entry;
    unsigned char *from; /* once it has been read */
    size_t bytes, offset; /* of the part, and its offset in the parameter */
    int64_t rows, columns; /* in the file, of a transposed part */
};

/* A part has the shape of the parameter, except for its first extent. */
static rw_status fit(const rw_load_part *what, rw_shape whole, const struct rw_header_entry *entry, rw_shape *ret_file,
                     char *why, size_t size)
{
    const int rank = entry->rank <= RW_MAX_RANK ? (int)entry->rank : RW_MAX_RANK + 1;
    rw_shape file = { .rank = rank <= RW_MAX_RANK ? rank : 0 };
    for (int i = 0; i < file.rank; i++) file.dim[i] = entry->dim[i];
    rw_shape here = file;
    if (what->transposed && rank == 2) here = RW_SHAPE(file.dim[1], file.dim[0]);
    bool fits = rank == whole.rank && rank <= RW_MAX_RANK && (rank == 2 || !what->transposed);
    for (int i = 1; fits && i < rank; i++) fits = here.dim[i] == whole.dim[i];
    if (fits && rank) {
        fits = here.dim[0] >= 0 && here.dim[0] <= whole.dim[0] && what->row >= 0 &&
               what->row <= whole.dim[0] - here.dim[0] && (what->part || here.dim[0] == whole.dim[0]);
    }
    if (!fits) {
        char whole_text[RW_SHAPE_TEXT], part[RW_SHAPE_TEXT];
        snprintf(why, size, "\"%s\" does not fit into \"%s\": expected shape %s%s%s, got %s from row %lld", what->name,
                 what->param, what->part ? "rows of " : "", rw_shape_text(whole_text, sizeof whole_text, whole),
                 what->transposed ? ", transposed in the file" : "", rw_shape_text(part, sizeof part, file),
                 (long long)what->row);
        return RW_ERR_SHAPE;
    }
    *ret_file = file;
    return RW_OK;
}

static rw_status locate(rw_context *ctx, const struct rw_format_file *f, const rw_load_part *what, struct part *ret,
                        char *why, size_t size)
{
    struct rw_param *const p = what->param ? rw_param_of(rw_param_find(ctx, what->param)) : NULL;
    const struct rw_header_entry *const entry = what->name ? rw_header_find(&f->header, what->name) : NULL;
    rw_shape file;
    if (p && !what->name) {
        snprintf(why, size, "name of \"%s\" is NULL; expected its name in the file", what->param);
        return RW_ERR_ARGUMENT;
    }
    if (!p || !entry) {
        const char *const name = p ? what->name : what->param;
        snprintf(why, size, p ? "\"%s\" is not in the file" : "expected a parameter of the context, got \"%s\"",
                 name ? name : "(null)");
        return p ? RW_ERR_IO : RW_ERR_ARGUMENT;
    }
    const rw_shape whole = rw_layout_shape(rw_layout_of(ctx, &p->tensor));
    const rw_status status = fit(what, whole, entry, &file, why, size);
    if (status) return status;
    const size_t row = whole.rank && whole.dim[0] ? p->bytes / (size_t)whole.dim[0] : 0;
    *ret = (struct part){ .p = p, .offset = (size_t)what->row * row };
    if (what->transposed) ret->rows = file.dim[0], ret->columns = file.dim[1];
    const rw_status found = rw_format_locate(f, what->name, (rw_dtype)p->tensor.dtype, file, &ret->entry, why, size);
    ret->bytes = found ? 0 : rw_format_bytes(entry);
    return found;
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

/* Reads all parts into one block before the first parameter changes; *ret_most: size of the largest transposed one. */
static rw_status read_all(struct rw_format_file *f, struct part *parts, size_t n, unsigned char **ret_data,
                          size_t *ret_most, char *why, size_t size)
{
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].columns && parts[i].bytes > *ret_most) *ret_most = parts[i].bytes;
        bytes += parts[i].bytes;
    }
    unsigned char *at = *ret_data = rw_malloc(bytes + 1);
    if (!at) {
        snprintf(why, size, "out of memory for %zu bytes", bytes);
        return RW_ERR_MEMORY;
    }
    rw_status status = RW_OK;
    for (size_t i = 0; !status && i < n; at += parts[i++].bytes) {
        parts[i].from = at;
        status = rw_format_read(f, parts[i].entry, at, why, size);
    }
    return status;
}

static rw_status load(rw_context *ctx, const char *path, struct rw_format_file *f, const rw_load_part *what, size_t n,
                      struct part *parts)
{
    char why[RW_MESSAGE_MAX / 2];
    size_t most = 0;
    unsigned char *data = NULL, *room = NULL;
    rw_status status = rw_format_open(f, path, why, sizeof why);
    for (size_t i = 0; !status && i < n; i++) status = locate(ctx, f, &what[i], &parts[i], why, sizeof why);
    if (!status) status = read_all(f, parts, n, &data, &most, why, sizeof why);
    if (status) rw_fail(ctx, status, "rw_load_parts: %s: %s", path, why);
    else if (!(room = rw_malloc(most))) status = rw_fail(ctx, RW_ERR_MEMORY, "rw_load_parts: out of memory");
    for (size_t i = 0; !status && i < n; i++)
        if (parts[i].bytes) status = put(ctx, &parts[i], room);
    rw_free(room);
    rw_free(data);
    return status;
}

rw_status rw_load_parts(rw_context *ctx, const char *path, const rw_load_part *parts, size_t n)
{
    RW_ENTER(ctx, RW_ERR_ARGUMENT);
    if (!ctx || !path || (!parts && n))
        return rw_fail_null(ctx, "rw_load_parts", !ctx ? "ctx" : !path ? "path" : "parts");
    if (ctx->status) return ctx->status;
    if (!rw_count_check(ctx, "rw_load_parts", n)) return RW_ERR_ARGUMENT;
    const rw_status runs = rw_check_runs(ctx, "rw_load_parts");
    if (runs) return runs;
    struct rw_format_file f = { .fd = -1 };
    struct part *const found = rw_calloc(n, sizeof *found);
    const rw_status status = found ? load(ctx, path, &f, parts, n, found)
                                   : rw_fail(ctx, RW_ERR_MEMORY, "rw_load_parts: out of memory");
    rw_free(found);
    rw_format_finish(&f);
    return status;
}
