/* The JSON header of a safetensors file: read, and held against the format's rules. */
#ifndef RW_IO_HEADER_H
#define RW_IO_HEADER_H

#include <rewind/status.h>

#include <cjson/cJSON.h>
#include <stddef.h>

/*
 * Every entry has a type, a shape and data_offsets, which are two whole numbers inside the elements; no key stands
 * twice, no two entries overlap, nothing but blanks follows.
 * @param at        where the header begins in its file: messages count from there
 * @param ret       receives the header, for cJSON_Delete(); untouched on failure
 * @param why       receives what is wrong, and at which byte of the file
 * @return RW_OK, RW_ERR_IO, RW_ERR_MEMORY
 */
rw_status rw_header_read(const char *text, size_t length, size_t at, size_t n_elements, cJSON **ret, char *why,
                         size_t size);

#endif
