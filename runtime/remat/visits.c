/* See visits.h. */
#include "remat/visits.h"

#include "base/alloc.h"

#include <string.h>

rw_status rw_visits_init(struct rw_visits *v, const struct rw_choice *c)
{
    v->choice = c;
    v->depth = 0;
    v->last_id = 1;
    if (v->n_made) memset(v->made, 0, v->cap_made * sizeof *v->made);
    v->n_made = 0;
    if (!rw_grow(&v->path, &v->cap_path, 0, 1, sizeof *v->path)) return RW_ERR_MEMORY;
    v->path[0] = (struct rw_visit){ .segment = 0, .id = 1 };
    return RW_OK;
}

void rw_visits_finish(struct rw_visits *v)
{
    rw_free(v->path);
    rw_free(v->made);
    *v = (struct rw_visits){ 0 };
}

rw_status rw_visits_enter(struct rw_visits *v, uint32_t segment)
{
    const struct rw_segment *const segments = v->choice->segment;
    const size_t depth = segments[segment].depth;
    if (v->path[v->depth].segment == segment) return RW_OK;
    if (!rw_grow(&v->path, &v->cap_path, v->depth + 1, depth + 1, sizeof *v->path)) return RW_ERR_MEMORY;
    size_t shared = v->depth < depth ? v->depth : depth;
    uint32_t s = segment;
    for (size_t d = depth; d > shared; d--) s = segments[s].parent;
    for (; v->path[shared].segment != s; shared--) s = segments[s].parent;
    s = segment;
    for (size_t d = depth; d > shared; d--, s = segments[s].parent) v->path[d] = (struct rw_visit){ .segment = s };
    for (size_t d = shared + 1; d <= depth; d++) v->path[d].id = ++v->last_id;
    v->depth = depth;
    return RW_OK;
}

static uint64_t key_of(const struct rw_visits *v, uint32_t value, size_t depth)
{
    return (uint64_t)v->path[depth].id << 32 | value;
}

/* The place of a key, or the empty one where it belongs. */
static size_t place_of(const struct rw_visits *v, uint64_t key)
{
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (v->cap_made - 1);
    while (v->made[i].key && v->made[i].key != key) i = (i + 1) & (v->cap_made - 1);
    return i;
}

uint32_t rw_visits_find(const struct rw_visits *v, uint32_t value, size_t depth)
{
    if (!v->n_made) return RW_NONE_ID;
    const struct rw_made *const m = &v->made[place_of(v, key_of(v, value, depth))];
    return m->key ? m->buffer : RW_NONE_ID;
}

static bool widen(struct rw_visits *v)
{
    const size_t old = v->cap_made;
    struct rw_made *const from = v->made, *const to = rw_calloc(old ? old * 2 : 256, sizeof *to);
    if (!to) return false;
    v->made = to;
    v->cap_made = old ? old * 2 : 256;
    for (size_t i = 0; i < old; i++)
        if (from[i].key) v->made[place_of(v, from[i].key)] = from[i];
    rw_free(from);
    return true;
}

rw_status rw_visits_note(struct rw_visits *v, uint32_t value, size_t depth, uint32_t buffer)
{
    if (v->n_made * 2 >= v->cap_made && !widen(v)) return RW_ERR_MEMORY;
    const uint64_t key = key_of(v, value, depth);
    struct rw_made *const m = &v->made[place_of(v, key)];
    v->n_made += !m->key;
    *m = (struct rw_made){ .key = key, .buffer = buffer };
    return RW_OK;
}
