/*
 * The safetensors format (https://github.com/huggingface/safetensors): 8 bytes with the header's length, a JSON header,
 * the elements. Creates headers and reads files.
 */
#ifndef RW_IO_SAFETENSORS_FORMAT_H
#define RW_IO_SAFETENSORS_FORMAT_H

#include "io/safetensors_header.h"

#include <cjson/cJSON.h>
#include <stddef.h>

#define RW_FORMAT_METADATA "__metadata__" /* the one name that the format reserves */

/* The format's name of a type. */
const char *rw_format_dtype(rw_dtype dtype);

/* Adds the entry of a tensor with elements from..to, counted from the end of the header. False without memory. */
bool rw_format_add(cJSON *header, const char *name, const char *dtype, rw_shape shape, size_t from, size_t to);

/* The start of a file: length, header, and blanks up to a multiple of `align`, which is a multiple of 8. For
   rw_free(); NULL without memory. */
unsigned char *rw_format_print(const cJSON *header, size_t align, size_t *ret_bytes);

/* A file for reading: its header is in memory, its elements are read on request. */
struct rw_format_file {
    int fd;               /* -1: none */
    bool unreadable;      /* the system failed: the file may be valid */
    bool is_gone;         /* there was none of that name */
    unsigned char *begin; /* the length and the header, as in the file */
    size_t n_begin;
    struct rw_header header;
    uint64_t n_elements; /* in bytes */
    unsigned char *elements; /* after rw_format_read_all() */
};

/*
 * Opens a file and reads its header, which is the only memory it takes. A directory, device or FIFO is refused without
 * blocking. RW_ERR_IO with the reason, RW_ERR_MEMORY. Finish the file in any case.
 */
rw_status rw_format_open(struct rw_format_file *f, const char *path, char *why, size_t size);
void rw_format_finish(struct rw_format_file *f);

/* Reads the elements of an entry into memory, or all elements into f->elements. RW_ERR_IO, RW_ERR_MEMORY with the
   reason. */
rw_status rw_format_read(struct rw_format_file *f, const struct rw_header_entry *e, void *to, char *why,
                         size_t size);
rw_status rw_format_read_all(struct rw_format_file *f, char *why, size_t size);

size_t rw_format_bytes(const struct rw_header_entry *e);

/* Finds the entry of that name and checks its type, shape and number of bytes. RW_ERR_IO, RW_ERR_DTYPE, RW_ERR_SHAPE
   with the reason. */
rw_status rw_format_locate(const struct rw_format_file *f, const char *name, rw_dtype dtype, rw_shape shape,
                           const struct rw_header_entry **ret, char *why, size_t size);

#endif
