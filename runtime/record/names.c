/* The table of names. See names.h. */
#include "record/tape.h"

#include <string.h>

#define SWEEP_FROM 1024

struct used {
    uint64_t bits[(RW_NAMES_MOST + 63) / 64];
};

static void mark(struct used *u, size_t index)
{
    u->bits[index / 64] |= (uint64_t)1 << index % 64;
}

static bool is_marked(const struct used *u, size_t index)
{
    return u->bits[index / 64] >> index % 64 & 1;
}

static size_t hash_text(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return (size_t)(h ^ h >> 32);
}

/* Where the name is, or the free place where it belongs. */
static uint16_t *find(const struct rw_name_table *t, const char *name)
{
    size_t i = hash_text(name) & (t->hash_size - 1);
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

static void mark_tape(struct used *u, const rw_tape *t)
{
    for (size_t i = 0; i < t->n_regions; i++) mark(u, t->regions[i].name);
    for (uint32_t i = 0; i < t->n_values; i++) {
        const uint16_t tag = rw_tape_value(t, i)->tag;
        if (tag) mark(u, tag - 1u);
    }
}

static void sweep(rw_context *ctx)
{
    struct rw_name_table *const t = &ctx->names;
    struct used used = { { 0 } };
    for (const rw_tape *tape = ctx->tapes; tape; tape = tape->next) mark_tape(&used, tape);
    for (size_t i = 0; i < t->n; i++) {
        if (!t->text[i] || is_marked(&used, i)) continue;
        t->bytes -= strlen(t->text[i]) + 1;
        rw_free(t->text[i]);
        t->text[i] = NULL;
        t->n_used--;
    }
    t->search = 0;
    rehash(t);
}

/* The entry for one more name, free or behind the last one; RW_NONE_ID without memory, or when all are in use. */
static uint32_t take_entry(struct rw_name_table *t)
{
    if (t->n_used < t->n) {
        while (t->text[t->search]) t->search++;
        return (uint32_t)t->search;
    }
    if (t->n >= RW_NAMES_MOST || !rw_grow(&t->text, &t->cap, t->n, 1, sizeof *t->text)) return RW_NONE_ID;
    t->text[t->n] = NULL;
    return (uint32_t)t->n++;
}

static void make_room(rw_context *ctx)
{
    struct rw_name_table *const t = &ctx->names;
    const size_t limit = t->sweep_at ? t->sweep_at : SWEEP_FROM;
    if (t->n_used < limit && t->n_used < RW_NAMES_MOST) return;
    sweep(ctx);
    t->sweep_at = 2 * t->n_used > SWEEP_FROM ? 2 * t->n_used : SWEEP_FROM;
}

uint32_t rw_name_index(rw_context *ctx, const char *name)
{
    struct rw_name_table *const t = &ctx->names;
    if (t->hash_size) {
        const uint16_t known = *find(t, name);
        if (known) return known - 1u;
    }
    make_room(ctx);
    char *const copy = grow_hash(t) ? rw_strdup(name) : NULL;
    const uint32_t index = copy ? take_entry(t) : RW_NONE_ID;
    if (index == RW_NONE_ID) {
        rw_free(copy);
        return RW_NONE_ID;
    }
    *find(t, name) = (uint16_t)(index + 1);
    t->text[index] = copy;
    t->n_used++;
    t->bytes += strlen(copy) + 1;
    return index;
}

const char *rw_name_fault(const rw_context *ctx)
{
    return ctx->names.n_used >= RW_NAMES_MOST ? "65534 names of regions and tags are in use, no more can be"
                                              : "out of memory";
}

void rw_names_finish(struct rw_name_table *t)
{
    for (size_t i = 0; i < t->n; i++) rw_free(t->text[i]);
    rw_free(t->text);
    rw_free(t->hash);
}
