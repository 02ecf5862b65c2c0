/* Safetensors files: headers by cJSON for writing, by safetensors_header.h for reading, and reads of elements. */
#include "io/safetensors_format.h"

#include "base/alloc.h"
#include "base/file_descriptor_io.h"
#include "base/sigpipe_safe_output.h"
#include "record/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX ((uint64_t)100 << 20) /* as the format's reference implementation allows */

static const char *const dtype_names[RW_DTYPE_COUNT] = {
    [RW_F32] = "F32", [RW_F64] = "F64", [RW_BF16] = "BF16", [RW_I32] = "I32", [RW_F16] = "F16",
    [RW_BOOL] = "BOOL", [RW_F8_E4M3] = "F8_E4M3", [RW_F8_E5M2] = "F8_E5M2", [RW_F8_E8M0] = "F8_E8M0"
};

const char *rw_format_dtype(rw_dtype dtype)
{
    return dtype_names[dtype];
}

/* ---- a header ---- */

bool rw_format_add(cJSON *header, const char *name, const char *dtype, rw_shape shape, size_t from, size_t to)
{
    cJSON *const entry = cJSON_AddObjectToObject(header, name);
    cJSON *const list = entry ? cJSON_AddArrayToObject(entry, "shape") : NULL;
    cJSON *const offsets = entry ? cJSON_AddArrayToObject(entry, "data_offsets") : NULL;
    if (!list || !offsets || !cJSON_AddStringToObject(entry, "dtype", dtype)) return false;
    for (int i = 0; i < shape.rank; i++)
        if (!cJSON_AddItemToArray(list, cJSON_CreateNumber((double)shape.dim[i]))) return false;
    return cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)from)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)to));
}

unsigned char *rw_format_print(const cJSON *header, size_t align, size_t *ret_bytes)
{
    char *const text = cJSON_PrintUnformatted(header);
    if (!text) return NULL;
    const size_t length = strlen(text), padded = (8 + length + align - 1) / align * align - 8;
    unsigned char *const all = rw_malloc(8 + padded);
    if (all) {
        for (int i = 0; i < 8; i++) all[i] = (unsigned char)((uint64_t)padded >> (8 * i));
        memcpy(all + 8, text, length);
        memset(all + 8 + length, ' ', padded - length);
        *ret_bytes = 8 + padded;
    }
    cJSON_free(text);
    return all;
}

/* ---- a file ---- */

/* The system's reason, or that the file has been truncated meanwhile. */
static rw_status cannot_read(struct rw_format_file *f, char *why, size_t size)
{
    f->unreadable = errno != 0;
    snprintf(why, size, "%s", errno ? strerror(errno) : "unexpected end of file");
    return RW_ERR_IO;
}

static rw_status no_memory(uint64_t bytes, char *why, size_t size)
{
    snprintf(why, size, "out of memory for %llu bytes", (unsigned long long)bytes);
    return RW_ERR_MEMORY;
}

static rw_status read_header(struct rw_format_file *f, uint64_t bytes, char *why, size_t size)
{
    static const char kind[] = "not a safetensors file: ";
    unsigned char first[8];
    uint64_t length = 0;
    if (bytes >= 8 && !rw_fd_read_at(f->fd, first, 8, 0)) return cannot_read(f, why, size);
    for (int i = 0; bytes >= 8 && i < 8; i++) length |= (uint64_t)first[i] << (8 * i);
    if (bytes < 8 || length > HEADER_MAX || length > bytes - 8) {
        snprintf(why, size, "not a safetensors file: it is truncated, or the length of its header is wrong");
        return RW_ERR_IO;
    }
    f->n_begin = 8 + (size_t)length;
    f->n_elements = bytes - f->n_begin;
    f->begin = rw_malloc(f->n_begin);
    if (!f->begin) return no_memory(f->n_begin, why, size);
    if (!rw_fd_read_at(f->fd, f->begin, f->n_begin, 0)) return cannot_read(f, why, size);
    snprintf(why, size, kind);
    return rw_header_read((const char *)f->begin + 8, (size_t)length, 8, f->n_elements, &f->header,
                          why + sizeof kind - 1, size - sizeof kind + 1);
}

/* Opens with O_NONBLOCK, because opening a FIFO would otherwise wait for a writer. */
rw_status rw_format_open(struct rw_format_file *f, const char *path, char *why, size_t size)
{
    struct stat about;
    *f = (struct rw_format_file){ .fd = rw_fd_open(path, O_RDONLY | O_NONBLOCK, 0) };
    const bool failed = f->fd < 0 || fstat(f->fd, &about);
    const char *const fault = failed ? strerror(errno) : rw_file_fault(about.st_mode);
    if (!fault) return read_header(f, (uint64_t)about.st_size, why, size);
    f->is_gone = failed && errno == ENOENT;
    f->unreadable = failed && !f->is_gone;
    snprintf(why, size, "%s", fault);
    return RW_ERR_IO;
}

void rw_format_finish(struct rw_format_file *f)
{
    if (f->fd >= 0) close(f->fd);
    rw_header_finish(&f->header);
    rw_free(f->begin);
    rw_free(f->elements);
    *f = (struct rw_format_file){ .fd = -1 };
}

rw_status rw_format_read(struct rw_format_file *f, const struct rw_header_entry *e, void *to, char *why,
                         size_t size)
{
    return rw_fd_read_at(f->fd, to, rw_format_bytes(e), f->n_begin + e->from) ? RW_OK : cannot_read(f, why, size);
}

rw_status rw_format_read_all(struct rw_format_file *f, char *why, size_t size)
{
    f->elements = f->n_elements < SIZE_MAX ? rw_malloc((size_t)f->n_elements + 1) : NULL;
    if (!f->elements) return no_memory(f->n_elements, why, size);
    return rw_fd_read_at(f->fd, f->elements, (size_t)f->n_elements, f->n_begin) ? RW_OK : cannot_read(f, why, size);
}

size_t rw_format_bytes(const struct rw_header_entry *e)
{
    return (size_t)(e->to - e->from);
}

static void tell_shapes(const struct rw_header_entry *e, const char *name, rw_shape want, char *why, size_t size)
{
    char expected[RW_SHAPE_TEXT], got[RW_SHAPE_TEXT];
    rw_shape file = { .rank = e->rank <= RW_MAX_RANK ? (int)e->rank : 0 };
    for (int i = 0; i < file.rank; i++) file.dim[i] = e->dim[i];
    rw_shape_text(expected, sizeof expected, want);
    if (e->rank > RW_MAX_RANK) snprintf(got, sizeof got, "rank %u", e->rank);
    else rw_shape_text(got, sizeof got, file);
    snprintf(why, size, "\"%s\": expected shape %s, got %s in the file", name, expected, got);
}

rw_status rw_format_locate(const struct rw_format_file *f, const char *name, rw_dtype dtype, rw_shape shape,
                           const struct rw_header_entry **ret, char *why, size_t size)
{
    const size_t bytes = (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype);
    const struct rw_header_entry *const e = rw_header_find(&f->header, name);
    if (!e) {
        snprintf(why, size, "\"%s\" is not in the file", name);
        return RW_ERR_IO;
    }
    if (strcmp(e->dtype, dtype_names[dtype])) {
        snprintf(why, size, "\"%s\": expected %s, got %.40s in the file", name, dtype_names[dtype], e->dtype);
        return RW_ERR_DTYPE;
    }
    bool fits = e->rank == (uint32_t)shape.rank;
    for (int i = 0; fits && i < shape.rank; i++) fits = e->dim[i] == shape.dim[i];
    if (!fits) {
        tell_shapes(e, name, shape, why, size);
        return RW_ERR_SHAPE;
    }
    if (rw_format_bytes(e) != bytes) {
        snprintf(why, size, "\"%s\": expected %zu bytes for its type and shape, got %zu in the file", name, bytes,
                 rw_format_bytes(e));
        return RW_ERR_IO;
    }
    *ret = e;
    return RW_OK;
}
