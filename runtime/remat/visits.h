/*
 * The visit that backward is in, one per depth, and what each visit has made: (value, visit) -> buffer. See choice.h.
 */
#ifndef RW_REMAT_VISITS_H
#define RW_REMAT_VISITS_H

#include "remat/choice.h"

/*
 * A value has one level, so of two visits that have made it the inner one did so last: what was made of it is a stack,
 * on which what visits made that are over lies above all else.
 */
struct rw_visits {
    const struct rw_choice *choice;
    struct rw_visit {
        uint32_t segment, id;
    } *path; /* by depth: [0] is the step, [depth] the innermost */
    size_t depth, cap_path;
    uint32_t last_id;
    struct rw_made {
        uint32_t depth, id; /* of the visit */
        uint32_t buffer;
        uint32_t below; /* what was made of the value before, in made, or RW_NONE_ID */
    } *made;
    size_t n_made, cap_made;
    uint32_t *top; /* base value -> what was made of it last, in made, or RW_NONE_ID */
    size_t cap_top;
};

/* Nothing is made of so many values, backward is in the step. Memory of an earlier use is used again. */
rw_status rw_visits_init(struct rw_visits *v, const struct rw_choice *c, size_t n_values);
void rw_visits_finish(struct rw_visits *v);

/* Backward comes to a node of that segment: segments around neither the last node nor this one are left, new ones
 * begun. */
rw_status rw_visits_enter(struct rw_visits *v, uint32_t segment);

/* What the visit at that depth of the path, which serves the value now, has made of it; RW_NONE_ID when it has not. */
uint32_t rw_visits_find(const struct rw_visits *v, uint32_t value, size_t depth);
rw_status rw_visits_note(struct rw_visits *v, uint32_t value, size_t depth, uint32_t buffer);

#endif
