/*
 * What may be kept besides, without the peak rising above a bound.
 *
 * Of a schedule it is known how many bytes live at each action. A value that is dropped has gaps, from its last read
 * before to the action that makes it again; kept, it lives through them. So it may be kept when in all its gaps there
 * is room:
 *
 *     bound  ---------------------------------------------
 *     live      .:|:.     .:||||:..:||||:.    .:|:.
 *               x|...... gap of x ......|x'                room here: the bound - the highest of live in the gap
 *
 * Values are asked in turn. Each that is kept is added to what lives. Two orders, as neither is always the better one:
 *
 *     first those that a better solution keeps, the shortest gaps first; then the others by the seconds of replay that
 *     they save per byte and action
 *
 *     those that save the most seconds first, whatever they take and a better solution does
 */
#ifndef RW_REMAT_FILL_H
#define RW_REMAT_FILL_H

#include "remat/recipe.h"
#include "remat/schedule.h"

/* All zero is empty. */
struct rw_fill {
    const struct rw_replayable *g;
    size_t n_actions, n_leaves; /* leaves of the tree, a power of two */
    int64_t *live;              /* of a tree: the most below node i, whose children are 2 i and 2 i + 1 */
    int64_t *most, *added;      /* the same with what is kept besides; what was added to all below node i */
    struct rw_gap {
        uint32_t value, from, to; /* actions, inclusive */
    } *gap;                       /* by value */
    size_t n_gaps, cap_gaps;
    uint32_t *gap_at; /* value -> its gaps are gap[gap_at[v] .. gap_at[v + 1]) */
    struct rw_fill_turn {
        uint32_t value;
        bool later;
        double worth;
        int64_t least; /* no bound below has room for it, whatever is kept before */
    } *turn;
    size_t n_turns;
};

/* s: of the recipe that is to be filled, buffers merged. RW_ERR_MEMORY leaves *f empty. */
rw_status rw_fill_init(struct rw_fill *f, const struct rw_replayable *g, const struct rw_schedule *s);
void rw_fill_finish(struct rw_fill *f);

/* Whose turn it is when. replayed_by_better: place -> a better solution replays it as well; NULL: there is none. */
void rw_fill_rank(struct rw_fill *f, const struct rw_recipe *base, const bool *replayed_by_better);
void rw_fill_rank_by_seconds(struct rw_fill *f, const struct rw_recipe *base);

/* *r, a copy of the base, keeps what fits below most bytes. */
void rw_fill_to(struct rw_fill *f, uint64_t most, struct rw_recipe *r);

#endif
