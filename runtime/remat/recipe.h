/*
 * A choice in short: what a planner keeps of each of its candidates. A choice says something for every node and value;
 * this names what is dropped, and the stretches of forward that are segments.
 */
#ifndef RW_REMAT_RECIPE_H
#define RW_REMAT_RECIPE_H

#include "remat/choice.h"
#include "remat/replayable.h"

struct rw_stretch {
    uint32_t first, end; /* places of forward */
    uint32_t parent;     /* in the list, before this one; RW_NONE_ID: the step */
};

/* What becomes of a value: kept, made again once, made again in each visit at a depth that reads it, or moved out. */
enum rw_drop {
    RW_DROP_NOT,
    RW_DROP_ONCE,
    RW_DROP_AT, /* + depth - 1; depth from 1 on */
    RW_DROP_MOVED = UINT8_MAX
};

struct rw_recipe {
    uint8_t *drop; /* value of the graph -> enum rw_drop */
    struct rw_stretch *stretch;
    size_t n_stretches, cap_stretches;
};

/* Everything kept, no segment. RW_ERR_MEMORY leaves *r empty. */
rw_status rw_recipe_init(struct rw_recipe *r, const struct rw_replayable *g);
rw_status rw_recipe_copy(struct rw_recipe *r, const struct rw_recipe *from, const struct rw_replayable *g);
void rw_recipe_finish(struct rw_recipe *r);

/* The number of the new stretch, RW_NONE_ID without memory. */
uint32_t rw_recipe_add_stretch(struct rw_recipe *r, struct rw_stretch stretch);

/* RW_ERR_MEMORY leaves *ret_choice empty. What the caller asked to be replayed is, whatever the recipe says. */
rw_status rw_recipe_choose(const struct rw_recipe *r, const struct rw_replayable *g, struct rw_choice *ret_choice);

#endif
