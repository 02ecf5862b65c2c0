/* The table of names: open addressing, reference by index, collection of unused names. */
#include "record/names.h"

#include "base/alloc.h"

#include <string.h>

#define SWEEP_FROM 1024

/* The slot of the name, or the free slot for it. */
static uint16_t *find(const struct rw_name_table *t, const char *name)
{
    size_t i = rw_hash_text(name) & (t->hash_size - 1);
    while (t->hash[i] && strcmp(t->text[t->hash[i] - 1], name) != 0) i = (i + 1) & (t->hash_size - 1);
    return &t->hash[i];
}

static void rehash(struct rw_name_table *t)
{
    memset(t->hash, 0, t->hash_size * sizeof *t->hash);
    for (size_t i = 0; i < t->n; i++)
        if (t->text[i]) *find(t, t->text[i]) = (uint16_t)(i + 1);
}

static bool grow_hash(struct rw_name_table *t)
{
    if (t->n_used * 2 < t->hash_size) return true;
    const size_t size = t->hash_size ? t->hash_size * 2 : 64;
    uint16_t *const hash = rw_calloc(size, sizeof *hash);
    if (!hash) return false;
    rw_free(t->hash);
    t->hash = hash;
    t->hash_size = size;
    rehash(t);
    return true;
}

bool rw_names_sweep_is_due(const struct rw_name_table *t)
{
    return t->n_used >= (t->sweep_at ? t->sweep_at : SWEEP_FROM) || t->n_used >= RW_NAMES_MAX;
}

void rw_names_sweep(struct rw_name_table *t, const struct rw_names_used *used)
{
    for (size_t i = 0; i < t->n; i++) {
        if (!t->text[i] || used->bits[i / 64] >> i % 64 & 1) continue;
        t->bytes -= strlen(t->text[i]) + 1;
        rw_free(t->text[i]);
        t->text[i] = NULL;
        t->n_used--;
    }
    t->search = 0;
    t->sweep_at = 2 * t->n_used > SWEEP_FROM ? 2 * t->n_used : SWEEP_FROM;
    rehash(t);
}

/* The entry for one more name, free or past the last one; RW_NAME_NONE without memory, or if all are in use. */
static uint32_t take_entry(struct rw_name_table *t)
{
    if (t->n_used < t->n) {
        while (t->text[t->search]) t->search++;
        return (uint32_t)t->search;
    }
    if (t->n >= RW_NAMES_MAX || !rw_grow(&t->text, &t->cap, t->n, 1, sizeof *t->text)) return RW_NAME_NONE;
    t->text[t->n] = NULL;
    return (uint32_t)t->n++;
}

uint32_t rw_names_index(struct rw_name_table *t, const char *name)
{
    if (t->hash_size) {
        const uint16_t known = *find(t, name);
        if (known) return known - 1u;
    }
    char *const copy = grow_hash(t) ? rw_strdup(name) : NULL;
    const uint32_t index = copy ? take_entry(t) : RW_NAME_NONE;
    if (index == RW_NAME_NONE) {
        rw_free(copy);
        return RW_NAME_NONE;
    }
    *find(t, name) = (uint16_t)(index + 1);
    t->text[index] = copy;
    t->n_used++;
    t->bytes += strlen(copy) + 1;
    return index;
}

const char *rw_names_fault(const struct rw_name_table *t)
{
    return t->n_used >= RW_NAMES_MAX ? "expected at most 65534 names of regions and tags, got more"
                                      : "out of memory";
}

void rw_names_finish(struct rw_name_table *t)
{
    for (size_t i = 0; i < t->n; i++) rw_free(t->text[i]);
    rw_free(t->text);
    rw_free(t->hash);
}
