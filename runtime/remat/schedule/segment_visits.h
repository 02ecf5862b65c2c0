/* The visits that backward is in, one per depth, and what each has computed: (value, visit) -> buffer. See choice.h. */
#ifndef RW_REMAT_SCHEDULE_SEGMENT_VISITS_H
#define RW_REMAT_SCHEDULE_SEGMENT_VISITS_H

#include "remat/policy/choice.h"

/*
 * A value has one level. So of two visits that have computed it, the inner one did so last. The buffers of a value form
 * a stack, and those of finished visits are on top of all others.
 */
struct rw_visits {
    const struct rw_choice *choice;
    struct rw_visit {
        uint32_t segment, id;
    } *path; /* by depth: [0] is the step, [depth] the innermost */
    size_t depth, cap_path;
    uint32_t last_id;
    struct rw_computed {
        uint32_t depth, id; /* of the visit */
        uint32_t buffer;
        uint32_t below; /* the buffer of the value before this one, an index into made, or RW_NONE_ID */
    } *computed;
    size_t n_computed, cap_computed;
    uint32_t *top; /* base value -> its last buffer, an index into made, or RW_NONE_ID */
    size_t cap_top;
};

/* Begins with no value computed and backward in the step. Reuses memory of an earlier use. */
rw_status rw_visits_init(struct rw_visits *v, const struct rw_choice *c, size_t n_values);
void rw_visits_finish(struct rw_visits *v);

/* Enters a segment in which backward is not yet. */
rw_status rw_visits_begin(struct rw_visits *v, uint32_t segment);

/* Backward reaches a node of that segment. Segments that do not contain it are left, and new visits begin. */
static inline rw_status rw_visits_enter(struct rw_visits *v, uint32_t segment)
{
    return v->path[v->depth].segment == segment ? RW_OK : rw_visits_begin(v, segment);
}

/* The last buffer of the value from a visit that backward is still in: an index into computed. */
static inline uint32_t rw_visits_last(const struct rw_visits *v, uint32_t value)
{
    uint32_t i = v->top[value];
    while (i != RW_NONE_ID && (v->computed[i].depth > v->depth ||
                               v->path[v->computed[i].depth].id != v->computed[i].id))
        i = v->computed[i].below;
    return i;
}

/* The buffer that the visit at that depth of the path has for the value; RW_NONE_ID if it has none. */
static inline uint32_t rw_visits_find(const struct rw_visits *v, uint32_t value, size_t depth)
{
    const uint32_t i = rw_visits_last(v, value);
    return i != RW_NONE_ID && v->computed[i].depth == depth ? v->computed[i].buffer : RW_NONE_ID;
}

rw_status rw_visits_note(struct rw_visits *v, uint32_t value, size_t depth, uint32_t buffer);

#endif
