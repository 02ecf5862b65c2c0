/*
 * Which bytes that an action of a plan uses take longer by where they are, as the simulator says it of a schedule
 * (remat/caches.h): what a node was measured to take is that of one whose operands are near, and these. Of plans that
 * move nothing.
 */
#ifndef RW_RUN_FAR_H
#define RW_RUN_FAR_H

#include "plan/plan.h"
#include "record/tape.h"
#include "remat/caches.h"

/* All zero is empty; used again by the next plan. */
struct rw_far {
    uint64_t of;         /* the plan's serial; 0: of none */
    uint64_t near_bytes; /* with which it was counted */
    struct rw_fetched *fetched; /* by action */
    size_t cap;
    struct rw_caches caches;
    struct rw_far_memory {
        uint64_t bytes;
        size_t last; /* action that names it */
    } *memory;           /* the plan's sources, then what has memory in the arena, in the order in which it begins */
    size_t n_memory, cap_memory;
    uint32_t *lies; /* unit of the arena -> the memory that begins there */
    size_t cap_lies;
    uint32_t *word; /* word of the plan -> memory */
    size_t cap_word;
    rw_desc *desc; /* of one call */
    size_t cap_desc;
};

/* For caches that hold so many bytes. RW_ERR_MEMORY: nothing is known of the plan. */
rw_status rw_far_count(struct rw_far *x, const rw_tape *t, const rw_plan *plan, uint64_t near_bytes);
void rw_far_finish(struct rw_far *x);

#endif
