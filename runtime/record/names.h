/*
 * The names of regions and tags, each stored once and referenced by index. An index belongs to its name while a tape
 * uses it. When the table reaches twice the number in use, unused names are removed, so a program may create new names
 * in every step.
 */
#ifndef RW_RECORD_NAMES_H
#define RW_RECORD_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of a text that ends with 0: FNV-1a. */
static inline size_t rw_hash_text(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

#define RW_NAMES_MAX (UINT16_MAX - 1) /* maximum in use at one time: a value has 16 bits for its tag */

struct rw_name_table {
    char **text; /* by index; NULL: free */
    size_t n, cap;
    size_t n_used;   /* entries that are not free */
    size_t sweep_at; /* number of names at which unused ones are collected */
    size_t search;   /* no entry before this one is free */
    uint16_t *hash;  /* index + 1, open addressing, of a power of two */
    size_t hash_size;
    size_t bytes; /* of the texts */
};

/* Finds or adds a name and returns its index; RW_NAME_NONE without memory, or if all are in use. */
#define RW_NAME_NONE UINT32_MAX
uint32_t rw_names_index(struct rw_name_table *table, const char *name);

/* After that has failed: why. */
const char *rw_names_fault(const struct rw_name_table *table);

/* True if there are many more than after the last sweep, so that the next one is due. */
bool rw_names_sweep_is_due(const struct rw_name_table *table);

/* Frees the names that are not marked. */
struct rw_names_used {
    uint64_t bits[(RW_NAMES_MAX + 63) / 64];
};
void rw_names_sweep(struct rw_name_table *table, const struct rw_names_used *used);

static inline void rw_names_mark(struct rw_names_used *used, size_t index)
{
    used->bits[index / 64] |= (uint64_t)1 << index % 64;
}

void rw_names_finish(struct rw_name_table *table);

#endif
