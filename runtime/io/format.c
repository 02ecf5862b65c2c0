/* See format.h. */
#include "io/format.h"

#include "base/alloc.h"
#include "io/header.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MOST ((uint64_t)100 << 20) /* as the format's own readers allow */

static const char *const dtype_names[RW_DTYPE_COUNT] = {
    [RW_F32] = "F32", [RW_F64] = "F64", [RW_BF16] = "BF16", [RW_I32] = "I32", [RW_F16] = "F16",
    [RW_BOOL] = "BOOL", [RW_F8_E4M3] = "F8_E4M3", [RW_F8_E5M2] = "F8_E5M2", [RW_F8_E8M0] = "F8_E8M0"
};

const char *rw_format_dtype(rw_dtype dtype)
{
    return dtype_names[dtype];
}

/* ---- a name ---- */

/* How many bytes a letter of UTF-8 has that begins with this one; 0: none does. */
static int letter_bytes(unsigned char first)
{
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Neither longer than it must be, nor half of a pair (U+D800 to U+DFFF), nor above U+10FFFF: RFC 3629. */
static bool is_letter(const unsigned char *s, int n)
{
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return false;
    if (s[0] == 0xe0 || s[0] == 0xf0) return s[1] >= (s[0] == 0xe0 ? 0xa0 : 0x90);
    if (s[0] == 0xed || s[0] == 0xf4) return s[1] < (s[0] == 0xed ? 0xa0 : 0x90);
    return n > 0;
}

bool rw_format_holds(const char *name)
{
    const unsigned char *s = (const unsigned char *)name;
    for (int n; *s; s += n) {
        n = letter_bytes(*s);
        if (!is_letter(s, n)) return false;
    }
    return true;
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

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const cJSON *const *)a)->string, (*(const cJSON *const *)b)->string);
}

static rw_status make_index(struct rw_format_file *f, char *why, size_t size)
{
    f->index = rw_calloc((size_t)cJSON_GetArraySize(f->header), sizeof *f->index);
    if (!f->index) {
        snprintf(why, size, "out of memory");
        return RW_ERR_MEMORY;
    }
    for (const cJSON *x = f->header->child; x; x = x->next) f->index[f->n++] = x;
    qsort(f->index, f->n, sizeof *f->index, by_name);
    return RW_OK;
}

rw_status rw_format_parse(struct rw_format_file *f, char *why, size_t size)
{
    uint64_t length = 0;
    for (int i = 0; f->bytes >= 8 && i < 8; i++) length |= (uint64_t)f->data[i] << (8 * i);
    if (f->bytes < 8 || length > HEADER_MOST || length > f->bytes - 8) {
        snprintf(why, size, "not a safetensors file (cut off, or the header's length is wrong)");
        return RW_ERR_IO;
    }
    f->elements = f->data + 8 + length;
    f->n_elements = f->bytes - 8 - (size_t)length;
    static const char kind[] = "not a safetensors file: ";
    snprintf(why, size, kind);
    const rw_status status = rw_header_read((const char *)f->data + 8, (size_t)length, 8, f->n_elements, &f->header,
                                            why + sizeof kind - 1, size - sizeof kind + 1);
    return status ? status : make_index(f, why, size);
}

void rw_format_finish(struct rw_format_file *f)
{
    cJSON_Delete(f->header);
    rw_free(f->index);
    rw_free(f->data);
    *f = (struct rw_format_file){ 0 };
}

static int name_of(const void *name, const void *entry)
{
    return strcmp(name, (*(const cJSON *const *)entry)->string);
}

const cJSON *rw_format_find(const struct rw_format_file *f, const char *name)
{
    const cJSON *const *const found = bsearch(name, f->index, f->n, sizeof *f->index, name_of);
    return found && strcmp(name, RW_FORMAT_METADATA) ? *found : NULL;
}

static const cJSON *offsets_of(const cJSON *entry)
{
    return cJSON_GetObjectItemCaseSensitive(entry, "data_offsets")->child;
}

size_t rw_format_from(const cJSON *entry)
{
    return (size_t)offsets_of(entry)->valuedouble;
}

size_t rw_format_bytes(const cJSON *entry)
{
    return (size_t)(offsets_of(entry)->next->valuedouble - offsets_of(entry)->valuedouble);
}

rw_status rw_format_locate(const struct rw_format_file *f, const char *name, rw_dtype dtype, rw_shape shape,
                           const void **ret, char *why, size_t size)
{
    const size_t bytes = (size_t)rw_shape_numel(shape) * rw_dtype_size(dtype);
    const cJSON *const entry = rw_format_find(f, name);
    if (!entry) {
        snprintf(why, size, "\"%s\" is not in it", name);
        return RW_ERR_IO;
    }
    const char *const there = cJSON_GetObjectItemCaseSensitive(entry, "dtype")->valuestring;
    if (strcmp(there, dtype_names[dtype])) {
        snprintf(why, size, "\"%s\" is %s there, %s here", name, there, dtype_names[dtype]);
        return RW_ERR_DTYPE;
    }
    const cJSON *const list = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    bool fits = cJSON_GetArraySize(list) == shape.rank;
    for (int i = 0; fits && i < shape.rank; i++)
        fits = cJSON_GetNumberValue(cJSON_GetArrayItem(list, i)) == (double)shape.dim[i];
    if (!fits) {
        snprintf(why, size, "\"%s\" has another shape there", name);
        return RW_ERR_SHAPE;
    }
    if (rw_format_bytes(entry) != bytes) {
        snprintf(why, size, "\"%s\" has %zu bytes there, its type and shape take %zu", name, rw_format_bytes(entry),
                 bytes);
        return RW_ERR_IO;
    }
    *ret = f->elements + rw_format_from(entry);
    return RW_OK;
}
