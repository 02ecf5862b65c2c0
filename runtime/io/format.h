/*
 * The safetensors format (https://github.com/huggingface/safetensors): 8 bytes with the header's length, a JSON header,
 * the elements. How a header is made, and how a file in memory is read.
 */
#ifndef RW_IO_FORMAT_H
#define RW_IO_FORMAT_H

#include <rewind/status.h>

#include <cjson/cJSON.h>
#include <stddef.h>

#define RW_FORMAT_METADATA "__metadata__" /* the one name that the format takes for itself */

/* What the format calls a type. */
const char *rw_format_dtype(rw_dtype dtype);

/* A name that the format can hold: JSON is UTF-8. */
bool rw_format_holds(const char *name);

/* A tensor's entry, its elements from..to behind the header. False without memory. */
bool rw_format_add(cJSON *header, const char *name, const char *dtype, rw_shape shape, size_t from, size_t to);

/* Length, header, blanks up to a multiple of `align`, itself one of 8: what a file begins with. For rw_free(); NULL
   without memory. */
unsigned char *rw_format_print(const cJSON *header, size_t align, size_t *ret_bytes);

/* A file in memory. The first two are the caller's to fill in; data is from rw_malloc(). */
struct rw_format_file {
    unsigned char *data;
    size_t bytes;
    cJSON *header;
    const cJSON **index; /* its entries by name */
    size_t n;
    const unsigned char *elements;
    size_t n_elements; /* in bytes */
};

/* RW_ERR_IO with what is wrong, RW_ERR_MEMORY. The file is to be finished in any case, which frees the data as well. */
rw_status rw_format_parse(struct rw_format_file *f, char *why, size_t size);
void rw_format_finish(struct rw_format_file *f);

/* NULL when it is not in it. */
const cJSON *rw_format_find(const struct rw_format_file *f, const char *name);

/* Where the elements of an entry lie, from the elements' first; and how many bytes they take. */
size_t rw_format_from(const cJSON *entry);
size_t rw_format_bytes(const cJSON *entry);

/* The elements of that name when type and shape are these. RW_ERR_IO, RW_ERR_DTYPE, RW_ERR_SHAPE with what is wrong. */
rw_status rw_format_locate(const struct rw_format_file *f, const char *name, rw_dtype dtype, rw_shape shape,
                           const void **ret, char *why, size_t size);

#endif
