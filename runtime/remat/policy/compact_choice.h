/*
 * A choice in compact form, which a planner stores per candidate. A choice has an entry for every node and value; this
 * names only what is dropped, and the stretches of forward that are segments.
 */
#ifndef RW_REMAT_POLICY_COMPACT_CHOICE_H
#define RW_REMAT_POLICY_COMPACT_CHOICE_H

#include "remat/policy/choice.h"
#include "remat/policy/replayable.h"

struct rw_stretch {
    uint32_t first, end; /* places of forward */
    uint32_t parent;     /* index in the list, before this one; RW_NONE_ID: the step */
};

/* The fate of a value: kept, recomputed once, recomputed in each visit at a depth that reads it, or offloaded. */
enum rw_drop {
    RW_DROP_NOT,
    RW_DROP_ONCE,
    RW_DROP_AT, /* + depth - 1; depth from 1 on */
    RW_DROP_AFTER_FIRST = 128, /* the same + depth - 1, but kept for the first of these visits */
    RW_DROP_MOVED = UINT8_MAX
};

static inline bool rw_drop_is_after_first(uint8_t drop)
{
    return drop >= RW_DROP_AFTER_FIRST && drop < RW_DROP_MOVED;
}

/*
 * Converts between the two fates of a value that is recomputed in each visit at a depth: with and without being kept
 * for the first visit.
 */
static inline uint8_t rw_drop_after_first(uint8_t drop)
{
    return (uint8_t)(drop - RW_DROP_AT + RW_DROP_AFTER_FIRST);
}
static inline uint8_t rw_drop_at(uint8_t drop)
{
    return rw_drop_is_after_first(drop) ? (uint8_t)(drop - RW_DROP_AFTER_FIRST + RW_DROP_AT) : drop;
}

/* Orders fates by how much of a value's lifetime they give up: a higher rank keeps less. */
static inline int rw_drop_rank(uint8_t drop)
{
    if (drop <= RW_DROP_ONCE) return drop;
    return rw_drop_is_after_first(drop) ? 2 : 3;
}

struct rw_compact_choice {
    uint8_t *drop; /* value of the graph -> enum rw_drop */
    struct rw_stretch *stretch;
    size_t n_stretches, cap_stretches;
    bool ends_at_views; /* a visit ends where backward differentiates a view, and another one begins */
};

/* Initializes with everything kept and no segments. RW_ERR_MEMORY leaves *r empty. */
rw_status rw_compact_choice_init(struct rw_compact_choice *r, const struct rw_replayable *g);
rw_status rw_compact_choice_copy(struct rw_compact_choice *r, const struct rw_compact_choice *from,
                                 const struct rw_replayable *g);
void rw_compact_choice_finish(struct rw_compact_choice *r);

/* Adds a stretch and returns its index, RW_NONE_ID without memory. */
uint32_t rw_compact_choice_add_stretch(struct rw_compact_choice *r, struct rw_stretch stretch);

/*
 * Makes the full choice. What the caller marked to be replayed is replayed, whatever the compact choice says.
 * RW_ERR_MEMORY leaves *ret_choice empty.
 */
rw_status rw_compact_choice_choose(const struct rw_compact_choice *r, const struct rw_replayable *g,
                                   struct rw_choice *ret_choice);

/*
 * The same into *c, whose memory is reused if this function has written it for the same graph before; else it is all
 * zero. RW_ERR_MEMORY leaves *c empty.
 */
rw_status rw_compact_choice_expand(const struct rw_compact_choice *r, const struct rw_replayable *g,
                                   struct rw_choice *c);

#endif
