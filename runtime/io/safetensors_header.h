/*
 * Reads the JSON header of a safetensors file and checks the format's rules. Whatever the header contains, reading
 * takes at most eight times its length of memory, and no more stack than RW_HEADER_DEPTH levels need.
 */
#ifndef RW_IO_SAFETENSORS_HEADER_H
#define RW_IO_SAFETENSORS_HEADER_H

#include <rewind/status.h>

#include <stddef.h>
#include <stdint.h>

#define RW_HEADER_DEPTH 16 /* of nested objects and lists; a tensor's entry takes three */

/* A tensor. */
struct rw_header_entry {
    const char *name, *dtype;
    uint64_t from, to;         /* in the elements, in bytes */
    int64_t dim[RW_MAX_RANK];  /* -1: no whole number */
    uint32_t rank;             /* may exceed RW_MAX_RANK; such extents are not stored */
    uint32_t key;              /* byte of the text at which its name starts */
};

/* A pair of the metadata, in the file's order. */
struct rw_header_pair {
    const char *key, *value; /* value NULL: it is not a string */
};

struct rw_header {
    char *text; /* all names and values */
    struct rw_header_entry *entry;
    const struct rw_header_entry **by_name;
    size_t n;
    struct rw_header_pair *pair;
    size_t n_pairs;
};

/*
 * Reads and checks a header. Every entry has a type, a shape and data_offsets, which are two integers inside the
 * elements; keys are unique; no two entries overlap; only blanks follow; it is UTF-8. @param at        offset of the
 * header in its file: messages count from there @param ret       receives the header, for rw_header_finish(); untouched
 * on failure @param why       receives the reason, with the byte of the file @return RW_OK, RW_ERR_IO, RW_ERR_MEMORY
 */
rw_status rw_header_read(const char *text, size_t length, size_t at, uint64_t n_elements, struct rw_header *ret,
                         char *why, size_t size);
void rw_header_finish(struct rw_header *h);

/* NULL if there is no such entry, or no such string in the metadata. */
const struct rw_header_entry *rw_header_find(const struct rw_header *h, const char *name);
const char *rw_header_metadata(const struct rw_header *h, const char *key);

#endif
