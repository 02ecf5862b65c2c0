/* Reads a whole file into memory. */
#ifndef RW_IO_READ_WHOLE_FILE_H
#define RW_IO_READ_WHOLE_FILE_H

#include "record/context.h"

/*
 * Reads a file; a directory, device or FIFO is refused without blocking. what names the call. Errors are recorded:
 * RW_ERR_IO, also if it is larger than `most`, RW_ERR_MEMORY. *ret_data, for rw_free(), has one more byte, which is
 * zero.
 */
rw_status rw_file_read(rw_context *ctx, const char *what, const char *path, size_t most, unsigned char **ret_data,
                       size_t *ret_bytes);

#endif
