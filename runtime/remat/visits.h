/*
 * The visit that backward is in, one per depth, and what each visit has made: (value, visit) -> buffer. See choice.h.
 */
#ifndef RW_REMAT_VISITS_H
#define RW_REMAT_VISITS_H

#include "remat/choice.h"

struct rw_visits {
    const struct rw_choice *choice;
    struct rw_visit {
        uint32_t segment, id;
    } * path; /* by depth: [0] is the step, [depth] the innermost */
    size_t depth, n_path, cap_path;
    uint32_t last_id;
    /* A hash by open addressing; size a power of two, key 0 is empty. */
    struct rw_made {
        uint64_t key;
        uint32_t buffer;
    } * made;
    size_t n_made, cap_made;
};

/* Nothing is made, backward is in the step. Memory of an earlier use is used again. */
rw_status rw_visits_init(struct rw_visits *v, const struct rw_choice *c);
void rw_visits_finish(struct rw_visits *v);

/* Backward comes to a node of that segment: segments around neither the last node nor this one are left, new ones
 * begun. */
rw_status rw_visits_enter(struct rw_visits *v, uint32_t segment);

/* The buffer that the visit at that depth of the path has made of the value, RW_NONE_ID when it has not. */
uint32_t rw_visits_find(const struct rw_visits *v, uint32_t value, size_t depth);
rw_status rw_visits_note(struct rw_visits *v, uint32_t value, size_t depth, uint32_t buffer);

#endif
