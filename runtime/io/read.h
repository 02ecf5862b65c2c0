/* A whole file into memory. */
#ifndef RW_IO_READ_H
#define RW_IO_READ_H

#include "record/context.h"

/*
 * Only of files: a directory, a device or a FIFO is refused, without waiting. what names the call. Errors are recorded:
 * RW_ERR_IO, also beyond so many bytes, RW_ERR_MEMORY. *ret_data for rw_free(), one byte longer than the file, which
 * is zero.
 */
rw_status rw_file_read(rw_context *ctx, const char *what, const char *path, size_t most, unsigned char **ret_data,
                       size_t *ret_bytes);

/* The same without a context: what is wrong is put into why, without the path. */
rw_status rw_file_take(const char *path, size_t most, unsigned char **ret_data, size_t *ret_bytes, char *why,
                       size_t size);

#endif
