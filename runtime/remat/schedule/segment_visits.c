/*
 * The stack of visits that backward is in, and what each has computed. Ids of visits are unique, so a buffer of a
 * finished visit is recognized by its id.
 */
#include "remat/schedule/segment_visits.h"

#include "base/alloc.h"

#include <string.h>

rw_status rw_visits_init(struct rw_visits *v, const struct rw_choice *c, size_t n_values)
{
    v->choice = c;
    v->depth = 0;
    v->last_id = 1;
    v->n_computed = 0;
    if (!rw_grow(&v->path, &v->cap_path, 0, 1, sizeof *v->path)) return RW_ERR_MEMORY;
    if (!rw_grow(&v->top, &v->cap_top, 0, n_values, sizeof *v->top)) return RW_ERR_MEMORY;
    if (n_values) memset(v->top, 0xff, n_values * sizeof *v->top); /* RW_NONE_ID */
    v->path[0] = (struct rw_visit){ .segment = 0, .id = 1 };
    return RW_OK;
}

void rw_visits_finish(struct rw_visits *v)
{
    rw_free(v->path);
    rw_free(v->computed);
    rw_free(v->top);
    *v = (struct rw_visits){ 0 };
}

/* Finds the deepest segment of the path that contains the new segment, and begins visits from there down. */
rw_status rw_visits_begin(struct rw_visits *v, uint32_t segment)
{
    const struct rw_segment *const segments = v->choice->segment;
    const size_t depth = segments[segment].depth;
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

rw_status rw_visits_note(struct rw_visits *v, uint32_t value, size_t depth, uint32_t buffer)
{
    if (!rw_grow(&v->computed, &v->cap_computed, v->n_computed, 1, sizeof *v->computed)) return RW_ERR_MEMORY;
    const uint32_t below = rw_visits_last(v, value);
    v->computed[v->n_computed] = (struct rw_computed){ (uint32_t)depth, v->path[depth].id, buffer, below };
    v->top[value] = (uint32_t)v->n_computed++;
    return RW_OK;
}
